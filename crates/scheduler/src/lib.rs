//! The scheduler: assigns a node to every pending pod.
//!
//! `schedule_pod(cache, pod)` is pure; the loop around it updates the cache from the informers, assumes its own decisions
//! at once, and binds in the background. What a node is filtered and scored by are [`plugins`], one file each.
//!
//! Invariants: a node's requested resources are the sum over its bound and assumed pods, each counted once; an
//! unschedulable pod waits until a change that could make it schedulable, or until its backoff ends.

mod cache;
pub mod plugins;
mod resources;
mod schedule_one;
mod scheduler;
mod scheduling_queue;

pub use cache::{Cache, NodeInfo, PodInfo};
pub use resources::Resources;
pub use schedule_one::{Decision, schedule_pod};
pub use scheduler::run;
