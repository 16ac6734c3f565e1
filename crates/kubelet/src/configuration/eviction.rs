//! When pods are evicted: `evictionHard` and the fields that go with it.

use super::{File, time};
use crate::node::eviction::thresholds::{EvictionSettings, Statements};
use std::collections::BTreeMap;

/// Upstream's `DefaultEvictionHard`.
const USUAL: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

pub(super) fn parse(file: &File) -> Result<EvictionSettings, String> {
    let usual: Statements = USUAL.map(|(signal, least)| (signal.to_owned(), least.to_owned())).into();
    let hard = match &file.eviction_hard {
        None => usual,
        Some(own) if file.merge_default_eviction_settings == Some(true) => {
            usual.into_iter().chain(own.clone()).collect()
        }
        // As upstream: hard thresholds replace the usual ones as a whole.
        Some(own) => own.clone(),
    };
    let mut grace = BTreeMap::new();
    for (signal, text) in file.eviction_soft_grace_period.iter().flatten() {
        grace.insert(signal.clone(), time("evictionSoftGracePeriod", text)?);
    }
    let given = |statements: &Option<Statements>| statements.clone().unwrap_or_default();
    let (soft, reclaim) = (given(&file.eviction_soft), given(&file.eviction_minimum_reclaim));
    let parsed =
        EvictionSettings::parse(&hard, &soft, &grace, &reclaim).map_err(|error| error.to_string())?;
    let usual = file.eviction_hard.is_none() && soft.is_empty() && reclaim.is_empty();
    let mut settings = if usual { EvictionSettings::default() } else { parsed };
    if let Some(seconds) = file.eviction_max_pod_grace_period {
        settings.most_pod_grace = seconds;
    }
    if let Some(text) = &file.eviction_pressure_transition_period {
        let period = time("evictionPressureTransitionPeriod", text)?;
        // Zero stands for the default.
        if !period.is_zero() {
            settings.transition = period;
        }
    }
    Ok(settings)
}
