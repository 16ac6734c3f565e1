//! The API server that a kubeconfig names, and clients of it.

use crate::{ComponentError, limits::Limits, rest_client::RestClientMetrics, transport::Transport};
use kaji_access::kubeconfig_file::client_config;
use kaji_files::kubeconfig;
use kaji_meta::text;
use kaji_options::component::ConnectionOptions;
use kaji_runtime::Client;
use std::{path::Path, time::Duration};

/// A connection without a byte for so long is given up. Servers send bookmarks every minute.
const SILENCE: Duration = Duration::from_secs(300);

/// The API server of a component.
pub(crate) struct ApiServer {
    config: kube::Config,
    limit: Option<(f64, u32)>,
    /// Of the requests of all transports.
    pub metrics: RestClientMetrics,
}

impl ApiServer {
    /// Reads the kubeconfig.
    pub async fn new(options: &ConnectionOptions) -> Result<ApiServer, ComponentError> {
        let variable = |name: &str| std::env::var(name).ok();
        let path = options.kubeconfig.clone().unwrap_or_else(|| {
            kubeconfig::default_path(variable("KUBECONFIG").as_deref(), variable("HOME").as_deref())
        });
        let mut config = Self::config(&path).await?;
        if let Some(master) = &options.master {
            let wrong = |error: &dyn std::fmt::Display| {
                ComponentError::Connection(format!("--master {master}: {error}"))
            };
            config.cluster_url = master.parse().map_err(|error| wrong(&error))?;
        }
        Ok(ApiServer { config, limit: options.limit, metrics: RestClientMetrics::default() })
    }

    async fn config(path: &Path) -> Result<kube::Config, ComponentError> {
        let mut config = client_config(path).await.map_err(ComponentError::Connection)?;
        // Callers decide which requests are sent again.
        config.default_retry = false;
        config.read_timeout = Some(SILENCE);
        Ok(config)
    }

    /// The URL, for logs.
    pub fn url(&self) -> String {
        self.config.cluster_url.to_string()
    }

    /// The certificates by which the server is recognized, PEM; empty where those of the machine are.
    pub fn authorities(&self) -> String {
        let der = self.config.root_cert.iter().flatten();
        der.map(|der| text::pem("CERTIFICATE", der)).collect()
    }

    /// Sends requests with the kubeconfig's credentials.
    pub fn transport(&self) -> Result<Transport, ComponentError> {
        let host = self.config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
        let transport = Transport::new(connect(self.config.clone())?, self.limit.map(Limits::new));
        Ok(transport.measured(self.metrics.clone(), host))
    }

    /// Connections that have no credentials.
    pub fn without_credentials(&self) -> Result<kube::Client, ComponentError> {
        let mut config = self.config.clone();
        config.auth_info = kube::config::AuthInfo::default();
        connect(config)
    }

    /// A client that acts as a kubeconfig says, without limits: for reviews.
    pub async fn reviewer(path: &Path, component: &str) -> Result<Client, ComponentError> {
        Ok(Client::new(connect(Self::config(path).await?)?, component))
    }
}

fn connect(config: kube::Config) -> Result<kube::Client, ComponentError> {
    kube::Client::try_from(config).map_err(|error| ComponentError::Connection(error.to_string()))
}
