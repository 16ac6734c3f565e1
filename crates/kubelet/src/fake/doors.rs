//! Where simulated nodes can be asked: a listener on the loopback for each of them, up to a bound.
//!
//! Invariants:
//! - Nobody outside this machine can connect.
//! - No more than [`MOST`] nodes have a listener, so that a large fleet leaves the server its file descriptors. The others
//!   report an address and a port where nobody is, as all of them would without.

use super::{fleet::Fleet, metrics, usage::Meters};
use crate::serve::{Access, METRICS, Pages, Server, Serving, Signer};
use kaji_meta::Clock;
use kaji_runtime::{
    Informers, Shared,
    objects::{Node, Pod},
};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

/// Nodes that can be asked.
const MOST: usize = 128;

/// How nodes face those who ask them.
#[derive(Debug)]
pub struct Facing {
    /// Who signs their certificates.
    pub signer: Arc<Signer>,
    /// Who signs their clients' certificates, PEM.
    pub clients: String,
}

/// Where nodes can be asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Doors(Arc<HashMap<String, SocketAddr>>);

impl Doors {
    /// Of one node.
    pub fn of(&self, node: &str) -> Option<SocketAddr> {
        self.0.get(node).copied()
    }

    #[cfg(test)]
    pub fn at<const N: usize>(doors: [(&str, SocketAddr); N]) -> Doors {
        Doors(Arc::new(doors.map(|(node, door)| (node.to_owned(), door)).into()))
    }
}

/// Opens the doors of a fleet and answers at them until `stop` turns true.
pub(super) async fn open(
    fleet: &Fleet,
    facing: &Facing,
    informers: &Arc<Informers>,
    shared: &Shared,
    (tasks, stop): (&mut JoinSet<()>, &watch::Receiver<bool>),
) -> Doors {
    let mut doors = HashMap::new();
    for (index, node) in fleet.names().into_iter().take(MOST).enumerate() {
        let bound = match listen(index).await {
            Ok(listener) => listener.local_addr().map(|at| (listener, at)),
            Err(error) => Err(error),
        };
        let (listener, at) = match bound {
            Ok(bound) => bound,
            Err(error) => {
                tracing::warn!(node, %error, "a node cannot be asked anything");
                break;
            }
        };
        let serving = Serving::new(facing.signer.clone(), &node, at.ip());
        let access = Access::new(&node, shared.client.named(&super::agent(&node)), shared.clock.clone());
        let pages = pages(node.clone(), informers, shared.clock.clone());
        match Server::new(serving, &facing.clients, access, pages) {
            Ok(server) => drop(tasks.spawn(Arc::new(server).serve(listener, stop.clone()))),
            Err(error) => {
                tracing::warn!(node, %error, "a node cannot be asked anything");
                break;
            }
        }
        doors.insert(node, at);
    }
    Doors(Arc::new(doors))
}

/// An address of its own, where the whole of 127.0.0.0/8 is the machine's; else the one that every machine has.
async fn listen(index: usize) -> std::io::Result<TcpListener> {
    let [.., high, low] = (index as u32 + 1).to_be_bytes();
    match TcpListener::bind((Ipv4Addr::new(127, 30, high, low), 0)).await {
        Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
            TcpListener::bind((IpAddr::from(Ipv4Addr::LOCALHOST), 0)).await
        }
        other => other,
    }
}

/// What a node answers.
fn pages(node: String, informers: &Arc<Informers>, clock: Arc<dyn Clock>) -> Pages {
    let (nodes, pods) = (informers.get::<Node>(), informers.get::<Pod>());
    let (meters, began) = (Mutex::new(Meters::default()), clock.now());
    Box::new(move |path| match path {
        "/healthz" | "/healthz/ping" | "/healthz/log" | "/healthz/syncloop" => {
            Some(("text/plain; charset=utf-8", "ok".into()))
        }
        "/metrics/resource" => {
            let mut meters = meters.lock().unwrap_or_else(PoisonError::into_inner);
            // Those who wait for the lock must not come with an older time than those before them.
            let now = clock.now();
            let since = nodes.snapshot().get("", &node).and_then(|n| n.metadata.creation_timestamp);
            let pods = pods.snapshot();
            let own = pods.iter().map(|pod| &**pod).filter(|pod| pod.spec.node_name == node);
            Some((METRICS, metrics::page(since.unwrap_or(began), own, &mut meters, now)))
        }
        _ => None,
    })
}
