//! StorageVersionMigrations, projected.

use crate::{Meta, Projection};
use kaji_meta::GroupResource;
use serde::Deserialize;
use serde_json::Value;

/// What is to be migrated.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StorageVersionMigrationSpec {
    /// The resource, of whatever version.
    pub resource: Named,
}

/// A resource's name and group.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Named {
    /// `""` for core.
    pub group: String,
    /// Plural.
    pub resource: String,
}

/// How far it is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageVersionMigrationStatus {
    /// As they are: they are written back.
    pub conditions: Vec<Value>,
    /// Objects that are newer need no migration.
    pub resource_version: String,
}

/// A request to write all objects of a resource anew, so that they are stored as objects are stored now.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StorageVersionMigration {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: StorageVersionMigrationSpec,
    /// Status.
    pub status: StorageVersionMigrationStatus,
}

impl Projection for StorageVersionMigration {
    const GROUP: &'static str = "storagemigration.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "storageversionmigrations";
    const KIND: &'static str = "StorageVersionMigration";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl StorageVersionMigration {
    /// The resource.
    pub fn resource(&self) -> GroupResource {
        GroupResource::new(self.spec.resource.group.as_str(), self.spec.resource.resource.as_str())
    }

    /// Whether a condition is `True`.
    pub fn is(&self, condition: &str) -> bool {
        self.status.conditions.iter().any(|c| c["type"] == condition && c["status"] == "True")
    }

    /// Whether it is over, well or not.
    pub fn over(&self) -> bool {
        self.is("Succeeded") || self.is("Failed")
    }
}
