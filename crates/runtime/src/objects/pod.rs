//! Pod, projected. There may be very many of them: what no control loop reads is not kept, what the pods of one template have
//! in common is kept once, and texts that many pods have are interned.
//!
//! Invariant: what differs between the pods of one template (node, host name, volumes of a stateful set, affinity of a
//! daemon set) is outside [`SharedPodSpec`].

mod volumes;

use volumes::RawVolumes;
pub use volumes::{ClaimVolume, Volumes};

use crate::{
    Key, Meta, Projection,
    intern::{Shared, Text, share},
    objects::amounts::{Amounts, Demand},
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::{collections::BTreeMap, ops::Deref};

/// A toleration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
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

/// A port of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Name, unique in the pod, or `""`.
    pub name: Box<str>,
    /// In the container.
    pub container_port: i64,
    /// `TCP` when empty.
    pub protocol: Box<str>,
    /// On the node; 0 for none.
    pub host_port: i64,
    /// The node's address that it is bound to, `""` for all.
    #[serde(rename = "hostIP")]
    pub host_ip: Box<str>,
}

/// A container, or a container for the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name.
    pub name: Box<str>,
    /// Image.
    pub image: Box<str>,
    /// `Always` makes a container for the start a sidecar.
    pub restart_policy: Box<str>,
    /// Whether one of its rules restarts all containers of the pod.
    #[serde(rename = "restartPolicyRules", deserialize_with = "restarts_all")]
    pub restarts_all: bool,
    /// Ports.
    pub ports: Box<[ContainerPort]>,
    /// Requests and limits.
    pub resources: Demand,
    /// Secrets that single variables are from.
    #[serde(rename = "env", deserialize_with = "secrets_of_variables")]
    pub variable_secrets: Box<[Box<str>]>,
    /// Secrets that are variables as wholes.
    #[serde(rename = "envFrom", deserialize_with = "secrets_of_sources")]
    pub source_secrets: Box<[Box<str>]>,
}

/// A reference by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Named {
    /// The name.
    pub name: Box<str>,
}

fn secrets_of_variables<'de, D: Deserializer<'de>>(d: D) -> Result<Box<[Box<str>]>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Source {
        secret_key_ref: Option<Named>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Variable {
        value_from: Option<Source>,
    }
    let all = Option::<Vec<Variable>>::deserialize(d)?.unwrap_or_default();
    Ok(all.into_iter().filter_map(|v| Some(v.value_from?.secret_key_ref?.name)).collect())
}

fn secrets_of_sources<'de, D: Deserializer<'de>>(d: D) -> Result<Box<[Box<str>]>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Source {
        secret_ref: Option<Named>,
    }
    let all = Option::<Vec<Source>>::deserialize(d)?.unwrap_or_default();
    Ok(all.into_iter().filter_map(|s| Some(s.secret_ref?.name)).collect())
}

fn restarts_all<'de, D: Deserializer<'de>>(d: D) -> Result<bool, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Rule {
        action: String,
    }
    let rules = Option::<Vec<Rule>>::deserialize(d)?.unwrap_or_default();
    Ok(rules.iter().any(|rule| rule.action == "RestartAllContainers"))
}

impl Container {
    /// Whether a container for the start runs on beside the others.
    pub fn sidecar(&self) -> bool {
        &*self.restart_policy == "Always"
    }
}

/// A condition that readiness needs beyond that of the containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadinessGate {
    /// The type of the condition.
    pub condition_type: Box<str>,
}

/// A gate that holds scheduling back; which one it is does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub struct SchedulingGate {}

/// A claim of devices: one that exists, or one that is made of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceClaim {
    /// Its name in the pod.
    pub name: Box<str>,
    /// The claim.
    pub resource_claim_name: Option<Box<str>>,
    /// The template.
    pub resource_claim_template_name: Option<Box<str>>,
}

/// The claim that was made for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceClaimStatus {
    /// The name in the pod.
    pub name: Box<str>,
    /// The claim; none when the pod needs none.
    pub resource_claim_name: Option<Box<str>>,
}

