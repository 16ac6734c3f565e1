//! Deletes pods that no other component deletes: pods of absent or out-of-service nodes, unscheduled terminating pods, and
//! finished pods above the threshold.
//!
//! Invariants:
//! - A pod is marked failed before it is deleted by force, unless it is over already. One that cannot be marked is not deleted, and
//!   does not keep others.
//! - A node counts as gone only after it was missing in all looks of [`QUARANTINE`], so that neither a node that is not seen
//!   yet nor one that registers again is taken for one that is gone.

use crate::{
    Descriptor, Start,
    shared::{controller_ref::quiet, pods::disruption_target},
};
use kaji_runtime::{
    Controller, Cx, Informers, Key, Metric, Moment, ObjectSnapshot, PatchKind, Plan, Reconciler, Step, View,
    Write,
    client::Target,
    objects::{Node, Pod},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

const PERIOD: Duration = Duration::from_secs(20);
const QUARANTINE: Duration = Duration::from_secs(40);
/// Pods deleted at a time.
const BURST: usize = 500;
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

const COMPONENT: &str = "pod-garbage-collector";

static DELETIONS: Metric = Metric::counter(
    "pod_gc_collector_force_delete_pods_total",
    "[ALPHA] Number of pods that are being forcefully deleted since the Pod GC Controller started.",
    &["namespace", "reason"],
);
static DELETION_ERRORS: Metric = Metric::counter(
    "pod_gc_collector_force_delete_pod_errors_total",
    "[ALPHA] Number of errors encountered when forcefully deleting the pods since the Pod GC Controller started.",
    &["namespace", "reason"],
);
/// The metrics of the controller.
pub static METRICS: [&Metric; 2] = [&DELETIONS, &DELETION_ERRORS];

/// Why a pod is deleted, as metrics name it.
const TERMINATED: &str = "terminated";
const UNSCHEDULED: &str = "unscheduled";
const ORPHANED: &str = "orphaned";
const NODE_OUT_OF_SERVICE: &str = "out-of-service";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "pod-garbage-collector-controller",
    components: &[COMPONENT],
    service_account: Some("pod-garbage-collector"),
    workers: None,
    start: Start::Reconcilers(|informers, config| vec![controller(informers, config.loops.terminated_pods)]),
};

/// The controller; it looks at everything every [`PERIOD`].
fn controller(informers: &Arc<Informers>, threshold: Option<usize>) -> Controller {
    Controller::new(PodGc::new(threshold.unwrap_or(usize::MAX)), informers)
        .reads::<Node>(|_, _| vec![])
        .reads::<Pod>(|_, _| vec![])
        .workers(1)
        .seed(Key::default())
}

struct PodGc {
    threshold: usize,
    /// Since when nodes that pods are bound to are missing.
    missing: Mutex<BTreeMap<String, jiff::Timestamp>>,
}

impl PodGc {
    fn new(threshold: usize) -> Self {
        PodGc { threshold, missing: Mutex::default() }
    }

    /// The nodes that are gone, and how long to wait for the next that may be.
    fn gone(
        &self,
        pods: &ObjectSnapshot<Pod>,
        nodes: &ObjectSnapshot<Node>,
        now: jiff::Timestamp,
    ) -> (BTreeSet<String>, Duration) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let named = pods.iter().map(|pod| pod.spec.node_name.as_str()).filter(|name| !name.is_empty());
        let absent: BTreeSet<&str> = named.filter(|name| nodes.get("", name).is_none()).collect();
        missing.retain(|name, _| absent.contains(name.as_str()));
        let (mut gone, mut wait) = (BTreeSet::new(), PERIOD);
        for name in absent {
            let since = *missing.entry(name.to_owned()).or_insert(now);
            let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
            match QUARANTINE.checked_sub(passed).filter(|left| !left.is_zero()) {
                Some(left) => wait = wait.min(left),
                None => drop(gone.insert(name.to_owned())),
            }
        }
        (gone, wait)
    }
}

