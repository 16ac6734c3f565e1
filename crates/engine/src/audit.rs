//! What the engine tells the audit log about a request.
//!
//! Invariant: an audit context observes; it changes nothing and refuses nothing. A request without one costs nothing extra.

use serde_json::Value;
use std::fmt;

/// The audit event of one request, while it is served. Every method may be called from any task, also after the answer was given.
pub trait AuditContext: fmt::Debug + Send + Sync {
    /// The object in the body, in the request's version and defaulted.
    fn object(&self, object: &Value);
    /// The patch in the body.
    fn patch(&self, patch: &Value);
    /// An annotation of the audit event. The first value of a key stays.
    fn annotate(&self, key: &str, value: &str);
    /// The handler of the request has panicked.
    fn panicked(&self);
}
