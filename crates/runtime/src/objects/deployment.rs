//! Deployment, projected. The pod template stays raw JSON.

use super::selector::{Condition, LabelSelector};
use crate::{Meta, Projection};
use serde::Deserialize;
use serde_json::Value;

/// Bounds of a rolling update: integers or percentages, raw.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// Pods over the wanted number.
    pub max_surge: Value,
    /// Pods under the wanted number.
    pub max_unavailable: Value,
}

/// How pods are replaced.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStrategy {
    /// `RollingUpdate` or `Recreate`
    #[serde(rename = "type")]
    pub kind: String,
    /// For `RollingUpdate`.
    pub rolling_update: Option<RollingUpdate>,
}

/// A deployment's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentSpec {
    /// Pods wanted.
    pub replicas: Option<i64>,
    /// Which replica sets and pods.
    pub selector: LabelSelector,
    /// Pod template, raw.
    pub template: Value,
    /// Strategy.
    pub strategy: DeploymentStrategy,
    /// Seconds of readiness until a pod is available.
    pub min_ready_seconds: i64,
    /// Old replica sets kept.
    pub revision_history_limit: Option<i64>,
    /// Whether rollouts are held back.
    pub paused: bool,
    /// Seconds without progress until the rollout counts as failed.
    pub progress_deadline_seconds: Option<i64>,
}

/// A deployment's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// Generation that the status reflects.
    pub observed_generation: i64,
    /// Pods of all replica sets.
    pub replicas: i64,
    /// Pods of the newest template.
    pub updated_replicas: i64,
    /// Ready pods.
    pub ready_replicas: i64,
    /// Available pods.
    pub available_replicas: i64,
    /// Pods still missing to full availability.
    pub unavailable_replicas: i64,
    /// Pods being deleted.
    pub terminating_replicas: Option<i64>,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Hash collisions so far.
    pub collision_count: Option<i64>,
}

/// A deployment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Deployment {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: DeploymentSpec,
    /// Status.
    pub status: DeploymentStatus,
}

impl Deployment {
    /// Pods wanted.
    pub fn replicas(&self) -> i64 {
        self.spec.replicas.unwrap_or(1)
    }
}

impl Projection for Deployment {
    const GROUP: &'static str = "apps";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "deployments";
    const KIND: &'static str = "Deployment";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
