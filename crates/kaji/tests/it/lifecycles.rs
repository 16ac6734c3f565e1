//! Every verb on every kind that conformance tests cover, from its creation to its deletion by collection.
//!
//! What is expected of all kinds is in `live`; what differs is data, in `kinds.rs`.

mod kinds;

use crate::common::{TestCluster, api::Api};
use futures_util::{FutureExt, StreamExt};
use kaji_engine::Body;
use kaji_meta::object;
use kaji_resource::Verb;
use kinds::Kind;
use serde_json::{Value, json};
use std::panic::AssertUnwindSafe;

const NAMESPACE: &str = "default";
const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const PATCHES: [&str; 4] = [STRATEGIC, APPLY, MERGE, JSON];

/// The kind under test, asked through the engine.
struct Subject<'a> {
    api: &'a Api<'a>,
    kind: &'a Kind,
}

impl Subject<'_> {
    /// The path of the collection or, with `rest`, of what is in it.
    fn path(&self, rest: &str, query: &str) -> String {
        let namespace = if self.kind.namespaced { format!("namespace={NAMESPACE}") } else { String::new() };
        format!("{}{rest}?{namespace}&{query}", self.kind.path)
    }

    fn label(&self) -> &'static str {
        self.kind.kind
    }

    /// The object under test, labelled, under a name.
    fn object(&self, name: &str) -> Value {
        let group_version = self.kind.path.rsplit_once('/').unwrap().0.trim_start_matches('/');
        let mut object = self.kind.body.clone();
        object["apiVersion"] = group_version.into();
        object["kind"] = self.kind.kind.into();
        object["metadata"]["name"] = name.into();
        object["metadata"]["labels"]["lifecycle"] = self.label().into();
        if self.kind.namespaced && self.kind.kind == "Event" {
            let at = if group_version == "v1" { "involvedObject" } else { "regarding" };
            object[at]["namespace"] = NAMESPACE.into();
        }
        object
    }

    /// Merges into the object (or its subresource) what is given, and answers with the object.
    async fn patch(&self, rest: &str, patch: &Value) -> Value {
        self.patch_as(MERGE, rest, patch).await
    }

    async fn patch_as(&self, kind: &str, rest: &str, patch: &Value) -> Value {
        let query = if kind == APPLY {
            "fieldValidation=Strict&fieldManager=life&force=true"
        } else {
            "fieldValidation=Strict"
        };
        let response = self.api.raw(Verb::Patch, &self.path(rest, query), kind, patch).await;
        let (code, bytes) = (response.code, response.body.into_bytes().unwrap());
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(code, 200, "{kind} {}{rest}: {answer}", self.kind.path);
        answer
    }

    async fn list(&self, path: &str) -> Vec<Value> {
        let list = self.api.ok(Verb::List, path, Value::Null).await;
        assert_eq!(list["kind"], format!("{}List", self.kind.kind));
        assert!(list["metadata"]["resourceVersion"].is_string(), "{list}");
        list["items"].as_array().unwrap().clone()
    }

    /// Creates, reads, changes and deletes.
    async fn live(&self) {
        let selector = format!("labelSelector=lifecycle={}", self.label());
        let empty = self.api.ok(Verb::List, &self.path("", &selector), Value::Null).await;
        let from = empty["metadata"]["resourceVersion"].as_str().unwrap();
        let watch = self.path("", &format!("{selector}&watch=true&resourceVersion={from}"));
        let Body::Watch(events) = self.api.raw(Verb::Watch, &watch, "", &Value::Null).await.body else {
            panic!("no watch on {}", self.kind.path)
        };
        let [first, second] = self.kind.names.map(|name| format!("/{name}"));

        // A dry run leaves nothing.
        let name = first.trim_start_matches('/');
        self.api.ok(Verb::Create, &self.path("", "dryRun=All"), self.object(name)).await;
        let created = self.api.ok(Verb::Create, &self.path("", ""), self.object(name)).await;
        let meta = &created["metadata"];
        assert!(meta["uid"].is_string() && meta["creationTimestamp"].is_string(), "{created}");
        assert_eq!(created["kind"], self.kind.kind);
        let (code, _) = self.api.refused(Verb::Create, &self.path("", ""), self.object(name)).await;
        assert_eq!(code, 409, "{} is there already", self.kind.path);
        let got = self.api.ok(Verb::Get, &self.path(&first, ""), Value::Null).await;
        assert_eq!(got["metadata"]["uid"], meta["uid"]);
        self.api.ok(Verb::Create, &self.path("", ""), self.object(second.trim_start_matches('/'))).await;

        let everywhere = format!("{}?{selector}", self.kind.path);
        assert_eq!(self.list(&everywhere).await.len(), 2, "{}", self.kind.path);
        assert_eq!(self.list(&self.path("", &selector)).await.len(), 2, "{}", self.kind.path);

        self.change(&first).await;
        for kind in PATCHES {
            self.api.ok(Verb::Delete, &self.path(&first, ""), Value::Null).await;
            self.api.ok(Verb::Create, &self.path("", ""), self.object(name)).await;
            self.patches(kind, &first).await;
        }
        self.remove(&first, &selector).await;
        self.observe(events).await;
    }

    /// PATCH and PUT of the object and of its status.
    async fn change(&self, first: &str) {
        let patched = self.patch(first, &json!({"metadata": {"annotations": {"patched": "true"}}})).await;
        assert_eq!(patched["metadata"]["annotations"]["patched"], "true");
        let mut next = patched.clone();
        next["metadata"]["annotations"]["updated"] = "true".into();
        let updated = self.api.ok(Verb::Update, &self.path(first, ""), next.clone()).await;
        assert_eq!(updated["metadata"]["annotations"]["updated"], "true");
        // The version that was replaced is too old now.
        next["metadata"]["annotations"]["updated"] = "again".into();
        let (code, message) = self.api.refused(Verb::Update, &self.path(first, ""), next).await;
        assert!(code == 409 && message.contains("the object has been modified"), "{code} {message}");

        let status = format!("{first}/status");
        let Some(change) = &self.kind.status else {
            let (code, _) = self.api.refused(Verb::Get, &self.path(&status, ""), Value::Null).await;
            assert_eq!(code, 404, "{} has no status", self.kind.path);
            return;
        };
        let meta = json!({"annotations": {"patchedstatus": "true"}});
        self.patch(&status, &json!({"metadata": meta, "status": change})).await;
        let got = self.api.ok(Verb::Get, &self.path(&status, ""), Value::Null).await;
        for (key, value) in change.as_object().unwrap() {
            assert_eq!(&got["status"][key], value, "{}", self.kind.path);
        }
        self.api.ok(Verb::Update, &self.path(&status, ""), got).await;
    }

    /// One way of patching, of a fresh object and of its status.
    async fn patches(&self, kind: &str, first: &str) {
        let named = self.object(first.trim_start_matches('/'));
        let of = |member: &str, value: &Value| match kind {
            JSON => json!([{"op": "add", "path": format!("/{}", member.replace('.', "/")), "value": value}]),
            APPLY => {
                let mut patch = json!({"apiVersion": named["apiVersion"], "kind": named["kind"], "metadata": {"name": named["metadata"]["name"]}});
                object::set_at(&mut patch, &member.split('.').collect::<Vec<_>>(), value.clone());
                patch
            }
            _ => {
                let mut patch = json!({});
                object::set_at(&mut patch, &member.split('.').collect::<Vec<_>>(), value.clone());
                patch
            }
        };
        let patched = self.patch_as(kind, first, &of("metadata.labels.patched", &"yes".into())).await;
        assert_eq!(patched["metadata"]["labels"]["patched"], "yes", "{kind} {}", self.kind.path);
        let Some(change) = &self.kind.status else { return };
        for (key, value) in change.as_object().unwrap() {
            assert_ne!(&patched["status"][key], value, "{}: nothing would change", self.kind.path);
        }
        let patched = self.patch_as(kind, &format!("{first}/status"), &of("status", change)).await;
        for (key, value) in change.as_object().unwrap() {
            assert_eq!(&patched["status"][key], value, "{kind} {}", self.kind.path);
        }
    }

    /// DELETE of one and of all that are left.
    async fn remove(&self, first: &str, selector: &str) {
        self.api.ok(Verb::Delete, &self.path(first, ""), Value::Null).await;
        let (code, _) = self.api.refused(Verb::Get, &self.path(first, ""), Value::Null).await;
        assert_eq!(code, 404, "{} is gone", self.kind.path);
        self.api.ok(Verb::DeleteCollection, &self.path("", selector), Value::Null).await;
        assert_eq!(self.list(&self.path("", selector)).await, Vec::<Value>::new());
    }

    /// The watch has shown all of it.
    async fn observe(&self, mut pieces: impl StreamExt<Item = impl AsRef<[u8]>> + Unpin) {
        let mut seen: Vec<String> = vec![];
        while seen.iter().filter(|s| *s == "DELETED").count() < 2 + PATCHES.len() {
            let piece = pieces.next().await.unwrap();
            for event in serde_json::Deserializer::from_slice(piece.as_ref()).into_iter::<Value>() {
                let event = event.unwrap();
                assert_eq!(event["object"]["kind"], self.kind.kind);
                seen.push(event["type"].as_str().unwrap().into());
            }
        }
        assert_eq!(seen[..2], ["ADDED", "ADDED"], "{}", self.kind.path);
        let changes = seen.iter().filter(|s| *s == "MODIFIED").count();
        let least = if self.kind.status.is_some() { 3 + 2 * PATCHES.len() } else { 2 + PATCHES.len() };
        assert!(changes >= least, "{}: {seen:?}", self.kind.path);
    }
}

#[tokio::test]
async fn every_kind_lives_and_dies() {
    // Flow control would write the status of flow schemas while they are tested.
    let cluster = TestCluster::start_with(|o| o.limits.fair = false).await;
    let api = Api(&cluster);
    let mut failed = vec![];
    for kind in &kinds::all() {
        let subject = Subject { api: &api, kind };
        if AssertUnwindSafe(subject.live()).catch_unwind().await.is_err() {
            failed.push(kind.path);
        }
    }
    assert_eq!(failed, Vec::<&str>::new(), "their messages are above");
    cluster.stop().await;
}
