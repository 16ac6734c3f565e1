//! Calls that failed.

use tonic::{Code, Status};

/// A call that failed, in this process or at its peer. Reads as Go's `status.Error` does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", code_name(*.code))]
pub struct CallError {
    /// The status code.
    pub code: Code,
    /// The peer's text, or this side's about the connection.
    pub message: String,
}

impl CallError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> CallError {
        CallError { code, message: message.into() }
    }

    /// The name of its code, also in metrics.
    #[must_use]
    pub fn code_name(&self) -> &'static str {
        code_name(self.code)
    }

    /// Whether the peer has no such method.
    #[must_use]
    pub fn unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> CallError {
        CallError::new(status.code(), status.message())
    }
}

/// As Go names them.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
