//! What pods refer to in the API: configuration maps, secrets, tokens, trust bundles.
//!
//! Invariant: an object is asked for at most once in [`FRESH`], however many pods use it; at most [`MOST`] are kept.

use super::core::{ConfigMap, Secret};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use kaji_meta::Clock;
use kaji_runtime::{Client, Target, client::escape};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long an object that was read counts as the present one.
const FRESH: Duration = Duration::from_secs(3);
/// Objects that are kept.
const MOST: usize = 4096;

/// A token of a service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The token.
    pub token: String,
    /// When it was asked for.
    pub issued: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
}

/// A token to ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct TokenRequest {
    /// Of the service account.
    pub namespace: String,
    /// Of the service account.
    pub service_account: String,
    /// Empty: the API server's.
    pub audience: String,
    /// Seconds.
    pub expiration: i64,
    /// The pod that it is bound to.
    pub pod: String,
    /// The pod that it is bound to.
    pub pod_uid: String,
}

/// Reads what pods refer to. Errors are texts for events.
pub trait Sources: Send + Sync + 'static {
    /// `None` where there is none.
    fn config_map<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<ConfigMap>>, String>>;

    /// `None` where there is none.
    fn secret<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Secret>>, String>>;

    /// Asks for a token.
    fn token<'a>(&'a self, request: &'a TokenRequest) -> BoxFuture<'a, Result<Token, String>>;

    /// The certificates of a trust bundle of a name, or of all of a signer that a label selector matches, PEM. `None` where
    /// there is none.
    fn trust_bundles<'a>(
        &'a self,
        name: Option<&'a str>,
        signer: Option<&'a str>,
        selector: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>>;
}

type Kept = HashMap<(&'static str, String, String), (Timestamp, Option<Arc<Value>>)>;

/// Reads from the API server.
pub struct ApiSources {
    client: Client,
    clock: Arc<dyn Clock>,
    kept: Mutex<Kept>,
}

impl ApiSources {
    /// With the node's client.
    #[must_use]
    pub fn new(client: Client, clock: Arc<dyn Clock>) -> ApiSources {
        ApiSources { client, clock, kept: Mutex::default() }
    }

    async fn read<T: DeserializeOwned>(
        &self,
        resource: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<T>>, String> {
        let key = (resource, namespace.to_owned(), name.to_owned());
        let now = self.clock.now();
        let fresh = |at: &Timestamp| now.duration_since(*at) < FRESH.try_into().unwrap_or_default();
        let kept = {
            let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.get(&key).filter(|(at, _)| fresh(at)).map(|(_, value)| value.clone())
        };
        let value = match kept {
            Some(value) => value,
            None => {
                let target = Target {
                    version: "v1".into(),
                    resource: resource.into(),
                    namespace: namespace.into(),
                    name: name.into(),
                    ..Target::default()
                };
                let value = match self.client.get::<Value>(&target.path()).await {
                    Ok(value) => Some(Arc::new(value)),
                    Err(error) if error.not_found() => None,
                    Err(error) => return Err(error.to_string()),
                };
                let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() >= MOST {
                    kept.clear();
                }
                kept.insert(key, (now, value.clone()));
                value
            }
        };
        let decoded = value.map(|v| T::deserialize(&*v).map(Arc::new)).transpose();
        decoded.map_err(|e| e.to_string())
    }
}

impl Sources for ApiSources {
    fn config_map<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<ConfigMap>>, String>> {
        Box::pin(self.read("configmaps", namespace, name))
    }

    fn secret<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Secret>>, String>> {
        Box::pin(self.read("secrets", namespace, name))
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
            let path = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
            let text = |v: &Value| v["spec"]["trustBundle"].as_str().unwrap_or_default().to_owned();
            if let Some(name) = name {
                return match self.client.get::<Value>(&format!("{path}/{}", escape(name))).await {
                    Ok(found) => Ok(Some(text(&found))),
                    Err(error) if error.not_found() => Ok(None),
                    Err(error) => Err(error.to_string()),
                };
            }
            let fields = format!("spec.signerName={}", signer.unwrap_or_default());
            let uri = format!("{path}?fieldSelector={}&labelSelector={}", escape(&fields), escape(selector));
            let list: Value = self.client.get(&uri).await.map_err(|e| e.to_string())?;
            let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            Ok((!items.is_empty()).then(|| items.iter().map(text).collect()))
        })
    }
}
