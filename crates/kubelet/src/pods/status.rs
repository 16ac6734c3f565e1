//! The status that the API shows of a pod: [`generate`], pure. Upstream's `generateAPIPodStatus`.
//!
//! Invariants: a phase of `Succeeded` or `Failed` is never left, and the last status of a pod has one of them; conditions of other
//! owners are kept; the same inputs give the same status, but for times of transitions, which change only with what they are about.

mod conditions;
mod containers;
mod ended;
mod phase;
mod resources;

use super::compute::ProbeResults;
use super::core::{HostIP, Pod, PodCondition, PodIP, PodStatus};
use super::model;
use super::observed::Observed;
use super::resize::Resizing;
use super::worker::Ending;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Why containers wait: reason and message by container name.
pub type Waiting = BTreeMap<String, (String, String)>;

/// What a status is made from.
pub struct Inputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The status that was generated last, or the API's.
    pub former: &'a PodStatus,
    /// What the runtime shows.
    pub observed: &'a Observed,
    /// Outcomes of probes.
    pub results: &'a ProbeResults,
    /// Failures of starts.
    pub waiting: &'a Waiting,
    /// The node's addresses, the primary one first.
    pub host_addresses: &'a [IpAddr],
    /// Scheme of container ids, `kaji` of `kaji://…`.
    pub runtime_name: &'a str,
    /// No container of the pod will run again. Its status is the last one once none runs.
    pub terminal: bool,
    /// Of a pod that failed for another reason than its containers: eviction, a deadline, a refused admission.
    pub failed: Option<&'a Ending>,
    /// The node has not taken it: nothing of its containers has begun, and nothing is shown of them.
    pub rejected: bool,
    /// Changes of resources.
    pub resizing: &'a Resizing,
    /// The present.
    pub now: jiff::Timestamp,
}

/// The conditions that belong to the kubelet.
pub(crate) const OWNED: [&str; 8] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "PodResizeInProgress",
    "PodResizePending",
    super::compute::RESTARTING,
];

/// The status of a pod.
#[must_use]
pub fn generate(inputs: &Inputs<'_>) -> PodStatus {
    let pod = inputs.pod;
    let mut status = PodStatus {
        qos_class: Some(model::qos(pod).name().to_owned()),
        observed_generation: pod.metadata.generation,
        start_time: inputs.former.start_time.clone().or(Some(Time(inputs.now))),
        resource_claim_statuses: inputs.former.resource_claim_statuses.clone(),
        extended_resource_claim_status: inputs.former.extended_resource_claim_status.clone(),
        nominated_node_name: inputs.former.nominated_node_name.clone(),
        ..PodStatus::default()
    };
    if inputs.rejected {
        // Upstream's `rejectPod` says why, and nothing else: no containers, no conditions of the kubelet's, no addresses.
        set_phase(inputs, &mut status);
        status.conditions = Some(foreign(inputs));
        return status;
    }
    containers::fill(inputs, &mut status);
    set_phase(inputs, &mut status);
    ended::complete(inputs, &mut status);
    containers::set_ready(inputs, &mut status);
    resources::fill(inputs, &mut status);
    status.conditions = Some(conditions(inputs, &status));
    addresses(inputs, &mut status);
    status
}

fn set_phase(inputs: &Inputs<'_>, status: &mut PodStatus) {
    let computed = phase::of(inputs, status);
    let terminal = |phase: Option<&str>| matches!(phase, Some("Succeeded" | "Failed"));
    let api = inputs.pod.status.as_ref();
    let shown = api.and_then(|s| s.phase.as_deref());
    let former = inputs.former.phase.as_deref();
    let phase = [shown, former].into_iter().flatten().find(|p| terminal(Some(p)));
    let phase = phase.unwrap_or(computed);
    if former == Some(phase) {
        let text = |former: &Option<String>, api: Option<&String>| {
            former.clone().filter(|t| !t.is_empty()).or_else(|| api.cloned())
        };
        status.reason = text(&inputs.former.reason, api.and_then(|s| s.reason.as_ref()));
        status.message = text(&inputs.former.message, api.and_then(|s| s.message.as_ref()));
    }
    status.phase = Some(phase.to_owned());
    if let Some(failed) = inputs.failed
        && !terminal(shown)
    {
        status.phase = Some("Failed".to_owned());
        status.reason = Some(failed.reason.clone());
        status.message = Some(failed.message.clone());
    }
}

fn shown(pod: &Pod) -> &[PodCondition] {
    pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
}

/// The conditions that others own.
fn foreign(inputs: &Inputs<'_>) -> Vec<PodCondition> {
    let conditions = shown(inputs.pod).iter().filter(|c| !OWNED.contains(&c.type_.as_str()));
    conditions.cloned().collect()
}

fn conditions(inputs: &Inputs<'_>, status: &PodStatus) -> Vec<PodCondition> {
    let shown = shown(inputs.pod);
    let mut all = foreign(inputs);
    let former = inputs.former.conditions.as_deref().unwrap_or_default();
    if let Some(disruption) = former.iter().find(|c| c.type_ == "DisruptionTarget") {
        all.retain(|c| c.type_ != "DisruptionTarget");
        all.push(disruption.clone());
    }
    let mut generated = conditions::generate(inputs, status, &all);
    if let Some(message) = inputs.failed.and_then(|failed| failed.disruption.as_deref()) {
        all.retain(|c| c.type_ != "DisruptionTarget");
        generated.push(conditions::disruption(message));
    }
    for mut condition in generated {
        let same =
            former.iter().chain(shown).find(|c| c.type_ == condition.type_ && c.status == condition.status);
        condition.last_transition_time =
            same.and_then(|c| c.last_transition_time.clone()).or(Some(Time(inputs.now)));
        condition.observed_generation = inputs.pod.metadata.generation;
        all.push(condition);
    }
    all
}

fn addresses(inputs: &Inputs<'_>, status: &mut PodStatus) {
    let hosts = inputs.host_addresses;
    status.host_ip = hosts.first().map(ToString::to_string);
    status.host_ips = Some(hosts.iter().take(2).map(|ip| HostIP { ip: ip.to_string() }).collect());
    let former = inputs.former.pod_ips.clone().unwrap_or_default();
    let observed = sorted(&inputs.observed.addresses(), hosts);
    let mut own: Vec<String> = observed.iter().map(ToString::to_string).collect();
    if own.is_empty() {
        own = former.into_iter().map(|a| a.ip).collect();
    }
    if own.is_empty() && model::host_network(inputs.pod) {
        own = hosts.iter().take(2).map(ToString::to_string).collect();
    }
    status.pod_ip = own.first().cloned();
    status.pod_ips = (!own.is_empty()).then(|| own.into_iter().map(|ip| PodIP { ip }).collect());
}

/// One address of each family, that of the node's primary address first.
#[must_use]
pub fn sorted(addresses: &[IpAddr], hosts: &[IpAddr]) -> Vec<IpAddr> {
    let v6_first = hosts.first().is_some_and(IpAddr::is_ipv6);
    let of = |v6: bool| addresses.iter().find(|a| a.is_ipv6() == v6).copied();
    [of(v6_first), of(!v6_first)].into_iter().flatten().collect()
}
