//! StatefulSet, projected. Pod and claim templates stay raw JSON.

use super::selector::{LabelSelector, Workload};
use crate::{Meta, Projection};
use kaji_meta::labels::Selector;
use serde::Deserialize;
use serde_json::Value;

/// How a stateful set's pods are replaced.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetStrategy {
    /// `RollingUpdate` or `OnDelete`
    #[serde(rename = "type")]
    pub kind: String,
    /// For `RollingUpdate`.
    pub rolling_update: Option<Partition>,
}

/// From which pod on updates go.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Partition {
    /// The first that is updated.
    pub partition: Option<i64>,
    /// How many of all pods may be unavailable during the update: a number or a percentage.
    pub max_unavailable: Value,
}

/// Which numbers pods have.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Ordinals {
    /// The first.
    pub start: i64,
}

/// What becomes of claims.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimRetentionPolicy {
    /// `Retain`, `Delete`
    pub when_deleted: String,
    /// `Retain`, `Delete`
    pub when_scaled: String,
}

/// A stateful set's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetSpec {
    /// Pods wanted.
    pub replicas: Option<i64>,
    /// Which pods.
    pub selector: LabelSelector,
    /// Pod template, raw.
    pub template: Value,
    /// Claims of each pod, raw.
    pub volume_claim_templates: Vec<Value>,
    /// The service that names the pods.
    pub service_name: String,
    /// `OrderedReady`, `Parallel`
    pub pod_management_policy: String,
    /// Strategy.
    pub update_strategy: StatefulSetStrategy,
    /// Old revisions kept.
    pub revision_history_limit: Option<i64>,
    /// Seconds of readiness until a pod is available.
    pub min_ready_seconds: i64,
    /// What becomes of claims.
    pub persistent_volume_claim_retention_policy: Option<ClaimRetentionPolicy>,
    /// Numbers.
    pub ordinals: Option<Ordinals>,
}

/// A stateful set's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetStatus {
    /// Generation that the status reflects.
    pub observed_generation: i64,
    /// Pods.
    pub replicas: i64,
    /// Ready pods.
    pub ready_replicas: i64,
    /// Pods of the current revision.
    pub current_replicas: i64,
    /// Pods of the update's revision.
    pub updated_replicas: i64,
    /// Available pods.
    pub available_replicas: i64,
    /// Name of the revision that pods had.
    pub current_revision: String,
    /// Name of the revision that pods get.
    pub update_revision: String,
    /// Hash collisions so far.
    pub collision_count: Option<i64>,
}

/// A stateful set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StatefulSet {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: StatefulSetSpec,
    /// Status.
    pub status: StatefulSetStatus,
}

impl StatefulSet {
    /// The first pod's number.
    pub fn start(&self) -> i64 {
        self.spec.ordinals.as_ref().map_or(0, |o| o.start)
    }
}

impl Projection for StatefulSet {
    const GROUP: &'static str = "apps";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "statefulsets";
    const KIND: &'static str = "StatefulSet";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Workload for StatefulSet {
    fn pod_selector(&self) -> Selector {
        self.spec.selector.parsed.clone()
    }

    fn replicas(&self) -> i64 {
        self.spec.replicas.unwrap_or(1)
    }
}
