//! ResourceSlices: what devices a driver offers.

use super::{
    beta_versions::{self, FLAT},
    rules::{GROUP, amounts, default_taint, driver, limited, node_selector, pool, qualified, taint},
};
use crate::{
    Deps,
    shared::{
        check, metadata,
        table::{age, name},
        value::{Fields, list_mut, set_default},
    },
};
use kaji_meta::{
    Status,
    field::{Error, ErrorList, Path},
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SelectableField, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Node",
        "string",
        0,
        "NodeName identifies the node which provides the resources in this pool. A field selector can be used to list only ResourceSlice objects belonging to a certain node.\n\nThis field can be used to limit access from nodes to ResourceSlices with the same node name. It also indicates to autoscalers that adding new nodes of the same type as some old node might also make new resources available.\n\nExactly one of NodeName, NodeSelector, AllNodes, and PerDeviceNodeSelection must be set. This field is immutable.",
    ),
    Column::new(
        "Driver",
        "string",
        0,
        "Driver identifies the DRA driver providing the capacity information. A field selector can be used to list only ResourceSlice objects with a certain driver name.\n\nMust be a DNS subdomain and should end with a DNS domain owned by the vendor of the driver. It should use only lower case characters. This field is immutable.",
    ),
    Column::new(
        "Pool",
        "string",
        0,
        "Name is used to identify the pool. For node-local devices, this is often the node name, but this is not required.\n\nIt must not be longer than 253 characters and must consist of one or more DNS sub-domains separated by slashes. This field is immutable.",
    ),
    age_column(),
];

const MAX_DEVICES: usize = 128;
const MAX_ADVANCED_DEVICES: usize = 64;
const MAX_ATTRIBUTES: usize = 32;
const MAX_TAINTS: usize = 16;
const MAX_COUNTER_SETS: usize = 8;
/// The fields that select the nodes of devices.
const PLACES: &[&str] = &["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
const LISTS: &[&str] = &["bools", "ints", "strings", "versions"];

struct Slices {
    deps: Deps,
}

fn place(errs: &mut ErrorList, path: &Path, owner: &Value, places: &[&str], one_term: bool) -> Vec<String> {
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
    let kinds = ["bool", "int", "string", "version"].iter().chain(LISTS).filter(|f| a.has(f)).count();
    match kinds {
        0 => errs.push(Error::invalid(path, "", "exactly one value must be specified")),
        1 => {}
        _ => {
            let ty = "io.k8s.api.resource.v1.DeviceAttribute";
            errs.push(check::invalid_struct(path, ty, a, "exactly one value must be specified"));
        }
    }
    for f in LISTS.iter().filter(|f| a.has(f) && a.list(f).is_empty()) {
        errs.push(Error::invalid(&path.child(f), a.at(f).clone(), "must not be empty if specified"));
    }
    for f in ["string", "version"] {
        if a.text(f).len() > 64 {
            errs.push(Error::too_long(&path.child(f), "", 64));
        }
    }
}

fn device(errs: &mut ErrorList, path: &Path, d: &Value, old: Option<&Value>, each_has_place: bool) {
    check::dns_label(errs, &path.child("name"), d.text("name"));
    let count = |f: &str| d.map(f).map_or(0, |m| m.len());
    let total = count("attributes") + count("capacity");
    if total > MAX_ATTRIBUTES {
        let text = format!("the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES}");
        errs.push(Error::invalid(path, total, text));
    }
    for (k, a) in d.map("attributes").into_iter().flatten() {
        let at = path.child("attributes").key(k);
        qualified(errs, &at, k);
        attribute(errs, &at, a);
    }
    amounts(errs, &path.child("capacity"), d.at("capacity"));
    let taints = d.list("taints");
    if old.is_none_or(|o| o.at("taints") != d.at("taints")) {
        limited(errs, &path.child("taints"), taints, MAX_TAINTS);
        taints.iter().enumerate().for_each(|(i, t)| taint(errs, &path.child("taints").index(i), t, None));
    }
    let places = ["nodeName", "nodeSelector", "allNodes"];
    if each_has_place {
        const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
        let set = place(errs, path, d, &places, false);
        match set.len() {
            0 => errs.push(Error::required(path, ONE)),
            1 => {}
            _ => errs.push(Error::invalid(path, format!("{{{}}}", set.join(", ")), ONE)),
        }
    } else if places.iter().any(|f| d.has(f)) {
        let text = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
        errs.push(Error::invalid(path, Value::Null, text));
    }
}

fn devices(errs: &mut ErrorList, path: &Path, spec: &Value, old: Option<&Value>) {
    let list = spec.list("devices");
    let has_lists =
        |d: &Value| d.map("attributes").into_iter().flatten().any(|(_, a)| LISTS.iter().any(|f| a.has(f)));
    let advanced =
        |d: &Value| !d.list("taints").is_empty() || !d.list("consumesCounters").is_empty() || has_lists(d);
    let max = if list.iter().any(advanced) { MAX_ADVANCED_DEVICES } else { MAX_DEVICES };
    limited(errs, path, list, max);
    let each_has_place = spec.flag("perDeviceNodeSelection");
    for (i, d) in list.iter().enumerate() {
        let before = old.and_then(|o| o.list("devices").iter().find(|b| b.text("name") == d.text("name")));
        device(errs, &path.index(i), d, before, each_has_place);
        if list[..i].iter().any(|o| o.text("name") == d.text("name")) {
            errs.push(Error::duplicate(&path.index(i), d.text("name")));
        }
    }
}

fn validate(object: &Value, old: Option<&Value>) -> ErrorList {
    let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
    driver(&mut errs, &path.child("driver"), spec.text("driver"));
    let (p, at) = (spec.at("pool"), path.child("pool"));
    pool(&mut errs, &at.child("name"), p.text("name"));
    check::positive(&mut errs, &at.child("resourceSliceCount"), p.int("resourceSliceCount"));
    if p.int("generation") < 0 {
        let text = "must be greater than or equal to zero";
        errs.push(Error::invalid(&at.child("generation"), p.int("generation"), text));
    }
    let before = old.map(|o| o.at("spec"));
    if let Some(o) = before {
        check::immutable(&mut errs, &at.child("name"), p.at("name"), o.at("pool").at("name"));
        for f in ["driver", "nodeName"] {
            check::immutable(&mut errs, &path.child(f), spec.at(f), o.at(f));
        }
    }
    const ONE: &str =
        "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    let set = place(&mut errs, &path, spec, PLACES, true);
    match set.len() {
        0 => errs.push(Error::required(&path, ONE)),
        1 => {}
        _ => {
            let text = format!("{ONE}, but multiple fields are set");
            errs.push(Error::invalid(&path, format!("{{{}}}", set.join(", ")), text));
        }
    }
    let counters = spec.list("sharedCounters");
    if !counters.is_empty() && !spec.list("devices").is_empty() {
        errs.push(Error::invalid(&path, "", "only one of `sharedCounters` or `devices` is allowed"));
    }
    devices(&mut errs, &path.child("devices"), spec, before);
    let at = path.child("sharedCounters");
    limited(&mut errs, &at, counters, MAX_COUNTER_SETS);
    for (i, c) in counters.iter().enumerate() {
        check::dns_label(&mut errs, &at.index(i).child("name"), c.text("name"));
        if c.map("counters").is_none_or(|m| m.is_empty()) {
            errs.push(Error::required(&at.index(i).child("counters"), ""));
        }
    }
    errs
}

impl Hooks for Slices {
    fn default(&self, version: &str, object: &mut Value) {
        let Some(spec) = object.get_mut("spec") else { return };
        for device in list_mut(spec, "devices") {
            let device = if version == FLAT { device.get_mut("basic") } else { Some(device) };
            let Some(device) = device else { continue };
            list_mut(device, "taints").iter_mut().for_each(|t| default_taint(t, self.deps.clock.now()));
            if let Some(Value::Object(map)) = device.get_mut("nodeAllocatableResourceMappings") {
                map.values_mut().for_each(|m| set_default(m, "allocationMultiplier", || "1".into()));
            }
        }
    }

    fn convert(&self, object: &mut Value, from: &str, to: &str) -> Result<(), Status> {
        if let Some(spec) = object.get_mut("spec") {
            beta_versions::convert_slice(spec, from, to);
        }
        Ok(())
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object, None)
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        validate(new, Some(old))
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let spec = object.at("spec");
        vec![
            name(object),
            spec.text("nodeName").into(),
            spec.text("driver").into(),
            spec.at("pool").text("name").into(),
            age(object, now),
        ]
    }
}

