//! The connections to a runtime's and an image service's sockets, and what their errors mean.
//!
//! Invariant: a call has a deadline. Those of upstream's kubelet are used: two minutes, and what the operation itself may take.

use crate::messages::{RuntimeConfigRequest, RuntimeConfigResponse, StatusRequest, StatusResponse};
use crate::messages::{VersionRequest, VersionResponse};
use kaji_containers::RuntimeError;
use kaji_grpc::{CallError, Client, Code};
use prost::Message;
use serde_json::Value;
use std::time::Duration;
use thiserror::Error;

/// The deadline of a call, upstream's `--runtime-request-timeout`.
pub const CALL: Duration = Duration::from_secs(120);
/// Bytes of a message, upstream's limit.
const MESSAGE: usize = 16 << 20;
/// What a runtime that cannot be reached yet is given: it may start at the same time as this program does.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two attempts to reach it.
const PAUSE: Duration = Duration::from_millis(500);
/// The prefix of errors that upstream's `pkg/kubelet/images` gives reasons of their own.
const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";
const SIGNATURE: &str = "SignatureValidationFailed";

/// Where a runtime is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// `--container-runtime-endpoint`: `unix:///run/containerd/containerd.sock`.
    pub runtime: String,
    /// `--image-service-endpoint`; that of the runtime if it is left out.
    pub images: Option<String>,
}

/// Why a runtime cannot be used.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// No unix socket.
    #[error(
        "the container runtime endpoint {0:?} is no unix socket (unix:///run/containerd/containerd.sock)"
    )]
    Endpoint(String),
    /// It does not answer, or not in version 1 of the interface.
    #[error("validate CRI v1 runtime API for endpoint {endpoint:?}: {error}")]
    Version {
        /// Which one.
        endpoint: String,
        /// Why.
        error: CallError,
    },
    /// Its cgroups are made by systemd.
    #[error(
        "the container runtime at {0:?} uses the systemd cgroup driver, and Kaji manages cgroups itself: set SystemdCgroup = \
         false (containerd), or cgroup_manager = \"cgroupfs\" and conmon_cgroup = \"pod\" (CRI-O)"
    )]
    SystemdCgroups(String),
    /// The directory of what is kept about sandboxes.
    #[error("the directory of sandboxes' configurations: {0}")]
    Directory(std::io::Error),
}

/// A service of CRI at its socket.
pub struct Connection {
    client: Client,
}

impl Connection {
    /// The service at an endpoint. Nothing is connected yet.
    ///
    /// # Errors
    /// An endpoint that is no unix socket.
    pub fn new(endpoint: &str) -> Result<Connection, ConnectError> {
        let client =
            Client::of_endpoint(endpoint).ok_or_else(|| ConnectError::Endpoint(endpoint.to_owned()))?;
        Ok(Connection { client: client.message_limit(MESSAGE) })
    }

    /// A call with the usual deadline.
    pub async fn call<M, R>(&self, method: &'static str, message: M) -> Result<R, RuntimeError>
    where
        M: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        self.call_within(method, message, CALL).await
    }

    /// A call with a deadline of its own.
    pub async fn call_within<M, R>(
        &self,
        method: &'static str,
        message: M,
        deadline: Duration,
    ) -> Result<R, RuntimeError>
    where
        M: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        self.client.unary(method, message, deadline).await.map_err(error)
    }

    /// Waits until the runtime answers, and says which it is.
    ///
    /// # Errors
    /// It did not, or it speaks another version of the interface.
    pub async fn version(&self, endpoint: &str) -> Result<VersionResponse, ConnectError> {
        let began = tokio::time::Instant::now();
        let mut said = false;
        loop {
            let version = VersionRequest { version: "v1".into() };
            let error = match self.client.unary("/runtime.v1.RuntimeService/Version", version, CALL).await {
                Ok(version) => return Ok(version),
                Err(error) => error,
            };
            if error.code != Code::Unavailable || began.elapsed() > CONNECT_TIMEOUT {
                return Err(ConnectError::Version { endpoint: endpoint.to_owned(), error });
            }
            if !std::mem::replace(&mut said, true) {
                tracing::warn!(%error, endpoint, "the container runtime does not answer yet");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Whether the runtime has systemd make its cgroups. Runtimes that do not have the question show their configuration.
    pub async fn systemd_cgroups(&self) -> bool {
        let method = "/runtime.v1.RuntimeService/RuntimeConfig";
        let asked: Result<RuntimeConfigResponse, _> =
            self.call(method, RuntimeConfigRequest::default()).await;
        if let Ok(answer) = asked {
            return answer.linux.is_some_and(|linux| linux.cgroup_driver == 0);
        }
        let config = self.configuration().await;
        let containerd = &config["containerd"];
        let handler = containerd["defaultRuntimeName"].as_str().unwrap_or("runc");
        containerd["runtimes"][handler]["options"]["SystemdCgroup"] == Value::Bool(true)
    }

    /// What the runtime shows of its configuration, for people; null if that is nothing.
    pub async fn configuration(&self) -> Value {
        let method = "/runtime.v1.RuntimeService/Status";
        let status: Result<StatusResponse, _> = self.call(method, StatusRequest { verbose: true }).await;
        let text = status.ok().and_then(|status| status.info.get("config").cloned()).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }
}

/// What an error of the runtime means to the kubelet; its text is the runtime's with the code, as upstream shows it.
pub fn error(error: CallError) -> RuntimeError {
    let text = error.to_string();
    if error.message.starts_with(REGISTRY_UNAVAILABLE) {
        return RuntimeError::RegistryUnavailable(text);
    }
    if error.message.starts_with(SIGNATURE) {
        return RuntimeError::SignatureValidationFailed(text);
    }
    match error.code {
        Code::NotFound => RuntimeError::NotFound(text),
        Code::AlreadyExists => RuntimeError::AlreadyExists(text),
        Code::InvalidArgument => RuntimeError::InvalidArgument(text),
        Code::DeadlineExceeded => RuntimeError::DeadlineExceeded(text),
        Code::FailedPrecondition => RuntimeError::FailedPrecondition(text),
        Code::Unimplemented => RuntimeError::Unimplemented(text),
        Code::Unavailable => RuntimeError::Unavailable(text),
        _ => RuntimeError::Internal(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_meaning_and_their_text() {
        let cases = [
            (Code::NotFound, "container \"a\": not found"),
            (Code::Unknown, "RegistryUnavailable: pull QPS exceeded"),
            (Code::Unknown, "SignatureValidationFailed: no key"),
            (Code::Unimplemented, "unknown method GetContainerEvents for service runtime.v1.RuntimeService"),
            (
                Code::Unknown,
                "failed to create containerd task: exec: \"x\": executable file not found in $PATH",
            ),
        ];
        let shown: Vec<String> = cases
            .into_iter()
            .map(|(code, message)| {
                format!("{:?}", error(CallError { code, message: message.into(), unsent: false }))
            })
            .collect();
        expect_test::expect![[r#"
            NotFound("rpc error: code = NotFound desc = container \"a\": not found")
            RegistryUnavailable("rpc error: code = Unknown desc = RegistryUnavailable: pull QPS exceeded")
            SignatureValidationFailed("rpc error: code = Unknown desc = SignatureValidationFailed: no key")
            Unimplemented("rpc error: code = Unimplemented desc = unknown method GetContainerEvents for service runtime.v1.RuntimeService")
            Internal("rpc error: code = Unknown desc = failed to create containerd task: exec: \"x\": executable file not found in $PATH")"#]]
        .assert_eq(&shown.join("\n"));
    }
}
