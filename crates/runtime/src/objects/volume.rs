//! PersistentVolumeClaim, PersistentVolume and VolumeAttributesClass, projected.

use super::{Amounts, LabelSelector, NodeSelector};
use crate::{Meta, Projection};
use kaji_meta::{quantity::Quantity, text::hex};
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The annotation that named a storage class before there was a field; it still counts before the field.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// An amount of storage.
fn storage(amounts: &Amounts) -> Option<Quantity> {
    let (_, amount) = amounts.iter().find(|(name, _)| *name == "storage")?;
    Quantity::parse(amount).ok()
}

/// Whether something is there, whatever it is.
pub(super) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(deserializer)?.is_some())
}

/// A claim's spec, as far as loops read it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeClaimSpec {
    /// Class; `Some("")` asks for a volume without one.
    pub storage_class_name: Option<String>,
    /// Class of what can be changed.
    pub volume_attributes_class_name: Option<String>,
    /// `requests`, raw.
    pub resources: Value,
    /// How it is to be mounted.
    pub access_modes: Vec<String>,
    /// Which volumes fit; all without it.
    pub selector: Option<LabelSelector>,
    /// The volume, by name; `""` before one is chosen.
    pub volume_name: String,
    /// `Filesystem` or `Block`
    pub volume_mode: Option<String>,
    /// Whether the volume is to be filled from something.
    #[serde(deserialize_with = "present")]
    pub data_source: bool,
    /// The same by the newer field.
    #[serde(deserialize_with = "present")]
    pub data_source_ref: bool,
}

impl PersistentVolumeClaimSpec {
    /// The amount of storage that is asked for.
    pub fn request(&self) -> Quantity {
        let request = self.resources.pointer("/requests/storage");
        request.and_then(|amount| Quantity::from_value(amount).ok()).unwrap_or_default()
    }
}

/// `Filesystem`, unless another mode is named.
pub fn volume_mode(mode: Option<&str>) -> &str {
    mode.unwrap_or("Filesystem")
}

/// A change of the class of attributes that is under way.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifyVolumeStatus {
    /// The class that shall be.
    pub target_volume_attributes_class_name: String,
}

/// A condition of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimCondition {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False`, `Unknown`
    pub status: String,
}

/// A claim's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeClaimStatus {
    /// The class of attributes that the volume has.
    pub current_volume_attributes_class_name: Option<String>,
    /// The one that it shall have.
    pub modify_volume_status: Option<ModifyVolumeStatus>,
    /// `Pending`, `Bound`, `Lost`
    pub phase: String,
    /// How the volume may be mounted.
    pub access_modes: Vec<String>,
    /// What the volume has.
    pub capacity: Amounts,
    /// Conditions.
    pub conditions: Box<[ClaimCondition]>,
}

impl PersistentVolumeClaimStatus {
    /// The status of a condition.
    pub fn condition(&self, kind: &str) -> Option<&str> {
        self.conditions.iter().find(|condition| condition.kind == kind).map(|condition| &*condition.status)
    }

    /// The storage that the volume has.
    pub fn storage(&self) -> Option<Quantity> {
        storage(&self.capacity)
    }
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
    /// The name of its storage class, `""` for none.
    pub fn class(&self) -> &str {
        let annotated = self.metadata.annotations.get(CLASS_ANNOTATION).map(String::as_str);
        annotated.or(self.spec.storage_class_name.as_deref()).unwrap_or_default()
    }

    /// Whether it says which class it is of, if only that it is of none.
    pub fn has_class(&self) -> bool {
        self.metadata.annotations.contains_key(CLASS_ANNOTATION) || self.spec.storage_class_name.is_some()
    }

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
        let classes = self.attributes_classes().map(|class| (ATTRIBUTES_CLASS, class.to_owned()));
        let unbound = self.spec.volume_name.is_empty();
        let state = if unbound { (UNBOUND, String::new()) } else { (VOLUME, self.spec.volume_name.clone()) };
        classes.chain([state]).collect()
    }
}

/// The index of claims by the volume that they name.
pub const VOLUME: &str = "volume";
/// The index of claims that name no volume, and of volumes that no claim is named by; the value is empty.
pub const UNBOUND: &str = "unbound";
/// The index of volumes by the claim that they are bound or reserved for: `NAMESPACE/NAME`.
pub const CLAIM_REF: &str = "claim-ref";

