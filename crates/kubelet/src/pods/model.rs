//! What is read of a pod's spec in many places: its containers, restart policies, quality of service, resources.

use super::core::{Container, EphemeralContainer, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kaji_meta::quantity::Quantity;
use std::collections::BTreeMap;

/// Which list of the spec a container is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerKind {
    /// `spec.initContainers`, sidecars among them.
    Init,
    /// `spec.containers`
    Regular,
    /// `spec.ephemeralContainers`
    Ephemeral,
}

impl ContainerKind {
    /// The list's name in a field path.
    #[must_use]
    pub fn field(self) -> &'static str {
        match self {
            ContainerKind::Init => "initContainers",
            ContainerKind::Regular => "containers",
            ContainerKind::Ephemeral => "ephemeralContainers",
        }
    }
}

static EMPTY_SPEC: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);

/// The spec; empty for an object without one.
#[must_use]
pub fn spec(pod: &Pod) -> &PodSpec {
    pod.spec.as_ref().unwrap_or(&EMPTY_SPEC)
}

/// `metadata.uid`
#[must_use]
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// `metadata.name`
#[must_use]
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// `metadata.namespace`
#[must_use]
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// `name_namespace(uid)`, as upstream's messages name a pod.
#[must_use]
pub fn display(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

/// `spec.initContainers`
#[must_use]
pub fn init_containers(pod: &Pod) -> &[Container] {
    spec(pod).init_containers.as_deref().unwrap_or_default()
}

/// `spec.containers`
#[must_use]
pub fn containers(pod: &Pod) -> &[Container] {
    &spec(pod).containers
}

/// `spec.ephemeralContainers`
#[must_use]
pub fn ephemeral_containers(pod: &Pod) -> &[EphemeralContainer] {
    spec(pod).ephemeral_containers.as_deref().unwrap_or_default()
}

/// An ephemeral container as the container that it is run as.
#[must_use]
pub fn as_container(ephemeral: &EphemeralContainer) -> Container {
    let e = ephemeral.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        lifecycle: e.lifecycle,
        liveness_probe: e.liveness_probe,
        name: e.name,
        ports: e.ports,
        readiness_probe: e.readiness_probe,
        resize_policy: e.resize_policy,
        resources: e.resources,
        restart_policy: e.restart_policy,
        restart_policy_rules: e.restart_policy_rules,
        security_context: e.security_context,
        startup_probe: e.startup_probe,
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
    }
}

/// The container of a name, and its list.
#[must_use]
pub fn find_container(pod: &Pod, name: &str) -> Option<(Container, ContainerKind)> {
    let of = |list: &[Container]| list.iter().find(|c| c.name == name).cloned();
    of(containers(pod))
        .map(|c| (c, ContainerKind::Regular))
        .or_else(|| of(init_containers(pod)).map(|c| (c, ContainerKind::Init)))
        .or_else(|| {
            let found = ephemeral_containers(pod).iter().find(|c| c.name == name);
            found.map(|c| (as_container(c), ContainerKind::Ephemeral))
        })
}

/// Whether an init container is a sidecar: it goes on beside the regular ones and is restarted.
#[must_use]
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// `spec.restartPolicy`, defaulted.
#[must_use]
pub fn restart_policy(pod: &Pod) -> &str {
    spec(pod).restart_policy.as_deref().unwrap_or("Always")
}

/// `spec.hostNetwork`
#[must_use]
pub fn host_network(pod: &Pod) -> bool {
    spec(pod).host_network.unwrap_or(false)
}

/// The grace period of the spec, in seconds; upstream's default without one.
#[must_use]
pub fn grace_period(pod: &Pod) -> i64 {
    spec(pod).termination_grace_period_seconds.unwrap_or(30)
}

/// Whether a deletion was asked for.
#[must_use]
pub fn deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// `status.phase`
#[must_use]
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending")
}

/// Whether the API shows a phase that a pod never leaves.
#[must_use]
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// What the first rule for an exit code asks for: `Restart`, `RestartAllContainers`.
#[must_use]
pub fn matching_rule(container: &Container, exit_code: i32) -> Option<&str> {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    let matching = rules.iter().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.as_deref().unwrap_or_default().contains(&exit_code);
            match codes.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    });
    matching.map(|rule| rule.action.as_str())
}

/// Whether a container that has exited runs again, by its rules, its own policy, or that of the pod.
#[must_use]
pub fn restarts_after_exit(container: &Container, pod: &Pod, exit_code: i32) -> bool {
    if matching_rule(container, exit_code).is_some() {
        return true;
    }
    match container.restart_policy.as_deref().unwrap_or(restart_policy(pod)) {
        "Always" => true,
        "OnFailure" => exit_code != 0,
        _ => false,
    }
}

/// Whether some container of the pod has a rule that restarts all.
#[must_use]
pub fn all_containers_could_restart(pod: &Pod) -> bool {
    let rules = |c: &Container| {
        let rules = c.restart_policy_rules.as_deref().unwrap_or_default();
        rules.iter().any(|r| r.action == "RestartAllContainers")
    };
    containers(pod).iter().chain(init_containers(pod)).any(rules)
}

/// A quantity of the API; zero for text that is none, which validation keeps out.
#[must_use]
pub fn quantity(amount: &ApiQuantity) -> Quantity {
    Quantity::parse(&amount.0).unwrap_or_else(|_| Quantity::new(0, kaji_meta::quantity::Format::DecimalSi))
}

