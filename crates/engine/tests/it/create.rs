//! POST.

use super::Env;
use expect_test::expect;
use kaji_engine::{Admission, ApiRequest, Attributes, Operation};
use kaji_meta::{GroupResource, Status, object};
use kaji_resource::{BoxFuture, FieldManagement, ObjectVersion, UpdateOptions, Verb};
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

#[tokio::test]
async fn fills_metadata_and_answers_what_get_answers() {
    let env = Env::new().await;
    let sent = json!({"metadata": {
        "name": "a", "uid": "mine", "creationTimestamp": "1999-01-01T00:00:00Z", "deletionTimestamp": "1999-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 7, "generation": 9, "selfLink": "/x", "labels": {}
    }, "data": {"k": "v"}});
    let made = env.create("v1/configmaps/default", sent).await;
    expect![[r#"
        201
        {
          "apiVersion": "v1",
          "data": {
            "k": "v"
          },
          "kind": "ConfigMap",
          "metadata": {
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": 9,
            "managedFields": [
              {
                "apiVersion": "v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                  "f:data": {
                    ".": {},
                    "f:k": {}
                  }
                },
                "manager": "tester",
                "operation": "Update",
                "time": "2026-01-01T00:00:00Z"
              }
            ],
            "name": "a",
            "namespace": "default",
            "resourceVersion": "3",
            "uid": "f893a2ee-fb32-455e-b1c1-8690ee42c90b"
          }
        }
    "#]]
    .assert_eq(&made.show());
    assert_eq!(env.get("v1/configmaps/default/a").await.body, made.body);
}

