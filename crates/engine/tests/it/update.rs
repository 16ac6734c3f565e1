//! PUT, and what all updates have in common.

use super::Env;
use expect_test::expect;
use kaji_engine::ApiRequest;
use kaji_resource::Verb;
use kaji_store::memory::MemoryOptions;
use serde_json::{Value, json};

async fn config_map(env: &Env) -> Value {
    let made =
        env.create("v1/configmaps/default", json!({"metadata": {"name": "a"}, "data": {"k": "1"}})).await;
    assert_eq!(made.code, 201, "{}", made.show());
    made.body
}

fn with(mut object: Value, path: &[&str], value: Value) -> Value {
    kaji_meta::object::set_at(&mut object, path, value);
    object
}

#[tokio::test]
async fn rejects_stale_resource_versions() {
    let env = Env::new().await;
    let first = config_map(&env).await;
    let put = env.put("v1/configmaps/default/a", with(first.clone(), &["data", "k"], json!("2"))).await;
    assert_eq!(put.code, 200, "{}", put.show());
    expect![[r#"
        409
        {
          "apiVersion": "v1",
          "code": 409,
          "details": {
            "kind": "configmaps",
            "name": "a"
          },
          "kind": "Status",
          "message": "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again",
          "metadata": {},
          "reason": "Conflict",
          "status": "Failure"
        }
    "#]].assert_eq(
        &env.put("v1/configmaps/default/a", with(first.clone(), &["data", "k"], json!("3"))).await.show(),
    );
    // Without a resourceVersion the update is unconditional.
    let mut unconditional = first.clone();
    unconditional["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let put = env.put("v1/configmaps/default/a", with(unconditional, &["data", "k"], json!("4"))).await;
    assert_eq!((put.code, &put.body["data"]["k"]), (200, &json!("4")));
}

#[tokio::test]
async fn writes_nothing_without_a_change() {
    let env = Env::new().await;
    let first = config_map(&env).await;
    let again = env.put("v1/configmaps/default/a", &first).await;
    assert_eq!(again.body, first);
    let patched = env.patch("merge", "v1/configmaps/default/a", json!({"data": {"k": "1"}})).await;
    assert_eq!(patched.body, first);
}

#[tokio::test]
async fn rejects_invalid_updates() {
    let env = Env::new().await;
    let first = config_map(&env).await;
    let mut out = String::new();
    let changed = |path: &[&str], value: Value| with(first.clone(), path, value);
    let cases = [
        ("v1/configmaps/default/b", first.clone()),
        ("v1/configmaps/default/b", changed(&["metadata", "name"], json!("b"))),
        ("v1/configmaps/default/a", changed(&["metadata", "name"], Value::Null)),
        ("v1/configmaps/default/a", changed(&["metadata", "namespace"], json!("other"))),
        ("v1/configmaps/default/a", changed(&["metadata", "uid"], json!("other"))),
        ("v1/configmaps/default/a", changed(&["metadata", "resourceVersion"], json!("x"))),
        ("v1/configmaps/default/a", changed(&["kind"], json!("Foo"))),
        ("v1/configmaps/default/a", changed(&["apiVersion"], json!("v9"))),
        (
            "v1/configmaps/default/a",
            changed(&["metadata", "deletionTimestamp"], json!("2026-01-01T00:00:00Z")),
        ),
        ("v1/configmaps/default/a?dryRun=All", changed(&["data", "k"], json!("dry"))),
    ];
    for (path, body) in cases {
        out += &format!("{}\n", env.put(path, &body).await.brief());
    }
    expect![[r#"
        400 BadRequest: the name of the object (a) does not match the name on the URL (b)
        404 NotFound: configmaps "b" not found
        400 BadRequest: the name of the object (a based on URL) was undeterminable: name must be provided
        400 BadRequest: the namespace of the provided object does not match the namespace sent on the request
        409 Conflict: Operation cannot be fulfilled on configmaps "a": StorageError: invalid object, Code: 4, Key: /registry/configmaps/default/a, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: other, UID in object meta: f893a2ee-fb32-455e-b1c1-8690ee42c90b
        500 : strconv.ParseUint: parsing "x": invalid syntax
        400 BadRequest: Foo in version "v1" cannot be handled as a ConfigMap: no kind "Foo" is registered for version "v1" in scheme "pkg/api/legacyscheme/scheme.go:30"
        400 BadRequest: ConfigMap in version "v9" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version "v9" in scheme "pkg/api/legacyscheme/scheme.go:30"
        422 Invalid: ConfigMap "a" is invalid: metadata.deletionTimestamp: Invalid value: "2026-01-01T00:00:00Z": field is immutable
        200 ConfigMap 3
    "#]].assert_eq(&out);
    assert_eq!(env.get("v1/configmaps/default/a").await.body, first);
}

#[tokio::test]
async fn system_fields_stay() {
    let env = Env::new().await;
    let first = config_map(&env).await;
    let bare = json!({"metadata": {"name": "a", "creationTimestamp": "1999-01-01T00:00:00Z", "generation": 5}, "data": {"k": "2"}});
    let put = env.put("v1/configmaps/default/a", bare).await;
    assert_eq!(put.code, 200, "{}", put.show());
    for key in ["uid", "creationTimestamp", "generation"] {
        assert_eq!(put.body["metadata"][key], first["metadata"][key], "{key}");
    }
}

#[tokio::test]
async fn creates_by_update_where_the_kind_allows_it() {
    let env = Env::new().await;
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    let put = env.put("coordination.k8s.io/v1/leases/default/l", &lease).await;
    assert_eq!(put.code, 201, "{}", put.show());
    assert_eq!(env.put("coordination.k8s.io/v1/leases/default/l", &lease).await.code, 200);
    let with_uid = with(json!({"metadata": {"name": "m"}}), &["metadata", "uid"], json!("u"));
    expect![[r#"409 Conflict: Operation cannot be fulfilled on leases.coordination.k8s.io "m": StorageError: invalid object, Code: 4, Key: /registry/leases/default/m, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: u, UID in object meta: "#]].assert_eq(&env.put("coordination.k8s.io/v1/leases/default/m", with_uid).await.brief());
}

#[tokio::test]
async fn generation_follows_the_spec() {
    let env = Env::new().await;
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let made = env.create("apps/v1/deployments/default", deployment).await.body;
    let generation = |v: &Value| v["metadata"]["generation"].clone();
    assert_eq!(generation(&made), json!(1));
    let path = "apps/v1/deployments/default/d";
    let labelled = env.put(path, with(made, &["metadata", "labels"], json!({"x": "y"}))).await.body;
    assert_eq!(generation(&labelled), json!(1));
    let scaled = env.put(path, with(labelled, &["spec", "replicas"], json!(2))).await.body;
    assert_eq!(generation(&scaled), json!(2));
    // The main resource does not write status, and status writes nothing else.
    let same = env.put(path, with(scaled.clone(), &["status"], json!({"replicas": 7}))).await.body;
    assert_eq!(same, scaled);
    let both =
        with(with(scaled.clone(), &["status"], json!({"replicas": 7})), &["spec", "replicas"], json!(9));
    let status = env.put("apps/v1/deployments/default/d/status", both).await.body;
    assert_eq!((&status["status"]["replicas"], &status["spec"]["replicas"]), (&json!(7), &json!(2)));
    assert_eq!(generation(&status), json!(2));
    expect![[r#"
        [
          {
            "apiVersion": "apps/v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {
              "f:metadata": {
                "f:labels": {
                  ".": {},
                  "f:x": {}
                }
              },
              "f:spec": {
                "f:replicas": {},
                "f:selector": {},
                "f:template": {
                  "f:metadata": {
                    "f:labels": {
                      ".": {},
                      "f:a": {}
                    }
                  },
                  "f:spec": {
                    "f:containers": {
                      "k:{\"name\":\"c\"}": {
                        ".": {},
                        "f:image": {},
                        "f:name": {},
                        "f:resources": {}
                      }
                    }
                  }
                }
              }
            },
            "manager": "tester",
            "operation": "Update",
            "time": "2026-01-01T00:00:00Z"
          },
          {
            "apiVersion": "apps/v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {
              "f:status": {
                "f:replicas": {}
              }
            },
            "manager": "tester",
            "operation": "Update",
            "subresource": "status",
            "time": "2026-01-01T00:00:00Z"
          }
        ]"#]]
    .assert_eq(&serde_json::to_string_pretty(&status["metadata"]["managedFields"]).unwrap());
}

#[tokio::test]
async fn updates_the_status_of_custom_resources() {
    let env = Env::new().await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "labels": {"a": "b"}}, "spec": {"size": 1}});
    let made = env.create("example.com/v1/widgets/default", widget).await.body;
    let path = "example.com/v1/widgets/default/w";
    let mut sent = with(made.clone(), &["status"], json!({"replicas": 3, "junk": 1}));
    sent["spec"]["size"] = json!(2);
    sent["metadata"]["labels"] = json!({"c": "d"});
    let status = env.put("example.com/v1/widgets/default/w/status", &sent).await;
    expect![[r#"
        200
        {
          "apiVersion": "example.com/v1",
          "kind": "Widget",
          "metadata": {
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": 1,
            "labels": {
              "a": "b"
            },
            "managedFields": [
              {
                "apiVersion": "example.com/v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                  "f:metadata": {
                    "f:labels": {
                      ".": {},
                      "f:a": {}
                    }
                  },
                  "f:spec": {
                    ".": {},
                    "f:colour": {},
                    "f:size": {}
                  }
                },
                "manager": "tester",
                "operation": "Update",
                "time": "2026-01-01T00:00:00Z"
              },
              {
                "apiVersion": "example.com/v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                  "f:status": {
                    ".": {},
                    "f:replicas": {}
                  }
                },
                "manager": "tester",
                "operation": "Update",
                "subresource": "status",
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
        warning: unknown field "status.junk"
    "#]]
    .assert_eq(&status.show());
    // Custom resources need a resourceVersion.
    sent["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    expect![[r#"
        422
        {
          "apiVersion": "v1",
          "code": 422,
          "details": {
            "causes": [
              {
                "field": "metadata.resourceVersion",
                "message": "Invalid value: 0: must be specified for an update",
                "reason": "FieldValueInvalid"
              }
            ],
            "group": "example.com",
            "kind": "widgets",
            "name": "w"
          },
          "kind": "Status",
          "message": "widgets.example.com \"w\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update",
          "metadata": {},
          "reason": "Invalid",
          "status": "Failure"
        }
        warning: unknown field "status.junk"
    "#]].assert_eq(&env.put(path, &sent).await.show());
}

#[tokio::test]
async fn concurrent_unconditional_updates_all_succeed() {
    let env = Env::new().await;
    config_map(&env).await;
    let mut tasks = vec![];
    for i in 0..40 {
        let engine = env.engine.clone();
        let request = env.request(
            kaji_resource::Verb::Patch,
            "v1/configmaps/default/a",
            json!({"data": {format!("k{i}"): "x"}}),
        );
        let request =
            kaji_engine::ApiRequest { content_type: "application/merge-patch+json".into(), ..request };
        tasks.push(tokio::spawn(async move { engine.handle(request).await.code }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), 200);
    }
    assert_eq!(env.get("v1/configmaps/default/a").await.body["data"].as_object().unwrap().len(), 41);
}

#[tokio::test]
async fn a_write_that_changes_nothing_still_migrates() {
    let env = Env::new().await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}});
    let made = env.create("example.com/v1/widgets/default", widget).await;
    assert_eq!(made.code, 201, "{}", made.show());
    let newer = kaji_resource::ResourceDef { storage: 1, ..super::env::widgets() };
    env.engine.register(vec![newer]).await.unwrap();
    let path = "example.com/v1/widgets/default/w";
    let moved = env.put(path, &made.body).await;
    assert_eq!(moved.body["spec"], made.body["spec"], "{}", moved.show());
    assert_ne!(moved.body["metadata"]["resourceVersion"], made.body["metadata"]["resourceVersion"]);
    let again = env.put(path, &moved.body).await;
    assert_eq!(again.body, moved.body);
    let stored = env.engine.store().range(kaji_store::Range::prefix("/registry/example.com/")).await.unwrap();
    let text = String::from_utf8(stored.kvs[0].value.to_vec()).unwrap();
    assert!(text.starts_with(r#"{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"#), "{text}");
    assert!(text.contains(r#""length":1"#) && !text.contains(r#""size":1"#), "{text}");
}

#[tokio::test]
async fn updates_objects_in_shared_storage() {
    let env = Env::new().await;
    let mirror = json!({"apiVersion": "mirror.example.com/v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "b"}});
    let made = env.create("mirror.example.com/v1/mirrors/default", &mirror).await;
    assert_eq!(
        (made.code, &made.body["apiVersion"]),
        (201, &json!("mirror.example.com/v1")),
        "{}",
        made.show()
    );
    let owner = env.get("v1/configmaps/default/m").await;
    assert_eq!(owner.body["apiVersion"], "v1");
    expect!["mirror.example.com/v1 -> v1"]
        .assert_eq(owner.body["metadata"]["annotations"]["converted"].as_str().unwrap());
    let patched =
        env.patch("merge", "mirror.example.com/v1/mirrors/default/m", json!({"data": {"c": "d"}})).await;
    assert_eq!(patched.body["data"], json!({"a": "b", "c": "d"}), "{}", patched.show());
    assert_eq!(env.delete("mirror.example.com/v1/mirrors/default/m", "").await.code, 200);
    assert_eq!(env.get("v1/configmaps/default/m").await.code, 404);
}

#[tokio::test]
async fn rejects_too_large_objects() {
    let store = MemoryOptions { max_txn_bytes: 4096, ..MemoryOptions::default() };
    let env = Env::on(store, vec![]).await;
    let big = "x".repeat(5000);
    let made =
        env.create("v1/configmaps/default", json!({"metadata": {"name": "big"}, "data": {"k": big}})).await;
    assert_eq!(
        (made.code, made.body["reason"].as_str()),
        (413, Some("RequestEntityTooLarge")),
        "{}",
        made.brief()
    );
    config_map(&env).await;
    let grown = env.patch("merge", "v1/configmaps/default/a", json!({"data": {"k": big}})).await;
    assert_eq!(grown.code, 413);
    // What fits without its managed fields is stored without them.
    let tight = "x".repeat(3800);
    let made = env
        .create("v1/configmaps/default", json!({"metadata": {"name": "tight"}, "data": {"k": tight}}))
        .await;
    assert_eq!((made.code, made.body["metadata"].get("managedFields")), (201, None), "{}", made.brief());
    // The engine still writes.
    assert_eq!(env.patch("merge", "v1/configmaps/default/a", json!({"data": {"k": "2"}})).await.code, 200);
}

#[tokio::test]
async fn an_empty_list_of_managed_fields_resets_them() {
    let env = Env::new().await;
    let path = "v1/configmaps/default/a";
    let managers = |object: &Value| {
        let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        entries.iter().map(|e| e["manager"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let made = config_map(&env).await;
    assert_eq!(managers(&made), ["tester"]);
    let put = env.put(path, with(made.clone(), &["metadata", "managedFields"], json!([]))).await;
    assert!(managers(&put.body).is_empty(), "{}", put.show());
    let empty = json!({"metadata": {"managedFields": []}});
    for kind in ["merge", "strategic"] {
        let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "1"}});
        let applied = env.patch("apply", &format!("{path}?fieldManager=m&force=true"), applied).await;
        assert!(!managers(&applied.body).is_empty(), "{}", applied.show());
        let reset = env.patch(kind, path, &empty).await;
        assert!(managers(&reset.body).is_empty(), "{kind}: {}", reset.show());
    }
    let operation = json!([{"op": "add", "path": "/metadata/managedFields", "value": []}]);
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "1"}});
    env.patch("apply", &format!("{path}?fieldManager=m&force=true"), applied).await;
    assert!(managers(&env.patch("json", path, operation).await.body).is_empty());
}

/// As upstream: of the bytes of a set in protobuf the first JSON value counts; entries of which one cannot be read are
/// ignored, and the stored ones stay.
#[tokio::test]
async fn sets_of_fields_in_protobuf_are_read_up_to_their_end() {
    const SET: &str = r#"{"f:data":{"f:padding":{}}}"#;
    let env = Env::new().await;
    let made = config_map(&env).await;
    let stored = made["metadata"]["managedFields"].clone();
    let entry = json!([{"manager": "other", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": serde_json::from_str::<Value>(SET).unwrap()}]);
    let sent = with(made, &["metadata", "managedFields"], entry);
    let sent = with(sent, &["metadata", "resourceVersion"], json!(""));
    let schema = kaji_schema::types::for_gvk("", "v1", "ConfigMap").unwrap();
    let encoded = kaji_schema::protobuf::object(&schema, "v1", "ConfigMap", &sent).unwrap();
    let at = encoded.windows(SET.len()).position(|w| w == SET.as_bytes()).unwrap();
    let put = |set: &str| {
        let mut body = encoded.clone();
        body[at..at + SET.len()].copy_from_slice(format!("{set:27}").as_bytes());
        let (path, content_type) = ("v1/configmaps/default/a", "application/vnd.kubernetes.protobuf".into());
        env.send(ApiRequest { content_type, body: body.into(), ..env.request(Verb::Update, path, "") })
    };
    for unreadable in ["", "no JSON", r#"{"f:data":{"f:k":{},}}"#, r#"{"f:data":{"f:k""#] {
        let answer = put(unreadable).await;
        assert_eq!(answer.body["metadata"]["managedFields"], stored, "{unreadable}: {}", answer.show());
    }
    for set in [r#"{"f:data":{"f:z":{}}}"#, r#"{"f:data":{"f:z":{}}}{"f:"#, "{\"f:data\":{\"f:z\":{}}}\n\0]"]
    {
        let answer = put(set).await;
        let entries = &answer.body["metadata"]["managedFields"];
        assert_eq!(entries[0]["manager"], "other", "{set}: {}", answer.show());
        assert_eq!(entries[0]["fieldsV1"], json!({"f:data": {"f:z": {}}}), "{set}");
    }
}
