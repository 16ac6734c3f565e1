//! The part of ObjectMeta that control loops read, and the keys they work on.

use crate::intern::{Shared, share};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt};

/// Namespace and name; the namespace is empty for cluster-scoped objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Namespace or `""`.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// A key.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Key { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// An owner reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerRef {
    /// `apps/v1`
    pub api_version: String,
    /// `ReplicaSet`
    pub kind: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Whether it is the managing controller.
    #[serde(skip_serializing_if = "is_false")]
    pub controller: bool,
    /// Whether foreground deletion of the owner waits for this object.
    #[serde(skip_serializing_if = "is_false")]
    pub block_owner_deletion: bool,
}

share!(Vec<OwnerRef>);

fn is_false(b: &bool) -> bool {
    !*b
}

/// ObjectMeta, projected.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Name.
    pub name: String,
    /// Namespace or `""`.
    pub namespace: String,
    /// Uid.
    pub uid: String,
    /// Opaque to clients, but ours is a number; compared only by the runner.
    pub resource_version: String,
    /// Generation.
    pub generation: i64,
    /// RFC 3339.
    pub creation_timestamp: Option<jiff::Timestamp>,
    /// RFC 3339.
    pub deletion_timestamp: Option<jiff::Timestamp>,
    /// Seconds between the request for deletion and `deletion_timestamp`.
    pub deletion_grace_period_seconds: Option<i64>,
    /// Labels.
    pub labels: Shared<BTreeMap<String, String>>,
    /// Annotations.
    pub annotations: Shared<BTreeMap<String, String>>,
    /// Finalizers.
    pub finalizers: Vec<String>,
    /// Owners.
    pub owner_references: Shared<Vec<OwnerRef>>,
}

impl Meta {
    /// The key.
    pub fn key(&self) -> Key {
        Key::new(self.namespace.as_str(), self.name.as_str())
    }

    /// The managing controller.
    pub fn controller(&self) -> Option<&OwnerRef> {
        self.owner_references.iter().find(|o| o.controller)
    }

    /// Whether deletion has begun.
    pub fn deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// A controller reference to this object, for the objects it owns.
    pub fn controller_ref(&self, api_version: &str, kind: &str) -> Value {
        json!({
            "apiVersion": api_version,
            "kind": kind,
            "name": self.name,
            "uid": self.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        })
    }

    /// An `involvedObject`/`regarding` reference to this object.
    pub fn reference(&self, api_version: &str, kind: &str) -> Value {
        let mut value = json!({
            "apiVersion": api_version,
            "kind": kind,
            "name": self.name,
            "uid": self.uid,
            "resourceVersion": self.resource_version,
        });
        if !self.namespace.is_empty() {
            value["namespace"] = self.namespace.as_str().into();
        }
        value
    }
}
