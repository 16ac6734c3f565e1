//! API Priority and Fairness (KEP-1040): which requests run now, which wait, which are turned away.
//!
//! Pure: no I/O, no tasks, no clock. Time comes in as nanoseconds since an origin of the caller's, and whoever waits is a
//! token of the caller's that comes back when its turn has come. The server's gate is the thin asynchronous part.
//!
//! Invariants:
//! - A seat that is taken comes back exactly once, however its request ends.
//! - Every queue is bounded, and so is the number of them.
//! - A request that finds a seat free takes one short lock of its own priority level, and no other.

pub mod allocation;
pub mod bootstrap;
pub mod config;
pub mod controller;
pub mod demand;
mod detail;
mod dump;
mod entry;
pub mod estimate;
mod metrics;
pub mod queue_set;
pub mod retry;
pub mod rules;
pub mod shard;
mod utilization;

pub use config::{Condition, Distinguisher, FlowSchema, PriorityLevel, Queuing, SpecError};
pub use controller::{Active, Controller, Level, Route};
pub use detail::Detail;
pub use entry::Ended;
pub use estimate::Estimate;
pub use metrics::{FlowMetrics, SchemaMetrics};
pub use queue_set::{QueueSet, Reason, Request, Settings, Started};
pub use rules::{Digest, ResourceDigest};

/// Nanoseconds since the caller's origin.
pub type Nanos = u64;
