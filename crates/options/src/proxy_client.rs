//! Flags of the certificate with which the aggregator authenticates to extension API servers.

use clap::Args;
use std::path::PathBuf;

/// The client certificate that the aggregator presents, if files name one.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Aggregation")]
pub struct ProxyClient {
    /// The client certificate of the aggregator, PEM; reloaded when it changes.
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file")]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    pub proxy_client_key_file: Option<PathBuf>,
}

impl ProxyClient {
    /// Certificate and key, if the flags name them.
    pub fn paths(&self) -> Option<[PathBuf; 2]> {
        Some([self.proxy_client_cert_file.clone()?, self.proxy_client_key_file.clone()?])
    }
}
