//! Changes of the cluster, and which of them make a pod worth another attempt.
//!
//! Invariant: a change that concerns no plugin that rejected a pod leaves the pod waiting; a heartbeat of a node is no event.

use crate::pod_info::PodInfo;
use kaji_runtime::objects::{Node, Pod};
use std::{any::Any, fmt, ops::BitOr, sync::Arc};

/// Upstream's names of resources that plugins read, by plural.
const NAMES: [(&str, &str); 12] = [
    ("namespaces", "Namespace"),
    ("persistentvolumes", "PersistentVolume"),
    ("persistentvolumeclaims", "PersistentVolumeClaim"),
    ("csinodes", "storage.k8s.io/CSINode"),
    ("csidrivers", "storage.k8s.io/CSIDriver"),
    ("csistoragecapacities", "storage.k8s.io/CSIStorageCapacity"),
    ("storageclasses", "storage.k8s.io/StorageClass"),
    ("volumeattachments", "storage.k8s.io/VolumeAttachment"),
    ("resourceclaims", "resource.k8s.io/ResourceClaim"),
    ("resourceslices", "resource.k8s.io/ResourceSlice"),
    ("deviceclasses", "resource.k8s.io/DeviceClass"),
    ("podgroups", "scheduling.k8s.io/PodGroup"),
];

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// A pod that is bound.
    AssignedPod,
    /// A pod that waits for a node.
    UnscheduledPod,
    /// A node.
    Node,
    /// An object of another resource, by its plural.
    Other(&'static str),
}

/// How it has changed: a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions(u32);

impl Actions {
    /// It came.
    pub const ADD: Actions = Actions(1);
    /// It is gone.
    pub const DELETE: Actions = Actions(1 << 1);
    /// What a node offers.
    pub const NODE_ALLOCATABLE: Actions = Actions(1 << 2);
    /// A node's labels.
    pub const NODE_LABELS: Actions = Actions(1 << 3);
    /// A node's taints, or that it is cordoned.
    pub const NODE_TAINTS: Actions = Actions(1 << 4);
    /// A node's annotations.
    pub const NODE_ANNOTATIONS: Actions = Actions(1 << 5);
    /// A pod's labels.
    pub const POD_LABELS: Actions = Actions(1 << 6);
    /// A pod requests less.
    pub const POD_SCALED_DOWN: Actions = Actions(1 << 7);
    /// A pod has lost its gates.
    pub const POD_GATES: Actions = Actions(1 << 8);
    /// A pod's tolerations.
    pub const POD_TOLERATIONS: Actions = Actions(1 << 9);
    /// Anything of an object of another resource.
    pub const UPDATE: Actions = Actions(1 << 10);
    /// The claims of devices that were made for a pod.
    pub const POD_CLAIMS: Actions = Actions(1 << 11);
    /// The features that a node declares.
    pub const NODE_DECLARED_FEATURES: Actions = Actions(1 << 12);

    /// Upstream's name of the first of them.
    fn name(self) -> &'static str {
        const NAMES: [(Actions, &str); 13] = [
            (Actions::ADD, "Add"),
            (Actions::DELETE, "Delete"),
            (Actions::NODE_ALLOCATABLE, "UpdateNodeAllocatable"),
            (Actions::NODE_LABELS, "UpdateNodeLabel"),
            (Actions::NODE_TAINTS, "UpdateNodeTaint"),
            (Actions::NODE_ANNOTATIONS, "UpdateNodeAnnotation"),
            (Actions::NODE_DECLARED_FEATURES, "UpdateNodeDeclaredFeature"),
            (Actions::POD_LABELS, "UpdatePodLabel"),
            (Actions::POD_SCALED_DOWN, "UpdatePodScaleDown"),
            (Actions::POD_GATES, "UpdatePodSchedulingGatesEliminated"),
            (Actions::POD_TOLERATIONS, "UpdatePodToleration"),
            (Actions::POD_CLAIMS, "UpdatePodGeneratedResourceClaim"),
            (Actions::UPDATE, "Update"),
        ];
        NAMES.into_iter().find(|(actions, _)| actions.intersects(self)).map_or("", |(_, name)| name)
    }

    /// Whether the two have an action in common.
    pub fn intersects(self, other: Actions) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether nothing has changed that could matter.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn when(self, condition: bool) -> Actions {
        if condition { self } else { Actions::default() }
    }
}

impl BitOr for Actions {
    type Output = Actions;

    fn bitor(self, other: Actions) -> Actions {
        Actions(self.0 | other.0)
    }
}

/// The object before and after.
#[derive(Clone)]
pub enum Change {
    /// A pod.
    Pod(Option<Arc<Pod>>, Option<Arc<Pod>>),
    /// A node.
    Node(Option<Arc<Node>>, Option<Arc<Node>>),
    /// Of another resource: the type that the plugin reads.
    Other(Option<Arc<dyn Any + Send + Sync>>, Option<Arc<dyn Any + Send + Sync>>),
}

/// Upstream's name of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventName {
    /// What has changed.
    pub resource: &'static str,
    /// How.
    pub action: &'static str,
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.resource, self.action)
    }
}

/// A change.
#[derive(Clone)]
pub struct Event {
    /// What.
    pub resource: Resource,
    /// How.
    pub actions: Actions,
    /// The object.
    pub change: Change,
}

impl Event {
    /// What metrics call it: `NodeAdd`, `AssignedPodDelete`.
    pub fn label(&self) -> String {
        self.name().to_string()
    }

