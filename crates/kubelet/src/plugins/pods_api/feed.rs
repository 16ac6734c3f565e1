//! The statuses of a node's pods as its kubelet knows them, often before the API does, and their changes for watches.
//!
//! Invariant: changes come in the order of the statuses that they show.

use super::messages::EventType;
use crate::pods::core::{Pod, PodStatus};
use crate::pods::model;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::broadcast;

/// Changes that a watch may be late with before it is ended, at least.
const LATE: usize = 100;

/// A change of a pod.
#[derive(Debug, Clone)]
pub struct PodChange {
    /// What happened.
    pub kind: EventType,
    /// The pod then. Of one that is over only names and uid.
    pub pod: Arc<Pod>,
}

/// Statuses and their changes.
#[derive(Debug)]
pub struct PodFeed {
    /// By the pod's uid.
    statuses: Mutex<HashMap<String, PodStatus>>,
    changes: broadcast::Sender<PodChange>,
}

impl Default for PodFeed {
    fn default() -> PodFeed {
        PodFeed { statuses: Mutex::default(), changes: broadcast::channel(LATE).0 }
    }
}

impl PodFeed {
    fn statuses(&self) -> MutexGuard<'_, HashMap<String, PodStatus>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, kind: EventType, pod: impl FnOnce() -> Pod) {
        if self.changes.receiver_count() > 0 {
            // Those that watched may have ended since.
            let _ = self.changes.send(PodChange { kind, pod: Arc::new(pod()) });
        }
    }

    /// A pod has this status now.
    pub fn update(&self, pod: &Pod, status: &PodStatus) {
        let mut statuses = self.statuses();
        let before = statuses.get(model::uid(pod));
        if before == Some(status) {
            return;
        }
        let new = before.is_none() && !model::deleting(pod);
        statuses.insert(model::uid(pod).to_owned(), status.clone());
        let kind = if new { EventType::Added } else { EventType::Modified };
        self.publish(kind, || Pod { status: Some(status.clone()), ..pod.clone() });
    }

    /// A pod has ended and released what it had. Its status stays until it is forgotten.
    pub fn finish(&self, pod: &Pod) {
        let _order = self.statuses();
        self.publish(EventType::Deleted, || {
            let mut named = Pod::default();
            named.metadata.name.clone_from(&pod.metadata.name);
            named.metadata.namespace.clone_from(&pod.metadata.namespace);
            named.metadata.uid.clone_from(&pod.metadata.uid);
            named
        });
    }

    /// The API and the node have no such pod any more.
    pub fn forget(&self, uid: &str) {
        self.statuses().remove(uid);
    }

    /// A pod with its newest status. Where the kubelet has none yet it is the API's, but ready it is not known to be.
    #[must_use]
    pub fn with_status(&self, pod: &Pod) -> Pod {
        let status = self.statuses().get(model::uid(pod)).cloned();
        let status = status.unwrap_or_else(|| {
            let mut status = pod.status.clone().unwrap_or_default();
            if status.phase.as_deref().is_none_or(str::is_empty) {
                status.phase = Some("Pending".to_owned());
            }
            let mut conditions = status.conditions.iter_mut().flatten();
            if let Some(ready) = conditions.find(|c| c.type_ == "Ready" && c.status == "True") {
                "False".clone_into(&mut ready.status);
                ready.reason = Some("ContainersNotReady".to_owned());
                ready.message = Some("Kubelet is initializing pod containers".to_owned());
            }
            status
        });
        Pod { status: Some(status), ..pod.clone() }
    }

    /// The changes from now on.
    #[must_use]
    pub fn watch(&self) -> broadcast::Receiver<PodChange> {
        self.changes.subscribe()
    }
}
