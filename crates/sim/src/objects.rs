//! The objects of the cluster as the store has committed them, for laws and traces.
//!
//! Invariant: the state is that of one revision; it is changed by nothing but the store's events.

use kaji_store::{Event, EventKind};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

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
/// Cron jobs.
pub const CRON_JOBS: &str = "/registry/batch/cronjobs/";
/// Autoscalers.
pub const AUTOSCALERS: &str = "/registry/autoscaling/horizontalpodautoscalers/";
/// Claims of volumes.
pub const CLAIMS: &str = "/registry/core/persistentvolumeclaims/";
/// Definitions of custom resources.
pub const DEFINITIONS: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";
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

/// Owners above a pod that are followed.
const OWNERS: usize = 4;
/// Not kept: they are many, and no law is about them.
const EVENTS: &[&str] = &["/registry/core/events/", "/registry/events.k8s.io/"];

/// See the module.
#[derive(Debug, Default)]
pub struct Objects {
    all: BTreeMap<Arc<str>, Arc<Value>>,
    /// Keys by uid.
    uids: BTreeMap<String, Arc<str>>,
    /// Keys by the uid of the controller.
    controlled: BTreeMap<String, BTreeSet<Arc<str>>>,
}

impl Objects {
    /// Whether pods may be refused, or come late, since a quota bounds their number.
    pub fn have_quota(&self) -> bool {
        self.of(QUOTAS).next().is_some()
    }

    /// Applies an event; the state of its object before it and after it.
    pub fn apply(&mut self, event: &Event) -> (Option<Arc<Value>>, Option<Arc<Value>>) {
        let key = event.kv.key.clone();
        let after = match event.kind {
            EventKind::Delete => None,
            EventKind::Put => Some(serde_json::from_slice(&event.kv.value).unwrap_or(Value::Null)),
        };
        let after = after.map(Arc::new);
        if EVENTS.iter().any(|prefix| key.starts_with(prefix)) {
            return (None, after);
        }
        let before = match &after {
            Some(object) => self.all.insert(key.clone(), object.clone()),
            None => self.all.remove(&key),
        };
        let names = |object: &Option<Arc<Value>>| {
            object.as_deref().map(|object| (uid(object).to_owned(), controller(object).to_owned()))
        };
        let (former, present) = (names(&before), names(&after));
        if former != present {
            if let Some((uid, controller)) = former {
                self.uids.remove(&uid);
                if let Some(keys) = self.controlled.get_mut(&controller) {
                    keys.remove(&key);
                }
                if self.controlled.get(&controller).is_some_and(BTreeSet::is_empty) {
                    self.controlled.remove(&controller);
                }
            }
            if let Some((uid, controller)) = present.filter(|(uid, _)| !uid.is_empty()) {
                self.uids.insert(uid, key.clone());
                if !controller.is_empty() {
                    self.controlled.entry(controller).or_default().insert(key);
                }
            }
        }
        (before, after)
    }

    /// The objects of a resource, in the order of their keys.
    pub fn of<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Arc<Value>> {
        self.all
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(_, o)| o)
    }

    /// All objects with their keys.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Arc<Value>)> {
        self.all.iter().map(|(key, object)| (&**key, object))
    }

    /// An object and its key by uid.
    #[must_use]
    pub fn by_uid(&self, uid: &str) -> Option<(&str, &Arc<Value>)> {
        let key = self.uids.get(uid)?;
        Some((key, self.all.get(key)?))
    }

    /// The objects of a resource with this controller, in the order of their keys.
    pub fn of_controller<'a>(&'a self, prefix: &'a str, uid: &str) -> impl Iterator<Item = &'a Arc<Value>> {
        let keys = self.controlled.get(uid).into_iter().flatten().filter(move |key| key.starts_with(prefix));
        keys.filter_map(|key| self.all.get(key))
    }

    /// The pods with this controller.
    pub fn pods_of<'a>(&'a self, uid: &str) -> impl Iterator<Item = &'a Arc<Value>> {
        self.of_controller(PODS, uid)
    }

    /// What scales a controlled object in the end, with its key: the deployment of a replica set's pod, else the controller itself.
    /// `None` for an object without a controller, and where one on the way is gone or being deleted.
    #[must_use]
    pub fn root(&self, object: &Value) -> Option<(&str, &Value)> {
        let owner = |object: &Value| {
            let (key, owner) = self.by_uid(controller(object)).filter(|(_, owner)| !is_deleting(owner))?;
            Some((key, &**owner))
        };
        let mut root = owner(object)?;
        // A circle of owners has no end.
        for _ in 0..OWNERS {
            if controller(root.1).is_empty() {
                return Some(root);
            }
            root = owner(root.1)?;
        }
        None
    }

    /// The pods that a root scales, in the order of their replica sets.
    pub fn pods_below<'a>(&'a self, root: &str) -> impl Iterator<Item = &'a Arc<Value>> {
        let sets: Vec<&str> = self.of_controller(REPLICA_SETS, root).map(|set| uid(set)).collect();
        let own: Vec<&Arc<Value>> = self.pods_of(root).collect();
        own.into_iter().chain(sets.into_iter().flat_map(move |set| self.pods_of(set)))
    }
}
