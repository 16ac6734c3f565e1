//! Volumes and those of their sources that are in use.

use super::{containers::pull_policy, env, old_volumes, paths, projected};
use crate::shared::{
    Fields,
    check::{self, quantity},
    claim, rules,
};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    validation,
};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// Checks the source of one kind.
type Check = fn(&mut ErrorList, &Path, &Value);

/// Sources in upstream's order, the field that errors about a second source name, and the field that errors about the
/// source name (both differ from the JSON field in a few cases).
const SOURCES: [(&str, &str, &str, Check); 30] = [
    ("emptyDir", "emptyDir", "emptyDir", empty_dir),
    ("hostPath", "hostPath", "hostPath", host_path),
    ("gitRepo", "gitRepo", "gitRepo", old_volumes::git_repo),
    ("gcePersistentDisk", "gcePersistentDisk", "persistentDisk", old_volumes::gce),
    ("awsElasticBlockStore", "awsElasticBlockStore", "awsElasticBlockStore", old_volumes::aws),
    ("secret", "secret", "secret", secret),
    ("nfs", "nfs", "nfs", nfs),
    ("iscsi", "iscsi", "iscsi", old_volumes::iscsi),
    ("glusterfs", "glusterfs", "glusterfs", old_volumes::glusterfs),
    ("flocker", "flocker", "flocker", old_volumes::flocker),
    ("persistentVolumeClaim", "persistentVolumeClaim", "persistentVolumeClaim", claim_source),
    ("rbd", "rbd", "rbd", old_volumes::rbd),
    ("cinder", "cinder", "cinder", old_volumes::cinder),
    ("cephfs", "cephFS", "cephfs", old_volumes::cephfs),
    ("quobyte", "quobyte", "quobyte", old_volumes::quobyte),
    ("downwardAPI", "downwarAPI", "downwardAPI", downward_api),
    ("fc", "fc", "fc", old_volumes::fc),
    ("flexVolume", "flexVolume", "flexVolume", old_volumes::flex),
    ("configMap", "configMap", "configMap", config_map),
    ("azureFile", "azureFile", "azureFile", old_volumes::azure_file),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume", old_volumes::vsphere),
    ("photonPersistentDisk", "photonPersistentDisk", "photonPersistentDisk", old_volumes::photon),
    ("portworxVolume", "portworxVolume", "portworxVolume", old_volumes::portworx),
    ("azureDisk", "azureDisk", "azureDisk", old_volumes::azure_disk),
    ("storageos", "storageos", "storageos", old_volumes::storageos),
    ("projected", "projected", "projected", projected::projected),
    ("scaleIO", "scaleIO", "scaleIO", old_volumes::scale_io),
    ("csi", "csi", "csi", csi),
    ("ephemeral", "ephemeral", "ephemeral", ephemeral),
    ("image", "image", "image", |_, _, _| {}),
];

/// Validates the volumes; returns the well-formed ones by name.
pub(super) fn volumes<'a>(
    errs: &mut ErrorList,
    path: &Path,
    spec: &'a Value,
    metadata: Option<&Value>,
) -> HashMap<&'a str, &'a Value> {
    let pod = metadata.map_or("", |m| m.text("name"));
    let list = spec.list("volumes");
    let created: HashSet<String> = list
        .iter()
        .filter(|v| !pod.is_empty() && v.has("ephemeral"))
        .map(|v| format!("{pod}-{}", v.text("name")))
        .collect();
    let mut good = HashMap::with_capacity(list.len());
    for (i, v) in list.iter().enumerate() {
        let path = path.index(i);
        let before = errs.len();
        source(errs, &path, v, pod, metadata.is_some());
        let name = v.text("name");
        if name.is_empty() {
            errs.push(Error::required(&path.child("name"), ""));
        } else {
            check::dns_label(errs, &path.child("name"), name);
        }
        if good.contains_key(name) {
            errs.push(Error::duplicate(&path.child("name"), name));
        }
        if errs.len() == before {
            good.insert(name, v);
        }
        let claim = v.at("persistentVolumeClaim").text("claimName");
        if created.contains(claim) {
            let path = path.child("persistentVolumeClaim").child("claimName");
            let text = "must not reference a PVC that gets created for an ephemeral volume";
            errs.push(Error::invalid(&path, claim, text));
        }
    }
    good
}

fn source(errs: &mut ErrorList, path: &Path, v: &Value, pod: &str, is_pod: bool) {
    let mut found = 0;
    let name = v.text("name");
    for (field, second, own, check) in SOURCES {
        let Some(s) = v.get_field(field) else { continue };
        if found > 0 {
            errs.push(Error::forbidden(&path.child(second), "may not specify more than 1 volume type"));
        } else {
            found += 1;
            check(errs, &path.child(own), s);
            match field {
                "image" => image(errs, &path.child("image"), s, is_pod),
                "ephemeral" if !pod.is_empty() && !name.is_empty() => {
                    let claim = format!("{pod}-{name}");
                    for m in validation::name_is_dns_subdomain(&claim, false) {
                        let text = format!("PVC name {}: {m}", kaji_meta::text::quote(&claim));
                        errs.push(Error::invalid(&path.child("name"), name, text));
                    }
                }
                _ => {}
            }
        }
        if field == "iscsi" && old_volumes::iscsi_is_too_long(name, s) {
            errs.push(Error::invalid(&path.child("name"), name, old_volumes::ISCSI_TOO_LONG));
        }
    }
    if found == 0 {
        errs.push(Error::required(path, "must specify a volume type"));
    }
}

