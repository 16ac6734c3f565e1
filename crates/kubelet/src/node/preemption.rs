//! Room for critical pods: the pods that end when a critical pod lacks nothing but resources. Upstream's `preemption`.
//!
//! The choice is pure. Invariants: only pods that the critical pod may preempt are chosen, guaranteed ones last, and of each kind those
//! that are nearest to what is lacking; a critical pod waits until they are over, or until their time is, and is taken then.

use super::Dispatcher;
use crate::metrics::families::PREEMPTIONS;
use crate::pods::admission::{self, Insufficient, PodRejection};
use crate::pods::core::Pod;
use crate::pods::model::{self, Qos};
use crate::pods::worker::Ending;
use jiff::{SignedDuration, Timestamp};
use kaji_runtime::EventRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior};

const REASON: &str = "Preempting";
const MESSAGE: &str = "Preempted in order to admit critical pod";
const CONDITION: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";
const LATE: &str = "Container runtime did not kill the pod within specified grace period.";
/// A pod gets at least so many seconds to end: upstream's `killPodNow`.
const LEAST_SECONDS: i64 = 10;
/// How often pods that end are looked at. Their last statuses are seen earlier.
const OBSERVE: Duration = Duration::from_secs(1);

/// What becomes of a critical pod.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// It is taken.
    Take,
    /// It is taken though these have not ended in time.
    TakeAnyway(Vec<Arc<Pod>>),
    /// These have to end first.
    Preempt(Vec<Arc<Pod>>),
    /// Some that end are not over.
    Wait,
    /// There is no room to be made.
    Refuse(PodRejection),
}

#[derive(Debug)]
struct Waiting {
    /// The uids of the pods that end.
    victims: BTreeSet<String>,
    until: Timestamp,
}

/// The critical pods that wait for others to end, by uid.
#[derive(Debug, Default)]
pub(super) struct Preemptions(BTreeMap<String, Waiting>);

impl Preemptions {
    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets the pods for which this does not hold.
    pub(super) fn retain(&mut self, holds: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| holds(uid));
    }

    /// What becomes of a critical pod that lacks nothing but resources. `active` are the pods that run and are not over.
    pub(super) fn next(
        &mut self,
        pod: &Pod,
        active: &[Arc<Pod>],
        lacking: &[Insufficient],
        now: Timestamp,
    ) -> Step {
        let uid = model::uid(pod);
        if let Some(waiting) = self.0.get(uid) {
            let ending = active.iter().filter(|p| waiting.victims.contains(model::uid(p)));
            let ending: Vec<Arc<Pod>> = ending.cloned().collect();
            if !ending.is_empty() && now < waiting.until {
                return Step::Wait;
            }
            self.0.remove(uid);
            if !ending.is_empty() {
                return Step::TakeAnyway(ending);
            }
        }
        if lacking.is_empty() {
            return Step::Take;
        }
        let requirements = lacking.iter().map(|l| (l.resource.clone(), l.missing())).collect();
        match victims(pod, active, requirements) {
            Ok(victims) => {
                let most = victims.iter().map(|victim| seconds_to_end(victim)).max().unwrap_or(LEAST_SECONDS);
                let until = now.saturating_add(SignedDuration::from_secs(most)).unwrap_or(Timestamp::MAX);
                let uids = victims.iter().map(|victim| model::uid(victim).to_owned()).collect();
                self.0.insert(uid.to_owned(), Waiting { victims: uids, until });
                Step::Preempt(victims)
            }
            Err(error) => {
                let message = format!(
                    "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: {error}"
                );
                Step::Refuse(PodRejection { reason: "UnexpectedAdmissionError".to_owned(), message })
            }
        }
    }
}

