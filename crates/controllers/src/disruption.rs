//! The status of pod disruption budgets: how many pods may be evicted now (`disruptionsAllowed`).
//!
//! Invariants:
//! - When the count is unknown, no disruption is allowed.
//! - After the API server has allowed a pod's eviction, the pod counts as disrupted until it is deleted or two minutes have passed
//!   (`disrupted`).
//! - The API server lowers the number as well; every write names the resourceVersion that it was decided for.
//!
//! Owners of the kinds that every cluster has are read from informers (`workloads`), others by their scale (`foreign`). What was to be disrupted
//! and was not is cleared by a loop of its own (`stale`).

mod disrupted;
mod foreign;
mod stale;
mod workloads;

use crate::{
    Descriptor, Start,
    shared::{conditions::seconds, pods::status_patch},
};
use foreign::Scales;
use futures_util::future::BoxFuture;
use kaji_meta::intstr::IntOrString;
use kaji_runtime::{
    Change, Client, Controller, Cx, EventRecord, Informers, Key, OwnerRef, Plan, Projection, Reconciler,
    View,
    objects::{Deployment, MetaCondition, Pod, PodDisruptionBudget, PodDisruptionBudgetStatus},
};
use serde_json::{Map, Value, json};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const ALLOWED: &str = "DisruptionAllowed";
const SYNC_FAILED: &str = "SyncFailed";
/// How long after a failure the count is tried again.
const RETRY: Duration = Duration::from_secs(10);

const COMPONENT: &str = "disruption-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "disruption-controller",
    components: &[COMPONENT],
    service_account: Some("disruption-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers), stale::controller(informers)]),
};

/// The controller.
fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Budgets::default(), informers)
        .reads::<PodDisruptionBudget>(|change, _| vec![change.any().metadata.key()])
        .reads::<Deployment>(|_, _| vec![])
        .reads_workloads()
        .reads::<Pod>(keys_of_pod)
}

fn keys_of_pod(change: &Change<Pod>, view: &View) -> Vec<Key> {
    let facts = |p: &Arc<Pod>| (p.metadata.labels.clone(), p.metadata.deleting(), p.ready());
    if change.old.is_some() && change.old.as_ref().map(facts) == change.new.as_ref().map(facts) {
        return vec![];
    }
    let budgets = view.get::<PodDisruptionBudget>();
    let matching = budgets.in_namespace(&change.any().metadata.namespace).filter(|b| {
        change.old.iter().chain(&change.new).any(|p| b.spec.selector.matches(&p.metadata.labels))
    });
    matching.map(|b| b.metadata.key()).collect()
}

/// The loop, with the scales that were read for the keys in progress.
#[derive(Default)]
struct Budgets {
    foreign: Mutex<HashMap<Key, Scales>>,
}

impl Budgets {
    fn foreign(&self) -> MutexGuard<'_, HashMap<Key, Scales>> {
        self.foreign.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The owners of a budget's pods that no informer has, once each.
fn foreign_owners(view: &View, key: &Key) -> Vec<OwnerRef> {
    let budgets = view.get::<PodDisruptionBudget>();
    let Some(budget) = budgets.by_key(key).filter(|budget| counts_replicas(budget)) else { return vec![] };
    let pods = view.get::<Pod>();
    let owners =
        pods.in_namespace(&key.namespace).filter(|p| budget.spec.selector.matches(&p.metadata.labels));
    let mut seen = HashSet::new();
    let owners =
        owners.filter_map(|pod| pod.metadata.controller().filter(|owner| !workloads::is_workload(owner)));
    owners.filter(|owner| seen.insert(owner.uid.clone())).cloned().collect()
}

/// Whether a budget is about the replicas that the owners of its pods want.
fn counts_replicas(budget: &PodDisruptionBudget) -> bool {
    !budget.spec.max_unavailable.is_null() || budget.spec.min_available.is_string()
}

impl Reconciler for Budgets {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "disruption"
    }

