//! Validation of PersistentVolumeSpecs: those of volumes, and those that VolumeAttachments hold in place of a volume's name.

use super::{access_modes, sources};
use crate::{
    core::pods::validate::node_selector_with,
    shared::{check, rules, value::Fields},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    semantic_equal, text, validation,
};
use serde_json::Value;

/// What has a spec. It decides which rules apply.
#[derive(Clone, Copy)]
pub enum Holder<'a> {
    /// A volume of this name.
    Volume {
        /// The volume's name.
        name: &'a str,
        /// The volume as it was, if it is updated.
        old: Option<&'a Value>,
    },
    /// An attachment: what is in the spec is no object of its own, and few of its fields have a meaning.
    Attachment,
}

const INLINE: &str = "may not be specified in the context of inline volumes";

/// Labels of nodes that were beta, and the ones that replaced them.
const STABLE_LABELS: [(&str, &str); 5] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// Checks a spec.
pub fn spec(errs: &mut ErrorList, path: &Path, spec: &Value, holder: Holder<'_>) {
    let inline = matches!(holder, Holder::Attachment);
    if inline {
        not_inline(errs, &path.child("claimRef"), spec.has("claimRef"));
        not_inline(errs, &path.child("capacity"), !rules::is_zero(spec.at("capacity")));
        if !spec.has("csi") {
            let text = "has to be specified in the context of inline volumes";
            errs.push(Error::required(&path.child("csi"), text));
        }
    }
    let modes = path.child("accessModes");
    if spec.list("accessModes").is_empty() {
        errs.push(Error::required(&modes, ""));
    }
    access_modes(errs, &modes, spec);
    if !inline {
        capacity(errs, &path.child("capacity"), spec);
    }
    let policy = spec.text("persistentVolumeReclaimPolicy");
    let policy_path = path.child("persistentVolumeReclaimPolicy");
    match policy {
        "" => {}
        "Retain" if inline => {}
        _ if inline => {
            errs.push(Error::forbidden(&policy_path, "may only be Retain in the context of inline volumes"));
        }
        _ => check::one_of(errs, &policy_path, policy, &["Delete", "Recycle", "Retain"]),
    }
    let (name, placed) = match holder {
        Holder::Attachment => {
            not_inline(errs, &path.child("nodeAffinity"), spec.has("nodeAffinity"));
            ("", false)
        }
        Holder::Volume { name, old } => {
            affinity(errs, &path.child("nodeAffinity"), spec, old);
            (name, spec.has("nodeAffinity"))
        }
    };
    sources::check(errs, path, spec, name, placed);
    let host = spec.at("hostPath").text("path");
    if policy == "Recycle" && host.starts_with('/') && text::clean_path(host) == "/" {
        errs.push(Error::forbidden(&policy_path, "may not be 'recycle' for a hostPath mount of '/'"));
    }
    class_and_mode(errs, path, spec, inline);
    if !inline && let Some(class) = spec.opt_text("volumeAttributesClassName") {
        attributes_class(errs, path, spec, class);
    }
}

fn not_inline(errs: &mut ErrorList, path: &Path, there: bool) {
    if there {
        errs.push(Error::forbidden(path, INLINE));
    }
}

/// An amount of storage and nothing more.
fn capacity(errs: &mut ErrorList, path: &Path, spec: &Value) {
    let capacity = spec.map("capacity").cloned().unwrap_or_default();
    if capacity.is_empty() {
        errs.push(Error::required(path, ""));
    }
    if !capacity.contains_key("storage") || capacity.len() > 1 {
        // Upstream shows a map, which is null when there is none.
        let shown = if capacity.is_empty() { Value::Null } else { Value::Object(capacity.clone()) };
        errs.push(Error::not_supported(path, shown, &["storage"]));
    }
    for (name, amount) in &capacity {
        let units = rules::quantity(amount).value();
        if units < 0 {
            errs.push(Error::invalid(&path.key(name), units, "must be a valid resource quantity"));
        }
        rules::positive_amount(errs, &path.key(name), amount);
    }
}

