//! Errors of etcd as errors of a store. etcd tells them apart by their texts.
//!
//! Source: `api/v3rpc/rpctypes/error.go` of etcd.

use kaji_grpc::{CallError, Code};
use kaji_store::StoreError;

/// How etcd refuses a write before it is proposed to the other members: the member has too much to apply, or knows no leader.
const UNPROPOSED: [&str; 3] =
    ["etcdserver: too many requests", "etcdserver: no leader", "raft proposal dropped"];

/// What etcd has to say about a request, as far as it makes a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// History that was needed is gone.
    Compacted,
    /// The revision has not happened yet.
    FutureRevision,
    /// The request is larger than etcd takes.
    RequestTooLarge,
    /// The transaction has more compares or operations than etcd takes.
    TooManyOperations,
    /// The answer is larger than this client takes.
    AnswerTooLarge,
    /// As it is.
    Store(StoreError),
}

impl Failure {
    /// Whether another endpoint, or the same one later, may answer.
    pub fn is_transient(error: &CallError) -> bool {
        matches!(error.code, Code::Unavailable | Code::DeadlineExceeded)
            || UNPROPOSED.iter().any(|text| error.message.ends_with(text))
    }

    /// Whether a request that failed so has certainly changed nothing, and will not.
    pub fn is_refused(error: &CallError) -> bool {
        let answered = !matches!(Failure::from(error.clone()), Failure::Store(StoreError::Unavailable(_)));
        let denied =
            matches!(error.code, Code::PermissionDenied | Code::Unauthenticated | Code::Unimplemented);
        error.unsent || answered || denied || UNPROPOSED.iter().any(|text| error.message.ends_with(text))
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        let text = error.message.strip_prefix("etcdserver: ").unwrap_or(&error.message);
        match (error.code, text) {
            (Code::OutOfRange, "mvcc: required revision has been compacted") => Failure::Compacted,
            (Code::OutOfRange, "mvcc: required revision is a future revision") => Failure::FutureRevision,
            (Code::InvalidArgument, "request is too large") => Failure::RequestTooLarge,
            (Code::InvalidArgument, "too many operations in txn request") => Failure::TooManyOperations,
            (Code::ResourceExhausted, "mvcc: database space exceeded") => {
                Failure::Store(StoreError::NoSpace(error.message))
            }
            (Code::ResourceExhausted, _) if text.contains("larger than max") => Failure::RequestTooLarge,
            (Code::OutOfRange | Code::ResourceExhausted, _) if text.contains("message length too large") => {
                Failure::AnswerTooLarge
            }
            (Code::NotFound, "requested lease not found") => Failure::Store(StoreError::LeaseNotFound),
            (Code::DataLoss, _) => Failure::Store(StoreError::Corrupt(error.message)),
            (Code::InvalidArgument, _) => Failure::Store(StoreError::Invalid(error.message)),
            _ => Failure::Store(StoreError::Unavailable(format!("etcd: {error}"))),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure::Store(error)
    }
}

/// What is wrong with an answer that etcd never gives.
pub(crate) fn malformed(what: &str) -> StoreError {
    StoreError::Unavailable(format!("etcd sent an answer without {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_say_whether_a_write_may_have_happened() {
        let error = |code, message: &str| CallError { code, message: message.into(), unsent: false };
        let seen = |error: CallError| (Failure::is_transient(&error), Failure::is_refused(&error));
        assert_eq!(seen(CallError::unconnected("connection refused")), (true, true));
        assert_eq!(seen(error(Code::Unknown, "raft proposal dropped")), (true, true));
        assert_eq!(seen(error(Code::ResourceExhausted, "etcdserver: too many requests")), (true, true));
        assert_eq!(seen(error(Code::Unavailable, "etcdserver: no leader")), (true, true));
        assert_eq!(seen(error(Code::InvalidArgument, "etcdserver: request is too large")), (false, true));
        assert_eq!(seen(error(Code::NotFound, "etcdserver: requested lease not found")), (false, true));
        assert_eq!(seen(error(Code::PermissionDenied, "etcdserver: permission denied")), (false, true));
        for (code, text) in [
            (Code::Unavailable, "error reading from server: EOF"),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::DeadlineExceeded, "context deadline exceeded"),
        ] {
            assert_eq!(seen(error(code, text)), (true, false), "{text}");
        }
    }
}
