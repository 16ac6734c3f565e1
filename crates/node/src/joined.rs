//! A real node that joined a cluster over the network: the parts of [`crate::node`] with clients that use the
//! network.
//!
//! Invariant: every request has the node's own certificate. What the node authorizer does not grant (services' endpoints, network
//! policies and what they select) is granted to the group of all nodes by the roles that the server creates for it.

use crate::node::{self, NodeError, RealNodeConfig};
use kaji_kubelet::{agent::JoinedNode, cloud::ExternalCloud, node::NodeServer};
use kaji_options::ContainerRuntimeFlags;
use kaji_runtime::{Client, Error, Informers, Selected};
use kaji_server::FlagValues;
use serde_json::Value;
use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::PathBuf,
    time::Duration,
};
use tokio::net::lookup_host;

/// Before what the API server refused is asked again: its roles may be a moment younger than the node's certificate.
const RETRY: Duration = Duration::from_millis(500);
/// For how long it is asked.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// What a joined node needs beside its membership.
#[derive(Clone, Debug)]
pub struct JoinedNodeOptions {
    /// Images, containers, volumes and addresses are in directories of it.
    pub data_dir: PathBuf,
    /// The kubelet's directory; `None` for the usual one.
    pub root_dir: Option<PathBuf>,
    /// The API server, `host:port`.
    pub server: String,
    /// Which runtime runs containers.
    pub container_runtime: ContainerRuntimeFlags,
    /// Whether a cloud-controller-manager initializes the node.
    pub external_cloud: bool,
    /// The flags of the process, as `/flagz` shows them.
    pub flag_values: FlagValues,
}

/// Why a joined node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum JoinedNodeError {
    /// The node's address.
    #[error("no local address has a route to {server}: {error}")]
    Address {
        /// `host:port`
        server: String,
        /// Why.
        error: io::Error,
    },
    /// The ranges of cluster IPs.
    #[error("cannot list the cluster's ranges of services: {0}")]
    ServiceRanges(Error),
    /// The machine.
    #[error(transparent)]
    Node(#[from] NodeError),
}

/// Runs the node until it is stopped.
///
/// # Errors
/// What this machine or the cluster lacks.
pub async fn run(options: JoinedNodeOptions, mut joined: JoinedNode) -> Result<(), JoinedNodeError> {
    let given = options.container_runtime.node_ips.clone();
    let external_cloud = options.external_cloud.then(|| ExternalCloud { node_ips: given.clone() });
    let addresses = match given.is_empty() {
        false => given,
        true => vec![
            own_address(&options.server)
                .await
                .map_err(|error| JoinedNodeError::Address { server: options.server.clone(), error })?,
        ],
    };
    // The API server connects to the first one.
    let address = addresses[0];
    // The service proxy of upstream calls itself so.
    let client = joined.shared.client.named("kube-proxy");
    let service_cidrs = tokio::select! {
        ranges = service_ranges(&client) => ranges.map_err(JoinedNodeError::ServiceRanges)?,
        _ = joined.stop.wait_for(|stop| *stop) => return Ok(()),
    };
    let cluster = Informers::timed(client, Selected::default(), joined.shared.clock.clone());
    let (server, certificates) = joined.kubelet_server(address);
    let config = RealNodeConfig {
        data_dir: options.data_dir,
        root_dir: options.root_dir,
        name: joined.name,
        addresses,
        service_cidrs,
        server: Some(NodeServer { config: server, address }),
        container_runtime: options.container_runtime,
        external_cloud,
        flag_values: options.flag_values,
    };
    let running = node::run(config, cluster, joined.shared, joined.stop);
    let certificates = async {
        certificates.await;
        // It ends with the node, which has more to do then.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = running => Ok(ended?),
        () = certificates => Ok(()),
    }
}

/// The address of this machine that a connection to the server has; nothing is sent.
async fn own_address(server: &str) -> io::Result<IpAddr> {
    let mut last = io::Error::other("the name has no address");
    for server in lookup_host(server).await? {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
        };
        let routed = UdpSocket::bind(any).and_then(|socket| {
            socket.connect(server)?;
            socket.local_addr()
        });
        match routed {
            Ok(own) if own.ip().is_loopback() => {
                last = io::Error::other("it is on this machine; name the node's address with --node-ip");
            }
            Ok(own) => return Ok(own.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The ranges of cluster IPs that services are given at first.
async fn service_ranges(client: &Client) -> Result<Vec<String>, Error> {
    let began = tokio::time::Instant::now();
    loop {
        match client.get::<Value>("/apis/networking.k8s.io/v1/servicecidrs").await {
            Ok(list) => return Ok(ranges(&list)),
            Err(error) if began.elapsed() > JOIN_TIMEOUT => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "the ranges of services could not be read; retrying");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Those of the object that every cluster has come first: cluster DNS has an address of its first one.
fn ranges(list: &Value) -> Vec<String> {
    let mut items: Vec<&Value> = list["items"].as_array().into_iter().flatten().collect();
    items.sort_by_key(|item| item["metadata"]["name"] != "kubernetes");
    let cidrs = items.iter().flat_map(|item| item["spec"]["cidrs"].as_array().into_iter().flatten());
    cidrs.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_range_is_the_clusters_own() {
        let list = json!({"items": [
            {"metadata": {"name": "another"}, "spec": {"cidrs": ["10.200.0.0/24"]}},
            {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12", "fd00::/112"]}},
        ]});
        assert_eq!(ranges(&list), ["10.96.0.0/12", "fd00::/112", "10.200.0.0/24"]);
    }

    #[tokio::test]
    async fn a_server_on_the_loopback_names_no_address() {
        let error = own_address("127.0.0.1:6443").await.unwrap_err();
        assert!(error.to_string().contains("--node-ip"), "{error}");
    }
}
