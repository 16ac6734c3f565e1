//! PodGroup, projected.

use super::policy::MetaCondition;
use crate::{Meta, Projection};
use serde::Deserialize;

/// How a gang is scheduled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GangPolicy {
    /// Pods that are scheduled together or not at all.
    pub min_count: usize,
}

/// `spec.schedulingPolicy`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GroupPolicy {
    /// Without it pods are scheduled one by one.
    pub gang: Option<GangPolicy>,
}

/// `spec.disruptionMode`; what is in its members does not matter.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GroupDisruption {
    /// All pods of the group are disrupted, or none.
    pub all: Option<serde_json::Value>,
}

/// A group's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupSpec {
    /// How it is scheduled.
    pub scheduling_policy: GroupPolicy,
    /// How it is disrupted.
    pub disruption_mode: GroupDisruption,
    /// That of all its pods.
    pub priority: Option<i64>,
}

/// A group's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodGroupStatus {
    /// Conditions.
    pub conditions: Vec<MetaCondition>,
}

/// Pods that are scheduled together.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodGroup {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: PodGroupSpec,
    /// Status.
    pub status: PodGroupStatus,
}

impl PodGroup {
    /// Pods that have to be scheduled together: 1 without a gang.
    pub fn min_count(&self) -> usize {
        self.spec.scheduling_policy.gang.as_ref().map_or(1, |gang| gang.min_count)
    }
}

impl Projection for PodGroup {
    const GROUP: &'static str = "scheduling.k8s.io";
    const VERSION: &'static str = "v1beta1";
    const RESOURCE: &'static str = "podgroups";
    const KIND: &'static str = "PodGroup";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
