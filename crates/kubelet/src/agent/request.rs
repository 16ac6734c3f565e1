//! A node's certificate signing requests: created, and watched until they are decided.
//!
//! Source: Kubernetes, "TLS bootstrapping"; client-go's `util/certificate/csr`.

use super::{AgentError, identity::NodeKey};
use base64::{Engine, engine::general_purpose::STANDARD};
use kaji_runtime::{
    Client, Error, Projection, Target, client::escape, objects::CertificateSigningRequest, watch::Watch,
};
use serde_json::{Value, json};
use std::time::Duration;

/// What a certificate is for.
pub struct Purpose {
    signer: &'static str,
    usages: [&'static str; 2],
    /// Alternative names, addresses among them.
    names: Vec<String>,
}

impl Purpose {
    /// Requests to the API server.
    pub fn client() -> Purpose {
        Purpose {
            signer: "kubernetes.io/kube-apiserver-client-kubelet",
            usages: ["digital signature", "client auth"],
            names: vec![],
        }
    }

    /// The kubelet's HTTPS API at these names and addresses.
    pub fn serving(names: Vec<String>) -> Purpose {
        let usages = ["digital signature", "server auth"];
        Purpose { signer: "kubernetes.io/kubelet-serving", usages, names }
    }
}

/// Before a broken watch is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// Requests a certificate and waits for it; PEM. `name` is that of the request; without one the server generates one. A
/// request of that name that is there already counts as this one: names follow from keys.
///
/// # Errors
/// When the request is refused, or not decided within `wait`.
pub async fn certificate(
    client: &Client,
    key: &NodeKey,
    purpose: &Purpose,
    name: Option<String>,
    wait: Duration,
) -> Result<String, AgentError> {
    let object = create(client, key, purpose, name).await?;
    let field = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (name, uid) = (field("name"), field("uid"));
    let settled = tokio::time::timeout(wait, follow(client, &name, &uid)).await;
    settled.unwrap_or(Err(AgentError::Unsettled { name, wait }))
}

async fn create(
    client: &Client,
    key: &NodeKey,
    purpose: &Purpose,
    name: Option<String>,
) -> Result<Value, AgentError> {
    let metadata = match &name {
        Some(name) => json!({"name": name}),
        None => json!({"generateName": "csr-"}),
    };
    let body = json!({
        "apiVersion": CertificateSigningRequest::api_version(),
        "kind": CertificateSigningRequest::KIND,
        "metadata": metadata,
        "spec": {
            "request": STANDARD.encode(key.request(&purpose.names)?),
            "signerName": purpose.signer,
            "usages": purpose.usages,
        },
    });
    let target = |name: &str| Target::of::<CertificateSigningRequest>("", name);
    match (client.create(&target(""), &body).await, name) {
        (Err(error), Some(name)) if error.conflict() => client
            .get(&target(&name).path())
            .await
            .map_err(AgentError::api("cannot retrieve certificate signing request")),
        (created, _) => created.map_err(AgentError::api("cannot create certificate signing request")),
    }
}

async fn follow(client: &Client, name: &str, uid: &str) -> Result<String, AgentError> {
    loop {
        match list_and_watch(client, name, uid).await {
            Ok(Some(verdict)) => return verdict,
            // The watch ended: the server does that now and then.
            Ok(None) => {}
            Err(error) => tracing::info!(name, %error, "waiting for a certificate"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Lists and watches once. `None` when the watch ended before a decision.
async fn list_and_watch(
    client: &Client,
    name: &str,
    uid: &str,
) -> Result<Option<Result<String, AgentError>>, Error> {
    let collection = Target::of::<CertificateSigningRequest>("", "").path();
    let uri = format!("{collection}?fieldSelector={}", escape(&format!("metadata.name={name}")));
    let list: Value = client.get(&uri).await?;
    if let Some(verdict) = verdict(list["items"].get(0), name, uid) {
        return Ok(Some(verdict));
    }
    let from = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let mut watch =
        Watch::open(client, &format!("{uri}&watch=true&resourceVersion={}", escape(from))).await?;
    while let Some(lines) = watch.lines().await {
        for event in serde_json::Deserializer::from_slice(&lines).into_iter::<Value>() {
            let event = event.map_err(|e| Error::Decode(e.to_string()))?;
            let object = match event["type"].as_str() {
                Some("ADDED" | "MODIFIED") => Some(&event["object"]),
                Some("DELETED") => None,
                _ => return Ok(None),
            };
            if let Some(verdict) = verdict(object, name, uid) {
                return Ok(Some(verdict));
            }
        }
    }
    Ok(None)
}

/// The decision about a request, if there is one. The request has this UID.
fn verdict(object: Option<&Value>, name: &str, uid: &str) -> Option<Result<String, AgentError>> {
    let Some(object) = object.filter(|o| o["metadata"]["uid"] == uid) else {
        return Some(Err(AgentError::Gone(name.to_owned())));
    };
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (kind, verdict) in [("Denied", "denied"), ("Failed", "failed")] {
        if let Some(condition) = conditions.iter().find(|c| c["type"] == kind) {
            let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
            let (reason, message) = (text("reason"), text("message"));
            return Some(Err(AgentError::Refused { name: name.to_owned(), verdict, reason, message }));
        }
    }
    if !conditions.iter().any(|c| c["type"] == "Approved") {
        return None;
    }
    let certificate = object["status"]["certificate"].as_str().filter(|c| !c.is_empty())?;
    let pem = STANDARD.decode(certificate).ok().and_then(|pem| String::from_utf8(pem).ok());
    // What is not even text will not do as a certificate either; the caller says so.
    Some(Ok(pem.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_verdict_of_a_certificate_request() {
        let text = |conditions: Value, certificate: &str| {
            let object = json!({"metadata": {"uid": "u"},
                "status": {"conditions": conditions, "certificate": STANDARD.encode(certificate)}});
            match verdict(Some(&object), "csr", "u") {
                None => "undecided".to_owned(),
                Some(Ok(pem)) => pem,
                Some(Err(error)) => error.to_string(),
            }
        };
        let condition = |kind: &str| json!([{"type": kind, "status": "True", "reason": "R", "message": "m"}]);
        let all = [
            text(json!([]), ""),
            text(condition("Approved"), ""),
            text(json!([]), "PEM"),
            text(condition("Approved"), "PEM"),
            text(condition("Denied"), ""),
            text(condition("Failed"), ""),
        ];
        expect_test::expect![[r#"
            undecided
            undecided
            undecided
            PEM
            certificate signing request "csr" is denied, reason: R, message: m
            certificate signing request "csr" is failed, reason: R, message: m"#]]
        .assert_eq(&all.join("\n"));
        let other = json!({"metadata": {"uid": "v"}});
        for gone in [None, Some(&other)] {
            assert!(matches!(verdict(gone, "csr", "u"), Some(Err(AgentError::Gone(_)))));
        }
    }
}
