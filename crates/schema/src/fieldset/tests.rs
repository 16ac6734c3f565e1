//! Tests of the field sets.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{FieldSet, Node, element, from_value};
use crate::schema::{ListKind, MapKind, PatchStrategy, Property, Props, Schema, SchemaRef, Type};
use crate::types;

/// A custom resource's schema from the few OpenAPI keys that matter for merging.
pub(crate) fn schema(v: &Value) -> SchemaRef {
    let text = |key: &str| v.get(key).and_then(Value::as_str).unwrap_or("");
    let flag = |key: &str| v.get(key) == Some(&Value::Bool(true));
    let strategy = text("x-kubernetes-patch-strategy");
    let keys = v.get("x-kubernetes-list-map-keys").and_then(Value::as_array).cloned().unwrap_or_default();
    SchemaRef::owned(Schema {
        ty: match text("type") {
            "object" => Type::Object,
            "array" => Type::Array,
            "string" => Type::String,
            "integer" => Type::Integer,
            "number" => Type::Number,
            "boolean" => Type::Boolean,
            _ if flag("x-kubernetes-int-or-string") => Type::IntOrString,
            _ => Type::Any,
        },
        preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
        patch_strategy: PatchStrategy {
            replace: strategy.contains("replace"),
            merge: strategy.contains("merge"),
            retain_keys: strategy.contains("retainKeys"),
        },
        merge_key: v.get("x-kubernetes-patch-merge-key").and_then(Value::as_str).map(Into::into),
        map: if text("x-kubernetes-map-type") == "atomic" { MapKind::Atomic } else { MapKind::Granular },
        list: match text("x-kubernetes-list-type") {
            "set" => ListKind::Set,
            "map" => ListKind::Map { keys: keys.iter().filter_map(Value::as_str).map(Into::into).collect() },
            _ => ListKind::Atomic,
        },
        properties: v.get("properties").and_then(Value::as_object).map(|props| {
            Props::new(props.iter().map(|(name, v)| Property::new(name.as_str(), schema(v))).collect())
        }),
        additional: v.get("additionalProperties").map(|v| Box::new(schema(v))),
        items: v.get("items").map(schema),
        default: v.get("default").cloned().map(Box::new),
        ..Schema::default()
    })
}

/// An object with one of each kind of field.
pub(crate) fn everything() -> SchemaRef {
    schema(&json!({"type": "object", "properties": {
        "string": {"type": "string"},
        "number": {"type": "number"},
        "bool": {"type": "boolean"},
        "atomicList": {"type": "array", "items": {"type": "string"}},
        "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "numbers": {"type": "array", "items": {"type": "number"}, "x-kubernetes-list-type": "set"},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {
                "name": {"type": "string"}, "value": {"type": "string"},
                "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}}}},
        "ports": {"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["port", "protocol"],
            "items": {"type": "object", "properties": {
                "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"},
                "name": {"type": "string"}}}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "atomicMap": {"type": "object", "x-kubernetes-map-type": "atomic",
            "additionalProperties": {"type": "string"}},
        "struct": {"type": "object", "properties": {
            "a": {"type": "string"}, "b": {"type": "string"},
            "inner": {"type": "object", "properties": {"c": {"type": "integer"}}}}},
        "any": {"x-kubernetes-preserve-unknown-fields": true},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"known": {"type": "string"}}},
    }}))
}

fn applied(schema: &SchemaRef, value: &Value, want: &Expect) {
    want.assert_eq(&FieldSet::from_value(schema, value).to_fields_v1().to_string());
}

