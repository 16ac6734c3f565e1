//! What the kinds of resource.k8s.io (dynamic resource allocation) share. CEL selectors are
//! compiled as the scheduler will evaluate them.

use super::beta_versions::FLAT;
use crate::shared::{
    check,
    disabled::{self, Feature},
    value::{Fields, list_mut},
};
use kaji_cel::devices;
use kaji_meta::{
    field::{Error, ErrorList, Path},
    validation,
};
use serde_json::Value;
use std::collections::BTreeSet;

/// The API group.
pub const GROUP: &str = "resource.k8s.io";
const MAX_REQUESTS: usize = 32;
const MAX_CONSTRAINTS: usize = 32;
/// Configurations of a claim.
pub const MAX_CONFIGS: usize = 32;
const MAX_SELECTORS: usize = 32;
const MAX_ALTERNATIVES: usize = 8;
const MAX_PARAMETERS: usize = 10 * 1024;
const MAX_POOL_NAME: usize = 253;
/// Features that are off, with their fields in the spec of a claim. Source: upstream's `pkg/api/resourceclaimspec` of 1.37.
const OFF: [Feature; 1] = [
    // DRADerivedAttributes
    &[
        &["devices", "requests", "exactly", "derivedAttributes"],
        &["devices", "requests", "firstAvailable", "derivedAttributes"],
    ],
];
/// Upstream's `BindingConditionsMaxSize`, of either list.
const MAX_BINDING_CONDITIONS: usize = 4;

/// A list of limited length. Returns whether it keeps to that: if not, upstream does not look at what is in it.
pub fn limited(errs: &mut ErrorList, path: &Path, list: &[Value], max: usize) -> bool {
    if list.len() > max {
        errs.push(Error::too_many(path, list.len(), max));
    }
    list.len() <= max
}

/// No two entries have the same key.
pub fn unique(errs: &mut ErrorList, path: &Path, keys: &[&str], field: &str) {
    for (i, k) in keys.iter().enumerate().filter(|(i, k)| keys[..*i].contains(k)) {
        let at = path.index(i);
        errs.push(Error::duplicate(&if field.is_empty() { at } else { at.child(field) }, *k));
    }
}

/// The conditions of a device that binding a pod waits for, or fails by: neither without the other.
pub fn binding_conditions(errs: &mut ErrorList, path: &Path, device: &Value) {
    const BOTH: [(&str, &str); 2] = [
        ("bindingConditions", "bindingFailureConditions"),
        ("bindingFailureConditions", "bindingConditions"),
    ];
    for (field, _) in BOTH {
        let (at, list) = (path.child(field), device.list(field));
        if !limited(errs, &at, list, MAX_BINDING_CONDITIONS) {
            continue;
        }
        for (i, condition) in device.strings(field).enumerate() {
            errs.extend(validation::validate_label_name(condition, &at.index(i)));
        }
    }
    for (field, other) in BOTH {
        let (at, list) = (path.child(field), device.list(field));
        for (i, condition) in list.iter().enumerate() {
            if list[..i].contains(condition) {
                errs.push(Error::duplicate(&at.index(i), condition.clone()));
            }
            if other == "bindingConditions" && device.list(other).contains(condition) {
                let text = "bindingFailureConditions must not overlap with bindingConditions";
                errs.push(Error::invalid(&at.index(i), condition.clone(), text));
            }
        }
    }
    for (field, other) in BOTH {
        if device.list(field).is_empty() && !device.list(other).is_empty() {
            let shown = device.at(field).clone();
            errs.push(Error::invalid(
                &path.child(field),
                shown,
                format!("{field} are required to use {other}"),
            ));
        }
    }
}

/// The name of a driver.
pub fn driver(errs: &mut ErrorList, path: &Path, name: &str) {
    crate::shared::rules::csi_driver_name(errs, path, name);
}

