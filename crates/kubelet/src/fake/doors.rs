//! Where simulated nodes can be asked: a listener on the loopback for each of them, up to a bound.
//!
//! Invariants:
//! - Nobody outside this machine can connect.
//! - No more than [`MOST`] nodes have a listener, so that a large fleet leaves the server its file descriptors. The others
//!   report an address and a port where nobody is, as all of them would without.

use super::{fleet::Fleet, metrics, usage::Meters};
use futures_util::future::BoxFuture;
use kaji_meta::Clock;
use kaji_runtime::{
    Client, Informers, Shared,
    objects::{Node, Pod},
};
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

/// Nodes that can be asked.
const MOST: usize = 128;

/// The type of metrics, in Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What is at a path: its content type and its text. `None` for what is not there.
pub type Pages = Box<dyn Fn(&str) -> Option<(&'static str, String)> + Send + Sync>;

/// Faces those who ask nodes: finds out who they are and what they may.
pub trait Facing: Send + Sync + 'static {
    /// Answers with what is on a node's pages until `stop` turns true. The API server is asked through `client`, as the node.
    ///
    /// # Errors
    /// Why that is not possible.
    fn serve(
        &self,
        node: &str,
        listener: TcpListener,
        client: Client,
        pages: Pages,
        stop: watch::Receiver<bool>,
    ) -> io::Result<BoxFuture<'static, ()>>;
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
    facing: &dyn Facing,
    informers: &Arc<Informers>,
    shared: &Shared,
    (tasks, stop): (&mut JoinSet<()>, &watch::Receiver<bool>),
) -> Doors {
    let mut doors = HashMap::new();
    for (index, node) in fleet.names().into_iter().take(MOST).enumerate() {
        let pages = pages(node.clone(), informers, shared.clock.clone());
        let client = shared.client.named(&super::agent(&node));
        let opened = async {
            let listener = listen(index).await?;
            let at = listener.local_addr()?;
            Ok::<_, io::Error>((at, facing.serve(&node, listener, client, pages, stop.clone())?))
        };
        match opened.await {
            Ok((at, serving)) => {
                tasks.spawn(serving);
                doors.insert(node, at);
            }
            Err(error) => {
                tracing::warn!(node, %error, "this node and those after it cannot be asked anything");
                break;
            }
        }
    }
    Doors(Arc::new(doors))
}

/// An address of its own, where the whole of 127.0.0.0/8 is the machine's; else the one that every machine has.
async fn listen(index: usize) -> io::Result<TcpListener> {
    let [.., high, low] = (index as u32 + 1).to_be_bytes();
    match TcpListener::bind((Ipv4Addr::new(127, 30, high, low), 0)).await {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
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
