//! The runtime of controllers: a client, feeds of objects, shared informers over projections, plans and their applier, a deduplicating
//! rate-limited work queue, and an event recorder.
//!
//! Invariants:
//! - `reconcile` is pure: it sees a [`View`] (snapshots), a key and the time, and returns a [`Plan`].
//! - No event payload reaches `reconcile`; only keys are queued, and a key is processed by one worker at a time.
//! - The applier waits until the informers show its writes before the same key is reconciled again.
//! - Queues, retries, batches and waits are bounded.

pub mod batch;
pub mod client;
pub mod controller;
mod declared_features;
pub mod events;
pub mod feed;
pub mod informer;
pub mod interception;
pub mod intern;
pub mod leader;
pub mod local_path;
pub mod meta;
pub mod metrics;
pub mod objects;
pub mod plan;
pub mod queue;
pub mod signal;
#[cfg(test)]
mod testing;
pub mod time;
pub mod view;
pub mod volume_binding;
pub mod watch;

pub use batch::{BatchTransport, Batcher};
pub use client::{Client, Error, Target};
pub use controller::{Controller, Cx, Failure, Reconciler, Shared, run};
pub use declared_features::FeatureRequests;
pub use events::{EventRecord, EventType, Recorder};
pub use feed::{ClientFeed, Collection, ObjectFeed, Selection};
pub use informer::{Change, Informer, Informers, Observed, Resync, Selected};
pub use interception::{Call, Interception};
pub use leader::{Election, LeaseMetrics, LeaseTiming};
pub use meta::{Key, Meta, OwnerRef};
pub use metrics::{Buckets, ControllerMetrics, Metric, Moment, Sample};
pub use plan::{PatchKind, Plan, Step, Write};
pub use time::VirtualClock;
pub use view::{ObjectSnapshot, Projection, View};
