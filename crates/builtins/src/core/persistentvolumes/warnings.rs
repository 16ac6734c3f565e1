//! What is deprecated in PersistentVolumes.

use crate::{
    core::pods::warnings::{deprecated_volume, node_term},
    shared::value::Fields,
};
use kaji_meta::{field::Path, object};
use serde_json::Value;

const ANNOTATIONS: [(&str, &str); 2] = [
    (
        "volume.beta.kubernetes.io/storage-class",
        r#"deprecated since v1.8; use "storageClassName" attribute instead"#,
    ),
    (super::sources::MOUNT_OPTIONS, r#"deprecated since v1.31; use "mountOptions" attribute instead"#),
];
/// The sources that are warned of, in this order. Upstream leaves out others that it warns of in pods.
const SOURCES: [&str; 6] = ["cephfs", "photonPersistentDisk", "scaleIO", "storageos", "glusterfs", "rbd"];

/// The warnings about a volume.
pub(super) fn of(volume: &Value) -> Vec<String> {
    let (spec, path) = (volume.at("spec"), Path::new("spec"));
    let annotations = ANNOTATIONS.iter().filter(|(key, _)| object::annotation(volume, key).is_some());
    let mut all: Vec<String> =
        annotations.map(|(key, text)| format!("metadata.annotations[{key}]: {text}")).collect();
    if spec.text("persistentVolumeReclaimPolicy") == "Recycle" {
        let text = "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.";
        all.push(format!("{}: {text}", path.child("persistentVolumeReclaimPolicy")));
    }
    let terms = path.child("nodeAffinity").child("required").child("nodeSelectorTerms");
    for (i, term) in spec.at("nodeAffinity").at("required").list("nodeSelectorTerms").iter().enumerate() {
        node_term(&mut all, &terms.index(i), term, false);
    }
    let sources = SOURCES.iter().filter(|source| spec.has(source));
    for (name, text) in sources.filter_map(|source| deprecated_volume(source)) {
        all.push(format!("{}: {text}", path.child(name)));
    }
    all
}

#[cfg(test)]
mod tests {
    use crate::{core::persistentvolumes::def, shared::testing::warnings};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn deprecated_fields_are_named() {
        let volume = json!({
            "metadata": {"name": "p", "annotations": {"volume.beta.kubernetes.io/mount-options": "ro"}},
            "spec": {
                "persistentVolumeReclaimPolicy": "Recycle",
                "nodeAffinity": {"required": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "beta.kubernetes.io/os", "operator": "Exists"}]}]}},
                "storageos": {},
                "rbd": {"image": "i"},
            },
        });
        expect![[r#"
            metadata.annotations[volume.beta.kubernetes.io/mount-options]: deprecated since v1.31; use "mountOptions" attribute instead
            spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.
            spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use "kubernetes.io/os" instead
            spec.storageOS: deprecated in v1.22, non-functional in v1.25+
            spec.rbd: deprecated in v1.28, non-functional in v1.31+"#]]
        .assert_eq(&warnings(&def(), &volume));
        let plain = json!({"metadata": {"name": "p"}, "spec": {"hostPath": {"path": "/a"}}});
        assert_eq!(warnings(&def(), &plain), "");
    }
}
