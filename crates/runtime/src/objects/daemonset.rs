//! DaemonSet, projected. The pod template stays raw JSON.

use super::{deployment::DeploymentStrategy, selector::LabelSelector};
use crate::{Meta, Projection};
use serde::Deserialize;
use serde_json::Value;

/// A daemon set's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetSpec {
    /// Which pods.
    pub selector: LabelSelector,
    /// Pod template, raw.
    pub template: Value,
    /// `RollingUpdate` or `OnDelete`.
    pub update_strategy: DeploymentStrategy,
    /// Seconds of readiness until a pod is available.
    pub min_ready_seconds: i64,
    /// Old revisions kept.
    pub revision_history_limit: Option<i64>,
}

/// A daemon set's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetStatus {
    /// Nodes that have a pod and should.
    pub current_number_scheduled: i64,
    /// Nodes that have a pod and should not.
    pub number_misscheduled: i64,
    /// Nodes that should have a pod.
    pub desired_number_scheduled: i64,
    /// Nodes with a ready pod.
    pub number_ready: i64,
    /// Generation that the status reflects.
    pub observed_generation: i64,
    /// Nodes with a pod of the newest template.
    pub updated_number_scheduled: i64,
    /// Nodes with an available pod.
    pub number_available: i64,
    /// Nodes that lack an available pod.
    pub number_unavailable: i64,
    /// Hash collisions so far.
    pub collision_count: Option<i64>,
}

/// A daemon set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: DaemonSetSpec,
    /// Status.
    pub status: DaemonSetStatus,
}

impl Projection for DaemonSet {
    const GROUP: &'static str = "apps";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "daemonsets";
    const KIND: &'static str = "DaemonSet";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// A controller revision: the state that a daemon set or stateful set may go back to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ControllerRevision {
    /// ObjectMeta.
    pub metadata: Meta,
    /// A patch, raw.
    pub data: Value,
    /// Its number; later ones are newer.
    pub revision: i64,
}

impl Projection for ControllerRevision {
    const GROUP: &'static str = "apps";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "controllerrevisions";
    const KIND: &'static str = "ControllerRevision";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
