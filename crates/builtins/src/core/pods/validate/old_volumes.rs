//! Volume sources of plug-ins that were replaced by CSI drivers but are still part of the API: what holds in pods, and of most of them
//! in PersistentVolumes.

use super::paths;
use crate::shared::{Fields, check};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
};
use serde_json::Value;

fn all_required(errs: &mut ErrorList, path: &Path, s: &Value, fields: &[&str]) {
    for f in fields {
        check::required(errs, &path.child(f), s.text(f));
    }
}

fn range(errs: &mut ErrorList, path: &Path, n: i64, text: &str) {
    if !(0..=255).contains(&n) {
        errs.push(Error::invalid(path, n, text));
    }
}

fn secret_ref_name(errs: &mut ErrorList, path: &Path, s: &Value) {
    if let Some(r) = s.get_field("secretRef") {
        check::required(errs, &path.child("secretRef").child("name"), r.text("name"));
    }
}

pub(crate) fn git_repo(errs: &mut ErrorList, path: &Path, s: &Value) {
    all_required(errs, path, s, &["repository"]);
    paths::local_descending(errs, &path.child("directory"), s.text("directory"));
}

pub(crate) fn gce(errs: &mut ErrorList, path: &Path, s: &Value) {
    all_required(errs, path, s, &["pdName"]);
    range(errs, &path.child("partition"), s.int("partition"), "must be between 1 and 255, inclusive");
}

pub(crate) fn aws(errs: &mut ErrorList, path: &Path, s: &Value) {
    all_required(errs, path, s, &["volumeID"]);
    range(errs, &path.child("partition"), s.int("partition"), "must be between 1 and 255, inclusive");
}

/// The text about an iSCSI source for which [`iscsi_is_too_long`] holds.
pub(crate) const ISCSI_TOO_LONG: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";

/// Whether the name that an iSCSI interface gets for a volume is too long.
pub(crate) fn iscsi_is_too_long(volume: &str, s: &Value) -> bool {
    s.has("initiatorName") && volume.len() + 1 + s.text("targetPortal").len() > 64
}

pub(crate) fn iscsi(errs: &mut ErrorList, path: &Path, s: &Value) {
    iscsi_source(errs, path, s, None);
}

/// The source of a PersistentVolume of this name.
pub(crate) fn persistent_iscsi(errs: &mut ErrorList, path: &Path, s: &Value, volume: &str) {
    iscsi_source(errs, path, s, Some(volume));
}

fn iscsi_source(errs: &mut ErrorList, path: &Path, s: &Value, volume: Option<&str>) {
    all_required(errs, path, s, &["targetPortal"]);
    if volume.is_some_and(|v| iscsi_is_too_long(v, s)) {
        errs.push(Error::invalid(&path.child("targetportal"), s.text("targetPortal"), ISCSI_TOO_LONG));
    }
    const FORMAT: &str = "must be valid format";
    let prefix = volume.map_or("must be valid format starting with iqn, eui, or naa", |_| FORMAT);
    let known = |n: &str| ["iqn", "eui", "naa"].iter().any(|p| n.starts_with(p));
    let name = |errs: &mut ErrorList, field: &str, n: &str| {
        let path = path.child(field);
        if !known(n) {
            errs.push(Error::invalid(&path, n, prefix));
        } else if !paths::is_iscsi_name(n) {
            errs.push(Error::invalid(&path, n, FORMAT));
        }
    };
    match s.text("iqn") {
        "" => errs.push(Error::required(&path.child("iqn"), "")),
        n => name(errs, "iqn", n),
    }
    range(errs, &path.child("lun"), s.int("lun"), "must be between 0 and 255, inclusive");
    if (s.flag("chapAuthDiscovery") || s.flag("chapAuthSession")) && !s.has("secretRef") {
        errs.push(Error::required(&path.child("secretRef"), ""));
    }
    if volume.is_some() {
        secret_ref_name(errs, path, s);
    }
    if let Some(n) = s.opt_text("initiatorName") {
        name(errs, "initiatorname", n);
    }
}

pub(crate) fn glusterfs(errs: &mut ErrorList, path: &Path, s: &Value) {
    all_required(errs, path, s, &["endpoints", "path"]);
}

pub(crate) fn flocker(errs: &mut ErrorList, path: &Path, s: &Value) {
    let (name, uuid) = (s.text("datasetName"), s.text("datasetUUID"));
    if name.is_empty() && uuid.is_empty() {
        errs.push(Error::required(path, "one of datasetName and datasetUUID is required"));
    }
    if !name.is_empty() && !uuid.is_empty() {
        let text = "datasetName and datasetUUID can not be specified simultaneously";
        errs.push(Error::invalid(path, "resource", text));
    }
    if name.contains('/') {
        errs.push(Error::invalid(&path.child("datasetName"), name, "must not contain '/'"));
    }
}

pub(crate) fn rbd(errs: &mut ErrorList, path: &Path, s: &Value) {
    if s.list("monitors").is_empty() {
        errs.push(Error::required(&path.child("monitors"), ""));
    }
    all_required(errs, path, s, &["image"]);
}

