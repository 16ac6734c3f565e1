//! The thread that owns a node's pod network, and the handle that the runtime calls.
//!
//! Invariant: operations are carried out one after the other, in the order of the calls; the queue is bounded, callers wait.

use crate::{NetworkError, PeerNode, node::Node};
use kaji_containers::{BoxFuture, NetworkSetup, PodAddresses, PodNetwork, RuntimeError};
use kaji_netfilter::namespace;
use std::{fs::File, path::PathBuf};
use tokio::sync::{mpsc, oneshot};

/// Operations that wait for the thread.
const QUEUE: usize = 256;

/// How a node's pod network is set up.
#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// Name of the Node object.
    pub node_name: String,
    /// Name of the bridge; at most 12 bytes, since the VXLAN interface adds three.
    pub bridge: String,
    /// Name of the nftables tables.
    pub table: String,
    /// Where records are kept, below this.
    pub state_dir: PathBuf,
    /// The node's network namespace; `None` for that of the process.
    pub namespace: Option<PathBuf>,
    /// MTU of pods' interfaces; `None` for that of the uplink.
    pub mtu: Option<u32>,
    /// Marks our routes (`RTPROT_*`); differs between nodes that share a network namespace.
    pub route_protocol: u8,
    /// Network identifier of the VXLAN, the same on all nodes.
    pub vxlan_id: u32,
    /// UDP port of the VXLAN, the same on all nodes.
    pub vxlan_port: u16,
    /// Whether nodes are attached to the bridge, with their pods behind them, in the place of pods: peers are these, and no
    /// others.
    pub attaches_nodes: bool,
}

impl NetworkConfig {
    /// The defaults: bridge `kaji0`, VXLAN 1 at the port of RFC 7348.
    #[must_use]
    pub fn new(node_name: &str, state_dir: PathBuf) -> NetworkConfig {
        NetworkConfig {
            node_name: node_name.into(),
            bridge: "kaji0".into(),
            table: "kaji-network".into(),
            state_dir,
            namespace: None,
            mtu: None,
            route_protocol: 75,
            vxlan_id: 1,
            vxlan_port: 4789,
            attaches_nodes: false,
        }
    }

    /// The same for a node that shares its network namespace with others: names of its own.
    #[must_use]
    pub fn numbered(mut self, number: u8) -> NetworkConfig {
        self.bridge = format!("kaji{number}");
        self.table = format!("kaji-network-{number}");
        self.route_protocol = 75_u8.saturating_add(number);
        self
    }
}

type Job = Box<dyn FnOnce(&mut Node) + Send>;

/// The built-in pod network. The thread ends when the last handle is dropped; pods' networks stay.
#[derive(Clone, Debug)]
pub struct BridgeNetwork {
    jobs: mpsc::Sender<Job>,
}

impl BridgeNetwork {
    /// Starts the thread, which reads the records.
    ///
    /// # Errors
    /// Those of the system: no permission, no nftables, records that cannot be read.
    pub async fn start(config: NetworkConfig) -> Result<BridgeNetwork, NetworkError> {
        let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE);
        let (ready, started) = oneshot::channel();
        let run = move || {
            let opened = enter(&config).and_then(|()| Node::open(config));
            let mut node = match opened {
                Ok(node) => {
                    if ready.send(Ok(())).is_err() {
                        return;
                    }
                    node
                }
                Err(error) => {
                    // The caller may have given up.
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            while let Some(job) = queue.blocking_recv() {
                job(&mut node);
            }
        };
        std::thread::Builder::new()
            .name("pod-network".into())
            .spawn(run)
            .map_err(NetworkError::io("thread"))?;
        started.await.unwrap_or(Err(NetworkError::Stopped))?;
        Ok(BridgeNetwork { jobs })
    }

    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Node) -> Result<T, NetworkError> + Send + 'static,
    ) -> Result<T, NetworkError> {
        let (done, result) = oneshot::channel();
        let job: Job = Box::new(move |node| {
            // A caller that gave up gets nothing; what was done is found again by the next call.
            let _ = done.send(work(node));
        });
        self.jobs.send(job).await.map_err(|_| NetworkError::Stopped)?;
        result.await.unwrap_or(Err(NetworkError::Stopped))
    }

    /// The cluster's nodes, this one among them, whenever they change: routes to their pods.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn update_peers(&self, nodes: Vec<PeerNode>) -> Result<(), NetworkError> {
        self.call(move |node| node.update_peers(&nodes)).await
    }

    /// Removes bridge, tables, routes and pods' interfaces, for nodes that leave the cluster. Records stay.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn remove_all(&self) -> Result<(), NetworkError> {
        self.call(Node::remove_all).await
    }
}

fn enter(config: &NetworkConfig) -> Result<(), NetworkError> {
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if config.bridge.is_empty() || config.bridge.len() > 12 || !config.bridge.chars().all(valid) {
        return Err(NetworkError::Invalid(format!("invalid name of a bridge: {:?}", config.bridge)));
    }
    let Some(path) = &config.namespace else { return Ok(()) };
    let shown = path.display().to_string();
    let namespace = File::open(path).map_err(NetworkError::io(&shown))?;
    namespace::enter(&namespace).map_err(NetworkError::io(&shown))
}

impl PodNetwork for BridgeNetwork {
    fn unavailable_reason(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(async {
            let reason = self.call(|node| Ok(node.unavailable_reason())).await;
            reason.unwrap_or_else(|error| Some(error.to_string()))
        })
    }

    fn update_pod_cidrs(&self, cidrs: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(async { Ok(self.call(move |node| node.update_pod_cidrs(&cidrs)).await?) })
    }

    fn set_up(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<PodAddresses, RuntimeError>> {
        Box::pin(async {
            let addresses = self.call(move |node| node.set_up(&setup)).await?;
            Ok(PodAddresses { addresses })
        })
    }

    fn adopt(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<PodAddresses, RuntimeError>> {
        Box::pin(async {
            let addresses = self.call(move |node| node.adopt(&setup)).await?;
            Ok(PodAddresses { addresses })
        })
    }

    fn tear_down(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(async { Ok(self.call(move |node| node.tear_down(&setup)).await?) })
    }

    fn sweep(&self, sandboxes: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(async { Ok(self.call(move |node| node.sweep(&sandboxes)).await?) })
    }
}