#[tokio::test]
async fn rejects_invalid_creates() {
    let env = Env::new().await;
    let mut out = String::new();
    let cases: Vec<(&str, Value)> = vec![
        ("v1/configmaps/default", json!({"metadata": {"name": "a"}})),
        ("v1/configmaps/default", json!({"metadata": {"name": "a"}})),
        ("v1/configmaps/default", json!({"metadata": {"name": "A_b"}})),
        ("v1/configmaps/default", json!({"metadata": {}})),
        ("v1/configmaps/default", json!({"metadata": {"name": "b", "namespace": "other"}})),
        ("v1/configmaps/default", json!({"metadata": {"name": "b", "resourceVersion": "5"}})),
        ("v1/configmaps/default", json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "b"}})),
        ("v1/configmaps/missing", json!({"metadata": {"name": "b"}})),
        ("v1/configmaps", json!({"metadata": {"name": "b"}})),
        ("v1/nothings/default", json!({"metadata": {"name": "b"}})),
        ("v1/pods/default", json!({"metadata": {"name": "b", "labels": {"-": "x"}}, "spec": {}})),
        ("v1/configmaps/default?fieldManager=a%0a&dryRun=Some", json!({"metadata": {"name": "b"}})),
        ("v1/configmaps/default?fieldValidation=maybe", json!({"metadata": {"name": "b"}})),
        ("v1/configmaps/default?fieldValidation=Strict", json!({"metadata": {"name": "b"}, "foo": 1})),
        ("v1/configmaps/default", json!({"metadata": {"name": "b"}, "foo": 1})),
        ("v1/configmaps/default?fieldValidation=Ignore", json!({"metadata": {"name": "c"}, "foo": 1})),
    ];
    for (path, body) in cases {
        out += &format!("{path} {body}\n    {}\n", env.create(path, &body).await.brief());
    }
    expect![[r#"
        v1/configmaps/default {"metadata":{"name":"a"}}
            201 ConfigMap 3
        v1/configmaps/default {"metadata":{"name":"a"}}
            409 AlreadyExists: configmaps "a" already exists
        v1/configmaps/default {"metadata":{"name":"A_b"}}
            422 Invalid: ConfigMap "A_b" is invalid: metadata.name: Invalid value: "A_b": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
        v1/configmaps/default {"metadata":{}}
            422 Invalid: ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required
        v1/configmaps/default {"metadata":{"name":"b","namespace":"other"}}
            400 BadRequest: the namespace of the provided object does not match the namespace sent on the request
        v1/configmaps/default {"metadata":{"name":"b","resourceVersion":"5"}}
            500 : resourceVersion should not be set on objects to be created
        v1/configmaps/default {"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}}
            400 BadRequest: Pod in version "v1" cannot be handled as a ConfigMap: converting (v1.Pod) to (core.ConfigMap): unknown conversion
        v1/configmaps/missing {"metadata":{"name":"b"}}
            404 NotFound: namespaces "missing" not found
        v1/configmaps {"metadata":{"name":"b"}}
            405 MethodNotAllowed: the server does not allow this method on the requested resource
        v1/nothings/default {"metadata":{"name":"b"}}
            404 NotFound: the server could not find the requested resource
        v1/pods/default {"metadata":{"labels":{"-":"x"},"name":"b"},"spec":{}}
            422 Invalid: Pod "b" is invalid: [metadata.labels: Invalid value: "-": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]'), spec.containers: Required value]
        v1/configmaps/default?fieldManager=a%0a&dryRun=Some {"metadata":{"name":"b"}}
            422 Invalid: CreateOptions.meta.k8s.io "" is invalid: [fieldManager: Invalid value: "a\n": invalid character U+000A (at position 1), dryRun: Unsupported value: ["Some"]: supported values: "All"]
        v1/configmaps/default?fieldValidation=maybe {"metadata":{"name":"b"}}
            422 Invalid: CreateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "maybe": supported values: "", "Ignore", "Strict", "Warn"
        v1/configmaps/default?fieldValidation=Strict {"foo":1,"metadata":{"name":"b"}}
            400 BadRequest: ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "foo"
        v1/configmaps/default {"foo":1,"metadata":{"name":"b"}}
            201 ConfigMap 4
        warning: unknown field "foo"
        v1/configmaps/default?fieldValidation=Ignore {"foo":1,"metadata":{"name":"c"}}
            201 ConfigMap 5
    "#]].assert_eq(&out);
}

#[tokio::test]
async fn refuses_names_that_no_path_can_have_where_a_kind_lets_all_through() {
    let env = Env::new().await;
    let mut out = String::new();
    for name in ["x/y", "..", "a%b", "A_b"] {
        let made = env.create("batch/v1/jobs/default", json!({"metadata": {"name": name}})).await;
        out += &format!("{name}: {}\n", made.brief());
    }
    expect![[r#"
        x/y: 422 Invalid: Job.batch "x/y" is invalid: metadata.name: Invalid value: "x/y": may not contain '/'
        ..: 422 Invalid: Job.batch ".." is invalid: metadata.name: Invalid value: "..": may not be '..'
        a%b: 422 Invalid: Job.batch "a%b" is invalid: metadata.name: Invalid value: "a%b": may not contain '%'
        A_b: 201 Job 3
    "#]]
    .assert_eq(&out);
}

#[tokio::test]
async fn generates_names() {
    let env = Env::new().await;
    let made = env.create("v1/configmaps/default", json!({"metadata": {"generateName": "gen-"}})).await;
    expect!["gen-n4gzd"].assert_eq(made.body["metadata"]["name"].as_str().unwrap());
    let both = json!({"metadata": {"generateName": "gen-", "name": "fixed"}});
    assert_eq!(env.create("v1/configmaps/default", &both).await.code, 201);
    expect![[r#"
        409
        {
          "apiVersion": "v1",
          "code": 409,
          "details": {
            "kind": "configmaps",
            "name": "fixed",
            "retryAfterSeconds": 1
          },
          "kind": "Status",
          "message": "configmaps \"fixed\" already exists, the server was not able to generate a unique name for the object",
          "metadata": {},
          "reason": "AlreadyExists",
          "status": "Failure"
        }
    "#]].assert_eq(&env.create("v1/configmaps/default", &both).await.show());
}

#[tokio::test]
async fn dry_run_stores_nothing() {
    let env = Env::new().await;
    let pod = json!({"metadata": {"name": "p", "annotations": {"warn": "careful"}}, "spec": {"containers": [{"name": "c"}]}});
    let answer = env.create("v1/pods/default?dryRun=All", &pod).await;
    expect![[r#"
        201
        {
          "apiVersion": "v1",
          "kind": "Pod",
          "metadata": {
            "annotations": {
              "warn": "careful"
            },
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": 1,
            "managedFields": [
              {
                "apiVersion": "v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                  "f:metadata": {
                    "f:annotations": {
                      ".": {},
                      "f:warn": {}
                    }
                  },
                  "f:spec": {
                    "f:containers": {
                      "k:{\"name\":\"c\"}": {
                        ".": {},
                        "f:name": {},
                        "f:resources": {}
                      }
                    },
                    "f:restartPolicy": {}
                  }
                },
                "manager": "tester",
                "operation": "Update",
                "time": "2026-01-01T00:00:00Z"
              }
            ],
            "name": "p",
            "namespace": "default",
            "uid": "f893a2ee-fb32-455e-b1c1-8690ee42c90b"
          },
          "spec": {
            "containers": [
              {
                "name": "c",
                "resources": {}
              }
            ],
            "restartPolicy": "Always"
          },
          "status": {
            "phase": "Pending"
          }
        }
        warning: careful
    "#]]
    .assert_eq(&answer.show());
    assert_eq!(env.get("v1/pods/default/p").await.code, 404);
    assert_eq!(env.create("v1/pods/default", &pod).await.code, 201);
    assert_eq!(env.create("v1/pods/default?dryRun=All", &pod).await.code, 409);
    expect!["taken 1 committed 1 rolled back 0 deleted 0"].assert_eq(&env.counters.show());
}

/// Source: `store.Create` of etcd3 and `DryRunnableStorage.Create`.
#[tokio::test]
async fn a_new_object_has_no_resource_version() {
    let env = Env::new().await;
    let mut out = String::new();
    let mut post = async |path: &str, version: &str, image: &str| {
        let container = json!({"name": "c", "image": image});
        let pod = json!({"metadata": {"name": "p", "resourceVersion": version}, "spec": {"containers": [container]}});
        let answer = env.create(path, &pod).await;
        let kept = &answer.body["metadata"]["resourceVersion"];
        out += &format!("{path} {version:?}: {} kept {kept}\n", answer.brief());
    };
    for version in ["5", "05", "0", "", "x"] {
        post("v1/pods/default?dryRun=All", version, "i").await;
    }
    post("v1/pods/default", "5", "i").await;
    post("v1/pods/default", "18446744073709551615", "i").await;
    post("v1/pods/missing", "5", "i").await;
    // Too large for a number, hence none.
    post("v1/pods/default", "18446744073709551616", "i").await;
    post("v1/pods/default?dryRun=All", "5", "i").await;
    // Before it is found that the name is taken.
    post("v1/pods/default", "5", "i").await;
    expect![[r#"
        v1/pods/default?dryRun=All "5": 201 Pod 5 kept "5"
        v1/pods/default?dryRun=All "05": 201 Pod 05 kept "05"
        v1/pods/default?dryRun=All "0": 201 Pod 0 kept "0"
        v1/pods/default?dryRun=All "": 201 Pod  kept null
        v1/pods/default?dryRun=All "x": 201 Pod x kept "x"
        v1/pods/default "5": 500 : resourceVersion should not be set on objects to be created kept null
        v1/pods/default "18446744073709551615": 500 : resourceVersion should not be set on objects to be created kept null
        v1/pods/missing "5": 404 NotFound: namespaces "missing" not found kept null
        v1/pods/default "18446744073709551616": 201 Pod 3 kept "3"
        v1/pods/default?dryRun=All "5": 409 AlreadyExists: pods "p" already exists kept null
        v1/pods/default "5": 500 : resourceVersion should not be set on objects to be created kept null
    "#]].assert_eq(&out);
    expect!["taken 4 committed 1 rolled back 3 deleted 0"].assert_eq(&env.counters.show());
}

#[tokio::test]
async fn reservations_end_exactly_once() {
    let env = Env::new().await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}});
    let made = env.create("v1/pods/default", &pod).await;
    assert_eq!(made.body["spec"]["hostname"], "reserved");
    assert_eq!(env.create("v1/pods/default", &pod).await.code, 409);
    assert_eq!(env.create("v1/pods/default", json!({"metadata": {"name": "q"}})).await.code, 422);
    expect!["taken 2 committed 1 rolled back 1 deleted 0"].assert_eq(&env.counters.show());
}

#[tokio::test]
async fn duplicate_owners_are_merged_with_a_warning() {
    let env = Env::new().await;
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
    let cm = json!({"metadata": {"name": "a", "ownerReferences": [owner, owner]}});
    let made = env.create("v1/configmaps/default", cm).await;
    assert_eq!(made.body["metadata"]["ownerReferences"].as_array().unwrap().len(), 1);
    expect![".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: u"].assert_eq(&made.warnings.join("\n"));
}

#[tokio::test]
async fn yaml_and_other_media_types() {
    let env = Env::new().await;
    let send = |content_type: &str, body: &str| ApiRequest {
        content_type: content_type.into(),
        ..env.request(Verb::Create, "v1/configmaps/default", body)
    };
    let made = env.send(send("application/yaml", "metadata: {name: m}\ndata:\n  a: 'yes'\n")).await;
    assert_eq!((made.code, &made.body["data"]), (201, &json!({"a": "yes"})), "{}", made.show());
    expect!["400 BadRequest: the object provided is unrecognized (must be of type ConfigMap): empty body (6b387300)"].assert_eq(&env.send(send("application/vnd.kubernetes.protobuf", "k8s\0")).await.brief());
    expect![[r#"400 BadRequest: the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input ({"metadata")"#]].assert_eq(&env.send(send("application/json", "{\"metadata\"")).await.brief());
    expect!["400 BadRequest: the object provided is unrecognized (must be of type ConfigMap): yaml: unclosed bracket '[' at char 3 line 1 column 4 (613a205b)"].assert_eq(&env.send(send("application/yaml", "a: [")).await.brief());
}

#[tokio::test]
async fn creates_custom_resources() {
    let env = Env::new().await;
    let widget = json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "w"},
        "spec": {"length": 3, "other": 1}, "status": {"replicas": 4}});
    let created = env.create("example.com/v2/widgets/default", widget).await;
    expect![[r#"
        201
        {
          "apiVersion": "example.com/v2",
          "kind": "Widget",
          "metadata": {
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": 1,
            "managedFields": [
              {
                "apiVersion": "example.com/v2",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                  "f:spec": {
                    ".": {},
                    "f:colour": {},
                    "f:length": {}
                  }
                },
                "manager": "tester",
                "operation": "Update",
                "time": "2026-01-01T00:00:00Z"
              }
            ],
            "name": "w",
            "namespace": "default",
            "resourceVersion": "3",
            "uid": "f893a2ee-fb32-455e-b1c1-8690ee42c90b"
          },
          "spec": {
            "colour": "red",
            "length": 3
          }
        }
        warning: example.com/v2 Widget is deprecated
        warning: unknown field "spec.other"
    "#]]
    .assert_eq(&created.show());
    let mut read = env.get("example.com/v1/widgets/default/w").await;
    assert_eq!((read.code, read.body["metadata"].take()), (200, created.body["metadata"].clone()));
    let expected = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": null,
        "spec": {"colour": "red", "size": 3}});
    assert_eq!(read.body, expected);
}

#[tokio::test]
async fn creates_reviews_without_storing_them() {
    let env = Env::new().await;
    let review = env.create("authentication.k8s.io/v1/tokenreviews", json!({"spec": {"token": "t"}})).await;
    expect![[r#"
        201
        {
          "apiVersion": "authentication.k8s.io/v1",
          "kind": "TokenReview",
          "metadata": {},
          "spec": {
            "token": "t"
          },
          "status": {
            "authenticated": true,
            "user": {
              "username": "alice"
            }
          }
        }
    "#]]
    .assert_eq(&review.show());
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}});
    assert_eq!(env.create("v1/pods/default", &pod).await.code, 201);
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    expect![[r#"201 {"apiVersion":"v1","code":201,"kind":"Status","metadata":{},"status":"Success"}"#]]
        .assert_eq(&env.create("v1/pods/default/p/binding", &binding).await.brief());
    let bound = env.get("v1/pods/default/p").await.body;
    assert_eq!(bound["spec"]["nodeName"], "n1");
    // A binding is written past field management: the node's name has no owner.
    let managers = bound["metadata"]["managedFields"].as_array().unwrap();
    let managers: Vec<_> =
        managers.iter().map(|m| m["manager"].to_string() + &m["fieldsV1"].to_string()).collect();
    expect![[r#""tester"{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:name":{},"f:resources":{}}},"f:restartPolicy":{}}}"#]].assert_eq(&managers.join("\n"));
    expect![[r#"404 NotFound: pods "missing" not found"#]]
        .assert_eq(&env.create("v1/pods/default/missing/binding", &binding).await.brief());
    expect!["405 MethodNotAllowed: the server does not allow this method on the requested resource"]
        .assert_eq(&env.get("v1/pods/default/p/binding").await.brief());
    expect!["404 NotFound: the server could not find the requested resource"]
        .assert_eq(&env.get("v1/pods/default/p/nonsense").await.brief());
}

#[tokio::test]
async fn many_generated_names_at_once() {
    let env = Env::new().await;
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let engine = env.engine.clone();
            let request = env.request(
                Verb::Create,
                "v1/configmaps/default",
                json!({"metadata": {"generateName": "g-"}}),
            );
            tokio::spawn(async move { engine.handle(request).await.code })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), 201);
    }
}

#[tokio::test]
async fn only_one_of_many_creates_wins() {
    let env = Env::new().await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}});
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let engine = env.engine.clone();
            let request = env.request(Verb::Create, "v1/pods/default", &pod);
            tokio::spawn(async move { engine.handle(request).await.code })
        })
        .collect();
    let mut codes = vec![];
    for task in tasks {
        codes.push(task.await.unwrap());
    }
    assert_eq!(codes.iter().filter(|c| **c == 201).count(), 1);
    assert_eq!(env.counters.show(), "taken 20 committed 1 rolled back 19 deleted 0");
}

