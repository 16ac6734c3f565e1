//! Extended resources that stand for classes of devices: `deviceclass.resource.kubernetes.io/CLASS`, and the name that a class
//! gives itself.
//!
//! Invariant: of several classes with one name for it the newest counts, of equally old ones the first by name.

use kaji_meta::Quantity;
use kaji_runtime::{
    ObjectSnapshot,
    objects::{DeviceClass, Node},
};
use std::{cmp::Reverse, sync::Arc};

/// Before the name of a class, it makes the name of an extended resource.
pub const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// The class that an extended resource stands for.
pub fn class_of<'a>(
    resource: &str,
    classes: &'a ObjectSnapshot<DeviceClass>,
) -> Option<&'a Arc<DeviceClass>> {
    if let Some(class) = resource.strip_prefix(CLASS_PREFIX).and_then(|name| classes.get("", name)) {
        return Some(class);
    }
    let named = |class: &&Arc<DeviceClass>| class.spec.extended_resource_name.as_deref() == Some(resource);
    let newest =
        |class: &&Arc<DeviceClass>| (class.metadata.creation_timestamp, Reverse(class.metadata.name.clone()));
    classes.iter().filter(named).max_by_key(newest)
}

/// Whether a node has an extended resource by its devices rather than by a device plug-in.
pub fn is_backed_by_devices(resource: &str, node: &Node, classes: &ObjectSnapshot<DeviceClass>) -> bool {
    let zero = |amount: &String| Quantity::parse(amount).is_ok_and(|amount| amount.is_zero());
    let none = node.status.allocatable.get(resource).is_none_or(zero);
    none && class_of(resource, classes).is_some()
}
