//! ReplicaSet and ReplicationController, projected. The pod template stays raw JSON.

use super::selector::{Condition, LabelSelector, MapSelector, Workload};
use crate::{Meta, Projection};
use kaji_meta::labels::Selector;
use serde::Deserialize;
use serde_json::Value;

/// A replica set's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetSpec {
    /// Pods wanted (1 when absent, which defaulting prevents).
    pub replicas: Option<i64>,
    /// Seconds of readiness until a pod is available.
    pub min_ready_seconds: i64,
    /// Which pods.
    pub selector: LabelSelector,
    /// Pod template, raw.
    pub template: Value,
}

/// A replica set's or replication controller's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaStatus {
    /// Active pods.
    pub replicas: i64,
    /// Those with all labels of the template.
    pub fully_labeled_replicas: i64,
    /// Ready pods.
    pub ready_replicas: i64,
    /// Available pods.
    pub available_replicas: i64,
    /// Pods being deleted.
    pub terminating_replicas: Option<i64>,
    /// Generation that the status reflects.
    pub observed_generation: i64,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// A replica set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReplicaSet {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: ReplicaSetSpec,
    /// Status.
    pub status: ReplicaStatus,
}

impl Projection for ReplicaSet {
    const GROUP: &'static str = "apps";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "replicasets";
    const KIND: &'static str = "ReplicaSet";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// A replication controller's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicationControllerSpec {
    /// Pods wanted.
    pub replicas: Option<i64>,
    /// Seconds of readiness until a pod is available.
    pub min_ready_seconds: i64,
    /// Which pods.
    pub selector: MapSelector,
    /// Pod template, raw.
    pub template: Value,
}

/// A replication controller.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReplicationController {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: ReplicationControllerSpec,
    /// Status.
    pub status: ReplicaStatus,
}

impl Projection for ReplicationController {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "replicationcontrollers";
    const KIND: &'static str = "ReplicationController";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Workload for ReplicaSet {
    fn pod_selector(&self) -> Selector {
        self.spec.selector.parsed.clone()
    }

    fn replicas(&self) -> i64 {
        self.spec.replicas.unwrap_or(1)
    }
}

impl Workload for ReplicationController {
    fn pod_selector(&self) -> Selector {
        let labels = self.spec.selector.labels.iter();
        Selector::from_map(labels.map(|(key, value)| (key.as_str(), value.as_str())))
    }

    fn replicas(&self) -> i64 {
        self.spec.replicas.unwrap_or(1)
    }
}
