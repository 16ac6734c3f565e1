//! The beta versions of resource.k8s.io, which are off by default. Sources: `pkg/apis/resource/v1beta1/conversion.go`, and the life
//! cycles of the types.
//!
//! v1beta2 has the form of v1. In v1beta1 the fields of an exact request are the request's own, those of a device are its `basic`, and an empty
//! node name or a false `allNodes` of a slice mean that there is none.
//!
//! Invariant: a valid object of v1 is the same after it was converted to another version and back.

use super::rules::GROUP;
use crate::shared::value::{Fields, drop_field, list_mut, put};
use kaji_meta::ServedVersions;
use kaji_resource::ResourceDef;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The version in which requests have no part of their own for what they ask.
pub const FLAT: &str = "v1beta1";

/// A version, and the release in which it is deprecated and that which lacks it; none for one that is not yet.
type Beta = (&'static str, Option<(&'static str, &'static str)>);

/// Of most kinds.
pub const ALL: &[Beta] = &[("v1beta2", Some(("v1.36", "v1.39"))), (FLAT, Some(("v1.35", "v1.38")))];
/// Of kinds that came late.
pub const LATER: &[Beta] = &[("v1beta2", None)];

/// The fields of an exact request.
const EXACT: [&str; 8] = [
    "adminAccess",
    "allocationMode",
    "capacity",
    "count",
    "derivedAttributes",
    "deviceClassName",
    "selectors",
    "tolerations",
];

/// Adds versions to a kind, served as far as they are on.
pub fn add(mut def: ResourceDef, versions: &[Beta], on: &ServedVersions) -> ResourceDef {
    for (version, life) in versions {
        def = def.also_version(version, None);
        let kind = def.kind.clone();
        let Some(added) = def.versions.last_mut() else { continue };
        added.served = on.includes(GROUP, version);
        added.deprecation = life.map(|(deprecated, removed)| {
            let text =
                format!("{GROUP}/{version} {kind} is deprecated in {deprecated}+, unavailable in {removed}+");
            Cow::Owned(text)
        });
    }
    def
}

/// Converts the spec of a claim.
pub fn convert_claim(spec: &mut Value, from: &str, to: &str) {
    let Some(devices) = spec.get_mut("devices") else { return };
    for request in list_mut(devices, "requests") {
        let Some(fields) = request.as_object_mut() else { continue };
        match (from == FLAT, to == FLAT) {
            (true, false) => nest_exact(fields),
            (false, true) => {
                if let Some(Value::Object(exactly)) = fields.remove("exactly") {
                    fields.extend(exactly);
                }
            }
            _ => {}
        }
    }
}

fn nest_exact(request: &mut Map<String, Value>) {
    let is_unset = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        _ => false,
    };
    let taken = EXACT.iter().filter_map(|field| request.remove_entry(*field));
    let exactly: Map<String, Value> = taken.filter(|(_, value)| !is_unset(value)).collect();
    if !exactly.is_empty() {
        request.insert("exactly".to_owned(), exactly.into());
    }
}

