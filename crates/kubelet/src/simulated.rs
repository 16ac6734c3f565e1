//! Simulated nodes: Node objects with leases and heartbeats, and pods that go through the phases a kubelet would report.
//!
//! What pods do is decided by the pure [`pods::next`]; annotations ask for other behaviour (see [`behaviour`]).
//!
//! Invariants: only pods bound to this process's nodes are touched; a pod's address is unique among live pods; a deleted
//! pod is removed only after its containers are reported as ended.

mod addresses;
pub mod behaviour;
mod fleet;
mod listeners;
mod metrics;
mod nodes;
pub mod pods;
mod usage;

pub use fleet::{Fleet, SimulatedNode};

use crate::server::KubeletServerConfig;
use addresses::Addresses;
use kaji_runtime::{
    Change, Controller, Informers, Key, Shared,
    objects::{Node, Pod},
};
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
    let listeners = match servers {
        Some(servers) => listeners::open(&fleet, &servers, &informers, &shared, (&mut tasks, &stop)).await,
        None => listeners::Listeners::default(),
    };
    let addresses = Arc::new(Addresses::default());
    let freed = addresses.clone();
    let mut nodes = Controller::new(nodes::Nodes { fleet: fleet.clone(), listeners }, &informers)
        .reads::<Node>(|change: &Change<Node>, _| vec![Key::new("", change.any().metadata.name.as_str())]);
    for name in fleet.names() {
        nodes = nodes.seed(Key::new("", name));
    }
    let pods = Controller::new(pods::Pods { fleet: fleet.clone(), addresses }, &informers)
        .reads::<Pod>(move |change: &Change<Pod>, _| {
            let pod = change.any();
            if change.new.is_none() {
                freed.release(&pod.metadata.uid);
            }
            if fleet.has(&pod.spec.node_name) { vec![pod.metadata.key()] } else { vec![] }
        })
        .reads::<Node>(|change: &Change<Node>, view| {
            let (Some(old), Some(node)) = (&change.old, &change.new) else { return vec![] };
            if old.spec.pod_cidrs == node.spec.pod_cidrs {
                return vec![];
            }
            // Its first pods have waited for that.
            let pods = view.get::<Pod>();
            pods.iter().filter(|p| p.spec.node_name == node.metadata.name).map(|p| p.metadata.key()).collect()
        })
        .workers(16);
    tasks.spawn(kaji_runtime::run(nodes, shared.clone(), stop.clone()));
    tasks.spawn(kaji_runtime::run(pods, shared, stop));
    while tasks.join_next().await.is_some() {}
}
