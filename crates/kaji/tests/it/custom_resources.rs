//! Custom resources from definition to deletion, in a cluster without controllers.

mod removed_versions;
mod validation;

use crate::common::{TestCluster, api::Api};
use expect_test::expect;
use futures_util::StreamExt;
use kaji_engine::Body;
use kaji_resource::Verb;
use serde_json::{Value, json};

const CRDS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";
const V1: &str = "example.com/v1/widgets";
const V2: &str = "example.com/v2/widgets";

fn definition() -> Value {
    let version = |name: &str, storage: bool, own: &str| {
        json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "a": {"type": "string"}, own: {"type": "string"}, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version("v1", true, "one"), version("v2", false, "two")]}})
}

fn widget(version: &str, name: &str, extra: Value) -> Value {
    let mut object =
        json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget", "metadata": {"name": name}});
    for (k, v) in extra.as_object().unwrap() {
        object[k] = v.clone();
    }
    object
}

fn established(definition: Option<&Value>) -> bool {
    let conditions =
        definition.and_then(|d| d["status"]["conditions"].as_array().cloned()).unwrap_or_default();
    conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_follow_their_definition() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    api.ok(Verb::Create, CRDS, definition()).await;
    api.until(CRDS, "widgets.example.com", established).await;
    let made = api
        .ok(Verb::Create, V1, widget("v1", "w", json!({"one": "1", "unknown": 1, "status": {"x": 1}})))
        .await;
    assert_eq!((&made["one"], &made["unknown"], &made["status"]), (&json!("1"), &Value::Null, &Value::Null));
    // Another version shows what its schema knows.
    let other = api.ok(Verb::Get, &format!("{V2}/w"), Value::Null).await;
    assert_eq!((&other["apiVersion"], &other["one"]), (&json!("example.com/v2"), &Value::Null));
    // What is written through it keeps what the stored version knows.
    api.ok(Verb::Create, V2, widget("v2", "x", json!({"a": "1", "two": "2"}))).await;
    let stored = api.ok(Verb::Get, &format!("{V1}/x"), Value::Null).await;
    assert_eq!((&stored["a"], &stored["two"]), (&json!("1"), &Value::Null));
    // A default that comes later is seen at once by reads, and a field that goes is not.
    let patch = json!([
        {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/a/default", "value": "A"},
        {"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/one"},
    ]);
    let definition = format!("{CRDS}/widgets.example.com");
    let generation =
        api.ok(Verb::Patch, &definition, patch).await["metadata"]["generation"].as_i64().unwrap();
    assert_eq!(generation, 2);
    let shown = loop {
        let shown = api.ok(Verb::Get, &format!("{V1}/w"), Value::Null).await;
        if shown["a"] == "A" {
            break shown;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(shown["one"], Value::Null);
    assert_eq!(api.ok(Verb::List, V1, Value::Null).await["items"][0]["a"], "A");
    assert_eq!(api.ok(Verb::Get, &format!("{V2}/w"), Value::Null).await["a"], "A");
    // The field comes back with its value: reading has changed nothing.
    let patch = json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/one", "value": {"type": "string"}}]);
    api.ok(Verb::Patch, &definition, patch).await;
    while api.ok(Verb::Get, &format!("{V1}/w"), Value::Null).await["one"] != "1" {
        tokio::task::yield_now().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_keeps_its_books_and_goes_last() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let name = format!("{CRDS}/widgets.example.com");
    api.ok(Verb::Create, CRDS, definition()).await;
    api.until(CRDS, "widgets.example.com", established).await;
    // The stored version moves; the one before stays on the books and cannot be dropped yet.
    let patch = json!([
        {"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true},
    ]);
    let moved = api.ok(Verb::Patch, &name, patch).await;
    assert_eq!(moved["status"]["storedVersions"], json!(["v1", "v2"]));
    let dropped = json!([{"op": "remove", "path": "/spec/versions/0"}]);
    let answer = api.raw(Verb::Patch, &name, "application/json-patch+json", &dropped).await;
    assert_eq!(answer.code, 422);
    // A version that is not served any more is not found.
    api.ok(Verb::Patch, &name, json!([{"op": "replace", "path": "/spec/versions/0/served", "value": false}]))
        .await;
    while api.raw(Verb::List, V1, "", &Value::Null).await.code != 404 {
        tokio::task::yield_now().await;
    }
    api.ok(
        Verb::Create,
        V2,
        widget("v2", "w", json!({"metadata": {"name": "w", "finalizers": ["example.com/x"]}})),
    )
    .await;
    let going = api.ok(Verb::Delete, &name, Value::Null).await;
    assert_eq!(going["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    let terminating = |d: &Value| {
        d["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Terminating").cloned()
    };
    assert_eq!(terminating(&going).unwrap()["reason"], "InstanceDeletionPending");
    api.until(CRDS, "widgets.example.com", |d| {
        terminating(d.unwrap()).is_some_and(|c| c["reason"] == "InstanceDeletionInProgress")
    })
    .await;
    // Not even an invalid object gets further, nor a patch that would make one.
    let late = "widgets.example.com \"late\" is forbidden: create not allowed while custom resource definition is terminating";
    assert_eq!(
        api.refused(Verb::Create, V2, widget("v2", "late", json!({"a": 1}))).await,
        (403, late.into())
    );
    let apply = "application/apply-patch+yaml";
    let path = format!("{V2}/late?fieldManager=t");
    let patched = api.raw(Verb::Patch, &path, apply, &widget("v2", "late", json!({}))).await;
    let refusal: Value = serde_json::from_slice(&patched.body.into_bytes().unwrap()).unwrap();
    assert_eq!((patched.code, refusal["message"].as_str()), (403, Some(late)));
    // The object's own finalizer holds everything up.
    let patch = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
    api.ok(Verb::Patch, &format!("{V2}/w"), patch).await;
    let mut seen = false;
    api.until(CRDS, "widgets.example.com", |d| {
        seen |= d.is_some();
        d.is_none() || !seen
    })
    .await;
    while api.raw(Verb::List, V2, "", &Value::Null).await.code != 404 {
        tokio::task::yield_now().await;
    }
    cluster.stop().await;
}

type Events = futures_util::stream::BoxStream<'static, bytes::Bytes>;

async fn watch(api: &Api<'_>, path: &str) -> Events {
    match api.raw(Verb::Watch, &format!("{path}?watch=true"), "", &Value::Null).await.body {
        Body::Watch(events) => events,
        _ => panic!("no watch"),
    }
}

/// The events of a watch up to one of an object of this name, or to its end.
async fn told(events: &mut Events, until: &str) -> String {
    let mut all = String::new();
    while !all.contains(&format!("\"name\":\"{until}\""))
        && let Some(piece) = events.next().await
    {
        all.push_str(std::str::from_utf8(&piece).unwrap());
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_end_when_their_definition_changes() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let name = format!("{CRDS}/widgets.example.com");
    api.ok(Verb::Create, CRDS, definition()).await;
    api.until(CRDS, "widgets.example.com", established).await;
    let (mut v1, mut v2) = (watch(&api, V1).await, watch(&api, V2).await);
    // What is said about the definition itself is no change of what it defines.
    let labels = json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]);
    api.ok(Verb::Patch, &name, labels).await;
    api.ok(Verb::Create, V1, widget("v1", "w", json!({}))).await;
    assert!(told(&mut v1, "w").await.contains("ADDED") && told(&mut v2, "w").await.contains("ADDED"));
    // Any change of the spec ends the watches of all versions.
    let columns = json!([{"op": "add", "path": "/spec/versions/0/additionalPrinterColumns", "value":
        [{"name": "A", "type": "string", "jsonPath": ".a"}]}]);
    api.ok(Verb::Patch, &name, columns).await;
    assert_eq!((told(&mut v1, "end").await, told(&mut v2, "end").await), (String::new(), String::new()));
    let (mut v1, mut v2) = (watch(&api, V1).await, watch(&api, V2).await);
    assert!(told(&mut v1, "w").await.contains("ADDED") && told(&mut v2, "w").await.contains("ADDED"));
    let unserved = json!([{"op": "replace", "path": "/spec/versions/1/served", "value": false}]);
    api.ok(Verb::Patch, &name, unserved).await;
    assert_eq!((told(&mut v1, "end").await, told(&mut v2, "end").await), (String::new(), String::new()));
    assert_eq!(api.raw(Verb::Watch, V2, "", &Value::Null).await.code, 404);
    cluster.stop().await;
}

/// Verbs of the widgets and of their status, in both forms of discovery.
async fn discovered(client: &kube::Client) -> String {
    let get = async |path: &str, accept: &str| {
        let request = http::Request::get(path).header("accept", accept).body(vec![]).unwrap();
        client.request::<Value>(request).await.unwrap()
    };
    let legacy = get("/apis/example.com/v1", "application/json").await;
    let verbs = |of: &Value| {
        let all = of["verbs"].as_array().unwrap().iter().map(|v| v.as_str().unwrap());
        all.collect::<Vec<_>>().join(",")
    };
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let groups = get("/apis", aggregated).await;
    let groups = groups["items"].as_array().unwrap().clone();
    let group = groups.iter().find(|g| g["metadata"]["name"] == "example.com").unwrap();
    let widgets =
        &group["versions"].as_array().unwrap().iter().find(|v| v["version"] == "v1").unwrap()["resources"][0];
    let [main, status] = [0, 1].map(|i| verbs(&legacy["resources"][i]));
    let aggregated = [verbs(widgets), verbs(&widgets["subresources"][0])];
    format!("{main} {status} {}", aggregated.join(" "))
}

/// What a kube-apiserver does with a definition that a finalizer of others keeps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_held_by_others_is_served_until_it_is_gone() {
    let cluster = TestCluster::start(0).await;
    let (api, client) = (Api(&cluster), cluster.kube().await);
    let name = format!("{CRDS}/widgets.example.com");
    let mut held = definition();
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.ok(Verb::Create, CRDS, held).await;
    api.until(CRDS, "widgets.example.com", established).await;
    let all = discovered(&client).await;
    assert!(
        all.starts_with("delete,deletecollection,get,list,patch,create,update,watch get,patch,update delete")
    );
    let finalizers = json!({"metadata": {"name": "w", "finalizers": ["example.com/x"]}});
    api.ok(Verb::Create, V1, widget("v1", "w", finalizers)).await;
    let mut events = watch(&api, V1).await;
    assert!(told(&mut events, "w").await.contains("ADDED"));

    let foreground = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"});
    let going = api.ok(Verb::Delete, &name, foreground.clone()).await;
    let cleanup = "customresourcecleanup.apiextensions.k8s.io";
    assert_eq!(going["metadata"]["finalizers"], json!(["example.com/hold", cleanup]));
    let reason = |d: Option<&Value>| {
        let all = d.unwrap()["status"]["conditions"].as_array().unwrap().clone();
        let found = all.iter().find(|c| c["type"] == "Terminating").cloned().unwrap_or_default();
        format!("{} {}", found["status"], found["reason"]).replace('"', "")
    };
    api.until(CRDS, "widgets.example.com", |d| reason(d) == "True InstanceDeletionInProgress").await;
    // Its object lingers; it can be read and changed, but there will be no other.
    expect!["delete,deletecollection,get,list,watch get,patch,update delete,deletecollection,get,list,watch get,patch,update"]
        .assert_eq(&discovered(&client).await);
    assert_eq!(api.ok(Verb::List, V1, Value::Null).await["items"][0]["metadata"]["name"], "w");
    let refusal = "widgets.example.com \"late\" is forbidden: create not allowed while custom resource definition is terminating";
    let late = widget("v1", "late", json!({}));
    assert_eq!(api.refused(Verb::Create, V1, late.clone()).await, (403, refusal.into()));
    assert!(told(&mut events, "w").await.contains("MODIFIED"));
    let release = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
    api.ok(Verb::Patch, &format!("{V1}/w"), release.clone()).await;
    assert!(told(&mut events, "w").await.contains("DELETED"));

    // Cleaned up, it goes on as before.
    api.until(CRDS, "widgets.example.com", |d| {
        reason(d) == "False InstanceDeletionCompleted"
            && d.unwrap()["metadata"]["finalizers"] == json!(["example.com/hold"])
    })
    .await;
    while discovered(&client).await != all {
        tokio::task::yield_now().await;
    }
    api.ok(Verb::Create, V1, late).await;
    assert!(told(&mut events, "late").await.contains("ADDED"));
    let again = api.ok(Verb::Delete, &name, foreground).await;
    assert_eq!(again["metadata"]["finalizers"], json!(["example.com/hold", "foregroundDeletion"]));
    assert_eq!(again["metadata"]["deletionGracePeriodSeconds"], 0);
    api.ok(Verb::Patch, &name, release).await;
    assert_eq!(told(&mut events, "end").await, "");
    while api.raw(Verb::List, V1, "", &Value::Null).await.code != 404 {
        tokio::task::yield_now().await;
    }
    cluster.stop().await;
}

/// Field validation of custom objects: the fields of metadata and embedded objects are known although no schema says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_unknown_and_duplicate_fields() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let spec = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
        "template": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": {"type": "object"}}}}});
    let closed = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"foo": {"type": "string"}}}}});
    let open = json!({"type": "object", "properties": {"spec": spec}});
    let mut definition = definition();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = closed;
    definition["spec"]["versions"][1]["schema"]["openAPIV3Schema"] = open;
    for (i, stored) in [false, true].into_iter().enumerate() {
        definition["spec"]["versions"][i]["storage"] = stored.into();
    }
    api.ok(Verb::Create, CRDS, definition).await;
    api.until(CRDS, "widgets.example.com", established).await;
    let head = |version: &str, name: &str| {
        format!("apiVersion: example.com/{version}\nkind: Widget\nmetadata:\n  name: {name}\n")
    };
    let apply = async |path: &str, query: &str, body: String| {
        let path = format!("{path}?fieldManager=t&{query}");
        let answer = api.raw(Verb::Patch, &path, "application/apply-patch+yaml", &Value::String(body)).await;
        let (code, warnings) = (answer.code, answer.warnings);
        let body: Value = serde_json::from_slice(&answer.body.into_bytes().unwrap()).unwrap();
        format!("{code} {} {warnings:?}", body["message"].as_str().unwrap_or_default())
    };
    let strict = "fieldValidation=Strict";
    let valid = head("v1", "a") + "spec:\n  foo: x\n";
    expect!["201  []"].assert_eq(&apply(&format!("{V1}/a"), strict, valid).await);
    let unknown = head("v1", "b") + "unknownField: 1\nspec:\n  foo: x\n";
    expect!["500 failed to create typed patch object (/b; example.com/v1, Kind=Widget): .unknownField: field not declared in schema []"].assert_eq(&apply(&format!("{V1}/b"), strict, unknown).await);
    let anything = head("v2", "c") + "spec:\n  whatever: 1\n";
    expect!["201  []"].assert_eq(&apply(&format!("{V2}/c"), strict, anything).await);
    let metadata = head("v2", "d")
        + "  unknownMeta: 1\nspec:\n  template:\n    apiVersion: v1\n    kind: T\n    metadata:\n      name: t\n      unknownSubMeta: 1\n";
    expect![[r#"
        500 failed to create typed patch object (/d; example.com/v2, Kind=Widget): errors:
          .metadata.unknownMeta: field not declared in schema
          .spec.template.metadata.unknownSubMeta: field not declared in schema []"#]]
    .assert_eq(&apply(&format!("{V2}/d"), strict, metadata.clone()).await);
    let twice = head("v2", "e") + "spec:\n  foo: a\n  foo: b\n";
    expect![[r#"
        400 error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:
          line 7: key "foo" already set in map []"#]]
    .assert_eq(&apply(&format!("{V2}/e"), strict, twice).await);
    for directive in ["Strict", "Warn", "Ignore"] {
        let body = json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "f", "unknownMeta": 1}, "other": 1,
            "spec": {"template": {"apiVersion": "v1", "kind": "T", "metadata": {"name": "t", "unknownSubMeta": 1}}}});
        let answer = api
            .raw(
                Verb::Create,
                &format!("{V2}?dryRun=All&fieldValidation={directive}"),
                "application/json",
                &body,
            )
            .await;
        let shown = (answer.code, answer.warnings);
        let body: Value = serde_json::from_slice(&answer.body.into_bytes().unwrap()).unwrap();
        match directive {
            "Strict" => expect![[r#"(400, []) "Widget in version \"v2\" cannot be handled as a Widget: strict decoding error: unknown field \"metadata.unknownMeta\", unknown field \"other\", unknown field \"spec.template.metadata.unknownSubMeta\"""#]].assert_eq(&format!("{shown:?} {}", body["message"])),
            "Warn" => expect![[r#"(201, ["unknown field \"metadata.unknownMeta\"", "unknown field \"other\"", "unknown field \"spec.template.metadata.unknownSubMeta\""])"#]].assert_eq(&format!("{shown:?}")),
            _ => assert_eq!(shown, (201, vec![])),
        }
        if directive != "Strict" {
            assert_eq!(body["spec"]["template"]["metadata"], json!({"name": "t"}));
            assert_eq!((&body["metadata"]["unknownMeta"], &body["other"]), (&Value::Null, &Value::Null));
        }
    }
    cluster.stop().await;
}

/// What a creator says of a status is dropped, and what readers are shown then is its default, as after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_objects_have_the_default_status() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let mut definition = ruled(json!({"type": "object"}));
    let status = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
    *status = json!({"type": "object", "default": {"observed": -1}, "properties": {
        "observed": {"type": "integer"}, "ready": {"type": "integer", "default": 0}, "z": {"type": "string"}}});
    api.ok(Verb::Create, CRDS, definition).await;
    api.until(CRDS, "widgets.example.com", established).await;
    let default = json!({"observed": -1, "ready": 0});
    let new = |name: &str| widget("v1", name, json!({"spec": {}, "status": {"observed": 5}}));
    let dry = api.ok(Verb::Create, &format!("{V1}?dryRun=All"), new("d")).await;
    assert_eq!(dry["status"], Value::Null);
    let created = api.ok(Verb::Create, V1, new("a")).await;
    assert_eq!(created["status"], default);
    let applied = format!("{V1}/b?fieldManager=m&fieldValidation=Ignore");
    let body = new("b");
    let answer = api.raw(Verb::Patch, &applied, "application/apply-patch+yaml", &body).await;
    let answer: Value = serde_json::from_slice(&answer.body.into_bytes().unwrap()).unwrap();
    assert_eq!(answer["status"], default, "{answer}");
    for name in ["a", "b"] {
        assert_eq!(api.ok(Verb::Get, &format!("{V1}/{name}"), Value::Null).await["status"], default);
    }
    let listed = api.ok(Verb::List, V1, Value::Null).await;
    assert!(listed["items"].as_array().unwrap().iter().all(|item| item["status"] == default), "{listed}");
    let patch = json!([{"op": "add", "path": "/status/z", "value": "1"}]);
    let patched = api.ok(Verb::Patch, &format!("{V1}/a/status"), patch).await;
    assert_eq!(patched["status"], json!({"observed": -1, "ready": 0, "z": "1"}));
    cluster.stop().await;
}

/// The definition of one version with this schema of `spec`.
fn ruled(spec: Value) -> Value {
    let mut definition = definition();
    let status = json!({"type": "object", "properties": {"ready": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.ready >= 0", "message": "ready counts from 0"}]});
    definition["spec"]["versions"] = json!([{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}}}]);
    definition
}

fn crontab() -> Value {
    json!({"type": "object", "required": ["replicas"], "properties": {
        "replicas": {"type": "integer"},
        "class": {"type": "string", "maxLength": 20, "x-kubernetes-validations": [{"rule": "self == oldSelf",
            "message": "class is immutable", "reason": "FieldValueForbidden"}]},
        "limits": {"type": "object", "maxProperties": 4, "additionalProperties": {"type": "integer"}},
        "frozen": {"type": "boolean"},
    }, "x-kubernetes-validations": [
        {"rule": "self.replicas >= oldSelf.replicas", "message": "replicas may not shrink"},
        {"rule": "!has(self.limits) || self.limits.all(k, self.limits[k] > 0)", "fieldPath": ".limits",
            "messageExpression": "'%d not positive'.format([self.limits.filter(k, self.limits[k] <= 0).size()])"},
        {"rule": "oldSelf.hasValue() || !has(self.frozen)", "optionalOldSelf": true, "message": "nothing is born frozen"},
    ]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_judge_objects_and_their_changes() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let made = api.raw(Verb::Create, CRDS, "application/json", &ruled(crontab())).await;
    assert_eq!((made.warnings.len(), made.code), (0, 201), "{:?}", made.body.into_bytes());
    api.until(CRDS, "widgets.example.com", established).await;
    let with = |spec: Value| widget("v1", "w", json!({"spec": spec}));
    let refused = |detail: &str| (422, format!("Widget.example.com \"w\" is invalid: {detail}"));
    let bad = with(json!({"replicas": 1, "limits": {"a": 0, "b": 1}, "frozen": true}));
    assert_eq!(
        api.refused(Verb::Create, V1, bad).await,
        refused("[spec.limits: Invalid value: 1 not positive, spec: Invalid value: nothing is born frozen]")
    );
    // An object that is wrong otherwise is not put to rules.
    let (_, message) = api.refused(Verb::Create, V1, with(json!({"frozen": true}))).await;
    assert!(message.contains("spec.replicas: Required value") && !message.contains("born"), "{message}");
    assert!(message.contains("some validation rules were not checked"), "{message}");

    let name = format!("{V1}/w");
    api.ok(Verb::Create, V1, with(json!({"replicas": 3, "class": "a"}))).await;
    let change = |spec: Value| json!([{"op": "replace", "path": "/spec", "value": spec}]);
    assert_eq!(
        api.refused(Verb::Patch, &name, change(json!({"replicas": 2, "class": "a"}))).await,
        refused("spec: Invalid value: replicas may not shrink")
    );
    assert_eq!(
        api.refused(Verb::Patch, &name, change(json!({"replicas": 4, "class": "b"}))).await,
        refused("spec.class: Forbidden: class is immutable")
    );
    api.ok(Verb::Patch, &name, change(json!({"replicas": 4, "class": "a", "frozen": true}))).await;
    // A status is judged, too, and the spec with it stays out of it.
    let status = json!([{"op": "add", "path": "/status", "value": {"ready": -1}}]);
    assert_eq!(
        api.refused(Verb::Patch, &format!("{name}/status"), status).await,
        refused("status: Invalid value: ready counts from 0")
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_rules_forgive_what_does_not_change() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let spec = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}});
    api.ok(Verb::Create, CRDS, ruled(spec)).await;
    api.until(CRDS, "widgets.example.com", established).await;
    api.ok(Verb::Create, V1, widget("v1", "w", json!({"spec": {"a": "old", "b": "x"}}))).await;
    let rule = json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/a/x-kubernetes-validations",
        "value": [{"rule": "self.startsWith('new')"}]}]);
    api.ok(Verb::Patch, &format!("{CRDS}/widgets.example.com"), rule).await;
    // The rule is in force once an object that breaks it is refused.
    let late = || widget("v1", "late", json!({"spec": {"a": "old"}}));
    loop {
        let answer = api.raw(Verb::Create, V1, "application/json", &late()).await;
        if answer.code == 422 {
            break;
        }
        api.ok(Verb::Delete, &format!("{V1}/late"), Value::Null).await;
        tokio::task::yield_now().await;
    }
    let change = |field: &str, value: &str| json!([{"op": "replace", "path": format!("/spec/{field}"), "value": value}]);
    let name = format!("{V1}/w");
    api.ok(Verb::Patch, &name, change("b", "y")).await;
    let (code, message) = api.refused(Verb::Patch, &name, change("a", "older")).await;
    assert_eq!(
        (code, message.as_str()),
        (
            422,
            "Widget.example.com \"w\" is invalid: spec.a: Invalid value: \"older\": failed rule: self.startsWith('new')"
        )
    );
    api.ok(Verb::Patch, &name, change("a", "newer")).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_that_cannot_hold_or_cost_too_much_are_refused() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let refused = async |rule: Value| {
        let spec = json!({"type": "object", "properties": {"n": {"type": "integer"},
            "list": {"type": "array", "items": {"type": "string"}}}, "x-kubernetes-validations": [rule]});
        let (code, message) = api.refused(Verb::Create, CRDS, ruled(spec)).await;
        assert_eq!(code, 422);
        message
    };
    for (rule, expected) in [
        (json!({"rule": "self.x == 1"}), "ERROR: <input>:1:5: undefined field 'x'"),
        (
            json!({"rule": "self.n == 'a'"}),
            "found no matching overload for '_==_' applied to '(int, string)'",
        ),
        (json!({"rule": "self.n"}), "cel expression must evaluate to a bool"),
        (json!({"rule": "self.n >"}), "Syntax error: mismatched input '<EOF>' expecting"),
        (
            json!({"rule": "true", "messageExpression": "self.n"}),
            "messageExpression must evaluate to a string",
        ),
        (
            json!({"rule": "true", "fieldPath": ".nope"}),
            "fieldPath: Invalid value: \".nope\": must be a valid path",
        ),
        (json!({"rule": "true", "reason": "Nope"}), "reason: Unsupported value: \"Nope\""),
        (
            json!({"rule": "self.list.all(x, self.list.all(y, x == y))"}),
            "estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems",
        ),
    ] {
        let message = refused(rule.clone()).await;
        assert!(message.contains(expected), "{rule}: {message}");
    }
    cluster.stop().await;
}
