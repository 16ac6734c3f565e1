//! API Priority and Fairness (KEP-1040): which requests execute, which are queued, which are rejected.
//!
//! Pure: no I/O, no tasks, no clock. Time is passed as nanoseconds since an origin that the caller chooses. A queued request
//! is a token of the caller, which is returned when the request has got its seats. The server's filter
//! (`crates/server/src/flowcontrol.rs`) is the thin asynchronous part.
//!
//! Invariants:
//! - A seat that is taken is released exactly once, however its request ends.
//! - Every queue is bounded, and so is the number of them.
//! - A request that finds a seat free takes one short lock, that of its priority level.

pub mod allocation;
pub mod bootstrap;
pub mod config;
pub mod controller;
pub mod demand;
mod detail;
mod dump;
mod entry;
pub mod estimate;
mod max_in_flight;
mod metrics;
pub mod queue_set;
pub mod retry;
pub mod rules;
pub mod shard;
mod utilization;
mod watch_tracker;

pub use config::{Condition, Distinguisher, FlowSchema, PriorityLevel, Queuing, SpecError};
pub use controller::{Active, Controller, Level, Route};
pub use detail::Detail;
pub use entry::Ended;
pub use estimate::Estimate;
pub use max_in_flight::{InFlightPermit, Limits, MaxInFlight};
pub use metrics::{FlowMetrics, SchemaMetrics};
pub use queue_set::{QueueSet, Reason, Request, Settings, Started};
pub use rules::{Digest, ResourceDigest};
pub use watch_tracker::{WatchGuard, WatchTracker};

/// Nanoseconds since the caller's origin.
pub type Nanos = u64;
