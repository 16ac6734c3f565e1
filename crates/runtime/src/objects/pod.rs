//! Pod, projected. `spec.containers` and affinity stay raw JSON for the loops that read them whole.

use crate::{Meta, Projection};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A toleration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Key, `""` for all.
    pub key: String,
    /// `Exists` or `Equal` (also when empty).
    pub operator: String,
    /// Value for `Equal`.
    pub value: String,
    /// Effect, `""` for all.
    pub effect: String,
    /// For `NoExecute`.
    pub toleration_seconds: Option<i64>,
}

/// A pod's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Where it runs; `""` before it is bound.
    pub node_name: String,
    /// `default-scheduler`
    pub scheduler_name: String,
    /// Node labels it needs.
    pub node_selector: BTreeMap<String, String>,
    /// Affinity, raw.
    pub affinity: Option<Value>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Containers, raw.
    pub containers: Vec<Value>,
    /// Init containers, raw.
    pub init_containers: Vec<Value>,
    /// Extra resources of the sandbox.
    pub overhead: BTreeMap<String, String>,
    /// Priority.
    pub priority: Option<i64>,
    /// Where the priority comes from.
    pub priority_class_name: String,
    /// Requests and limits of the pod as a whole, raw.
    pub resources: Value,
    /// `PreemptLowerPriority` or `Never`.
    pub preemption_policy: Option<String>,
    /// Gates that hold scheduling back, raw.
    pub scheduling_gates: Vec<Value>,
    /// Topology spread constraints, raw.
    pub topology_spread_constraints: Vec<Value>,
    /// `Always`, `OnFailure`, `Never`
    pub restart_policy: String,
    /// Seconds.
    pub termination_grace_period_seconds: Option<i64>,
    /// Seconds after start until the pod fails.
    pub active_deadline_seconds: Option<i64>,
    /// Service account.
    pub service_account_name: String,
    /// Uses the node's network.
    pub host_network: bool,
    /// DNS name below the subdomain.
    pub hostname: String,
    /// Headless service that gives DNS names.
    pub subdomain: String,
    /// Conditions that readiness needs, raw.
    pub readiness_gates: Vec<Value>,
    /// Volumes, raw.
    pub volumes: Vec<Value>,
}

/// A pod's condition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False`, `Unknown`
    pub status: String,
    /// When status last changed.
    pub last_transition_time: Option<jiff::Timestamp>,
    /// Reason.
    pub reason: String,
}

/// A container's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Name.
    pub name: String,
    /// Readiness.
    pub ready: bool,
    /// Restarts so far.
    pub restart_count: i64,
    /// State, raw.
    pub state: Value,
}

/// One of a pod's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodIp {
    /// The address.
    pub ip: String,
}

/// A pod's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`
    pub phase: String,
    /// Conditions.
    pub conditions: Vec<PodCondition>,
    /// Address.
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    /// Addresses, one a family.
    #[serde(rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
    /// Reason.
    pub reason: String,
    /// When the node took notice.
    pub start_time: Option<jiff::Timestamp>,
    /// Container statuses.
    pub container_statuses: Vec<ContainerStatus>,
    /// Init container statuses.
    pub init_container_statuses: Vec<ContainerStatus>,
    /// Where preemption made room.
    pub nominated_node_name: String,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: PodSpec,
    /// Status.
    pub status: PodStatus,
}

impl Pod {
    /// A condition by type.
    pub fn condition(&self, kind: &str) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|c| c.kind == kind)
    }

    /// Whether its `Ready` condition is `True`.
    pub fn ready(&self) -> bool {
        self.condition("Ready").is_some_and(|c| c.status == "True")
    }

    /// Ready for at least so many seconds.
    pub fn available(&self, min_ready_seconds: i64, now: jiff::Timestamp) -> bool {
        let Some(ready) = self.condition("Ready").filter(|c| c.status == "True") else { return false };
        min_ready_seconds == 0
            || ready
                .last_transition_time
                .is_some_and(|t| t.as_second() + min_ready_seconds <= now.as_second())
    }

    /// Succeeded or failed.
    pub fn finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Neither finished nor being deleted.
    pub fn active(&self) -> bool {
        !self.finished() && !self.metadata.deleting()
    }
}

impl Projection for Pod {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "pods";
    const KIND: &'static str = "Pod";

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn index(&self) -> Vec<(&'static str, String)> {
        if self.spec.node_name.is_empty() { vec![] } else { vec![("node", self.spec.node_name.clone())] }
    }
}
