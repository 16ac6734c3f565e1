//! The last decisions about objects that leave no revision: why the scheduler placed a pod nowhere, what a control loop's last write
//! failed with, what a webhook's or an extension server's last call failed with.
//!
//! [`Decisions`] keeps the last one of each component about each object, bounded in bytes and age, until the component settles it.
//! The kind Decision of `kaji.dev/v1alpha1`, in the crate `refusals`, shows them, and `kaji why` reads it.
//!
//! Invariants:
//! - A decision that has been settled (the pod has a node, the write went through, the call was answered) is not kept.
//! - Of Secrets no message is kept: it may repeat what was written.
//! - While nothing is kept, settling costs one load.

pub mod latest;
mod memory;

pub use memory::{Decisions, Entry, Limits};

/// The component of verdicts on pods.
pub const SCHEDULER: &str = "kube-scheduler";
/// The component of calls of admission webhooks.
pub const WEBHOOKS: &str = "admission-webhooks";
/// The component of requests to extension servers.
pub const AGGREGATOR: &str = "kube-aggregator";

/// The object that a decision is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct About {
    /// `""` for core.
    pub group: String,
    /// Plural.
    pub resource: String,
    /// Empty for objects of the cluster.
    pub namespace: String,
    /// Empty for an object without a name yet.
    pub name: String,
}

impl About {
    /// The namespace in which a decision about it is shown. As with events, that of objects without a namespace is `default`.
    pub fn shown_in(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }
}

/// What a component decided of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The component: [`SCHEDULER`], `replicaset-controller`, ….
    pub component: String,
    /// What the component knows its work by: its last decision about a key counts.
    pub key: String,
    /// The object.
    pub about: About,
    /// `ReplicaSet web-1`: the controller that owns the object, or will.
    pub owner: String,
    /// `Unschedulable`, or the reason of the API's answer.
    pub reason: String,
    /// For humans.
    pub message: String,
    /// What the nodes said, of the scheduler.
    pub rejections: Vec<Rejection>,
}

/// The nodes that a plugin of the scheduler rejected for a reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejection {
    /// `NodeResourcesFit`
    pub plugin: String,
    /// `Insufficient cpu`
    pub reason: String,
    /// How many nodes.
    pub count: usize,
    /// The first of them by name.
    pub nodes: Vec<String>,
}
