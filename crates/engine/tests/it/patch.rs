//! PATCH, all four kinds.

use super::Env;
use expect_test::expect;
use serde_json::{Value, json};

async fn config_map(env: &Env) -> Value {
    let made =
        env.create("v1/configmaps/default", json!({"metadata": {"name": "a"}, "data": {"k": "1"}})).await;
    assert_eq!(made.code, 201, "{}", made.show());
    made.body
}

const PATH: &str = "v1/configmaps/default/a";

#[tokio::test]
async fn applies_json_merge_and_strategic_patches() {
    let env = Env::new().await;
    config_map(&env).await;
    let a = env.patch("json", PATH, json!([{"op": "add", "path": "/data/j", "value": "x"}])).await;
    assert_eq!(a.body["data"], json!({"k": "1", "j": "x"}), "{}", a.show());
    let b = env.patch("merge", PATH, json!({"data": {"k": null, "m": "y"}})).await;
    assert_eq!(b.body["data"], json!({"j": "x", "m": "y"}));
    let c = env.patch("strategic", PATH, json!({"data": {"$patch": "replace", "s": "z"}})).await;
    assert_eq!(c.body["data"], json!({"s": "z"}), "{}", c.show());
}

#[tokio::test]
async fn strategic_lists_merge_by_key() {
    let env = Env::new().await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}});
    assert_eq!(env.create("v1/pods/default", pod).await.code, 201);
    let patch = json!({"spec": {"containers": [{"name": "b", "image": "2"}]}});
    let patched = env.patch("strategic", "v1/pods/default/p", patch).await;
    assert_eq!(patched.body["spec"]["containers"].as_array().unwrap().len(), 2, "{}", patched.show());
    assert_eq!(patched.body["spec"]["containers"][1]["image"], "2");
}

