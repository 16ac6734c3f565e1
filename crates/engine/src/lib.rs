//! The object engine: one pipeline per verb over a revisioned store and a watch cache; it names no kind.
//!
//! The modules, from the bottom up; each uses only modules above it in this list (a test checks that):
//!
//! 1. `audit`, `deadline`, `webhook_time`, `trace`: what a request carries, and its spans
//! 2. `storage`, `response`, `store_error`: stored and sent bytes, failures of the store
//! 3. `request`, `attribution`: one API request, and which revisions it has made
//! 4. `cache`: the watch cache of one resource
//! 5. `registry`: the resources that are served
//! 6. `decode`: request bodies
//! 7. `continue_token`, `list_options`, `options`: query parameters
//! 8. `leases`, `decoded`, `admission`: what the engine holds
//! 9. `engine`: the store, the registry and the caches
//! 10. `conversion`: between versions of a resource
//! 11. `encode`: answers
//! 12. `pipeline`: writes
//! 13. `verbs`: one file a verb
//! 14. `api`: the engine for hooks and plugins
//! 15. `dispatch`: from a request to its verb
//!
//! Invariants:
//! - Reads never touch the store unless history older than the cache's window is requested.
//! - An object is encoded when its event arrives; GET, LIST and WATCH share those bytes while they are kept (`cache/entry.rs`).
//! - A list and its revision are read atomically; a watch that begins there misses nothing and repeats nothing.
//! - Every resource, built-in or custom, takes the same path.

pub mod admission;
pub mod api;
mod attribution;
mod audit;
pub mod cache;
mod continue_token;
mod conversion;
mod deadline;
pub mod decode;
mod decoded;
mod dispatch;
pub mod encode;
mod engine;
mod leases;
mod list_options;
pub mod options;
mod pipeline;
mod registry;
mod request;
mod response;
pub mod storage;
mod store_error;
#[cfg(test)]
mod tests;
mod trace;
mod verbs;
mod webhook_time;

pub use admission::{
    Admission, AdmissionSteps, Annotations, Attributes, ExtraUpdate, Operation, Phases, Reinvocation,
    TransactionExtras,
};
pub use attribution::{Attribution, Attributions};
pub use audit::AuditContext;
pub use deadline::Deadline;
pub use dispatch::removed_release;
pub use encode::SEPARATE_OBJECTS;
pub use engine::{Engine, EngineError, EngineOptions};
pub use registry::{Registry, Resource};
pub use request::{
    Accept, ApiRequest, Encoding, Form, FurtherAuthorizer, MediaTypeOptions, MemoryReservation,
};
pub use response::{ApiResponse, Body, ChunkIter};
pub use webhook_time::WebhookTime;
