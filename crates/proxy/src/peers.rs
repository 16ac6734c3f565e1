//! Nodes become routes of the pod network.

use kaji_network::{BridgeNetwork, PeerNode};
use kaji_runtime::{Informers, ObjectSnapshot, objects::Node};
use std::{sync::Arc, time::Duration};
use tokio::sync::{Notify, watch};

/// Before an update that failed is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// The nodes as routes need them.
fn peers(nodes: &ObjectSnapshot<Node>) -> Vec<PeerNode> {
    nodes
        .iter()
        .map(|node| PeerNode {
            name: node.metadata.name.clone(),
            pod_cidrs: node.spec.pod_cidrs.iter().filter_map(|text| text.parse().ok()).collect(),
            internal_ips: node
                .status
                .addresses
                .iter()
                .filter(|address| &*address.kind == "InternalIP")
                .filter_map(|address| address.address.parse().ok())
                .collect(),
        })
        .collect()
}

/// Keeps the routes to other nodes' pods as the Node objects say, until `stop` turns true.
pub async fn follow_nodes(
    network: BridgeNetwork,
    informers: Arc<Informers>,
    mut stop: watch::Receiver<bool>,
) {
    let nodes = informers.get::<Node>();
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    nodes.handle(move |change| {
        let facts = |node: &Option<Arc<Node>>| {
            node.as_ref().map(|node| (node.spec.pod_cidrs.clone(), node.status.addresses.clone()))
        };
        if facts(&change.old) != facts(&change.new) {
            notify.notify_one();
        }
    });
    nodes.synced().await;
    loop {
        let failed = match network.update_peers(peers(&nodes.snapshot())).await {
            Ok(()) => false,
            Err(error) => {
                tracing::warn!(%error, "the routes to other nodes could not be updated");
                true
            }
        };
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep(RETRY), if failed => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}
