//! What PodGroups and the templates of Workloads have in common: policies, disruption modes, priorities.
//!
//! Fields of features that this server lacks (topology constraints, claims of groups, composite groups, preemption policies
//! of groups) are dropped, as upstream does while their gates are off.

use super::priorityclasses::HIGHEST_USER_PRIORITY;
use crate::shared::{
    Fields, check,
    value::{drop_field, put},
};
use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::{Value, json};

/// The group of the kinds.
pub const GROUP: &str = "scheduling.k8s.io";
/// The version that is stored, and one of the same form that is served too.
pub const VERSIONS: (&str, &str) = ("v1beta1", "v1alpha3");

/// Fields of a group, or of its template, behind gates that are off.
const DISABLED: [&str; 4] =
    ["parentCompositePodGroupName", "preemptionPolicy", "resourceClaims", "schedulingConstraints"];
/// Fields that a group keeps from its creation on.
const IMMUTABLE: [&str; 3] = ["disruptionMode", "priority", "priorityClassName"];

/// Drops the fields of a group, or of its template, that no gate enables, unless the stored one has them.
pub fn drop_disabled(group: &mut Value, old: Option<&Value>) {
    for field in DISABLED {
        if group.has(field) && !old.is_some_and(|old| old.has(field)) {
            drop_field(group, field);
        }
    }
}

/// Pods of a group are disrupted one by one, by default.
pub fn default_disruption_mode(spec: &mut Value) {
    if !spec.has("disruptionMode") {
        put(spec, "disruptionMode", json!({"single": {}}));
    }
}

/// What holds for a group, or its template, from its creation on.
pub fn validate(errs: &mut ErrorList, path: &Path, group: &Value) {
    policy(errs, &path.child("schedulingPolicy"), group.at("schedulingPolicy"));
    if group.has("disruptionMode") {
        check::union(errs, &path.child("disruptionMode"), group.at("disruptionMode"), &["single", "all"]);
    }
    if let Some(name) = group.opt_text("priorityClassName").filter(|name| !name.is_empty()) {
        check::dns_subdomain(errs, &path.child("priorityClassName"), name);
    }
    if let Some(priority) = group.opt_int("priority").filter(|p| *p > HIGHEST_USER_PRIORITY) {
        let text = format!("must be less than or equal to {HIGHEST_USER_PRIORITY}");
        errs.push(Error::invalid(&path.child("priority"), priority, text));
    }
}

fn policy(errs: &mut ErrorList, path: &Path, policy: &Value) {
    check::union(errs, path, policy, &["basic", "gang"]);
    if policy.has("gang") {
        let path = path.child("gang").child("minCount");
        match policy.at("gang").int("minCount") {
            0 => errs.push(Error::required(&path, "")),
            count if count < 0 => {
                errs.push(Error::invalid(&path, count, "must be greater than or equal to 1"));
            }
            _ => {}
        }
    }
}

/// What may not change of a group, or its template: all but the size of a gang.
pub fn validate_update(errs: &mut ErrorList, path: &Path, new: &Value, old: &Value) {
    for field in IMMUTABLE {
        frozen(errs, &path.child(field), new.at(field), old.at(field));
    }
    let (path, new, old) =
        (path.child("schedulingPolicy"), new.at("schedulingPolicy"), old.at("schedulingPolicy"));
    frozen(errs, &path.child("basic"), new.at("basic"), old.at("basic"));
    let text = match (new.has("gang"), old.has("gang")) {
        (true, false) => "field cannot be set once created",
        (false, true) => "field cannot be cleared once set",
        _ => return,
    };
    errs.push(Error::invalid(&path.child("gang"), Value::Null, text));
}

/// A value that may not change. Upstream's declarative rules do not show it. That a member of a union is empty is no difference to
/// [`kaji_meta::semantic_equal`], so this compares as it is.
pub fn frozen(errs: &mut ErrorList, path: &Path, new: &Value, old: &Value) {
    if new != old {
        errs.push(Error::invalid(path, Value::Null, check::IMMUTABLE));
    }
}
