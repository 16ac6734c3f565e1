//! Custom resources of several versions, converted by a webhook over TLS: good ones and hostile ones.
//!
//! The rows are those of upstream's `crd_conversion_webhook.go` (but for the pod that the webhook runs in) and of
//! apiextensions-apiserver's `test/integration/conversion`.

mod hostile;

use crate::common::{
    TestCluster,
    api::Api,
    https::{Answer, Https},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Response;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kaji_engine::Body;
use kaji_resource::Verb;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

const CRDS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";
const NAME: &str = "multis.stable.example.com";

/// What a webhook answers to a review.
enum Reply {
    Text(u16, String),
    /// Part of a body, and no more.
    Broken(String),
    /// Nothing, ever.
    Never,
}

type Behaviour = Box<dyn Fn(&Value) -> Reply + Send>;

/// A cluster with a definition that has a conversion webhook.
struct Ground {
    cluster: TestCluster,
    /// How the webhook answers.
    behaviour: Arc<Mutex<Behaviour>>,
    /// Each call: version of the review, version wanted, names.
    calls: Arc<Mutex<Vec<String>>>,
    _dir: tempfile::TempDir,
}

/// `v1alpha1` and `v1beta1` have `num`, `v1beta2` has `numv2`; each knows a default of its own.
fn version(name: &str) -> Value {
    let own = if name == "v1beta2" { "numv2" } else { "num" };
    let defaults = json!({"type": "object", "properties": {
        "v1alpha1": {"type": "boolean"}, "v1beta1": {"type": "boolean"}, "v1beta2": {"type": "boolean"}}});
    let mut version = json!({"name": name, "served": true, "storage": name == "v1beta1",
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            own: {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
            "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
            "defaults": defaults}}}});
    version["schema"]["openAPIV3Schema"]["properties"]["defaults"]["properties"][name]["default"] =
        true.into();
    version
}

fn definition(conversion: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": NAME},
        "spec": {"group": "stable.example.com", "scope": "Namespaced", "names": {"plural": "multis", "kind": "Multi"},
            "conversion": conversion, "versions": [version("v1alpha1"), version("v1beta1"), version("v1beta2")]}})
}

fn multi(version: &str, name: &str) -> Value {
    let own = if version == "v1beta2" { "numv2" } else { "num" };
    json!({"apiVersion": format!("stable.example.com/{version}"), "kind": "Multi", "metadata": {"name": name},
        own: {"num1": 1}})
}

fn path(version: &str, name: &str) -> String {
    let slash = if name.is_empty() { "" } else { "/" };
    format!("stable.example.com/{version}/multis{slash}{name}?namespace=default")
}

/// One object as a well-behaved webhook converts it.
fn good(mut object: Value, wanted: &str) -> Value {
    object["apiVersion"] = wanted.into();
    let (old, new) = if wanted.ends_with("v1beta2") { ("num", "numv2") } else { ("numv2", "num") };
    if let Some(num) = object.as_object_mut().unwrap().remove(old) {
        object[new] = num;
    }
    object
}

fn wanted(review: &Value) -> &str {
    review["request"]["desiredAPIVersion"].as_str().unwrap()
}

/// The answer of success with these objects.
fn success(review: &Value, objects: Vec<Value>) -> Value {
    json!({"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": {
        "uid": review["request"]["uid"], "result": {"status": "Success"}, "convertedObjects": objects}})
}

/// A webhook that does this to each object.
fn each(f: impl Fn(Value, &str) -> Value + Send + 'static) -> Behaviour {
    Box::new(move |review| {
        let objects = review["request"]["objects"].as_array().unwrap().iter();
        let converted = objects.map(|o| f(o.clone(), wanted(review))).collect();
        Reply::Text(200, success(review, converted).to_string())
    })
}

/// A webhook that does this to the answer of a good one.
fn answer(f: impl Fn(&mut Value) + Send + 'static) -> Behaviour {
    Box::new(move |review| {
        let objects = review["request"]["objects"].as_array().unwrap().iter();
        let mut answer = success(review, objects.map(|o| good(o.clone(), wanted(review))).collect());
        f(&mut answer);
        Reply::Text(200, answer.to_string())
    })
}

async fn respond(reply: Reply) -> Response<Answer> {
    let (code, body) = match reply {
        Reply::Text(code, text) => {
            (code, Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync())
        }
        Reply::Broken(text) => {
            let piece = stream::iter([Ok(Frame::data(Bytes::from(text)))]);
            let end = stream::once(async {
                // What came before is sent first.
                tokio::task::yield_now().await;
                Err(std::io::Error::other("broken"))
            });
            (200, StreamBody::new(piece.chain(end)).boxed_unsync())
        }
        Reply::Never => std::future::pending().await,
    };
    Response::builder().status(code).body(body).unwrap()
}

