//! Tests of `structural`: fixtures in, expectations out.

use super::*;
use expect_test::{Expect, expect};
use serde_json::json;

fn check_errors(schema: Value, status: bool, want: Expect) {
    let errors = check(&schema, &Path::new("schema"), status, true);
    want.assert_eq(&errors.iter().map(|e| format!("{e}\n")).collect::<String>());
}

#[test]
fn accepts_a_structural_schema() {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["a"], "properties": {
            "a": {"type": "string", "default": "x", "pattern": "^x"},
            "p": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true},
            "l": {"type": "array", "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}},
                  "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]},
            "any": {"x-kubernetes-preserve-unknown-fields": true}},
            "x-kubernetes-validations": [{"rule": "self.a != ''"}]}}});
    let s = from_json_schema(&schema, &Path::new("schema"), true).unwrap();
    assert!(s.has_rules);
    assert_eq!(s.schema.child("spec").unwrap().child("p").unwrap().ty, crate::Type::IntOrString);
    let plain = |name: &str| {
        s.schema.child("spec").unwrap().child("l").unwrap().items.as_ref().unwrap().child(name).cloned()
    };
    assert_eq!(plain("k"), build(&json!({"properties": {"x": {"type": "string"}}})).child("x").cloned());
}

#[test]
fn rejects_schemas_that_are_not_structural() {
    check_errors(
        json!({"properties": {
            "a": {}, "l": {"type": "array"}, "items": {"type": "array", "items": {}},
            "metadata": {"type": "object", "properties": {"labels": {"type": "object"}}},
            "kind": {"type": "integer"},
            "ios": {"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true},
            "emb": {"type": "object", "x-kubernetes-embedded-resource": true},
            "j": {"type": "object", "anyOf": [{"type": "object", "properties": {"zz": {"description": "d"}}}]},
            "re": {"type": "string", "pattern": "("}
        }, "additionalProperties": true}),
        false,
        expect![[r#"
            schema.additionalProperties: Forbidden: must not be used at the root
            schema.properties[a].type: Required value: must not be empty for specified object fields
            schema.properties[emb].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields
            schema.properties[ios].x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true
            schema.properties[items].items.type: Required value: must not be empty for specified array items
            schema.properties[j].anyOf[0].properties[zz].description: Forbidden: must be empty to be structural
            schema.properties[j].anyOf[0].type: Forbidden: must be empty to be structural
            schema.properties[kind].type: Invalid value: "integer": must be string
            schema.properties[l].items: Required value: must be specified
            schema.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified
            schema.properties[re].pattern: Invalid value: "(": must be a valid regular expression, but isn't: regex parse error:
                (
                ^
            error: unclosed group
            schema.type: Required value: must not be empty at the root
        "#]],
    );
}

#[test]
fn clauses_are_complete() {
    check_errors(
        json!({"type": "object", "anyOf": [{"properties": {"gone": {"minimum": 1}}}]}),
        false,
        expect![[r#"
            schema.properties[gone]: Required value: because it is defined in schema.anyOf[0].properties[gone]
        "#]],
    );
}

#[test]
fn rejects_unsupported_keywords() {
    check_errors(
        json!({"type": "object", "nullable": true, "properties": {
            "a": {"type": "array", "uniqueItems": true, "items": {"type": "string"}, "x-kubernetes-list-type": "map"},
            "b": {"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": {"type": "string"}},
            "c": {"type": "string", "x-kubernetes-map-type": "lumpy"},
            "d": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "k", "z"],
                  "items": {"type": "object", "properties": {"k": {"type": "string", "nullable": true}}}},
            "e": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}},
            "f": {"type": "thing"},
            "metadata": {"type": "object", "default": {}}
        }, "x-kubernetes-validations": [{"rule": " "}]}),
        false,
        expect![[r#"
            schema.nullable: Forbidden: nullable cannot be true at the root
            schema.properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic
            schema.properties[a].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map
            schema.properties[a].items.type: Invalid value: "string": must be object if parent array's x-kubernetes-list-type is map
            schema.properties[b].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive
            schema.properties[c].type: Invalid value: "string": must be object if x-kubernetes-map-type is specified
            schema.properties[c].x-kubernetes-map-type: Unsupported value: "lumpy": supported values: "atomic", "granular"
            schema.properties[d].x-kubernetes-list-map-keys: Invalid value: ["k","k","z"]: must not contain duplicate entries
            schema.properties[d].x-kubernetes-list-map-keys: Invalid value: ["k","k","z"]: entries must all be names of item properties
            schema.properties[d].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property
            schema.properties[d].items.properties[k].nullable: Forbidden: this property is in x-kubernetes-list-map-keys, so it cannot be nullable
            schema.properties[d].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property
            schema.properties[d].items.properties[k].nullable: Forbidden: this property is in x-kubernetes-list-map-keys, so it cannot be nullable
            schema.properties[e].items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set
            schema.properties[f].type: Unsupported value: "thing": supported values: "array", "boolean", "integer", "number", "object", "string"
            schema.properties[metadata].default: Forbidden: must not be set in top-level metadata
            schema.x-kubernetes-validations[0].rule: Required value: rule is not specified
        "#]],
    );
    check_errors(
        json!({"type": "object", "$ref": "x", "properties": {"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": false}}}),
        false,
        expect![[r#"
            schema.$ref: Forbidden: $ref is not supported
            schema.properties[a].x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined
        "#]],
    );
}

#[test]
fn defaults_are_values() {
    check_errors(
        json!({"type": "object", "properties": {"spec": {"type": "object", "default": {"a": 1, "u": 2}, "properties": {
            "a": {"type": "string", "default": 7}}}}}),
        false,
        expect![[r#"
            schema.properties[spec].default: Invalid value: {"a":1,"u":2}: must not have unknown fields
            schema.properties[spec].default.a: Invalid value: "integer": a in body must be of type string: "integer"
            schema.properties[spec].properties[a].default: Invalid value: "integer":  in body must be of type string: "integer"
        "#]],
    );
    let s = build(
        &json!({"type": "object", "default": {"a": "x", "u": 2}, "properties": {"a": {"type": "string"}}}),
    );
    assert_eq!(s.default.as_deref(), Some(&json!({"a": "x"})));
}

#[test]
fn finds_the_status_at_the_root() {
    check_errors(
        json!({"type": "object", "oneOf": [{"required": ["a"]}], "properties": {"a": {"type": "string"}}}),
        true,
        expect![[r#"
            schema: Invalid value: {"oneOf":[{"required":["a"]}],"properties":{"a":{"type":"string"}},"type":"object"}: only [Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations] fields are allowed at the root of the schema if the status subresource is enabled
        "#]],
    );
}

#[test]
fn nodes_are_small() {
    assert!(std::mem::size_of::<Schema>() <= 184, "{}", std::mem::size_of::<Schema>());
    assert!(std::mem::size_of::<crate::Property>() <= 48);
}

#[test]
fn defaults_in_metadata_are_those_of_its_own_fields() {
    let metadata = json!({"type": "object", "properties": {
        "name": {"type": "string", "default": "n"},
        "unknown": {"type": "string", "default": "u"},
        "labels": {"type": "object", "default": {"a": "b"}, "properties": {"c": {"type": "string", "default": "d"}}},
        "ownerReferences": {"type": "array", "items": {"type": "object", "properties": {"odd": {"type": "string", "default": "o"}}}}}});
    let whole = json!({"type": "object", "default": {"name": "n", "unknown": "u"}});
    let embedded = |metadata: Value| {
        let properties = json!({"metadata": metadata});
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": properties})
    };
    let schema = build(
        &json!({"type": "object", "properties": {"fields": embedded(metadata), "whole": embedded(whole)}}),
    );
    let mut value = json!({"fields": {"metadata": {"ownerReferences": [{}]}}, "whole": {}});
    crate::defaulting::apply_defaults(&schema, &mut value, &mut kaji_meta::SizeBudget::default()).unwrap();
    let labels = json!({"a": "b", "c": "d"});
    assert_eq!(
        value["fields"],
        json!({"metadata": {"labels": labels, "name": "n", "ownerReferences": [{}]}})
    );
    assert_eq!(value["whole"], json!({"metadata": {"name": "n"}}));
}

#[test]
fn a_definition_of_before_v1_keeps_what_it_does_not_name() {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"a": {"type": "string"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "integer"}}}},
            "loose": {"type": "array"}, "map": {"type": "object", "additionalProperties": true}, "any": {}}}}});
    let value = json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"}, "other": {"x": [{"y": 1}]},
        "spec": {"a": "s", "list": [{"b": 1, "c": {"d": 1}}], "loose": [{"e": 1}], "map": {"f": {"g": 1}}, "any": {"h": 1}}});
    let mut kept = value.clone();
    assert!(crate::prune::prune(&build_preserving(&schema), &mut kept, true).is_empty());
    assert_eq!(kept, value);
    assert!(!crate::prune::prune(&build(&schema), &mut kept, true).is_empty());
}

#[test]
fn violations_are_those_of_structure() {
    let path = Path::new("schema");
    let found = |schema: Value| {
        violations(&schema, &path).map(|e| e.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let defaults = json!({"type": "object", "properties": {"a": {"type": "string", "default": 1}}});
    assert_eq!(found(defaults), Ok(vec![]));
    assert_eq!(
        found(json!({"type": "object", "properties": {"a": {}}})),
        Ok(vec![
            "schema.properties[a].type: Required value: must not be empty for specified object fields"
                .to_owned()
        ])
    );
    assert_eq!(found(json!({"$ref": "x"})), Err("OpenAPIV3Schema '$ref' is not supported".to_owned()));
}
