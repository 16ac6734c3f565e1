//! A pod with what scheduling computes of it once: requests, host ports, affinities, spreading.
//!
//! Invariant: [`PodNeeds`] depends on the pod's spec, labels, namespace and granted resources alone.

use crate::{
    affinity::PodAffinity,
    node_selector::{NodeTerm, RequiredNodes, preferred_terms},
    resources::Resources,
    spreading::SpreadConstraint,
};
use kaji_runtime::{
    Key,
    objects::{Container, ContainerPort, Pod},
};
use std::{ops::Deref, sync::Arc};

/// A host port: address, protocol, port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// `0.0.0.0` for all of them.
    pub address: Box<str>,
    /// `TCP`
    pub protocol: Box<str>,
    /// The port.
    pub port: i64,
}

impl HostPort {
    fn of(port: &ContainerPort) -> Option<Self> {
        let text = |text: &str, default: &str| if text.is_empty() { default.into() } else { text.into() };
        (port.host_port > 0).then(|| HostPort {
            address: text(&port.host_ip, "0.0.0.0"),
            protocol: text(&port.protocol, "TCP"),
            port: port.host_port,
        })
    }

    /// Whether the two cannot be bound on one node; the wildcard address conflicts with every other.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.address == other.address || &*self.address == "0.0.0.0" || &*other.address == "0.0.0.0")
    }
}

/// What a pod needs of its node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodNeeds {
    /// The resources that it requests.
    pub request: Resources,
    /// CPU and memory where containers without a request count with a small one.
    pub request_with_defaults: (i64, i64),
    /// The host ports that it uses, those of sidecars too.
    pub ports: Box<[HostPort]>,
    /// Node selector and required node affinity.
    pub nodes: RequiredNodes,
    /// Preferred node affinity.
    pub preferred_nodes: Box<[(i64, NodeTerm)]>,
    /// Affinity and anti-affinity to other pods, if there is any.
    pub affinity: Option<Arc<PodAffinity>>,
    /// Its topology spread constraints.
    pub spread: Box<[SpreadConstraint]>,
    /// Its claims of volumes: names in its namespace.
    pub claims: Box<[Box<str>]>,
}

/// A pod and what it needs.
#[derive(Clone, Debug)]
pub struct PodInfo {
    /// The pod.
    pub pod: Arc<Pod>,
    needs: Arc<PodNeeds>,
}

impl PodInfo {
    /// Computes what it needs.
    pub fn new(pod: Arc<Pod>) -> Self {
        let affinity = pod.spec.affinity.as_deref();
        let preferred =
            affinity.and_then(|a| a.pointer("/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution"));
        let sidecars = pod.spec.init_containers.iter().filter(|c| c.sidecar());
        let ports = pod.spec.containers.iter().chain(sidecars).flat_map(|c: &Container| &c.ports);
        let defaults = Resources::of_pod_with_defaults(&pod);
        let spread = pod.spec.topology_spread_constraints.as_deref();
        let needs = PodNeeds {
            request: Resources::of_pod(&pod),
            request_with_defaults: (defaults.cpu, defaults.memory),
            ports: ports.filter_map(HostPort::of).collect(),
            nodes: RequiredNodes::parse(&pod.spec.node_selector, affinity),
            preferred_nodes: preferred_terms(preferred),
            affinity: PodAffinity::parse(&pod.metadata.namespace, affinity).map(Arc::new),
            spread: SpreadConstraint::parse_all(spread, &pod.metadata.labels),
            claims: pod.claims().map(|(name, _)| name.into()).collect(),
        };
        PodInfo { needs: Arc::new(needs), pod }
    }

    /// What it needs is kept once for both pods, if it is the same.
    pub fn sharing_needs(mut self, other: &PodInfo) -> Self {
        if self.needs == other.needs {
            self.needs = other.needs.clone();
        }
        self
    }

    /// The same pod in a newer state. What it needs is computed again only if something of it has changed.
    pub fn updated(&self, pod: Arc<Pod>) -> Self {
        let (was, now) = (&self.pod, &pod);
        // Binding changes the node's name alone; the pods of a template share most of the rest.
        let (former, present) = (&*was.spec, &*now.spec);
        let same_template = std::ptr::eq(former, present) || former == present;
        let granted = |pod: &Pod| -> Vec<_> {
            let statuses = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
            let of_containers =
                statuses.map(|s| (s.name.clone(), s.allocated_resources.clone(), s.resources.clone()));
            let status = pod.spec.resources.requests.iter().next().is_some().then_some(&pod.status);
            let of_pod =
                status.map(|s| (Default::default(), s.allocated_resources.clone(), s.resources.clone()));
            of_containers.chain(of_pod).collect()
        };
        let same = same_template
            && was.spec.affinity == now.spec.affinity
            && was.spec.volumes == now.spec.volumes
            && was.metadata.labels == now.metadata.labels
            && was.condition("PodResizePending") == now.condition("PodResizePending")
            && granted(was) == granted(now);
        if same { PodInfo { pod, needs: self.needs.clone() } } else { PodInfo::new(pod) }
    }

    /// Namespace and name.
    pub fn key(&self) -> Key {
        self.pod.metadata.key()
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.pod.metadata.namespace
    }

    /// The uid.
    pub fn uid(&self) -> &str {
        &self.pod.metadata.uid
    }

    /// The priority; 0 without one.
    pub fn priority(&self) -> i64 {
        self.pod.spec.priority.unwrap_or_default()
    }

    /// Whether two pods need the very same, so that what was computed for one holds for the other.
    pub fn same_needs(&self, other: &PodInfo) -> bool {
        Arc::ptr_eq(&self.needs, &other.needs) || self.needs == other.needs
    }
}

impl Deref for PodInfo {
    type Target = PodNeeds;

    fn deref(&self) -> &PodNeeds {
        &self.needs
    }
}