/// The group of pods that a pod is scheduled with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingGroup {
    /// The group's name.
    pub pod_group_name: Box<str>,
}

/// A pod's spec. What the pods of its template have in common is read through it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSpec {
    /// The node that it is bound to; `""` before it is bound.
    pub node_name: Text,
    /// DNS name below the subdomain.
    pub hostname: Box<str>,
    /// Affinity, raw.
    pub affinity: Option<Box<Value>>,
    /// What volumes refer to; the volumes are not kept.
    pub volumes: Volumes,
    shared: Shared<SharedPodSpec>,
}

share!(SharedPodSpec);

impl PodSpec {
    /// Changes what the pods of the template have in common, for this pod alone.
    pub fn modify(&mut self, change: impl FnOnce(&mut SharedPodSpec)) {
        self.shared.modify(change);
    }
}

impl Deref for PodSpec {
    type Target = SharedPodSpec;

    fn deref(&self) -> &SharedPodSpec {
        &self.shared
    }
}

/// What the pods of one template have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SharedPodSpec {
    /// `default-scheduler`
    pub scheduler_name: String,
    /// Node labels it needs.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations.
    pub tolerations: Box<[Toleration]>,
    /// Containers.
    pub containers: Box<[Container]>,
    /// Init containers.
    pub init_containers: Box<[Container]>,
    /// Extra resources of the sandbox.
    pub overhead: Amounts,
    /// Priority.
    pub priority: Option<i64>,
    /// Where the priority comes from.
    pub priority_class_name: String,
    /// Requests and limits of the pod as a whole.
    pub resources: Demand,
    /// `PreemptLowerPriority` or `Never`.
    pub preemption_policy: Option<String>,
    /// Gates that hold scheduling back.
    pub scheduling_gates: Box<[SchedulingGate]>,
    /// `Always`, `OnFailure`, `Never`
    pub restart_policy: String,
    /// Seconds.
    pub termination_grace_period_seconds: Option<i64>,
    /// Seconds after start until the pod fails.
    pub active_deadline_seconds: Option<i64>,
    /// Service account.
    pub service_account_name: String,
    /// Images of volumes.
    pub volume_images: Box<[Box<str>]>,
    /// Uses the node's network.
    pub host_network: bool,
    /// Uses the node's users; so it does where this is not set.
    pub host_users: Option<bool>,
    /// Headless service that gives DNS names.
    pub subdomain: String,
    /// Conditions that readiness needs.
    pub readiness_gates: Box<[ReadinessGate]>,
    /// Containers that came later.
    pub ephemeral_containers: Box<[Container]>,
    /// Secrets that images are pulled with.
    pub image_pull_secrets: Box<[Named]>,
    /// How its pods are spread over the nodes, raw.
    pub topology_spread_constraints: Option<Box<Value>>,
    /// Devices that it needs.
    pub resource_claims: Box<[DeviceClaim]>,
    /// Pods that are scheduled together with it.
    pub scheduling_group: Option<SchedulingGroup>,
}

/// A spec as it is decoded: the fields of [`PodSpec`] and of [`SharedPodSpec`].
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawPodSpec {
    node_name: Text,
    hostname: Box<str>,
    affinity: Option<Box<Value>>,
    volumes: RawVolumes,
    scheduler_name: String,
    node_selector: BTreeMap<String, String>,
    tolerations: Box<[Toleration]>,
    containers: Box<[Container]>,
    init_containers: Box<[Container]>,
    overhead: Amounts,
    priority: Option<i64>,
    priority_class_name: String,
    resources: Demand,
    preemption_policy: Option<String>,
    scheduling_gates: Box<[SchedulingGate]>,
    restart_policy: String,
    termination_grace_period_seconds: Option<i64>,
    active_deadline_seconds: Option<i64>,
    service_account_name: String,
    host_network: bool,
    host_users: Option<bool>,
    subdomain: String,
    readiness_gates: Box<[ReadinessGate]>,
    ephemeral_containers: Box<[Container]>,
    image_pull_secrets: Box<[Named]>,
    topology_spread_constraints: Option<Box<Value>>,
    resource_claims: Box<[DeviceClaim]>,
    scheduling_group: Option<SchedulingGroup>,
}

