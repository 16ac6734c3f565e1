//! The scheduler: gives every pending pod a node.
//!
//! `decide(cluster, pod)` is pure; the loop around it keeps the cluster's picture level with the informers, assumes its
//! own decisions at once, and binds in the background.
//!
//! Invariants: a node's requested resources are the sum over its bound and assumed pods, each counted once; a pod that
//! fits nowhere waits until something changes that could help, or its backoff ends.

mod affinity;
mod cluster;
mod decide;
mod queue;
mod resources;
mod run;

pub use cluster::{Cluster, NodeInfo, PodInfo};
pub use decide::{Decision, decide};
pub use resources::Resources;
pub use run::run;
