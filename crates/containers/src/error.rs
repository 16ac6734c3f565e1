//! Errors of a container runtime. Each has a gRPC code in CRI; the kubelet decides by the variant and shows the text.

use thiserror::Error;

/// Why an operation of a runtime failed. The texts are shown in events and in pods' statuses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RuntimeError {
    /// No such sandbox, container or image.
    #[error("{0}")]
    NotFound(String),
    /// A sandbox or container of this name exists.
    #[error("{0}")]
    AlreadyExists(String),
    /// The configuration cannot be carried out.
    #[error("{0}")]
    InvalidArgument(String),
    /// A container's image is not on this node.
    #[error("{0}")]
    ImageNotPresent(String),
    /// A container's process could not be executed.
    #[error("{0}")]
    StartFailed(String),
    /// A registry could not be reached, or answered with an error that may pass.
    #[error("{0}")]
    RegistryUnavailable(String),
    /// An image's signature or digest is not what it has to be.
    #[error("{0}")]
    SignatureValidationFailed(String),
    /// The operation did not end in time.
    #[error("{0}")]
    DeadlineExceeded(String),
    /// The operation needs a state that the container or sandbox is not in.
    #[error("{0}")]
    FailedPrecondition(String),
    /// This backend cannot do it.
    #[error("{0}")]
    Unimplemented(String),
    /// The backend cannot be reached.
    #[error("{0}")]
    Unavailable(String),
    /// Everything else.
    #[error("{0}")]
    Internal(String),
}

impl RuntimeError {
    /// Whether the object of the operation does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, RuntimeError::NotFound(_))
    }
}

impl From<std::io::Error> for RuntimeError {
    fn from(error: std::io::Error) -> RuntimeError {
        RuntimeError::Internal(error.to_string())
    }
}