impl Reconciler for PodGc {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "orphaned_pods_nodes"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &METRICS
    }

    fn reconcile(&self, view: &View, _: &Key, cx: &Cx<'_>) -> Plan {
        let (pods, nodes) = (view.get::<Pod>(), view.get::<Node>());
        let (gone, wait) = self.gone(&pods, &nodes, cx.now);
        let mut doomed: Vec<(&Arc<Pod>, &'static str)> = vec![];
        let mut over = vec![];
        for pod in pods.iter() {
            let node = nodes.get("", &pod.spec.node_name);
            let deleting = pod.metadata.deleting();
            match node {
                _ if pod.spec.node_name.is_empty() && deleting => doomed.push((pod, UNSCHEDULED)),
                None if gone.contains(pod.spec.node_name.as_str()) => doomed.push((pod, ORPHANED)),
                Some(n)
                    if deleting && !n.ready() && n.spec.taints.iter().any(|t| t.key == OUT_OF_SERVICE) =>
                {
                    doomed.push((pod, NODE_OUT_OF_SERVICE));
                }
                _ if pod.finished() && !deleting => over.push(pod),
                _ => {}
            }
        }
        let surplus = over.len().saturating_sub(self.threshold);
        if surplus > 0 {
            let evicted = |p: &Pod| p.status.phase == "Failed" && p.status.reason == "Evicted";
            over.sort_by_key(|p| (!evicted(p), p.metadata.creation_timestamp, p.metadata.name.clone()));
            doomed.extend(over.into_iter().take(surplus).map(|p| (p, TERMINATED)));
        }
        doomed.truncate(BURST);
        let alive = doomed.iter().filter(|(p, _)| !p.finished());
        let marks = alive.map(|(p, why)| mark(p, *why == ORPHANED, cx.now)).collect();
        let deletes = doomed.iter().map(|(p, _)| delete(p)).collect();
        // A pod with a mark that failed is not deleted: both are writes to one object.
        let plan = Plan::nothing().independent(marks).stage(deletes).again_after(wait);
        doomed.into_iter().fold(plan, |plan, (pod, why)| counted(plan, pod, why))
    }
}

/// Counts a pod that is deleted, or that could not be.
fn counted(plan: Plan, pod: &Pod, why: &'static str) -> Plan {
    let meta = &pod.metadata;
    let target = Target::of::<Pod>(&meta.namespace, &meta.name);
    let labels = || [meta.namespace.clone().into(), why.into()];
    let plan = plan.observe(Moment::Written(target.clone()), DELETIONS.one(labels()));
    let failed = [Moment::NotWritten(target.clone().subresource("status")), Moment::NotWritten(target)];
    failed.into_iter().fold(plan, |plan, failed| {
        plan.observe(failed.clone(), DELETIONS.one(labels())).observe(failed, DELETION_ERRORS.one(labels()))
    })
}

fn mark(pod: &Pod, lost: bool, now: jiff::Timestamp) -> Step {
    let mut status = json!({"phase": "Failed"});
    let generation = pod.metadata.generation;
    if generation != 0 {
        status["observedGeneration"] = generation.into();
    }
    if lost {
        let message = "PodGC: node no longer exists";
        let condition = disruption_target(&pod.metadata, true, Some("DeletionByPodGC"), Some(message), now);
        status["conditions"] = json!([condition]);
    }
    let body: Value = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
    let target = Target::of::<Pod>(&pod.metadata.namespace, &pod.metadata.name).subresource("status");
    quiet(Write::Patch { target, kind: PatchKind::Strategic, body })
}

