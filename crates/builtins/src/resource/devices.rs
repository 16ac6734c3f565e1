//! Rules for the devices of ResourceSlices: attributes, capacities, counters, taints and places. Source: upstream's
//! `pkg/apis/resource/validation`.

use super::rules::{binding_conditions, limited, node_selector, qualified, taint, unique};
use crate::shared::{check, rules::quantity, value::Fields};
use kaji_meta::{
    Quantity,
    field::{Error, ErrorList, Path},
};
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
/// Amounts that may be requested of a capacity.
const MAX_OPTIONS: usize = 10;
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

/// What may be requested of a capacity, which only a device that is allocated more than once has.
fn request_policy(errs: &mut ErrorList, path: &Path, capacity: &Value, shared: bool) {
    let (at, policy) = (path.child("requestPolicy"), capacity.at("requestPolicy"));
    if policy.is_null() {
        return;
    }
    if !shared {
        errs.push(Error::forbidden(&at, "allowMultipleAllocations must be true"));
        return;
    }
    let (values, range) = (policy.list("validValues"), policy.at("validRange"));
    if !values.is_empty() && !range.is_null() {
        let text = r#"exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time"#;
        errs.push(Error::forbidden(&at, text));
        return;
    }
    let most = quantity(capacity.at("value"));
    let default = policy.has("default").then(|| quantity(policy.at("default")));
    let field = match (values.is_empty(), range.is_null()) {
        (false, _) => "validValues",
        (_, false) => "validRange",
        _ => return,
    };
    match default {
        None => {
            let text = format!("required when {field} is defined");
            errs.push(Error::required(&at.child("default"), text));
        }
        Some(default) if values.is_empty() => valid_range(errs, &at.child(field), range, (&default, &most)),
        Some(default) => valid_values(errs, &at.child(field), values, (&default, &most)),
    }
}

fn valid_values(
    errs: &mut ErrorList,
    path: &Path,
    values: &[Value],
    (default, most): (&Quantity, &Quantity),
) {
    let options: Vec<Quantity> = values.iter().map(quantity).collect();
    for (i, pair) in options.windows(2).enumerate() {
        if let [before, after] = pair
            && before > after
        {
            let text = "values must be sorted in ascending order";
            errs.push(Error::invalid(&path.index(i + 1), after.to_string(), text));
        }
    }
    let mut found = false;
    if limited(errs, path, values, MAX_OPTIONS) {
        for (i, option) in options.iter().enumerate() {
            if option > most {
                let text = format!("option is larger than capacity value: {most}");
                errs.push(Error::invalid(&path.index(i), option.to_string(), text));
            }
            found |= option == default;
        }
        for (i, option) in options.iter().enumerate() {
            if options.iter().take(i).any(|o| o.value() == option.value()) {
                errs.push(Error::duplicate(&path.index(i), option.value().to_string()));
            }
        }
    }
    if !found {
        let text = "default value is not valid according to the requestPolicy";
        errs.push(Error::invalid(path, default.to_string(), text));
    }
}

