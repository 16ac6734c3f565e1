//! Flags of a real node: of its container runtime, and of the kubelet's files. Upstream's kubelet has them.

use clap::Args;
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
    /// The directories of CNI plug-ins.
    #[arg(long, value_name = "DIR", requires = "cni", value_delimiter = ',', default_value = "/opt/cni/bin")]
    pub cni_bin_dir: Vec<PathBuf>,
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
    use super::endpoint;

    #[test]
    fn endpoints_are_unix_sockets() {
        assert_eq!(endpoint("/run/a.sock"), Ok("unix:///run/a.sock".to_owned()));
        assert_eq!(endpoint("unix:///run/a.sock"), Ok("unix:///run/a.sock".to_owned()));
        for wrong in ["", "a.sock", "tcp://127.0.0.1:1", "unix://a.sock", "npipe:////./pipe/x"] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
    }
}
