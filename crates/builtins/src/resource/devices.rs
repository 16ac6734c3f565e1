//! Rules for the devices of ResourceSlices: attributes, capacities, counters, taints and places. Source: upstream's
//! `pkg/apis/resource/validation`.

use super::{
    request_policies::request_policy,
    rules::{binding_conditions, limited, node_selector, qualified, taint, unique},
};
use crate::shared::{check, rules::quantity, value::Fields};
use kaji_meta::field::{Error, ErrorList, Path};
use kaji_quota::names;
use serde_json::Value;

const MAX_ATTRIBUTES: usize = 32;
/// The elements of list attributes count one by one.
const MAX_ATTRIBUTE_VALUES: usize = 48;
/// Bytes of a text or version.
const MAX_VALUE: usize = 64;
const MAX_TAINTS: usize = 16;
/// Counters of a set, and counters that a device consumes of one.
const MAX_COUNTERS: usize = 32;
/// Sets that a device consumes counters of.
const MAX_CONSUMPTIONS: usize = 2;
/// Attributes with several values.
pub const LISTS: &[&str] = &["bools", "ints", "strings", "versions"];
const SCALARS: &[&str] = &["bool", "int", "string", "version"];
const ONE_PLACE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
const NO_PLACE: &str = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";

/// What is wrong with a device; `old` is the one of its name before.
pub fn device(errs: &mut ErrorList, path: &Path, d: &Value, old: Option<&Value>, each_has_place: bool) {
    check::dns_label(errs, &path.child("name"), d.text("name"));
    sizes(errs, path, d);
    let at = path.child("attributes");
    for (k, a) in d.map("attributes").into_iter().flatten() {
        qualified(errs, &at, k);
        attribute(errs, &at.key(k), a);
    }
    let at = path.child("capacity");
    for (k, capacity) in d.map("capacity").into_iter().flatten() {
        qualified(errs, &at, k);
        request_policy(errs, &at.key(k), capacity, d.flag("allowMultipleAllocations"));
    }
    let taints = d.list("taints");
    if old.is_none_or(|o| o.at("taints") != d.at("taints"))
        && limited(errs, &path.child("taints"), taints, MAX_TAINTS)
    {
        taints.iter().enumerate().for_each(|(i, t)| taint(errs, &path.child("taints").index(i), t, None));
    }
    consumptions(errs, &path.child("consumesCounters"), d.list("consumesCounters"));
    let places = ["nodeName", "nodeSelector", "allNodes"];
    if each_has_place {
        let set = place(errs, path, d, &places, false);
        match set.len() {
            0 => errs.push(Error::required(path, ONE_PLACE)),
            1 => {}
            _ => errs.push(Error::invalid(path, format!("{{{}}}", set.join(", ")), ONE_PLACE)),
        }
    } else if places.iter().any(|f| d.has(f)) {
        errs.push(Error::invalid(path, Value::Null, NO_PLACE));
    }
    binding_conditions(errs, path, d);
    node_resources(errs, &path.child("nodeAllocatableResources"), d);
}

fn sizes(errs: &mut ErrorList, path: &Path, d: &Value) {
    let count = |f: &str| d.map(f).map_or(0, |m| m.len());
    let total = count("attributes") + count("capacity");
    if total > MAX_ATTRIBUTES {
        let text = format!("the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES}");
        errs.push(Error::invalid(path, total, text));
    }
    let values = |a: &Value| LISTS.iter().map(|f| a.list(f).len()).sum::<usize>().max(1);
    let total: usize = d.map("attributes").into_iter().flatten().map(|(_, a)| values(a)).sum();
    if total > MAX_ATTRIBUTE_VALUES {
        let text = format!("the total number of attribute values must not exceed {MAX_ATTRIBUTE_VALUES}");
        errs.push(Error::invalid(path, total, text));
    }
}