fn delete(pod: &Pod) -> Step {
    quiet(Write::Delete {
        target: Target::of::<Pod>(&pod.metadata.namespace, &pod.metadata.name),
        options: json!({"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, now, observed, reconcile, snapshot, text};
    use expect_test::expect;
    use kaji_meta::random::SeededRandom;

    #[test]
    fn deletions_are_counted_by_their_reason() {
        let pod = |name: &str, node: &str, phase: &str, deleting: bool| {
            json!({"metadata": {"name": name, "namespace": "ns", "deletionTimestamp": deleting.then(|| now().to_string())},
                "spec": {"nodeName": node}, "status": {"phase": phase}})
        };
        let node = json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": OUT_OF_SERVICE}]}});
        let pods = [
            pod("a", "", "Pending", true),
            pod("b", "n", "Running", true),
            pod("c", "n", "Failed", false),
            pod("d", "gone", "Running", false),
        ];
        let view = View::default().with(snapshot::<Pod>(pods)).with(snapshot::<Node>([node]));
        let collector = PodGc::new(0);
        let long_ago = jiff::Timestamp::from_second(now().as_second() - 3600).unwrap();
        collector.missing.lock().unwrap().insert("gone".into(), long_ago);
        let text = observed(&reconcile(&collector, &view, "", "", &[]));
        let text = text.replace("/api/v1/namespaces/ns/pods/", "").replace("pod_gc_collector_", "");
        expect![[r#"
            written a: force_delete_pods_total "ns" "unscheduled" = 1
            not written a/status: force_delete_pods_total "ns" "unscheduled" = 1
            not written a/status: force_delete_pod_errors_total "ns" "unscheduled" = 1
            not written a: force_delete_pods_total "ns" "unscheduled" = 1
            not written a: force_delete_pod_errors_total "ns" "unscheduled" = 1
        "#]]
        .assert_eq(&text.split_inclusive('\n').take(5).collect::<String>());
        let written = text.lines().filter(|line| line.starts_with("written"));
        expect![[r#"
            written a: force_delete_pods_total "ns" "unscheduled" = 1
            written b: force_delete_pods_total "ns" "out-of-service" = 1
            written d: force_delete_pods_total "ns" "orphaned" = 1
            written c: force_delete_pods_total "ns" "terminated" = 1"#]]
        .assert_eq(&written.collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn deletes_orphaned_unscheduled_and_surplus_pods() {
        let pod = |name: &str, node: &str, phase: &str, age: i64, deleting: bool| {
            json!({
                "metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": ago(age),
                    "deletionTimestamp": deleting.then(|| now().to_string())},
                "spec": {"nodeName": node},
                "status": {"phase": phase},
            })
        };
        let pods = [
            pod("fine", "n1", "Running", 100, false),
            pod("leaving", "n1", "Running", 100, true),
            pod("lost", "gone", "Running", 100, false),
            pod("back", "late", "Running", 100, false),
            pod("never-scheduled", "", "Pending", 100, true),
            pod("stuck", "n2", "Running", 100, true),
            pod("over-old", "n1", "Succeeded", 100, false),
            pod("over-new", "n1", "Failed", 50, false),
        ];
        let nodes = vec![
            json!({"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
            json!({"metadata": {"name": "n2"}, "spec": {"taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]}}),
        ];
        let late = [nodes.clone(), vec![json!({"metadata": {"name": "late"}})]].concat();
        let view = |nodes: Vec<Value>| {
            View::default().with(snapshot::<Pod>(pods.clone())).with(snapshot::<Node>(nodes))
        };
        let collector = PodGc::new(1);
        let look = |nodes: Vec<Value>, seconds: i64| {
            let now = jiff::Timestamp::from_second(now().as_second() + seconds).unwrap();
            let cx = Cx { now, random: &SeededRandom::new(1), failures: &[] };
            text(&collector.reconcile(&view(nodes), &Key::default(), &cx))
        };
        let first = look(nodes.clone(), -40);
        assert!(!first.contains("lost"), "{first}");
        // A node that is back in time keeps its pods, and its time starts anew when it is missing again.
        assert!(look(late, -30).ends_with("again after 20s\n"));
        assert!(look(nodes.clone(), -10).ends_with("again after 10s\n"));
        expect![[r#"
            strategic /api/v1/namespaces/ns/pods/lost/status {"metadata":{"uid":"lost"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"PodGC: node no longer exists","reason":"DeletionByPodGC","status":"True","type":"DisruptionTarget"}],"phase":"Failed"}}
            strategic /api/v1/namespaces/ns/pods/never-scheduled/status {"metadata":{"uid":"never-scheduled"},"status":{"phase":"Failed"}}
            strategic /api/v1/namespaces/ns/pods/stuck/status {"metadata":{"uid":"stuck"},"status":{"phase":"Failed"}}
            -- independent
            delete /api/v1/namespaces/ns/pods/lost {"gracePeriodSeconds":0,"preconditions":{"uid":"lost"}}
            delete /api/v1/namespaces/ns/pods/never-scheduled {"gracePeriodSeconds":0,"preconditions":{"uid":"never-scheduled"}}
            delete /api/v1/namespaces/ns/pods/stuck {"gracePeriodSeconds":0,"preconditions":{"uid":"stuck"}}
            delete /api/v1/namespaces/ns/pods/over-old {"gracePeriodSeconds":0,"preconditions":{"uid":"over-old"}}
            again after 20s
        "#]].assert_eq(&look(nodes, 0));
    }
}
