//! ResourceSlices: what devices a driver offers.

use super::{
    beta_versions::{self, FLAT},
    devices::{LISTS, counter_set, device, place},
    rules::{GROUP, default_taint, driver, limited, pool, unique},
};
use crate::{
    Deps,
    shared::{
        check,
        disabled::{self, Feature},
        metadata,
        table::{age, name},
        value::{Fields, list_mut},
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
const MAX_COUNTER_SETS: usize = 8;
/// The fields that select the nodes of devices.
const PLACES: &[&str] = &["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];

/// Features that are off. Source: upstream's `pkg/registry/resource/resourceslice` of 1.37.
const OFF: [Feature; 5] = [
    // DRADeviceCompatibilityGroups
    &[&["spec", "devices", "consumesCounters", "compatibilityGroups"]],
    // DRANodeAllocatableResources
    &[&["spec", "devices", "nodeAllocatableResources"]],
    // DRAListTypeAttributes
    &[
        &["spec", "devices", "attributes", "*", "bools"],
        &["spec", "devices", "attributes", "*", "ints"],
        &["spec", "devices", "attributes", "*", "strings"],
        &["spec", "devices", "attributes", "*", "versions"],
    ],
    // DRAPartitionableDevicesType
    &[&["spec", "partitionTypeAttribute"]],
    // DRAOptionalNodeOperations
    &[&["spec", "skipNodeOperations"]],
];

struct Slices {
    deps: Deps,
}

fn devices(errs: &mut ErrorList, path: &Path, spec: &Value, old: Option<&Value>) {
    let list = spec.list("devices");
    let has_lists =
        |d: &Value| d.map("attributes").into_iter().flatten().any(|(_, a)| LISTS.iter().any(|f| a.has(f)));
    let advanced =
        |d: &Value| !d.list("taints").is_empty() || !d.list("consumesCounters").is_empty() || has_lists(d);
    let max = if list.iter().any(advanced) { MAX_ADVANCED_DEVICES } else { MAX_DEVICES };
    if !limited(errs, path, list, max) {
        return;
    }
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
    if limited(&mut errs, &at, counters, MAX_COUNTER_SETS) {
        for (i, set) in counters.iter().enumerate() {
            counter_set(&mut errs, &at.index(i), set);
        }
        let names: Vec<&str> = counters.iter().map(|set| set.text("name")).collect();
        unique(&mut errs, &at, &names, "");
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
        }
    }

    fn convert(&self, object: &mut Value, from: &str, to: &str) -> Result<(), Status> {
        if let Some(spec) = object.get_mut("spec") {
            beta_versions::convert_slice(spec, from, to);
        }
        Ok(())
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        disabled::drop_fields(object, &Value::Null, &OFF);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object, None)
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        disabled::drop_fields(new, old, &OFF);
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        validate(new, Some(old))
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let driver = new.at("spec").text("driver");
        match driver == driver.to_lowercase() {
            true => vec![],
            false => vec![format!(
                "spec.driver: driver names should be lowercase; {driver:?} contains uppercase characters"
            )],
        }
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
    use crate::shared::testing::{create_errors, created, deps, row, update, warnings};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn warns_of_capital_letters() {
        let slice = |driver: &str| json!({"metadata": {"name": "s"}, "spec": {"driver": driver}});
        assert_eq!(
            warnings(&def(&deps()), &slice("D.io")),
            r#"spec.driver: driver names should be lowercase; "D.io" contains uppercase characters"#
        );
        assert_eq!(warnings(&def(&deps()), &slice("d.io")), "");
    }

    /// A slice with a field of each feature that is off, or with none of them.
    fn slice(on: bool) -> Value {
        let counters = json!({"counterSet": "s", "counters": {"c": {"value": "1"}}});
        let device = json!({"name": "a", "attributes": {"x": {"int": 1}}, "consumesCounters": [counters]});
        let pool = json!({"name": "p", "resourceSliceCount": 1});
        let mut slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.io", "nodeName": "n", "pool": pool, "devices": [device]}});
        if on {
            let device = &mut slice["spec"]["devices"][0];
            device["attributes"]["x"] =
                json!({"int": 1, "ints": [1], "strings": ["a"], "bools": [true], "versions": ["1.0.0"]});
            device["consumesCounters"][0]["compatibilityGroups"] = json!(["g"]);
            device["nodeAllocatableResources"] = json!({"cpu": {"mapping": {"deviceMultiplier": "1"}}});
            slice["spec"]["partitionTypeAttribute"] = "d.io/t".into();
            slice["spec"]["skipNodeOperations"] = json!(["x"]);
        }
        slice
    }

    #[test]
    fn fields_of_features_that_are_off_are_dropped() {
        let def = def(&deps());
        let made: Value = serde_json::from_str(&created(&def, slice(true))).unwrap();
        assert_eq!(made, slice(false));
        assert_eq!(create_errors(&def, slice(true)), "");
        assert_eq!(update(&def, "", slice(true), slice(false)), (slice(false), String::new()));
        assert_eq!(update(&def, "", slice(true), slice(true)).0, slice(true));
        let mut lists = slice(false);
        lists["spec"]["devices"][0]["attributes"] = json!({"x": {"ints": [1]}});
        assert_eq!(
            create_errors(&def, lists),
            r#"spec.devices[0].attributes[x]: Invalid value: "": exactly one value must be specified"#
        );
    }

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
            spec.devices[0].attributes: Invalid value: "a-b": a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')
            spec.devices[0].attributes[a-b]: Invalid value: "": exactly one value must be specified
            spec.devices[0].taints[0].effect: Required value
            spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"#]]
        .assert_eq(&create_errors(&def, bad));
    }
}