/// The fields that select nodes and are set, each in back quotes.
pub fn place(
    errs: &mut ErrorList,
    path: &Path,
    owner: &Value,
    places: &[&str],
    one_term: bool,
) -> Vec<String> {
    let mut set = vec![];
    for f in places.iter().filter(|f| owner.has(f)) {
        let (at, v) = (path.child(f), owner.at(f));
        let mut given = true;
        match v {
            Value::String(s) if s.is_empty() => {
                given = false;
                let text = if one_term {
                    "must be either unset or set to a non-empty string"
                } else {
                    "must not be empty"
                };
                errs.push(Error::invalid(&at, "", text));
            }
            Value::String(s) => check::dns_subdomain(errs, &at, s),
            Value::Bool(true) => {}
            Value::Bool(false) => {
                given = false;
                errs.push(Error::invalid(&at, false, "must be either unset or set to true"));
            }
            selector => node_selector(errs, &at, selector, one_term),
        }
        if given {
            set.push(format!("`{f}`"));
        }
    }
    set
}

fn attribute(errs: &mut ErrorList, path: &Path, a: &Value) {
    let too_long = |errs: &mut ErrorList, at: &Path, text: &str| {
        if text.len() > MAX_VALUE {
            errs.push(Error::too_long(at, "", MAX_VALUE));
        }
    };
    let version = |errs: &mut ErrorList, at: &Path, text: &str| {
        if !is_semantic_version(text) {
            errs.push(Error::invalid(at, text, "must be a string compatible with semver.org spec 2.0.0"));
        }
        too_long(errs, at, text);
    };
    if let Some(text) = a.opt_text("string") {
        too_long(errs, &path.child("string"), text);
    }
    if let Some(text) = a.opt_text("version") {
        version(errs, &path.child("version"), text);
    }
    for f in LISTS.iter().filter(|f| a.has(f)) {
        let at = path.child(f);
        if a.list(f).is_empty() {
            errs.push(Error::invalid(&at, a.at(f).clone(), "must not be empty if specified"));
        }
        for (i, text) in a.strings(f).enumerate() {
            if *f == "versions" {
                version(errs, &at.index(i), text)
            } else {
                too_long(errs, &at.index(i), text)
            }
        }
    }
    match SCALARS.iter().chain(LISTS).filter(|f| a.has(f)).count() {
        0 => errs.push(Error::invalid(path, "", "exactly one value must be specified")),
        1 => {}
        _ => {
            let ty = "io.k8s.api.resource.v1.DeviceAttribute";
            errs.push(check::invalid_struct(path, ty, a, "exactly one value must be specified"));
        }
    }
}

/// Whether a text is a version of semver.org's specification 2.0.0.
fn is_semantic_version(text: &str) -> bool {
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, release) = rest.split_once('-').map_or((rest, None), |(core, release)| (core, Some(release)));
    let identifier = |id: &str| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let number = |id: &str| {
        !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit()) && (id == "0" || !id.starts_with('0'))
    };
    let digits = |id: &str| id.bytes().all(|b| b.is_ascii_digit());
    core.split('.').count() == 3
        && core.split('.').all(number)
        && release.is_none_or(|ids| ids.split('.').all(|id| identifier(id) && (number(id) || !digits(id))))
        && build.is_none_or(|ids| ids.split('.').all(identifier))
}

/// The sets of counters of a slice.
pub fn counter_set(errs: &mut ErrorList, path: &Path, set: &Value) {
    counters(errs, path, set, "name");
}

/// A set of counters that is named by this field.
fn counters(errs: &mut ErrorList, path: &Path, set: &Value, name: &str) {
    check::required_dns_label(errs, &path.child(name), set.text(name));
    let (at, all) = (path.child("counters"), set.map("counters"));
    match all.map_or(0, |all| all.len()) {
        0 => errs.push(Error::required(&at, "")),
        count if count > MAX_COUNTERS => errs.push(Error::too_many(&at, count, MAX_COUNTERS)),
        _ => all.into_iter().flatten().for_each(|(counter, _)| check::dns_label(errs, &at, counter)),
    }
}

fn consumptions(errs: &mut ErrorList, path: &Path, list: &[Value]) {
    if !limited(errs, path, list, MAX_CONSUMPTIONS) {
        return;
    }
    for (i, consumption) in list.iter().enumerate() {
        counters(errs, &path.index(i), consumption, "counterSet");
    }
    let sets: Vec<&str> = list.iter().map(|consumption| consumption.text("counterSet")).collect();
    unique(errs, path, &sets, "");
}

