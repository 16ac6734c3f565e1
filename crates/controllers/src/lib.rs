//! The controllers that keep a cluster's objects in order: deployments, replica sets, garbage, namespaces, endpoints,
//! service accounts.
//!
//! Invariants:
//! - A controller that only reads projections and writes plans is a [`kaji_runtime::Reconciler`]; those that must look
//!   at resources nobody knows beforehand (garbage collection, namespace deletion) drive a pure core themselves.
//! - No controller keeps state that it could not rebuild from the API.

mod bootstrap;
mod certificates;
mod claim;
mod clusterroles;
mod conditions;
mod cronjob;
mod daemonset;
mod deployment;
mod discovery;
mod disruption;
mod endpoints;
mod gc;
mod history;
mod job;
mod legacytokens;
mod migration;
mod namespace;
mod nodeipam;
mod podgc;
mod pods;
mod protection;
mod quota;
mod replicaset;
mod rootca;
mod selection;
mod serviceaccount;
mod statefulset;
mod taints;
#[cfg(test)]
mod testing;
mod tokens;
mod workers;

pub use bootstrap::verify as verify_cluster_info;
pub use certificates::Authority;
pub use nodeipam::{MaskSizes, NodeRanges};
pub use selection::Selection;

use kaji_runtime::{
    Controller, Informers, Shared,
    objects::{ReplicaSet, ReplicationController},
};
use std::sync::Arc;
use tokio::{sync::watch, task::JoinSet};

/// What the controllers need to know of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The certificates that clients in pods trust, PEM.
    pub root_ca: String,
    /// Which of them run.
    pub selection: Selection,
    /// What signs certificates; without it approved requests stay unsigned.
    pub authority: Option<Arc<Authority>>,
    /// How long tokens in secrets stay that nobody uses; a year without it.
    pub unused_token_period: Option<std::time::Duration>,
    /// Signs the tokens in secrets of service accounts.
    pub token_signer: Option<Arc<kaji_auth::authn::SigningKey>>,
    /// What nodes' ranges of pod addresses are taken from; without it they get none.
    pub node_ranges: Option<NodeRanges>,
}

type Make = fn(&Arc<Informers>, &Config) -> Vec<Controller>;