/// The name of a pool: DNS subdomains parted by slashes.
pub fn pool(errs: &mut ErrorList, path: &Path, name: &str) {
    if name.is_empty() {
        errs.push(Error::required(path, ""));
        return;
    }
    if name.len() > MAX_POOL_NAME {
        errs.push(Error::too_long(path, "", MAX_POOL_NAME));
    }
    name.split('/').for_each(|part| check::dns_subdomain(errs, path, part));
}

/// A taint of a device.
pub fn taint(errs: &mut ErrorList, path: &Path, taint: &Value, old: Option<&Value>) {
    check::label_name(errs, &path.child("key"), taint.text("key"));
    let value = taint.text("value");
    if !value.is_empty() {
        check::each(errs, &path.child("value"), value, validation::is_valid_label_value(value));
    }
    let effect = taint.text("effect");
    if old.is_none_or(|o| o.text("effect") != effect) {
        check::required_one_of(errs, &path.child("effect"), effect, &["NoExecute", "NoSchedule", "None"]);
    }
}

/// The time at which a taint was added, by default now.
pub fn default_taint(taint: &mut Value, now: jiff::Timestamp) {
    crate::shared::value::set_default(taint, "timeAdded", || kaji_meta::Time::new(now).to_string().into());
}

/// Drops disabled fields of the spec of a claim; `old` is the stored one, or null.
pub fn drop_disabled(spec: &mut Value, old: &Value) {
    disabled::drop_fields(spec, old, &OFF);
}

/// One device a request, and tolerations by equality, by default.
pub fn default_claim(version: &str, spec: &mut Value) {
    let Some(devices) = spec.get_mut("devices") else { return };
    for request in list_mut(devices, "requests") {
        // Without a class, the request has alternatives.
        if version == FLAT && !request.text("deviceClassName").is_empty() {
            default_request(request);
        } else if let Some(exactly) = request.get_mut("exactly").filter(|e| e.is_object()) {
            default_request(exactly);
        }
        list_mut(request, "firstAvailable").iter_mut().for_each(default_request);
    }
}

fn default_request(request: &mut Value) {
    crate::shared::value::default_text(request, "allocationMode", "ExactCount");
    if request.text("allocationMode") == "ExactCount" {
        crate::shared::value::default_int(request, "count", 1);
    }
    for toleration in list_mut(request, "tolerations") {
        crate::shared::value::default_text(toleration, "operator", "Equal");
    }
}

/// Selectors of devices.
pub fn selectors(errs: &mut ErrorList, path: &Path, list: &[Value]) {
    limited(errs, path, list, MAX_SELECTORS);
    for (i, s) in list.iter().enumerate() {
        let at = path.index(i).child("cel");
        if s.has("cel") {
            expression(errs, &at.child("expression"), s.at("cel").text("expression"));
        } else {
            errs.push(Error::required(&at, ""));
        }
    }
}

fn expression(errs: &mut ErrorList, path: &Path, text: &str) {
    if text.len() > devices::MAX_EXPRESSION {
        errs.push(Error::too_long(path, "", devices::MAX_EXPRESSION));
        return;
    }
    match devices::compile(text) {
        Err(refusal) if refusal.is_internal() => errs.push(Error::internal(path, &refusal)),
        Err(refusal) => errs.push(Error::invalid(path, text, refusal.to_string())),
        Ok(program) if program.max_cost() > devices::MAX_COST => {
            errs.push(Error::forbidden(path, "too complex, exceeds cost limit"));
        }
        Ok(_) => {}
    }
}

