//! What the controllers that manage pods share: a pod out of a template, and which pods go first.

use super::conditions::seconds;
use jiff::Timestamp;
use kaji_meta::validation::name_is_dns_subdomain;
use kaji_runtime::{
    Buckets, EventRecord, Meta, PatchKind, Step, Write,
    client::{Error, Target},
    objects::Pod,
};
use serde_json::{Map, Value, json};
use std::{cmp::Ordering, collections::HashMap, sync::Arc};

/// Set by users to say which pods may go first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The buckets of the time between when a taint has taken effect and a pod's deletion, up to 4 minutes.
pub const DELETION_BUCKETS: Buckets =
    Buckets::Bounds(&[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0]);

/// The pod that a controller creates from its template.
pub fn pod_from_template(template: &Value, owner: &Meta, reference: &Value) -> Value {
    let mut metadata = Map::new();
    let prefix = format!("{}-", owner.name);
    let usable = name_is_dns_subdomain(&prefix, true).is_empty();
    metadata.insert("generateName".into(), if usable { prefix } else { owner.name.clone() }.into());
    for field in ["labels", "annotations", "finalizers"] {
        match template.get("metadata").and_then(|m| m.get(field)) {
            None | Some(Value::Null) => {}
            Some(value) => drop(metadata.insert(field.into(), value.clone())),
        }
    }
    metadata.insert("ownerReferences".into(), json!([reference]));
    let spec = template.get("spec").cloned().unwrap_or_else(|| json!({}));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

/// A pod's condition `DisruptionTarget` as of now; a reason and a message of `None` are taken away.
pub fn disruption_target(
    pod: &Meta,
    disrupted: bool,
    reason: Option<&str>,
    message: Option<&str>,
    now: Timestamp,
) -> Value {
    let mut condition = json!({
        "type": "DisruptionTarget",
        "status": if disrupted { "True" } else { "False" },
        "reason": reason,
        "message": message,
        "lastTransitionTime": seconds(now),
    });
    if pod.generation != 0 {
        condition["observedGeneration"] = pod.generation.into();
    }
    condition
}

/// Deletes exactly this pod.
pub fn delete_pod(pod: &Pod) -> Write {
    Write::Delete {
        target: Target::of::<Pod>(&pod.metadata.namespace, &pod.metadata.name),
        options: json!({"preconditions": {"uid": pod.metadata.uid}}),
    }
}

/// Deletes exactly this pod, with upstream's events for the object that owns it.
pub fn delete_pod_step(pod: &Pod, regarding: &Value) -> Step {
    let text = format!("Deleted pod: {}", pod.metadata.name);
    Step {
        write: delete_pod(pod),
        on_success: Some(EventRecord::normal(regarding.clone(), "SuccessfulDelete", text)),
        on_failure: Some(EventRecord::warning(regarding.clone(), "FailedDelete", "Error deleting: {error}")),
    }
}

/// A merge patch of a status, valid only for the state that the view showed.
pub fn status_patch<T: kaji_runtime::Projection>(meta: &Meta, status: Value) -> Write {
    Write::Patch {
        target: Target::of::<T>(&meta.namespace, &meta.name).subresource("status"),
        kind: PatchKind::Merge,
        body: json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status}),
    }
}

/// Whether a create failed because its namespace is on its way out: nothing can be created there any more.
pub fn namespace_terminating(error: &Error) -> bool {
    let Error::Api(status) = error else { return false };
    status.details.iter().flat_map(|d| &d.causes).any(|c| c.reason == "NamespaceTerminating")
}

/// `count` of `pods`, those that should go first: unassigned, pending, not ready, cheap, crowded, young ones.
/// `related` are the active pods of all replica sets of the same owner; they tell how crowded a node is.
pub fn pods_to_delete<'a>(
    mut pods: Vec<Arc<Pod>>,
    related: impl Iterator<Item = &'a Arc<Pod>>,
    count: usize,
    now: jiff::Timestamp,
) -> Vec<Arc<Pod>> {
    if count < pods.len() && count > 0 {
        let mut on_node: HashMap<&str, usize> = HashMap::new();
        for pod in related.filter(|p| p.active()) {
            *on_node.entry(&pod.spec.node_name).or_default() += 1;
        }
        let mut ranked: Vec<Ranked> = pods
            .drain(..)
            .map(|pod| {
                let rank = on_node.get(pod.spec.node_name.as_str()).copied().unwrap_or(0);
                Ranked::new(pod, rank, now)
            })
            .collect();
        ranked.sort_by(Ranked::order);
        pods = ranked.into_iter().map(|r| r.pod).collect();
    }
    pods.truncate(count);
    pods
}