    fn prepares(&self) -> bool {
        true
    }

    fn prepare<'a>(&'a self, view: &'a View, key: &'a Key, client: &'a Client) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut scales = Scales::new();
            for owner in foreign_owners(view, key) {
                let replicas = foreign::replicas(client, &owner, &key.namespace).await;
                scales.insert(owner.uid, replicas);
            }
            let mut kept = self.foreign();
            kept.remove(key);
            if !scales.is_empty() {
                kept.insert(key.clone(), scales);
            }
        })
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let foreign = self.foreign().remove(key).unwrap_or_default();
        let budgets = view.get::<PodDisruptionBudget>();
        let Some(budget) = budgets.by_key(key) else { return Plan::nothing() };
        let regarding =
            budget.metadata.reference(&PodDisruptionBudget::api_version(), PodDisruptionBudget::KIND);
        let all = view.get::<Pod>();
        let pods: Vec<&Arc<Pod>> = all
            .in_namespace(&key.namespace)
            .filter(|p| budget.spec.selector.matches(&p.metadata.labels))
            .collect();
        let mut plan = Plan::nothing();
        if pods.is_empty() {
            plan = plan.event(EventRecord::normal(regarding.clone(), "NoPods", "No matching pods found"));
        }
        let mut status = budget.status.clone();
        match expected(budget, &pods, view, &foreign) {
            Err(error) => {
                // What is missing may come without an event that this loop sees; it is reported once.
                plan = plan.again_after(RETRY);
                if !failed_with(&status, &error) {
                    let text = format!("Failed to calculate the number of expected pods: {error}");
                    plan =
                        plan.event(EventRecord::warning(regarding, "CalculateExpectedPodCountFailed", text));
                }
                status.disruptions_allowed = 0;
                let generation = status.observed_generation;
                set_condition(&mut status, "False", SYNC_FAILED, &error, generation, cx.now);
            }
            Ok(Expected { pods: expected, healthy: desired, unmanaged }) => {
                if unmanaged {
                    plan =
                        plan.event(EventRecord::warning(regarding, "UnmanagedPods", unmanaged_text(budget)));
                }
                let selected = |pod: &Pod| budget.spec.selector.matches(&pod.metadata.labels);
                let (recheck, events) =
                    disrupted::keep_entries(&mut status, &budget.metadata, &all, selected, cx.now);
                plan = events.into_iter().fold(plan, Plan::event);
                if let Some(wait) = recheck {
                    plan = plan.again_after(wait);
                }
                let healthy = |p: &&&Arc<Pod>| {
                    p.ready()
                        && !p.metadata.deleting()
                        && !status.disrupted_pods.contains_key(&p.metadata.name)
                };
                let current = i64::try_from(pods.iter().filter(healthy).count()).unwrap_or(0);
                status.current_healthy = current;
                status.desired_healthy = desired;
                status.expected_pods = expected;
                status.disruptions_allowed = if expected > 0 { (current - desired).max(0) } else { 0 };
                status.observed_generation = budget.metadata.generation;
                let (state, reason) = match status.disruptions_allowed {
                    0 => ("False", "InsufficientPods"),
                    _ => ("True", "SufficientPods"),
                };
                let generation = status.observed_generation;
                set_condition(&mut status, state, reason, "", generation, cx.now);
            }
        }
        if status == budget.status {
            return plan;
        }
        plan.then(status_patch::<PodDisruptionBudget>(
            &budget.metadata,
            status_value(&budget.status, &status),
        ))
    }
}

fn unmanaged_text(budget: &PodDisruptionBudget) -> String {
    format!(
        "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status of \
         the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods \
         please set \".spec.minAvailable\" field of the PDB to an integer value.",
        budget.spec.selector.raw
    )
}

/// What there should be.
#[derive(Debug)]
struct Expected {
    pods: i64,
    healthy: i64,
    /// Whether some pods have no controller.
    unmanaged: bool,
}

