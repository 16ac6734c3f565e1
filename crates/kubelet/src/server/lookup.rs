//! Finds the pods and containers that requests name.
//!
//! Invariants: a pod is one that the API binds to this node; a container is found by what the pod's spec names and the runtime shows,
//! the newest attempt first.

use crate::pods::core::Pod;
use crate::pods::{labels, model};
use http::StatusCode;
use kaji_containers::{
    ContainerFilter, ContainerInfo, ContainerRuntime, ContainerState, PodSandboxFilter, PodSandboxInfo,
    PodSandboxState, RuntimeError,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;

/// The pods that are bound to a node.
pub trait NodePods: Send + Sync + 'static {
    /// All of them, in any order.
    fn all(&self) -> Vec<Arc<Pod>>;

    /// The one of a namespace and name.
    fn by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.all().into_iter().find(|p| model::namespace(p) == namespace && model::name(p) == name)
    }
}

/// Why there is no pod or container for a request.
#[derive(Debug, Error)]
pub enum LookupError {
    /// No pod of this name.
    #[error("pod does not exist")]
    NoPod,
    /// A pod of this name with another uid.
    #[error("pod not found")]
    OtherUid,
    /// The container does not run.
    #[error("container not found (\"{0}\")")]
    NoContainer(String),
    /// The pod has no sandbox that is ready.
    #[error("failed to find sandbox of pod {0}")]
    NoSandbox(String),
    /// The runtime failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl LookupError {
    /// The status that upstream's kubelet answers with.
    #[must_use]
    pub fn code(&self) -> StatusCode {
        match self {
            LookupError::NoPod | LookupError::OtherUid => StatusCode::NOT_FOUND,
            LookupError::NoContainer(_) | LookupError::NoSandbox(_) | LookupError::Runtime(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }
}

/// The pod that a path names; with a uid, only the one that has it.
///
/// # Errors
/// [`LookupError::NoPod`], [`LookupError::OtherUid`].
pub fn find_pod(
    pods: &dyn NodePods,
    namespace: &str,
    name: &str,
    uid: Option<&str>,
) -> Result<Arc<Pod>, LookupError> {
    let pod = pods.by_name(namespace, name).ok_or(LookupError::NoPod)?;
    match uid {
        Some(uid) if model::uid(&pod) != uid => Err(LookupError::OtherUid),
        _ => Ok(pod),
    }
}

fn of_pod(uid: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(labels::POD_UID.to_owned(), uid.to_owned())])
}

/// The newest container of a name in a pod, whatever its state.
///
/// # Errors
/// When the runtime fails.
pub async fn newest_container(
    runtime: &dyn ContainerRuntime,
    pod_uid: &str,
    container: &str,
) -> Result<Option<ContainerInfo>, RuntimeError> {
    let filter = ContainerFilter { labels: of_pod(pod_uid), ..ContainerFilter::default() };
    let all = runtime.list_containers(filter).await?;
    let own = all.into_iter().filter(|c| labels::container_name(c) == container);
    Ok(own.max_by_key(|c| (c.created_at_nanos, c.metadata.attempt)))
}

/// The container of a name in a pod, if it runs: what exec and attach connect to.
///
/// # Errors
/// [`LookupError::NoContainer`] if it does not run; when the runtime fails.
pub async fn running_container(
    runtime: &dyn ContainerRuntime,
    pod_uid: &str,
    container: &str,
) -> Result<ContainerInfo, LookupError> {
    let found = newest_container(runtime, pod_uid, container).await?;
    found
        .filter(|c| c.state == ContainerState::Running)
        .ok_or_else(|| LookupError::NoContainer(container.to_owned()))
}

/// A pod's sandbox that is ready: what port-forward connects to.
///
/// # Errors
/// [`LookupError::NoSandbox`]; when the runtime fails.
pub async fn ready_sandbox(runtime: &dyn ContainerRuntime, pod: &Pod) -> Result<PodSandboxInfo, LookupError> {
    let filter = PodSandboxFilter { labels: of_pod(model::uid(pod)), ..PodSandboxFilter::default() };
    let all = runtime.list_pod_sandboxes(filter).await?;
    let ready = all.into_iter().filter(|s| s.state == PodSandboxState::Ready);
    ready
        .max_by_key(|s| s.created_at_nanos)
        .ok_or_else(|| LookupError::NoSandbox(format!("{}_{}", model::name(pod), model::namespace(pod))))
}
