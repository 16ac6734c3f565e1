//! Label selectors and conditions as projected objects carry them: parsed once, when the object is decoded.

use kaji_meta::labels::Selector;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A `LabelSelector`, as sent and as parsed. One that does not parse, or is absent, selects nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelSelector {
    /// As sent.
    pub raw: Value,
    /// Parsed.
    pub parsed: Selector,
}

impl Default for LabelSelector {
    fn default() -> Self {
        LabelSelector { raw: Value::Null, parsed: Selector::nothing() }
    }
}

impl LabelSelector {
    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.parsed.matches(|key| labels.get(key).map(String::as_str))
    }
}

impl<'de> Deserialize<'de> for LabelSelector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Value::deserialize(deserializer)?;
        let parsed = Selector::from_label_selector(&raw).unwrap_or_else(|_| Selector::nothing());
        Ok(LabelSelector { raw, parsed })
    }
}

/// A map of labels that an object must all have (`spec.selector` of services and replication controllers).
/// An absent or empty map selects nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapSelector {
    /// As sent.
    pub labels: BTreeMap<String, String>,
}

impl MapSelector {
    /// Whether there is nothing to select by.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.labels.is_empty() && self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

impl<'de> Deserialize<'de> for MapSelector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(MapSelector { labels: Option::deserialize(deserializer)?.unwrap_or_default() })
    }
}

/// A kind that keeps a number of pods, those that its selector selects.
pub trait Workload: crate::Projection {
    /// Which pods.
    fn pod_selector(&self) -> Selector;

    /// How many pods are desired.
    fn replicas(&self) -> i64;
}

/// Is shown every kind of [`visit_workloads`](super::visit_workloads).
pub trait WorkloadVisitor {
    /// One kind.
    fn visit<W: Workload>(&mut self);
}

/// A condition of a workload's status. Times that a kind does not have stay absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False`, `Unknown`
    pub status: String,
    /// When it was last written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<jiff::Timestamp>,
    /// When status last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<jiff::Timestamp>,
    /// Reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}
