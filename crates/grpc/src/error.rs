//! Calls that failed.

use std::{error::Error, sync::Arc};
use tonic::{Code, Status};

/// A call that failed, in this process or at its peer. Reads as Go's `status.Error` does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", code_name(*.code))]
pub struct CallError {
    /// The status code.
    pub code: Code,
    /// The peer's text, or this side's about the connection.
    pub message: String,
    /// Whether the peer has certainly not begun with it: the request never left, or the peer refused its stream.
    pub unsent: bool,
}

impl CallError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> CallError {
        CallError { code, message: message.into(), unsent: false }
    }

    /// There was no connection to make a call on.
    #[must_use]
    pub fn unconnected(message: impl Into<String>) -> CallError {
        CallError { unsent: true, ..CallError::new(Code::Unavailable, message) }
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
        let unsent = status.source().is_some_and(<dyn Error>::is::<Unsent>);
        CallError { unsent, ..CallError::new(status.code(), status.message()) }
    }
}

/// The source of a [`Status`] about a request that its peer has not begun with.
#[derive(Debug, thiserror::Error)]
#[error("the request was not sent")]
struct Unsent;

/// The status of a call on a connection that failed.
pub(crate) fn lost(error: &hyper::Error) -> Status {
    let mut status = Status::unavailable(format!("error reading from server: {error}"));
    if is_unsent(error) {
        status.set_source(Arc::new(Unsent));
    }
    status
}

/// Whether a request that failed so was never taken up: it was still in this process, the peer refused its stream, or said with the
/// end of the connection (GOAWAY) that it takes no stream so late.
fn is_unsent(error: &hyper::Error) -> bool {
    if error.is_canceled() || error.is_closed() {
        return true;
    }
    let h2 = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    h2.is_some_and(|error| {
        error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
    })
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