/// When critical pods that wait are looked at again.
pub(super) fn observations() -> Interval {
    let mut interval = tokio::time::interval(OBSERVE);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

fn seconds_to_end(pod: &Pod) -> i64 {
    let grace = model::grace_period(pod).max(0);
    grace.saturating_add(grace / 2).max(LEAST_SECONDS)
}

impl Dispatcher {
    /// Ends a pod in favour of a critical one that lacks this resource.
    pub(super) fn preempt(&self, victim: &Pod, resource: &str) {
        let ending = Ending {
            reason: REASON.to_owned(),
            message: MESSAGE.to_owned(),
            grace: None,
            disruption: Some(CONDITION.to_owned()),
        };
        // One that ends already is waited for.
        let Some(reference) = self.end(model::uid(victim), ending) else { return };
        self.cx.metrics.count(&PREEMPTIONS, &[("preemption_signal", resource)]);
        self.cx.api.record(EventRecord::warning(reference, REASON, MESSAGE));
    }

    /// A critical pod has waited for these long enough.
    pub(super) fn note_late(&self, victims: &[Arc<Pod>]) {
        for victim in victims {
            tracing::error!(pod = model::display(victim), "Failed to evict pod");
            let reference = model::reference(victim);
            self.cx.api.record(EventRecord::warning(reference, "ExceededGracePeriod", LATE));
        }
    }
}

/// Resources with what is lacking of each.
type Requirements = Vec<(String, i64)>;

/// The pods that end: as few as possible of the most important kinds.
fn victims(pod: &Pod, active: &[Arc<Pod>], requirements: Requirements) -> Result<Vec<Arc<Pod>>, String> {
    let of = |qos: Qos| -> Vec<Arc<Pod>> {
        active
            .iter()
            .filter(|other| is_preemptable(pod, other) && model::qos(other) == qos)
            .cloned()
            .collect()
    };
    let (best_effort, burstable, guaranteed) = (of(Qos::BestEffort), of(Qos::Burstable), of(Qos::Guaranteed));
    let without = |lists: [&[Arc<Pod>]; 2]| {
        lists.into_iter().fold(requirements.clone(), |left, pods| subtract(&left, pods))
    };
    let left = subtract(&without([&best_effort, &burstable]), &guaranteed);
    if !left.is_empty() {
        return Err(none_found(&left));
    }
    // Each kind has to give what all of the less important ones could not, and of those only what is needed then ends.
    let guaranteed = nearest(guaranteed, without([&best_effort, &burstable]))?;
    let burstable = nearest(burstable, without([&best_effort, &guaranteed]))?;
    let best_effort = nearest(best_effort, without([&burstable, &guaranteed]))?;
    Ok([best_effort, burstable, guaranteed].concat())
}

/// Upstream's `Preemptable`.
fn is_preemptable(pod: &Pod, other: &Pod) -> bool {
    if model::is_critical(pod) && !model::is_critical(other) {
        return true;
    }
    let priority = |pod: &Pod| model::spec(pod).priority;
    matches!((priority(pod), priority(other)), (Some(own), Some(its)) if own > its)
}

fn requested(pod: &Pod, resource: &str) -> i64 {
    if resource == "pods" {
        return 1;
    }
    admission::pod_requests(pod).get(resource).copied().unwrap_or(0)
}

/// What is lacking without these pods.
fn subtract(requirements: &[(String, i64)], pods: &[Arc<Pod>]) -> Requirements {
    let left = requirements.iter().map(|(resource, lacking)| {
        let given = pods.iter().fold(0_i64, |sum, pod| sum.saturating_add(requested(pod, resource)));
        (resource.clone(), lacking.saturating_sub(given))
    });
    left.filter(|(_, lacking)| *lacking > 0).collect()
}

/// How far a pod is from giving what is lacking: each resource counts the same, whatever its amount.
fn distance(requirements: &[(String, i64)], pod: &Pod) -> f64 {
    let parts = requirements.iter().map(|(resource, lacking)| {
        let left = lacking.saturating_sub(requested(pod, resource)).max(0);
        (left as f64 / *lacking as f64).powi(2)
    });
    parts.sum()
}

/// Chooses the nearest pod until nothing is lacking; of two that are as near, the one that asks for less memory, then processors.
fn nearest(mut pods: Vec<Arc<Pod>>, mut requirements: Requirements) -> Result<Vec<Arc<Pod>>, String> {
    let mut chosen = vec![];
    while !requirements.is_empty() {
        let key = |pod: &Pod| (distance(&requirements, pod), requested(pod, "memory"), requested(pod, "cpu"));
        let keys = pods.iter().map(|pod| key(pod)).enumerate();
        let first = keys.min_by(|(_, a), (_, b)| {
            a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)).then_with(|| a.2.cmp(&b.2))
        });
        let Some((index, _)) = first else { return Err(none_found(&requirements)) };
        let pod = pods.swap_remove(index);
        requirements = subtract(&requirements, std::slice::from_ref(&pod));
        chosen.push(pod);
    }
    Ok(chosen)
}

