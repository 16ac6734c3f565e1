//! `DefaultStorageClass`: a new claim that names no storage class gets the default one.

use crate::default_class;
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Status};
use kaji_resource::BoxFuture;

/// The plugin.
pub(super) struct DefaultStorageClass;

impl Admission for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::MUTATING
            .when(operation == Operation::Create && (group, resource) == ("", "persistentvolumeclaims"))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let marks = &[
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ];
        Box::pin(async move {
            let classes = GroupResource::new("storage.k8s.io", "storageclasses");
            default_class::set(
                a,
                "storageClassName",
                "volume.beta.kubernetes.io/storage-class",
                &classes,
                marks,
            )
            .await
        })
    }
}
