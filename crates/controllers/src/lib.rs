//! The controllers of kube-controller-manager. A controller is one file (with its folder of parts) and one line in
//! [`CONTROLLERS`]; its names, service account and informers are in its file.
//!
//! Invariants:
//! - A controller that only reads projections and writes plans is a [`kaji_runtime::Reconciler`]; those with resources that are
//!   found by discovery (garbage collection, namespace deletion, quota) drive a pure core with their own tasks.
//! - No controller keeps state that an object depends on and that it could not rebuild from the API: what is lost with the process are
//!   delays and the times at which something was first seen, which begin anew.

mod bootstrap_signer;
mod certificatesigningrequest_approving;
mod certificatesigningrequest_cleaner;
mod certificatesigningrequest_signing;
mod cloud_node;
mod cloud_node_lifecycle;
pub mod cloud_provider;
mod clusterrole_aggregation;
mod cronjob;
mod daemonset;
mod deployment;
mod descriptor;
mod device_taint_eviction;
mod disruption;
mod endpoints;
mod endpointslice;
mod endpointslice_mirroring;
mod ephemeral_volume;
mod garbage_collector;
mod horizontal_pod_autoscaler;
mod job;
mod killable;
mod kube_apiserver_serving_clustertrustbundle_publisher;
mod later;
mod legacy_serviceaccount_token_cleaner;
mod local_path_provisioner;
mod loop_config;
mod namespace;
mod node_ipam;
mod node_lifecycle;
mod node_route;
mod persistentvolume_attach_detach;
mod persistentvolume_binder;
mod persistentvolume_expander;
mod persistentvolume_protection;
mod persistentvolumeclaim_protection;
mod pod_garbage_collector;
mod podcertificaterequest_cleaner;
mod podgroup_protection;
mod replicaset;
mod replicationcontroller;
mod resource_claim;
mod resourcequota;
mod root_ca_certificate_publisher;
mod selection;
mod service_cidr;
mod service_load_balancer;
mod serviceaccount;
mod serviceaccount_token;
mod shared;
mod statefulset;
mod storage_version_migrator;
mod taint_eviction;
#[cfg(test)]
mod testing;
mod token_cleaner;
mod ttl;
mod ttl_after_finished;
mod validatingadmissionpolicy_status;
mod volumeattributesclass_protection;

pub use certificatesigningrequest_signing::{Authorities, Authority};
pub use descriptor::{ControllerContext, Descriptor, Start, WorkersFlag};
pub use horizontal_pod_autoscaler::AutoscalerConfig;
pub use later::delayed;
pub use loop_config::{BatchPeriods, CloudLoops, EvictionRates, LoopConfig, NodeMonitorConfig, VolumeLoops};
pub use node_ipam::{MaskSizes, NodeRanges};
pub use selection::Selection;

use cloud_provider::CloudProvider;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Every controller, by name.
pub const CONTROLLERS: &[Descriptor] = &[
    bootstrap_signer::CONTROLLER,
    certificatesigningrequest_approving::CONTROLLER,
    certificatesigningrequest_cleaner::CONTROLLER,
    certificatesigningrequest_signing::CONTROLLER,
    cloud_node::CONTROLLER,
    cloud_node_lifecycle::CONTROLLER,
    clusterrole_aggregation::CONTROLLER,
    cronjob::CONTROLLER,
    daemonset::CONTROLLER,
    deployment::CONTROLLER,
    device_taint_eviction::CONTROLLER,
    disruption::CONTROLLER,
    endpoints::CONTROLLER,
    endpointslice::CONTROLLER,
    endpointslice_mirroring::CONTROLLER,
    ephemeral_volume::CONTROLLER,
    garbage_collector::CONTROLLER,
    horizontal_pod_autoscaler::CONTROLLER,
    job::CONTROLLER,
    kube_apiserver_serving_clustertrustbundle_publisher::CONTROLLER,
    legacy_serviceaccount_token_cleaner::CONTROLLER,
    local_path_provisioner::CONTROLLER,
    namespace::CONTROLLER,
    node_ipam::CONTROLLER,
    node_lifecycle::CONTROLLER,
    node_route::CONTROLLER,
    persistentvolume_attach_detach::CONTROLLER,
    persistentvolume_binder::CONTROLLER,
    persistentvolume_expander::CONTROLLER,
    persistentvolume_protection::CONTROLLER,
    persistentvolumeclaim_protection::CONTROLLER,
    pod_garbage_collector::CONTROLLER,
    podcertificaterequest_cleaner::CONTROLLER,
    podgroup_protection::CONTROLLER,
    replicaset::CONTROLLER,
    replicationcontroller::CONTROLLER,
    resource_claim::CONTROLLER,
    resourcequota::CONTROLLER,
    root_ca_certificate_publisher::CONTROLLER,
    service_cidr::CONTROLLER,
    service_load_balancer::CONTROLLER,
    serviceaccount::CONTROLLER,
    serviceaccount_token::CONTROLLER,
    statefulset::CONTROLLER,
    storage_version_migrator::CONTROLLER,
    taint_eviction::CONTROLLER,
    token_cleaner::CONTROLLER,
    ttl::CONTROLLER,
    ttl_after_finished::CONTROLLER,
    validatingadmissionpolicy_status::CONTROLLER,
    volumeattributesclass_protection::CONTROLLER,
];