fn expected(
    budget: &PodDisruptionBudget,
    pods: &[&Arc<Pod>],
    view: &View,
    foreign: &Scales,
) -> Result<Expected, String> {
    let spec = &budget.spec;
    let value = |v: &Value| (!v.is_null()).then(|| IntOrString::from_value(v)).flatten();
    if let Some(most) = value(&spec.max_unavailable) {
        let (total, unmanaged) = scale(pods, view, foreign)?;
        let gone = most.scaled_value(total, true).map_err(|e| e.to_string())?;
        return Ok(Expected { pods: total, healthy: (total - gone).max(0), unmanaged });
    }
    let Some(least) = value(&spec.min_available) else {
        return Ok(Expected { pods: 0, healthy: 0, unmanaged: false });
    };
    if let Some(number) = spec.min_available.as_i64() {
        let total = i64::try_from(pods.len()).unwrap_or(i64::MAX);
        return Ok(Expected { pods: total, healthy: number, unmanaged: false });
    }
    let (total, unmanaged) = scale(pods, view, foreign)?;
    let healthy = least.scaled_value(total, true).map_err(|e| e.to_string())?;
    Ok(Expected { pods: total, healthy, unmanaged })
}

/// The replicas that the controllers of these pods want, and whether some pods have none.
fn scale(pods: &[&Arc<Pod>], view: &View, foreign: &Scales) -> Result<(i64, bool), String> {
    let mut scales: HashMap<String, i64> = HashMap::new();
    let mut seen = HashSet::new();
    let mut unmanaged = false;
    for pod in pods {
        let Some(owner) = pod.metadata.controller() else {
            unmanaged = true;
            continue;
        };
        if !seen.insert(&owner.uid) {
            continue;
        }
        let found = match foreign.get(&owner.uid) {
            Some(replicas) => replicas.clone()?.map(|replicas| (owner.uid.clone(), replicas)),
            None => workloads::scale(owner, &pod.metadata.namespace, view),
        };
        let (uid, replicas) =
            found.ok_or_else(|| format!("found no controllers for pod {:?}", pod.metadata.name))?;
        scales.insert(uid, replicas);
    }
    Ok((scales.values().sum(), unmanaged))
}

/// Whether the status shows this failure.
fn failed_with(status: &PodDisruptionBudgetStatus, error: &str) -> bool {
    let condition = status.conditions.iter().find(|c| c.kind == ALLOWED);
    condition.is_some_and(|c| c.reason == SYNC_FAILED && c.message == error)
}

fn set_condition(
    status: &mut PodDisruptionBudgetStatus,
    state: &str,
    reason: &str,
    message: &str,
    generation: i64,
    now: jiff::Timestamp,
) {
    let old = status.conditions.iter().position(|c| c.kind == ALLOWED);
    let since =
        old.map(|i| &status.conditions[i]).filter(|c| c.status == state).and_then(|c| c.last_transition_time);
    let condition = MetaCondition {
        kind: ALLOWED.into(),
        status: state.into(),
        observed_generation: (generation != 0).then_some(generation),
        last_transition_time: since.or(Some(seconds(now))),
        reason: reason.into(),
        message: message.into(),
    };
    match old {
        Some(i) => status.conditions[i] = condition,
        None => status.conditions.push(condition),
    }
}

