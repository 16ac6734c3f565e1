//! The contract between a cluster and the cloud that its machines are of: what a provider can be asked, and the values that it
//! answers with. The loops that ask are those of upstream's cloud-controller-manager: `cloud_node`, `cloud_node_lifecycle`,
//! `node_route` and `service_load_balancer`. Source: upstream's `k8s.io/cloud-provider`, with `InstancesV2`, which has zones too.
//!
//! Invariants:
//! - A provider writes nothing to the API; the loops do.
//! - The loop of a part that a provider does not have does not run. With `--cloud-provider=external` no loop runs here: a
//!   cloud-controller-manager outside does their work.

mod attempts;
mod bare_machines;
#[cfg(test)]
pub mod fake;

pub(crate) use attempts::Attempts;
pub use bare_machines::BareMachines;

use futures_util::future::BoxFuture;
use kaji_runtime::{
    View,
    objects::{LoadBalancerIngress, Node, NodeAddress, Service, Taint},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

/// The taint that a kubelet with `--cloud-provider=external` registers its node with; the effect is `NoSchedule`.
pub(crate) const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// The taint of a node with a machine that is switched off; the effect is `NoSchedule`.
pub(crate) const SHUT_DOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
/// The addresses that a kubelet was started with: the provider has to know them.
pub(crate) const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// What a provider answers later.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, CloudError>>;

/// Why a provider has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloudError {
    /// Another controller does this for the object.
    #[error("implemented by alternate to cloud provider")]
    ImplementedByAnother,
    /// It can be tried again after a wait, and not before.
    #[error("{reason}")]
    TryLater {
        /// Why.
        reason: String,
        /// How long.
        wait: Duration,
    },
    /// The call failed.
    #[error("{0}")]
    Failed(String),
}

/// A cloud, or what stands in for one.
pub trait CloudProvider: fmt::Debug + Send + Sync + 'static {
    /// Its name.
    fn name(&self) -> &'static str;

    /// The machines of nodes.
    fn instances(&self) -> Option<&dyn Instances> {
        None
    }

    /// Whether machines exist and run, if it can tell.
    fn lifecycle(&self) -> Option<&dyn InstanceLifecycle> {
        None
    }

    /// Routes to the pods of nodes.
    fn routes(&self) -> Option<&dyn Routes> {
        None
    }

    /// Load balancers of services.
    fn load_balancing(&self) -> Option<LoadBalancing<'_>> {
        None
    }
}

/// The machines of nodes.
pub trait Instances: Send + Sync {
    /// The machine of a node; `None` leaves the node as it is, which may be uninitialized.
    fn metadata<'a>(&'a self, node: &'a Node) -> Answer<'a, Option<InstanceMetadata>>;

    /// Whether it knows addresses of machines. Without them those that kubelets report stay, and it is asked once about a node.
    fn has_addresses(&self) -> bool {
        true
    }
}

/// What is known of a machine. Empty texts are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceMetadata {
    /// `PROVIDER://…`, unique and for ever.
    pub provider_id: String,
    /// Its type.
    pub instance_type: String,
    /// Its addresses.
    pub addresses: Vec<NodeAddress>,
    /// Its zone.
    pub zone: String,
    /// Its region.
    pub region: String,
    /// Further labels of its node; those of Kubernetes' own domains are left out, and so are those that the node has already.
    pub labels: BTreeMap<String, String>,
}

/// Whether machines exist and run.
pub trait InstanceLifecycle: Send + Sync {
    /// Whether the machine of a node exists.
    fn exists<'a>(&'a self, node: &'a Node) -> Answer<'a, bool>;

    /// Whether it is switched off.
    fn is_shut_down<'a>(&'a self, node: &'a Node) -> Answer<'a, bool>;
}

