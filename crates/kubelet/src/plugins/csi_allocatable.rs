//! How many volumes of each CSI driver the node takes: drivers are asked again at the period that their CSIDriver says, and when a volume
//! could not be attached because the node takes no more (KEP-4876). Upstream's `csi_node_updater`.
//!
//! Invariant: a driver without a period in its CSIDriver is asked only when it registers.

use super::csi_node::CsiNode;
use crate::volumes::CsiDrivers;
use jiff::Timestamp;
use kaji_meta::Clock;
use kaji_runtime::{Informers, Key, objects::CsiDriver};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether a driver is due; periods are ten seconds at least.
const LOOK: Duration = Duration::from_secs(1);

/// Asks drivers again.
pub struct AllocatableUpdates {
    csi: Arc<CsiDrivers>,
    node: Arc<CsiNode>,
    informers: Arc<Informers>,
    clock: Arc<dyn Clock>,
}

impl AllocatableUpdates {
    /// Of the registered drivers; what they say is shown in the CSINode.
    #[must_use]
    pub fn new(
        csi: Arc<CsiDrivers>,
        node: Arc<CsiNode>,
        informers: Arc<Informers>,
        clock: Arc<dyn Clock>,
    ) -> AllocatableUpdates {
        AllocatableUpdates { csi, node, informers, clock }
    }

    /// Runs until it is dropped.
    pub async fn run(self) {
        let mut schedule = Schedule::default();
        loop {
            kaji_runtime::time::sleep(&*self.clock, LOOK).await;
            let registered = self.csi.names();
            if registered.is_empty() {
                continue;
            }
            // Made only where there are drivers: it is a watch.
            let objects = self.informers.get::<CsiDriver>().snapshot();
            let period = |name: &str| {
                let object = objects.by_key(&Key::new("", name))?;
                let seconds = object.spec.node_allocatable_update_period_seconds?;
                u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
            };
            let drivers = registered.into_iter().filter_map(|name| {
                let asked = self.csi.take_exhausted(&name);
                Some((period(&name)?, asked, name))
            });
            for name in schedule.due(self.clock.now(), drivers) {
                if let Err(error) = self.update(&name).await {
                    tracing::error!(
                        driver = name,
                        error,
                        "failed to update the volume limit of a CSI driver"
                    );
                }
            }
        }
    }

    async fn update(&self, name: &str) -> Result<(), String> {
        let driver = self.csi.get(name)?;
        let info = driver.info().await;
        let info = info.map_err(|e| format!("failed to get NodeGetInfo from driver \"{name}\": {e}"))?;
        let shown = self.node.update(name, &info).await;
        shown.map_err(|e| format!("failed to update driver \"{name}\": {e}"))
    }
}

/// When each driver is asked next, and its period.
#[derive(Default)]
struct Schedule(BTreeMap<String, (Duration, Timestamp)>);

impl Schedule {
    /// The drivers that are due, of all that have a period; some are to be asked now. A period that has changed begins anew.
    fn due(
        &mut self,
        now: Timestamp,
        drivers: impl Iterator<Item = (Duration, bool, String)>,
    ) -> Vec<String> {
        let (mut next, mut due) = (BTreeMap::new(), vec![]);
        for (period, asked, name) in drivers {
            let known = self.0.get(&name).filter(|(known, _)| *known == period);
            let is_due = asked || known.is_some_and(|(_, at)| *at <= now);
            let at = known.filter(|_| !is_due).map_or_else(|| now + period, |(_, at)| *at);
            if is_due {
                due.push(name.clone());
            }
            next.insert(name, (period, at));
        }
        self.0 = next;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_due_after_their_period_and_when_asked() {
        let mut schedule = Schedule::default();
        let began: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut at = |seconds: u64, drivers: &[(u64, bool, &str)]| {
            let drivers = drivers.iter().map(|(p, a, n)| (Duration::from_secs(*p), *a, (*n).to_owned()));
            schedule.due(began + Duration::from_secs(seconds), drivers).join(" ")
        };
        assert_eq!(at(0, &[(10, false, "a"), (30, false, "b")]), "");
        assert_eq!(at(9, &[(10, false, "a"), (30, true, "b")]), "b", "asked");
        assert_eq!(at(10, &[(10, false, "a"), (30, false, "b")]), "a");
        assert_eq!(at(11, &[(10, false, "a"), (30, false, "b")]), "");
        assert_eq!(at(20, &[(60, false, "a"), (30, false, "b")]), "", "another period");
        assert_eq!(at(39, &[(60, false, "a"), (30, false, "b")]), "b", "since it was asked");
        assert_eq!(at(50, &[(60, false, "a")]), "");
        assert_eq!(at(80, &[(60, false, "a"), (30, false, "b")]), "a", "b has registered again");
    }
}
