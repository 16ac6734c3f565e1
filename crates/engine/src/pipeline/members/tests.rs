//! What is stored after a change of a few members, beside what an update of the whole object stores.

use super::*;
use crate::decode;
use kaji_schema::{SchemaRef, types};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;

const MEMBERS: Members = &[
    ("metadata", "name"),
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("spec", "nodeName"),
    ("spec", "schedulingGates"),
    ("status", "nominatedNodeName"),
    ("status", "conditions"),
];

fn schema() -> SchemaRef {
    types::for_gvk("", "v1", "Pod").unwrap()
}

/// A pod as it is stored, with what these bits say.
fn pod(bits: u16, text: &str) -> Value {
    let has = |bit: u16| bits & 1 << bit != 0;
    let mut pod = json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "c", "image": text, "env": [{"name": "A", "value": text}]}]},
        "status": {"phase": "Pending"}});
    let optional = [
        (0, "/metadata/labels", json!({"a": "b", "z": text})),
        (1, "/metadata/annotations", json!({"\"nodeName\":": text})),
        (
            2,
            "/metadata/managedFields",
            json!([{"manager": text, "operation": "Update", "apiVersion": "v1",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"k:{\"a\":1}": {}}}}]),
        ),
        (3, "/spec/nodeName", json!("former")),
        (4, "/spec/schedulingGates", json!([{"name": "g"}])),
        (5, "/spec/tolerations", json!([{"key": "k", "operator": "Exists", "tolerationSeconds": 3}])),
        (6, "/spec/nodeSelector", json!({"b": "2", "a": "1"})),
        (7, "/spec/volumes", json!([{"name": "v", "emptyDir": {}}])),
        (8, "/status/nominatedNodeName", json!("m")),
        (
            9,
            "/status/conditions",
            json!([{"type": "Other", "status": "False", "message": text},
            {"type": "PodScheduled", "status": "False", "lastProbeTime": null}]),
        ),
        (10, "/status/qosClass", json!("BestEffort")),
        (11, "/metadata/finalizers", json!(["example.com/f"])),
    ];
    for (_, path, value) in optional.into_iter().filter(|(bit, ..)| has(*bit)) {
        let (outer, key) = path[1..].split_once('/').unwrap();
        pod[outer][key] = value;
    }
    decode::canonicalize(&schema(), &mut pod);
    pod
}

/// Sets or removes members, as these bits say.
fn change(object: &mut Value, bits: u8, node: &str, labels: &BTreeMap<String, String>) {
    let has = |bit: u8| bits & 1 << bit != 0;
    let mut set = |outer: &str, key: &str, value: Value| match value {
        Value::Null => drop(object[outer].as_object_mut().unwrap().remove(key)),
        value => object[outer][key] = value,
    };
    if has(0) {
        set("spec", "nodeName", if node.is_empty() { Value::Null } else { node.into() });
    }
    if has(1) {
        set("status", "nominatedNodeName", Value::Null);
    }
    if has(2) {
        set(
            "status",
            "conditions",
            json!([{"status": "True", "type": "PodScheduled", "lastProbeTime": null, "reason": node}]),
        );
    }
    if has(3) {
        set("metadata", "labels", json!(labels));
    }
    if has(4) {
        set("metadata", "annotations", json!({"k": node}));
    }
    if has(5) {
        set("spec", "schedulingGates", Value::Null);
    }
}

fn as_stored(object: &mut Value) {
    decode::canonicalize(&schema(), object);
    decode::prune_empty_metadata(object::meta_mut(object));
}

proptest! {
    #[test]
    fn stores_what_an_update_of_the_whole_object_stores(
        present in any::<u16>(),
        text in "[a-z\"\\\\\u{e9}\n<\u{2028}]{0,6}",
        changes in any::<u8>(),
        node in "[a-z\"]{0,3}",
        labels in proptest::collection::btree_map("[a-z]{1,3}", "[a-z]{0,3}", 0..3),
        revision in 1..u64::MAX,
    ) {
        let former = storage::encode(&pod(present, &text));
        let shown = storage::with_revision(&former, revision);
        let mut whole: Value = serde_json::from_slice(&shown).unwrap();
        change(&mut whole, changes, &node, &labels);
        as_stored(&mut whole);
        let want = storage::encode(&whole);

        let parts = split(std::str::from_utf8(&shown).unwrap(), MEMBERS).unwrap();
        let old = decoded(&parts, MEMBERS).unwrap();
        let mut new = old.clone();
        change(&mut new, changes, &node, &labels);
        new["kind"] = "Pod".into();
        new["apiVersion"] = "v1".into();
        as_stored(&mut new);
        let got = joined(&parts, MEMBERS, (&old, &new), order::of_kind("v1", "Pod").unwrap());
        prop_assert_eq!(got.unwrap_or(former), want);
    }
}

#[test]
fn what_is_not_there_takes_no_members() {
    let text = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"}}"#;
    let parts = split(text, MEMBERS).unwrap();
    let old = decoded(&parts, MEMBERS).unwrap();
    let mut new = old.clone();
    new["spec"] = json!({"nodeName": "n"});
    let schema = order::of_kind("v1", "Pod").unwrap();
    assert_eq!(joined(&parts, MEMBERS, (&old, &new), schema), None);
    assert!(split(r#"{"metadata":{"na\u006de":"p"}}"#, MEMBERS).is_none());
}
