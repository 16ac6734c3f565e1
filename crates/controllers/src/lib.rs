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
mod namespace;
mod podgc;
mod pods;
mod quota;
mod replicaset;
mod rootca;
mod serviceaccount;
mod statefulset;
#[cfg(test)]
mod testing;
mod tokens;

pub use bootstrap::verify as verify_cluster_info;
pub use certificates::Authority;

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
    /// What signs certificates; without it approved requests stay unsigned.
    pub authority: Option<Arc<Authority>>,
    /// Signs the tokens in secrets of service accounts.
    pub token_signer: Option<Arc<kaji_auth::authn::SigningKey>>,
}

/// The controllers that are plain reconcilers.
pub fn all(informers: &Arc<Informers>, config: &Config) -> Vec<Controller> {
    let mut all = vec![
        deployment::controller(informers),
        replicaset::controller::<ReplicaSet>(informers),
        replicaset::controller::<ReplicationController>(informers),
        serviceaccount::controller(informers),
    ];
    all.extend(endpoints::controllers(informers));
    all.extend(job::controllers(informers));
    all.push(daemonset::controller(informers));
    all.push(statefulset::controller(informers));
    all.push(cronjob::controller(informers));
    all.push(disruption::controller(informers));
    all.push(quota::controller(informers));
    all.push(podgc::controller(informers));
    all.extend(certificates::controllers(informers, config));
    all.extend(bootstrap::controllers(informers));
    all.push(clusterroles::controller(informers));
    // Without certificates there is nothing to publish.
    if !config.root_ca.is_empty() {
        all.push(rootca::controller(informers, &config.root_ca));
    }
    if let Some(signer) = &config.token_signer {
        all.push(tokens::controller(informers, signer, &config.root_ca));
    }
    all
}

/// Starts all controllers; they end when `stop` turns true.
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
    certificates::spawn(tasks, informers, shared, stop.clone());
    gc::spawn(tasks, shared, stop.clone());
    namespace::spawn(tasks, informers, shared, stop.clone());
}
