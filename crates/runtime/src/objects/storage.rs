//! The kinds of `storage.k8s.io` beside those of attributes, projected: classes, drivers and what they can do on which node,
//! attachments, free capacity.

use super::LabelSelector;
use crate::{Meta, ObjectSnapshot, Projection};
use kaji_meta::quantity::Quantity;
use serde::Deserialize;
use serde_json::Value;
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

/// A requirement of a label of nodes, in a class's allowed topologies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TopologyRequirement {
    /// The label.
    pub key: String,
    /// One of these.
    pub values: Vec<String>,
}

/// Requirements that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyTerm {
    /// Of labels.
    pub match_label_expressions: Vec<TopologyRequirement>,
}

/// A class of volumes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    /// ObjectMeta.
    pub metadata: Meta,
    /// What makes volumes of the class.
    pub provisioner: String,
    /// For the provisioner.
    pub parameters: BTreeMap<String, String>,
    /// `Delete` or `Retain`; upstream defaults it to `Delete`.
    pub reclaim_policy: Option<String>,
    /// Of the volumes.
    pub mount_options: Vec<String>,
    /// Whether claims of the class may grow.
    pub allow_volume_expansion: Option<bool>,
    /// `Immediate` or `WaitForFirstConsumer`
    pub volume_binding_mode: Option<String>,
    /// Where volumes may be made; everywhere without terms.
    pub allowed_topologies: Vec<TopologyTerm>,
}

impl StorageClass {
    /// Whether claims are bound when the first pod that uses them is scheduled.
    pub fn delays_binding(&self) -> bool {
        self.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
    }

    /// Whether claims that name no class are of this one.
    pub fn is_default(&self) -> bool {
        let keys = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ];
        keys.iter().any(|key| self.metadata.annotations.get(*key).is_some_and(|value| value == "true"))
    }

    /// Whether a volume may be made for a node. Terms without requirements allow none.
    pub fn allows(&self, node: &Meta) -> bool {
        let holds = |r: &TopologyRequirement| node.labels.get(&r.key).is_some_and(|v| r.values.contains(v));
        let term = |t: &TopologyTerm| {
            !t.match_label_expressions.is_empty() && t.match_label_expressions.iter().all(holds)
        };
        self.allowed_topologies.is_empty() || self.allowed_topologies.iter().any(term)
    }
}

/// The class of claims that name none: the newest of those that say so; of equally old ones, the first by name.
pub fn default_class(classes: &ObjectSnapshot<StorageClass>) -> Option<&Arc<StorageClass>> {
    let newest = |class: &&Arc<StorageClass>| {
        (Reverse(class.metadata.creation_timestamp), class.metadata.name.clone())
    };
    classes.iter().filter(|class| class.is_default()).min_by_key(newest)
}

impl Projection for StorageClass {
    const GROUP: &'static str = "storage.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "storageclasses";
    const KIND: &'static str = "StorageClass";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// How many volumes a driver can attach to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAllocatable {
    /// The number; any without it.
    pub count: Option<i64>,
}

/// A CSI driver of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeDriver {
    /// The driver's name.
    pub name: String,
    /// The driver's name of the node.
    #[serde(rename = "nodeID")]
    pub node_id: String,
    /// Labels of the node that say from where its volumes can be reached.
    pub topology_keys: Vec<String>,
    /// Limits.
    pub allocatable: Option<NodeAllocatable>,
}

/// A `CSINode`'s spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpec {
    /// Drivers that are registered on the node.
    pub drivers: Vec<NodeDriver>,
}

/// The CSI drivers of the node of the same name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CsiNode {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: CsiNodeSpec,
}

impl Projection for CsiNode {
    const GROUP: &'static str = "storage.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "csinodes";
    const KIND: &'static str = "CSINode";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// What a CSI driver needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiDriverSpec {
    /// Whether volumes are attached to a node before they are mounted there; they are by default.
    pub attach_required: Option<bool>,
    /// Whether the driver publishes how much room it has where.
    pub storage_capacity: Option<bool>,
    /// Whether pods with volumes of it are kept off nodes where it is not registered.
    pub prevent_pod_scheduling_if_missing: Option<bool>,
    /// How often the driver is asked how many volumes a node takes.
    pub node_allocatable_update_period_seconds: Option<i64>,
}

