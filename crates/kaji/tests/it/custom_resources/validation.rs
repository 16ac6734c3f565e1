//! What custom resources and their definitions are refused and warned for.

use super::*;

/// A definition of the kind `Widget` with this schema, one version.
fn shaped(schema: Value, subresources: Value) -> Value {
    let mut definition = definition();
    definition["spec"]["versions"] = json!([{"name": "v1", "served": true, "storage": true,
        "subresources": subresources, "schema": {"openAPIV3Schema": schema}}]);
    definition
}

async fn defined(api: &Api<'_>, definition: Value) {
    api.ok(Verb::Create, CRDS, definition).await;
    api.until(CRDS, "widgets.example.com", established).await;
}

/// Code, message and warnings of a request with a body of this content type.
async fn told(api: &Api<'_>, verb: Verb, path: &str, content_type: &str, body: &Value) -> String {
    let answer = api.raw(verb, path, content_type, body).await;
    let (code, warnings) = (answer.code, answer.warnings.clone());
    let body: Value = serde_json::from_slice(&answer.body.into_bytes().unwrap()).unwrap();
    let message = if code < 300 { "" } else { body["message"].as_str().unwrap_or_default() };
    let warnings: String = warnings.iter().map(|w| format!("  Warning: {w}\n")).collect();
    format!("{code} {message}\n{warnings}")
}

