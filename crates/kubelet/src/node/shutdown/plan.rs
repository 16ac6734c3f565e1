//! In which order and with how much time pods are ended when their node shuts down. Pure. Upstream's `groupByPriority`.
//!
//! Invariants: each pod is in one group; groups are in the order of their priorities, so that critical pods end last.

use crate::pods::core::Pod;
use crate::pods::model;
use std::sync::Arc;
use std::time::Duration;

/// The priority of pods that the system needs.
const CRITICAL: i32 = 2_000_000_000;

/// How long pods of a priority, and of those up to the next one, get to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GracePeriod {
    /// The least priority.
    pub priority: i32,
    /// Seconds.
    pub seconds: u64,
}

/// The periods of `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods`, which is a part of it; none without one.
#[must_use]
pub fn periods(whole: Duration, critical: Duration) -> Vec<GracePeriod> {
    if whole.is_zero() {
        return vec![];
    }
    let regular = whole.saturating_sub(critical);
    vec![
        GracePeriod { priority: 0, seconds: regular.as_secs() },
        GracePeriod { priority: CRITICAL, seconds: critical.min(whole).as_secs() },
    ]
}

/// How long a shutdown can take with these periods.
#[must_use]
pub fn whole(periods: &[GracePeriod]) -> Duration {
    Duration::from_secs(periods.iter().fold(0, |sum, period| sum.saturating_add(period.seconds)))
}

/// Pods that are ended at a time.
#[derive(Debug, Clone)]
pub struct Group {
    /// How long all of them get.
    pub period: GracePeriod,
    /// The pods.
    pub pods: Vec<Arc<Pod>>,
}

impl Group {
    /// Seconds that a pod's containers get: no more than the pod asks for.
    #[must_use]
    pub fn grace(&self, pod: &Pod) -> i64 {
        let most = i64::try_from(self.period.seconds).unwrap_or(i64::MAX);
        model::spec(pod).termination_grace_period_seconds.map_or(most, |own| own.min(most))
    }
}

/// The groups that have pods, by periods in the order of their priorities. A pod belongs to the period of the highest priority that is not
/// above its own; one below all of them to the first.
#[must_use]
pub fn groups(periods: &[GracePeriod], pods: &[Arc<Pod>]) -> Vec<Group> {
    let mut groups: Vec<Group> =
        periods.iter().map(|period| Group { period: *period, pods: vec![] }).collect();
    groups.sort_by_key(|group| group.period.priority);
    for pod in pods {
        let priority = model::spec(pod).priority.unwrap_or(0);
        let reached = groups.iter().filter(|group| group.period.priority <= priority).count();
        if let Some(group) = groups.get_mut(reached.saturating_sub(1)) {
            group.pods.push(pod.clone());
        }
    }
    groups.retain(|group| !group.pods.is_empty());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn pod(name: &str, priority: Option<i32>, grace: i64) -> Arc<Pod> {
        let spec = json!({"containers": [], "priority": priority, "terminationGracePeriodSeconds": grace});
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap())
    }

    fn shown(periods: &[GracePeriod], pods: &[Arc<Pod>]) -> String {
        let of = |group: &Group| {
            let names = group.pods.iter().map(|pod| format!("{}:{}", model::name(pod), group.grace(pod)));
            let names: Vec<_> = names.collect();
            format!("{} {}s: {}", group.period.priority, group.period.seconds, names.join(" "))
        };
        groups(periods, pods).iter().map(of).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn critical_pods_end_last_and_none_gets_more_than_it_asks_for() {
        let pods = [
            pod("critical", Some(2_000_001_000), 30),
            pod("regular", None, 30),
            pod("short", Some(10), 2),
            pod("negative", Some(-5), 60),
            pod("high", Some(1_000_000), 0),
        ];
        let two = periods(Duration::from_secs(30), Duration::from_secs(10));
        assert_eq!(whole(&two), Duration::from_secs(30));
        let period = |priority, seconds| GracePeriod { priority, seconds };
        let several = [period(1_000_000, 5), period(10, 20), period(2_000_000_000, 3)];
        let shown = [shown(&two, &pods), shown(&several, &pods), shown(&two, &pods[..1])];
        expect_test::expect![[r#"
            0 20s: regular:20 short:2 negative:20 high:0
            2000000000 10s: critical:10
            --
            10 20s: regular:20 short:2 negative:20
            1000000 5s: high:0
            2000000000 3s: critical:3
            --
            2000000000 10s: critical:10"#]]
        .assert_eq(&shown.join("\n--\n"));
        assert!(periods(Duration::ZERO, Duration::ZERO).is_empty());
        assert!(groups(&[], &pods).is_empty());
    }

    proptest! {
        #[test]
        fn each_pod_is_in_one_group(
            priorities in proptest::collection::vec(any::<i32>(), 0..20),
            of_periods in proptest::collection::vec((any::<i32>(), 0_u64..100), 1..5),
        ) {
            let pods: Vec<_> =
                priorities.iter().enumerate().map(|(i, p)| pod(&i.to_string(), Some(*p), 30)).collect();
            let periods: Vec<_> =
                of_periods.into_iter().map(|(priority, seconds)| GracePeriod { priority, seconds }).collect();
            let groups = groups(&periods, &pods);
            prop_assert_eq!(groups.iter().map(|g| g.pods.len()).sum::<usize>(), pods.len());
            let order: Vec<_> = groups.iter().map(|g| g.period.priority).collect();
            prop_assert!(order.is_sorted());
            for group in &groups {
                let least = periods.iter().map(|p| p.priority).min().unwrap();
                for pod in &group.pods {
                    let priority = model::spec(pod).priority.unwrap();
                    prop_assert!(group.period.priority <= priority || group.period.priority == least);
                }
            }
        }
    }
}