/// A pod with what the order looks at, worked out once.
struct Ranked {
    pod: Arc<Pod>,
    unassigned: bool,
    phase: u8,
    ready: Option<i64>,
    cost: i32,
    rank: usize,
    restarts: (i64, i64),
    created: i64,
}

/// How long ago, on a logarithmic scale (so that pods of about one age go in no particular order); an unknown time
/// counts as youngest.
fn age(at: Option<jiff::Timestamp>, now: jiff::Timestamp) -> i64 {
    let Some(at) = at else { return i64::MIN };
    let nanos = u64::try_from(now.duration_since(at).as_nanos()).ok();
    nanos.and_then(u64::checked_ilog2).map_or(-1, i64::from)
}

impl Ranked {
    fn new(pod: Arc<Pod>, rank: usize, now: jiff::Timestamp) -> Self {
        let ready = pod.condition("Ready").filter(|c| c.status == "True");
        Ranked {
            unassigned: pod.spec.node_name.is_empty(),
            phase: match pod.status.phase.as_str() {
                "Running" => 2,
                "Unknown" => 1,
                _ => 0,
            },
            ready: ready.map(|c| age(c.last_transition_time, now)),
            cost: deletion_cost(&pod),
            rank,
            restarts: restarts(&pod),
            created: age(pod.metadata.creation_timestamp, now),
            pod,
        }
    }

    /// A total order. Upstream's is not quite one: it looks at the uid before the restarts when times differ within
    /// one step of the scale, and after them when they are the same.
    fn order(&self, other: &Self) -> Ordering {
        other
            .unassigned
            .cmp(&self.unassigned)
            .then(self.phase.cmp(&other.phase))
            .then(self.ready.is_some().cmp(&other.ready.is_some()))
            .then(self.cost.cmp(&other.cost))
            .then(other.rank.cmp(&self.rank))
            .then(self.ready.cmp(&other.ready))
            .then(other.restarts.cmp(&self.restarts))
            .then(self.created.cmp(&other.created))
            .then_with(|| self.pod.metadata.uid.cmp(&other.pod.metadata.uid))
    }
}

/// The annotation's value; one that is not a 32-bit integer in its plain spelling counts as 0.
fn deletion_cost(pod: &Pod) -> i32 {
    let Some(text) = pod.metadata.annotations.get(DELETION_COST) else { return 0 };
    let plain = !text.starts_with('+') && (text == "0" || !text.trim_start_matches('-').starts_with('0'));
    if plain { text.parse().unwrap_or(0) } else { 0 }
}

