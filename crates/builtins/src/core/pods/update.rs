//! Updates of pods: what may change, and how subresources narrow an update down.

use super::{diff, validate};
use crate::shared::{
    Fields, check,
    value::{copy_field, drop_field, ensure_object, list_mut},
};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    semantic_equal,
};
use serde_json::{Map, Value};

const MUTABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
                       `spec.tolerations` (only additions to existing tolerations),\
                       `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// A client that does not know the resources of a pod as a whole leaves them out: they stay.
pub fn keep_pod_level(new: &mut Value, old: &Value) {
    if !new.at("spec").has("resources") {
        copy_field(ensure_object(new, "spec"), old.at("spec"), "resources");
    }
}

/// Upstream's `ValidatePodUpdate`, without ObjectMeta.
pub fn validate(errs: &mut ErrorList, new: &Value, old: &Value) {
    validate::pod(errs, new);
    let path = Path::new("metadata").child("annotations");
    validate::annotations::update(errs, &path, new.at("metadata"), old.at("metadata"));
    let path = Path::new("spec");
    let (new, old) = (new.at("spec"), old.at("spec"));
    for list in ["containers", "initContainers"] {
        let path = path.child(list);
        if new.list(list).len() != old.list(list).len() {
            errs.push(Error::forbidden(&path, "pod updates may not add or remove containers"));
            return;
        }
        for (i, c) in new.list(list).iter().enumerate() {
            check::required(errs, &path.index(i).child("image"), c.text("image"));
            validate::image_without_spaces(errs, &path.index(i), c);
        }
    }
    if !deadline(errs, &path, new, old) {
        return;
    }
    only_added_tolerations(errs, &path.child("tolerations"), new, old);
    let gates = path.child("schedulingGates");
    validate::only_deleted_gates(errs, &gates, new.list("schedulingGates"), old.list("schedulingGates"));
    if semantic_equal(new, old) {
        return;
    }
    let munged = munge(errs, &path, new, old);
    if !semantic_equal(&munged, old) {
        let text = format!(
            "pod updates may not change fields other than {MUTABLE}\n{}",
            diff::unified(old, &munged)
        );
        errs.push(Error::forbidden(&path, text));
    }
}

/// Whether to go on.
fn deadline(errs: &mut ErrorList, path: &Path, new: &Value, old: &Value) -> bool {
    let path = path.child("activeDeadlineSeconds");
    match (new.opt_int("activeDeadlineSeconds"), old.opt_int("activeDeadlineSeconds")) {
        (Some(n), _) if !(0..=i64::from(i32::MAX)).contains(&n) => {
            errs.push(Error::invalid(&path, n, "must be between 0 and 2147483647, inclusive"));
            false
        }
        (Some(n), Some(o)) if o < n => {
            errs.push(Error::invalid(&path, n, "must be less than or equal to previous value"));
            false
        }
        (None, Some(_)) => {
            let text = "must not update from a positive integer to nil value";
            errs.push(Error::invalid(&path, Value::Null, text));
            true
        }
        _ => true,
    }
}

fn only_added_tolerations(errs: &mut ErrorList, path: &Path, new: &Value, old: &Value) {
    let without_seconds = |t: &Value| {
        let mut t = t.clone();
        drop_field(&mut t, "tolerationSeconds");
        t
    };
    let new: Vec<Value> = new.list("tolerations").iter().map(without_seconds).collect();
    if old.list("tolerations").iter().any(|t| !new.contains(&without_seconds(t))) {
        let text = "existing toleration can not be modified except its tolerationSeconds";
        errs.push(Error::forbidden(path, text));
    }
}

/// The new spec with everything that may change put back to what it was.
fn munge(errs: &mut ErrorList, path: &Path, new: &Value, old: &Value) -> Value {
    let mut m = new.clone();
    for list in ["containers", "initContainers"] {
        for (c, o) in list_mut(&mut m, list).iter_mut().zip(old.list(list)) {
            copy_field(c, o, "image");
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        copy_field(&mut m, old, field);
    }
    let grace = "terminationGracePeriodSeconds";
    if old.int(grace) < 0 && m.opt_int(grace) == Some(1) {
        copy_field(&mut m, old, grace);
    }
    if old.list("schedulingGates").is_empty() {
        return m;
    }
    // A gated pod's node selection may still be narrowed.
    let selector = path.child("nodeSelector");
    if old.string_map("nodeSelector").any(|(k, v)| m.at("nodeSelector").opt_text(k) != Some(v)) {
        let text = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errs.push(Error::invalid(&selector, m.at("nodeSelector").clone(), text));
    }
    copy_field(&mut m, old, "nodeSelector");
    let (before, after) = (old.at("affinity").at("nodeAffinity"), new.at("affinity").at("nodeAffinity"));
    if !semantic_equal(before, after) {
        narrowed_affinity(errs, &path.child("affinity").child("nodeAffinity"), after, before);
        let affinity = ensure_object(&mut m, "affinity");
        copy_field(affinity, old.at("affinity"), "nodeAffinity");
    }
    m
}

fn narrowed_affinity(errs: &mut ErrorList, path: &Path, new: &Value, old: &Value) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    if !old.has(REQUIRED) {
        return;
    }
    let path = path.child(REQUIRED).child("nodeSelectorTerms");
    let terms = |v: &'_ Value| -> Vec<Value> { v.at(REQUIRED).list("nodeSelectorTerms").to_vec() };
    let (old, new) = (terms(old), terms(new));
    if !old.is_empty() && old.len() != new.len() {
        let text = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errs.push(Error::invalid(&path, new, text));
        return;
    }
    for (i, (o, n)) in old.iter().zip(&new).enumerate() {
        let lists = ["matchExpressions", "matchFields"];
        let was_empty = lists.iter().all(|l| o.list(l).is_empty());
        let now_empty = lists.iter().all(|l| n.list(l).is_empty());
        let added_only = lists.iter().all(|l| n.list(l).starts_with(o.list(l)));
        if !added_only || (was_empty && !now_empty) {
            let text = "only additions are allowed (no mutations or deletions)";
            errs.push(check::invalid_struct(&path.index(i), "io.k8s.api.core.v1.NodeSelectorTerm", n, text));
        }
    }
}

/// Keeps of a subresource's update what that subresource may change: `metadata` as status updates do, `status` and
/// `spec` of the old object. The caller then puts its own part of the new spec back. Returns the new spec.
pub fn reset_to_old(new: &mut Value, old: &Value) -> Value {
    let spec = new.get_mut("spec").map_or(Value::Null, Value::take);
    copy_field(new, old, "spec");
    copy_field(new, old, "status");
    let meta = ensure_object(new, "metadata");
    let before = old.at("metadata");
    for f in
        ["deletionTimestamp", "generation", "uid", "labels", "annotations", "finalizers", "ownerReferences"]
    {
        copy_field(meta, before, f);
    }
    spec
}

/// The `ephemeralcontainers` subresource changes `spec.ephemeralContainers` alone.
pub fn prepare_ephemeral(new: &mut Value, old: &Value) {
    let spec = reset_to_old(new, old);
    copy_field(ensure_object(new, "spec"), &spec, "ephemeralContainers");
}

/// Ephemeral containers may be added, not changed or removed.
pub fn validate_ephemeral(errs: &mut ErrorList, new: &Value, old: &Value) {
    if old.at("metadata").at("annotations").has(validate::annotations::MIRROR) {
        errs.clear();
        errs.push(Error::forbidden(&Path::root(), "static pods do not support ephemeral containers"));
        return;
    }
    validate::pod(errs, new);
    let path = Path::new("metadata").child("annotations");
    validate::annotations::update(errs, &path, new.at("metadata"), old.at("metadata"));
    let path = Path::new("spec").child("ephemeralContainers");
    let list = new.at("spec").list("ephemeralContainers");
    for o in old.at("spec").list("ephemeralContainers") {
        let name = kaji_meta::text::quote(o.text("name"));
        match list.iter().rfind(|c| c.text("name") == o.text("name")) {
            None => {
                let text = format!("existing ephemeral containers {name} may not be removed\n");
                errs.push(Error::forbidden(&path, text));
            }
            Some(c) if !semantic_equal(o, c) => {
                let diff = diff::unified(o, c);
                let text = format!("existing ephemeral containers {name} may not be changed\n{diff}");
                errs.push(Error::forbidden(&path, text));
            }
            Some(_) => {}
        }
    }
}

/// An empty object, for callers that need something to borrow.
pub(super) fn empty() -> Value {
    Value::Object(Map::new())
}