fn valid_range(errs: &mut ErrorList, path: &Path, range: &Value, (default, most): (&Quantity, &Quantity)) {
    if !range.has("min") {
        errs.push(Error::required(&path.child("min"), "required when validRange is defined"));
        return;
    }
    let min = quantity(range.at("min"));
    let mut bad = |field: &str, shown: &Quantity, text: String| {
        errs.push(Error::invalid(&path.child(field), shown.to_string(), text));
    };
    if min > *most {
        bad("min", &min, format!("min is larger than capacity value: {most}"));
    }
    if *default < min {
        bad("min", default, format!("default is less than min: {min}"));
    }
    let max = range.has("max").then(|| quantity(range.at("max")));
    if let Some(max) = &max {
        if min > *max {
            bad("max", &min, format!("min is larger than max: {max}"));
        }
        if max > most {
            bad("max", max, format!("max is larger than capacity value: {most}"));
        }
        if default > max {
            bad("max", default, format!("default is more than max: {max}"));
        }
    }
    if range.has("step") {
        let step = quantity(range.at("step"));
        let one = min.add(&step);
        if one > *most {
            bad("step", &step, format!("one step {one} is larger than capacity value: {most}"));
        }
        for value in [Some(default), max.as_ref()].into_iter().flatten() {
            let above = value.value().saturating_sub(min.value());
            if above.checked_rem(step.value()).is_none_or(|rest| rest != 0) {
                let text = format!("value is not a multiple of a given step ({step}) from ({min})");
                bad("step", value, text);
            }
        }
    }
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

    #[test]
    fn request_policies_fit_their_capacity() {
        let policy = |shared: bool, policy: Value| {
            errors(json!({"name": "d", "allowMultipleAllocations": shared,
                "capacity": {"memory": {"value": "10Gi", "requestPolicy": policy}}}))
        };
        let out = [
            policy(false, json!({"default": "1Gi"})),
            policy(true, json!({"default": "1Gi"})),
            policy(true, json!({"default": "1Gi", "validValues": ["1Gi"], "validRange": {"min": "1Gi"}})),
            policy(true, json!({"validValues": ["1Gi"]})),
            policy(true, json!({"default": "3Gi", "validValues": ["2Gi", "1Gi", "1Gi", "11Gi"]})),
            policy(true, json!({"default": "1Gi", "validRange": {}})),
            policy(
                true,
                json!({"default": "1Gi", "validRange": {"min": "2Gi", "max": "11Gi", "step": "9Gi"}}),
            ),
            policy(
                true,
                json!({"default": "4Gi", "validRange": {"min": "2Gi", "max": "8Gi", "step": "2Gi"}}),
            ),
            policy(
                true,
                json!({"default": "3Gi", "validRange": {"min": "2Gi", "max": "1Gi", "step": "2Gi"}}),
            ),
        ];
        expect![[r#"
            d.capacity[memory].requestPolicy: Forbidden: allowMultipleAllocations must be true
            --

            --
            d.capacity[memory].requestPolicy: Forbidden: exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time
            --
            d.capacity[memory].requestPolicy.default: Required value: required when validValues is defined
            --
            d.capacity[memory].requestPolicy.validValues[1]: Invalid value: "1Gi": values must be sorted in ascending order
            d.capacity[memory].requestPolicy.validValues[3]: Invalid value: "11Gi": option is larger than capacity value: 10Gi
            d.capacity[memory].requestPolicy.validValues[2]: Duplicate value: "1073741824"
            d.capacity[memory].requestPolicy.validValues: Invalid value: "3Gi": default value is not valid according to the requestPolicy
            --
            d.capacity[memory].requestPolicy.validRange.min: Required value: required when validRange is defined
            --
            d.capacity[memory].requestPolicy.validRange.min: Invalid value: "1Gi": default is less than min: 2Gi
            d.capacity[memory].requestPolicy.validRange.max: Invalid value: "11Gi": max is larger than capacity value: 10Gi
            d.capacity[memory].requestPolicy.validRange.step: Invalid value: "9Gi": one step 11Gi is larger than capacity value: 10Gi
            d.capacity[memory].requestPolicy.validRange.step: Invalid value: "1Gi": value is not a multiple of a given step (9Gi) from (2Gi)
            --

            --
            d.capacity[memory].requestPolicy.validRange.max: Invalid value: "2Gi": min is larger than max: 1Gi
            d.capacity[memory].requestPolicy.validRange.max: Invalid value: "3Gi": default is more than max: 1Gi
            d.capacity[memory].requestPolicy.validRange.step: Invalid value: "3Gi": value is not a multiple of a given step (2Gi) from (2Gi)
            d.capacity[memory].requestPolicy.validRange.step: Invalid value: "1Gi": value is not a multiple of a given step (2Gi) from (2Gi)"#]].assert_eq(&out.join("\n--\n"));
    }
}