    /// The same, without memory of its own.
    pub fn name(&self) -> EventName {
        let resource = match self.resource {
            Resource::AssignedPod => "AssignedPod",
            // The waiting pod itself has changed; those that come are others.
            Resource::UnscheduledPod if !self.actions.intersects(Actions::ADD) => "TargetPod",
            Resource::UnscheduledPod => "UnscheduledPod",
            Resource::Node => "Node",
            Resource::Other(plural) => {
                NAMES.into_iter().find(|(of, _)| *of == plural).map_or(plural, |(_, name)| name)
            }
        };
        EventName { resource, action: self.actions.name() }
    }

    /// The event of a bound pod that came, changed or is gone; `None` if nothing changed that could matter.
    pub fn of_assigned_pod(old: Option<Arc<Pod>>, new: Option<Arc<Pod>>) -> Option<Event> {
        Self::of_pod(Resource::AssignedPod, old, new)
    }

    /// The same of a pod that waits for a node.
    pub fn of_unscheduled_pod(old: Option<Arc<Pod>>, new: Option<Arc<Pod>>) -> Option<Event> {
        Self::of_pod(Resource::UnscheduledPod, old, new)
    }

    fn of_pod(resource: Resource, old: Option<Arc<Pod>>, new: Option<Arc<Pod>>) -> Option<Event> {
        let actions = match (&old, &new) {
            (None, None) => return None,
            (None, Some(_)) => Actions::ADD,
            (Some(_), None) => Actions::DELETE,
            (Some(old), Some(new)) => pod_actions(old, new),
        };
        (!actions.is_empty()).then_some(Event { resource, actions, change: Change::Pod(old, new) })
    }

    /// The event of a node that came, changed or is gone; `None` for a heartbeat.
    pub fn of_node(old: Option<Arc<Node>>, new: Option<Arc<Node>>) -> Option<Event> {
        let actions = match (&old, &new) {
            (None, None) => return None,
            (None, Some(_)) => Actions::ADD,
            (Some(_), None) => Actions::DELETE,
            (Some(old), Some(new)) => node_actions(old, new),
        };
        let change = Change::Node(old, new);
        (!actions.is_empty()).then_some(Event { resource: Resource::Node, actions, change })
    }
}

fn pod_actions(old: &Pod, new: &Pod) -> Actions {
    let less = || {
        let (was, is) = (crate::Resources::of_pod(old), crate::Resources::of_pod(new));
        is.cpu < was.cpu
            || is.memory < was.memory
            || is.storage < was.storage
            || was.other.iter().any(|(name, amount)| is.get(name) < *amount)
    };
    let resized = old.spec != new.spec || old.status.container_statuses != new.status.container_statuses;
    let gates = (&old.spec.scheduling_gates, &new.spec.scheduling_gates);
    Actions::POD_LABELS.when(old.metadata.labels != new.metadata.labels)
        | Actions::POD_TOLERATIONS.when(old.spec.tolerations != new.spec.tolerations)
        | Actions::POD_CLAIMS.when(old.status.resource_claim_statuses != new.status.resource_claim_statuses)
        | Actions::POD_GATES.when(!gates.0.is_empty() && gates.1.is_empty())
        | Actions::POD_SCALED_DOWN.when(resized && less())
}

fn node_actions(old: &Node, new: &Node) -> Actions {
    let cordon = |node: &Node| node.spec.unschedulable;
    Actions::NODE_ALLOCATABLE.when(old.status.allocatable != new.status.allocatable)
        | Actions::NODE_LABELS.when(old.metadata.labels != new.metadata.labels)
        | Actions::NODE_ANNOTATIONS.when(old.metadata.annotations != new.metadata.annotations)
        | Actions::NODE_DECLARED_FEATURES.when(old.status.declared_features != new.status.declared_features)
        | Actions::NODE_TAINTS.when(old.spec.taints != new.spec.taints || cordon(old) != cordon(new))
}

/// What a plugin says to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The pod may be schedulable now.
    Queue,
    /// It is not.
    Skip,
}

/// Decides on an event of the registered kind for a pod that the plugin has rejected.
pub type HintFunction = Arc<dyn Fn(&PodInfo, &Event) -> Hint + Send + Sync>;

/// An event that can make a pod schedulable which a plugin has rejected.
#[derive(Clone)]
pub struct EventInterest {
    /// What.
    pub resource: Resource,
    /// How.
    pub actions: Actions,
    /// Without one, every such event.
    pub hint: Option<HintFunction>,
}

impl EventInterest {
    /// Every such event.
    pub fn any(resource: Resource, actions: Actions) -> Self {
        EventInterest { resource, actions, hint: None }
    }

    /// The events for which `hint` says [`Hint::Queue`].
    pub fn hinted(
        resource: Resource,
        actions: Actions,
        hint: impl Fn(&PodInfo, &Event) -> Hint + Send + Sync + 'static,
    ) -> Self {
        EventInterest { resource, actions, hint: Some(Arc::new(hint)) }
    }

    /// Whether an event is one of these, before any hint.
    pub fn concerns(&self, event: &Event) -> bool {
        self.resource == event.resource && self.actions.intersects(event.actions)
    }

    /// The hint for an event that is one of these.
    pub fn hint(&self, pod: &PodInfo, event: &Event) -> Hint {
        self.hint.as_ref().map_or(Hint::Queue, |hint| hint(pod, event))
    }
}
