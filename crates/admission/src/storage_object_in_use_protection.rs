//! `StorageObjectInUseProtection`: new volumes, claims and volume attributes classes get the finalizer that keeps them while
//! they are in use. The controllers of the same names remove the finalizers.

use kaji_engine::{Admission, Attributes, Operation, Phases};
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

fn finalizer(group: &str, resource: &str) -> Option<&'static str> {
    PROTECTED.iter().find(|(g, r, _)| (*g, *r) == (group, resource)).map(|(_, _, finalizer)| *finalizer)
}

impl Admission for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::MUTATING.when(operation == Operation::Create && finalizer(group, resource).is_some())
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let finalizer = finalizer(&a.resource.group, &a.resource.resource);
        if let (Some(finalizer), Some(object)) = (finalizer, a.object.as_deref_mut()) {
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
