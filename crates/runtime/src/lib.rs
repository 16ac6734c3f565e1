//! What every control loop stands on: a client, shared informers over projections, plans and the applier that carries
//! them out, a deduplicating rate-limited queue, and an event recorder.
//!
//! Invariants:
//! - `reconcile` is pure: it sees a [`View`] (snapshots), a key and the time, and returns a [`Plan`].
//! - No event payload reaches `reconcile`; only keys are queued, and a key is worked on by one worker at a time.
//! - The runner waits to see its own writes in the informers before it works on the same key again.
//! - Queues, retries, batches and waits are bounded.

pub mod client;
pub mod controller;
pub mod events;
pub mod informer;
pub mod meta;
pub mod objects;
pub mod plan;
pub mod queue;
pub mod time;
pub mod view;
pub mod watch;

pub use client::{Client, Error, Target};
pub use controller::{Controller, Cx, Failure, Reconciler, Shared, run};
pub use events::{EventRecord, EventType, Recorder};
pub use informer::{Change, Informer, Informers, Observed, Selected};
pub use meta::{Key, Meta, OwnerRef};
pub use plan::{PatchKind, Plan, Step, Write};
pub use time::VirtualClock;
pub use view::{Projection, Snapshot, View};
