//! Bodies in, objects or refusals out.

use super::*;
use expect_test::{Expect, expect};
use kaji_schema::{Property, Props, Schema, Type};
use serde_json::json;

fn builtin(kind: &'static str) -> Want<'static> {
    let schema = Box::leak(Box::new(types::for_gvk("", "v1", kind).unwrap()));
    Want { group: "", version: "v1", kind, schema }
}

fn widget() -> SchemaRef {
    let spec = Schema {
        properties: Some(Props::new(vec![Property::new("size", Schema::of(Type::Integer).into())])),
        ..Schema::of(Type::Object)
    };
    let root = Schema {
        properties: Some(Props::new(vec![
            Property::new("apiVersion", Schema::of(Type::String).into()),
            Property::new("kind", Schema::of(Type::String).into()),
            Property::new("metadata", Schema::of(Type::Object).into()),
            Property::new("spec", spec.into()),
        ])),
        ..Schema::of(Type::Object)
    };
    root.into()
}

fn run(want: &Want<'_>, syntax: Syntax, body: &str, directive: Directive) -> String {
    let mut warnings = vec![];
    let result =
        object(&Registry::default(), want, syntax, body.as_bytes(), directive, &mut |w| warnings.push(w));
    let mut out = match result {
        Ok(value) => value.to_string(),
        Err(status) => format!("{} {}", status.code, status.message),
    };
    for w in warnings {
        out += &format!("\nwarning: {w}");
    }
    out
}

fn check(want: &Want<'_>, body: &str, directive: Directive, expect: Expect) {
    expect.assert_eq(&run(want, Syntax::Json, body, directive));
}

#[test]
fn media_types() {
    assert_eq!(syntax("").unwrap(), Syntax::Json);
    assert_eq!(syntax("application/json; charset=utf-8").unwrap(), Syntax::Json);
    assert_eq!(syntax("application/yaml").unwrap(), Syntax::Yaml);
    for other in ["text/plain", "application/vnd.kubernetes.protobuf", "application/cbor"] {
        let status = syntax(other).unwrap_err();
        assert_eq!(status.code, 415);
        expect!["the body of the request was in an unknown format - accepted media types include: application/json, application/yaml"]
            .assert_eq(&status.message);
    }
}

#[test]
fn malformed_bodies() {
    let cm = builtin("ConfigMap");
    check(
        &cm,
        "",
        Directive::Warn,
        expect![
            "400 the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)"
        ],
    );
    check(
        &cm,
        "{\"kind\": \"ConfigMap\", \"metadata\": {",
        Directive::Warn,
        expect![[
            r#"400 the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input ({"kind": "ConfigMap", "metadat ...)"#
        ]],
    );
    check(
        &cm,
        "hello",
        Directive::Warn,
        expect![
            "400 the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: invalid character 'h' looking for beginning of value (68656c6c6f)"
        ],
    );
    check(
        &cm,
        "[1]",
        Directive::Warn,
        expect![[
            r#"400 the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" } (5b315d)"#
        ]],
    );
    check(
        &cm,
        "{\"kind\": 1}",
        Directive::Warn,
        expect![[
            r#"400 the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string ({"kind": 1})"#
        ]],
    );
}

#[test]
fn kinds_and_versions() {
    let cm = builtin("ConfigMap");
    check(
        &cm,
        r#"{"metadata":{"name":"a"}}"#,
        Directive::Warn,
        expect![[r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#]],
    );
    check(
        &cm,
        r#"{"kind":"Secret","apiVersion":"v1"}"#,
        Directive::Warn,
        expect![[
            r#"400 Secret in version "v1" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion"#
        ]],
    );
    check(
        &cm,
        r#"{"kind":"Foo","apiVersion":"v1"}"#,
        Directive::Warn,
        expect![[
            r#"400 Foo in version "v1" cannot be handled as a ConfigMap: no kind "Foo" is registered for version "v1" in scheme "pkg/api/legacyscheme/scheme.go:30""#
        ]],
    );
    let ev = builtin("Event");
    check(
        &ev,
        r#"{"kind":"Event","apiVersion":"events.k8s.io/v1"}"#,
        Directive::Warn,
        expect![
            "400 the API version in the data (events.k8s.io/v1) does not match the expected API version (v1)"
        ],
    );
    let schema = widget();
    let w = Want { group: "example.com", version: "v1", kind: "Widget", schema: &schema };
    check(
        &w,
        r#"{"metadata":{}}"#,
        Directive::Warn,
        expect![[
            r#"400 the object provided is unrecognized (must be of type Widget): Object 'Kind' is missing in '{"metadata":{}}' ({"metadata":{}})"#
        ]],
    );
    check(
        &w,
        r#"{"kind":"Widget","apiVersion":"example.com/v2"}"#,
        Directive::Warn,
        expect![
            "400 the API version in the data (example.com/v2) does not match the expected API version (example.com/v1)"
        ],
    );
    check(
        &w,
        r#"{"kind":"Gadget","apiVersion":"example.com/v1","metadata":{"name":"x"}}"#,
        Directive::Warn,
        expect![[r#"422 Widget.example.com "x" is invalid: kind: Invalid value: "Gadget": must be Widget"#]],
    );
}

#[test]
fn strictness() {
    let cm = builtin("ConfigMap");
    let body =
        r#"{"kind":"ConfigMap","apiVersion":"v1","spec":{"foo":1},"metadata":{"name":"a","name":"b"}}"#;
    check(
        &cm,
        body,
        Directive::Ignore,
        expect![[r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}"#]],
    );
    check(
        &cm,
        body,
        Directive::Warn,
        expect![[r#"
        {"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}
        warning: unknown field "spec"
        warning: duplicate field "metadata.name""#]],
    );
    check(
        &cm,
        body,
        Directive::Strict,
        expect![[
            r#"400 ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "spec", duplicate field "metadata.name""#
        ]],
    );
    let schema = widget();
    let w = Want { group: "example.com", version: "v1", kind: "Widget", schema: &schema };
    let body = r#"{"kind":"Widget","apiVersion":"example.com/v1","spec":{"foo":1,"size":1,"size":2},"metadata":{"name":"a","bar":1}}"#;
    check(
        &w,
        body,
        Directive::Strict,
        expect![[
            r#"400 Widget in version "v1" cannot be handled as a Widget: strict decoding error: duplicate field "spec.size", unknown field "spec.foo", unknown field "metadata.bar""#
        ]],
    );
    check(
        &w,
        body,
        Directive::Ignore,
        expect![[
            r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":2}}"#
        ]],
    );
}

#[test]
fn yaml_bodies() {
    let cm = builtin("ConfigMap");
    expect![[r#"{"apiVersion":"v1","data":{"a":"1"},"kind":"ConfigMap","metadata":{"name":"x"}}"#]]
        .assert_eq(&run(&cm, Syntax::Yaml, "metadata:\n  name: x\ndata: {a: '1'}\n", Directive::Strict));
    expect![[r#"
        400 ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: yaml: unmarshal errors:
          line 3: key "a" already set in map"#]]
    .assert_eq(&run(&cm, Syntax::Yaml, "data:\n  a: '1'\n  a: '2'\n", Directive::Strict));
    expect![[r#"
        {"apiVersion":"v1","data":{"a":"2"},"kind":"ConfigMap"}
        warning: line 3: key "a" already set in map"#]]
    .assert_eq(&run(&cm, Syntax::Yaml, "data:\n  a: '1'\n  a: '2'\n", Directive::Warn));
}

#[test]
fn types() {
    let cm = builtin("ConfigMap");
    let text = run(&cm, Syntax::Json, r#"{"data":{"a":1}}"#, Directive::Warn);
    assert!(
        text.starts_with(r#"400 ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field"#),
        "{text}"
    );
    let mut value = json!({"spec": {"size": 1, "x": 2}, "other": 1});
    let schema = widget();
    let w = Want { group: "example.com", version: "v1", kind: "Widget", schema: &schema };
    let unknown = conform(&w, &mut value).unwrap();
    assert_eq!(unknown, ["other", "spec.x"]);
}