/// The claim that a volume is bound to or reserved for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid; `""` for a reservation that any claim of the name may take.
    pub uid: String,
}

/// A volume of a CSI driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiSource {
    /// The driver's name.
    pub driver: String,
    /// The driver's name of the volume.
    pub volume_handle: String,
}

/// The name of a CSI volume in a Node's status: `kubernetes.io/csi/<driver>^<handle>`.
#[must_use]
pub fn csi_volume_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The name of the `VolumeAttachment` of a CSI volume and a node, which the controller writes and the kubelet reads.
#[must_use]
pub fn csi_attachment_name(driver: &str, handle: &str, node: &str) -> String {
    format!("csi-{}", hex(&Sha256::digest(format!("{handle}{driver}{node}"))))
}

/// A volume that is a path of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PathSource {
    /// The path.
    pub path: String,
}

/// From which nodes a volume can be reached.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeNodeAffinity {
    /// Nodes; all without it.
    pub required: Option<NodeSelector>,
}

/// A volume's spec, as far as loops read it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeSpec {
    /// Class of what can be changed.
    pub volume_attributes_class_name: Option<String>,
    /// What it has.
    pub capacity: Amounts,
    /// How it may be mounted.
    pub access_modes: Vec<String>,
    /// Its claim.
    pub claim_ref: Option<ClaimRef>,
    /// `Retain`, `Delete`, `Recycle`
    pub persistent_volume_reclaim_policy: String,
    /// Class, `""` for none.
    pub storage_class_name: String,
    /// `Filesystem` or `Block`
    pub volume_mode: Option<String>,
    /// From which nodes it can be reached.
    pub node_affinity: Option<Box<VolumeNodeAffinity>>,
    /// It is a CSI driver's.
    pub csi: Option<Box<CsiSource>>,
    /// It is a directory or device of one node.
    pub local: Option<PathSource>,
    /// It is a path of whichever node its pod runs on.
    pub host_path: Option<PathSource>,
    /// It is an export of an NFS server.
    #[serde(deserialize_with = "present")]
    pub nfs: bool,
}

/// A volume's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeStatus {
    /// `Available`, `Bound`, `Released`, `Failed`
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

impl PersistentVolume {
    /// The name of its storage class, `""` for none.
    pub fn class(&self) -> &str {
        let annotated = self.metadata.annotations.get(CLASS_ANNOTATION).map(String::as_str);
        annotated.unwrap_or(&self.spec.storage_class_name)
    }

    /// The storage that it has.
    pub fn storage(&self) -> Option<Quantity> {
        storage(&self.spec.capacity)
    }

    /// Whether it is bound to a claim, or reserved for one of its name.
    pub fn bound_to(&self, claim: &PersistentVolumeClaim) -> bool {
        self.spec.claim_ref.as_ref().is_some_and(|reference| {
            reference.name == claim.metadata.name
                && reference.namespace == claim.metadata.namespace
                && (reference.uid.is_empty() || reference.uid == claim.metadata.uid)
        })
    }

    /// Whether it can be reached from a node.
    pub fn reaches(&self, node: &Meta) -> bool {
        let required = self.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
        required.is_none_or(|selector| selector.matches(node))
    }

    /// Whether it may be mounted in all the ways that a claim asks for.
    pub fn allows(&self, claim: &PersistentVolumeClaim) -> bool {
        claim.spec.access_modes.iter().all(|mode| self.spec.access_modes.contains(mode))
    }

    /// Whether it is used as the claim asks for: as a file system, or as a device.
    pub fn same_mode(&self, claim: &PersistentVolumeClaim) -> bool {
        volume_mode(self.spec.volume_mode.as_deref()) == volume_mode(claim.spec.volume_mode.as_deref())
    }
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
        let state = match &self.spec.claim_ref {
            Some(claim) => (CLAIM_REF, format!("{}/{}", claim.namespace, claim.name)),
            None => (UNBOUND, String::new()),
        };
        class.map(|class| (ATTRIBUTES_CLASS, class.clone())).chain([state]).collect()
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
