//! Listeners of simulated nodes for the kubelet's HTTPS API: one on the loopback for each node, up to a bound.
//!
//! Invariants:
//! - Only this machine can connect.
//! - At most [`MAX_LISTENERS`] nodes have a listener, so that a large fleet leaves the server its file descriptors. The
//!   others report an address and a port where nothing listens.

use super::{api::NodeApi, fleet::Fleet, kubelet_metrics, metrics, pods::Pods, usage::Meters};
use crate::server::{KubeletServerConfig, request::PLAIN};
use kaji_exposition::CONTENT_TYPE;
use kaji_meta::Clock;
use kaji_runtime::{
    Informers,
    objects::{Node, Pod},
};
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

/// Nodes that have a listener.
const MAX_LISTENERS: usize = 128;

/// The addresses of the nodes that have a listener.
#[derive(Clone, Debug, Default)]
pub(super) struct Listeners(Arc<HashMap<String, SocketAddr>>);

impl Listeners {
    /// The address of a node's listener.
    pub fn of(&self, node: &str) -> Option<SocketAddr> {
        self.0.get(node).copied()
    }

    #[cfg(test)]
    pub fn at<const N: usize>(addresses: [(&str, SocketAddr); N]) -> Listeners {
        Listeners(Arc::new(addresses.map(|(node, address)| (node.to_owned(), address)).into()))
    }
}

/// Binds the listeners of a fleet and serves them until `stop` turns true.
pub(super) async fn open(
    fleet: &Fleet,
    servers: &KubeletServerConfig,
    informers: &Arc<Informers>,
    owner: &Arc<Pods>,
    (tasks, stop): (&mut JoinSet<()>, &watch::Receiver<bool>),
) -> Listeners {
    let mut addresses = HashMap::new();
    for (index, node) in fleet.names().into_iter().take(MAX_LISTENERS).enumerate() {
        let shared = owner.shared();
        let pages = pages(node.clone(), informers, shared.clock.clone());
        let handler = Arc::new(NodeApi { node: node.clone(), pods: owner.clone(), pages });
        let client = shared.client.named(&super::agent(&node));
        let bound = async {
            let listener = listen(index).await?;
            let address = listener.local_addr()?;
            Ok::<_, io::Error>((address, servers.serve(&node, listener, client, handler, stop.clone())?))
        };
        match bound.await {
            Ok((address, serving)) => {
                tasks.spawn(serving);
                addresses.insert(node, address);
            }
            Err(error) => {
                tracing::warn!(node, %error, "kubelet server: cannot listen for this node and those after it");
                break;
            }
        }
    }
    Listeners(Arc::new(addresses))
}

/// A separate address per node where the machine has all of 127.0.0.0/8; else 127.0.0.1.
async fn listen(index: usize) -> io::Result<TcpListener> {
    let [.., high, low] = (index as u32 + 1).to_be_bytes();
    match TcpListener::bind((Ipv4Addr::new(127, 30, high, low), 0)).await {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            TcpListener::bind((IpAddr::from(Ipv4Addr::LOCALHOST), 0)).await
        }
        other => other,
    }
}

/// A page's content type and text, by its path.
pub(super) type PagesOf = Box<dyn Fn(&str) -> Option<(&'static str, String)> + Send + Sync>;

/// `/healthz`, `/metrics` and `/metrics/resource`.
fn pages(node: String, informers: &Arc<Informers>, clock: Arc<dyn Clock>) -> PagesOf {
    let (nodes, pods) = (informers.get::<Node>(), informers.get::<Pod>());
    let (meters, began) = (Mutex::new(Meters::default()), clock.now());
    Box::new(move |path: &str| match path {
        "/healthz" | "/healthz/ping" | "/healthz/log" | "/healthz/syncloop" => Some((PLAIN, "ok".into())),
        "/metrics" => {
            let pods = pods.snapshot();
            let own = pods.iter().map(|pod| &**pod).filter(|pod| pod.spec.node_name == node);
            Some((CONTENT_TYPE, kubelet_metrics::page(&node, own)))
        }
        "/metrics/resource" => {
            let mut meters = meters.lock().unwrap_or_else(PoisonError::into_inner);
            // Read under the lock, so that meters never see time go back.
            let now = clock.now();
            let since = nodes.snapshot().get("", &node).and_then(|n| n.metadata.creation_timestamp);
            let pods = pods.snapshot();
            let own = pods.iter().map(|pod| &**pod).filter(|pod| pod.spec.node_name == node);
            Some((CONTENT_TYPE, metrics::page(since.unwrap_or(began), own, &mut meters, now)))
        }
        _ => None,
    })
}