/// A route to the pods of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The provider's name of it.
    pub name: String,
    /// The node; empty if it leads to none that is known.
    pub target_node: String,
    /// The node's addresses.
    pub target_addresses: Vec<NodeAddress>,
    /// Whether a route has to be made anew when the node's addresses change.
    pub follows_addresses: bool,
    /// The range of pod addresses.
    pub destination: String,
    /// Whether it leads to a machine that is gone.
    pub blackhole: bool,
}

/// Routes to the pods of nodes.
pub trait Routes: Send + Sync {
    /// All routes of a cluster.
    fn list<'a>(&'a self, cluster: &'a str) -> Answer<'a, Vec<Route>>;

    /// Makes a route; `hint` is unique for the node, and may be a part of the route's name.
    fn create<'a>(&'a self, cluster: &'a str, hint: &'a str, route: &'a Route) -> Answer<'a, ()>;

    /// Removes a route.
    fn delete<'a>(&'a self, cluster: &'a str, route: &'a Route) -> Answer<'a, ()>;
}

/// How services of type `LoadBalancer` get addresses.
pub enum LoadBalancing<'a> {
    /// From something outside of the cluster, which is made, updated and removed.
    Outside(&'a dyn LoadBalancers),
    /// From the cluster's own objects: nothing exists outside, so services get no finalizer.
    Derived(&'a dyn DerivedAddresses),
}

/// Load balancers outside of the cluster. Calls are repeated, and have to be idempotent.
pub trait LoadBalancers: Send + Sync {
    /// The addresses of a service's load balancer, if there is one.
    fn get<'a>(
        &'a self,
        cluster: &'a str,
        service: &'a Service,
    ) -> Answer<'a, Option<Vec<LoadBalancerIngress>>>;

    /// Makes a service's load balancer, or changes it to what the service asks for; returns its addresses.
    fn ensure<'a>(
        &'a self,
        cluster: &'a str,
        service: &'a Service,
        nodes: &'a [Arc<Node>],
    ) -> Answer<'a, Vec<LoadBalancerIngress>>;

    /// Changes the nodes behind a load balancer that exists.
    fn update<'a>(&'a self, cluster: &'a str, service: &'a Service, nodes: &'a [Arc<Node>])
    -> Answer<'a, ()>;

    /// Removes a service's load balancer; one that does not exist counts as removed.
    fn ensure_deleted<'a>(&'a self, cluster: &'a str, service: &'a Service) -> Answer<'a, ()>;
}

/// Addresses of services that follow from nodes, endpoints and other services. Pure.
pub trait DerivedAddresses: Send + Sync {
    /// The addresses of a service.
    ///
    /// # Errors
    /// Why it cannot have any.
    fn addresses(&self, service: &Service, view: &View) -> Result<Vec<std::net::IpAddr>, String>;
}

/// Whether the default provider's load balancers are those of a service.
pub(crate) fn is_for_default_provider(service: &Service) -> bool {
    service.spec.kind == "LoadBalancer" && service.spec.load_balancer_class.is_none()
}

/// Whether load balancers may lead to a node, as the node's label says.
pub(crate) fn is_included(node: &Node) -> bool {
    const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
    let value = node.metadata.labels.get(EXCLUDED);
    value.is_none_or(|value| matches!(&**value, "0" | "f" | "F" | "false" | "False" | "FALSE"))
}

/// Whether the cluster autoscaler is about to remove a node.
pub(crate) fn is_leaving(node: &Node) -> bool {
    node.spec.taints.iter().any(|taint| taint.key == "ToBeDeletedByClusterAutoscaler")
}

/// The first taint of a key.
pub(crate) fn taint<'a>(node: &'a Node, key: &str) -> Option<&'a Taint> {
    node.spec.taints.iter().find(|taint| taint.key == key)
}

/// Addresses as a node's status has them.
pub(crate) fn address_list(addresses: &[NodeAddress]) -> Vec<Value> {
    addresses.iter().map(|a| json!({"type": a.kind, "address": a.address})).collect()
}
