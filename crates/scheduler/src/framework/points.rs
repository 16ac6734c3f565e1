//! The extension points of the scheduling framework, by upstream's names and in the order in which they run.
//!
//! A plugin is a type that implements [`Plugin`] and the traits of its extension points; [`Points`] says which. What another
//! framework expresses by the status codes Skip and Wait is in the types here: [`PreFiltered::Skip`], [`PreScored::Skip`],
//! [`Permission::Wait`], [`Binding::Skip`].
//!
//! Source: Kubernetes, "Scheduling Framework".

use super::{CycleState, EventInterest, Listers, NodeStatuses, Nominator, Outcome, Profile, Reads, Status};
use crate::{
    metrics::DeviceMetrics,
    plugins::Candidate,
    pod_info::PodInfo,
    snapshot::{NodeInfo, Snapshot},
};
use futures_util::future::BoxFuture;
use kaji_meta::{random::Random, time::Clock};
use kaji_runtime::{Batcher, Client, EventRecord, Recorder, Write};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// What an attempt to schedule a pod reads.
#[derive(Clone, Copy)]
pub struct Cycle<'a> {
    /// The pod.
    pub pod: &'a Arc<PodInfo>,
    /// The nodes.
    pub snapshot: &'a Snapshot,
    /// Other objects.
    pub listers: &'a Listers,
    /// Pods that wait for room on their nodes.
    pub nominator: &'a Nominator,
    /// Breaks ties.
    pub random: &'a dyn Random,
    /// The time.
    pub now: jiff::Timestamp,
}

/// Any plugin.
pub trait Plugin: Send + Sync {
    /// Upstream's name.
    fn name(&self) -> &'static str;

    /// The changes that can make a pod schedulable which this plugin has rejected.
    fn events(&self) -> Vec<EventInterest> {
        vec![]
    }

    /// Whether its filter, and its scores before they are normalized, depend on nothing but the node and what equal pods have
    /// in common, not on other nodes and objects or on the decision's state: then they hold until the node changes.
    fn looks_at_node_alone(&self) -> bool {
        false
    }

