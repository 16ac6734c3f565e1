//! Simulated nodes: Node objects with leases and heartbeats, and pods that go through the phases a kubelet would report.
//!
//! What happens to a pod is decided by [`step`], with the decisions and statuses of real nodes over a [`runtime`] in memory;
//! annotations ask for other behaviour (see [`behaviour`], and [`faults`] for nodes).
//!
//! Invariants: only pods bound to this process's nodes are touched; a pod's address is unique among live pods; a deleted
//! pod is removed only after its containers are reported as ended.

mod addresses;
mod api;
pub mod behaviour;
mod facts;
pub mod faults;
pub mod files;
mod fleet;
mod history;
mod kubelet_metrics;
mod leases;
mod listeners;
mod metrics;
mod nodes;
mod pages;
mod pods;
mod probes;
pub mod runtime;
pub mod script;
mod start;
pub mod step;
mod usage;

pub use fleet::{Fleet, SimulatedNode};
pub use pages::ResourcePages;

use crate::server::KubeletServerConfig;
use kaji_runtime::{Change, Controller, Informers, Key, Shared, objects::Node};
use pods::Pods;
use std::sync::Arc;
use tokio::{sync::watch, task::JoinSet};

/// The names of the nodes: `sim-1`, `sim-2`, ….
pub fn name(index: u16) -> String {
    format!("sim-{index}")
}

/// What the kubelet of a node calls itself. The field manager is the part before the slash, as upstream's.
fn agent(node: &str) -> String {
    format!("kubelet/{node}")
}

/// Runs a fleet's nodes until `stop` turns true. With `servers` each serves the kubelet's HTTPS API, up to the bound of
/// [`listeners`]; without it, and beyond that bound, nothing listens at the addresses that nodes report.
pub async fn run(
    fleet: Fleet,
    servers: Option<KubeletServerConfig>,
    informers: Arc<Informers>,
    shared: Shared,
    stop: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    let faults = Arc::new(faults::Faults::default());
    let pods = Pods::new(fleet.clone(), faults.clone(), &informers, &shared);
    let listeners = match servers {
        Some(servers) => listeners::open(&fleet, &servers, &informers, &pods, (&mut tasks, &stop)).await,
        None => listeners::Listeners::default(),
    };
    let names = fleet.names();
    let leases = leases::Leases::default();
    let mut nodes = Controller::new(nodes::Nodes { fleet, listeners, faults, leases }, &informers)
        .reads::<Node>(|change: &Change<Node>, _| vec![Key::new("", change.any().metadata.name.as_str())]);
    for name in names {
        nodes = nodes.seed(Key::new("", name));
    }
    tasks.spawn(kaji_runtime::run(nodes, shared, stop.clone()));
    tasks.spawn(pods.run(stop));
    while tasks.join_next().await.is_some() {}
}
