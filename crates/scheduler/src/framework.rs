//! The scheduling framework: extension points as traits, what plugins are given, and profiles that run them.
//!
//! - `status`: why a pod does not fit a node.
//! - `state`: what a plugin keeps from one extension point to the next, for one pod.
//! - `points`: the traits, in the order in which they run.
//! - `events`: changes of the cluster that make waiting pods worth another attempt.
//! - `listers`: other objects that plugins read.
//! - `pod_groups`: the pods of each group.
//! - `nominator`: pods that wait for room on the node that was chosen for them.
//! - `profile`: the plugins of one scheduler name, and how each extension point runs them.
//!
//! Invariant: everything before binding is pure and synchronous: it reads the cycle and the state, and calls no server.

pub mod events;
pub mod listers;
pub mod nominator;
pub mod pod_groups;
pub mod points;
pub mod profile;
pub mod state;
pub mod status;

pub use events::{Actions, Change, Event, EventInterest, EventName, Hint, Resource};
pub use listers::{Listers, Reads};
pub use nominator::Nominator;
pub use pod_groups::PodGroups;
pub use points::{
    Bind, BindContext, Binding, Cycle, Filter, NodeNames, Nomination, Permission, Permit, PermitWait, Plugin,
    Points, PostBind, PostFilter, PostFiltered, PreBind, PreEnqueue, PreFilter, PreFiltered, PreScore,
    PreScored, QueueSort, Reserve, Score,
};
pub use profile::{Profile, ProfileConfig};
pub use state::CycleState;
pub use status::{Code, NodeStatuses, Outcome, Status};
