//! Kubeconfig files that name webhooks: the server, its path, and the credentials of the current context.

use crate::kubeconfig_file::client_config;
use std::path::Path;

/// How to connect to a webhook that a kubeconfig file names.
pub struct WebhookClientConfig {
    /// The server without its path, and credentials.
    pub config: kube::Config,
    /// The path and query of the server's URL, which requests are posted to as it is.
    pub path: String,
}

impl WebhookClientConfig {
    /// Reads a kubeconfig file.
    ///
    /// # Errors
    /// Those of [`client_config`].
    pub async fn read(file: &Path) -> Result<WebhookClientConfig, String> {
        let mut config = client_config(file).await?;
        // The client would add a slash to the path of the server's URL.
        let mut url = config.cluster_url.into_parts();
        let path = url.path_and_query.replace(http::uri::PathAndQuery::from_static("/"));
        config.cluster_url = http::Uri::from_parts(url).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(WebhookClientConfig {
            config,
            path: path.map_or_else(|| "/".to_owned(), |p| p.as_str().to_owned()),
        })
    }
}