/// The controllers that are plain reconcilers, under the names that `--controllers` has for them upstream
/// (`cmd/kube-controller-manager/names`).
const PLAIN: &[(&str, Make)] = &[
    ("deployment-controller", |i, _| vec![deployment::controller(i)]),
    ("replicaset-controller", |i, _| vec![replicaset::controller::<ReplicaSet>(i)]),
    ("replicationcontroller-controller", |i, _| vec![replicaset::controller::<ReplicationController>(i)]),
    ("serviceaccount-controller", |i, _| vec![serviceaccount::controller(i)]),
    ("endpointslice-controller", |i, _| vec![endpoints::slices::controller(i)]),
    ("endpoints-controller", |i, _| vec![endpoints::legacy::controller(i)]),
    ("endpointslice-mirroring-controller", |i, _| vec![endpoints::mirroring::controller(i)]),
    ("job-controller", |i, _| job::controllers(i)),
    ("ttl-after-finished-controller", |i, _| vec![job::ttl::controller(i)]),
    ("daemonset-controller", |i, _| vec![daemonset::controller(i)]),
    ("statefulset-controller", |i, _| vec![statefulset::controller(i)]),
    ("cronjob-controller", |i, _| vec![cronjob::controller(i)]),
    ("disruption-controller", |i, _| vec![disruption::controller(i)]),
    ("pod-garbage-collector-controller", |i, _| vec![podgc::controller(i)]),
    (NODE_RANGES, |i, config| config.node_ranges.iter().map(|r| nodeipam::controller(i, r)).collect()),
    ("node-lifecycle-controller", |i, _| vec![taints::controller(i)]),
    ("persistentvolumeclaim-protection-controller", |i, _| vec![protection::claims(i)]),
    ("persistentvolume-protection-controller", |i, _| vec![protection::volumes(i)]),
    ("volumeattributesclass-protection-controller", |i, _| vec![protection::classes(i)]),
    ("certificatesigningrequest-cleaner-controller", |i, _| vec![certificates::cleaner::requests(i)]),
    ("podcertificaterequest-cleaner-controller", |i, _| vec![certificates::cleaner::pod_requests(i)]),
    ("certificatesigningrequest-signing-controller", |i, config| {
        config.authority.iter().flat_map(|a| certificates::signing::controllers(i, a)).collect()
    }),
    ("kube-apiserver-serving-clustertrustbundle-publisher-controller", |i, config| {
        published(config).map(|ca| certificates::bundle::controller(i, ca)).into_iter().collect()
    }),
    ("bootstrap-signer-controller", |i, _| vec![bootstrap::signer::controller(i)]),
    ("token-cleaner-controller", |i, _| vec![bootstrap::cleaner::controller(i)]),
    ("clusterrole-aggregation-controller", |i, _| vec![clusterroles::controller(i)]),
    ("root-ca-certificate-publisher-controller", |i, config| {
        published(config).map(|ca| rootca::controller(i, ca)).into_iter().collect()
    }),
    ("legacy-serviceaccount-token-cleaner-controller", |i, config| {
        vec![legacytokens::controller(i, config.unused_token_period.unwrap_or(legacytokens::PERIOD))]
    }),
    ("serviceaccount-token-controller", |i, config| {
        config.token_signer.iter().map(|signer| tokens::controller(i, signer, &config.root_ca)).collect()
    }),
];
const APPROVER: &str = "certificatesigningrequest-approving-controller";
const GARBAGE: &str = "garbage-collector-controller";
/// The controller that gives nodes their ranges.
pub const NODE_RANGES: &str = "node-ipam-controller";
const NAMESPACES: &str = "namespace-controller";
/// Tells in the status of policies what is suspicious about their expressions. It needs schemas, so whoever has them runs it.
pub const POLICY_TYPES: &str = "validatingadmissionpolicy-status-controller";
const QUOTAS: &str = "resourcequota-controller";
const MIGRATIONS: &str = "storage-version-migrator-controller";

/// Without certificates there is nothing to publish.
fn published(config: &Config) -> Option<&str> {
    Some(config.root_ca.as_str()).filter(|ca| !ca.is_empty())
}

/// The names of all controllers.
pub fn names() -> impl Iterator<Item = &'static str> {
    PLAIN.iter().map(|(name, _)| *name).chain([
        APPROVER,
        GARBAGE,
        NAMESPACES,
        POLICY_TYPES,
        QUOTAS,
        MIGRATIONS,
    ])
}

/// The controllers that are plain reconcilers and wanted.
pub fn all(informers: &Arc<Informers>, config: &Config) -> Vec<Controller> {
    // One that is not wanted is not even made: making it starts what it reads.
    let wanted = PLAIN.iter().filter(|(name, _)| config.selection.includes(name));
    wanted.flat_map(|(_, make)| make(informers, config)).collect()
}

/// Starts all wanted controllers; they end when `stop` turns true.
pub fn spawn(
    tasks: &mut JoinSet<()>,
    informers: &Arc<Informers>,
    shared: &Shared,
    config: &Config,
    stop: &watch::Receiver<bool>,
) {
    for controller in all(informers, config) {
        tasks.spawn(kaji_runtime::run(controller, shared.clone(), stop.clone()));
    }
    if config.selection.includes(APPROVER) {
        certificates::spawn(tasks, informers, shared, stop.clone());
    }
    if config.selection.includes(GARBAGE) {
        gc::spawn(tasks, shared, stop.clone());
    }
    if config.selection.includes(NAMESPACES) {
        namespace::spawn(tasks, informers, shared, stop.clone());
    }
    if config.selection.includes(QUOTAS) {
        quota::spawn(tasks, informers, shared, stop.clone());
    }
    if config.selection.includes(MIGRATIONS) {
        migration::spawn(tasks, informers, shared, stop.clone());
    }
}