    /// The resources that it reads, beside pods and nodes.
    fn reads(&self, _reads: &mut Reads<'_>) {}
}

/// Decides whether a pod enters the queue at all.
pub trait PreEnqueue: Send + Sync {
    /// A rejection keeps the pod out until an event of the plugin.
    fn pre_enqueue(&self, pod: &PodInfo, listers: &Listers) -> Outcome;
}

/// Orders the queue.
pub trait QueueSort: Send + Sync {
    /// Pods with a smaller rank are scheduled first, equal ones as they came.
    fn rank(&self, pod: &PodInfo) -> i64;
}

/// Names of nodes.
pub type NodeNames = BTreeSet<String>;

/// What a pre-filter says.
#[derive(Debug, PartialEq)]
pub enum PreFiltered {
    /// Every node is to be filtered.
    AllNodes,
    /// Only these nodes are worth filtering.
    Nodes(NodeNames),
    /// The plugin has nothing to filter for this pod.
    Skip,
}

/// Prepares filtering, and rejects pods that fit no node.
pub trait PreFilter: Send + Sync {
    /// Once a pod.
    fn pre_filter(&self, cycle: &Cycle<'_>, state: &mut CycleState) -> Outcome<PreFiltered>;

    /// The state is to become as if `added` was on `node`, which holds it already.
    fn add_pod(&self, _cycle: &Cycle<'_>, _state: &mut CycleState, _added: &PodInfo, _node: &NodeInfo) {}

    /// The state is to become as if `removed` was not on `node`, which holds it no longer.
    fn remove_pod(&self, _cycle: &Cycle<'_>, _state: &mut CycleState, _removed: &PodInfo, _node: &NodeInfo) {}
}

/// Rejects nodes.
pub trait Filter: Send + Sync {
    /// Once a node. The node may be a copy that other pods were added to or removed from.
    fn filter(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Outcome;
}

/// What becomes of a pod's nominated node.
#[derive(Clone, Debug, PartialEq)]
pub enum Nomination {
    /// It stays.
    Keep,
    /// It is removed.
    Clear,
    /// Room is made on this node.
    Node(String),
}

/// What a post-filter decided.
#[derive(Debug)]
pub struct PostFiltered {
    /// The pod's nominated node.
    pub nomination: Nomination,
    /// Pods that are to be deleted.
    pub victims: Vec<Arc<PodInfo>>,
    /// All nodes that room could be made on, where extenders have a say in it.
    pub candidates: Vec<Candidate>,
    /// What is to be written, in order, before the pod is tried again.
    pub writes: Vec<Write>,
    /// Why it could not help; its message follows that of the filters.
    pub status: Outcome,
}

/// Makes room for a pod that fits no node.
pub trait PostFilter: Send + Sync {
    /// Once a pod that was rejected on every node; `state` is as pre-filters left it.
    fn post_filter(
        &self,
        profile: &Profile,
        cycle: &Cycle<'_>,
        state: &CycleState,
        statuses: &NodeStatuses,
    ) -> PostFiltered;
}

/// What a pre-score says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreScored {
    /// The plugin scores.
    Scored,
    /// It has nothing to score for this pod.
    Skip,
}

/// Prepares scoring.
pub trait PreScore: Send + Sync {
    /// Once a pod, with the nodes that passed the filters.
    fn pre_score(
        &self,
        cycle: &Cycle<'_>,
        state: &mut CycleState,
        nodes: &[Arc<NodeInfo>],
    ) -> Outcome<PreScored>;
}

/// The best score of a node by one plugin.
pub const MAX_SCORE: i64 = 100;

/// Scores nodes.
pub trait Score: Send + Sync {
    /// Once a node.
    fn score(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> i64;

    /// `NormalizeScore`: brings the scores of all nodes between 0 and [`MAX_SCORE`].
    fn normalize(
        &self,
        _cycle: &Cycle<'_>,
        _state: &CycleState,
        _nodes: &[Arc<NodeInfo>],
        _scores: &mut [i64],
    ) {
    }
}

/// Reserves what a pod will use of a node.
pub trait Reserve: Send + Sync {
    /// Once the node is chosen. After a failure of any plugin all of them unreserve.
    fn reserve(&self, cycle: &Cycle<'_>, state: &mut CycleState, node: &str) -> Outcome;

    /// Undoes a reservation; may be called without one.
    fn unreserve(&self, pod: &PodInfo, state: &mut CycleState, node: &str);
}

/// What a permit plugin says.
#[derive(Debug, PartialEq)]
pub enum Permission {
    /// The pod may be bound.
    Allow,
    /// It waits until [`Permit::permitted`] resolves, so long at most.
    Wait(Duration),
}

/// A plugin that a pod waits for before it is bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PermitWait {
    /// Its name.
    pub plugin: &'static str,
    /// How long at most.
    pub longest: Duration,
}

/// Holds a pod back before it is bound.
pub trait Permit: Send + Sync {
    /// Once the node is reserved.
    fn permit(&self, cycle: &Cycle<'_>, state: &mut CycleState, node: &str) -> Outcome<Permission>;

    /// Resolves when a waiting pod may be bound, or is rejected.
    fn permitted<'a>(&'a self, pod: &'a Arc<PodInfo>, node: &'a str) -> BoxFuture<'a, Outcome>;
}

/// What binding works with: it runs beside later decisions.
pub struct BindContext {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// The chosen node.
    pub node: String,
    /// Other objects.
    pub listers: Listers,
    /// The API, as the scheduler.
    pub client: Client,
    /// Creates bindings, those of several pods together.
    pub binder: Batcher,
    /// Events.
    pub recorder: Recorder,
    /// Events that say where pods were placed: written beside, none is dropped.
    pub placed: mpsc::Sender<EventRecord>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Metrics of devices.
    pub metrics: DeviceMetrics,
    /// The name of the profile.
    pub profile: Arc<str>,
}

/// Does what has to be done before a pod is bound.
pub trait PreBind: Send + Sync {
    /// Whether there is nothing to be done (upstream's `PreBindPreFlight`).
    fn skips(&self, _pod: &PodInfo, _state: &CycleState, _node: &str) -> bool {
        false
    }

    /// Returns when it is done.
    fn pre_bind<'a>(&'a self, context: &'a BindContext, state: &'a mut CycleState) -> BoxFuture<'a, Outcome>;

    /// Takes back what was written for a pod that was not bound.
    fn undo<'a>(&'a self, _context: &'a BindContext, _state: &'a mut CycleState) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// What a bind plugin says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The pod is bound.
    Bound,
    /// Another plugin is to bind it.
    Skip,
}

/// Binds a pod to its node.
pub trait Bind: Send + Sync {
    /// The first plugin that does not skip has bound the pod.
    fn bind<'a>(&'a self, context: &'a BindContext, state: &'a CycleState)
    -> BoxFuture<'a, Outcome<Binding>>;
}

/// Is called once a pod is bound.
pub trait PostBind: Send + Sync {
    /// After the API server has accepted the binding.
    fn post_bind(&self, pod: &PodInfo, state: &CycleState, node: &str);
}

macro_rules! points {
    ($($(#[$doc:meta])* $field:ident: $point:ident,)*) => {
        /// The extension points of one plugin.
        #[derive(Clone)]
        pub struct Points {
            /// The plugin.
            pub plugin: Arc<dyn Plugin>,
            $($(#[$doc])* pub $field: Option<Arc<dyn $point>>,)*
        }

        impl Points {
            /// None yet.
            pub fn of(plugin: &Arc<impl Plugin + 'static>) -> Self {
                Points { plugin: plugin.clone(), $($field: None,)* }
            }

            $($(#[$doc])*
            pub fn $field(mut self, plugin: &Arc<impl $point + 'static>) -> Self {
                self.$field = Some(plugin.clone());
                self
            })*

            /// Upstream's names of the points that it extends.
            pub fn names(&self) -> Vec<&'static str> {
                let mut names = vec![];
                $(if self.$field.is_some() {
                    names.push(stringify!($point));
                })*
                names
            }

            /// Removes a point by upstream's name.
            pub fn without(mut self, point: &str) -> Self {
                $(if point == stringify!($point) {
                    self.$field = None;
                })*
                self
            }

            /// Whether it extends nothing.
            pub fn is_empty(&self) -> bool {
                true $(&& self.$field.is_none())*
            }
        }
    };
}

points! {
    /// Decides whether pods enter the queue.
    pre_enqueue: PreEnqueue,
    /// Orders the queue.
    queue_sort: QueueSort,
    /// Prepares filtering.
    pre_filter: PreFilter,
    /// Rejects nodes.
    filter: Filter,
    /// Makes room.
    post_filter: PostFilter,
    /// Prepares scoring.
    pre_score: PreScore,
    /// Scores nodes.
    score: Score,
    /// Reserves.
    reserve: Reserve,
    /// Holds back.
    permit: Permit,
    /// Prepares binding.
    pre_bind: PreBind,
    /// Binds.
    bind: Bind,
    /// Observes bindings.
    post_bind: PostBind,
}

/// `DefaultNormalizeScore`: scales scores so that the highest becomes [`MAX_SCORE`]; `reverse` makes high scores low.
pub fn scale_scores(scores: &mut [i64], reverse: bool) {
    let highest = scores.iter().copied().max().unwrap_or_default();
    for score in scores {
        *score = match highest {
            0 => 0,
            highest => *score * MAX_SCORE / highest,
        };
        if reverse {
            *score = MAX_SCORE - *score;
        }
    }
}

impl Status {
    /// What a plugin returns when its own state is missing: a mistake of the profile.
    pub fn missing_state() -> Self {
        Status::error("the plugin's state is missing: its pre-filter or pre-score did not run")
    }
}
