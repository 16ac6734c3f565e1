//! How long pods get when the node shuts down: `shutdownGracePeriod` and the fields that go with it.

use super::{File, time};
use crate::node::shutdown::plan::{self, GracePeriod};
use kaji_meta::duration;
use serde::Deserialize;
use std::time::Duration;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct PodPriorityPeriod {
    priority: i32,
    shutdown_grace_period_seconds: u64,
}

pub(super) fn parse(file: &File) -> Result<Vec<GracePeriod>, String> {
    let period = |field: &str, text: &Option<String>| match text {
        None => Ok(Duration::ZERO),
        Some(text) => {
            let period = time(field, text)?;
            if !period.is_zero() && period < Duration::from_secs(1) {
                return Err(format!(
                    "invalid configuration: {field} {period:?} must be either zero or otherwise >= 1 sec"
                ));
            }
            Ok(period)
        }
    };
    let whole = period("shutdownGracePeriod", &file.shutdown_grace_period)?;
    let critical = period("shutdownGracePeriodCriticalPods", &file.shutdown_grace_period_critical_pods)?;
    if critical > whole {
        let (critical, whole) = (duration::format(critical), duration::format(whole));
        return Err(format!(
            "invalid configuration: shutdownGracePeriodCriticalPods {critical} must be <= shutdownGracePeriod {whole}"
        ));
    }
    let mut by_priority: Vec<GracePeriod> = file
        .shutdown_grace_period_by_pod_priority
        .iter()
        .flatten()
        .map(|p| GracePeriod { priority: p.priority, seconds: p.shutdown_grace_period_seconds })
        .collect();
    if by_priority.is_empty() {
        return Ok(plan::periods(whole, critical));
    }
    if !whole.is_zero() {
        return Err("invalid configuration: Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time".to_owned());
    }
    by_priority.sort_by_key(|period| period.priority);
    Ok(by_priority)
}
