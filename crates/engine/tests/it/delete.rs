//! DELETE, of objects and of collections.

use super::Env;
use expect_test::expect;
use jiff::SignedDuration;
use kaji_engine::{Admission, Attributes, EngineOptions, Operation};
use kaji_meta::Status;
use kaji_resource::{BoxFuture, Verb};
use kaji_store::memory::{MemoryOptions, MemoryStore};
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

async fn make(env: &Env, path: &str, body: Value) -> Value {
    let made = env.create(path, body).await;
    assert_eq!(made.code, 201, "{}", made.show());
    made.body
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c"}]}})
}

#[tokio::test]
async fn deletes_without_finalizers_immediately() {
    let env = Env::new().await;
    make(&env, "v1/configmaps/default", json!({"metadata": {"name": "a"}})).await;
    assert_eq!(env.delete("v1/configmaps/default/a?dryRun=All", "").await.code, 200);
    expect![[r#"
        200
        {
          "apiVersion": "v1",
          "details": {
            "kind": "configmaps",
            "name": "a",
            "uid": "f893a2ee-fb32-455e-b1c1-8690ee42c90b"
          },
          "kind": "Status",
          "metadata": {},
          "status": "Success"
        }
    "#]]
    .assert_eq(&env.delete("v1/configmaps/default/a", "").await.show());
    expect![[r#"
        404
        {
          "apiVersion": "v1",
          "code": 404,
          "details": {
            "kind": "configmaps",
            "name": "a"
          },
          "kind": "Status",
          "message": "configmaps \"a\" not found",
          "metadata": {},
          "reason": "NotFound",
          "status": "Failure"
        }
    "#]]
    .assert_eq(&env.delete("v1/configmaps/default/a", "").await.show());
    assert_eq!(env.get("v1/configmaps/default/a").await.code, 404);
}

#[tokio::test]
async fn rejects_failed_preconditions_and_invalid_options() {
    let env = Env::new().await;
    make(&env, "v1/configmaps/default", json!({"metadata": {"name": "a"}})).await;
    let mut out = String::new();
    for body in [
        json!({"preconditions": {"uid": "other"}}),
        json!({"preconditions": {"resourceVersion": "1"}}),
        json!({"propagationPolicy": "Sideways"}),
        json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
        json!({"kind": "Pod"}),
        json!([1]),
        json!({"gracePeriodSeconds": "x"}),
    ] {
        out += &format!("{body}\n    {}\n", env.delete("v1/configmaps/default/a", &body).await.brief());
    }
    expect![[r#"
        {"preconditions":{"uid":"other"}}
            409 Conflict: Operation cannot be fulfilled on ConfigMap "a": the UID in the precondition (other) does not match the UID in record (f893a2ee-fb32-455e-b1c1-8690ee42c90b). The object might have been deleted and then recreated
        {"preconditions":{"resourceVersion":"1"}}
            409 Conflict: Operation cannot be fulfilled on ConfigMap "a": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (3). The object might have been modified
        {"propagationPolicy":"Sideways"}
            422 Invalid: DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Sideways": supported values: "Foreground", "Background", "Orphan", "nil"
        {"orphanDependents":true,"propagationPolicy":"Orphan"}
            422 Invalid: DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Invalid value: "Orphan": orphanDependents and deletionPropagation cannot be both set
        {"kind":"Pod"}
            400 BadRequest: decoded object cannot be converted to DeleteOptions
        [1]
            400 BadRequest: json: cannot unmarshal array into Go value of type v1.DeleteOptions
        {"gracePeriodSeconds":"x"}
            400 BadRequest: json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64
    "#]].assert_eq(&out);
    assert_eq!(env.get("v1/configmaps/default/a").await.code, 200);
}

#[tokio::test]
async fn keeps_objects_with_finalizers() {
    let env = Env::new().await;
    let path = "v1/configmaps/default/a";
    make(&env, "v1/configmaps/default", json!({"metadata": {"name": "a", "finalizers": ["example.com/f"]}}))
        .await;
    let deleted = env.delete(path, "").await;
    expect![[r#"
        200
        {
          "apiVersion": "v1",
          "kind": "ConfigMap",
          "metadata": {
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionGracePeriodSeconds": 0,
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": [
              "example.com/f"
            ],
            "managedFields": [
              {
                "apiVersion": "v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                  "f:metadata": {
                    "f:finalizers": {
                      ".": {},
                      "v:\"example.com/f\"": {}
                    }
                  }
                },
                "manager": "tester",
                "operation": "Update",
                "time": "2026-01-01T00:00:00Z"
              }
            ],
            "name": "a",
            "namespace": "default",
            "resourceVersion": "4",
            "uid": "f893a2ee-fb32-455e-b1c1-8690ee42c90b"
          }
        }
    "#]]
    .assert_eq(&deleted.show());
    // A second deletion changes nothing, and no update removes the timestamp.
    assert_eq!(env.delete(path, "").await.body, deleted.body);
    let taken = env.patch("merge", path, json!({"metadata": {"deletionTimestamp": null}})).await;
    assert_eq!(taken.body, deleted.body);
    expect![[r#"422 Invalid: ConfigMap "a" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"example.com/g"}"#]].assert_eq(
        &env.patch("merge", path, json!({"metadata": {"finalizers": ["example.com/f", "example.com/g"]}}))
            .await
            .brief(),
    );
    expect![[r#"409 AlreadyExists: object is being deleted: configmaps "a" already exists"#]]
        .assert_eq(&env.create("v1/configmaps/default", json!({"metadata": {"name": "a"}})).await.brief());
    let last = env.patch("json", path, json!([{"op": "remove", "path": "/metadata/finalizers"}])).await;
    assert_eq!((last.code, last.body["metadata"].get("finalizers")), (200, None), "{}", last.show());
    assert_eq!(env.get(path).await.code, 404);
}

#[tokio::test]
async fn sets_finalizers_for_the_propagation_policy() {
    let env = Env::new().await;
    let job = |name: &str| json!({"metadata": {"name": name}, "spec": {"template": {"spec": {"containers": [{"name": "c"}], "restartPolicy": "Never"}}}});
    let mut out = String::new();
    for (path, options) in [
        ("v1/configmaps/default", json!({"propagationPolicy": "Orphan"})),
        ("v1/configmaps/default", json!({"propagationPolicy": "Foreground"})),
        ("v1/configmaps/default", json!({"orphanDependents": false})),
        ("v1/configmaps/default", json!({"orphanDependents": true})),
        ("batch/v1/jobs/default", json!({})),
        ("batch/v1/jobs/default", json!({"propagationPolicy": "Background"})),
    ] {
        let body = if path.starts_with("batch") { job("x") } else { json!({"metadata": {"name": "x"}}) };
        make(&env, path, body).await;
        let object = format!("{path}/x");
        let answer = env.delete(&object, &options).await;
        let finalizers = answer.body["metadata"]["finalizers"].clone();
        out += &format!("{path} {options}: {} finalizers {finalizers}\n", answer.code);
        env.patch("merge", &object, json!({"metadata": {"finalizers": null}})).await;
        assert_eq!(env.get(&object).await.code, 404);
    }
    expect![[r#"
        v1/configmaps/default {"propagationPolicy":"Orphan"}: 200 finalizers ["orphan"]
        v1/configmaps/default {"propagationPolicy":"Foreground"}: 200 finalizers ["foregroundDeletion"]
        v1/configmaps/default {"orphanDependents":false}: 200 finalizers null
        v1/configmaps/default {"orphanDependents":true}: 200 finalizers ["orphan"]
        batch/v1/jobs/default {}: 200 finalizers ["orphan"]
        batch/v1/jobs/default {"propagationPolicy":"Background"}: 200 finalizers null
    "#]]
    .assert_eq(&out);
}

/// `--enable-garbage-collector=false`: nothing would remove them.
#[tokio::test]
async fn sets_no_finalizers_without_a_garbage_collector() {
    let store = Arc::new(MemoryStore::with_options(MemoryOptions::default()).unwrap());
    let options = EngineOptions { garbage_collection: false, ..EngineOptions::default() };
    let env = Env::configured(store, options).await;
    for policy in ["Orphan", "Foreground", "Background"] {
        make(&env, "v1/configmaps/default", json!({"metadata": {"name": "x"}})).await;
        let answer = env.delete("v1/configmaps/default/x", &json!({"propagationPolicy": policy})).await;
        assert_eq!(answer.code, 200, "{}", answer.show());
        assert_eq!(env.get("v1/configmaps/default/x").await.code, 404, "{policy}");
    }
}

#[tokio::test]
async fn deletes_pods_gracefully() {
    let env = Env::new().await;
    let path = "v1/pods/default/p";
    make(&env, "v1/pods/default", pod("p")).await;
    let mut out = String::new();
    let mut show = |what: &str, body: &Value| {
        let m = &body["metadata"];
        out += &format!(
            "{what}: {} {} generation {}\n",
            m["deletionTimestamp"], m["deletionGracePeriodSeconds"], m["generation"]
        );
    };
    show("first", &env.delete(path, "").await.body);
    env.clock.advance(SignedDuration::from_secs(10));
    show("again", &env.get(path).await.body);
    let longer = env.delete(path, json!({"gracePeriodSeconds": 60})).await;
    assert_eq!(longer.body["kind"], "Status");
    show("longer", &env.get(path).await.body);
    show("shorter", &env.delete(path, json!({"gracePeriodSeconds": 20})).await.body);
    show("in the past", &env.delete(path, json!({"gracePeriodSeconds": 5})).await.body);
    assert_eq!(env.get(path).await.code, 200);
    let now = env.delete(path, json!({"gracePeriodSeconds": 0})).await;
    assert_eq!(now.body["kind"], "Status", "{}", now.show());
    assert_eq!(env.get(path).await.code, 404);
    expect![[r#"
        first: "2026-01-01T00:00:30Z" 30 generation 2
        again: "2026-01-01T00:00:30Z" 30 generation 2
        longer: "2026-01-01T00:00:30Z" 30 generation 2
        shorter: "2026-01-01T00:00:20Z" 20 generation 2
        in the past: "2026-01-01T00:00:10Z" 1 generation 2
    "#]]
    .assert_eq(&out);
    expect!["taken 1 committed 1 rolled back 0 deleted 1"].assert_eq(&env.counters.show());
}

#[tokio::test]
async fn namespaces_wait_for_their_own_finalizers() {
    let env = Env::new().await;
    make(&env, "v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    let deleted = env.delete("v1/namespaces/n", "").await;
    assert_eq!(deleted.body["status"]["phase"], "Terminating", "{}", deleted.show());
    let mut finalized = env.get("v1/namespaces/n").await.body;
    finalized["spec"]["finalizers"] = json!([]);
    let answer = env.put("v1/namespaces/n/finalize", finalized).await;
    assert_eq!(answer.code, 200, "{}", answer.show());
    assert_eq!(env.get("v1/namespaces/n").await.code, 404);
}

#[tokio::test]
async fn a_namespace_is_marked_by_the_first_deletion_alone() {
    let env = Env::new().await;
    make(&env, "v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    // The old option means foreground to a namespace.
    let deleted = env.delete("v1/namespaces/n", json!({"orphanDependents": false})).await;
    let meta = &deleted.body["metadata"];
    assert_eq!((deleted.code, &meta["finalizers"]), (202, &json!(["foregroundDeletion"])));
    assert_eq!(meta["deletionTimestamp"], "2026-01-01T00:00:00Z");
    for (code, options) in [
        (200, json!({})),
        (200, json!({"propagationPolicy": "Orphan"})),
        (202, json!({"orphanDependents": false})),
    ] {
        env.clock.advance(SignedDuration::from_secs(1));
        let again = env.delete("v1/namespaces/n", &options).await;
        assert_eq!((again.code, &again.body), (code, &deleted.body), "{options}");
    }
    let stale = json!({"preconditions": {"uid": "other"}});
    assert_eq!(env.delete("v1/namespaces/n", stale).await.code, 409);
    let mut finalized = deleted.body.clone();
    finalized["spec"]["finalizers"] = json!([]);
    assert_eq!(env.put("v1/namespaces/n/finalize", finalized).await.code, 200);
    // Nothing but the garbage collector's finalizer is left: that the policy decides about.
    let gone = env.delete("v1/namespaces/n", json!({"propagationPolicy": "Background"})).await;
    assert_eq!(gone.code, 200, "{}", gone.show());
    assert_eq!(env.get("v1/namespaces/n").await.code, 404);
}

/// Counts the deletions that it is asked about.
#[derive(Default)]
struct Deletions {
    mutating: AtomicUsize,
    validating: AtomicUsize,
}

impl Admission for Deletions {
    fn name(&self) -> &'static str {
        "Deletions"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.operation == Operation::Delete
    }

    fn admit<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        self.mutating.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(Ok(())))
    }

    fn validate<'a>(&'a self, _: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        self.validating.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(Ok(())))
    }
}

#[tokio::test]
async fn a_deletion_under_way_is_not_admitted_again() {
    let plugin = Arc::new(Deletions::default());
    let env = Env::with(vec![plugin.clone()]).await;
    make(&env, "v1/pods/default", pod("p")).await;
    make(&env, "v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    make(&env, "v1/configmaps/default", json!({"metadata": {"name": "a", "finalizers": ["example.com/f"]}}))
        .await;
    let mut out = String::new();
    for (path, options) in [
        ("v1/pods/default/p", json!({})),
        ("v1/pods/default/p", json!({})),
        ("v1/pods/default/p", json!({"gracePeriodSeconds": 60})),
        ("v1/pods/default/p", json!({"preconditions": {"uid": "other"}})),
        ("v1/pods/default/p", json!({"gracePeriodSeconds": 20})),
        ("v1/namespaces/n", json!({})),
        ("v1/namespaces/n", json!({})),
        ("v1/configmaps/default/a", json!({})),
        ("v1/configmaps/default/a", json!({})),
    ] {
        // The cache has caught up: what is decided on an older object is decided twice.
        assert_eq!(env.get(path).await.code, 200);
        let code = env.delete(path, &options).await.code;
        let mutating = plugin.mutating.load(Ordering::Relaxed);
        let validating = plugin.validating.load(Ordering::Relaxed);
        out += &format!("{path} {options}: {code}, asked {mutating} {validating}\n");
    }
    expect![[r#"
        v1/pods/default/p {}: 200, asked 1 1
        v1/pods/default/p {}: 200, asked 1 1
        v1/pods/default/p {"gracePeriodSeconds":60}: 200, asked 1 1
        v1/pods/default/p {"preconditions":{"uid":"other"}}: 409, asked 1 1
        v1/pods/default/p {"gracePeriodSeconds":20}: 200, asked 2 2
        v1/namespaces/n {}: 200, asked 3 3
        v1/namespaces/n {}: 200, asked 3 3
        v1/configmaps/default/a {}: 200, asked 4 4
        v1/configmaps/default/a {}: 200, asked 5 5
    "#]]
    .assert_eq(&out);
}

#[tokio::test]
async fn deletes_collections() {
    let env = Env::new().await;
    for (name, label) in [("a", "x"), ("b", "x"), ("c", "y"), ("d", "x")] {
        let cm = json!({"metadata": {"name": name, "labels": {"l": label}}});
        make(&env, "v1/configmaps/default", cm).await;
    }
    let names = |body: &Value| -> Vec<String> {
        body["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| i["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let request =
        |query: &str| env.request(Verb::DeleteCollection, &format!("v1/configmaps/default{query}"), "");
    let dry = env.send(request("?labelSelector=l=x&dryRun=All")).await;
    assert_eq!(names(&dry.body), ["a", "b", "d"], "{}", dry.show());
    let some = env.send(request("?labelSelector=l=x&limit=2")).await;
    assert_eq!(
        (some.body["kind"].as_str(), names(&some.body)),
        (Some("ConfigMapList"), vec!["a".into(), "b".into()])
    );
    assert_eq!(env.get("v1/configmaps/default/a").await.code, 404);
    assert_eq!(env.get("v1/configmaps/default/d").await.code, 200);
    let all = env.send(request("")).await;
    assert_eq!(names(&all.body), ["c", "d"]);
    expect!["405 MethodNotAllowed: the server does not allow this method on the requested resource"]
        .assert_eq(&env.send(env.request(Verb::DeleteCollection, "v1/configmaps", "")).await.brief());
}