/// A quantity as the API has it.
#[must_use]
pub fn api_quantity(quantity: &Quantity) -> ApiQuantity {
    ApiQuantity(quantity.to_string())
}

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, ApiQuantity>;

/// A container's or pod's requests.
#[must_use]
pub fn requests(resources: Option<&ResourceRequirements>) -> Option<&Amounts> {
    resources.and_then(|r| r.requests.as_ref())
}

/// A container's or pod's limits.
#[must_use]
pub fn limits(resources: Option<&ResourceRequirements>) -> Option<&Amounts> {
    resources.and_then(|r| r.limits.as_ref())
}

/// An amount in whole units, rounded up; `None` where it is not listed.
#[must_use]
pub fn whole(amounts: Option<&Amounts>, resource: &str) -> Option<i64> {
    amounts.and_then(|a| a.get(resource)).map(|q| quantity(q).value())
}

/// An amount in thousandths, rounded up; `None` where it is not listed.
#[must_use]
pub fn milli(amounts: Option<&Amounts>, resource: &str) -> Option<i64> {
    amounts.and_then(|a| a.get(resource)).map(|q| quantity(q).milli_value())
}

/// Quality of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Qos {
    /// Limits equal requests for all containers.
    Guaranteed,
    /// Some container asks for something.
    Burstable,
    /// None does.
    BestEffort,
}

impl Qos {
    /// As `status.qosClass` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Qos::Guaranteed => "Guaranteed",
            Qos::Burstable => "Burstable",
            Qos::BestEffort => "BestEffort",
        }
    }
}

/// The pod's quality of service: what the API shows, else what follows from its resources.
#[must_use]
pub fn qos(pod: &Pod) -> Qos {
    match pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
        Some("Guaranteed") => return Qos::Guaranteed,
        Some("Burstable") => return Qos::Burstable,
        Some("BestEffort") => return Qos::BestEffort,
        _ => {}
    }
    if has_own_resources(pod) {
        return qos_of(spec(pod).resources.as_ref());
    }
    let mut all = init_containers(pod).iter().chain(containers(pod)).map(|c| qos_of(c.resources.as_ref()));
    let first = all.next().unwrap_or(Qos::BestEffort);
    if all.all(|other| other == first) { first } else { Qos::Burstable }
}

/// Whether a pod has resources of its own. Those of other names than upstream's `SupportedPodLevelResources`, and empty lists, are none:
/// such a pod's quality is that of its containers (`PodLevelResourcesFixKubeletQOSClass`).
#[must_use]
pub fn has_own_resources(pod: &Pod) -> bool {
    let own = spec(pod).resources.as_ref();
    let mut names = requests(own).into_iter().chain(limits(own)).flat_map(Amounts::keys);
    names.any(|name| matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-"))
}

/// The quality of one list of requests and limits. A limit without a request stands for both, as defaulting has it.
fn qos_of(resources: Option<&ResourceRequirements>) -> Qos {
    let of = |name: &str| {
        let amount = |amounts: Option<&Amounts>| amounts.and_then(|a| a.get(name)).map(quantity);
        let limit = amount(limits(resources));
        let request = amount(requests(resources)).or_else(|| limit.clone());
        if request.iter().chain(&limit).all(Quantity::is_zero) {
            Qos::BestEffort
        } else if request == limit {
            Qos::Guaranteed
        } else {
            Qos::Burstable
        }
    };
    let (cpu, memory) = (of("cpu"), of("memory"));
    if cpu == memory { cpu } else { Qos::Burstable }
}

/// Whether the kubelet has the pod from a file.
#[must_use]
pub fn is_static(pod: &Pod) -> bool {
    let source = pod.metadata.annotations.as_ref().and_then(|a| a.get("kubernetes.io/config.source"));
    source.is_some_and(|source| source != "api")
}

/// Whether the pod goes before others under pressure: static, mirrored, or of a system priority.
#[must_use]
pub fn is_critical(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let has = |name: &str| annotations.is_some_and(|a| a.contains_key(name));
    has("kubernetes.io/config.mirror")
        || is_static(pod)
        || spec(pod).priority.is_some_and(|p| p >= 2_000_000_000)
}

/// The hash by which a running container is compared with its spec: of the fields that may change, name and image.
#[must_use]
pub fn container_hash(container: &Container) -> u64 {
    let image = container.image.as_deref().unwrap_or_default();
    let text = [container.name.as_bytes(), &[0], image.as_bytes()].concat();
    let hash = text.iter().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    u64::from(hash)
}

/// `involvedObject` of events about the pod.
#[must_use]
pub fn reference(pod: &Pod) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": namespace(pod),
        "name": name(pod),
        "uid": uid(pod),
        "resourceVersion": pod.metadata.resource_version.as_deref().unwrap_or_default(),
    })
}

/// `involvedObject` of events about a container of the pod.
#[must_use]
pub fn container_reference(pod: &Pod, container: &str) -> serde_json::Value {
    let mut reference = reference(pod);
    if let Some((_, kind)) = find_container(pod, container) {
        reference["fieldPath"] = format!("spec.{}{{{container}}}", kind.field()).into();
    }
    reference
}
