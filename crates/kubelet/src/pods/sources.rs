//! What pods refer to in the API: configuration maps, secrets, tokens, trust bundles.
//!
//! Invariant: a configuration map or secret that a pod refers to is watched once, however many pods refer to it, and no longer than
//! one of them does.

mod api;
mod references;
mod watched;

pub use api::ApiSources;
pub use references::of_pod;

use super::core::{ConfigMap, Pod, Secret};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use kaji_runtime::Target;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// A kind of object that holds values by key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyedKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl KeyedKind {
    /// As messages name it: `configmap`, `secret`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            KeyedKind::ConfigMap => "configmap",
            KeyedKind::Secret => "secret",
        }
    }

    /// `ConfigMap`, `Secret`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            KeyedKind::ConfigMap => "ConfigMap",
            KeyedKind::Secret => "Secret",
        }
    }

    pub(crate) fn resource(self) -> &'static str {
        match self {
            KeyedKind::ConfigMap => "configmaps",
            KeyedKind::Secret => "secrets",
        }
    }

    pub(crate) fn parse(self, json: &[u8]) -> Result<Keyed, serde_json::Error> {
        Ok(match self {
            KeyedKind::ConfigMap => {
                ConfigMap::deserialize(&mut serde_json::Deserializer::from_slice(json))?.into()
            }
            KeyedKind::Secret => Secret::deserialize(&mut serde_json::Deserializer::from_slice(json))?.into(),
        })
    }
}

/// The values of a configuration map or a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keyed {
    /// `data`
    pub data: BTreeMap<String, Vec<u8>>,
    /// `binaryData` of a configuration map: in volumes only.
    pub binary: BTreeMap<String, Vec<u8>>,
    /// It never changes.
    pub immutable: bool,
    /// `metadata.uid`
    pub uid: String,
}

impl From<ConfigMap> for Keyed {
    fn from(map: ConfigMap) -> Keyed {
        let text = map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes()));
        let binary = map.binary_data.into_iter().flatten().map(|(key, value)| (key, value.0));
        let uid = map.metadata.uid.unwrap_or_default();
        Keyed { data: text.collect(), binary: binary.collect(), immutable: map.immutable == Some(true), uid }
    }
}

impl From<Secret> for Keyed {
    fn from(secret: Secret) -> Keyed {
        let data = secret.data.into_iter().flatten().map(|(key, value)| (key, value.0));
        let uid = secret.metadata.uid.unwrap_or_default();
        Keyed { data: data.collect(), immutable: secret.immutable == Some(true), uid, ..Keyed::default() }
    }
}

/// Names a configuration map or a secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyedRef {
    /// What it is.
    pub kind: KeyedKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

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
    /// Follows what a pod refers to; `wake` is notified when that changes. Called again it follows what the pod refers to now.
    fn follow(&self, pod: &Pod, wake: &Arc<Notify>);

    /// Stops following for a pod.
    fn forget(&self, pod_uid: &str);

    /// The values of an object; `None` where there is none.
    fn keyed<'a>(
        &'a self,
        kind: KeyedKind,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Keyed>>, String>>;

    /// Reads any other object, in JSON; `None` where there is none.
    fn object<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Option<serde_json::Value>, String>>;

    /// Creates an object of a collection. Answers it.
    fn create<'a>(
        &'a self,
        collection: &'a Target,
        object: &'a serde_json::Value,
    ) -> BoxFuture<'a, Result<serde_json::Value, String>>;

    /// Asks for a token.
    fn token<'a>(&'a self, request: &'a TokenRequest) -> BoxFuture<'a, Result<Token, String>>;

    /// The certificates of a trust bundle of a name, or of all of a signer that a label selector matches, each once, PEM. `None`
    /// where there is no bundle.
    fn trust_bundles<'a>(
        &'a self,
        name: Option<&'a str>,
        signer: Option<&'a str>,
        selector: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>>;

    /// What a RuntimeClass names as its handler; `None` where there is no such class.
    fn runtime_handler<'a>(&'a self, class: &'a str) -> BoxFuture<'a, Result<Option<String>, String>>;
}

/// The values of an object that has to be there unless `optional`.
///
/// # Errors
/// `configmap "c" not found`, or why it could not be read.
pub async fn required(
    sources: &dyn Sources,
    kind: KeyedKind,
    namespace: &str,
    name: &str,
    optional: bool,
) -> Result<Option<Arc<Keyed>>, String> {
    match sources.keyed(kind, namespace, name).await? {
        None if !optional => Err(format!("{} \"{name}\" not found", kind.word())),
        found => Ok(found),
    }
}
