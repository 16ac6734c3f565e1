//! Starts audit, and the client of its webhook.
//!
//! Invariant: a configuration that cannot be used keeps the cluster from starting.

use crate::webhook_config::WebhookClientConfig;
use bytes::Bytes;
use kaji_audit::{AuditDependencies, AuditError, Options, Post};
use kaji_meta::{SystemClock, random::SystemRandom};
use kaji_resource::BoxFuture;
use kaji_server::{Audit, Metrics};
use kube::client::Body;
use std::{path::Path, sync::Arc};

/// Starts the audit backends; `None` without a policy or without a backend.
pub async fn start(options: &Options, metrics: &mut Metrics) -> Result<Option<Arc<Audit>>, AuditError> {
    let webhook: Option<Arc<dyn Post>> = match &options.webhook.config_file {
        // Without a policy there is nothing to send.
        Some(file) if options.policy_file.is_some() => {
            Some(Arc::new(AuditWebhook::new(file).await.map_err(AuditError::Webhook)?))
        }
        _ => None,
    };
    let (clock, random) = (Arc::new(SystemClock), Arc::new(SystemRandom));
    Audit::start(options, AuditDependencies { clock, random, webhook }, metrics)
}

/// The audit webhook: a server that events are posted to.
struct AuditWebhook {
    client: kube::Client,
    path: String,
}

impl AuditWebhook {
    /// The server that a kubeconfig file's current context names.
    async fn new(file: &Path) -> Result<AuditWebhook, String> {
        let WebhookClientConfig { mut config, path } = WebhookClientConfig::read(file).await?;
        // The audit backend retries and counts its attempts.
        config.default_retry = false;
        let client = kube::Client::try_from(config).map_err(|e| format!("{}: {e}", file.display()))?;
        let path = path.split_once('?').map_or(&*path, |(path, _)| path);
        Ok(AuditWebhook { client, path: format!("{path}?timeout=30s") })
    }

    async fn send(&self, body: Bytes) -> Result<(), String> {
        let request = http::Request::post(&self.path)
            .header("accept", "application/json, */*")
            .header("content-type", "application/json")
            .body(Body::from(body))
            .map_err(|e| e.to_string())?;
        let response = self.client.send(request).await.map_err(|e| e.to_string())?;
        let status = response.status();
        // A connection can be used again once its response was read.
        let answer = response.into_body().collect_bytes().await.map_err(|e| e.to_string())?;
        if status.is_success() {
            return Ok(());
        }
        const SHOWN: usize = 256;
        let text = String::from_utf8_lossy(&answer[..answer.len().min(SHOWN)]).into_owned();
        Err(format!("the server answered {status}: {text}"))
    }
}

impl Post for AuditWebhook {
    fn post(&self, body: Bytes) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.send(body))
    }
}
