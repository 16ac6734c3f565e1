//! Containers and references of a pod spec, for several plugins.

use kaji_meta::object;
use serde_json::Value;
use std::collections::BTreeSet;

/// The lists of containers of a pod spec.
pub(crate) const LISTS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// The containers of one list.
pub(crate) fn containers<'a>(pod: &'a Value, list: &str) -> &'a [Value] {
    object::arr_at(pod, &["spec", list])
}

/// Names of what a pod refers to that lie at these paths below each volume.
fn of_volumes(pod: &Value, paths: &[&[&str]], into: &mut BTreeSet<String>) {
    for volume in object::arr_at(pod, &["spec", "volumes"]) {
        for path in paths {
            into.insert(object::str_at(volume, path).to_owned());
        }
    }
}

/// Names that the environments of a pod's containers refer to, as single keys and as wholes.
fn of_environments(pod: &Value, key: &str, whole: &str, into: &mut BTreeSet<String>) {
    for container in LISTS.iter().flat_map(|list| containers(pod, list)) {
        for env in object::arr_at(container, &["env"]) {
            into.insert(object::str_at(env, &["valueFrom", key, "name"]).to_owned());
        }
        for env in object::arr_at(container, &["envFrom"]) {
            into.insert(object::str_at(env, &[whole, "name"]).to_owned());
        }
    }
}

fn of_projections(pod: &Value, kind: &str, into: &mut BTreeSet<String>) {
    for volume in object::arr_at(pod, &["spec", "volumes"]) {
        for source in object::arr_at(volume, &["projected", "sources"]) {
            into.insert(object::str_at(source, &[kind, "name"]).to_owned());
        }
    }
}

/// The secrets that a pod refers to.
pub(crate) fn secret_names(pod: &Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for pull in object::arr_at(pod, &["spec", "imagePullSecrets"]) {
        names.insert(object::str_at(pull, &["name"]).to_owned());
    }
    of_environments(pod, "secretKeyRef", "secretRef", &mut names);
    of_projections(pod, "secret", &mut names);
    const PATHS: &[&[&str]] = &[
        &["azureFile", "secretName"],
        &["cephfs", "secretRef", "name"],
        &["cinder", "secretRef", "name"],
        &["flexVolume", "secretRef", "name"],
        &["rbd", "secretRef", "name"],
        &["secret", "secretName"],
        &["scaleIO", "secretRef", "name"],
        &["iscsi", "secretRef", "name"],
        &["storageos", "secretRef", "name"],
        &["csi", "nodePublishSecretRef", "name"],
    ];
    of_volumes(pod, PATHS, &mut names);
    names.remove("");
    names
}

/// The config maps that a pod refers to.
pub(crate) fn config_map_names(pod: &Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    of_environments(pod, "configMapKeyRef", "configMapRef", &mut names);
    of_projections(pod, "configMap", &mut names);
    of_volumes(pod, &[&["configMap", "name"]], &mut names);
    names.remove("");
    names
}
