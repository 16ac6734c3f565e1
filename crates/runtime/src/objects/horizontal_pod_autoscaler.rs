//! HorizontalPodAutoscaler of `autoscaling/v2`, projected. Quantities are decoded to milli-units.

use super::selector::Condition;
use crate::{Meta, Projection};
use kaji_meta::quantity::Quantity;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

/// A quantity in milli-units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Milli(pub i64);

impl<'de> Deserialize<'de> for Milli {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Quantity::from_value(&value).map(|q| Milli(q.milli_value())).map_err(D::Error::custom)
    }
}

/// A quantity as a fraction: how far a ratio may be from one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fraction(pub f64);

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Quantity::from_value(&value).map(|q| Fraction(q.as_f64())).map_err(D::Error::custom)
    }
}

/// An object of the same namespace, by kind and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    /// `apps/v1`
    pub api_version: String,
    /// `Deployment`
    pub kind: String,
    /// Name.
    pub name: String,
}

/// A metric by its name and, where it has several series, their labels.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct MetricIdentifier {
    /// Name.
    pub name: String,
    /// A `LabelSelector`, raw; null for none.
    pub selector: Value,
}

/// The value that a metric should have.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricTarget {
    /// `Utilization`, `Value` or `AverageValue`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Of the metric as a whole.
    pub value: Option<Milli>,
    /// A pod's.
    pub average_value: Option<Milli>,
    /// A pod's, in percent of its requests.
    pub average_utilization: Option<i64>,
}

/// Where a metric is from; which fields count depends on the type of the metric.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricSource {
    /// The resource (`cpu`).
    pub name: String,
    /// The container.
    pub container: String,
    /// The metric.
    pub metric: MetricIdentifier,
    /// The object that the metric describes.
    pub described_object: ObjectReference,
    /// What it should be.
    pub target: MetricTarget,
}

/// A metric that replicas are computed from.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricSpec {
    /// `Resource`, `ContainerResource`, `Pods`, `Object` or `External`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Usage of a resource by pods.
    pub resource: Option<MetricSource>,
    /// Usage of a resource by one container of pods.
    pub container_resource: Option<MetricSource>,
    /// A metric of each pod.
    pub pods: Option<MetricSource>,
    /// A metric of another object.
    pub object: Option<MetricSource>,
    /// A metric of nothing in the cluster.
    pub external: Option<MetricSource>,
}

/// How much may change within a period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingPolicy {
    /// `Pods` or `Percent`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Pods, or percent of them.
    pub value: i64,
    /// The period.
    pub period_seconds: i64,
}

/// How replicas are changed in one direction.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingRules {
    /// For how long former recommendations count.
    pub stabilization_window_seconds: Option<i64>,
    /// `Max`, `Min` or `Disabled`.
    pub select_policy: String,
    /// The policies.
    pub policies: Vec<ScalingPolicy>,
    /// How far the ratio may be from one without a change.
    pub tolerance: Option<Fraction>,
}

/// How replicas are changed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Behavior {
    /// Upwards.
    pub scale_up: ScalingRules,
    /// Downwards.
    pub scale_down: ScalingRules,
}

/// An autoscaler's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HorizontalPodAutoscalerSpec {
    /// What is scaled.
    pub scale_target_ref: ObjectReference,
    /// The least number of replicas (1 when absent).
    pub min_replicas: Option<i64>,
    /// The greatest.
    pub max_replicas: i64,
    /// What replicas are computed from.
    pub metrics: Vec<MetricSpec>,
    /// How they are changed.
    pub behavior: Option<Behavior>,
}

/// An autoscaler's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HorizontalPodAutoscalerStatus {
    /// The generation that the status is about; absent before the target was read for the first time.
    pub observed_generation: Option<i64>,
    /// When replicas were changed last, RFC 3339.
    pub last_scale_time: Option<String>,
    /// As last seen.
    pub current_replicas: i64,
    /// As last decided.
    pub desired_replicas: i64,
    /// The metrics' values, raw.
    pub current_metrics: Value,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// An autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct HorizontalPodAutoscaler {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: HorizontalPodAutoscalerSpec,
    /// Status.
    pub status: HorizontalPodAutoscalerStatus,
}

impl Projection for HorizontalPodAutoscaler {
    const GROUP: &'static str = "autoscaling";
    const VERSION: &'static str = "v2";
    const RESOURCE: &'static str = "horizontalpodautoscalers";
    const KIND: &'static str = "HorizontalPodAutoscaler";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
