//! Replication controllers: reconciled as replica sets are, by the same code (as upstream's `pkg/controller/replication`).

use crate::{
    Descriptor, Start, WorkersFlag,
    replicaset::{Replicated, controller},
};
use kaji_runtime::{
    Meta,
    objects::{ReplicaStatus, ReplicationController},
};
use serde_json::Value;

const COMPONENT: &str = "replication-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "replicationcontroller-controller",
    components: &[COMPONENT],
    service_account: Some("replication-controller"),
    workers: Some(WorkersFlag { name: "concurrent-rc-syncs", default: 5 }),
    start: Start::Reconcilers(|informers, _| vec![controller::<ReplicationController>(informers)]),
};

impl Replicated for ReplicationController {
    const COMPONENT: &'static str = COMPONENT;
    const QUEUE: &'static str = "replicationmanager";
    const TERMINATING: bool = false;
    fn wanted(&self) -> usize {
        usize::try_from(self.spec.replicas.unwrap_or(1)).unwrap_or(0)
    }
    fn selects(&self, meta: &Meta) -> bool {
        self.spec.selector.matches(&meta.labels)
    }
    fn template(&self) -> &Value {
        &self.spec.template
    }
    fn min_ready_seconds(&self) -> i64 {
        self.spec.min_ready_seconds
    }
    fn status(&self) -> &ReplicaStatus {
        &self.status
    }
}
