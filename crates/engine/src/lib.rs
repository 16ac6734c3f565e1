//! The object engine: one pipeline per verb over a revisioned store and a watch cache; it names no kind.
//!
//! Invariants:
//! - Reads never touch the store unless history older than the cache's window is requested.
//! - An object is encoded once, when its event arrives; GET, LIST and WATCH share those bytes.
//! - A list and its revision are read atomically; a watch that begins there misses nothing and repeats nothing.
//! - Every resource, built-in or custom, takes the same path.

pub mod admission;
pub mod api;
mod audit;
pub mod cache;
mod continue_token;
mod deadline;
pub mod decode;
mod dispatch;
pub mod encode;
mod engine;
mod foreign;
mod leases;
mod list_options;
pub mod pipeline;
mod registry;
mod request;
mod response;
pub mod storage;
#[cfg(test)]
mod tests;
mod verbs;

pub use admission::{
    Admission, Annotations, Attributes, ExtraUpdate, Operation, Phases, Reinvocation, TransactionExtras,
};
pub use audit::AuditContext;
pub use deadline::Deadline;
pub use engine::{Engine, EngineError, EngineOptions};
pub use registry::{Registry, Resource};
pub use request::{
    Accept, ApiRequest, CreateAuthorizer, Encoding, Form, MediaTypeOptions, MemoryReservation,
};
pub use response::{ApiResponse, Body, ChunkIter};
