//! Flags of a real node: of its container runtime, of the kubelet's files, and of its addresses. Upstream's kubelet and kube-proxy have them.

use clap::Args;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Which runtime runs a node's containers.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Container runtime")]
pub struct ContainerRuntimeFlags {
    /// Runs containers with the CRI runtime at this socket (unix:///run/containerd/containerd.sock) instead of the built-in one.
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
    pub container_runtime_endpoint: Option<String>,
    /// The socket of the runtime's images, if it is another one.
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint, requires = "container_runtime_endpoint")]
    pub image_service_endpoint: Option<String>,
    /// Mirrors, plain HTTP, credentials and certificates of registries (k3s' registries.yaml), for pulls of the built-in runtime; each pull reads
    /// the file anew.
    #[arg(long, value_name = "FILE", conflicts_with = "container_runtime_endpoint")]
    pub registries: Option<PathBuf>,
    /// Plug-ins that give credentials for images: a CredentialProviderConfig, or a directory of them.
    #[arg(long, value_name = "PATH", requires = "image_credential_provider_bin_dir")]
    pub image_credential_provider_config: Option<PathBuf>,
    /// The directory of their programs.
    #[arg(long, value_name = "DIR", requires = "image_credential_provider_config")]
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// A KubeletConfiguration (kubelet.config.k8s.io/v1beta1): logs, images, eviction, reservations, processors.
    #[arg(long, value_name = "FILE")]
    pub kubelet_config: Option<PathBuf>,
    /// Sysctls beside the safe ones that pods may set, or patterns of them that end with *; they stand for what the KubeletConfiguration allows.
    #[arg(long, value_name = "SYSCTLS", value_delimiter = ',')]
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Pods of the built-in runtime get the network that CNI plug-ins make (Calico, Cilium, Flannel), not the built-in one.
    #[arg(long, conflicts_with = "container_runtime_endpoint")]
    pub cni: bool,
    /// The directory of CNI configurations; the first one by name is used.
    #[arg(long, value_name = "DIR", requires = "cni", default_value = "/etc/cni/net.d")]
    pub cni_conf_dir: PathBuf,
    /// The node's address, or two of different families, the primary one first. Default: the one at which other machines reach it.
    #[arg(long = "node-ip", value_name = "IPS", value_delimiter = ',', value_parser = node_ip, help_heading = "Network")]
    pub node_ips: Vec<IpAddr>,
    /// The domain of services' names; it stands for clusterDomain of the KubeletConfiguration. Default: cluster.local.
    #[arg(long, value_name = "DOMAIN", value_parser = domain, help_heading = "Network")]
    pub cluster_domain: Option<String>,
    /// Where the service proxy answers /healthz, for load balancers; empty for nowhere. Default: port 10256 of all addresses.
    #[arg(long, value_name = "ADDRESS", value_parser = health_address, help_heading = "Network")]
    pub healthz_bind_address: Option<BindAddress>,
    /// Where the service proxy has its metrics; empty for nowhere. Default: 127.0.0.1:10249.
    #[arg(long, value_name = "ADDRESS", value_parser = metrics_address, help_heading = "Network")]
    pub metrics_bind_address: Option<BindAddress>,
    /// The directories of CNI plug-ins.
    #[arg(long, value_name = "DIR", requires = "cni", value_delimiter = ',', default_value = "/opt/cni/bin")]
    pub cni_bin_dir: Vec<PathBuf>,
}

/// Where something listens: nowhere if the flag's value is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindAddress(Option<SocketAddr>);

impl BindAddress {
    /// What a flag says, or the default.
    #[must_use]
    pub fn or(flag: Option<BindAddress>, address: IpAddr, port: u16) -> Option<SocketAddr> {
        flag.map_or(Some(SocketAddr::new(address, port)), |flag| flag.0)
    }

    /// As upstream: an address with a port, or without one, or nothing.
    fn parse(text: &str, port: u16) -> Result<BindAddress, String> {
        if text.is_empty() {
            return Ok(BindAddress(None));
        }
        let alone = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, port));
        let address = alone.or_else(|_| text.parse());
        address.map(|address| BindAddress(Some(address))).map_err(|_| "expected IP or IP:port".to_owned())
    }
}