fn status_value(old: &PodDisruptionBudgetStatus, new: &PodDisruptionBudgetStatus) -> Value {
    let gone = old.disrupted_pods.keys().filter(|k| !new.disrupted_pods.contains_key(*k));
    let gone: Map<String, Value> = gone.map(|k| (k.clone(), Value::Null)).collect();
    let mut value = json!({
        "observedGeneration": (new.observed_generation != 0).then_some(new.observed_generation),
        "disruptionsAllowed": new.disruptions_allowed,
        "currentHealthy": new.current_healthy,
        "desiredHealthy": new.desired_healthy,
        "expectedPods": new.expected_pods,
        "conditions": new.conditions,
    });
    if !gone.is_empty() {
        value["disruptedPods"] = if new.disrupted_pods.is_empty() { Value::Null } else { gone.into() };
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use expect_test::expect;
    use kaji_runtime::objects::{ReplicaSet, ReplicationController, StatefulSet};

    fn pod(name: &str, owner: Option<&str>, ready: bool) -> Value {
        let owners = owner.map(|kind| {
            json!([{"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": "rs1", "controller": true}])
        });
        json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"app": "web"},
                "ownerReferences": owners.unwrap_or_else(|| json!([]))},
            "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
        })
    }

    fn plan(spec: Value, status: Value, pods: Vec<Value>) -> String {
        plan_with(Scales::new(), spec, status, pods)
    }

    fn plan_with(foreign: Scales, spec: Value, status: Value, pods: Vec<Value>) -> String {
        let mut budget = json!({"metadata": {"name": "b", "namespace": "ns", "uid": "b1", "resourceVersion": "7", "generation": 3},
            "spec": spec, "status": status});
        budget["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
        let view = View::default()
            .with(snapshot::<PodDisruptionBudget>([budget]))
            .with(snapshot::<Pod>(pods))
            .with(snapshot::<ReplicaSet>([json!({"metadata": {"name": "web", "namespace": "ns", "uid": "rs1",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d1", "controller": true}]},
                "spec": {"replicas": 1}})]))
            .with(snapshot::<Deployment>([json!({"metadata": {"name": "web", "namespace": "ns", "uid": "d1"}, "spec": {"replicas": 4}})]))
            .with(snapshot::<ReplicationController>([]))
            .with(snapshot::<StatefulSet>([]));
        let budgets = Budgets::default();
        budgets.foreign().insert(Key::new("ns", "b"), foreign);
        text(&reconcile(&budgets, &view, "ns", "b", &[]))
    }

    #[test]
    fn computes_allowed_disruptions() {
        let pods = || {
            vec![
                pod("a", Some("ReplicaSet"), true),
                pod("b", Some("ReplicaSet"), true),
                pod("c", Some("ReplicaSet"), false),
            ]
        };
        expect![[r#"
            merge /apis/policy/v1/namespaces/ns/poddisruptionbudgets/b/status {"metadata":{"resourceVersion":"7","uid":"b1"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"","observedGeneration":3,"reason":"SufficientPods","status":"True","type":"DisruptionAllowed"}],"currentHealthy":2,"desiredHealthy":1,"disruptionsAllowed":1,"expectedPods":3,"observedGeneration":3}}
        "#]].assert_eq(&plan(json!({"minAvailable": 1}), json!({}), pods()));
        let counts = |spec: Value, pods: Vec<Value>| {
            let text = plan(spec, json!({}), pods);
            let line = text.lines().find(|l| l.contains("/status")).unwrap_or_default().to_owned();
            let body: Value = serde_json::from_str(line.split_once("status ").unwrap().1).unwrap();
            let n = |f: &str| body["status"][f].as_i64().unwrap();
            (n("expectedPods"), n("desiredHealthy"), n("currentHealthy"), n("disruptionsAllowed"))
        };
        assert_eq!(counts(json!({"minAvailable": "50%"}), pods()), (4, 2, 2, 0));
        assert_eq!(counts(json!({"maxUnavailable": 3}), pods()), (4, 1, 2, 1));
        assert_eq!(counts(json!({"maxUnavailable": "100%"}), pods()), (4, 0, 2, 2));
        assert_eq!(counts(json!({"minAvailable": 0}), vec![]), (0, 0, 0, 0));
    }

    #[test]
    fn allows_no_disruption_when_the_count_is_unknown() {
        expect![[r#"
            merge /apis/policy/v1/namespaces/ns/poddisruptionbudgets/b/status {"metadata":{"resourceVersion":"7","uid":"b1"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"found no controllers for pod \"a\"","reason":"SyncFailed","status":"False","type":"DisruptionAllowed"}],"currentHealthy":0,"desiredHealthy":0,"disruptionsAllowed":0,"expectedPods":0,"observedGeneration":null}}
            event: Warning CalculateExpectedPodCountFailed: Failed to calculate the number of expected pods: found no controllers for pod "a"
            again after 10s
        "#]].assert_eq(&plan(
            json!({"maxUnavailable": 1}),
            json!({}),
            vec![pod("a", Some("Job"), true)],
        ));
        let text = plan(json!({"maxUnavailable": 1}), json!({}), vec![pod("a", None, true)]);
        assert!(text.contains("event: Warning UnmanagedPods"), "{text}");
        let known = json!({"type": ALLOWED, "status": "False", "reason": SYNC_FAILED, "lastTransitionTime": ago(9),
            "message": "found no controllers for pod \"a\""});
        let again = plan(
            json!({"maxUnavailable": 1}),
            json!({"conditions": [known]}),
            vec![pod("a", Some("Job"), true)],
        );
        assert_eq!(again, "again after 10s\n");
    }

    #[test]
    fn counts_replicas_of_custom_resources() {
        let pods = || vec![pod("a", Some("Widget"), true), pod("b", Some("Widget"), true)];
        let with = |scale: Result<Option<i64>, String>| {
            plan_with([("rs1".to_owned(), scale)].into(), json!({"maxUnavailable": 1}), json!({}), pods())
        };
        let known = with(Ok(Some(2)));
        assert!(known.contains(r#""disruptionsAllowed":1,"expectedPods":2"#), "{known}");
        let gone = with(Ok(None));
        assert!(gone.contains("found no controllers for pod"), "{gone}");
        let without = with(Err("widgets.x.io does not implement the scale subresource".into()));
        assert!(
            without.contains("pods: widgets.x.io does not implement the scale subresource\nagain after 10s"),
            "{without}"
        );
    }

    #[test]
    fn finds_the_owners_that_no_informer_has() {
        let owners = |spec: Value| {
            let mut budget = json!({"metadata": {"name": "b", "namespace": "ns"}, "spec": spec});
            budget["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
            let pods = ["Widget", "Widget", "ReplicaSet"].iter().enumerate();
            let mut pods: Vec<Value> =
                pods.map(|(i, kind)| pod(&format!("p{i}"), Some(kind), true)).collect();
            pods[2]["metadata"]["ownerReferences"][0]["uid"] = "rs2".into();
            let view =
                View::default().with(snapshot::<PodDisruptionBudget>([budget])).with(snapshot::<Pod>(pods));
            foreign_owners(&view, &Key::new("ns", "b")).into_iter().map(|o| o.kind).collect::<Vec<_>>()
        };
        assert_eq!(owners(json!({"maxUnavailable": 1})), ["Widget"]);
        assert_eq!(owners(json!({"minAvailable": "50%"})), ["Widget"]);
        assert_eq!(owners(json!({"minAvailable": 1})), Vec::<String>::new());
    }

    #[test]
    fn keeps_disrupted_pods_until_they_are_deleted() {
        let status =
            json!({"observedGeneration": 3, "disruptedPods": {"a": ago(20), "b": ago(200), "x": ago(11)}});
        let pods = vec![pod("a", None, true), pod("b", None, true), pod("c", None, true)];
        expect![[r#"
            merge /apis/policy/v1/namespaces/ns/poddisruptionbudgets/b/status {"metadata":{"resourceVersion":"7","uid":"b1"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"","observedGeneration":3,"reason":"SufficientPods","status":"True","type":"DisruptionAllowed"}],"currentHealthy":2,"desiredHealthy":1,"disruptedPods":{"b":null,"x":null},"disruptionsAllowed":1,"expectedPods":3,"observedGeneration":3}}
            event: Warning NotDeleted: Pod was expected by PDB ns/b to be deleted but it wasn't
            again after 100s
        "#]].assert_eq(&plan(json!({"minAvailable": 1}), status, pods));
    }
}
