//! What a server over etcd does because there may be others: it shows itself in the endpoints of the `kubernetes` service and by
//! its identity lease, compares the shared record of node ports with the services, and its caches with what is stored.
//!
//! Invariant: with the other stores there is one server, and nothing of this runs but what keeps the objects that every cluster has.

use super::{Settings, control_loops::ControlLoopConfig};
use crate::cluster::StartError;
use kaji_builtins::Deps;
use kaji_controlplane::{
    kept_objects::KeptObjects, server_identity::Identity, service_endpoints::ServerEndpoints,
    shared_ports::Allocation,
};
use kaji_engine::Engine;
use kaji_kubelet::hostname::node_name;
use kaji_options::StoreKind;
use kaji_store::Store;
use std::{net::SocketAddr, sync::Arc};
use tokio::{sync::watch, task::JoinSet};

impl Settings {
    /// Whether other servers may have the same store.
    pub fn has_other_servers(&self) -> bool {
        self.environment.store.is_none() && matches!(self.options.store, StoreKind::Etcd(_))
    }

    /// The record of node ports, where other servers allocate them too.
    pub fn shared_ports(&self, store: &Arc<dyn Store>, deps: &Deps) -> Option<Arc<Allocation>> {
        self.has_other_servers()
            .then(|| Arc::new(Allocation::new(store.clone(), deps.node_port_range.clone())))
    }

    /// Shows this server among the others, for the first time.
    pub async fn join_servers(
        &self,
        store: &Arc<dyn Store>,
        engine: &Arc<Engine>,
        address: SocketAddr,
    ) -> Result<Option<ServerEndpoints>, StartError> {
        if !self.has_other_servers() {
            return Ok(None);
        }
        let mut endpoints = ServerEndpoints::new(store.clone(), address);
        endpoints.round(&**engine).await.map_err(StartError::Endpoints)?;
        Ok(Some(endpoints))
    }
}

/// Starts the tasks; they return once `stop` turns true, and need the engine until then.
pub(super) fn start(
    config: &ControlLoopConfig,
    (kept, endpoints): (KeptObjects, Option<ServerEndpoints>),
    allocation: Option<Arc<Allocation>>,
    address: SocketAddr,
    stop: &watch::Receiver<bool>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let engine = || Arc::downgrade(&config.stack.engine);
    tasks.spawn(kept.run(engine(), stop.clone()));
    if let Some(endpoints) = endpoints {
        tasks.spawn(endpoints.run(engine(), stop.clone()));
        let (checks, environment) = (config.loop_metrics.cache_checks.clone(), &config.environment);
        tasks.spawn(checks.run(engine(), environment.random.clone(), stop.clone()));
        let clock = environment.object_clock.clone();
        let identity = Identity::new(node_name(), address.port(), &*environment.random, clock);
        tasks.spawn(identity.run(engine(), stop.clone()));
    }
    if let Some(allocation) = allocation {
        tasks.spawn(allocation.repair(engine(), stop.clone()));
    }
    // They are the last that a start spawns, whatever the store.
    config.stack.health.tasks_started();
    tasks
}
