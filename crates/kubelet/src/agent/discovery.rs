//! Token-based discovery: the public `cluster-info` is fetched from an unverified server, verified by its signature with the
//! token and by the pinned key of its certificate authority, and fetched again from a server that the authority has signed.
//!
//! Invariant: until both are verified only the public request is sent, and at most [`MAX_RESPONSE`] bytes are read.
//!
//! Source: kubeadm's `discovery/token`; KEP-130 "Node bootstrap".

use super::{AgentError, connect::Endpoint};
use crate::{
    cluster_info::{NAME, NAMESPACE},
    public_key_pins::Pins,
};
use http::Request;
use http_body_util::{BodyExt, Limited};
use kaji_auth::cluster_info;
use kaji_files::kubeconfig::certificate_authority;
use kube::client::Body;
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;

/// The size limit of responses of an unverified server, in bytes.
const MAX_RESPONSE: usize = 1 << 20;
/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between attempts.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A token's two parts.
pub struct JoinToken {
    /// Public.
    pub id: String,
    /// Secret.
    pub secret: String,
}

/// The certificate authorities (DER) of the cluster at an endpoint. Transient failures (a server that starts, a token that was
/// just created) are retried for as long as `timeout`.
///
/// # Errors
/// When the cluster is not to be trusted, or could not be reached.
pub async fn discover(
    endpoint: &Endpoint,
    token: &JoinToken,
    pins: &Pins,
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, AgentError> {
    let give_up = Instant::now() + timeout;
    let first = fetch(endpoint, &endpoint.unverified()?, token, give_up).await?;
    let kubeconfig = verified(&first, token)?;
    let authorities = pins
        .choose(&certificate_authority(kubeconfig).map_err(AgentError::ClusterInfo)?)
        .map_err(AgentError::Authority)?;
    let second = fetch(endpoint, &endpoint.verified(&authorities)?, token, give_up).await?;
    if second["data"]["kubeconfig"] != kubeconfig {
        return Err(AgentError::Changed);
    }
    Ok(authorities)
}

/// Fetches until there is a signature, or time is up.
async fn fetch(
    endpoint: &Endpoint,
    client: &kube::Client,
    token: &JoinToken,
    give_up: Instant,
) -> Result<Value, AgentError> {
    loop {
        let answer = tokio::time::timeout(TIMEOUT, get(client)).await;
        let failure = match answer.unwrap_or_else(|_| Err("no answer in time".into())) {
            Ok(info) if info["data"][signature(token)].is_string() => return Ok(info),
            Ok(_) => AgentError::Unsigned(token.id.clone()),
            Err(reason) => AgentError::Unreachable { endpoint: endpoint.to_string(), reason },
        };
        if Instant::now() + RETRY_PAUSE > give_up {
            return Err(failure);
        }
        tracing::info!(%failure, "retrying");
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn get(client: &kube::Client) -> Result<Value, String> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}");
    let request = Request::get(path).header("accept", "application/json").body(Body::empty());
    let answer = client.send(request.map_err(|e| e.to_string())?).await.map_err(|e| chain(&e))?;
    let status = answer.status();
    if !status.is_success() {
        return Err(format!("the server answered {status}"));
    }
    let body = Limited::new(answer.into_body(), MAX_RESPONSE).collect().await.map_err(|e| e.to_string())?;
    serde_json::from_slice(&body.to_bytes()).map_err(|e| e.to_string())
}

/// An error with its causes: the outermost alone does not say that a certificate is wrong.
fn chain(error: &dyn std::error::Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(error) = next {
        let text = error.to_string();
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
        next = error.source();
    }
    texts.join(": ")
}

fn signature(token: &JoinToken) -> String {
    format!("jws-kubeconfig-{}", token.id)
}

/// What is signed, if the signature holds.
fn verified<'a>(info: &'a Value, token: &JoinToken) -> Result<&'a str, AgentError> {
    let kubeconfig = info["data"]["kubeconfig"].as_str().filter(|k| !k.is_empty());
    let kubeconfig =
        kubeconfig.ok_or_else(|| AgentError::ClusterInfo("there is no kubeconfig key".into()))?;
    let signature = info["data"][signature(token)].as_str().unwrap_or_default();
    match cluster_info::verify(signature, kubeconfig, &token.id, &token.secret) {
        true => Ok(kubeconfig),
        false => Err(AgentError::Signature),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rejects_content_without_a_valid_signature() {
        let token = JoinToken { id: "joshua".into(), secret: "my voice is my passcode".into() };
        let content = "Hello from the other side. I must have called a thousand times.";
        let jws = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8";
        let info = |content: &str| json!({"data": {"kubeconfig": content, "jws-kubeconfig-joshua": jws}});
        assert_eq!(verified(&info(content), &token).unwrap(), content);
        assert!(matches!(verified(&info("another"), &token), Err(AgentError::Signature)));
        assert!(matches!(verified(&info(""), &token), Err(AgentError::ClusterInfo(_))));
        let thief = JoinToken { secret: "0123456789abcdef".into(), ..token };
        assert!(matches!(verified(&info(content), &thief), Err(AgentError::Signature)));
    }
}
