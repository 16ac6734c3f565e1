//! Namespace, ServiceAccount and ConfigMap, projected.

use crate::{Meta, Projection};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A namespace's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceSpec {
    /// The finalizers that block the deletion of the namespace (`kubernetes`).
    pub finalizers: Vec<String>,
}

/// A namespace's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceStatus {
    /// `Active` or `Terminating`
    pub phase: String,
}

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: NamespaceSpec,
    /// Status.
    pub status: NamespaceStatus,
}

impl Projection for Namespace {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "namespaces";
    const KIND: &'static str = "Namespace";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// A service account.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceAccount {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Secrets that it names.
    pub secrets: Option<Vec<SecretReference>>,
}

/// A secret that a service account names.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SecretReference {
    /// Name.
    pub name: String,
}

impl Projection for ServiceAccount {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "serviceaccounts";
    const KIND: &'static str = "ServiceAccount";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// The names of config maps with content that some loop reads.
const READ: &[&str] =
    &["kube-root-ca.crt", "cluster-info", "kube-apiserver-legacy-service-account-token-tracking"];

/// A config map. Its content is kept only if some loop reads it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "WholeConfigMap")]
pub struct ConfigMap {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Text content.
    pub data: BTreeMap<String, String>,
    /// Whether there is binary content or immutability besides.
    pub binary_data: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WholeConfigMap {
    metadata: Meta,
    data: Option<BTreeMap<String, String>>,
    binary_data: Option<BTreeMap<String, Value>>,
}

impl From<WholeConfigMap> for ConfigMap {
    fn from(whole: WholeConfigMap) -> Self {
        let kept = READ.contains(&whole.metadata.name.as_str());
        ConfigMap {
            data: if kept { whole.data.unwrap_or_default() } else { BTreeMap::new() },
            binary_data: whole.binary_data.is_some_and(|b| !b.is_empty()),
            metadata: whole.metadata,
        }
    }
}

impl Projection for ConfigMap {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "configmaps";
    const KIND: &'static str = "ConfigMap";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
