//! The network of a node without root: its network namespace, which this process's user namespace owns, and threads that are in it.
//!
//! The server stays in the machine's network namespace, where clients reach it. Everything of the node runs on the threads here:
//! kubelet, service proxy, policies, DNS. Their sockets are in the node's namespace, where its pods are.
//!
//! Invariants: no thread changes its namespace after it has done anything; the namespace outlives this process, as pods do.

use kaji_files::MountTable;
use kaji_netfilter::namespace;
use kaji_network::{NetworkError, prepare_node_namespace};
use kaji_outbound::networks::Networks;
use kaji_server::{Listener, StackError, TlsConfigHandle};
use std::{
    fs::File,
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
};
use tokio::runtime::{Builder, Handle, Runtime};

/// The node's address, and where pods reach the API server; of the range that RFC 2544 reserves for tests of devices.
pub const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 76, 1));
/// In the data directory: keeps the namespace by a mount.
const NAMESPACE: &str = "node.netns";

/// Why the node has no network.
#[derive(Debug, thiserror::Error)]
pub enum NodeNetworkError {
    /// The namespace.
    #[error("the node's network namespace: {0}")]
    Namespace(#[from] kaji_containers::RuntimeError),
    /// Its interface.
    #[error("the node's interface: {0}")]
    Interface(#[from] NetworkError),
    /// Its threads.
    #[error("threads in the node's network namespace: {0}")]
    Threads(#[from] io::Error),
}

/// Threads in a node's network namespace. They end when this is dropped.
pub struct NodeThreads(Option<Runtime>);

/// Runs tasks there.
#[derive(Clone, Debug)]
pub struct NodeNetwork {
    handle: Handle,
}

impl NodeThreads {
    /// Makes the network namespace of a data directory's node, or finds that of before.
    ///
    /// # Errors
    /// Those of the kernel.
    pub async fn start(data_dir: &Path) -> Result<NodeThreads, NodeNetworkError> {
        let path = std::path::absolute(data_dir)?.join(NAMESPACE);
        if MountTable::read()?.at(&path).is_none() {
            kaji_oci::create_network_namespace(path.clone()).await?;
        }
        prepare_node_namespace(&path, ADDRESS)?;
        let file = Arc::new(File::open(&path)?);
        // One that cannot enter must not open sockets of pods in the machine's network.
        namespace::inside(&path, || Ok(()))?;
        let enter = move || {
            if let Err(error) = namespace::enter(&file) {
                tracing::error!(%error, "a thread cannot enter the node's network namespace");
                std::process::abort();
            }
        };
        let runtime =
            Builder::new_multi_thread().enable_all().thread_name("node").on_thread_start(enter).build()?;
        Ok(NodeThreads(Some(runtime)))
    }

    /// Hands tasks to the threads; `None` once they end.
    #[must_use]
    pub fn network(&self) -> Option<NodeNetwork> {
        self.0.as_ref().map(|runtime| NodeNetwork { handle: runtime.handle().clone() })
    }
}

impl Drop for NodeThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // It may be dropped by a task of another runtime, which must not wait.
            runtime.shutdown_background();
        }
    }
}

impl NodeNetwork {
    /// The threads, for tasks that a set of tasks owns.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a task there and waits for it.
    ///
    /// # Errors
    /// When the task panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> io::Result<T> {
        self.handle.spawn(task).await.map_err(io::Error::other)
    }

    /// Listens at the node's address, for pods.
    ///
    /// # Errors
    /// Those of the listener.
    pub async fn listen(&self, port: u16, tls: TlsConfigHandle) -> Result<Listener, StackError> {
        self.run(Listener::bind(SocketAddr::new(ADDRESS, port), tls)).await?
    }

    /// From now on, this process connects to addresses of these ranges, and to the node, by the node's threads, and to all others by
    /// the caller's.
    pub fn divide(&self, ranges: &[String]) {
        let parse = |range: &String| {
            let (address, length) = range.split_once('/')?;
            Some((address.parse().ok()?, length.parse().ok()?))
        };
        let own = (ADDRESS, if ADDRESS.is_ipv4() { 32 } else { 128 });
        let ranges = ranges.iter().filter_map(parse).chain([own]).collect();
        Networks { outside: Handle::current(), inside: self.handle.clone(), ranges }.divide();
    }
}