#[test]
fn finds_the_fields_of_an_applied_configuration() {
    let s = everything();
    applied(
        &s,
        &json!({"string": "a", "struct": {"inner": {"c": 1}}}),
        &expect![[r#"{"f:string":{},"f:struct":{"f:inner":{"f:c":{}}}}"#]],
    );
    // Keys of maps are members even if they are containers; declared structs are not.
    applied(
        &s,
        &json!({"map": {"x": "1"}, "atomicMap": {"x": "1"}, "struct": {}}),
        &expect![[r#"{"f:atomicMap":{},"f:map":{"f:x":{}},"f:struct":{}}"#]],
    );
    applied(
        &s,
        &json!({"set": ["b", "a"], "numbers": [1, 2.5, 3.0], "atomicList": ["x"]}),
        &expect![[
            r#"{"f:atomicList":{},"f:numbers":{"v:1":{},"v:2.5":{},"v:3":{}},"f:set":{"v:\"a\"":{},"v:\"b\"":{}}}"#
        ]],
    );
    applied(
        &s,
        &json!({"list": [{"name": "a", "value": "v", "set": ["q"]}, {"name": "b"}]}),
        &expect![[
            r#"{"f:list":{"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:set":{"v:\"q\"":{}},"f:value":{}},"k:{\"name\":\"b\"}":{".":{},"f:name":{}}}}"#
        ]],
    );
    // A key that is left out counts with its default.
    applied(
        &s,
        &json!({"ports": [{"port": 80}, {"port": 80, "protocol": "UDP"}]}),
        &expect![[
            r#"{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}},"k:{\"port\":80,\"protocol\":\"UDP\"}":{".":{},"f:port":{},"f:protocol":{}}}}"#
        ]],
    );
    applied(
        &s,
        &json!({"any": {"x": {"y": [1]}}, "open": {"known": "a", "other": {"z": null}}}),
        &expect![[
            r#"{"f:any":{"f:x":{".":{},"f:y":{}}},"f:open":{"f:known":{},"f:other":{".":{},"f:z":{}}}}"#
        ]],
    );
    applied(
        &s,
        &json!({"set": [], "list": null, "string": null, "map": {}}),
        &expect![[r#"{"f:list":{},"f:map":{},"f:string":{}}"#]],
    );
    // Duplicates are one leaf, without what is in them.
    applied(
        &s,
        &json!({"list": [{"name": "a", "value": "1"}, {"name": "a"}, {"name": "a"}]}),
        &expect![[r#"{"f:list":{"k:{\"name\":\"a\"}":{}}}"#]],
    );
    applied(
        &s,
        &json!({"set": ["<a&b>", "\u{2028}\"\\\n\u{1}"]}),
        &expect![[r#"{"f:set":{"v:\"\\u003ca\\u0026b\\u003e\"":{},"v:\"\\u2028\\\"\\\\\\n\\u0001\"":{}}}"#]],
    );
}

#[test]
fn created_pod_has_the_members_that_upstream_records() {
    let pod = types::for_gvk("", "v1", "Pod").unwrap();
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "a", "namespace": "b", "labels": {"app": "x"}, "creationTimestamp": null},
        "spec": {
            "containers": [{
                "name": "c", "image": "i", "resources": {},
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "env": [{"name": "E", "value": "1"}],
            }],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "securityContext": {}, "restartPolicy": "Always", "nodeSelector": {"a": "b"},
        },
        "status": {},
    });
    let set = from_value::created(Node::root(&pod), &object).unwrap();
    expect![[r#"
        {
          "f:metadata": {
            "f:labels": {
              ".": {},
              "f:app": {}
            }
          },
          "f:spec": {
            "f:containers": {
              "k:{\"name\":\"c\"}": {
                ".": {},
                "f:env": {
                  ".": {},
                  "k:{\"name\":\"E\"}": {
                    ".": {},
                    "f:name": {},
                    "f:value": {}
                  }
                },
                "f:image": {},
                "f:name": {},
                "f:ports": {
                  ".": {},
                  "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {
                    ".": {},
                    "f:containerPort": {},
                    "f:protocol": {}
                  }
                },
                "f:resources": {}
              }
            },
            "f:nodeSelector": {},
            "f:restartPolicy": {},
            "f:securityContext": {},
            "f:volumes": {
              ".": {},
              "k:{\"name\":\"v\"}": {
                ".": {},
                "f:emptyDir": {},
                "f:name": {}
              }
            }
          }
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&Value::Object(set)).unwrap());
}

#[test]
fn created_deployment_and_custom_resource() {
    let deployment = types::for_gvk("apps", "v1", "Deployment").unwrap();
    let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}}, "status": {}});
    expect![[
        r#"{"f:spec":{"f:replicas":{},"f:selector":{},"f:strategy":{"f:rollingUpdate":{".":{},"f:maxSurge":{}},"f:type":{}},"f:template":{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:name":{}}}}}}}"#
    ]]
    .assert_eq(&Value::Object(from_value::created(Node::root(&deployment), &object).unwrap()).to_string());
    // Nothing is in an empty custom resource: its structs are new as well.
    let custom = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "k", "annotations": {"x": "y"}},
        "struct": {"a": "1"}});
    expect![[r#"{"f:metadata":{"f:annotations":{".":{},"f:x":{}}},"f:struct":{".":{},"f:a":{}}}"#]]
        .assert_eq(
            &Value::Object(from_value::created(Node::root(&everything()), &custom).unwrap()).to_string(),
        );
}

#[test]
fn reading_canonicalizes_any_spelling() {
    let read = |v: Value| match FieldSet::from_fields_v1(&v) {
        Ok(set) => set.to_fields_v1().to_string(),
        Err(e) => format!("error: {e}"),
    };
    let got = [
        read(json!({"f:a": {".": {}}, "f:b": {"f:c": {}}, "f:d": null})),
        read(json!({"f:l": {"k:{\"b\": 1.0, \"a\": \"x\"}": {}, "v: 1.50": {}, "i:007": {}}})),
        read(json!({"f:new": {"x:future": {"f:a": {}}}, "y:1": {}})),
        read(json!({"f:same": {"v:1": {"f:a": {}}, "v:1.0": {}}})),
        read(json!({"f": {}})),
        read(json!({"f-a": {}})),
        read(json!({"k:[1]": {}})),
        read(json!({"i:x": {}})),
        read(json!({"v:{": {}})),
        read(json!({"f:a": 5})),
        read(json!(["f:a"])),
    ];
    expect![[r#"
        {"f:a":{},"f:b":{"f:c":{}},"f:d":{}}
        {"f:l":{"i:7":{},"k:{\"a\":\"x\",\"b\":1}":{},"v:1.5":{}}}
        {"f:new":{}}
        {"f:same":{"v:1":{".":{},"f:a":{}}}}
        error: key must be 2 characters long:
        error: missing colon: f-a
        error: expected an object: k:[1]
        error: "x": invalid digit found in string
        error: EOF while parsing an object at line 1 column 1
        error: expected an object of fields, got 5
        error: expected an object of fields, got ["f:a"]"#]]
    .assert_eq(&got.join("\n"));
}

#[test]
fn paths_print_as_upstream_prints_them() {
    let set = FieldSet::from_fields_v1(&json!({
        "f:spec": {"f:ports": {"k:{\"port\":443}": {".": {}, "f:name": {}}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {}}},
        "f:a.b/c": {}, "f:set": {"v:\"x\\\"y\"": {}, "v:10": {}, "v:9": {}, "v:true": {}, "i:3": {}},
    }))
    .unwrap();
    expect![[r#"
        .a.b/c
        .set[=9]
        .set[=10]
        .set[="x\"y"]
        .set[=true]
        .set[3]
        .spec.ports[port=80,protocol="TCP"]
        .spec.ports[port=443]
        .spec.ports[port=443].name"#]]
    .assert_eq(&set.paths().join("\n"));
}

#[test]
fn rejects_items_without_identity() {
    let s = everything();
    let text = |v: Value| from_value::created(Node::root(&s), &v).unwrap_err();
    let got = [
        text(json!({"list": [{"value": "x"}]})),
        text(json!({"list": [null]})),
        text(json!({"list": [{"name": "a"}, "b"]})),
        text(json!({"set": [{}]})),
        text(json!({"set": [[]]})),
        text(json!({"set": [null]})),
    ];
    expect![[r#"
        element 0: associative list with keys has an element that omits all key fields ["name"] (and doesn't have default values for any key fields)
        element 0: associative list with keys may not have a null element
        element 1: associative list with keys may not have non-map elements
        element 0: associative list without keys has an element that's a map type
        element 0: not supported: associative list with lists as elements
        element 0: associative list without keys has an element that's an explicit null"#]]
    .assert_eq(&got.join("\n"));
}

#[test]
fn computes_differences_of_sets() {
    let set = |v: Value| FieldSet::from_fields_v1(&v).unwrap();
    let a = set(json!({"f:a": {".": {}, "f:b": {".": {}, "f:c": {}}, "f:d": {}}, "f:e": {}}));
    let show = |s: FieldSet| s.to_fields_v1().to_string();
    let got = [
        show(a.difference(&set(json!({"f:a": {}})))),
        show(a.difference(&set(json!({"f:a": {"f:b": {}}})))),
        show(a.difference(&set(json!({"f:a": {"f:b": {".": {}, "f:c": {}}, "f:d": {}}})))),
        show(a.recursive_difference(&set(json!({"f:a": {"f:b": {}}})))),
        show(a.recursive_difference(&set(json!({"f:a": {}})))),
        show(a.intersection(&set(json!({"f:a": {"f:b": {"f:c": {}, "f:x": {}}}, "f:e": {"f:y": {}}})))),
        show(a.union(&set(json!({"f:e": {"f:y": {}}, "f:z": {}})))),
        a.len().to_string(),
        a.contains(&["a", "b"]).to_string(),
        set(json!({"f:a": {"f:b": {}}})).contains(&["a"]).to_string(),
    ];
    expect![[r#"
        {"f:a":{"f:b":{".":{},"f:c":{}},"f:d":{}},"f:e":{}}
        {"f:a":{".":{},"f:b":{"f:c":{}},"f:d":{}},"f:e":{}}
        {"f:a":{},"f:e":{}}
        {"f:a":{".":{},"f:d":{}},"f:e":{}}
        {"f:e":{}}
        {"f:a":{"f:b":{"f:c":{}}}}
        {"f:a":{".":{},"f:b":{".":{},"f:c":{}},"f:d":{}},"f:e":{".":{},"f:y":{}},"f:z":{}}
        5
        true
        false"#]]
    .assert_eq(&got.join("\n"));
}

/// Any set over a few elements of every kind.
pub(crate) fn any_set() -> impl Strategy<Value = FieldSet> {
    const NAMES: &[&str] =
        &["f:a", "f:b", "k:{\"name\":\"x\"}", "k:{\"n\":1,\"p\":\"T\"}", "v:1", "v:\"s\"", "i:2"];
    let path = proptest::collection::vec(proptest::sample::select(NAMES), 1..4);
    proptest::collection::vec(path, 0..8).prop_map(|paths| {
        let mut set = FieldSet::new();
        for path in paths {
            super::ops::insert(&mut set.0, path.iter().copied());
        }
        set
    })
}

fn paths(set: &FieldSet) -> std::collections::BTreeSet<String> {
    set.paths().into_iter().collect()
}

proptest! {
    #[test]
    fn fields_v1_round_trip(set in any_set()) {
        let text = set.to_fields_v1().to_string();
        let back = FieldSet::from_fields_v1(&serde_json::from_str(&text).unwrap()).unwrap();
        prop_assert_eq!(&back, &set);
        prop_assert_eq!(back.len(), set.paths().len());
    }

    #[test]
    fn operations_are_those_of_sets_of_paths(a in any_set(), b in any_set()) {
        let (pa, pb) = (paths(&a), paths(&b));
        prop_assert_eq!(paths(&a.union(&b)), pa.union(&pb).cloned().collect());
        prop_assert_eq!(paths(&a.intersection(&b)), pa.intersection(&pb).cloned().collect());
        prop_assert_eq!(paths(&a.difference(&b)), pa.difference(&pb).cloned().collect());
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert!(a.difference(&a).is_empty());
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert_eq!(a.union(&FieldSet::new()), a.clone());
        for set in [a.union(&b), a.intersection(&b), a.difference(&b), a.recursive_difference(&b)] {
            // Results keep the invariants: reading them changes nothing.
            prop_assert_eq!(&FieldSet::from_fields_v1(&set.to_fields_v1()).unwrap(), &set);
        }
    }

    #[test]
    fn recursive_difference_takes_children_along(a in any_set(), b in any_set()) {
        let left = a.recursive_difference(&b);
        let below = |p: &str| paths(&b).iter().any(|q| p == q || (p.starts_with(q.as_str())
            && p[q.len()..].starts_with(['.', '['])));
        prop_assert_eq!(paths(&left), paths(&a).into_iter().filter(|p| !below(p)).collect());
    }

    #[test]
    fn element_order_is_total(a in any_set()) {
        let mut keys: Vec<&String> = a.0.keys().collect();
        keys.sort_by(|x, y| element::compare(x, y));
        for pair in keys.windows(2) {
            prop_assert!(element::compare(pair[0], pair[1]).is_lt());
        }
    }

    #[test]
    fn reading_never_panics(text in "\\PC{0,12}", child in any_set()) {
        let node = Value::Object(Map::from_iter([(text, child.into_fields_v1())]));
        if let Ok(set) = FieldSet::from_fields_v1(&node) {
            prop_assert_eq!(&FieldSet::from_fields_v1(&set.to_fields_v1()).unwrap(), &set);
        }
    }
}
