//! Annotations that mean something to pods.

use super::paths;
use crate::{
    core::pods::each_container,
    shared::{Fields, value::ensure_object},
};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
};
use serde_json::{Value, json};

/// Marks a static pod's copy in the API.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// The prefix of the deprecated AppArmor annotations, one a container.
pub const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Validates annotations of a pod or template.
pub fn annotations(errs: &mut ErrorList, path: &Path, metadata: &Value, spec: &Value) {
    let a = metadata.at("annotations");
    if a.has(MIRROR) && spec.text("nodeName").is_empty() {
        let text = "must set spec.nodeName if mirror pod annotation is set";
        errs.push(Error::invalid(&path.key(MIRROR), a.text(MIRROR), text));
    }
    if !a.text(TOLERATIONS).is_empty() {
        match serde_json::from_str::<Value>(a.text(TOLERATIONS)) {
            Ok(list) => {
                let list = list.as_array().map_or(&[][..], Vec::as_slice);
                super::tolerations(errs, &path.child(TOLERATIONS), list);
            }
            Err(e) => errs.push(Error::invalid(path, TOLERATIONS, e.to_string())),
        }
    }
    if let Some(cost) = a.opt_text(DELETION_COST)
        && !is_cost(cost)
    {
        errs.push(Error::invalid(&path.key(DELETION_COST), cost, "must be a 32bit integer"));
    }
    for (key, profile) in metadata.string_map("annotations") {
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            seccomp_value(errs, &path.child(key), profile);
        }
        let Some(name) = key.strip_prefix(APP_ARMOR) else { continue };
        let mut known = false;
        each_container(spec, &Path::root(), |c, _| known |= c.text("name") == name);
        if !known {
            errs.push(Error::invalid(&path.key(key), name, "container not found"));
        }
        if !matches!(profile, "" | "runtime/default" | "unconfined") && !profile.starts_with("localhost/") {
            let text = format!("invalid AppArmor profile name: {}", kaji_meta::text::quote(profile));
            errs.push(Error::invalid(&path.key(key), profile, text));
        }
    }
}

/// A 32-bit integer without a plus sign or leading zeros.
fn is_cost(s: &str) -> bool {
    let digits = s.strip_prefix('-').unwrap_or(s);
    let canonical = digits == "0" && s == "0" || (!digits.is_empty() && !digits.starts_with(['0', '+']));
    canonical && s.parse::<i32>().is_ok()
}

fn seccomp_value(errs: &mut ErrorList, path: &Path, p: &str) {
    if matches!(p, "runtime/default" | "docker/default" | "unconfined") {
        return;
    }
    match p.strip_prefix("localhost/") {
        Some(file) => paths::local_descending(errs, path, file),
        None => errs.push(Error::invalid(path, p, "must be a valid seccomp profile")),
    }
}

/// On creation, deprecated annotations and the fields that replaced them must have equal values.
pub fn match_fields(errs: &mut ErrorList, path: &Path, metadata: &Value, spec: &Value) {
    let a = metadata.at("annotations");
    if a.is_null() {
        return;
    }
    let pod = spec.at("securityContext");
    if let Some(v) = a.opt_text(SECCOMP_POD) {
        let path = path.child("securityContext").child("seccompProfile");
        matches(errs, &path, v, pod.at("seccompProfile"), "seccomp");
    }
    each_container(spec, path, |c, path| {
        let own = c.at("securityContext");
        let path = path.child("securityContext");
        if let Some(v) = a.opt_text(&format!("{SECCOMP_CONTAINER}{}", c.text("name"))) {
            matches(errs, &path.child("seccompProfile"), v, own.at("seccompProfile"), "seccomp");
        }
    });
    if spec.at("os").text("name") == "windows" {
        return;
    }
    each_container(spec, path, |c, path| {
        if let Some(v) = a.opt_text(&format!("{APP_ARMOR}{}", c.text("name"))) {
            let own = c.at("securityContext").get_field("appArmorProfile");
            let path = path.child("securityContext").child("appArmorProfile");
            matches(errs, &path, v, own.unwrap_or_else(|| pod.at("appArmorProfile")), "apparmor");
        }
    });
}

fn matches(errs: &mut ErrorList, path: &Path, annotation: &str, field: &Value, what: &str) {
    let type_ok = match field.text("type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => {
            annotation == "runtime/default" || (what == "seccomp" && annotation == "docker/default")
        }
        "Localhost" => annotation.starts_with("localhost/"),
        _ => return,
    };
    if !type_ok {
        let text = format!("{what} type in annotation and field must match");
        errs.push(Error::forbidden(&path.child("type"), text));
    } else if let Some(file) = annotation.strip_prefix("localhost/")
        && field.opt_text("localhostProfile") != Some(file)
    {
        let text = format!("{what} profile in annotation and field must match");
        errs.push(Error::forbidden(&path.child("localhostProfile"), text));
    }
}

/// The `appArmorProfile` that a deprecated annotation means, if any.
pub fn app_armor_field(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        a => a.strip_prefix("localhost/").map(|f| json!({"type": "Localhost", "localhostProfile": f})),
    }
}

/// On creation of a pod, deprecated AppArmor annotations become fields. Returns the warnings this deserves.
pub fn app_armor_to_fields(pod: &mut Value) -> Vec<String> {
    let annotations = pod.at("metadata").at("annotations").clone();
    let spec = pod.at("spec");
    if spec.at("os").text("name") == "windows" || !annotations.is_object() {
        return vec![];
    }
    let of_pod = spec.at("securityContext").at("appArmorProfile").clone();
    let mut warnings = vec![];
    for list in crate::core::pods::CONTAINER_LISTS {
        let Some(Value::Array(items)) = pod.get_mut("spec").and_then(|s| s.get_mut(list)) else { continue };
        for c in items {
            let key = format!("{APP_ARMOR}{}", c.text("name"));
            let Some(value) = annotations.opt_text(&key) else { continue };
            if c.at("securityContext").has("appArmorProfile") {
                continue;
            }
            let field = app_armor_field(value)
                .filter(|f| f.text("type") != "Localhost" || !f.text("localhostProfile").trim().is_empty());
            let same = field.as_ref() == Some(&of_pod);
            if let Some(f) = field.filter(|_| !same) {
                ensure_object(c, "securityContext")["appArmorProfile"] = f;
            }
            if !same {
                warnings.push(format!(
                    "metadata.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
                ));
            }
        }
    }
    warnings
}

/// On update, some annotations may not come, go or change.
pub fn update(errs: &mut ErrorList, path: &Path, new: &Value, old: &Value) {
    let (n, o) = (new.at("annotations"), old.at("annotations"));
    for (key, value) in old.string_map("annotations") {
        if n.opt_text(key) == Some(value) {
            continue;
        }
        if key.starts_with(APP_ARMOR) {
            errs.push(Error::forbidden(&path.key(key), "may not remove or update AppArmor annotations"));
        }
        if key == MIRROR {
            errs.push(Error::forbidden(&path.key(key), "may not remove or update mirror pod annotation"));
        }
    }
    for (key, _) in new.string_map("annotations").filter(|(k, _)| !o.has(k)) {
        if key.starts_with(APP_ARMOR) {
            errs.push(Error::forbidden(&path.key(key), "may not add AppArmor annotations"));
        }
        if key == MIRROR {
            errs.push(Error::forbidden(&path.key(key), "may not add mirror pod annotation"));
        }
    }
}
