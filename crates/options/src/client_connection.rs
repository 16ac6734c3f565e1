//! Flags of commands that are clients of a cluster: kubectl's names and meanings.
//!
//! The short help (`-h`) has those that are needed often; the others have a heading.
//!
//! Invariant: a flag wins over what the kubeconfig says of the same thing, and over nothing else.

use clap::Args;
use std::{path::PathBuf, time::Duration};

/// The connection to the API server.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection")]
pub struct ClientConnectionFlags {
    /// The kubeconfig file. Default: $KUBECONFIG, then ~/.kube/config.
    #[arg(long, value_name = "FILE", help_heading = None::<&str>)]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig.
    #[arg(long, value_name = "NAME", help_heading = None::<&str>)]
    pub context: Option<String>,
    /// The cluster of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// The user of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// The namespace. Default: the context's, then default.
    #[arg(long, short, value_name = "NAME", help_heading = None::<&str>)]
    pub namespace: Option<String>,
    /// The API server's URL.
    #[arg(long, short, value_name = "URL")]
    pub server: Option<String>,
    /// A bearer token.
    #[arg(long, value_name = "TOKEN", env = "KAJI_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// The certificates that vouch for the server, PEM.
    #[arg(long, value_name = "FILE")]
    pub certificate_authority: Option<PathBuf>,
    /// Does not verify the server's certificate: what it answers may come from anywhere.
    #[arg(long, conflicts_with = "certificate_authority")]
    pub insecure_skip_tls_verify: bool,
    /// The name in the server's certificate.
    #[arg(long, value_name = "NAME")]
    pub tls_server_name: Option<String>,
    /// A client certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_certificate: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    pub client_key: Option<PathBuf>,
    /// The user to act as.
    #[arg(long = "as", value_name = "USER")]
    pub impersonate_user: Option<String>,
    /// A group to act as; may be repeated.
    #[arg(long = "as-group", value_name = "GROUP", requires = "impersonate_user")]
    pub impersonate_groups: Vec<String>,
    /// The uid to act as.
    #[arg(long = "as-uid", value_name = "UID", requires = "impersonate_user")]
    pub impersonate_uid: Option<String>,
    /// How long one request may take.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = super::duration)]
    pub request_timeout: Duration,
}
