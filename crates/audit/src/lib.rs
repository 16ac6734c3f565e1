//! Audit: which requests are recorded, at which level, and what is written about them; pure. No files, no sockets, no
//! tasks: the server brings those.
//!
//! Invariants:
//! - A policy that is not valid is refused with upstream's words; what a strict reader would mind is said, not ignored.
//! - The first rule that matches decides; what no rule matches is not recorded.
//! - What a level does not allow (bodies below Request, answers below RequestResponse) never gets into an event.
//! - An event is one line of JSON, whatever a client sends.

mod backoff;
mod batch;
mod event;
mod level;
mod metrics;
mod options;
mod policy;
mod redact;
mod truncate;

pub use backoff::Backoff;
pub use batch::{Batcher, Throttle};
pub use event::{Event, Head, ObjectRef, ResponseStatus, events, source_ips, user_agent};
pub use level::{Level, Stage, Stages};
pub use metrics::Metrics;
pub use options::{BatchOptions, Format, LogOptions, Mode, Options, TruncateOptions, WebhookOptions};
pub use policy::{Policy, PolicyError, Verdict};
pub use redact::{compact, without_managed_fields};
pub use truncate::{Fit, fit};