/// The provisioner of the default storage class.
pub const LOCAL_PATH_PROVISIONER: &str = local_path_provisioner::CONTROLLER.name;
/// The controller that allocates the pod CIDRs of nodes.
pub const NODE_IPAM: &str = node_ipam::CONTROLLER.name;
/// The type checker of validating admission policies, which starts outside this crate.
pub const POLICY_STATUS: &str = validatingadmissionpolicy_status::CONTROLLER.name;

/// What the controllers are configured with.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The certificates that clients in pods trust, PEM.
    pub root_ca: String,
    /// Which of them run.
    pub selection: Selection,
    /// What signs certificates; approved requests to a signer without one stay unsigned.
    pub authorities: Authorities,
    /// How long unused tokens in secrets are kept; a year without it.
    pub unused_token_period: Option<std::time::Duration>,
    /// Signs the tokens in secrets of service accounts.
    pub token_signer: Option<Arc<kaji_auth::authn::SigningKey>>,
    /// What pod CIDRs of nodes are allocated from; without it they get none.
    pub node_ranges: Option<NodeRanges>,
    /// The cloud that the machines are of; without it nodes stay uninitialized, and services of type `LoadBalancer` get no
    /// addresses.
    pub cloud: Option<Arc<dyn CloudProvider>>,
    /// How replicas are scaled.
    pub autoscaler: AutoscalerConfig,
    /// Numbers and periods of the loops.
    pub loops: LoopConfig,
    /// The feature gates.
    pub features: kaji_meta::Features,
}

impl Config {
    /// The root certificates, unless there are none to publish.
    fn root_ca(&self) -> Option<&str> {
        Some(self.root_ca.as_str()).filter(|ca| !ca.is_empty())
    }
}

/// The names of all controllers in `--controllers`.
pub fn names() -> impl Iterator<Item = &'static str> {
    CONTROLLERS.iter().map(|descriptor| descriptor.name)
}

/// The controllers with a flag for their workers, by name.
pub fn worker_flags() -> impl Iterator<Item = (&'static str, WorkersFlag)> {
    CONTROLLERS.iter().filter_map(|descriptor| Some((descriptor.name, descriptor.workers?)))
}

/// The service accounts of components: the component's name and the account's name in `kube-system`.
pub fn service_accounts() -> impl Iterator<Item = (&'static str, &'static str)> {
    CONTROLLERS.iter().flat_map(|descriptor| {
        let account = descriptor.service_account.into_iter();
        account.flat_map(|account| descriptor.components.iter().map(move |component| (*component, account)))
    })
}

/// Starts all selected controllers; they end when `stop` turns true.
pub fn spawn(tasks: &mut JoinSet<()>, context: &ControllerContext<'_>) {
    let selection = &context.config.selection;
    for descriptor in CONTROLLERS.iter().filter(|descriptor| selection.includes(descriptor.name)) {
        let wait = context.config.loops.start_wait(&*context.shared.random);
        match context.shared.client.interception() {
            None if wait.is_zero() => descriptor.spawn(tasks, context),
            None => {
                tasks.spawn(later::run(descriptor, context, wait));
            }
            Some(interception) => {
                tasks.spawn(killable::run(descriptor, context, interception.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