impl<'de> Deserialize<'de> for PodSpec {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let raw = RawPodSpec::deserialize(d)?;
        let shared = SharedPodSpec {
            scheduler_name: raw.scheduler_name,
            node_selector: raw.node_selector,
            tolerations: raw.tolerations,
            containers: raw.containers,
            init_containers: raw.init_containers,
            overhead: raw.overhead,
            priority: raw.priority,
            priority_class_name: raw.priority_class_name,
            resources: raw.resources,
            preemption_policy: raw.preemption_policy,
            scheduling_gates: raw.scheduling_gates,
            restart_policy: raw.restart_policy,
            termination_grace_period_seconds: raw.termination_grace_period_seconds,
            active_deadline_seconds: raw.active_deadline_seconds,
            service_account_name: raw.service_account_name,
            volume_images: raw.volumes.images,
            host_network: raw.host_network,
            host_users: raw.host_users,
            subdomain: raw.subdomain,
            readiness_gates: raw.readiness_gates,
            ephemeral_containers: raw.ephemeral_containers,
            image_pull_secrets: raw.image_pull_secrets,
            topology_spread_constraints: raw.topology_spread_constraints,
            resource_claims: raw.resource_claims,
            scheduling_group: raw.scheduling_group,
        };
        Ok(PodSpec {
            node_name: raw.node_name,
            hostname: raw.hostname,
            affinity: raw.affinity,
            volumes: raw.volumes.own,
            shared: Shared::new(shared),
        })
    }
}

/// A pod's condition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    /// Type.
    #[serde(rename = "type")]
    pub kind: Text,
    /// `True`, `False`, `Unknown`
    pub status: Text,
    /// When status last changed.
    pub last_transition_time: Option<jiff::Timestamp>,
    /// Reason.
    pub reason: Text,
    /// Text.
    pub message: Text,
}

/// A container's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Name.
    pub name: Text,
    /// Readiness.
    pub ready: bool,
    /// Restarts so far.
    pub restart_count: i64,
    /// State.
    pub state: ContainerState,
    /// What the node has granted it.
    pub allocated_resources: Shared<Amounts>,
    /// What it runs with; absent where the node does not say.
    pub resources: Option<Shared<Demand>>,
}