/// Converts the spec of a slice.
pub fn convert_slice(spec: &mut Value, from: &str, to: &str) {
    if from == FLAT && to != FLAT {
        if spec.text("nodeName").is_empty() {
            drop_field(spec, "nodeName");
        }
        if !spec.flag("allNodes") {
            drop_field(spec, "allNodes");
        }
    }
    for device in list_mut(spec, "devices") {
        let Some(fields) = device.as_object_mut() else { continue };
        match (from == FLAT, to == FLAT) {
            (true, false) => {
                if let Some(Value::Object(basic)) = fields.remove("basic") {
                    fields.extend(basic);
                }
            }
            (false, true) => {
                let name = fields.remove_entry("name");
                let basic = std::mem::take(fields);
                fields.extend(name);
                put(device, "basic", basic);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{resourceclaims, resourceclaimtemplates, resourceslices};
    use crate::shared::testing::deps;
    use expect_test::expect;
    use serde_json::json;

    fn there_and_back(def: &ResourceDef, object: &Value) -> Value {
        let (mut flat, mut same) = (object.clone(), object.clone());
        def.hooks.convert(&mut same, "v1", "v1beta2").unwrap();
        assert_eq!(&same, object);
        def.hooks.convert(&mut flat, "v1", FLAT).unwrap();
        let mut back = flat.clone();
        def.hooks.convert(&mut back, FLAT, "v1").unwrap();
        assert_eq!(&back, object);
        flat["spec"].clone()
    }

    #[test]
    fn requests_are_flat_in_the_first_version() {
        let exactly = json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 2, "adminAccess": true,
            "selectors": [{"cel": {"expression": "true"}}], "tolerations": [{"operator": "Exists"}],
            "capacity": {"requests": {"m": "1"}}, "derivedAttributes": [{"name": "a/b", "expression": "1"}]});
        let spec = json!({"devices": {"requests": [{"name": "a", "exactly": exactly},
            {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]}], "config": [{"requests": ["a"]}]}});
        expect![[r#"{"devices":{"config":[{"requests":["a"]}],"requests":[{"adminAccess":true,"allocationMode":"ExactCount","capacity":{"requests":{"m":"1"}},"count":2,"derivedAttributes":[{"expression":"1","name":"a/b"}],"deviceClassName":"c","name":"a","selectors":[{"cel":{"expression":"true"}}],"tolerations":[{"operator":"Exists"}]},{"firstAvailable":[{"deviceClassName":"c","name":"x"}],"name":"b"}]}}"#]]
            .assert_eq(&there_and_back(&resourceclaims::def(&crate::shared::testing::deps()), &json!({"spec": spec})).to_string());
        let template = json!({"spec": {"metadata": {"labels": {"a": "b"}}, "spec": spec}});
        let flat = there_and_back(&resourceclaimtemplates::def(), &template);
        assert_eq!(flat["spec"]["devices"]["requests"][0]["deviceClassName"], "c");
    }

    #[test]
    fn defaults_are_those_of_the_version() {
        let mut claim = json!({"spec": {"devices": {"requests": [{"name": "a", "deviceClassName": "c"},
            {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]}, {"name": "c"}]}}});
        let hooks = resourceclaims::def(&crate::shared::testing::deps()).hooks;
        hooks.default(FLAT, &mut claim);
        hooks.convert(&mut claim, FLAT, "v1").unwrap();
        expect![[r#"[{"exactly":{"allocationMode":"ExactCount","count":1,"deviceClassName":"c"},"name":"a"},{"firstAvailable":[{"allocationMode":"ExactCount","count":1,"deviceClassName":"c","name":"x"}],"name":"b"},{"name":"c"}]"#]]
            .assert_eq(&claim["spec"]["devices"]["requests"].to_string());
    }

    #[test]
    fn devices_are_basic_in_the_first_version() {
        let def = resourceslices::def(&deps());
        let slice = json!({"spec": {"driver": "d", "nodeName": "n", "devices": [{"name": "a", "attributes": {"x": {"int": 1}},
            "taints": [{"key": "k", "effect": "NoExecute"}]}, {"name": "b"}]}});
        expect![[r#"{"devices":[{"basic":{"attributes":{"x":{"int":1}},"taints":[{"effect":"NoExecute","key":"k"}]},"name":"a"},{"basic":{},"name":"b"}],"driver":"d","nodeName":"n"}"#]]
            .assert_eq(&there_and_back(&def, &slice).to_string());
        let mut given = json!({"spec": {"nodeName": "", "allNodes": false, "perDeviceNodeSelection": true,
            "devices": [{"name": "a", "basic": {"taints": [{"key": "k", "effect": "NoExecute"}]}}, {"name": "b"}]}});
        def.hooks.default(FLAT, &mut given);
        def.hooks.convert(&mut given, FLAT, "v1").unwrap();
        expect![[r#"{"devices":[{"name":"a","taints":[{"effect":"NoExecute","key":"k","timeAdded":"2026-01-02T03:04:05Z"}]},{"name":"b"}],"perDeviceNodeSelection":true}"#]]
            .assert_eq(&given["spec"].to_string());
    }

    #[test]
    fn versions_are_served_when_they_are_on() {
        let served = |items: &[&str]| {
            let deps = crate::Deps { served: ServedVersions::parse(items).unwrap(), ..deps() };
            let all = crate::resource::defs(&deps);
            let of = |def: &ResourceDef| def.versions.iter().filter(|v| v.served).count();
            all.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(served(&[]), [1, 1, 1, 1, 1]);
        assert_eq!(served(&["resource.k8s.io/v1beta1"]), [2, 1, 2, 2, 2]);
        assert_eq!(served(&["api/beta=true"]), [3, 2, 3, 3, 3]);
        let claims = add(resourceclaims::def(&crate::shared::testing::deps()), ALL, &ServedVersions::all());
        assert_eq!(
            claims.version(FLAT).unwrap().deprecation.as_deref(),
            Some("resource.k8s.io/v1beta1 ResourceClaim is deprecated in v1.35+, unavailable in v1.38+")
        );
    }
}
