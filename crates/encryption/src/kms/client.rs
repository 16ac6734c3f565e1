//! The three calls of a plugin: gRPC over a unix socket.
//!
//! Invariant: a call ends within its timeout, whatever the plugin does, and waits that long for a plugin that is not there yet.

use super::api;
use crate::metrics::Metrics;
use kaji_grpc::CallError;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

const STATUS: &str = "/v2.KeyManagementService/Status";
const ENCRYPT: &str = "/v2.KeyManagementService/Encrypt";
const DECRYPT: &str = "/v2.KeyManagementService/Decrypt";

/// A plugin's socket.
pub struct Client {
    plugin: String,
    socket: kaji_grpc::Client,
    timeout: Duration,
    metrics: Arc<Metrics>,
}

impl Client {
    /// The plugin at an endpoint, `unix:///run/plugin.sock` or (without a file) `unix:///@name`; `None` for one of another
    /// form.
    pub fn new(plugin: &str, endpoint: &str, timeout: Duration, metrics: Arc<Metrics>) -> Option<Self> {
        let socket = Some(endpoint).filter(|endpoint| endpoint.starts_with("unix:"));
        let socket = socket.and_then(kaji_grpc::Client::of_endpoint)?.waiting_for_peer();
        Some(Client { plugin: plugin.to_owned(), socket, timeout, metrics })
    }

    pub async fn status(&self) -> Result<api::StatusResponse, CallError> {
        self.call(STATUS, api::StatusRequest {}).await
    }

    pub async fn encrypt(&self, request: api::EncryptRequest) -> Result<api::EncryptResponse, CallError> {
        self.call(ENCRYPT, request).await
    }

    pub async fn decrypt(&self, request: api::DecryptRequest) -> Result<api::DecryptResponse, CallError> {
        self.call(DECRYPT, request).await
    }

    async fn call<M, R>(&self, method: &'static str, message: M) -> Result<R, CallError>
    where
        M: prost::Message + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        let started = Instant::now();
        let answer = self.socket.unary(method, message, self.timeout).await;
        let code = answer.as_ref().map_or_else(CallError::code_name, |_| "OK");
        self.metrics.called(&self.plugin, method, code, started.elapsed());
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for (endpoint, path) in [
            ("unix:///run/kms/plugin.sock", Some("/run/kms/plugin.sock")),
            ("unix:/run/plugin.sock", Some("/run/plugin.sock")),
            ("unix://host/run/plugin.sock", Some("/run/plugin.sock")),
            ("unix:///@plugin", Some("\0plugin")),
            ("unix://", None),
            ("unix:plugin.sock", None),
            ("tcp://localhost:1", None),
            ("/run/plugin.sock", None),
        ] {
            let client = Client::new("p", endpoint, Duration::from_secs(1), Arc::default());
            assert_eq!(client.as_ref().map(|c| c.socket.path().to_str().unwrap()), path, "{endpoint}");
        }
    }
}
