//! Where a pod may run: tolerations, affinity, topology spread constraints.

use crate::shared::{Fields, check};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    validation,
};
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};

/// Tolerations.
pub fn tolerations(errs: &mut ErrorList, path: &Path, list: &[Value]) {
    for (i, t) in list.iter().enumerate() {
        let path = path.index(i);
        let (key, operator, effect) = (t.text("key"), t.text("operator"), t.text("effect"));
        let value = t.text("value");
        if !key.is_empty() {
            check::label_name(errs, &path.child("key"), key);
        } else if operator != "Exists" {
            let text =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errs.push(Error::invalid(&path.child("operator"), operator, text));
        }
        if t.has("tolerationSeconds") && effect != "NoExecute" {
            let text = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errs.push(Error::invalid(&path.child("effect"), effect, text));
        }
        let path_op = path.child("operator");
        match operator {
            "" | "Equal" => {
                let messages = validation::is_valid_label_value(value);
                if !messages.is_empty() {
                    errs.push(Error::invalid(&path_op, value, messages.join(";")));
                }
            }
            "Exists" if value.is_empty() => {}
            "Exists" => {
                errs.push(Error::invalid(&path_op, value, "value must be empty when `operator` is 'Exists'"));
            }
            "Lt" | "Gt" => {
                errs.push(Error::not_supported(&path_op, operator, &["Equal", "Exists", "Lt", "Gt"]))
            }
            other => errs.push(Error::not_supported(&path_op, other, &["Equal", "Exists"])),
        }
        if !effect.is_empty() {
            let allowed = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            check::one_of(errs, &path.child("effect"), effect, &allowed);
        }
    }
}