fn image(errs: &mut ErrorList, path: &Path, s: &Value, is_pod: bool) {
    if is_pod {
        check::required(errs, &path.child("reference"), s.text("reference"));
    }
    pull_policy(errs, &path.child("pullPolicy"), s.text("pullPolicy"));
}

fn empty_dir(errs: &mut ErrorList, path: &Path, s: &Value) {
    if quantity(s.at("sizeLimit")).is_some_and(|q| q.sign() < 0) {
        let text = "SizeLimit field must be a valid resource quantity";
        errs.push(Error::forbidden(&path.child("sizeLimit"), text));
    }
}

/// A path of the node.
pub(crate) fn host_path(errs: &mut ErrorList, path: &Path, s: &Value) {
    let at = s.text("path");
    if at.is_empty() {
        errs.push(Error::required(&path.child("path"), ""));
        return;
    }
    paths::no_backsteps(errs, &path.child("path"), at);
    let kinds =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    if let Some(t) = s.opt_text("type") {
        check::one_of(errs, &path.child("type"), t, &kinds);
    }
}

fn items(errs: &mut ErrorList, path: &Path, s: &Value) {
    for (i, item) in s.list("items").iter().enumerate() {
        key_to_path(errs, &path.child("items").index(i), item);
    }
}

/// One key of a ConfigMap or Secret and the file it goes to.
pub(super) fn key_to_path(errs: &mut ErrorList, path: &Path, item: &Value) {
    check::required(errs, &path.child("key"), item.text("key"));
    check::required(errs, &path.child("path"), item.text("path"));
    paths::local_non_reserved(errs, &path.child("path"), item.text("path"));
    paths::file_mode(errs, &path.child("mode"), item.opt_int("mode"));
}

fn secret(errs: &mut ErrorList, path: &Path, s: &Value) {
    check::required(errs, &path.child("secretName"), s.text("secretName"));
    paths::file_mode(errs, &path.child("defaultMode"), s.opt_int("defaultMode"));
    items(errs, path, s);
}

fn config_map(errs: &mut ErrorList, path: &Path, s: &Value) {
    check::required(errs, &path.child("name"), s.text("name"));
    paths::file_mode(errs, &path.child("defaultMode"), s.opt_int("defaultMode"));
    items(errs, path, s);
}

/// A directory that a server exports.
pub(crate) fn nfs(errs: &mut ErrorList, path: &Path, s: &Value) {
    check::required(errs, &path.child("server"), s.text("server"));
    check::required(errs, &path.child("path"), s.text("path"));
    if !s.text("path").starts_with('/') {
        errs.push(Error::invalid(&path.child("path"), s.text("path"), "must be an absolute path"));
    }
}

fn claim_source(errs: &mut ErrorList, path: &Path, s: &Value) {
    check::required(errs, &path.child("claimName"), s.text("claimName"));
}

fn downward_api(errs: &mut ErrorList, path: &Path, s: &Value) {
    paths::file_mode(errs, &path.child("defaultMode"), s.opt_int("defaultMode"));
    for item in s.list("items") {
        downward_file(errs, path, item);
    }
}

/// One file of a downward API volume.
pub(super) fn downward_file(errs: &mut ErrorList, path: &Path, file: &Value) {
    check::required(errs, &path.child("path"), file.text("path"));
    paths::local_non_reserved(errs, &path.child("path"), file.text("path"));
    match (file.get_field("fieldRef"), file.get_field("resourceFieldRef")) {
        (Some(f), resource) => {
            env::field_ref(errs, &path.child("fieldRef"), f, &env::VOLUME_FIELDS);
            if resource.is_some() {
                let text = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errs.push(Error::invalid(path, "resource", text));
            }
        }
        (None, Some(f)) => env::resource_field_ref(errs, &path.child("resourceFieldRef"), f, true),
        (None, None) => errs.push(Error::required(path, "one of fieldRef and resourceFieldRef is required")),
    }
    paths::file_mode(errs, &path.child("mode"), file.opt_int("mode"));
}

fn csi(errs: &mut ErrorList, path: &Path, s: &Value) {
    rules::csi_driver_name(errs, &path.child("driver"), s.text("driver"));
    if let Some(r) = s.get_field("nodePublishSecretRef") {
        match r.text("name") {
            "" => errs.push(Error::required(&path.child("nodePublishSecretRef").child("name"), "")),
            name => check::dns_subdomain(errs, &path.child("name"), name),
        }
    }
}

fn ephemeral(errs: &mut ErrorList, path: &Path, s: &Value) {
    let path = path.child("volumeClaimTemplate");
    let Some(t) = s.get_field("volumeClaimTemplate") else {
        errs.push(Error::required(&path, ""));
        return;
    };
    claim::template_metadata(errs, &path.child("metadata"), t.at("metadata"));
    claim::spec(errs, &path.child("spec"), t.at("spec"));
}