/// Whether any and only well-formed node selector terms are there.
fn affinity(errs: &mut ErrorList, path: &Path, spec: &Value, old: Option<&Value>) {
    let Some(affinity) = spec.get_field("nodeAffinity") else { return };
    let (required, path) = (affinity.at("required"), path.child("required"));
    if required.is_null() {
        errs.push(Error::required(&path, "must specify required node constraints"));
        return;
    }
    // Values that were no labels before may stay.
    let any_values = old.is_some_and(|o| !label_values(o.at("spec").at("nodeAffinity").at("required")));
    node_selector_with(errs, &path, required, !any_values);
}

/// Whether all values of a node selector can be those of labels.
fn label_values(selector: &Value) -> bool {
    let expressions = selector.list("nodeSelectorTerms").iter().flat_map(|t| t.list("matchExpressions"));
    expressions.flat_map(|e| e.strings("values")).all(|v| validation::is_valid_label_value(v).is_empty())
}

fn class_and_mode(errs: &mut ErrorList, path: &Path, spec: &Value, inline: bool) {
    let (class, class_path) = (spec.text("storageClassName"), path.child("storageClassName"));
    if inline {
        not_inline(errs, &class_path, !class.is_empty());
    } else if !class.is_empty() {
        check::dns_subdomain(errs, &class_path, class);
    }
    let Some(mode) = spec.opt_text("volumeMode") else { return };
    let path = path.child("volumeMode");
    if !inline {
        check::one_of(errs, &path, mode, &["Block", "Filesystem"]);
    } else if mode != "Filesystem" {
        let text = "may not specify volumeMode other than Filesystem in the context of inline volumes";
        errs.push(Error::forbidden(&path, text));
    }
}

fn attributes_class(errs: &mut ErrorList, path: &Path, spec: &Value, class: &str) {
    let at = path.child("volumeAttributesClassName");
    if class.is_empty() {
        errs.push(Error::required(&at, "an empty string is disallowed"));
    } else {
        check::dns_subdomain(errs, &at, class);
    }
    if !spec.has("csi") {
        let text = "has to be specified when using volumeAttributesClassName";
        errs.push(Error::required(&path.child("csi"), text));
    }
}

/// What may not change in the spec of a volume.
pub(super) fn unchanged(errs: &mut ErrorList, new: &Value, old: &Value) {
    sources::unchanged(errs, new, old);
    check::immutable(errs, &Path::new("volumeMode"), new.at("volumeMode"), old.at("volumeMode"));
    if let Some(before) = old.get_field("nodeAffinity") {
        unchanged_affinity(errs, new.at("nodeAffinity"), before);
    }
    if old.has("volumeAttributesClassName") && !new.has("volumeAttributesClassName") {
        let text = "update from non-nil value to nil is forbidden";
        errs.push(Error::forbidden(&Path::new("spec").child("volumeAttributesClassName"), text));
    }
}

/// Only beta labels may become those that replaced them.
fn unchanged_affinity(errs: &mut ErrorList, new: &Value, old: &Value) {
    let mut old = old.clone();
    let terms = new.at("required").list("nodeSelectorTerms");
    let pairs = old.pointer_mut("/required/nodeSelectorTerms").and_then(Value::as_array_mut);
    for (new, old) in terms.iter().zip(pairs.into_iter().flatten()) {
        for list in ["matchExpressions", "matchFields"] {
            let before = old.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
            for (new, old) in new.list(list).iter().zip(before) {
                if STABLE_LABELS.contains(&(old.text("key"), new.text("key"))) {
                    crate::shared::value::put(old, "key", new.at("key").clone());
                }
            }
        }
    }
    if !semantic_equal(new, &old) {
        let text = format!("{}, except for updating from beta label to GA", check::IMMUTABLE);
        let ty = "io.k8s.api.core.v1.VolumeNodeAffinity";
        errs.push(check::invalid_struct(&Path::new("nodeAffinity"), ty, new, text));
    }
}
