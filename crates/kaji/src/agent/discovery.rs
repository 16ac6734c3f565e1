//! Token-based discovery: the public `cluster-info` is fetched from a server that nobody vouches for, believed because it
//! is signed with the token and names an authority whose key is pinned, and fetched again from a server that the
//! authority vouches for.
//!
//! Invariant: until both are verified nothing but the public question is sent, and no more is read than [`LARGEST`].
//!
//! Source: kubeadm's `discovery/token`; KEP-130 "Node bootstrap".

use super::{AgentError, connect::Endpoint, pins::Pins};
use crate::joining::{INFO, PUBLIC};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::Request;
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of the largest answer that is read from a stranger.
const LARGEST: usize = 1 << 20;
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);

/// A token's two parts.
pub struct JoinToken {
    /// Public.
    pub id: String,
    /// Not so.
    pub secret: String,
}

/// The authorities (DER) of the cluster at an endpoint. What may pass by itself (a server that starts, a token that has just
/// been made) is waited for as long as `patience`.
///
/// # Errors
/// Why the cluster is not to be trusted, or could not be asked.
pub async fn discover(
    endpoint: &Endpoint,
    token: &JoinToken,
    pins: &Pins,
    patience: Duration,
) -> Result<Vec<Vec<u8>>, AgentError> {
    let give_up = Instant::now() + patience;
    let first = fetch(endpoint, &endpoint.unverified()?, token, give_up).await?;
    let kubeconfig = verified(&first, token)?;
    let authorities = pins.choose(&authority(kubeconfig)?).map_err(AgentError::Authority)?;
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
        if Instant::now() + PAUSE > give_up {
            return Err(failure);
        }
        tracing::info!(%failure, "trying again");
        tokio::time::sleep(PAUSE).await;
    }
}

async fn get(client: &kube::Client) -> Result<Value, String> {
    let path = format!("/api/v1/namespaces/{PUBLIC}/configmaps/{INFO}");
    let request = Request::get(path).header("accept", "application/json").body(Body::empty());
    let answer = client.send(request.map_err(|e| e.to_string())?).await.map_err(|e| chain(&e))?;
    let status = answer.status();
    if !status.is_success() {
        return Err(format!("the server answered {status}"));
    }
    let body = Limited::new(answer.into_body(), LARGEST).collect().await.map_err(|e| e.to_string())?;
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
    match kaji_controllers::verify_cluster_info(signature, kubeconfig, &token.id, &token.secret) {
        true => Ok(kubeconfig),
        false => Err(AgentError::Signature),
    }
}

/// The authority that a kubeconfig of one cluster names, PEM.
fn authority(kubeconfig: &str) -> Result<String, AgentError> {
    let bad = AgentError::ClusterInfo;
    let config: Value = serde_saphyr::from_str(kubeconfig)
        .map_err(|e| bad(e.to_string().lines().next().unwrap_or_default().to_owned()))?;
    let clusters = config["clusters"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [cluster] = clusters else { return Err(bad(format!("{} clusters instead of one", clusters.len()))) };
    let data = cluster["cluster"]["certificate-authority-data"].as_str().unwrap_or_default();
    let pem = STANDARD.decode(data).ok().and_then(|pem| String::from_utf8(pem).ok());
    pem.filter(|p| !p.is_empty()).ok_or_else(|| bad("no certificate authority".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_signed_is_not_believed() {
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

    #[test]
    fn kubeconfigs_name_one_authority() {
        let config = crate::kubeconfig::public("https://a:1", "PEM").unwrap();
        assert_eq!(authority(&config).unwrap(), "PEM");
        for bad in ["", "a: [", "clusters: []", "clusters: [{}]", "clusters: [{}, {}]", "- 1"] {
            assert!(matches!(authority(bad), Err(AgentError::ClusterInfo(_))), "{bad}");
        }
    }
}