/// What a device takes of the node's own resources.
fn node_resources(errs: &mut ErrorList, path: &Path, d: &Value) {
    for (resource, of) in d.map("nodeAllocatableResources").into_iter().flatten() {
        let at = path.key(resource);
        if !matches!(resource.as_str(), "cpu" | "memory") && !names::is_hugepages(resource) {
            errs.push(Error::invalid(&at, resource.as_str(), "must be a node allocatable resource name"));
        }
        if !of.has("mapping") && !of.has("overhead") {
            errs.push(Error::required(&at, "at least one of mapping or overhead must be set"));
        }
        if of.has("mapping") {
            mapping(errs, &at.child("mapping"), of.at("mapping"), d);
        }
        if of.has("overhead") {
            overhead(errs, &at.child("overhead"), of.at("overhead"));
        }
    }
}

fn mapping(errs: &mut ErrorList, path: &Path, mapping: &Value, d: &Value) {
    let (key, factor) = ("capacityKey", "capacityMultiplier");
    let positive = |errs: &mut ErrorList, field: &str| {
        let given = quantity(mapping.at(field));
        if mapping.has(field) && given.sign() <= 0 {
            errs.push(Error::invalid(&path.child(field), given.to_string(), "must be positive"));
        }
    };
    if let Some(name) = mapping.opt_text(key) {
        if name.is_empty() {
            errs.push(Error::invalid(&path.child(key), "", "capacityKey must not be an empty string"));
        } else if !d.map("capacity").is_some_and(|all| all.contains_key(name)) {
            errs.push(Error::not_found(&path.child(key), name));
        }
        if !mapping.has(factor) {
            let text = "capacityMultiplier is required when capacityKey is set";
            errs.push(Error::required(&path.child(factor), text));
        }
        positive(errs, factor);
    }
    positive(errs, "deviceMultiplier");
    if mapping.has(factor) && !mapping.has(key) {
        errs.push(Error::required(
            &path.child(key),
            "capacityKey is required when capacityMultiplier is set",
        ));
    }
    check::union(errs, path, mapping, &[key, "deviceMultiplier"]);
}