fn none_found(requirements: &[(String, i64)]) -> String {
    let mut text = "no set of running pods found to reclaim resources: [".to_owned();
    for (resource, lacking) in requirements {
        // Writing to a string cannot fail.
        let _ = write!(text, "(res: {resource}, q: {lacking}), ");
    }
    text + "]"
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A pod of a priority that asks for processors and memory, with limits if it is guaranteed.
    fn pod(name: &str, priority: i32, cpu: i64, memory: i64, qos: &str) -> Arc<Pod> {
        let requests = json!({"cpu": format!("{cpu}m"), "memory": memory.to_string()});
        let pod = json!({
            "metadata": {"name": name, "namespace": "n", "uid": name},
            "spec": {
                "priority": priority, "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "c", "resources": {"requests": requests}}],
            },
            "status": {"qosClass": qos},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn critical(name: &str) -> Arc<Pod> {
        pod(name, 2_000_000_000, 100, 100, "Burstable")
    }

    fn lacking(amounts: &[(&str, i64)]) -> Vec<Insufficient> {
        let of = |(resource, missing): &(&str, i64)| Insufficient {
            resource: (*resource).to_owned(),
            requested: *missing,
            used: 0,
            capacity: 0,
        };
        amounts.iter().map(of).collect()
    }

    fn names(pods: &[Arc<Pod>]) -> String {
        pods.iter().map(|pod| model::name(pod)).collect::<Vec<_>>().join(" ")
    }

    fn chosen(active: &[Arc<Pod>], amounts: &[(&str, i64)]) -> String {
        let requirements = amounts.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
        victims(&critical("critical"), active, requirements).map_or_else(|e| e, |pods| names(&pods))
    }

    #[test]
    fn the_fewest_pods_of_the_least_important_kinds_end() {
        let active = [
            pod("best-effort", 0, 0, 0, "BestEffort"),
            pod("small", 0, 100, 100, "Burstable"),
            pod("large", 0, 500, 500, "Burstable"),
            pod("guaranteed", 0, 300, 300, "Guaranteed"),
            pod("other-critical", 2_000_000_000, 900, 900, "Guaranteed"),
        ];
        let shown = [
            chosen(&active, &[("pods", 1)]),
            chosen(&active, &[("cpu", 50)]),
            chosen(&active, &[("memory", 200)]),
            chosen(&active, &[("cpu", 550)]),
            // The guaranteed pod gives what all others cannot, and then one other is enough.
            chosen(&active, &[("cpu", 650)]),
            chosen(&active, &[("cpu", 50), ("memory", 450)]),
            chosen(&active, &[("cpu", 901), ("example.com/device", 1)]),
        ];
        expect![[r#"
            best-effort
            small
            large
            large small
            large guaranteed
            large
            no set of running pods found to reclaim resources: [(res: cpu, q: 1), (res: example.com/device, q: 1), ]"#]]
        .assert_eq(&shown.join("\n"));
    }

    #[test]
    fn pods_of_lower_priority_may_be_preempted_and_others_if_they_are_not_critical() {
        let node_critical = pod("node", 2_000_001_000, 0, 0, "Burstable");
        let (cluster, plain) = (critical("cluster"), pod("plain", 5, 0, 0, "BestEffort"));
        assert!(is_preemptable(&cluster, &plain) && !is_preemptable(&plain, &cluster));
        assert!(is_preemptable(&node_critical, &cluster) && !is_preemptable(&cluster, &node_critical));
        assert!(!is_preemptable(&cluster, &cluster));
    }

    #[test]
    fn a_critical_pod_is_taken_when_what_ends_for_it_is_over_or_late() {
        let (asks, victim) = (critical("critical"), pod("victim", 0, 200, 0, "Burstable"));
        let active = [victim.clone(), pod("other", 0, 100, 0, "BestEffort")];
        let cpu = lacking(&[("cpu", 150)]);
        let mut preemptions = Preemptions::default();
        assert_eq!(preemptions.next(&asks, &active, &[], at(0)), Step::Take);
        assert!(preemptions.is_empty());
        assert_eq!(preemptions.next(&asks, &active, &cpu, at(0)), Step::Preempt(vec![victim.clone()]));
        assert_eq!(preemptions.next(&asks, &active, &cpu, at(44)), Step::Wait);
        // It is over, and others have not taken its place.
        assert_eq!(preemptions.next(&asks, &active[1..], &[], at(44)), Step::Take);
        assert!(preemptions.is_empty());
        preemptions.next(&asks, &active, &cpu, at(0));
        let late = preemptions.next(&asks, &active, &cpu, at(45));
        assert_eq!(late, Step::TakeAnyway(vec![victim]));
        preemptions.next(&asks, &active, &cpu, at(0));
        preemptions.retain(|uid| uid != "critical");
        assert!(preemptions.is_empty());
        let Step::Refuse(refusal) = preemptions.next(&asks, &[], &cpu, at(0)) else { panic!("no room") };
        expect!["UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 150), ]"]
            .assert_eq(&format!("{}: {}", refusal.reason, refusal.message));
    }
}
