//! Environment variables and the selectors they (and downward API volumes) take values from.

use super::{Cx, paths};
use crate::shared::{
    Fields,
    check::{self, quantity},
};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    validation,
};
use serde_json::Value;

/// Fields that an environment variable may show.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields that a downward API volume may show.
pub(super) const VOLUME_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// Every field label a pod has.
const FIELD_LABELS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const BYTE_DIVISORS: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

pub(super) fn env(errs: &mut ErrorList, path: &Path, c: &Value) {
    for (i, e) in c.list("env").iter().enumerate() {
        let path = path.index(i);
        let name = e.text("name");
        if name.is_empty() {
            errs.push(Error::required(&path.child("name"), ""));
        } else {
            check::each(errs, &path.child("name"), name, validation::is_relaxed_env_var_name(name));
        }
        if let Some(from) = e.get_field("valueFrom") {
            value_from(errs, &path.child("valueFrom"), from, e.text("value"));
        }
    }
}

fn value_from(errs: &mut ErrorList, path: &Path, from: &Value, value: &str) {
    let mut sources = 0;
    if let Some(f) = from.get_field("fieldRef") {
        sources += 1;
        field_ref(errs, &path.child("fieldRef"), f, &ENV_FIELDS);
    }
    if let Some(f) = from.get_field("resourceFieldRef") {
        sources += 1;
        resource_field_ref(errs, &path.child("resourceFieldRef"), f, false);
    }
    for kind in ["configMapKeyRef", "secretKeyRef"] {
        if let Some(f) = from.get_field(kind) {
            sources += 1;
            key_ref(errs, &path.child(kind), f);
        }
    }
    if let Some(f) = from.get_field("fileKeyRef") {
        sources += 1;
        file_key_ref(errs, &path.child("fileKeyRef"), f);
    }
    let text = match sources {
        0 => {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        }
        _ if !value.is_empty() => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    errs.push(Error::invalid(path, "", text));
}

/// Splits `metadata.labels['key']` into its path and key.
fn subscripted(path: &str) -> Option<(&str, &str)> {
    let s = path.strip_suffix("']")?;
    let (path, key) = s.split_once("['")?;
    (!path.is_empty()).then_some((path, key))
}

/// A field of the pod, by the downward API's labels.
pub(super) fn field_ref(errs: &mut ErrorList, path: &Path, f: &Value, allowed: &[&str]) {
    for field in ["apiVersion", "fieldPath"] {
        if f.text(field).is_empty() {
            errs.push(Error::required(&path.child(field), ""));
            return;
        }
    }
    let label = f.text("fieldPath");
    let at = path.child("fieldPath");
    let refuse = |errs: &mut ErrorList, why: String| {
        errs.push(Error::invalid(&at, label, format!("error converting fieldPath: {why}")));
    };
    if f.text("apiVersion") != "v1" {
        return refuse(errs, format!("unsupported pod version: {}", f.text("apiVersion")));
    }
    match subscripted(label) {
        Some(("metadata.annotations", key)) => check::qualified_name(errs, path, &key.to_lowercase()),
        Some(("metadata.labels", key)) => check::qualified_name(errs, path, key),
        Some(_) => refuse(errs, format!("field label does not support subscript: {label}")),
        None => {
            let label = if label == "spec.host" { "spec.nodeName" } else { label };
            if !FIELD_LABELS.contains(&label) {
                refuse(errs, format!("field label not supported: {label}"));
            } else if !allowed.contains(&label) {
                errs.push(Error::not_supported(&at, label, allowed));
            }
        }
    }
}

/// A resource of a container.
pub(super) fn resource_field_ref(errs: &mut ErrorList, path: &Path, f: &Value, volume: bool) {
    let resource = f.text("resource");
    let huge = |r: &str| r.starts_with("requests.hugepages-") || r.starts_with("limits.hugepages-");
    if volume && f.text("containerName").is_empty() {
        errs.push(Error::required(&path.child("containerName"), ""));
    } else if resource.is_empty() {
        errs.push(Error::required(&path.child("resource"), ""));
    } else if !RESOURCES.contains(&resource) && !huge(resource) {
        errs.push(Error::not_supported(&path.child("resource"), resource, &RESOURCES));
    }
    let Some(divisor) = quantity(f.at("divisor")).filter(|d| !d.is_zero()) else { return };
    let divisor = divisor.to_string();
    let (allowed, what): (&[&str], _) = match resource {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"], "1m and 1 are supported with the cpu resource"),
        "limits.memory" | "requests.memory" => (&BYTE_DIVISORS, "memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => {
            (&BYTE_DIVISORS, "local ephemeral storage")
        }
        r if huge(r) => (&BYTE_DIVISORS, "hugepages"),
        _ => return,
    };
    if !allowed.contains(&divisor.as_str()) {
        let text = if allowed.len() == 2 {
            format!("only divisor's values {what}")
        } else {
            format!(
                "only divisor's values {} are supported with the {what} resource",
                BYTE_DIVISORS.join(", ")
            )
        };
        errs.push(Error::invalid(&path.child("divisor"), resource, text));
    }
}

/// A key of a ConfigMap or Secret.
fn key_ref(errs: &mut ErrorList, path: &Path, f: &Value) {
    check::dns_subdomain(errs, &path.child("name"), f.text("name"));
    let key = f.text("key");
    if key.is_empty() {
        errs.push(Error::required(&path.child("key"), ""));
    } else {
        check::each(errs, &path.child("key"), key, validation::is_config_map_key(key));
    }
}

fn file_key_ref(errs: &mut ErrorList, path: &Path, f: &Value) {
    let (key, volume, file) = (f.text("key"), f.text("volumeName"), f.text("path"));
    for (field, value) in [("key", key), ("volumeName", volume), ("path", file)] {
        let path = path.child(field);
        match (field, value) {
            (_, "") => errs.push(Error::required(&path, "")),
            ("key", v) => check::each(errs, &path, v, validation::is_relaxed_env_var_name(v)),
            ("volumeName", v) => check::dns_label(errs, &path, v),
            (_, v) => paths::no_backsteps(errs, &path, v),
        }
    }
}

pub(super) fn env_from(errs: &mut ErrorList, path: &Path, c: &Value) {
    for (i, e) in c.list("envFrom").iter().enumerate() {
        let own = path.index(i);
        let prefix = e.text("prefix");
        if !prefix.is_empty() {
            check::each(errs, &own.child("prefix"), prefix, validation::is_relaxed_env_var_name(prefix));
        }
        let mut sources = 0;
        for kind in ["configMapRef", "secretRef"] {
            let Some(f) = e.get_field(kind) else { continue };
            sources += 1;
            let path = own.child(kind).child("name");
            match f.text("name") {
                "" => errs.push(Error::required(&path, "")),
                name => check::each(errs, &path, name, validation::name_is_dns_subdomain(name, true)),
            }
        }
        match sources {
            0 => errs.push(Error::invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")),
            1 => {}
            _ => errs.push(Error::invalid(path, "", "may not have more than one field specified at a time")),
        }
    }
}

/// Files with variables must be in an emptyDir of the pod.
pub(super) fn file_key_volumes(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path) {
    let volumes = cx.spec.list("volumes");
    crate::core::pods::each_container(cx.spec, path, |c, path| {
        for (i, e) in c.list("env").iter().enumerate() {
            let Some(f) = e.at("valueFrom").get_field("fileKeyRef") else { continue };
            let name = f.text("volumeName");
            let path =
                || path.child("env").index(i).child("valueFrom").child("fileKeyRef").child("volumeName");
            match volumes.iter().rfind(|v| v.text("name") == name) {
                None => errs.push(Error::not_found(&path(), name)),
                Some(v) if !v.has("emptyDir") => {
                    errs.push(Error::invalid(&path(), name, "referenced volume must be of type emptyDir"));
                }
                Some(_) => {}
            }
        }
    });
}
