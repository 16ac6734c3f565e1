//! The storage class of clusters that have no other: volumes of the built-in provisioner, which are directories of nodes.
//!
//! Invariant: it is made once in a cluster's life, which a ConfigMap remembers. A class that was deleted or changed, or is not the
//! default any more, stays so over restarts.

use kaji_meta::{GroupResource, Status};
use kaji_resource::{Api, unless_exists};
use kaji_runtime::local_path::PROVISIONER;
use serde_json::{Value, json};

/// The class's name.
const NAME: &str = "local-path";
/// The ConfigMap that remembers, in `kube-system`.
const MEMORY: &str = "kaji-default-storage-class";
const NAMESPACE: &str = "kube-system";
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// Makes the class, unless that was done before.
///
/// # Errors
/// Those of the API.
pub async fn ensure(api: &dyn Api) -> Result<(), Status> {
    let (classes, maps) =
        (GroupResource::new("storage.k8s.io", "storageclasses"), GroupResource::new("", "configmaps"));
    if let Err(status) = api.readable(&maps).and_then(|()| api.readable(&classes)) {
        // What is not seen may be there; a later start makes the class if it has to be made.
        tracing::warn!(%status, "whether the default storage class was made cannot be read");
        return Ok(());
    }
    if api.get(&maps, NAMESPACE, MEMORY).is_some() {
        return Ok(());
    }
    let others = api.list(&classes, None).iter().any(|class| is_default(class));
    let class = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": NAME, "annotations": {IS_DEFAULT: (!others).to_string()}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    unless_exists(api.create(&classes, "", class, false).await)?;
    let memory = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": MEMORY, "namespace": NAMESPACE},
        "data": {"storageClass": NAME},
    });
    unless_exists(api.create(&maps, NAMESPACE, memory, false).await)
}

fn is_default(class: &Value) -> bool {
    kaji_meta::object::annotation(class, IS_DEFAULT) == Some("true")
}