impl Ground {
    async fn new(reviews: Value) -> Ground {
        let cluster = TestCluster::start(0).await;
        let dir = tempfile::tempdir().unwrap();
        let behaviour: Arc<Mutex<Behaviour>> = Arc::new(Mutex::new(each(good)));
        let calls: Arc<Mutex<Vec<String>>> = Arc::default();
        let server = Https::bind(dir.path()).await;
        let url = format!("{}/convert", server.url);
        let (now, log) = (behaviour.clone(), calls.clone());
        let pki = server.serve_with(move |_, sent| {
            let review: Value = serde_json::from_slice(&sent).unwrap();
            let objects = review["request"]["objects"].as_array().unwrap().iter();
            let names: Vec<&str> = objects.map(|o| o["metadata"]["name"].as_str().unwrap()).collect();
            let spoken = review["apiVersion"].as_str().unwrap();
            log.lock().unwrap().push(format!("{spoken} {} {}", wanted(&review), names.join(",")));
            respond(now.lock().unwrap()(&review))
        });
        let conversion = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": reviews,
            "clientConfig": {"url": url, "caBundle": BASE64_STANDARD.encode(pki.ca.certificate.as_bytes())}}});
        let ground = Ground { cluster, behaviour, calls, _dir: dir };
        let api = ground.api();
        api.ok(Verb::Create, CRDS, definition(conversion)).await;
        api.until(CRDS, NAME, |d| {
            let conditions =
                d.and_then(|d| d["status"]["conditions"].as_array().cloned()).unwrap_or_default();
            conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True")
        })
        .await;
        ground
    }

    fn api(&self) -> Api<'_> {
        Api(&self.cluster)
    }

    fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    async fn make(&self, version: &str, name: &str) -> Value {
        self.api().ok(Verb::Create, &path(version, ""), multi(version, name)).await
    }

    async fn get(&self, version: &str, name: &str) -> Value {
        self.api().ok(Verb::Get, &path(version, name), Value::Null).await
    }

    /// What the store has of an object.
    async fn stored(&self, name: &str) -> Value {
        let key = format!("/registry/stable.example.com/multis/default/{name}");
        let store = self.cluster.cluster.stack.engine.store();
        let found = store.range(kaji_store::Range::key(key)).await.unwrap();
        serde_json::from_slice(&found.kvs[0].value).unwrap()
    }

    /// Moves the storage version, and waits until writes go there.
    async fn store_in(&self, wanted: &str) {
        let versions = ["v1alpha1", "v1beta1", "v1beta2"];
        // In this order: no moment has two.
        let patch: Vec<Value> = versions
            .iter()
            .enumerate()
            .map(|(i, v)| json!({"op": "replace", "path": format!("/spec/versions/{i}/storage"), "value": *v == wanted}))
            .collect();
        self.api().ok(Verb::Patch, &format!("{CRDS}/{NAME}"), patch.into()).await;
        loop {
            let def = self.cluster.cluster.stack.engine.registry();
            let served =
                def.by_group_resource(&kaji_meta::GroupResource::new("stable.example.com", "multis"));
            if served.is_some_and(|r| r.def.storage_version().name == wanted) {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}

fn num(object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap();
    format!("{} {} {} {}", version.rsplit('/').next().unwrap(), object["num"], object["numv2"], object["foo"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_version_of_one_object() {
    for reviews in [json!(["v1", "v1beta1"]), json!(["v1beta1", "v1"])] {
        let ground = Ground::new(reviews.clone()).await;
        let api = ground.api();
        for made in ["v1alpha1", "v1beta1", "v1beta2"] {
            let name = format!("converted-{made}");
            let mut object = multi(made, &name);
            object["foo"] = "garbage".into();
            object["spec"] = json!({"replicas": 1});
            api.ok(Verb::Create, &path(made, ""), object).await;
            assert_eq!(num(&ground.stored(&name).await), "v1beta1 {\"num1\":1} null null");
            for read in ["v1alpha1", "v1beta1", "v1beta2"] {
                let own = num(&multi(read, ""));
                assert_eq!(num(&ground.get(read, &name).await), own);
            }
            for sub in ["", "/status"] {
                let merge = "application/merge-patch+json";
                let at = path(made, &format!("{name}{sub}"));
                let patch = json!({"metadata": {"annotations": {"main": "true"}}, "status": {"replicas": 3}});
                assert_eq!(api.raw(Verb::Patch, &at, merge, &patch).await.code, 200);
            }
            let stored = ground.stored(&name).await;
            assert_eq!(num(&stored), "v1beta1 {\"num1\":1} null null");
            assert_eq!(
                (&stored["status"]["replicas"], &stored["metadata"]["annotations"]["main"]),
                (&json!(3), &json!("true"))
            );
            let scale = api.ok(Verb::Get, &path(made, &format!("{name}/scale")), Value::Null).await;
            assert_eq!(scale["status"]["replicas"], 3);
        }
        // Mixed storage versions, listed in each.
        ground.store_in("v1beta2").await;
        ground.make("v1alpha1", "later").await;
        assert_eq!(num(&ground.stored("later").await), "v1beta2 null {\"num1\":1} null");
        ground.calls();
        for read in ["v1alpha1", "v1beta1", "v1beta2"] {
            let list = api.ok(Verb::List, &path(read, ""), Value::Null).await;
            let items = list["items"].as_array().unwrap();
            assert_eq!(items.len(), 4);
            assert!(items.iter().all(|i| num(i) == num(&multi(read, ""))), "{list}");
        }
        let review = format!("apiextensions.k8s.io/{}", reviews[0].as_str().unwrap());
        let old = "converted-v1alpha1,converted-v1beta1,converted-v1beta2";
        assert_eq!(
            ground.calls(),
            [
                format!("{review} stable.example.com/v1alpha1 {old},later"),
                format!("{review} stable.example.com/v1beta1 later"),
                format!("{review} stable.example.com/v1beta2 {old}"),
            ]
        );
        // A version that is not served any more is converted from all the same.
        let patch = json!([{"op": "replace", "path": "/spec/versions/1/served", "value": false}]);
        api.ok(Verb::Patch, &format!("{CRDS}/{NAME}"), patch).await;
        while api.raw(Verb::List, &path("v1beta1", ""), "", &Value::Null).await.code != 404 {
            tokio::task::yield_now().await;
        }
        assert_eq!(num(&ground.get("v1beta2", "converted-v1beta1").await), num(&multi("v1beta2", "")));
        let metrics = ground
            .cluster
            .cluster
            .stack
            .metrics
            .render(&ground.cluster.cluster.stack.engine, &ground.cluster.cluster.stack.flow);
        assert!(
            metrics
                .contains("apiserver_conversion_webhook_request_total{failure_type=\"\",result=\"success\"}")
        );
        assert!(metrics.contains("apiserver_crd_conversion_webhook_duration_seconds_count{crd_name=\"multis.stable.example.com\",from_version=\"v1beta1\",succeeded=\"true\",to_version=\"v1beta2\"}"));
        ground.cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fills_in_the_defaults_of_each_version() {
    let ground = Ground::new(json!(["v1"])).await;
    for made in ["v1alpha1", "v1beta1", "v1beta2"] {
        let name = format!("defaulting-{made}");
        let mut object = multi(made, &name);
        object["defaults"] = json!({});
        let created = ground.api().ok(Verb::Create, &path(made, ""), object).await;
        let mut expected = json!({"v1beta1": true});
        expected[made] = true.into();
        assert_eq!(created["defaults"], expected);
        // Only what the request's version adds is stored; the stored version's own is added by reading.
        assert_eq!(ground.stored(&name).await["defaults"], json!({made: true}));
        for read in ["v1alpha1", "v1beta1", "v1beta2"] {
            assert_eq!(ground.get(read, &name).await["defaults"], expected, "{made} read as {read}");
        }
    }
    ground.cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_is_not_the_webhooks() {
    let ground = Ground::new(json!(["v1", "v1beta1"])).await;
    ground.behave(each(|object, wanted| {
        let from = object["apiVersion"].as_str().unwrap().replace('/', ".");
        let mut object = good(object, wanted);
        for field in ["labels", "annotations"] {
            object["metadata"][field]["from"] = from.clone().into();
        }
        object["metadata"]["finalizers"] = json!(["foo"]);
        object["metadata"]["generation"] = 42.into();
        object["metadata"]["garbage"] = 1.into();
        object["metadata"]["managedFields"] = json!([]);
        object
    }));
    let check = |object: &Value, from: &Value| {
        let meta = &object["metadata"];
        assert_eq!((&meta["labels"]["from"], &meta["annotations"]["from"]), (from, from), "{object}");
        assert_eq!(
            (&meta["finalizers"], &meta["generation"], &meta["garbage"]),
            (&Value::Null, &json!(1), &Value::Null)
        );
        assert_eq!(meta["managedFields"].as_array().unwrap().len(), 1);
    };
    check(&ground.make("v1beta1", "a").await, &Value::Null);
    check(&ground.get("v1beta2", "a").await, &json!("stable.example.com.v1beta1"));
    check(&ground.make("v1beta2", "b").await, &json!("stable.example.com.v1beta1"));
    check(&ground.get("v1beta1", "b").await, &json!("stable.example.com.v1beta2"));
    for item in
        ground.api().ok(Verb::List, &path("v1beta2", ""), Value::Null).await["items"].as_array().unwrap()
    {
        check(item, &json!("stable.example.com.v1beta1"));
    }
    ground.cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_in_another_version() {
    let ground = Ground::new(json!(["v1"])).await;
    let api = ground.api();
    ground.make("v1beta1", "a").await;
    let at = format!("{}&watch=true", path("v1beta2", ""));
    let Body::Watch(mut events) = api.raw(Verb::Watch, &at, "", &Value::Null).await.body else {
        panic!("no watch")
    };
    let mut next = async || -> String {
        let piece = events.next().await.unwrap();
        let all = serde_json::Deserializer::from_slice(&piece).into_iter::<Value>().map(Result::unwrap);
        all.map(|e| match e["type"].as_str().unwrap() {
            "ERROR" => {
                format!("ERROR {} {} {}", e["object"]["code"], e["object"]["reason"], e["object"]["message"])
            }
            kind => format!("{kind} {}", num(&e["object"])),
        })
        .collect()
    };
    assert_eq!(next().await, "ADDED v1beta2 null {\"num1\":1} null");
    let patch = json!([{"op": "replace", "path": "/num/num1", "value": 2}]);
    api.ok(Verb::Patch, &path("v1beta1", "a"), patch).await;
    assert_eq!(next().await, "MODIFIED v1beta2 null {\"num1\":2} null");
    ground.behave(answer(|a| a["response"]["result"] = json!({"message": "no"})));
    ground.make("v1beta1", "b").await;
    assert_eq!(
        next().await,
        "ERROR 500 \"InternalError\" \"conversion webhook for stable.example.com/v1beta1, Kind=Multi failed: no\""
    );
    ground.cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_needs_no_webhook_calls_none() {
    let ground = Ground::new(json!(["v1"])).await;
    let made = ground.make("v1beta1", "a").await;
    let api = ground.api();
    api.ok(Verb::Update, &path("v1beta1", "a"), made).await;
    api.ok(
        Verb::Patch,
        &path("v1beta1", "a/status"),
        json!([{"op": "add", "path": "/status", "value": {"replicas": 1}}]),
    )
    .await;
    api.ok(Verb::List, &path("v1beta1", ""), Value::Null).await;
    api.ok(Verb::Delete, &path("v1beta1", "a"), Value::Null).await;
    assert_eq!(ground.calls(), Vec::<String>::new());
    // A change of the webhook counts: back to none, fields that the other version does not know go.
    ground.make("v1beta1", "b").await;
    let none = json!([{"op": "replace", "path": "/spec/conversion", "value": {"strategy": "None"}}]);
    api.ok(Verb::Patch, &format!("{CRDS}/{NAME}"), none).await;
    while num(&ground.get("v1beta2", "b").await) != "v1beta2 null null null" {
        tokio::task::yield_now().await;
    }
    ground.cluster.stop().await;
}

/// A policy about one version judges objects that are written in another.
#[tokio::test(flavor = "multi_thread")]
async fn policies_see_the_version_that_they_name() {
    let ground = Ground::new(json!(["v1"])).await;
    let api = ground.api();
    let admission = "admissionregistration.k8s.io/v1";
    let rule = json!({"apiGroups": ["stable.example.com"], "apiVersions": ["v1beta2"], "operations": ["CREATE"], "resources": ["multis"]});
    let policy = json!({"apiVersion": admission, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "few"}, "spec": {
        "matchConstraints": {"resourceRules": [rule]},
        "failurePolicy": "Ignore",
        "validations": [{"expression": "object.apiVersion.endsWith('v1beta2') && object.numv2.num1 < 5"}]}});
    let binding = json!({"apiVersion": admission, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "few"},
        "spec": {"policyName": "few", "validationActions": ["Deny"]}});
    api.ok(Verb::Create, &format!("{admission}/validatingadmissionpolicies"), policy).await;
    api.ok(Verb::Create, &format!("{admission}/validatingadmissionpolicybindings"), binding).await;
    for version in ["v1alpha1", "v1beta1", "v1beta2"] {
        let own = if version == "v1beta2" { "numv2" } else { "num" };
        let mut object = multi(version, version);
        api.ok(Verb::Create, &path(version, ""), object.clone()).await;
        object[own]["num1"] = 9.into();
        object["metadata"]["name"] = format!("{version}-more").into();
        let refused = api.raw(Verb::Create, &path(version, ""), "application/json", &object).await;
        assert_eq!(refused.code, 422, "{version}");
    }
    ground.cluster.stop().await;
}
