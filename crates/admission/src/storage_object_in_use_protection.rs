//! `StorageObjectInUseProtection`: new volumes, claims and volume attributes classes get the finalizer that keeps them while
//! they are in use. The controllers of the same names remove the finalizers.

use crate::is;
use kaji_engine::{Admission, Attributes, Operation};
use kaji_meta::{Status, object};
use kaji_resource::BoxFuture;
use serde_json::Value;

/// The plugin.
pub(super) struct StorageObjectInUseProtection;

const PROTECTED: [(&str, &str, &str); 3] = [
    ("", "persistentvolumes", "kubernetes.io/pv-protection"),
    ("", "persistentvolumeclaims", "kubernetes.io/pvc-protection"),
    ("storage.k8s.io", "volumeattributesclasses", "kubernetes.io/vac-protection"),
];

fn finalizer(a: &Attributes<'_>) -> Option<&'static str> {
    PROTECTED.iter().find(|(group, resource, _)| is(a, group, resource)).map(|(_, _, finalizer)| *finalizer)
}

impl Admission for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.operation == Operation::Create && finalizer(a).is_some()
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        if let (Some(finalizer), Some(object)) = (finalizer(a), a.object.as_deref_mut()) {
            protect(object, finalizer);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

fn protect(object: &mut Value, finalizer: &str) {
    let mut all = object::arr_at(object, &["metadata", "finalizers"]).to_vec();
    if !all.iter().any(|f| f == finalizer) {
        all.push(finalizer.into());
        object::set_at(object, &["metadata", "finalizers"], all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn finalizers_are_added_once() {
        let mut claim = json!({"metadata": {"finalizers": ["x"]}});
        protect(&mut claim, "y");
        protect(&mut claim, "y");
        assert_eq!(claim["metadata"]["finalizers"], json!(["x", "y"]));
    }
}