const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_scalable_objects_are_whole_numbers_of_32_bits() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector"});
    defined(&api, shaped(open, json!({"status": {}, "scale": scale}))).await;
    let with = |spec: Value| widget("v1", "w", json!({"spec": spec}));
    let mut out = String::new();
    for replicas in [json!(-1), json!(i64::MAX), json!("x"), json!(1.5), Value::Null, json!({"a": 1})] {
        out += &told(&api, Verb::Create, V1, "", &with(json!({"replicas": replicas}))).await;
    }
    out += &told(&api, Verb::Create, V1, "", &with(json!([1]))).await;
    out += &told(&api, Verb::Create, V1, "", &with(json!({"replicas": 3}))).await;
    let name = format!("{V1}/w");
    out += &told(&api, Verb::Patch, &name, MERGE, &json!({"spec": {"replicas": -2}})).await;
    let path = format!("{name}/scale");
    out += &told(&api, Verb::Patch, &path, MERGE, &json!({"spec": {"replicas": -3}})).await;
    out += &told(&api, Verb::Patch, &path, MERGE, &json!({"spec": {"replicas": 4}})).await;
    let path = format!("{name}/status");
    for status in
        [json!({"replicas": -1}), json!({"replicas": 2147483648_i64, "selector": 5}), json!({"replicas": 2})]
    {
        out += &told(&api, Verb::Patch, &path, MERGE, &json!({"status": status})).await;
    }
    expect![[r#"
        422 Widget.example.com "w" is invalid: .spec.replicas: Invalid value: -1: should be a non-negative integer
        422 Widget.example.com "w" is invalid: .spec.replicas: Invalid value: 9223372036854775807: should be less than or equal to 2147483647
        422 Widget.example.com "w" is invalid: .spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected int64
        422 Widget.example.com "w" is invalid: .spec.replicas: Invalid value: 0: .spec.replicas accessor error: 1.5 is of the type float64, expected int64
        422 Widget.example.com "w" is invalid: .spec.replicas: Invalid value: 0: .spec.replicas accessor error: <nil> is of the type <nil>, expected int64
        422 Widget.example.com "w" is invalid: .spec.replicas: Invalid value: 0: .spec.replicas accessor error: map[a:1] is of the type map[string]interface {}, expected int64
        422 Widget.example.com "w" is invalid: .spec.replicas: Invalid value: 0: .spec.replicas accessor error: [1] is of the type []interface {}, expected map[string]interface{}
        201 
        422 Widget.example.com "w" is invalid: .spec.replicas: Invalid value: -2: should be a non-negative integer
        422 Widget.example.com "w" is invalid: .spec.replicas: Invalid value: -3: should be a non-negative integer
        200 
        422 Widget.example.com "w" is invalid: .status.replicas: Invalid value: -1: should be a non-negative integer
        422 Widget.example.com "w" is invalid: [.status.replicas: Invalid value: 2147483648: should be less than or equal to 2147483647, .status.selector: Invalid value: "": .status.selector accessor error: 5 is of the type int64, expected string]
        200 
    "#]].assert_eq(&out);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_applied_null_is_a_value() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let schema = json!({"type": "object", "properties": {
        "plain": {"type": "object", "properties": {"a": {"type": "string"}}},
        "nullable": {"type": "object", "nullable": true, "properties": {"a": {"type": "string"}}},
        "filled": {"type": "object", "default": {"a": "x"}, "properties": {"a": {"type": "string"}}}}});
    defined(&api, shaped(schema, json!({}))).await;
    let mut out = String::new();
    for (name, extra) in [
        ("a", json!({"plain": null})),
        ("b", json!({"nullable": null})),
        ("c", json!({"filled": null})),
        ("d", json!({"plain": {"a": null}})),
        ("e", json!({"plain": {"a": "1"}, "nullable": {"a": "1"}})),
        ("e", json!({"plain": null, "nullable": null})),
    ] {
        let path = format!("{V1}/{name}?fieldManager=m");
        out += &told(&api, Verb::Patch, &path, APPLY, &widget("v1", name, extra.clone())).await;
        let found = api.raw(Verb::Get, &format!("{V1}/{name}"), "", &Value::Null).await;
        let found: Value = serde_json::from_slice(&found.body.into_bytes().unwrap()).unwrap();
        let kept: serde_json::Map<String, Value> = ["plain", "nullable", "filled"]
            .into_iter()
            .filter_map(|k| Some((k.to_owned(), found.get(k)?.clone())))
            .collect();
        out += &format!("  {extra} is {}\n", Value::Object(kept));
    }
    // In other places a null that is not nullable is dropped.
    out += &told(&api, Verb::Create, V1, "", &widget("v1", "f", json!({"plain": null}))).await;
    expect![[r#"
        422 Widget.example.com "a" is invalid: plain: Invalid value: "null": plain in body must be of type object: "null"
          {"plain":null} is {}
        201 
          {"nullable":null} is {"filled":{"a":"x"},"nullable":null}
        201 
          {"filled":null} is {"filled":{"a":"x"}}
        422 Widget.example.com "d" is invalid: plain.a: Invalid value: "null": plain.a in body must be of type string: "null"
          {"plain":{"a":null}} is {}
        201 
          {"nullable":{"a":"1"},"plain":{"a":"1"}} is {"filled":{"a":"x"},"nullable":{"a":"1"},"plain":{"a":"1"}}
        422 Widget.example.com "e" is invalid: plain: Invalid value: "null": plain in body must be of type object: "null"
          {"nullable":null,"plain":null} is {"filled":{"a":"x"},"nullable":{"a":"1"},"plain":{"a":"1"}}
        201 
    "#]].assert_eq(&out);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finalizers_and_deprecated_versions_are_warned_of() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let mut definition = definition();
    let versions = definition["spec"]["versions"].as_array_mut().unwrap();
    let version = |name: &str, deprecated: bool| {
        json!({"name": name, "served": true, "storage": false, "deprecated": deprecated, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    versions.push(version("v1beta1", true));
    versions.push(version("v3alpha1", false));
    versions.push(version("v3", true));
    defined(&api, definition).await;
    let finalized =
        |names: &[&str]| widget("v1", "w", json!({"metadata": {"name": "w", "finalizers": names}}));
    let mut out = String::new();
    let names = ["stop", "a.example.com", "example.com/a", "foregroundDeletion", "stop", "or/bad name"];
    out += &told(&api, Verb::Create, V1, "", &finalized(&names[..5])).await;
    let name = format!("{V1}/w");
    out +=
        &told(&api, Verb::Patch, &name, MERGE, &json!({"metadata": {"finalizers": ["stop", "halt"]}})).await;
    out += &told(&api, Verb::Patch, &name, MERGE, &json!({"metadata": {"finalizers": [names[5]]}})).await;
    out += &told(&api, Verb::Patch, &format!("{name}/status"), MERGE, &json!({"status": {}})).await;
    for version in ["v1beta1", "v3", "v3alpha1"] {
        out += &told(&api, Verb::List, &format!("example.com/{version}/widgets"), "", &Value::Null).await;
    }
    expect![[r#"
        201 
          Warning: metadata.finalizers: "a.example.com": prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers
          Warning: metadata.finalizers: "stop": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers
        200 
          Warning: metadata.finalizers: "halt": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers
        422 Widget.example.com "w" is invalid: metadata.finalizers: Invalid value: "or/bad name": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
        200 
        200 
          Warning: example.com/v1beta1 Widget is deprecated; use example.com/v2 Widget
        200 
          Warning: example.com/v3 Widget is deprecated
        200 
    "#]].assert_eq(&out);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_that_upstream_takes_are_taken() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let template = json!({"type": "object", "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true,
        "default": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}, "unknown": 1}}});
    let inner = json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {
        "metadata": {"type": "object", "default": {"labels": {"a": "b"}, "unknown": 1}}}});
    let misplaced = json!({"type": "object", "items": {"type": "object", "properties": {"a": {"type": "string"}},
        "x-kubernetes-validations": [{"rule": "self.a != ''"}]}});
    let schema = json!({"type": "object", "properties": {
        "template": template, "inner": inner, "misplaced": misplaced}});
    let made = shaped(schema, json!({}));
    let mut out = told(&api, Verb::Create, CRDS, "", &made).await;
    let one = format!("{CRDS}/widgets.example.com");
    let change = |properties: Value| {
        json!({"spec": {"versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}}]}})
    };
    let mut more = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clone();
    more["more"] = json!({"type": "string"});
    out += &told(&api, Verb::Patch, &one, MERGE, &change(more)).await;
    // Inside what has rules itself, its element has no type.
    let mut ruled = misplaced.clone();
    ruled["x-kubernetes-validations"] = json!([{"rule": "true"}]);
    out += &told(&api, Verb::Patch, &one, MERGE, &change(json!({"misplaced": ruled}))).await;
    let unknown = json!({"type": "object", "properties": {"a": {"type": "string"}}, "default": {"b": 1}});
    out += &told(&api, Verb::Patch, &one, MERGE, &change(json!({"plain": unknown}))).await;
    let wrong = json!({"type": "object", "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true,
        "default": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": 1}}}});
    out += &told(&api, Verb::Patch, &one, MERGE, &change(json!({"template": wrong}))).await;
    expect![[r#"
        201 
        200 
        422 CustomResourceDefinition.apiextensions.k8s.io "widgets.example.com" is invalid: spec.validation.openAPIV3Schema.properties[misplaced].items.x-kubernetes-validations: Internal error: failed to convert to declType for CEL validation rules
        200 
        422 CustomResourceDefinition.apiextensions.k8s.io "widgets.example.com" is invalid: spec.validation.openAPIV3Schema.properties[template].default.metadata: Invalid value: {"labels":{"a":1}}: json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string
    "#]].assert_eq(&out);
    cluster.stop().await;
}
