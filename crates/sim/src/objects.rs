//! The objects of the cluster as the store has committed them, for laws and traces.
//!
//! Invariant: the state is that of one revision; it is changed by nothing but the store's events.

use kaji_store::{Event, EventKind};
use serde_json::Value;
use std::{collections::BTreeMap, ops::Bound, sync::Arc};

/// The keys of a resource: `/registry/<group, "core" for the first>/<resource>/`.
pub const PODS: &str = "/registry/core/pods/";
/// Deployments.
pub const DEPLOYMENTS: &str = "/registry/apps/deployments/";
/// Replica sets.
pub const REPLICA_SETS: &str = "/registry/apps/replicasets/";
/// Stateful sets.
pub const STATEFUL_SETS: &str = "/registry/apps/statefulsets/";
/// Daemon sets.
pub const DAEMON_SETS: &str = "/registry/apps/daemonsets/";
/// Jobs.
pub const JOBS: &str = "/registry/batch/jobs/";
/// Disruption budgets.
pub const BUDGETS: &str = "/registry/policy/poddisruptionbudgets/";
/// Quotas.
pub const QUOTAS: &str = "/registry/core/resourcequotas/";
/// Nodes.
pub const NODES: &str = "/registry/core/nodes/";

/// A member at a path; null when there is none.
#[must_use]
pub fn at<'a>(object: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(object, |value, step| &value[*step])
}

/// A string at a path; empty when there is none.
#[must_use]
pub fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    at(object, path).as_str().unwrap_or("")
}

/// A number at a path; zero when there is none.
#[must_use]
pub fn number(object: &Value, path: &[&str]) -> i64 {
    at(object, path).as_i64().unwrap_or(0)
}

/// `metadata.uid`
#[must_use]
pub fn uid(object: &Value) -> &str {
    text(object, &["metadata", "uid"])
}

/// Whether its deletion has begun.
#[must_use]
pub fn is_deleting(object: &Value) -> bool {
    !at(object, &["metadata", "deletionTimestamp"]).is_null()
}

/// The uid of its controller; empty when there is none.
#[must_use]
pub fn controller(object: &Value) -> &str {
    let owners = at(object, &["metadata", "ownerReferences"]).as_array().map_or(&[][..], Vec::as_slice);
    owners.iter().find(|owner| owner["controller"] == true).map_or("", |owner| text(owner, &["uid"]))
}

/// Whether a pod is over.
#[must_use]
pub fn is_finished(pod: &Value) -> bool {
    matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed")
}

/// Whether an object's condition is True.
#[must_use]
pub fn is_condition_true(object: &Value, kind: &str) -> bool {
    let conditions = at(object, &["status", "conditions"]).as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// See the module.
#[derive(Debug, Default)]
pub struct Objects(BTreeMap<Arc<str>, Arc<Value>>);

impl Objects {
    /// Applies an event; the state of its object before it and after it.
    pub fn apply(&mut self, event: &Event) -> (Option<Arc<Value>>, Option<Arc<Value>>) {
        let key = event.kv.key.clone();
        match event.kind {
            EventKind::Delete => (self.0.remove(&key), None),
            EventKind::Put => {
                let object = Arc::new(serde_json::from_slice(&event.kv.value).unwrap_or(Value::Null));
                (self.0.insert(key, object.clone()), Some(object))
            }
        }
    }

    /// The objects of a resource, in the order of their keys.
    pub fn of<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Arc<Value>> {
        self.0
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(_, o)| o)
    }

    /// All objects with their keys.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Arc<Value>)> {
        self.0.iter().map(|(key, object)| (&**key, object))
    }

    /// The pods with this controller.
    pub fn pods_of<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Arc<Value>> {
        self.of(PODS).filter(move |pod| controller(pod) == uid)
    }
}
