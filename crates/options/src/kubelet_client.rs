//! Flags of the client with which the API server reaches kubelets.

use clap::Args;
use std::path::PathBuf;

/// How kubelets are reached, for logs, `exec` and the like.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Kubelets")]
pub struct KubeletClient {
    /// The authority that kubelets' serving certificates must be by, PEM (default: the cluster's own).
    #[arg(long, value_name = "FILE")]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// The client certificate for kubelets, PEM (default: one by the cluster's authority); reloaded when it changes.
    #[arg(long, value_name = "FILE", requires = "kubelet_client_key")]
    pub kubelet_client_certificate: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "kubelet_client_certificate")]
    pub kubelet_client_key: Option<PathBuf>,
    /// The types of nodes' addresses in order of preference (default
    /// InternalIP,ExternalIP,Hostname,InternalDNS,ExternalDNS).
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    pub kubelet_preferred_address_types: Vec<String>,
}

impl KubeletClient {
    /// Certificate and key, if the flags name them.
    pub fn paths(&self) -> Option<[PathBuf; 2]> {
        Some([self.kubelet_client_certificate.clone()?, self.kubelet_client_key.clone()?])
    }
}