/// What a container does.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// It has ended.
    pub terminated: Option<Terminated>,
    /// It has not begun.
    #[serde(deserialize_with = "super::volume::present")]
    pub waiting: bool,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    /// Exit code.
    pub exit_code: i64,
    /// When.
    pub finished_at: Option<jiff::Timestamp>,
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
    pub phase: Text,
    /// The generation that the node has taken notice of.
    pub observed_generation: i64,
    /// Conditions.
    pub conditions: Box<[PodCondition]>,
    /// Address.
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    /// Addresses, one a family.
    #[serde(rename = "podIPs")]
    pub pod_ips: Box<[PodIp]>,
    /// Reason.
    pub reason: Text,
    /// When the node took notice.
    pub start_time: Option<jiff::Timestamp>,
    /// Container statuses.
    pub container_statuses: Box<[ContainerStatus]>,
    /// Init container statuses.
    pub init_container_statuses: Box<[ContainerStatus]>,
    /// Ephemeral container statuses.
    pub ephemeral_container_statuses: Box<[ContainerStatus]>,
    /// Where preemption made room.
    pub nominated_node_name: Text,
    /// Claims of devices that were made for it.
    pub resource_claim_statuses: Box<[DeviceClaimStatus]>,
    /// What the node has granted it as a whole.
    pub allocated_resources: Shared<Amounts>,
    /// What it runs with as a whole; absent where the node does not say.
    pub resources: Option<Shared<Demand>>,
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
    /// The index of bound pods by the claims that they use: `NAMESPACE/NAME`.
    pub const CLAIM: &'static str = "claim";
    /// The same of pods that are not bound to a node.
    pub const WAITING_CLAIM: &'static str = "waiting-claim";
    /// The index of pods by their claims of devices: `NAMESPACE/NAME`.
    pub const DEVICE_CLAIM: &'static str = "device-claim";
    /// The index of pods by the templates of their claims of devices: `NAMESPACE/NAME`.
    pub const DEVICE_TEMPLATE: &'static str = "device-template";

    /// The index of pods by their groups: `NAMESPACE/NAME`.
    pub const SCHEDULING_GROUP: &'static str = "scheduling-group";

    /// The group of pods that it is scheduled with.
    pub fn scheduling_group(&self) -> Option<Key> {
        let group = self.spec.scheduling_group.as_ref()?;
        Some(Key::new(self.metadata.namespace.as_str(), &*group.pod_group_name))
    }

    /// A condition by type.
    pub fn condition(&self, kind: &str) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|c| c.kind == kind)
    }

    /// The names of its claims of devices that exist, or did: those that were made for it as well.
    pub fn device_claims(&self) -> impl Iterator<Item = &str> {
        self.spec.resource_claims.iter().filter_map(|claim| self.device_claim(claim).flatten())
    }

    /// The name of the claim that a claim of the spec stands for: `None` before it is made, and within it when none is needed.
    pub fn device_claim<'a>(&'a self, claim: &'a DeviceClaim) -> Option<Option<&'a str>> {
        if let Some(name) = &claim.resource_claim_name {
            return Some(Some(name));
        }
        let made = self.status.resource_claim_statuses.iter().find(|status| status.name == claim.name);
        made.map(|status| status.resource_claim_name.as_deref())
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

    /// The names of its claims, and whether each was made for it alone.
    pub fn claims(&self) -> impl Iterator<Item = (String, bool)> {
        self.spec.volumes.claims.iter().map(|claim| match claim {
            ClaimVolume::Named(name) => (name.to_string(), false),
            ClaimVolume::Ephemeral(volume) => (format!("{}-{volume}", self.metadata.name), true),
        })
    }

    /// The secrets that it names; one may come more than once.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let spec = &self.spec;
        let containers = [&spec.containers, &spec.init_containers, &spec.ephemeral_containers];
        let variables = containers.into_iter().flatten();
        let variables = variables.flat_map(|c| c.variable_secrets.iter().chain(&c.source_secrets));
        let pulled = spec.image_pull_secrets.iter().map(|s| &*s.name);
        variables.chain(&spec.volumes.secrets).map(|s| &**s).chain(pulled)
    }

    /// Finished, or being deleted without a container that runs. Upstream's `IsPodTerminated` of volumes.
    pub fn terminated(&self) -> bool {
        let status = &self.status;
        let mut containers = status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses)
            .chain(&status.ephemeral_container_statuses);
        let ends = self.metadata.deleting();
        self.finished() || ends && containers.all(|c| c.state.terminated.is_some() || c.state.waiting)
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

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn index(&self) -> Vec<(&'static str, String)> {
        let bound = !self.spec.node_name.is_empty();
        let index = if bound { Pod::CLAIM } else { Pod::WAITING_CLAIM };
        let place = |name: &str| format!("{}/{name}", self.metadata.namespace);
        let claims = self.claims().map(|(name, _)| (index, place(&name)));
        let devices = self.device_claims().map(|name| (Pod::DEVICE_CLAIM, place(name)));
        let templates =
            self.spec.resource_claims.iter().filter_map(|c| c.resource_claim_template_name.as_deref());
        let templates = templates.map(|name| (Pod::DEVICE_TEMPLATE, place(name)));
        let node = bound.then(|| ("node", self.spec.node_name.to_string()));
        let group = self.spec.scheduling_group.as_ref();
        let group = group.map(|group| (Pod::SCHEDULING_GROUP, place(&group.pod_group_name)));
        node.into_iter().chain(claims).chain(devices).chain(templates).chain(group).collect()
    }
}
