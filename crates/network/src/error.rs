//! Why an operation of the pod network failed.

use kaji_containers::RuntimeError;
use kaji_netfilter::NetlinkError;
use std::io;

/// Why an operation of the pod network failed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The kernel's tables.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A file, a namespace.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// Text that is no CIDR, no quantity.
    #[error("{0}")]
    Invalid(String),
    /// Every address of a range is taken.
    #[error("no addresses available in range {0}")]
    Exhausted(String),
    /// The node has no pod CIDR yet.
    #[error("the node has no pod CIDR")]
    NoPodCidr,
    /// A sandbox's network is not as it was set up.
    #[error("{0}")]
    NotAsSetUp(String),
    /// A host port is taken by another sandbox.
    #[error("host port {0} is taken by another pod")]
    HostPortTaken(String),
    /// There is no CNI configuration; containerd's text, which nodes show as a condition.
    #[error("cni plugin not initialized")]
    NotConfigured,
    /// What a CNI plug-in says.
    #[error("{0}")]
    Plugin(String),
    /// The thread has ended.
    #[error("the pod network has been shut down")]
    Stopped,
}

impl NetworkError {
    /// With the path or the name that an error of the system is about.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> NetworkError {
        let what = what.into();
        move |error| NetworkError::Io(what, error)
    }
}

impl From<NetworkError> for RuntimeError {
    fn from(error: NetworkError) -> RuntimeError {
        let text = format!("pod network: {error}");
        match error {
            NetworkError::Invalid(_) => RuntimeError::InvalidArgument(text),
            NetworkError::NoPodCidr
            | NetworkError::NotConfigured
            | NetworkError::NotAsSetUp(_)
            | NetworkError::HostPortTaken(_) => RuntimeError::FailedPrecondition(text),
            NetworkError::Stopped => RuntimeError::Unavailable(text),
            _ => RuntimeError::Internal(text),
        }
    }
}