pub(crate) fn cinder(errs: &mut ErrorList, path: &Path, s: &Value) {
    all_required(errs, path, s, &["volumeID"]);
    secret_ref_name(errs, path, s);
}

pub(crate) fn cephfs(errs: &mut ErrorList, path: &Path, s: &Value) {
    if s.list("monitors").is_empty() {
        errs.push(Error::required(&path.child("monitors"), ""));
    }
}

/// A host and a port, as Go's `net.SplitHostPort` parts them: hosts with colons are in brackets.
fn is_host_port(pair: &str) -> bool {
    let Some((host, port)) = pair.rsplit_once(':') else { return false };
    let plain = |text: &str| !text.contains(['[', ']']);
    let host_is_plain = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(plain),
        None => plain(host) && !host.contains(':'),
    };
    host_is_plain && plain(port)
}

pub(crate) fn quobyte(errs: &mut ErrorList, path: &Path, s: &Value) {
    let text = "must be a host:port pair or multiple pairs separated by commas";
    let registry = s.text("registry");
    if registry.is_empty() {
        errs.push(Error::required(&path.child("registry"), text));
    } else if s.text("tenant").len() >= 65 {
        let text = "must be a UUID and may not exceed a length of 64 characters";
        errs.push(Error::required(&path.child("tenant"), text));
    } else {
        let bad = registry.split(',').filter(|pair| !is_host_port(pair));
        errs.extend(bad.map(|_| Error::invalid(&path.child("registry"), registry, text)));
    }
    all_required(errs, path, s, &["volume"]);
}

pub(crate) fn fc(errs: &mut ErrorList, path: &Path, s: &Value) {
    let (wwns, wwids) = (s.list("targetWWNs"), s.list("wwids"));
    if wwns.is_empty() && wwids.is_empty() {
        let text = "must specify either targetWWNs or wwids, but not both";
        errs.push(Error::required(&path.child("targetWWNs"), text));
    }
    if !wwns.is_empty() && !wwids.is_empty() {
        let text = "targetWWNs and wwids can not be specified simultaneously";
        errs.push(Error::invalid(&path.child("targetWWNs"), wwns.to_vec(), text));
    }
    if !wwns.is_empty() {
        match s.opt_int("lun") {
            None => {
                errs.push(Error::required(&path.child("lun"), "lun is required if targetWWNs is specified"))
            }
            Some(n) => range(errs, &path.child("lun"), n, "must be between 0 and 255, inclusive"),
        }
    }
}

pub(crate) fn flex(errs: &mut ErrorList, path: &Path, s: &Value) {
    all_required(errs, path, s, &["driver"]);
    for (key, _) in s.string_map("options") {
        let namespace = format!(".{}", key.split_once('/').map_or(key, |(n, _)| n).to_lowercase());
        if namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io") {
            let text = "kubernetes.io and k8s.io namespaces are reserved";
            errs.push(Error::invalid(&path.child("options").key(key), key, text));
        }
    }
}

pub(crate) fn azure_file(errs: &mut ErrorList, path: &Path, s: &Value) {
    all_required(errs, path, s, &["secretName", "shareName"]);
}

pub(crate) fn vsphere(errs: &mut ErrorList, path: &Path, s: &Value) {
    all_required(errs, path, s, &["volumePath"]);
}

pub(crate) fn photon(errs: &mut ErrorList, path: &Path, s: &Value) {
    all_required(errs, path, s, &["pdID"]);
}

pub(crate) fn portworx(errs: &mut ErrorList, path: &Path, s: &Value) {
    all_required(errs, path, s, &["volumeID"]);
}

pub(crate) fn azure_disk(errs: &mut ErrorList, path: &Path, s: &Value) {
    all_required(errs, path, s, &["diskName", "diskURI"]);
    if let Some(m) = s.opt_text("cachingMode") {
        check::one_of(errs, &path.child("cachingMode"), m, &["None", "ReadOnly", "ReadWrite"]);
    }
    let Some(kind) = s.opt_text("kind") else { return };
    check::one_of(errs, &path.child("kind"), kind, &["Dedicated", "Managed", "Shared"]);
    let (prefix, form) = if kind == "Managed" {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        )
    } else {
        ("https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd")
    };
    if !s.text("diskURI").starts_with(prefix) {
        errs.push(Error::not_supported(&path.child("diskURI"), s.text("diskURI"), &[form]));
    }
}

pub(crate) fn storageos(errs: &mut ErrorList, path: &Path, s: &Value) {
    check::required_dns_label(errs, &path.child("volumeName"), s.text("volumeName"));
    if !s.text("volumeNamespace").is_empty() {
        check::dns_label(errs, &path.child("volumeNamespace"), s.text("volumeNamespace"));
    }
    secret_ref_name(errs, path, s);
}

pub(crate) fn scale_io(errs: &mut ErrorList, path: &Path, s: &Value) {
    all_required(errs, path, s, &["gateway", "system", "volumeName"]);
}
