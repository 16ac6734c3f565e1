//! A node in a namespace, with a namespace beside it that stands for the rest of the world.

use kaji_containers::{NetworkSetup, PodSandboxMetadata, PortMapping, Protocol};
use kaji_network::{BridgeNetwork, NetworkConfig};
use kaji_testing::netns::Netns;

pub struct World {
    pub node: Netns,
    pub outside: Netns,
    pub state: tempfile::TempDir,
}

impl World {
    /// The node has 192.0.2.1 and fd99::1, the outside 192.0.2.2 and fd99::2, which knows no way to pods.
    pub fn new(test: &str) -> Option<World> {
        let node = Netns::new(test)?;
        let outside = Netns::new(test)?;
        node.ip(&format!("link add uplink type veth peer name uplink netns {}", outside.name()));
        for (side, number) in [(&node, 1), (&outside, 2)] {
            side.ip(&format!("addr add 192.0.2.{number}/24 dev uplink"));
            side.ip(&format!("addr add fd99::{number}/64 dev uplink nodad"));
            side.ip("link set uplink up");
        }
        // Showing a link makes the kernel notice its carrier.
        let up = |side: &Netns| side.ip("-o link show dev uplink").contains("state UP");
        while !(up(&node) && up(&outside)) {
            std::thread::yield_now();
        }
        node.ip("route add default via 192.0.2.2");
        Some(World { node, outside, state: tempfile::tempdir().unwrap() })
    }

    pub fn config(&self) -> NetworkConfig {
        let mut config = NetworkConfig::new("node", self.state.path().into());
        config.namespace = Some(self.node.path());
        config
    }

    pub async fn network(&self) -> BridgeNetwork {
        BridgeNetwork::start(self.config()).await.unwrap()
    }
}

pub fn setup(namespace: &Netns, sandbox: &str, ports: &[(u16, u16)]) -> NetworkSetup {
    NetworkSetup {
        sandbox_id: sandbox.into(),
        metadata: PodSandboxMetadata {
            name: sandbox.into(),
            namespace: "default".into(),
            ..PodSandboxMetadata::default()
        },
        namespace: namespace.path(),
        port_mappings: ports
            .iter()
            .map(|(host_port, container_port)| PortMapping {
                protocol: Protocol::Tcp,
                container_port: *container_port,
                host_port: *host_port,
                host_ip: None,
            })
            .collect(),
        ..NetworkSetup::default()
    }
}
