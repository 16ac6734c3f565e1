//! What the built-in provisioner of node-local volumes and the nodes agree on. The provisioner makes a volume that is a
//! directory of one node; the node makes and removes the directory.
//!
//! Invariants:
//! - A node that has data of a volume says so: it lists the volume before it makes the directory, and until the directory is
//!   removed. So a volume that is not listed has no data, and can be deleted.
//! - The directory of a volume is named after it, directly below the node's directory of volumes.

use crate::{Meta, objects::PersistentVolume, volume_binding::PROVISIONED_BY};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// The provisioner's name in storage classes, claims and volumes.
pub const PROVISIONER: &str = "kaji.dev/local-path";
/// A volume's label: the Node that its directory is on. Nodes may list and watch the volumes with their name in it.
pub const NODE: &str = "kaji.dev/local-path-node";
/// On a Node: the directory of its volumes.
pub const ROOT: &str = "kaji.dev/local-path-root";
/// On a Node: the volumes that it may have data of, by name, with commas between them.
pub const VOLUMES: &str = "kaji.dev/local-path-volumes";
/// Keeps a volume until its directory is removed.
pub const FINALIZER: &str = "kaji.dev/local-path";

/// The Node that a volume of this provisioner is on.
pub fn node(volume: &PersistentVolume) -> Option<&str> {
    let Meta { annotations, labels, .. } = &volume.metadata;
    let ours =
        annotations.get(PROVISIONED_BY).is_some_and(|p| p == PROVISIONER) && volume.spec.local.is_some();
    labels.get(NODE).filter(|_| ours).map(String::as_str)
}

/// Whether a volume of this provisioner, and its data, are to be deleted.
pub fn is_deleted(volume: &PersistentVolume) -> bool {
    let over = match volume.status.phase.as_str() {
        "Released" | "Failed" => true,
        phase => phase != "Bound" && volume.metadata.deleting(),
    };
    over && volume.spec.persistent_volume_reclaim_policy == "Delete"
}

/// The directory of a volume, if its name and path are such that it can only be that of this volume.
pub fn directory(root: &Path, volume: &PersistentVolume) -> Option<PathBuf> {
    let name = volume.metadata.name.as_str();
    let plain = !name.is_empty() && name != "." && name != ".." && !name.contains('/');
    let directory = root.join(name);
    let named = volume.spec.local.as_ref().is_some_and(|local| Path::new(&local.path) == directory);
    (plain && named).then_some(directory)
}

/// The volumes that a Node lists.
pub fn listed(node: &Meta) -> BTreeSet<&str> {
    let names = node.annotations.get(VOLUMES).map(String::as_str).unwrap_or_default();
    names.split(',').filter(|name| !name.is_empty()).collect()
}
