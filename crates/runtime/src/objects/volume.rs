//! PersistentVolumeClaim, PersistentVolume and VolumeAttributesClass, projected.

use crate::{Meta, Projection};
use serde::Deserialize;
use serde_json::Value;

/// A claim's spec, as far as loops read it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeClaimSpec {
    /// Class.
    pub storage_class_name: Option<String>,
    /// Class of what can be changed.
    pub volume_attributes_class_name: Option<String>,
    /// `requests`, raw.
    pub resources: Value,
}

/// A change of the class of attributes that is under way.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifyVolumeStatus {
    /// The class that shall be.
    pub target_volume_attributes_class_name: String,
}

/// A claim's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeClaimStatus {
    /// The class of attributes that the volume has.
    pub current_volume_attributes_class_name: Option<String>,
    /// The one that it shall have.
    pub modify_volume_status: Option<ModifyVolumeStatus>,
}

/// A claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: PersistentVolumeClaimSpec,
    /// Status.
    pub status: PersistentVolumeClaimStatus,
}

/// The index of claims and volumes by the class of attributes that they have or shall have.
pub const ATTRIBUTES_CLASS: &str = "attributes-class";

impl PersistentVolumeClaim {
    /// The classes of attributes that it has or shall have.
    pub fn attributes_classes(&self) -> impl Iterator<Item = &str> {
        let wanted = self.spec.volume_attributes_class_name.as_deref();
        let current = self.status.current_volume_attributes_class_name.as_deref();
        let modify = self.status.modify_volume_status.as_ref();
        let target = modify.map(|m| m.target_volume_attributes_class_name.as_str());
        [wanted, current, target].into_iter().flatten().filter(|class| !class.is_empty())
    }
}

impl Projection for PersistentVolumeClaim {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "persistentvolumeclaims";
    const KIND: &'static str = "PersistentVolumeClaim";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn index(&self) -> Vec<(&'static str, String)> {
        self.attributes_classes().map(|class| (ATTRIBUTES_CLASS, class.to_owned())).collect()
    }
}

/// A volume's spec, as far as loops read it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeSpec {
    /// Class of what can be changed.
    pub volume_attributes_class_name: Option<String>,
}

/// A volume's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeStatus {
    /// `Available`, `Bound`, …
    pub phase: String,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: PersistentVolumeSpec,
    /// Status.
    pub status: PersistentVolumeStatus,
}

impl Projection for PersistentVolume {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "persistentvolumes";
    const KIND: &'static str = "PersistentVolume";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn index(&self) -> Vec<(&'static str, String)> {
        let class = self.spec.volume_attributes_class_name.iter().filter(|class| !class.is_empty());
        class.map(|class| (ATTRIBUTES_CLASS, class.clone())).collect()
    }
}

/// A class of attributes of volumes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeAttributesClass {
    /// ObjectMeta.
    pub metadata: Meta,
}

impl Projection for VolumeAttributesClass {
    const GROUP: &'static str = "storage.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "volumeattributesclasses";
    const KIND: &'static str = "VolumeAttributesClass";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
