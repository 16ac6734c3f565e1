//! Labels and annotations of sandboxes and containers, by upstream's names: from them a kubelet that starts knows again which
//! pods run, how often their containers were restarted, and how they are to be stopped.

use super::core::{Container, ContainerPort, LifecycleHandler, Pod};
use super::model;
use kaji_containers::{ContainerInfo, PodSandboxInfo};
use std::collections::BTreeMap;

/// Label: the pod's name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: the pod's namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: the pod's uid.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: the container's name.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

const HASH: &str = "io.kubernetes.container.hash";
const RESTARTS: &str = "io.kubernetes.container.restartCount";
const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
const PORTS: &str = "io.kubernetes.container.ports";
const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

fn pod_labels(pod: &Pod) -> BTreeMap<String, String> {
    [(POD_NAME, model::name(pod)), (POD_NAMESPACE, model::namespace(pod)), (POD_UID, model::uid(pod))]
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .into()
}

/// Of a sandbox: the pod's own labels and the ones that identify it.
#[must_use]
pub fn of_sandbox(pod: &Pod) -> BTreeMap<String, String> {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.extend(pod_labels(pod));
    labels
}

/// Of a container.
#[must_use]
pub fn of_container(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let mut labels = pod_labels(pod);
    labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
    labels
}

/// What a container's annotations keep.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kept {
    /// See [`model::container_hash`].
    pub hash: u64,
    /// How many containers of this name came before.
    pub restart_count: u32,
    /// `terminationMessagePath`
    pub message_path: String,
    /// `terminationMessagePolicy`
    pub message_policy: String,
    /// Its preStop hook.
    pub pre_stop: Option<LifecycleHandler>,
    /// Its ports: a hook may name one.
    pub ports: Vec<ContainerPort>,
    /// Seconds, of the deletion.
    pub deletion_grace: Option<i64>,
    /// Seconds, of the pod's spec.
    pub termination_grace: Option<i64>,
}

/// The annotations of a container.
#[must_use]
pub fn annotations(pod: &Pod, container: &Container, restart_count: u32) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    let mut put = |name: &str, value: String| {
        annotations.insert(name.to_owned(), value);
    };
    put(HASH, format!("{:x}", model::container_hash(container)));
    put(RESTARTS, restart_count.to_string());
    put(MESSAGE_PATH, container.termination_message_path.clone().unwrap_or_default());
    put(MESSAGE_POLICY, container.termination_message_policy.clone().unwrap_or_default());
    if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
        put(DELETION_GRACE, grace.to_string());
    }
    if let Some(grace) = model::spec(pod).termination_grace_period_seconds {
        put(TERMINATION_GRACE, grace.to_string());
    }
    let json = |value: Result<String, serde_json::Error>| value.unwrap_or_default();
    if let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()) {
        put(PRE_STOP, json(serde_json::to_string(hook)));
    }
    if let Some(ports) = container.ports.as_ref().filter(|p| !p.is_empty()) {
        put(PORTS, json(serde_json::to_string(ports)));
    }
    annotations
}

/// Reads what [`annotations`] wrote; what is absent or malformed counts as not set.
#[must_use]
pub fn kept(annotations: &BTreeMap<String, String>) -> Kept {
    let text = |name: &str| annotations.get(name).cloned().unwrap_or_default();
    Kept {
        hash: u64::from_str_radix(&text(HASH), 16).unwrap_or_default(),
        restart_count: text(RESTARTS).parse().unwrap_or_default(),
        message_path: text(MESSAGE_PATH),
        message_policy: text(MESSAGE_POLICY),
        pre_stop: serde_json::from_str(&text(PRE_STOP)).ok(),
        ports: serde_json::from_str(&text(PORTS)).unwrap_or_default(),
        deletion_grace: text(DELETION_GRACE).parse().ok(),
        termination_grace: text(TERMINATION_GRACE).parse().ok(),
    }
}

/// The name of a container that the kubelet made.
#[must_use]
pub fn container_name(info: &ContainerInfo) -> &str {
    info.labels.get(CONTAINER_NAME).map_or(info.metadata.name.as_str(), String::as_str)
}

/// The uid of a container's pod; `None` for one that no kubelet made.
#[must_use]
pub fn container_pod_uid(info: &ContainerInfo) -> Option<&str> {
    info.labels.get(POD_UID).map(String::as_str)
}

/// The uid of a sandbox's pod; `None` for one that no kubelet made.
#[must_use]
pub fn sandbox_pod_uid(info: &PodSandboxInfo) -> Option<&str> {
    info.labels.get(POD_UID).map(String::as_str)
}