/// The most restarts of any container, and of any sidecar.
fn restarts(pod: &Pod) -> (i64, i64) {
    let sidecar = |name: &str| pod.spec.init_containers.iter().any(|c| &*c.name == name && c.sidecar());
    let regular = pod.status.container_statuses.iter().map(|c| c.restart_count).max().unwrap_or(0);
    let sidecars = pod.status.init_container_statuses.iter().filter(|c| sidecar(&c.name));
    (regular, sidecars.map(|c| c.restart_count).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn now() -> jiff::Timestamp {
        "2025-01-01T12:00:00Z".parse().unwrap()
    }

    /// name, node, phase, seconds of readiness, age in seconds, restarts, cost
    fn pod(spec: (&str, &str, &str, Option<i64>, i64, i64, &str)) -> Arc<Pod> {
        let (name, node, phase, ready, age, restarts, cost) = spec;
        let at =
            |seconds: i64| jiff::Timestamp::from_second(now().as_second() - seconds).unwrap().to_string();
        let conditions = match ready {
            Some(s) => json!([{"type": "Ready", "status": "True", "lastTransitionTime": at(s)}]),
            None => json!([]),
        };
        let annotations = if cost.is_empty() { json!({}) } else { json!({DELETION_COST: cost}) };
        let value = json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": at(age), "annotations": annotations},
            "spec": {"nodeName": node},
            "status": {"phase": phase, "conditions": conditions,
                "containerStatuses": [{"name": "c", "restartCount": restarts}]},
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn ranked(pods: &[Arc<Pod>], related: &[Arc<Pod>]) -> String {
        let mut pods = pods.to_vec();
        // A sentinel that is kept, so that all others are ordered.
        pods.push(pod(("last", "z", "Running", Some(1 << 30), 1 << 30, 0, "2147483647")));
        let count = pods.len() - 1;
        let names = pods_to_delete(pods, related.iter(), count, now());
        names.iter().map(|p| p.metadata.name.clone()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn orders_pods_for_deletion() {
        let pods = [
            pod(("old-ready", "n1", "Running", Some(4000), 5000, 0, "")),
            pod(("young-ready", "n2", "Running", Some(10), 5000, 0, "")),
            pod(("unready", "n1", "Running", None, 5000, 0, "")),
            pod(("unready-restarted", "n1", "Running", None, 5000, 3, "")),
            pod(("pending", "n1", "Pending", None, 5000, 0, "")),
            pod(("unknown", "n1", "Unknown", None, 5000, 0, "")),
            pod(("unassigned", "", "Pending", None, 5000, 0, "")),
            pod(("cheap", "n2", "Running", Some(4000), 5000, 0, "-5")),
            pod(("dear", "n2", "Running", Some(1), 5000, 0, "10")),
            pod(("bad-cost", "n2", "Running", Some(9000), 9000, 0, "+7")),
            pod(("crowded", "n3", "Running", Some(8000), 9000, 0, "")),
        ];
        let related = [pods[10].clone(), pods[10].clone()];
        expect![[r"unassigned pending unknown unready-restarted unready cheap crowded young-ready old-ready bad-cost dear"]]
            .assert_eq(&ranked(&pods, &related));
    }

    #[test]
    fn orders_ten_thousand_pods() {
        // The sort notices when there is none.
        let pods: Vec<_> = (0..10_000i64)
            .map(|i| {
                let (ready, age) = (Some(i * 7919 % 4001), i * 104_729 % 9001);
                pod((&format!("p{i}"), "n", "Running", ready, age, i * 31 % 3, ""))
            })
            .collect();
        assert_eq!(pods_to_delete(pods.clone(), pods.iter(), 100, now()).len(), 100);
    }

    #[test]
    fn orders_pods_of_equal_age_by_uid() {
        let pods = [
            pod(("b", "n", "Running", Some(4000), 5000, 0, "")),
            pod(("a", "n", "Running", Some(3900), 5000, 0, "")),
        ];
        expect!["a b"].assert_eq(&ranked(&pods, &[]));
    }

    #[test]
    fn builds_a_pod_from_a_template() {
        let owner = Meta { name: "web-5d8".into(), uid: "u1".into(), ..Meta::default() };
        let reference = owner.controller_ref("apps/v1", "ReplicaSet");
        let template = json!({
            "metadata": {"creationTimestamp": null, "labels": {"a": "b"}, "annotations": {"x": "y"}, "finalizers": ["f/g"],
                "name": "ignored"},
            "spec": {"containers": [{"name": "c"}]},
        });
        expect![[r#"
            {
              "apiVersion": "v1",
              "kind": "Pod",
              "metadata": {
                "annotations": {
                  "x": "y"
                },
                "finalizers": [
                  "f/g"
                ],
                "generateName": "web-5d8-",
                "labels": {
                  "a": "b"
                },
                "ownerReferences": [
                  {
                    "apiVersion": "apps/v1",
                    "blockOwnerDeletion": true,
                    "controller": true,
                    "kind": "ReplicaSet",
                    "name": "web-5d8",
                    "uid": "u1"
                  }
                ]
              },
              "spec": {
                "containers": [
                  {
                    "name": "c"
                  }
                ]
              }
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&pod_from_template(&template, &owner, &reference)).unwrap());
    }
}
