//! Tests of `validate`: fixtures in, expectations out.

use super::*;
use crate::structural::unchecked;
use expect_test::{Expect, expect};
use serde_json::json;

fn errors(schema: &Value, value: &Value) -> String {
    let list = validate(&unchecked(schema), value, &Path::root());
    list.iter().map(|e| format!("{e}\n")).collect()
}

fn check(schema: Value, value: Value, want: Expect) {
    want.assert_eq(&errors(&schema, &value));
}

fn spec(properties: Value) -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}})
}

#[test]
fn rejects_values_of_wrong_types() {
    let schema = spec(json!({
        "color": {"type": "string"}, "n": {"type": "integer"}, "f": {"type": "number"}, "b": {"type": "boolean"},
        "o": {"type": "object"}, "l": {"type": "array", "items": {"type": "string"}},
        "ios": {"x-kubernetes-int-or-string": true}, "nullable": {"type": "string", "nullable": true},
        "m": {"type": "object", "additionalProperties": {"type": "integer"}}
    }));
    check(
        schema.clone(),
        json!({"spec": {"color": 1, "n": 1.5, "f": "x", "b": {}, "o": [], "l": [1, "a", null], "ios": true, "nullable": null,
                        "m": {"k": "v"}}}),
        expect![[r#"
            spec.b: Invalid value: "object": spec.b in body must be of type boolean: "object"
            spec.color: Invalid value: "integer": spec.color in body must be of type string: "integer"
            spec.f: Invalid value: "string": spec.f in body must be of type number: "string"
            spec.ios: Invalid value: "boolean": spec.ios in body must be of type integer,string: "boolean"
            spec.l[0]: Invalid value: "integer": spec.l[0] in body must be of type string: "integer"
            spec.l[2]: Invalid value: "null": spec.l[2] in body must be of type string: "null"
            spec.m.k: Invalid value: "string": spec.m.k in body must be of type integer: "string"
            spec.n: Invalid value: "number": spec.n in body must be of type integer: "number"
            <nil>: Invalid value: "": Checked value must be of type integer (default format) in spec.n
            spec.o: Invalid value: "array": spec.o in body must be of type object: "array"
        "#]],
    );
    check(schema, json!({"spec": {"n": 2.0, "f": 3, "ios": 1}}), expect![""]);
}

#[test]
fn reports_violated_constraints() {
    let schema = json!({"type": "object", "required": ["spec"], "properties": {"spec": {"type": "object",
    "required": ["cronSpec"], "minProperties": 1, "maxProperties": 9, "properties": {
        "cronSpec": {"type": "string", "pattern": "^\\d+$", "minLength": 2, "maxLength": 4},
        "replicas": {"type": "integer", "minimum": 1, "maximum": 10},
        "open": {"type": "number", "minimum": 0, "exclusiveMinimum": true, "maximum": 1.5, "exclusiveMaximum": true},
        "even": {"type": "integer", "multipleOf": 2},
        "i32": {"type": "integer", "format": "int32"},
        "color": {"type": "string", "enum": ["red", "blue"]},
        "list": {"type": "array", "minItems": 2, "maxItems": 3, "items": {"type": "integer"}},
        "unique": {"type": "array", "uniqueItems": true, "items": {"type": "integer"}},
        "date": {"type": "string", "format": "date"}
    }}}});
    check(
        schema.clone(),
        json!({"spec": {"cronSpec": "ab", "replicas": 11, "open": 0, "even": 3, "i32": 2147483648u64, "color": "green",
                        "list": [1], "unique": [1, 1], "date": "tomorrow"}}),
        expect![[r#"
            spec.color: Unsupported value: "green": supported values: "red", "blue"
            spec.cronSpec: Invalid value: "ab": spec.cronSpec in body should match '^\d+$'
            spec.date: Invalid value: "tomorrow": spec.date in body must be of type date: "tomorrow"
            spec.even: Invalid value: 3: spec.even in body should be a multiple of 2
            <nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.i32
            spec.list: Invalid value: 1: spec.list in body should have at least 2 items
            spec.open: Invalid value: 0: spec.open in body should be greater than 0
            spec.replicas: Invalid value: 11: spec.replicas in body should be less than or equal to 10
            spec.unique: Invalid value: "": spec.unique in body shouldn't contain duplicates
        "#]],
    );
    check(
        schema.clone(),
        json!({"spec": {"cronSpec": "12345", "open": 1.5, "replicas": 0, "list": [1, 2, 3, 4]}}),
        expect![[r#"
            spec.cronSpec: Too long: may not be more than 4 bytes
            spec.list: Too many: 4: must have at most 3 items
            spec.open: Invalid value: 1.5: spec.open in body should be less than 1.5
            spec.replicas: Invalid value: 0: spec.replicas in body should be greater than or equal to 1
        "#]],
    );
    check(
        schema.clone(),
        json!({"spec": {}}),
        expect![[r#"
            spec: Invalid value: 0: spec in body should have at least 1 properties
            spec.cronSpec: Required value
        "#]],
    );
    check(
        schema,
        json!({}),
        expect![[r#"
        spec: Required value
    "#]],
    );
}

#[test]
fn validates_any_one_all_and_not() {
    let schema = json!({"type": "object", "properties": {
        "any": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        "one": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        "all": {"type": "integer", "allOf": [{"minimum": 3}, {"maximum": 5}]},
        "not": {"type": "string", "not": {"enum": ["x"]}}
    }});
    check(
        schema.clone(),
        json!({"any": {}, "one": {"a": "", "b": ""}, "all": 2, "not": "x"}),
        expect![[r#"
            all: Invalid value: 2: all in body should be greater than or equal to 3
            <nil>: Invalid value: "": "all" must validate all the schemas (allOf)
            <nil>: Invalid value: "": "any" must validate at least one schema (anyOf)
            any.a: Required value
            <nil>: Invalid value: "": "not" must not validate the schema (not)
            <nil>: Invalid value: "": "one" must validate one and only one schema (oneOf). Found 2 valid alternatives
        "#]],
    );
    check(schema, json!({"any": {"b": ""}, "one": {"b": ""}, "all": 4, "not": "y"}), expect![""]);
}

#[test]
fn validates_lists_and_embedded_objects() {
    let schema = json!({"type": "object", "properties": {
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "port"],
                "items": {"type": "object", "properties": {"name": {"type": "string"}, "port": {"type": "integer"}}}},
        "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}
    }});
    check(
        schema,
        json!({"set": ["a", "b", "a", "a"], "map": [{"name": "x", "port": 1}, {"name": "x"}, {"port": 1, "name": "x"}],
               "pod": {"kind": "P_d", "metadata": {"name": 1}}}),
        expect![[r#"
            pod.apiVersion: Required value
            pod.kind: Invalid value: "P_d": may have mixed case, but should otherwise match: a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')
            pod.metadata: Invalid value: {"name":1}: json: cannot unmarshal number into Go struct field ObjectMeta.name of type string
            map[2]: Duplicate value: {"name":"x","port":1}
            set[2]: Duplicate value: "a"
        "#]],
    );
}

#[test]
fn updates_are_ratcheted() {
    let schema = unchecked(&spec(
        json!({"a": {"type": "string", "maxLength": 1}, "b": {"type": "string", "maxLength": 1},
        "l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
              "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string", "maxLength": 1}}}}}),
    ));
    let old = json!({"spec": {"a": "long", "b": "long", "l": [{"k": "1", "v": "long"}]}});
    let new = json!({"spec": {"a": "long", "b": "other", "l": [{"k": "0"}, {"k": "1", "v": "long"}]}});
    let text: String =
        validate_update(&schema, &new, &old, &Path::root()).iter().map(|e| format!("{e}\n")).collect();
    expect![[r#"
        spec.b: Too long: may not be more than 1 byte
    "#]]
    .assert_eq(&text);
}

fn ratcheted(schema: &Value, new: &Value, old: &Value) -> String {
    let list = validate_update(&unchecked(schema), new, old, &Path::root());
    list.iter().map(|e| format!("{e}\n")).collect()
}

#[test]
fn type_and_version_are_never_ratcheted() {
    let one = json!({"type": "string", "enum": ["x"]});
    let schema = json!({"type": "object", "properties": {"apiVersion": one, "kind": one, "other": one,
        "inner": {"type": "object", "properties": {"kind": one}}}});
    let old = json!({"apiVersion": "y", "kind": "y", "other": "y", "inner": {"kind": "y"}, "unknown": 1});
    expect![[r#"
        apiVersion: Unsupported value: "y": supported values: "x"
        kind: Unsupported value: "y": supported values: "x"
    "#]]
    .assert_eq(&ratcheted(&schema, &old, &old));
}

#[test]
fn reordered_lists_of_maps_are_unchanged() {
    let schema = spec(json!({"l": {"type": "array", "maxItems": 1, "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {"k": {"type": "string"}}}},
        "a": {"type": "array", "maxItems": 1, "items": {"type": "string"}}}));
    let old = json!({"spec": {"l": [{"k": "1"}, {"k": "2"}], "a": ["1", "2"]}});
    let new = json!({"spec": {"l": [{"k": "2"}, {"k": "1"}], "a": ["2", "1"]}});
    expect![[r#"
        spec.a: Too many: 2: must have at most 1 item
    "#]]
    .assert_eq(&ratcheted(&schema, &new, &old));
}

#[test]
fn nothing_inside_junctors_is_ratcheted_by_itself() {
    let mut schema = spec(json!({"a": {"type": "integer"}, "b": {"type": "integer"}}));
    schema["properties"]["spec"]["allOf"] = json!([{"properties": {"a": {"minimum": 5}}}]);
    let (old, new) = (json!({"spec": {"a": 1, "b": 1}}), json!({"spec": {"a": 1, "b": 2}}));
    assert_eq!(ratcheted(&schema, &old, &old), "");
    expect![[r#"
        spec.a: Invalid value: 1: spec.a in body should be greater than or equal to 5
        <nil>: Invalid value: "": "spec" must validate all the schemas (allOf). None validated
    "#]]
    .assert_eq(&ratcheted(&schema, &new, &old));
}