fn health_address(text: &str) -> Result<BindAddress, String> {
    BindAddress::parse(text, 10256)
}

fn metrics_address(text: &str) -> Result<BindAddress, String> {
    BindAddress::parse(text, 10249)
}

fn node_ip(text: &str) -> Result<IpAddr, String> {
    let ip: IpAddr = text.parse().map_err(|_| "expected an IP address".to_owned())?;
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let wrong = [
        (ip.is_loopback(), "loopback"),
        (ip.is_multicast(), "multicast"),
        (link_local, "link-local unicast"),
        (ip.is_unspecified(), "all zeros"),
    ];
    match wrong.into_iter().find(|(is, _)| *is) {
        Some((_, kind)) => Err(format!("nodeIP can't be {kind} address")),
        None => Ok(ip),
    }
}

fn domain(text: &str) -> Result<String, String> {
    match kaji_meta::validation::is_dns1123_subdomain(text).into_iter().next() {
        Some(error) => Err(error),
        None => Ok(text.to_owned()),
    }
}

impl ContainerRuntimeFlags {
    /// The node's addresses, or the one that it has without the flag.
    #[must_use]
    pub fn node_ips_or(&self, address: IpAddr) -> Vec<IpAddr> {
        if self.node_ips.is_empty() { vec![address] } else { self.node_ips.clone() }
    }

    /// Whether the addresses are one, or two of different families.
    ///
    /// # Errors
    /// Upstream's text.
    pub fn check_node_ips(&self) -> Result<(), String> {
        match self.node_ips.as_slice() {
            [] | [_] => Ok(()),
            [first, second] if first.is_ipv4() != second.is_ipv4() => Ok(()),
            _ => Err("--node-ip must contain either a single IP or a dual-stack pair of IPs".into()),
        }
    }
}

/// As upstream, a path alone is a unix socket.
fn endpoint(text: &str) -> Result<String, String> {
    match text.split_once("://") {
        Some(("unix", path)) if path.starts_with('/') => Ok(text.to_owned()),
        None if text.starts_with('/') => Ok(format!("unix://{text}")),
        _ => Err("expected the path of a unix socket, unix:///run/containerd/containerd.sock".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{BindAddress, ContainerRuntimeFlags, endpoint, health_address, metrics_address, node_ip};

    #[test]
    fn nodes_have_an_address_of_each_family() {
        let checked = |texts: &[&str]| {
            let node_ips = texts.iter().map(|text| node_ip(text)).collect::<Result<_, _>>()?;
            ContainerRuntimeFlags { node_ips, ..ContainerRuntimeFlags::default() }.check_node_ips()
        };
        for right in [&["192.0.2.1"][..], &["fd00::1", "192.0.2.1"], &[]] {
            assert_eq!(checked(right), Ok(()));
        }
        for wrong in [
            &["192.0.2.1", "192.0.2.2"][..],
            &["192.0.2.1", "fd00::1", "fd00::2"],
            &["0.0.0.0"],
            &["127.0.0.1"],
            &["fe80::1"],
            &["node.example"],
            &[""],
        ] {
            assert!(checked(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_service_proxy_listens_as_upstreams() {
        let at = |flag| BindAddress::or(flag, [0, 0, 0, 0].into(), 10256).map(|address| address.to_string());
        assert_eq!(at(None).unwrap(), "0.0.0.0:10256");
        assert_eq!(at(Some(health_address("127.0.0.1").unwrap())).unwrap(), "127.0.0.1:10256");
        assert_eq!(at(Some(health_address("[::]:99").unwrap())).unwrap(), "[::]:99");
        assert_eq!(at(Some(metrics_address("::1").unwrap())).unwrap(), "[::1]:10249");
        assert_eq!(at(Some(health_address("").unwrap())), None);
        for wrong in ["a", "1.2.3.4:x", "1.2.3.4:99999", ":10256"] {
            assert!(health_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn endpoints_are_unix_sockets() {
        assert_eq!(endpoint("/run/a.sock"), Ok("unix:///run/a.sock".to_owned()));
        assert_eq!(endpoint("unix:///run/a.sock"), Ok("unix:///run/a.sock".to_owned()));
        for wrong in ["", "a.sock", "tcp://127.0.0.1:1", "unix://a.sock", "npipe:////./pipe/x"] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
    }
}
