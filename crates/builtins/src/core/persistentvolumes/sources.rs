//! The sources of PersistentVolumes: which there are, what is checked of each, and what may change.
//!
//! Most are those of pods with more references to namespaces; what is the same is checked by the functions of pods.

use crate::{
    core::pods::{
        diff,
        validate::{host_path, nfs, no_backsteps, old_volumes},
    },
    shared::{check, rules, value::Fields},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, semantic_equal,
};
use serde_json::{Map, Value};

/// Fields of the spec that name a kind of volume, in the order they are checked.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];
/// Those that are mounted with options.
const WITH_MOUNT_OPTIONS: [&str; 13] = [
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "nfs",
    "rbd",
    "quobyte",
    "iscsi",
    "cinder",
    "cephfs",
    "azureFile",
    "vsphereVolume",
    "azureDisk",
    "photonPersistentDisk",
];
/// The annotation that had mount options before there was a field.
pub(super) const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// Checks that the spec at `path` has one source, and that one. `volume` is the name of the volume, `placed` whether the spec has a
/// node affinity.
pub(super) fn check(errs: &mut ErrorList, path: &Path, spec: &Value, volume: &str, placed: bool) {
    let mut found = false;
    for field in SOURCES {
        let Some(source) = spec.get_field(field) else { continue };
        if found && field != "flexVolume" {
            // Upstream spells this one as its struct, here alone.
            let name = if field == "cephfs" { "cephFS" } else { field };
            errs.push(Error::forbidden(&path.child(name), "may not specify more than 1 volume type"));
            continue;
        }
        found = true;
        let name = if field == "gcePersistentDisk" { "persistentDisk" } else { field };
        one(errs, &path.child(name), field, source, volume);
        if field == "local" && !placed {
            errs.push(Error::required(&path.child("nodeAffinity"), "Local volume requires node affinity"));
        }
    }
    if !found {
        errs.push(Error::required(path, "must specify a volume type"));
    }
}

fn one(errs: &mut ErrorList, path: &Path, field: &str, s: &Value, volume: &str) {
    match field {
        "hostPath" => host_path(errs, path, s),
        "gcePersistentDisk" => old_volumes::gce(errs, path, s),
        "awsElasticBlockStore" => old_volumes::aws(errs, path, s),
        "glusterfs" => glusterfs(errs, path, s),
        "flocker" => old_volumes::flocker(errs, path, s),
        "nfs" => nfs(errs, path, s),
        "rbd" => old_volumes::rbd(errs, path, s),
        "quobyte" => old_volumes::quobyte(errs, path, s),
        "cephfs" => old_volumes::cephfs(errs, path, s),
        "iscsi" => old_volumes::persistent_iscsi(errs, path, s, volume),
        "cinder" => {
            old_volumes::cinder(errs, path, s);
            secret_namespace(errs, path, s);
        }
        "fc" => old_volumes::fc(errs, path, s),
        "flexVolume" => old_volumes::flex(errs, path, s),
        "azureFile" => azure_file(errs, path, s),
        "vsphereVolume" => old_volumes::vsphere(errs, path, s),
        "photonPersistentDisk" => old_volumes::photon(errs, path, s),
        "portworxVolume" => old_volumes::portworx(errs, path, s),
        "azureDisk" => old_volumes::azure_disk(errs, path, s),
        "scaleIO" => old_volumes::scale_io(errs, path, s),
        "local" => local(errs, path, s),
        "storageos" => {
            old_volumes::storageos(errs, path, s);
            secret_namespace(errs, path, s);
        }
        _ => csi(errs, path, s),
    }
}

/// A secret that is named has its namespace with it.
fn secret_namespace(errs: &mut ErrorList, path: &Path, s: &Value) {
    if let Some(secret) = s.get_field("secretRef") {
        check::required(errs, &path.child("secretRef").child("namespace"), secret.text("namespace"));
    }
}

fn glusterfs(errs: &mut ErrorList, path: &Path, s: &Value) {
    old_volumes::glusterfs(errs, path, s);
    let path = path.child("endpointsNamespace");
    match s.opt_text("endpointsNamespace") {
        Some("") => {
            let text = "if the endpointnamespace is set, it must be a valid namespace name";
            errs.push(Error::invalid(&path, "", text));
        }
        Some(namespace) => check::dns_label(errs, &path, namespace),
        None => {}
    }
}

fn azure_file(errs: &mut ErrorList, path: &Path, s: &Value) {
    old_volumes::azure_file(errs, path, s);
    if let Some(namespace) = s.opt_text("secretNamespace") {
        check::required(errs, &path.child("secretNamespace"), namespace);
    }
}

fn local(errs: &mut ErrorList, path: &Path, s: &Value) {
    check::required(errs, &path.child("path"), s.text("path"));
    no_backsteps(errs, &path.child("path"), s.text("path"));
}

/// All secrets but that of staging are checked.
fn csi(errs: &mut ErrorList, path: &Path, s: &Value) {
    rules::csi_driver_name(errs, &path.child("driver"), s.text("driver"));
    check::required(errs, &path.child("volumeHandle"), s.text("volumeHandle"));
    for field in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let Some(secret) = s.get_field(field) else { continue };
        let path = path.child(field);
        check::required_dns_subdomain(errs, &path.child("name"), secret.text("name"));
        check::required_dns_label(errs, &path.child("namespace"), secret.text("namespace"));
    }
}

/// Whether the volume can be mounted with the options of its annotation.
pub(super) fn mount_options(errs: &mut ErrorList, volume: &Value) {
    let supported = WITH_MOUNT_OPTIONS.iter().any(|s| volume.at("spec").has(s));
    if !supported && object::annotation(volume, MOUNT_OPTIONS).is_some() {
        let path = Path::new("metadata").child("annotations").child(MOUNT_OPTIONS);
        errs.push(Error::forbidden(&path, "may not specify mount options for this volume type"));
    }
}

/// The source may not change, but a secret for expansion may be added.
pub(super) fn unchanged(errs: &mut ErrorList, new: &Value, old: &Value) {
    let (mut changed, before) = (all(new), all(old));
    if before.get("csi").is_some_and(|csi| !csi.has("controllerExpandSecretRef"))
        && let Some(Value::Object(csi)) = changed.get_mut("csi")
    {
        csi.remove("controllerExpandSecretRef");
    }
    let (changed, before) = (Value::Object(changed), Value::Object(before));
    if !semantic_equal(&changed, &before) {
        let diff = diff::unified_texts(&shown(&before), &shown(&changed));
        let text = format!("spec.persistentvolumesource is immutable after creation\n{diff}");
        errs.push(Error::forbidden(&Path::new("spec").child("persistentvolumesource"), text));
    }
}

/// The fields of a spec that are sources.
fn all(spec: &Value) -> Map<String, Value> {
    let there = SOURCES.iter().filter_map(|s| Some(((*s).to_owned(), spec.get_field(s)?.clone())));
    there.collect()
}

/// Sources as upstream's message shows them: as the struct that the internal spec has between its capacity and its access modes.
fn shown(sources: &Value) -> String {
    let spec = kaji_schema::internal::text("io.k8s.api.core.v1.PersistentVolumeSpec", sources);
    let from = spec.strip_prefix(r#"{"Capacity":null,"#).unwrap_or(&spec);
    let part = from.rsplit_once(r#","AccessModes":"#).map_or(from, |(part, _)| part);
    diff::indented(&format!("{{{part}}}"))
}

#[cfg(test)]
mod tests;