fn overhead(errs: &mut ErrorList, path: &Path, overhead: &Value) {
    let fields = ["perPod", "perContainer"];
    if !fields.iter().any(|field| overhead.has(field)) {
        errs.push(Error::invalid(path, "", "at least one of perPod or perContainer must be set"));
    }
    for field in fields {
        let given = quantity(overhead.at(field));
        if given.sign() < 0 {
            errs.push(Error::invalid(&path.child(field), given.to_string(), "must be non-negative"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn errors(device: Value) -> String {
        let mut errs = vec![];
        super::device(&mut errs, &Path::new("d"), &device, None, false);
        errs.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn versions_are_semantic() {
        for good in
            ["0.0.0", "1.2.3", "1.0.0-alpha.1", "1.0.0--", "1.0.0+001.x", "1.0.0-0a.0+-", "10.20.30-x-y+z-z"]
        {
            assert!(is_semantic_version(good), "{good}");
        }
        for bad in [
            "",
            "1",
            "1.2",
            "1.2.3.4",
            "01.2.3",
            "1.2.x",
            "1.2.3-",
            "1.2.3-01",
            "1.2.3+",
            "1.2.3-a..b",
            "v1.2.3",
            "1.2.3+a+b",
        ] {
            assert!(!is_semantic_version(bad), "{bad}");
        }
    }

    #[test]
    fn attributes_and_counters_are_checked() {
        let long = "x".repeat(65);
        let values = vec!["a"; 40];
        let mut out = vec![errors(json!({"name": "d", "attributes": {
            "a/b": {"string": long}, "c": {"version": "1"}, "d": {"versions": ["1.0.0", "x"]}, "e": {"strings": []},
            "f": {"bool": true, "ints": [1]}, "g": {}}}))];
        out.push(errors(
            json!({"name": "d", "attributes": {"a": {"strings": values}, "b": {"strings": values}}}),
        ));
        out.push(errors(json!({"name": "d", "consumesCounters": [
            {"counterSet": "s", "counters": {"A": {"value": "1"}}}, {"counterSet": "s"}]})));
        out.push(errors(json!({"name": "d", "consumesCounters": [{}, {}, {}]})));
        out.push(errors(json!({"name": "d", "capacity": {"m": {"value": "1"}}, "nodeAllocatableResources": {
            "cpu": {"mapping": {"capacityKey": "m", "capacityMultiplier": "2"}, "overhead": {"perPod": "0"}},
            "ephemeral-storage": {"mapping": {"deviceMultiplier": "1"}},
            "hugepages-2Mi": {"mapping": {"capacityKey": "", "deviceMultiplier": "0"}, "overhead": {"perPod": "-1", "perContainer": "-2"}},
            "memory": {"mapping": {"capacityKey": "x", "capacityMultiplier": "0"}, "overhead": {}},
            "gpu.io/x": {}, "hugepages-1Gi": {"mapping": {"capacityMultiplier": "1"}}}})));
        out.push(errors(json!({"name": "d", "bindingConditions": ["a", "a"]})));
        out.push(errors(
            json!({"name": "d", "bindingConditions": ["a"], "bindingFailureConditions": ["a", "b c"]}),
        ));
        expect![[r#"
            d.attributes[a/b].string: Too long: may not be more than 64 bytes
            d.attributes[c].version: Invalid value: "1": must be a string compatible with semver.org spec 2.0.0
            d.attributes[d].versions[1]: Invalid value: "x": must be a string compatible with semver.org spec 2.0.0
            d.attributes[e].strings: Invalid value: []: must not be empty if specified
            d.attributes[f]: Invalid value: {"IntValue":null,"BoolValue":true,"StringValue":null,"VersionValue":null,"IntValues":[1],"BoolValues":null,"StringValues":null,"VersionValues":null}: exactly one value must be specified
            d.attributes[g]: Invalid value: "": exactly one value must be specified
            --
            d: Invalid value: 80: the total number of attribute values must not exceed 48
            --
            d.consumesCounters[0].counters: Invalid value: "A": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
            d.consumesCounters[1].counters: Required value
            d.consumesCounters[1]: Duplicate value: "s"
            --
            d.consumesCounters: Too many: 3: must have at most 2 items
            --
            d.nodeAllocatableResources[ephemeral-storage]: Invalid value: "ephemeral-storage": must be a node allocatable resource name
            d.nodeAllocatableResources[gpu.io/x]: Invalid value: "gpu.io/x": must be a node allocatable resource name
            d.nodeAllocatableResources[gpu.io/x]: Required value: at least one of mapping or overhead must be set
            d.nodeAllocatableResources[hugepages-1Gi].mapping.capacityKey: Required value: capacityKey is required when capacityMultiplier is set
            d.nodeAllocatableResources[hugepages-1Gi].mapping: Invalid value: "": must specify one of: `capacityKey`, `deviceMultiplier`
            d.nodeAllocatableResources[hugepages-2Mi].mapping.capacityKey: Invalid value: "": capacityKey must not be an empty string
            d.nodeAllocatableResources[hugepages-2Mi].mapping.capacityMultiplier: Required value: capacityMultiplier is required when capacityKey is set
            d.nodeAllocatableResources[hugepages-2Mi].mapping.deviceMultiplier: Invalid value: "0": must be positive
            d.nodeAllocatableResources[hugepages-2Mi].mapping: Invalid value: "{`capacityKey`, `deviceMultiplier`}": must specify exactly one of: `capacityKey`, `deviceMultiplier`
            d.nodeAllocatableResources[hugepages-2Mi].overhead.perPod: Invalid value: "-1": must be non-negative
            d.nodeAllocatableResources[hugepages-2Mi].overhead.perContainer: Invalid value: "-2": must be non-negative
            d.nodeAllocatableResources[memory].mapping.capacityKey: Not found: "x"
            d.nodeAllocatableResources[memory].mapping.capacityMultiplier: Invalid value: "0": must be positive
            d.nodeAllocatableResources[memory].overhead: Invalid value: "": at least one of perPod or perContainer must be set
            --
            d.bindingConditions[1]: Duplicate value: "a"
            d.bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions
            --
            d.bindingFailureConditions[1]: Invalid value: "b c": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
            d.bindingFailureConditions[0]: Invalid value: "a": bindingFailureConditions must not overlap with bindingConditions"#]].assert_eq(&out.join("\n--\n"));
    }
}
