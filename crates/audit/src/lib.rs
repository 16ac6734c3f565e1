//! Audit: the policy that selects requests and levels, the events that are recorded of them, and the backends that store
//! events. The server observes the requests (`crates/server/src/audit.rs`).
//!
//! Invariants:
//! - An invalid policy is refused with upstream's message; what strict decoding would refuse is reported, not ignored.
//! - The first matching rule decides; a request that matches none is not recorded.
//! - An event holds nothing that its level excludes (request bodies below Request, response bodies below RequestResponse).
//! - An event is one line of JSON, whatever a client sends.

pub mod backend;
mod backoff;
mod batch;
mod event;
mod level;
mod metrics;
mod options;
mod policy;
mod redact;
mod truncate;

pub use backend::{AuditDependencies, AuditError, Backends, FileOptions, LogFile, Post};
pub use backoff::Backoff;
pub use batch::{Batcher, Throttle};
pub use event::{EncodedHead, Event, Head, ObjectRef, ResponseStatus, events, source_ips, user_agent};
pub use level::{Level, Stage, Stages};
pub use metrics::Metrics;
pub use options::{BatchOptions, Format, LogOptions, Mode, Options, TruncateOptions, WebhookOptions};
pub use policy::{Policy, PolicyError, Verdict};
pub use redact::{compact, without_managed_fields};
pub use truncate::{Fit, fit};