/// The definition of ResourceSlices.
pub fn def(deps: &Deps) -> ResourceDef {
    let hooks = Slices { deps: deps.clone() };
    ResourceDef::builtin(GROUP, "v1", "ResourceSlice", "resourceslices", Scope::Cluster, COLUMNS, hooks)
        .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
        .return_deleted_object()
        .with_generation()
        .select(&[SelectableField::new("spec.nodeName").indexed(), SelectableField::new("spec.driver")])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, deps, row};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let def = def(&deps());
        let ok = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.io", "nodeName": "n", "pool": {"name": "p", "resourceSliceCount": 1},
            "devices": [{"name": "a", "attributes": {"model": {"string": "x"}}, "capacity": {"mem": {"value": "1Gi"}}}]}});
        assert_eq!(create_errors(&def, ok.clone()), "");
        assert_eq!(row(&def, &ok), "s | n | d.io | p | <unknown>");
        let bad = json!({"spec": {"driver": "d", "pool": {"name": "p"}, "nodeName": "n", "allNodes": true, "devices": [{"name": "a", "nodeName": "x",
            "attributes": {"a-b": {}}, "taints": [{"key": "k"}]}]}});
        expect![[r#"
            spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero
            spec: Invalid value: "{`nodeName`, `allNodes`}": exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set
            spec.devices[0].attributes[a-b]: Invalid value: "a-b": a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')
            spec.devices[0].attributes[a-b]: Invalid value: "": exactly one value must be specified
            spec.devices[0].taints[0].effect: Required value
            spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"#]]
        .assert_eq(&create_errors(&def, bad));
    }
}
