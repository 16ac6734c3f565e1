//! Bodies in, objects or refusals out.

use super::*;
use expect_test::{Expect, expect};
use kaji_schema::{Property, Props, Schema, Type};
use serde_json::json;

fn builtin(kind: &'static str) -> ExpectedKind<'static> {
    let schema = Box::leak(Box::new(types::for_gvk("", "v1", kind).unwrap()));
    ExpectedKind { group: "", version: "v1", kind, schema }
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

fn run(want: &ExpectedKind<'_>, syntax: Syntax, body: &str, directive: Directive) -> String {
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

fn check(want: &ExpectedKind<'_>, body: &str, directive: Directive, expect: Expect) {
    expect.assert_eq(&run(want, Syntax::Json, body, directive));
}

#[test]
fn selects_the_syntax_by_media_type() {
    assert_eq!(syntax("").unwrap(), Syntax::Json);
    assert_eq!(syntax("application/json; charset=utf-8").unwrap(), Syntax::Json);
    assert_eq!(syntax("application/yaml").unwrap(), Syntax::Yaml);
    assert_eq!(syntax("application/vnd.kubernetes.protobuf").unwrap(), Syntax::Protobuf);
    for other in ["text/plain", "application/cbor"] {
        let status = syntax(other).unwrap_err();
        assert_eq!(status.code, 415);
        expect!["the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf"]
            .assert_eq(&status.message);
    }
}

#[test]
fn decodes_protobuf_bodies() {
    let encoded = |api_version: &str, kind: &str| {
        let object =
            json!({"metadata": {"name": "a", "labels": {"k": "v"}}, "data": {"a": "b"}, "immutable": false});
        let schema = types::for_gvk("", "v1", "ConfigMap").unwrap();
        kaji_schema::protobuf::object(&schema, api_version, kind, &object).unwrap()
    };
    let run = |want: &ExpectedKind<'_>, body: &[u8]| {
        let registry = Registry::default();
        let result = object(&registry, want, Syntax::Protobuf, body, Directive::Strict, &mut |_| {});
        result.map_or_else(|s| format!("{} {}", s.code, s.message), |v| v.to_string())
    };
    let (cm, schema) = (builtin("ConfigMap"), widget());
    let custom = ExpectedKind { group: "example.com", version: "v1", kind: "Widget", schema: &schema };
    let mut damaged = encoded("v1", "ConfigMap");
    let at = damaged.windows(2).position(|w| w == [0x0a, 1]).unwrap();
    damaged[at] = 0x08;
    let all = [
        run(&cm, &encoded("v1", "ConfigMap")),
        run(&cm, &encoded("", "")),
        run(&cm, &encoded("v2", "ConfigMap")),
        run(&cm, &encoded("v1", "Pod")),
        run(&cm, &encoded("a/b/c", "ConfigMap")),
        run(&cm, b""),
        run(&cm, b"{}"),
        run(&cm, b"k8s\0\x0a\xff"),
        run(&cm, &damaged),
        run(&custom, &encoded("example.com/v1", "Widget")),
    ];
    expect![[r#"
        {"apiVersion":"v1","data":{"a":"b"},"immutable":false,"kind":"ConfigMap","metadata":{"labels":{"k":"v"},"name":"a"}}
        {"apiVersion":"v1","data":{"a":"b"},"immutable":false,"kind":"ConfigMap","metadata":{"labels":{"k":"v"},"name":"a"}}
        400 ConfigMap in version "v2" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version "v2" in scheme "pkg/api/legacyscheme/scheme.go:30"
        400 Pod in version "v1" cannot be handled as a ConfigMap: converting (v1.Pod) to (core.ConfigMap): unknown conversion
        400 the object provided is unrecognized (must be of type ConfigMap): unexpected GroupVersion string: a/b/c (6b3873000a120a05612f622f631209436f6e6669674d617012250a190a01 ...)
        400 the object provided is unrecognized (must be of type ConfigMap): empty data (<empty>)
        400 the object provided is unrecognized (must be of type ConfigMap): provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] ({})
        400 the object provided is unrecognized (must be of type ConfigMap): unexpected EOF (6b3873000aff)
        400 ConfigMap in version "v1" cannot be handled as a ConfigMap: proto: wrong wireType = 0 for field Name
        415 the body of the request was in an unknown format - accepted media types include: application/json, application/yaml"#]].assert_eq(&all.join("\n"));
}

#[test]
fn rejects_malformed_bodies() {
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
fn rejects_other_kinds_and_versions() {
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
    let w = ExpectedKind { group: "example.com", version: "v1", kind: "Widget", schema: &schema };
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
        expect![[r#"422 Gadget.example.com "x" is invalid: kind: Invalid value: "Gadget": must be Widget"#]],
    );
}

#[test]
fn reports_unknown_and_duplicate_fields_as_requested() {
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
    let w = ExpectedKind { group: "example.com", version: "v1", kind: "Widget", schema: &schema };
    let body = r#"{"kind":"Widget","apiVersion":"example.com/v1","spec":{"foo":1,"size":1,"size":2},"metadata":{"name":"a","bar":1}}"#;
    check(
        &w,
        body,
        Directive::Strict,
        expect![[
            r#"400 Widget in version "v1" cannot be handled as a Widget: strict decoding error: duplicate field "spec.size", unknown field "metadata.bar", unknown field "spec.foo""#
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
fn reports_come_in_the_documents_order() {
    let schema = kaji_schema::types::for_gvk("", "v1", "Pod").unwrap();
    let body = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","bad":1,"name":"b"},"zz":1,"spec":{"b2":1,"b2":2,"containers":[{"name":"c","bad":1,"image":"i","image":"j","bad":2}],"a1":1,"nodeSelector":{"a":"1","a":"2"},"volumes":[{"csi":{"x":1}}]},"aa":{"x":1,"x":1}}"#;
    expect![[r#"
        unknown field "metadata.bad"
        duplicate field "metadata.name"
        unknown field "zz"
        unknown field "spec.b2"
        unknown field "spec.containers[0].bad"
        duplicate field "spec.containers[0].image"
        unknown field "spec.a1"
        duplicate field "spec.nodeSelector.a"
        unknown field "spec.volumes[0].csi.x"
        unknown field "aa""#]]
    .assert_eq(&strict::reports(&schema, body).join("\n"));
    let patch = r#"[{"op":"add","path":"/spec","value":1,"foo":1,"op":"add"},{"op":"add","path":"/aaa","value":{"x":1,"x":2}}]"#;
    expect![[r#"
        unknown field "[0].foo"
        duplicate field "[0].op"
        duplicate field "[1].value.x""#]]
    .assert_eq(&strict::reports_of_patch(patch).join("\n"));
}

#[test]
fn unknown_fields_of_elements_are_named_by_index() {
    let schema = kaji_schema::types::for_gvk("", "v1", "Pod").unwrap();
    let mut pod =
        json!({"spec": {"containers": [{"name": "a"}, {"name": "b", "bad": 1, "ports": [{"x": 1}]}]}});
    let want = ExpectedKind { group: "", version: "v1", kind: "Pod", schema: &schema };
    assert_eq!(
        conform(&want, &mut pod).unwrap(),
        ["spec.containers[1].bad", "spec.containers[1].ports[0].x"]
    );
}

#[test]
fn decodes_yaml_bodies() {
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
fn rejects_values_of_wrong_types() {
    let cm = builtin("ConfigMap");
    let text = run(&cm, Syntax::Json, r#"{"data":{"a":1}}"#, Directive::Warn);
    assert!(
        text.starts_with(r#"400 ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field"#),
        "{text}"
    );
    let mut value = json!({"spec": {"size": 1, "x": 2}, "other": 1});
    let schema = widget();
    let w = ExpectedKind { group: "example.com", version: "v1", kind: "Widget", schema: &schema };
    let unknown = conform(&w, &mut value).unwrap();
    assert_eq!(unknown, ["other", "spec.x"]);
}
