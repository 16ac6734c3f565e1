//! Fair use of the processors, below the seats of flow control. Three parts, from a request's point of view:
//!
//! 1. [`FairCpuLimiter`](limiter::FairCpuLimiter): a request takes a [`CpuPermit`] before its handler runs. Flows take turns
//!    at the permits, so a request does not wait behind hundreds of another flow's. The permit is held while the handler
//!    computes and returned while it waits.
//! 2. [`Lanes`]: a flow that fills the permits and a queue of the same length is busy for a while. Busy flows have the
//!    threads and permits of a separate lane.
//! 3. [`MigratingConnection`]: a connection moves to the lane of its last request, with its socket and its TLS session, so
//!    that a flood is read, decrypted and encrypted on the busy lane's threads.
//!
//! What this promises:
//! - A request of a flow that is not busy waits for no more handlers than there are permits and for its turn among the flows
//!   that wait, however many requests other flows have in flight.
//! - No request is refused or loses rights here: flow control alone refuses, and requests of one flow keep their order.
//! - A request that is exempt from flow control takes no permit.
//! - Memory is bounded by the seats: every waiting request holds one.
//!
//! What it does not promise: a handler that computes for long is not interrupted, and after its first wait it continues
//! without a permit.

mod lanes;
mod limiter;
mod migration;

pub use lanes::{AtomicLane, Lane, Lanes};
pub use limiter::{CpuPermit, with_permit};
pub use migration::{MigratingConnection, MigratingSocket};