/// A CSI driver.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CsiDriver {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: CsiDriverSpec,
}

impl Projection for CsiDriver {
    const GROUP: &'static str = "storage.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "csidrivers";
    const KIND: &'static str = "CSIDriver";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// What is attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSource {
    /// A volume by name.
    pub persistent_volume_name: Option<String>,
}

/// A `VolumeAttachment`'s spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeAttachmentSpec {
    /// The CSI driver that attaches.
    pub attacher: String,
    /// To where.
    pub node_name: String,
    /// What.
    pub source: AttachmentSource,
}

/// Why attaching or detaching failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AttachmentError {
    /// Text.
    pub message: String,
}

/// A `VolumeAttachment`'s status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeAttachmentStatus {
    /// Whether the volume is attached.
    pub attached: bool,
    /// The last failure to attach.
    pub attach_error: Option<AttachmentError>,
    /// The last failure to detach.
    pub detach_error: Option<AttachmentError>,
}

/// A volume that is, or is to be, attached to a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeAttachment {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: VolumeAttachmentSpec,
    /// Status.
    pub status: VolumeAttachmentStatus,
}

impl VolumeAttachment {
    /// The index of attachments by node.
    pub const NODE: &'static str = "node";
    /// The index of attachments by volume.
    pub const VOLUME: &'static str = "volume";
}

impl Projection for VolumeAttachment {
    const GROUP: &'static str = "storage.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "volumeattachments";
    const KIND: &'static str = "VolumeAttachment";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn index(&self) -> Vec<(&'static str, String)> {
        let volume = self.spec.source.persistent_volume_name.clone().map(|name| (Self::VOLUME, name));
        [(Self::NODE, self.spec.node_name.clone())].into_iter().chain(volume).collect()
    }
}

/// How much room a driver has for volumes of a class somewhere.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiStorageCapacity {
    /// ObjectMeta.
    pub metadata: Meta,
    /// The class.
    pub storage_class_name: String,
    /// Where; nowhere without it.
    pub node_topology: Option<LabelSelector>,
    /// All that is free, raw.
    pub capacity: Option<Value>,
    /// The largest volume that fits, raw.
    pub maximum_volume_size: Option<Value>,
}

impl CsiStorageCapacity {
    /// The largest volume that can be made; none if it is not known.
    pub fn limit(&self) -> Option<Quantity> {
        let amount = self.maximum_volume_size.as_ref().or(self.capacity.as_ref())?;
        Quantity::from_value(amount).ok()
    }

    /// All that is free, in bytes, if it is known.
    pub fn total(&self) -> Option<i64> {
        let amount = self.capacity.as_ref()?;
        Some(Quantity::from_value(amount).ok()?.value())
    }
}

impl Projection for CsiStorageCapacity {
    const GROUP: &'static str = "storage.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "csistoragecapacities";
    const KIND: &'static str = "CSIStorageCapacity";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::json::from_slice;

    #[test]
    fn lists_that_go_writes_as_null_are_empty() {
        let node =
            |spec: &str| from_slice::<CsiNode>(format!(r#"{{"spec": {spec}}}"#).as_bytes()).unwrap().spec;
        assert_eq!(node(r#"{"drivers": null}"#), CsiNodeSpec::default());
        let drivers = node(r#"{"drivers": [{"name": "d", "nodeID": "n", "topologyKeys": null}]}"#).drivers;
        assert_eq!(drivers[0].topology_keys, Vec::<String>::new());
        let image: crate::objects::NodeImage = from_slice(br#"{"names": null, "sizeBytes": 1}"#).unwrap();
        assert!(image.names.is_empty());
        let claim: crate::objects::DeviceClaimSpec = from_slice(br#"{"requests": null}"#).unwrap();
        assert!(claim.requests.is_empty());
    }
}
