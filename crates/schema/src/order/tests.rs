//! The order of members, checked against what upstream sends, and that rewriting changes nothing else.

use super::*;
use expect_test::expect;
use proptest::prelude::*;
use serde_json::json;

fn document(value: &Value) -> String {
    let mut out = Vec::new();
    write_document(&mut out, value);
    String::from_utf8(out).unwrap()
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "annotations": {"b": "1", "a": "2"}, "creationTimestamp": "2024-01-01T00:00:00Z", "labels": {"z": "1", "c": "2"},
            "managedFields": [{"apiVersion": "v1", "fieldsType": "FieldsV1", "manager": "m", "operation": "Apply", "fieldsV1": {
                "f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {
                    ".": {}, "f:ports": {"k:{\"containerPort\":443}": {}, "k:{\"containerPort\":80}": {".": {}}, "f:x": {}},
                }}},
            }}],
            "name": "p", "namespace": "n", "uid": "u", "unknown": 1, "another": 2,
            "ownerReferences": [{"apiVersion": "v1", "blockOwnerDeletion": true, "controller": true, "kind": "K", "name": "o", "uid": "u"}],
        },
        "spec": {
            "nodeSelector": {"b": "1", "a": "2"}, "terminationGracePeriodSeconds": 30, "restartPolicy": "Always",
            "containers": [{"resources": {"requests": {"memory": "1", "cpu": "2"}, "limits": {}}, "image": "i", "name": "a"}],
            "volumes": [{"emptyDir": {}, "name": "v"}],
        },
        "status": {"phase": "Pending", "conditions": [{"type": "T", "status": "True"}]},
    })
}

#[test]
fn members_of_built_in_types_come_as_declared() {
    expect![[r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"n","uid":"u","creationTimestamp":"2024-01-01T00:00:00Z","labels":{"c":"2","z":"1"},"annotations":{"a":"2","b":"1"},"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"o","uid":"u","controller":true,"blockOwnerDeletion":true}],"managedFields":[{"manager":"m","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{".":{},"f:ports":{"f:x":{},"k:{\"containerPort\":80}":{".":{}},"k:{\"containerPort\":443}":{}}}}}}}],"another":2,"unknown":1},"spec":{"volumes":[{"name":"v","emptyDir":{}}],"containers":[{"name":"a","image":"i","resources":{"limits":{},"requests":{"cpu":"2","memory":"1"}}}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"nodeSelector":{"a":"2","b":"1"}},"status":{"phase":"Pending","conditions":[{"type":"T","status":"True"}]}}"#]]
    .assert_eq(&document(&pod()));
}

#[test]
fn members_of_other_types_come_by_name() {
    let custom = json!({"zz": {"b": 1, "a": 2}, "kind": "Foo", "aa": 1, "apiVersion": "ex.io/v1", "metadata": {"uid": "u", "name": "f"}});
    expect![[r#"{"aa":1,"apiVersion":"ex.io/v1","kind":"Foo","metadata":{"name":"f","uid":"u"},"zz":{"a":2,"b":1}}"#]]
        .assert_eq(&document(&custom));
}

#[test]
fn keeps_documents_without_objects() {
    let status = json!({"apiVersion": "v1", "code": 404, "details": {"kind": "pods", "name": "x", "causes": [{"field": "f", "message": "m", "reason": "r"}]},
        "kind": "Status", "message": "m", "metadata": {}, "reason": "NotFound", "status": "Failure"});
    let partial = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "items": [
        {"metadata": {"uid": "u", "name": "n"}, "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}],
        "metadata": {"continue": "c", "resourceVersion": "1"}});
    let versions = json!({"kind": "APIVersions", "serverAddressByClientCIDRs": [], "versions": ["v1"]});
    let shown = [document(&status), document(&partial), document(&versions)];
    expect![[r#"
        {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"m","reason":"NotFound","details":{"name":"x","kind":"pods","causes":[{"reason":"r","message":"m","field":"f"}]},"code":404}
        {"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1","continue":"c"},"items":[{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"n","uid":"u"}}]}
        {"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[]}"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn schemas_inside_definitions_have_an_order_too() {
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": {"versions": [{
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"b": {"items": {"type": "string", "description": "d"}, "type": "array"}, "a": {"default": {"y": 1, "x": 2}, "type": "object"}}, "description": "d"}},
        "name": "v1"}]}});
    expect![[r#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","spec":{"versions":[{"name":"v1","schema":{"openAPIV3Schema":{"description":"d","type":"object","properties":{"a":{"type":"object","default":{"x":2,"y":1}},"b":{"type":"array","items":{"description":"d","type":"string"}}}}}}]}}"#]]
    .assert_eq(&document(&crd));
}

#[test]
fn the_resource_version_is_left_out_of_metadata_only() {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"resourceVersion": "x"}, "metadata": {"name": "c", "resourceVersion": "7"}});
    let shown = |revision| {
        let mut out = Vec::new();
        write_object(&mut out, object.as_object().unwrap(), of(&object), revision);
        String::from_utf8(out).unwrap()
    };
    expect![[r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c","resourceVersion":"7"},"data":{"resourceVersion":"x"}}"#]]
        .assert_eq(&shown(true));
    expect![[
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c"},"data":{"resourceVersion":"x"}}"#
    ]]
    .assert_eq(&shown(false));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i32>().prop_map(Value::from),
        "[a-z<\"]{0,4}".prop_map(Value::from)
    ];
    let key = prop_oneof![
        Just("metadata".to_owned()),
        Just("spec".to_owned()),
        Just("name".to_owned()),
        Just("containers".to_owned()),
        Just("managedFields".to_owned()),
        Just("fieldsV1".to_owned()),
        Just("labels".to_owned()),
        Just("k:{\"a\":1}".to_owned()),
        Just(".".to_owned()),
        "[a-z\"<:]{0,4}",
    ];
    leaf.prop_recursive(6, 48, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..6)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_is_written_reads_back(mut value in any_json()) {
        if let Some(map) = value.as_object_mut() {
            map.insert("apiVersion".into(), "v1".into());
            map.insert("kind".into(), "Pod".into());
        }
        let written = document(&value);
        prop_assert_eq!(&serde_json::from_str::<Value>(&written).unwrap(), &value);
        // What was written by name, as text.
        let mut by_name = Vec::new();
        json::write(&mut by_name, &value);
        let mut again = Vec::new();
        rewrite(&mut again, std::str::from_utf8(&by_name).unwrap(), of(&value)).unwrap();
        prop_assert_eq!(String::from_utf8(again).unwrap(), written);
    }
}