fn request(errs: &mut ErrorList, path: &Path, r: &Value) {
    let class = r.text("deviceClassName");
    if class.is_empty() {
        errs.push(Error::required(&path.child("deviceClassName"), ""));
    } else {
        check::dns_subdomain(errs, &path.child("deviceClassName"), class);
    }
    selectors(errs, &path.child("selectors"), r.list("selectors"));
    let (mode, count) = (r.text("allocationMode"), r.int("count"));
    match mode {
        "All" if count != 0 => {
            let text = "must not be specified when allocationMode is 'All'";
            errs.push(Error::invalid(&path.child("count"), count, text));
        }
        "All" => {}
        "ExactCount" => check::positive(errs, &path.child("count"), count),
        other => {
            errs.push(Error::not_supported(&path.child("allocationMode"), other, &["All", "ExactCount"]))
        }
    }
    for (i, t) in r.list("tolerations").iter().enumerate() {
        toleration(errs, &path.child("tolerations").index(i), t);
    }
}

fn toleration(errs: &mut ErrorList, path: &Path, t: &Value) {
    let (key, operator) = (t.text("key"), t.text("operator"));
    if !key.is_empty() {
        check::label_name(errs, &path.child("key"), key);
    }
    match operator {
        "Exists" => {
            if !t.text("value").is_empty() {
                let text = "must be empty for operator `Exists`";
                errs.push(Error::invalid(&path.child("value"), t.text("value"), text));
            }
        }
        "" => errs.push(Error::required(&path.child("operator"), "")),
        "Equal" => {
            let value = t.text("value");
            check::each(errs, &path.child("value"), value, validation::is_valid_label_value(value));
        }
        other => errs.push(Error::not_supported(&path.child("operator"), other, &["Equal", "Exists"])),
    }
    let effect = t.text("effect");
    if !effect.is_empty() {
        check::one_of(errs, &path.child("effect"), effect, &["NoExecute", "NoSchedule", "None"]);
    }
}

/// Names that constraints and configurations may refer to: requests, and `request/alternative`.
pub fn request_names(spec: &Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for r in spec.at("devices").list("requests") {
        names.insert(r.text("name").to_owned());
        for a in r.list("firstAvailable") {
            names.insert(format!("{}/{}", r.text("name"), a.text("name")));
        }
    }
    names
}

/// The requests that a constraint or a configuration is for.
pub fn references(errs: &mut ErrorList, path: &Path, owner: &Value, known: &BTreeSet<String>) {
    limited(errs, path, owner.list("requests"), MAX_REQUESTS);
    let all: Vec<&str> = owner.strings("requests").collect();
    for (i, name) in all.iter().enumerate() {
        reference(errs, &path.index(i), name, known);
    }
    unique(errs, path, &all, "");
}

/// The name of a request, or `request/alternative`. Source: `validateRequestNameRef`.
pub fn reference(errs: &mut ErrorList, path: &Path, name: &str, known: &BTreeSet<String>) {
    if name.matches('/').count() <= 1 {
        name.split('/').for_each(|part| check::dns_label(errs, path, part));
    }
    if !known.contains(name) {
        let text = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        errs.push(Error::invalid(path, name, text));
    }
}

/// Parameters for a driver.
pub fn opaque(errs: &mut ErrorList, path: &Path, config: &Value) {
    let (at, o) = (path.child("opaque"), config.at("opaque"));
    if o.is_null() {
        errs.push(Error::required(&at, ""));
        return;
    }
    driver(errs, &at.child("driver"), o.text("driver"));
    let (at, parameters) = (at.child("parameters"), o.at("parameters"));
    if parameters.is_null() {
        errs.push(Error::required(&at, ""));
    } else if !parameters.is_object() {
        errs.push(Error::invalid(&at, "<value omitted>", "must be a valid JSON object"));
    } else if parameters.to_string().len() > MAX_PARAMETERS {
        errs.push(Error::too_long(&at, "", MAX_PARAMETERS));
    }
}