#[tokio::test]
async fn rejects_invalid_patches() {
    let env = Env::new().await;
    let first = config_map(&env).await;
    let mut out = String::new();
    let cases: Vec<(&str, &str, String)> = vec![
        ("merge", "v1/configmaps/default/b", json!({}).to_string()),
        ("merge", PATH, json!({"metadata": {"name": "b"}}).to_string()),
        ("merge", PATH, json!({"metadata": {"namespace": "b"}}).to_string()),
        ("merge", PATH, json!({"metadata": {"uid": "b"}}).to_string()),
        ("merge", PATH, json!({"metadata": {"resourceVersion": "1"}}).to_string()),
        ("merge", PATH, json!({"kind": "Secret"}).to_string()),
        ("merge", PATH, json!({"data": {"k": 1}}).to_string()),
        ("merge", PATH, json!([]).to_string()),
        ("merge", PATH, "{".to_string()),
        ("json", PATH, json!([{"op": "test", "path": "/data/k", "value": "2"}]).to_string()),
        ("json", PATH, json!([{"op": "remove", "path": "/data/none"}]).to_string()),
        ("json", PATH, json!({"op": "remove"}).to_string()),
        ("strategic", PATH, json!({"data": {"k": 1}}).to_string()),
        (
            "merge",
            "v1/configmaps/default/a?fieldValidation=Strict",
            r#"{"foo":1,"data":{"a":"1","a":"1"}}"#.to_string(),
        ),
        ("merge", "v1/configmaps/default/a?force=true", json!({}).to_string()),
        ("merge", "v1/configmaps/default/b", "[]".to_string()),
        ("json", "v1/configmaps/default/b", "garbage".to_string()),
        ("strategic", "example.com/v1/widgets/default/w", json!({}).to_string()),
        ("apply", PATH, json!({}).to_string()),
        ("apply", "v1/configmaps/default/a?fieldManager=m", "a: [".to_string()),
        ("apply", "v1/configmaps/default/a?fieldManager=m", "[]".to_string()),
        (
            "apply",
            "v1/configmaps/default/a?fieldManager=m",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}}).to_string(),
        ),
        (
            "apply",
            "v1/configmaps/default/a?fieldManager=m",
            json!({"apiVersion": "v2", "kind": "ConfigMap"}).to_string(),
        ),
        (
            "apply",
            "v1/configmaps/default/a?fieldManager=m",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "foo": 1}).to_string(),
        ),
        (
            "apply",
            "v1/configmaps/default/a?fieldManager=m",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"managedFields": []}}).to_string(),
        ),
    ];
    for (kind, path, body) in cases {
        out += &format!("{kind} {path} {body}\n    {}\n", env.patch(kind, path, &body).await.brief());
    }
    expect![[r#"
        merge v1/configmaps/default/b {}
            404 NotFound: configmaps "b" not found
        merge v1/configmaps/default/a {"metadata":{"name":"b"}}
            400 BadRequest: the name of the object (b) does not match the name on the URL (a)
        merge v1/configmaps/default/a {"metadata":{"namespace":"b"}}
            400 BadRequest: the namespace of the provided object does not match the namespace sent on the request
        merge v1/configmaps/default/a {"metadata":{"uid":"b"}}
            422 Invalid: ConfigMap "a" is invalid: metadata.uid: Invalid value: "b": field is immutable
        merge v1/configmaps/default/a {"metadata":{"resourceVersion":"1"}}
            409 Conflict: Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to the latest version and try again
        merge v1/configmaps/default/a {"kind":"Secret"}
            422 Invalid:  "" is invalid: patch: Invalid value: "{\"apiVersion\":\"v1\",\"data\":{\"k\":\"1\"},\"kind\":\"Secret\",\"metadata\":{\"name\":\"a\",\"namespace\":\"default\",\"uid\":\"f893a2ee-fb32-455e-b1c1-8690ee42c90b\",\"resourceVersion\":\"3\",\"creationTimestamp\":\"2026-01-01T00:00:00Z\",\"managedFields\":[{\"manager\":\"tester\",\"operation\":\"Update\",\"apiVersion\":\"v1\",\"time\":\"2026-01-01T00:00:00Z\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{\"f:data\":{\".\":{},\"f:k\":{}}}}]}}": converting (v1.Secret) to (core.ConfigMap): unknown conversion
        merge v1/configmaps/default/a {"data":{"k":1}}
            422 Invalid:  "" is invalid: patch: Invalid value: "{\"apiVersion\":\"v1\",\"data\":{\"k\":1},\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\",\"namespace\":\"default\",\"uid\":\"f893a2ee-fb32-455e-b1c1-8690ee42c90b\",\"resourceVersion\":\"3\",\"creationTimestamp\":\"2026-01-01T00:00:00Z\",\"managedFields\":[{\"manager\":\"tester\",\"operation\":\"Update\",\"apiVersion\":\"v1\",\"time\":\"2026-01-01T00:00:00Z\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{\"f:data\":{\".\":{},\"f:k\":{}}}}]}}": json: cannot unmarshal number into Go struct field ConfigMap.data of type string
        merge v1/configmaps/default/a []
            400 BadRequest: error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}
        merge v1/configmaps/default/a {
            400 BadRequest: error decoding patch: unexpected end of JSON input
        json v1/configmaps/default/a [{"op":"test","path":"/data/k","value":"2"}]
            422 Invalid: the server rejected our request due to an error in our request
        json v1/configmaps/default/a [{"op":"remove","path":"/data/none"}]
            422 Invalid: the server rejected our request due to an error in our request
        json v1/configmaps/default/a {"op":"remove"}
            400 BadRequest: json: cannot unmarshal object into Go value of type jsonpatch.Patch
        strategic v1/configmaps/default/a {"data":{"k":1}}
            422 Invalid:  "" is invalid: patch: Invalid value: "map[data:map[k:1]]": cannot convert int64 to string
        merge v1/configmaps/default/a?fieldValidation=Strict {"foo":1,"data":{"a":"1","a":"1"}}
            422 Invalid:  "" is invalid: patch: Invalid value: "{\"apiVersion\":\"v1\",\"data\":{\"a\":\"1\",\"k\":\"1\"},\"foo\":1,\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\",\"namespace\":\"default\",\"uid\":\"f893a2ee-fb32-455e-b1c1-8690ee42c90b\",\"resourceVersion\":\"3\",\"creationTimestamp\":\"2026-01-01T00:00:00Z\",\"managedFields\":[{\"manager\":\"tester\",\"operation\":\"Update\",\"apiVersion\":\"v1\",\"time\":\"2026-01-01T00:00:00Z\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{\"f:data\":{\".\":{},\"f:k\":{}}}}]}}": strict decoding error: duplicate field "data.a", unknown field "foo"
        merge v1/configmaps/default/a?force=true {}
            422 Invalid: PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch
        merge v1/configmaps/default/b []
            404 NotFound: configmaps "b" not found
        json v1/configmaps/default/b garbage
            404 NotFound: configmaps "b" not found
        strategic example.com/v1/widgets/default/w {}
            415 UnsupportedMediaType: the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml
        apply v1/configmaps/default/a {}
            422 Invalid: PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch
        apply v1/configmaps/default/a?fieldManager=m a: [
            400 BadRequest: error decoding YAML: error converting YAML to JSON: yaml: unclosed bracket '[' at char 3 line 1 column 4
        apply v1/configmaps/default/a?fieldManager=m []
            400 BadRequest: error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go value of type map[string]interface {}
        apply v1/configmaps/default/a?fieldManager=m {"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}
            400 BadRequest: the name of the object (b) does not match the name on the URL (a)
        apply v1/configmaps/default/a?fieldManager=m {"apiVersion":"v2","kind":"ConfigMap"}
            400 BadRequest: invalid object type: /v2, Kind=ConfigMap
        apply v1/configmaps/default/a?fieldManager=m {"apiVersion":"v1","foo":1,"kind":"ConfigMap"}
            500 : failed to create typed patch object (/; /v1, Kind=ConfigMap): .foo: field not declared in schema
        apply v1/configmaps/default/a?fieldManager=m {"apiVersion":"v1","kind":"ConfigMap","metadata":{"managedFields":[]}}
            400 BadRequest: metadata.managedFields must be nil
    "#]].assert_eq(&out);
    assert_eq!(env.get(PATH).await.body, first);
}

#[tokio::test]
async fn unknown_fields_warn() {
    let env = Env::new().await;
    config_map(&env).await;
    let patched = env.patch("merge", PATH, r#"{"foo":1,"data":{"a":"1","a":"2"}}"#).await;
    assert_eq!(patched.body["data"]["a"], "2");
    expect![[r#"
        duplicate field "data.a"
        unknown field "foo""#]]
    .assert_eq(&patched.warnings.join("\n"));
}

#[tokio::test]
async fn apply_creates_owns_and_conflicts() {
    let env = Env::new().await;
    let config = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}, "data": data});
    let path = |query: &str| format!("v1/configmaps/default/s?{query}");
    let made = env.patch("apply", &path("fieldManager=one"), config(json!({"a": "1", "b": "1"}))).await;
    expect![[r#"
        201
        {
          "apiVersion": "v1",
          "data": {
            "a": "1",
            "b": "1"
          },
          "kind": "ConfigMap",
          "metadata": {
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [
              {
                "apiVersion": "v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                  "f:data": {
                    "f:a": {},
                    "f:b": {}
                  }
                },
                "manager": "one",
                "operation": "Apply",
                "time": "2026-01-01T00:00:00Z"
              }
            ],
            "name": "s",
            "namespace": "default",
            "resourceVersion": "3",
            "uid": "f893a2ee-fb32-455e-b1c1-8690ee42c90b"
          }
        }
    "#]]
    .assert_eq(&made.show());
    // Again: nothing moves, although time does.
    env.clock.advance(jiff::SignedDuration::from_secs(60));
    let again = env.patch("apply", &path("fieldManager=one"), config(json!({"a": "1", "b": "1"}))).await;
    assert_eq!((again.code, again.body), (200, made.body.clone()));
    let conflict = env.patch("apply", &path("fieldManager=two"), config(json!({"a": "2"}))).await;
    expect![[r#"
        409
        {
          "apiVersion": "v1",
          "code": 409,
          "details": {
            "causes": [
              {
                "field": ".data.a",
                "message": "conflict with \"one\"",
                "reason": "FieldManagerConflict"
              }
            ]
          },
          "kind": "Status",
          "message": "Apply failed with 1 conflict: conflict with \"one\": .data.a",
          "metadata": {},
          "reason": "Conflict",
          "status": "Failure"
        }
    "#]]
    .assert_eq(&conflict.show());
    let forced = env.patch("apply", &path("fieldManager=two&force=true"), config(json!({"a": "2"}))).await;
    assert_eq!((forced.code, &forced.body["data"]), (200, &json!({"a": "2", "b": "1"})), "{}", forced.show());
    // Fields that are not applied any more are removed.
    let less = env.patch("apply", &path("fieldManager=one"), config(json!({}))).await;
    assert_eq!(less.body["data"], json!({"a": "2"}), "{}", less.show());
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata:\n  z: 'yes'\n";
    let yaml = env.patch("apply", &path("fieldManager=three"), yaml).await;
    assert_eq!(yaml.body["data"], json!({"a": "2", "z": "yes"}), "{}", yaml.show());
}

#[tokio::test]
async fn apply_dry_run_and_uid() {
    let env = Env::new().await;
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}});
    let dry = env.patch("apply", "v1/configmaps/default/s?fieldManager=m&dryRun=All", &config).await;
    assert_eq!(dry.code, 201, "{}", dry.show());
    assert_eq!(env.get("v1/configmaps/default/s").await.code, 404);
    let with_uid = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s", "uid": "u"}});
    expect![[r#"409 Conflict: Operation cannot be fulfilled on configmaps "s": uid mismatch: the provided object specified uid u, and no existing object was found"#]]
        .assert_eq(&env.patch("apply", "v1/configmaps/default/s?fieldManager=m", with_uid).await.brief());
}

#[tokio::test]
async fn applies_to_the_status() {
    let env = Env::new().await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}});
    assert_eq!(env.create("example.com/v1/widgets/default", &widget).await.code, 201);
    let config = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "status": {"replicas": 3}});
    let path = "example.com/v1/widgets/default/w/status?fieldManager=m";
    expect![[r#"
        200
        {
          "apiVersion": "example.com/v1",
          "kind": "Widget",
          "metadata": {
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": 1,
            "managedFields": [
              {
                "apiVersion": "example.com/v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                  "f:status": {
                    "f:replicas": {}
                  }
                },
                "manager": "m",
                "operation": "Apply",
                "subresource": "status",
                "time": "2026-01-01T00:00:00Z"
              },
              {
                "apiVersion": "example.com/v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                  "f:spec": {
                    ".": {},
                    "f:colour": {},
                    "f:size": {}
                  }
                },
                "manager": "tester",
                "operation": "Update",
                "time": "2026-01-01T00:00:00Z"
              }
            ],
            "name": "w",
            "namespace": "default",
            "resourceVersion": "4",
            "uid": "f893a2ee-fb32-455e-b1c1-8690ee42c90b"
          },
          "spec": {
            "colour": "red",
            "size": 1
          },
          "status": {
            "replicas": 3
          }
        }
    "#]]
    .assert_eq(&env.patch("apply", path, &config).await.show());
    let missing = "example.com/v1/widgets/default/none/status?fieldManager=m";
    let config =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "none"}, "status": {}});
    expect![[r#"404 NotFound: widgets.example.com "none" not found"#]]
        .assert_eq(&env.patch("apply", missing, &config).await.brief());
}