/// Lets a pod in while there is a config map, which the first judgement is overtaken by a change of.
#[derive(Default)]
struct Depends(AtomicUsize);

impl Admission for Depends {
    fn name(&self) -> &'static str {
        "Depends"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.resource.resource == "pods" && a.operation == Operation::Create
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let maps = GroupResource::new("", "configmaps");
            let gate = a.api.get(&maps, "default", "gate");
            let gate = gate.ok_or_else(|| Status::not_found(&maps, "gate"))?;
            a.extras.expect(ObjectVersion::of(&maps, &gate));
            if self.0.fetch_add(1, Ordering::SeqCst) == 0 {
                let change = |map: &mut Value| {
                    object::set_at(map, &["data", "changed"], "yes");
                    Ok(())
                };
                let options = UpdateOptions::new("", FieldManagement::Skip);
                a.api.update(&maps, "default", "gate", options, &change).await?;
            }
            Ok(())
        })
    }
}

#[tokio::test]
async fn what_a_creation_depends_on_is_as_it_was_judged_when_it_is_stored() {
    let depends = Arc::new(Depends::default());
    let env = Env::with(vec![depends.clone()]).await;
    env.create("v1/configmaps/default", json!({"metadata": {"name": "gate"}, "data": {}})).await;
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}});
    let made = env.create("v1/pods/default", pod.clone()).await;
    assert_eq!(made.code, 201, "{}", made.brief());
    assert_eq!(depends.0.load(Ordering::SeqCst), 2);
    assert_eq!(env.counters.show(), "taken 2 committed 1 rolled back 1 deleted 0");
    // A dry run is judged, and depends on nothing.
    depends.0.store(0, Ordering::SeqCst);
    let made = env
        .create("v1/pods/default?dryRun=All", json!({"metadata": {"name": "b"}, "spec": pod["spec"]}))
        .await;
    assert_eq!((made.code, depends.0.load(Ordering::SeqCst)), (201, 1), "{}", made.brief());
}
