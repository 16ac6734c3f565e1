//! The scheduler: assigns a node to every pending pod, as upstream's framework does.
//!
//! - `framework`: extension points, profiles, events.
//! - `plugins`: what nodes are filtered and scored by, one file each.
//! - `snapshot`, `cache`, `pod_info` with `affinity`, `spreading`, `node_selector`, `matcher`, `resources`: what decisions read.
//! - `devices`: devices of dynamic resource allocation, and the search for them.
//! - `schedule_one`: one decision, pure; `memory`: what decisions about equal pods have in common.
//! - `scheduling_queue`, `scheduler`, `changes`, `binding`, `preemption`, `status_writer`, `metrics`: the loop around it.
//! - `extenders`: servers of the user that have a say in decisions, and the calls to them.
//! - `configuration`: profiles, extenders and the process, of a configuration file; `strict`: what its fields may be.
//! - `verdicts`: what each node says to a pod, for explanations.
//!
//! Invariants: a node's requested resources are the sum over its bound and assumed pods, each counted once; an
//! unschedulable pod waits until a change that could make it schedulable, or until its backoff ends.

mod affinity;
mod binding;
mod cache;
mod changes;
mod configuration;
mod devices;
mod extenders;
pub mod framework;
mod matcher;
mod memory;
mod metrics;
mod node_selector;
pub mod plugins;
mod pod_info;
mod preemption;
mod resources;
mod schedule_one;
mod scheduler;
mod scheduling_queue;
mod snapshot;
mod spreading;
mod status_writer;
mod strict;
#[cfg(test)]
pub(crate) mod testing;
mod verdicts;

pub use cache::Cache;
pub use configuration::{
    ClientConnection, Configuration, ConfigurationError, LeaderElection, ProcessConfiguration,
};
pub use memory::Memory;
pub use metrics::Metrics;
pub use node_selector::{NodeSelector, NodeTerm, RequiredNodes};
pub use pod_info::{HostPort, PodInfo, PodNeeds};
pub use resources::Resources;
pub use schedule_one::{Chosen, Decision, Unschedulable, schedule_pod};
pub use scheduler::run;
pub use snapshot::{NodeInfo, Snapshot};
pub use verdicts::{READ_RESOURCES, ReadResource, Verdict, Verdicts, verdicts};
