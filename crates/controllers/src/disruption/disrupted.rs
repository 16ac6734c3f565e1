//! Pods with an eviction that the API server has allowed: they count as gone until they are, or until it is clear that they stay. Pure.
//!
//! Invariants:
//! - A pod that the view does not show, because it is too new for it or gone, keeps its entry for [`UNSEEN`]: if it shows up as it
//!   was before its eviction, it does not count as healthy.
//! - A pod that was created after an eviction is another one of the same name. Within the second of the eviction that cannot be
//!   told, and the entry holds for [`UNSEEN`] only.

use kaji_runtime::{
    EventRecord, Meta, ObjectSnapshot, Projection,
    objects::{Pod, PodDisruptionBudgetStatus},
};
use std::{collections::BTreeMap, time::Duration};

/// Seconds until a disrupted pod that was not deleted counts again.
const DELETION_TIMEOUT_SECONDS: i64 = 120;
/// Seconds by which informers may be behind each other.
const UNSEEN: i64 = 10;

/// What becomes of the entry of a pod.
enum Entry {
    Drop,
    /// Until so many seconds after the eviction; then the pod has stayed if it is there.
    Keep(i64),
}

fn entry(pod: Option<&Pod>, selected: impl Fn(&Pod) -> bool, evicted: jiff::Timestamp) -> Entry {
    let Some(pod) = pod else { return Entry::Keep(UNSEEN) };
    if pod.metadata.deleting() || !selected(pod) {
        return Entry::Drop;
    }
    let created = pod.metadata.creation_timestamp.map_or(i64::MIN, |created| created.as_second());
    match created.cmp(&evicted.as_second()) {
        std::cmp::Ordering::Greater => Entry::Drop,
        std::cmp::Ordering::Equal => Entry::Keep(UNSEEN),
        std::cmp::Ordering::Less => Entry::Keep(DELETION_TIMEOUT_SECONDS),
    }
}

/// Drops the entries that say nothing any more. When the next one may be dropped, and events about pods that stayed.
pub fn keep_entries(
    status: &mut PodDisruptionBudgetStatus,
    budget: &Meta,
    pods: &ObjectSnapshot<Pod>,
    selected: impl Fn(&Pod) -> bool,
    now: jiff::Timestamp,
) -> (Option<Duration>, Vec<EventRecord>) {
    let (mut kept, mut next, mut events) = (BTreeMap::new(), None::<jiff::Timestamp>, vec![]);
    for (name, evicted) in &status.disrupted_pods {
        let pod = pods.get(&budget.namespace, name);
        let Entry::Keep(seconds) = entry(pod.map(|pod| &**pod), &selected, *evicted) else { continue };
        let due = jiff::Timestamp::from_second(evicted.as_second().saturating_add(seconds)).ok();
        match (due.filter(|due| *due >= now), pod) {
            (Some(due), _) => {
                next = Some(next.map_or(due, |next| next.min(due)));
                kept.insert(name.clone(), *evicted);
            }
            (None, Some(pod)) if seconds == DELETION_TIMEOUT_SECONDS => {
                let about = pod.metadata.reference(&Pod::api_version(), Pod::KIND);
                let (namespace, budget) = (&budget.namespace, &budget.name);
                let text =
                    format!("Pod was expected by PDB {namespace}/{budget} to be deleted but it wasn't");
                events.push(EventRecord::warning(about, "NotDeleted", text));
            }
            (None, _) => {}
        }
    }
    status.disrupted_pods = kept;
    let wait = next.map(|due| Duration::try_from(due.duration_since(now)).unwrap_or_default());
    // An entry holds through its last second.
    (wait.map(|wait| wait.max(Duration::from_millis(1))), events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, now, object, snapshot};
    use serde_json::{Value, json};

    fn pod(name: &str, created: i64, more: Value) -> Value {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "ns", "creationTimestamp": ago(created), "labels": {"app": "web"}},
        });
        for (field, value) in more.as_object().unwrap() {
            pod["metadata"][field] = value.clone();
        }
        pod
    }

    /// The names that are kept, the wait in seconds, and the events' reasons.
    fn kept(evicted: i64, pods: Vec<Value>) -> String {
        let mut status: PodDisruptionBudgetStatus =
            serde_json::from_value(json!({"disruptedPods": {"p": ago(evicted)}})).unwrap();
        let budget = object::<Pod>(json!({"metadata": {"name": "b", "namespace": "ns"}}));
        let selected = |pod: &Pod| pod.metadata.labels.get("app").is_some_and(|app| app == "web");
        let (wait, events) =
            keep_entries(&mut status, &budget.metadata, &snapshot::<Pod>(pods), selected, now());
        let names: Vec<&str> = status.disrupted_pods.keys().map(String::as_str).collect();
        let reasons: Vec<&str> = events.iter().map(|e| e.reason.as_str()).collect();
        format!("{} {:?} {}", names.join(","), wait.map(|w| w.as_secs()), reasons.join(","))
    }

    #[test]
    fn a_pod_that_is_not_seen_yet_stays_disrupted() {
        assert_eq!(kept(1, vec![]), "p Some(9) ");
        // It shows up as it was before its eviction.
        assert_eq!(kept(2, vec![pod("p", 3, json!({}))]), "p Some(118) ");
        assert_eq!(kept(11, vec![]), " None ", "it is gone");
    }

    #[test]
    fn another_pod_of_the_name_is_not_disrupted() {
        assert_eq!(kept(5, vec![pod("p", 4, json!({}))]), " None ");
        assert_eq!(kept(5, vec![pod("p", 5, json!({}))]), "p Some(5) ", "it cannot be told");
        assert_eq!(kept(11, vec![pod("p", 11, json!({}))]), " None ");
    }

    #[test]
    fn a_pod_that_is_deleted_or_was_not_counts_no_more() {
        let deleting = pod("p", 60, json!({"deletionTimestamp": ago(0)}));
        assert_eq!(kept(5, vec![deleting]), " None ");
        assert_eq!(kept(5, vec![pod("p", 60, json!({"labels": {}}))]), " None ");
        assert_eq!(kept(120, vec![pod("p", 200, json!({}))]), "p Some(0) ");
        assert_eq!(kept(121, vec![pod("p", 200, json!({}))]), " None NotDeleted");
    }
}
