//! [`Sources`] over the node's client.

use super::watched::WatchedObjects;
use super::{Keyed, KeyedKind, KeyedRef, Sources, Token, TokenRequest, references};
use crate::pods::core::Pod;
use crate::pods::model;
use futures_util::future::BoxFuture;
use kaji_meta::{Clock, text};
use kaji_runtime::{Client, Target, client::escape};
use kaji_server::pki;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::Notify;

/// Reads from the API server.
pub struct ApiSources {
    client: Client,
    clock: Arc<dyn Clock>,
    watched: WatchedObjects,
}

impl ApiSources {
    /// With the node's client.
    #[must_use]
    pub fn new(client: Client, clock: Arc<dyn Clock>) -> ApiSources {
        ApiSources { watched: WatchedObjects::new(client.clone(), clock.clone()), client, clock }
    }

    /// An object that no pod was said to refer to is read once.
    async fn read(&self, name: &KeyedRef) -> Result<Option<Arc<Keyed>>, String> {
        if let Some(value) = self.watched.get(name).await {
            return value;
        }
        let target = Target {
            version: "v1".into(),
            resource: name.kind.resource().into(),
            namespace: name.namespace.clone(),
            name: name.name.clone(),
            ..Target::default()
        };
        match self.client.get::<Value>(&target.path()).await {
            Ok(value) => {
                let parsed = name.kind.parse(value.to_string().as_bytes());
                parsed.map(|keyed| Some(Arc::new(keyed))).map_err(|e| e.to_string())
            }
            Err(error) if error.not_found() => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Sources for ApiSources {
    fn follow(&self, pod: &Pod, wake: &Arc<Notify>) {
        self.watched.follow(model::uid(pod), &references::of_pod(pod), wake);
    }

    fn forget(&self, pod_uid: &str) {
        self.watched.follow(pod_uid, &BTreeSet::new(), &Arc::default());
    }

    fn keyed<'a>(
        &'a self,
        kind: KeyedKind,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Keyed>>, String>> {
        Box::pin(async move {
            let name = KeyedRef { kind, namespace: namespace.to_owned(), name: name.to_owned() };
            self.read(&name).await
        })
    }

    fn object<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Option<Value>, String>> {
        Box::pin(async move {
            match self.client.get::<Value>(&target.path()).await {
                Ok(value) => Ok(Some(value)),
                Err(error) if error.not_found() => Ok(None),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn create<'a>(
        &'a self,
        collection: &'a Target,
        object: &'a Value,
    ) -> BoxFuture<'a, Result<Value, String>> {
        Box::pin(async move { self.client.create(collection, object).await.map_err(|e| e.to_string()) })
    }

    fn token<'a>(&'a self, request: &'a TokenRequest) -> BoxFuture<'a, Result<Token, String>> {
        Box::pin(async move {
            let target = Target {
                version: "v1".into(),
                resource: "serviceaccounts".into(),
                namespace: request.namespace.clone(),
                name: request.service_account.clone(),
                subresource: "token".into(),
                ..Target::default()
            };
            let audiences: Vec<&str> =
                Some(request.audience.as_str()).filter(|a| !a.is_empty()).into_iter().collect();
            let body = json!({
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {
                    "audiences": audiences,
                    "expirationSeconds": request.expiration,
                    "boundObjectRef": {
                        "apiVersion": "v1", "kind": "Pod", "name": request.pod, "uid": request.pod_uid,
                    },
                },
            });
            let answer = self.client.create(&target, &body).await.map_err(|e| e.to_string())?;
            let token = answer["status"]["token"].as_str().ok_or("the token request has no token")?;
            let expires = answer["status"]["expirationTimestamp"].as_str().unwrap_or_default();
            Ok(Token {
                token: token.to_owned(),
                issued: self.clock.now(),
                expires: expires.parse().map_err(|e: jiff::Error| e.to_string())?,
            })
        })
    }

    fn trust_bundles<'a>(
        &'a self,
        name: Option<&'a str>,
        signer: Option<&'a str>,
        selector: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(async move {
            let path = "/apis/certificates.k8s.io/v1/clustertrustbundles";
            let bundle = |v: &Value| v["spec"]["trustBundle"].as_str().unwrap_or_default().to_owned();
            if let Some(name) = name {
                return match self.client.get::<Value>(&format!("{path}/{}", escape(name))).await {
                    Ok(found) => normalized([bundle(&found)]).map(Some),
                    Err(error) if error.not_found() => Ok(None),
                    Err(error) => Err(error.to_string()),
                };
            }
            let fields = format!("spec.signerName={}", signer.unwrap_or_default());
            let uri = format!("{path}?fieldSelector={}&labelSelector={}", escape(&fields), escape(selector));
            let list: Value = self.client.get(&uri).await.map_err(|e| e.to_string())?;
            let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            (!items.is_empty()).then(|| normalized(items.iter().map(bundle))).transpose()
        })
    }

    fn runtime_handler<'a>(&'a self, class: &'a str) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(async move {
            let path = format!("/apis/node.k8s.io/v1/runtimeclasses/{}", escape(class));
            match self.client.get::<Value>(&path).await {
                Ok(found) => Ok(Some(found["handler"].as_str().unwrap_or_default().to_owned())),
                Err(error) if error.not_found() => Ok(None),
                Err(error) => Err(error.to_string()),
            }
        })
    }
}

/// The certificates of bundles, each once and with nothing between them, PEM.
fn normalized(bundles: impl IntoIterator<Item = String>) -> Result<String, String> {
    let mut all = BTreeSet::new();
    for bundle in bundles {
        let found =
            pki::certificates(&bundle).map_err(|e| format!("while normalizing trust anchors: {e}"))?;
        all.extend(found);
    }
    Ok(all.iter().map(|der| text::pem("CERTIFICATE", der)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_of_bundles_come_once_each_and_with_nothing_between_them() {
        let (one, other) = (text::pem("CERTIFICATE", b"one"), text::pem("CERTIFICATE", b"other"));
        let bundles = [format!("a comment\n{other}{one}"), one.trim_end().to_owned(), other.clone()];
        assert_eq!(normalized(bundles), Ok(format!("{one}{other}")));
        let error = normalized([one.replace("END CERTIFICATE", "END")]).unwrap_err();
        assert!(error.starts_with("while normalizing trust anchors: "), "{error}");
    }
}