/// The spec of a claim.
pub fn claim(errs: &mut ErrorList, path: &Path, spec: &Value) {
    let (devices, path) = (spec.at("devices"), path.child("devices"));
    let (at, requests) = (path.child("requests"), devices.list("requests"));
    limited(errs, &at, requests, MAX_REQUESTS);
    for (i, r) in requests.iter().enumerate() {
        let at = at.index(i);
        check::dns_label(errs, &at.child("name"), r.text("name"));
        let alternatives = r.list("firstAvailable");
        match (r.has("exactly"), alternatives.is_empty()) {
            (false, true) => {
                errs.push(Error::required(&at, "exactly one of `exactly` or `firstAvailable` is required"));
            }
            (true, false) => {
                let text =
                    "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
                errs.push(Error::invalid(&at, Value::Null, text));
            }
            (true, true) => request(errs, &at.child("exactly"), r.at("exactly")),
            (false, false) => {
                let at = at.child("firstAvailable");
                limited(errs, &at, alternatives, MAX_ALTERNATIVES);
                for (j, a) in alternatives.iter().enumerate() {
                    check::dns_label(errs, &at.index(j).child("name"), a.text("name"));
                    request(errs, &at.index(j), a);
                }
                let names: Vec<&str> = alternatives.iter().map(|a| a.text("name")).collect();
                unique(errs, &at, &names, "");
            }
        }
    }
    let names: Vec<&str> = requests.iter().map(|r| r.text("name")).collect();
    unique(errs, &at, &names, "");
    let known = request_names(spec);
    let (at, constraints) = (path.child("constraints"), devices.list("constraints"));
    limited(errs, &at, constraints, MAX_CONSTRAINTS);
    for (i, c) in constraints.iter().enumerate() {
        let at = at.index(i);
        references(errs, &at.child("requests"), c, &known);
        constraint(errs, &at, c);
    }
    let (at, configs) = (path.child("config"), devices.list("config"));
    limited(errs, &at, configs, MAX_CONFIGS);
    for (i, c) in configs.iter().enumerate() {
        references(errs, &at.index(i).child("requests"), c, &known);
        opaque(errs, &at.index(i), c);
    }
}

fn constraint(errs: &mut ErrorList, path: &Path, c: &Value) {
    for f in ["matchAttribute", "distinctAttribute"] {
        if let Some(name) = c.opt_text(f) {
            let at = path.child(f);
            qualified(errs, &at, name);
            if !name.contains('/') {
                let text = "a fully qualified name must be a domain and a name separated by a slash";
                errs.push(Error::invalid(&at, name, text));
            }
            return;
        }
    }
    let text =
        "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
    errs.push(Error::required(path, text));
}

/// The name of an attribute or capacity: a C identifier, with a domain or without. As upstream has it, a name with several slashes
/// passes.
pub fn qualified(errs: &mut ErrorList, path: &Path, name: &str) {
    if name.matches('/').count() > 1 {
        return;
    }
    let (domain, id) = name.split_once('/').map_or((None, name), |(d, id)| (Some(d), id));
    match domain {
        Some("") => errs.push(Error::invalid(path, "", "the domain must not be empty")),
        Some(d) => driver(errs, path, d),
        None => {}
    }
    if id.is_empty() && domain.is_some() {
        errs.push(Error::invalid(path, "", "the name must not be empty"));
        return;
    }
    if id.len() > 32 {
        errs.push(Error::too_long(path, "", 32));
    }
    check::each(errs, path, id, validation::is_cidentifier(id));
}

/// Exactly one node selector term at most, each requirement well-formed.
pub fn node_selector(errs: &mut ErrorList, path: &Path, selector: &Value, exactly_one: bool) {
    let (at, terms) = (path.child("nodeSelectorTerms"), selector.list("nodeSelectorTerms"));
    crate::core::pods::validate::node_selector(errs, path, selector);
    if exactly_one && terms.len() != 1 {
        let (ty, terms) = ("io.k8s.api.core.v1.NodeSelectorTerm", Value::from(terms.to_vec()));
        errs.push(check::invalid_struct(&at, ty, &terms, "must have exactly one node selector term"));
    }
}
