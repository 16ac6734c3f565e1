//! Whether a node is under pressure, and of which of the thresholds pods have to be evicted. Pure. Upstream's
//! `managerImpl.synchronize`.
//!
//! Invariants: a threshold counts for eviction after it was met for its grace period without a break; pressure that pods were evicted
//! for lasts until the minimum reclaim is available too; a condition lasts for the transition period at least.

use super::thresholds::{EvictionResource, EvictionSettings, Pressure, Signal, Threshold};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// An amount of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// Bytes, inodes or processes.
    pub available: i64,
    /// All there is.
    pub capacity: i64,
}

/// What a node has, by signal. What cannot be observed is absent.
pub type Observations = BTreeMap<Signal, Observation>;

/// What was found before.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Memory {
    /// Thresholds that were met, since when.
    first_met: Vec<(Threshold, Timestamp)>,
    /// Those of them that pods are evicted for.
    evicting: Vec<Threshold>,
    /// When pressure was observed last.
    last_pressure: BTreeMap<Pressure, Timestamp>,
}

/// What is found now.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessment {
    /// The conditions of the node.
    pub pressures: BTreeSet<Pressure>,
    /// The thresholds that pods are evicted for, that of memory first.
    pub met: Vec<Threshold>,
}

impl Assessment {
    /// What an eviction has to free: the first threshold and what there is too little of.
    #[must_use]
    pub fn most_urgent(&self) -> Option<(Threshold, EvictionResource)> {
        self.met.first().map(|t| (*t, t.signal.resource()))
    }
}

/// The thresholds that are met, grace periods aside; with `reclaim` also those of which the minimum reclaim is not available.
#[must_use]
pub fn met(thresholds: &[Threshold], observations: &Observations, reclaim: bool) -> Vec<Threshold> {
    let is_met = |threshold: &&Threshold| {
        observations.get(&threshold.signal).is_some_and(|observed| {
            let beyond =
                threshold.reclaim.filter(|_| reclaim).map_or(0, |amount| amount.of(observed.capacity));
            observed.available < threshold.least.of(observed.capacity).saturating_add(beyond)
        })
    };
    thresholds.iter().filter(is_met).copied().collect()
}

/// Judges what was observed, and remembers it.
#[must_use]
pub fn assess(
    settings: &EvictionSettings,
    memory: &mut Memory,
    observations: &Observations,
    now: Timestamp,
) -> Assessment {
    let mut now_met = met(&settings.thresholds, observations, false);
    for unresolved in met(&memory.evicting, observations, true) {
        if !now_met.iter().any(|t| t.same(&unresolved)) {
            now_met.push(unresolved);
        }
    }
    let since = |threshold: &Threshold| {
        let before = memory.first_met.iter().find(|(t, _)| t.same(threshold));
        before.map_or(now, |(_, since)| *since)
    };
    memory.first_met = now_met.iter().map(|t| (*t, since(t))).collect();
    memory.last_pressure.extend(now_met.iter().map(|t| (t.signal.pressure(), now)));
    let recent = |at: Timestamp| now.duration_since(at).unsigned_abs() < settings.transition;
    memory.last_pressure.retain(|_, at| recent(*at));
    let lasted = |(threshold, since): &&(Threshold, Timestamp)| {
        now.duration_since(*since).unsigned_abs() >= threshold.grace
    };
    let mut evicting: Vec<Threshold> = memory.first_met.iter().filter(lasted).map(|(t, _)| *t).collect();
    evicting.sort_by_key(|t| t.signal.resource() != EvictionResource::Memory);
    memory.evicting.clone_from(&evicting);
    Assessment { pressures: memory.last_pressure.keys().copied().collect(), met: evicting }
}

#[cfg(test)]
mod tests {
    use super::super::thresholds::Amount;
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn memory_of(available: i64) -> Observations {
        BTreeMap::from([(Signal::MemoryAvailable, Observation { available, capacity: 1000 })])
    }

    fn settings() -> EvictionSettings {
        let soft = Threshold {
            signal: Signal::MemoryAvailable,
            least: Amount::Part(0.3),
            grace: Duration::from_secs(30),
            reclaim: None,
        };
        let hard = Threshold {
            least: Amount::Units(100),
            grace: Duration::ZERO,
            reclaim: Some(Amount::Units(50)),
            ..soft
        };
        EvictionSettings { thresholds: vec![hard, soft], ..EvictionSettings::default() }
    }

    #[test]
    fn soft_thresholds_wait_hard_ones_do_not_and_conditions_last() {
        let (settings, mut memory) = (settings(), Memory::default());
        let mut shown = vec![];
        for (second, available) in [
            (0, 500),
            (10, 250),
            (20, 350),
            (30, 250),
            (59, 250),
            (60, 250),
            (70, 90),
            (80, 120),
            (90, 400),
            (389, 400),
            (390, 400),
        ] {
            let found = assess(&settings, &mut memory, &memory_of(available), at(second));
            let pressures: Vec<_> = found.pressures.iter().map(|p| p.name()).collect();
            let kinds: Vec<_> = found.met.iter().map(|t| if t.is_hard() { "hard" } else { "soft" }).collect();
            shown.push(format!("{second} {available}: {} [{}]", pressures.join(" "), kinds.join(" ")));
        }
        expect_test::expect![[r#"
            0 500:  []
            10 250: MemoryPressure []
            20 350: MemoryPressure []
            30 250: MemoryPressure []
            59 250: MemoryPressure []
            60 250: MemoryPressure [soft]
            70 90: MemoryPressure [hard soft]
            80 120: MemoryPressure [soft hard]
            90 400: MemoryPressure []
            389 400:  []
            390 400:  []"#]]
        .assert_eq(&shown.join("\n"));
    }

    proptest! {
        #[test]
        fn pressure_follows_from_what_is_available(available in proptest::collection::vec(0..1000_i64, 1..30)) {
            let (settings, mut memory) = (settings(), Memory::default());
            let mut low_since: Option<i64> = None;
            for (step, available) in available.into_iter().enumerate() {
                let now = i64::try_from(step).unwrap() * 10;
                let found = assess(&settings, &mut memory, &memory_of(available), at(now));
                low_since = if available < 300 { low_since.or(Some(now)) } else { None };
                // Below a hard threshold pods are evicted at once, below a soft one after its grace period.
                let hard = available < 100;
                let soft = low_since.is_some_and(|since| now - since >= 30);
                prop_assert!(found.met.iter().any(Threshold::is_hard) || !hard);
                prop_assert_eq!(found.met.iter().any(|t| !t.is_hard()), soft);
                prop_assert!(found.met.is_empty() || found.pressures.contains(&Pressure::Memory));
                prop_assert!(low_since.is_none() || found.pressures.contains(&Pressure::Memory));
                prop_assert!(available < 300 || found.met.is_empty());
            }
        }
    }
}