pub(super) fn affinity(errs: &mut ErrorList, path: &Path, a: &Value) {
    if let Some(node) = a.get_field("nodeAffinity") {
        let path = path.child("nodeAffinity");
        if let Some(required) = node.get_field(REQUIRED) {
            node_selector(errs, &path.child(REQUIRED), required);
        }
        for (i, term) in node.list(PREFERRED).iter().enumerate() {
            let path = path.child(PREFERRED).index(i);
            weight(errs, &path, term);
            term_with(errs, &path.child("preference"), term.at("preference"), false);
        }
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(a) = a.get_field(kind) else { continue };
        let path = path.child(kind);
        for (i, term) in a.list(REQUIRED).iter().enumerate() {
            pod_affinity_term(errs, &path.child(REQUIRED).index(i), term);
        }
        for (i, weighted) in a.list(PREFERRED).iter().enumerate() {
            let path = path.child(PREFERRED).index(i);
            weight(errs, &path, weighted);
            pod_affinity_term(errs, &path.child("podAffinityTerm"), weighted.at("podAffinityTerm"));
        }
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn weight(errs: &mut ErrorList, path: &Path, term: &Value) {
    let w = term.int("weight");
    if !(1..=100).contains(&w) {
        errs.push(Error::invalid(&path.child("weight"), w, "must be in the range 1-100"));
    }
}

/// A NodeSelector.
pub fn node_selector(errs: &mut ErrorList, path: &Path, selector: &Value) {
    node_selector_with(errs, path, selector, true);
}

/// The same; the values need not be those of labels unless they are checked.
pub fn node_selector_with(errs: &mut ErrorList, path: &Path, selector: &Value, check_values: bool) {
    let path = path.child("nodeSelectorTerms");
    let terms = selector.list("nodeSelectorTerms");
    if terms.is_empty() {
        errs.push(Error::required(&path, "must have at least one node selector term"));
    }
    for (i, term) in terms.iter().enumerate() {
        term_with(errs, &path.index(i), term, check_values);
    }
}

fn term_with(errs: &mut ErrorList, path: &Path, term: &Value, check_values: bool) {
    for (i, r) in term.list("matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let count = r.list("values").len();
        let values = path.child("values");
        match r.text("operator") {
            "In" | "NotIn" if count == 0 => {
                let text = "must be specified when `operator` is 'In' or 'NotIn'";
                errs.push(Error::required(&values, text));
            }
            "Exists" | "DoesNotExist" if count > 0 => {
                let text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errs.push(Error::forbidden(&values, text));
            }
            "Gt" | "Lt" if count != 1 => {
                let text = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errs.push(Error::required(&values, text));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => {
                errs.push(Error::invalid(&path.child("operator"), other, "not a valid selector operator"))
            }
        }
        check::label_name(errs, &path.child("key"), r.text("key"));
        if check_values {
            for (j, v) in r.strings("values").enumerate() {
                check::each(errs, &values.index(j), v, validation::is_valid_label_value(v));
            }
        }
    }
    for (i, r) in term.list("matchFields").iter().enumerate() {
        let path = path.child("matchFields").index(i);
        let values = path.child("values");
        match r.text("operator") {
            "In" | "NotIn" if r.list("values").len() != 1 => {
                let text =
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errs.push(Error::required(&values, text));
            }
            "In" | "NotIn" => {}
            other => {
                errs.push(Error::invalid(&path.child("operator"), other, "not a valid selector operator"))
            }
        }
        if r.text("key") == "metadata.name" {
            for (j, v) in r.strings("values").enumerate() {
                check::dns_subdomain(errs, &values.index(j), v);
            }
        } else {
            errs.push(Error::invalid(&path.child("key"), r.text("key"), "not a valid field selector key"));
        }
    }
}

fn pod_affinity_term(errs: &mut ErrorList, path: &Path, term: &Value) {
    for s in ["labelSelector", "namespaceSelector"] {
        if let Some(selector) = term.get_field(s) {
            errs.extend(validation::validate_label_selector(selector, &path.child(s)));
        }
    }
    for ns in term.strings("namespaces") {
        check::dns_label(errs, &path.child("namespace"), ns);
    }
    label_keys(errs, path, term);
    let key = term.text("topologyKey");
    if key.is_empty() {
        errs.push(Error::required(&path.child("topologyKey"), "can not be empty"));
    }
    check::label_name(errs, &path.child("topologyKey"), key);
}

/// `matchLabelKeys` and `mismatchLabelKeys`, given that the selector may already hold what they stand for.
fn label_keys(errs: &mut ErrorList, path: &Path, holder: &Value) {
    let selector = holder.get_field("labelSelector");
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        if holder.list(field).is_empty() {
            continue;
        }
        let path = path.child(field);
        if selector.is_none() {
            errs.push(Error::forbidden(&path, "must not be specified when labelSelector is not set"));
            continue;
        }
        for (i, key) in holder.strings(field).enumerate() {
            check::label_name(errs, &path.index(i), key);
        }
    }
    if let Some(s) = selector {
        let keys: Vec<&str> = holder.strings("matchLabelKeys").collect();
        let mut seen: HashSet<&str> = s.string_map("matchLabels").map(|(k, _)| k).collect();
        for e in s.list("matchExpressions") {
            let key = e.text("key");
            if let Some(i) = keys.iter().rposition(|k| *k == key)
                && seen.contains(key)
            {
                let text = "exists in both matchLabelKeys and labelSelector";
                errs.push(Error::invalid(&path.index(i), key, text));
            }
            seen.insert(key);
        }
    }
    let mismatch: HashSet<&str> = holder.strings("mismatchLabelKeys").collect();
    for (i, key) in holder.strings("matchLabelKeys").enumerate() {
        if mismatch.contains(key) {
            let text = "exists in both matchLabelKeys and mismatchLabelKeys";
            errs.push(Error::invalid(&path.child("matchLabelKeys").index(i), key, text));
        }
    }
}

pub(super) fn topology_spread(errs: &mut ErrorList, path: &Path, spec: &Value) {
    let list = spec.list("topologySpreadConstraints");
    for (i, c) in list.iter().enumerate() {
        let path = path.index(i);
        let (key, when) = (c.text("topologyKey"), c.text("whenUnsatisfiable"));
        check::positive(errs, &path.child("maxSkew"), c.int("maxSkew"));
        if key.is_empty() {
            errs.push(Error::required(&path.child("topologyKey"), "can not be empty"));
        }
        check::one_of(errs, &path.child("whenUnsatisfiable"), when, &["DoNotSchedule", "ScheduleAnyway"]);
        let repeated =
            list[i + 1..].iter().any(|o| o.text("topologyKey") == key && o.text("whenUnsatisfiable") == when);
        if repeated {
            let path = path.child("{topologyKey, whenUnsatisfiable}");
            errs.push(Error::duplicate(&path, format!("{{{key}, {when}}}")));
        }
        if let Some(n) = c.opt_int("minDomains") {
            let path = path.child("minDomains");
            check::positive(errs, &path, n);
            if when != "DoNotSchedule" {
                let text = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}");
                errs.push(Error::invalid(&path, n, text));
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if let Some(p) = c.opt_text(policy) {
                check::one_of(errs, &path.child(policy), p, &["Honor", "Ignore"]);
            }
        }
        label_keys(errs, &path, c);
        if let Some(s) = c.get_field("labelSelector") {
            errs.extend(validation::validate_label_selector(s, &path.child("labelSelector")));
        }
    }
}

/// Scheduling gates may be removed, not added.
pub(crate) fn only_deleted_gates(errs: &mut ErrorList, path: &Path, new: &[Value], old: &[Value]) {
    let had: BTreeSet<&str> = old.iter().map(|g| g.text("name")).collect();
    for (i, gate) in new.iter().enumerate().filter(|(_, g)| !had.contains(g.text("name"))) {
        let text = format!("only deletion is allowed, but found new scheduling gate '{}'", gate.text("name"));
        errs.push(Error::forbidden(&path.index(i).child("name"), text));
    }
}
