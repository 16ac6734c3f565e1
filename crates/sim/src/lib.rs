//! A whole cluster in a seeded simulation: one thread, a virtual clock, faults, and laws that are checked on every write.
//!
//! A run is made of a seed: the seed draws the workload ([`scenario`]), the faults between control loops and server
//! ([`faults`]), and all names and jitter of the cluster. Time is tokio's paused clock, which advances when nothing is left to
//! do, so that an hour takes seconds. Every write is checked against the [`laws`] as the store commits it, and goes into the
//! [`trace`].
//!
//! Invariants:
//! - A seed draws the workload, the faults and all names. [`run`] touches no disk, socket or clock of the machine, and two runs of a
//!   seed leave the same trace.
//! - Faults end before the run does; what is checked then is what a cluster must reach by itself.

pub mod clock;
pub mod faults;
pub mod laws;
pub mod manifests;
pub mod numbers;
pub mod objects;
pub mod panics;
pub mod run;
pub mod scenario;
pub mod shrink;
pub mod store;
pub mod trace;

pub use clock::SimulatedClock;
pub use numbers::Numbers;
pub use run::{Outcome, Parts, Scenario, Settings, SimulatedCluster, Subject, Violation, run};
