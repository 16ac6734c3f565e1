//! What is removed at one server while the other, or a request that takes long, creates in it: nothing stays behind.

use super::{
    Servers,
    definitions::{CRDS, WIDGETS, answers, creates, definition, widget},
};
use crate::{
    common::{
        TestCluster,
        access::{admin, ask, ok},
        https::Https,
        until,
    },
    etcd::{client, raw, store},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kaji::{Environment, StorageMediaType, StoreKind};
use kaji_controllers::Selection;
use kaji_store::{Op, Range, Store, Txn, memory::MemoryStore};
use kaji_testing::etcd::Etcd;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Semaphore;

const NAMESPACES: &str = "/api/v1/namespaces";
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

fn namespace(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn map(name: &str, _: i64) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_takes_what_the_other_server_creates_meanwhile_with_it() {
    let test = "a_namespace_takes_what_the_other_server_creates_meanwhile_with_it";
    let loops = |options: &mut kaji::Options, _: &std::path::Path| {
        options.controllers = true;
        options.selection = Selection::new(["namespace-controller"]).unwrap();
    };
    let Some(servers) = Servers::with(test, loops).await else { return };
    let (a, b) = (&servers.a, &servers.b);
    for round in 0..5 {
        ok(a, &admin(), &format!("POST {NAMESPACES}"), namespace("n")).await;
        // A former namespace of the name is no reason to refuse anything.
        let path = format!("{NAMESPACES}/n/configmaps");
        ok(b, &admin(), &format!("POST {path}"), map("first", 0)).await;
        let creations = (0..4).map(|client| creates(b, &path, client, map));
        let deletion = async {
            let some = async || servers.keys("/registry/configmaps/n/").await.len() > 8;
            until("there are some objects", some).await;
            ok(a, &admin(), &format!("DELETE {NAMESPACES}/n"), Value::Null).await;
            answers(a, &format!("GET {NAMESPACES}/n"), &Value::Null, 404).await;
        };
        tokio::join!(futures_util::future::join_all(creations), deletion);
        assert_eq!(servers.keys("/registry/configmaps/n/").await, [""; 0], "round {round}");
    }
    servers.stop().await;
}

/// A webhook that answers once it is opened.
struct Gate {
    arrived: Arc<Semaphore>,
    opened: Arc<Semaphore>,
    _dir: tempfile::TempDir,
}

impl Gate {
    /// Has a server ask it about creations of a resource.
    async fn before(server: &TestCluster, group: &str, resource: &str) -> Gate {
        let dir = tempfile::tempdir().unwrap();
        let hooks = Https::bind(dir.path()).await;
        let (url, arrived, opened) =
            (hooks.url.clone(), Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (arrives, opens) = (arrived.clone(), opened.clone());
        let pki = hooks.serve_late(move |_, sent| {
            let sent: Value = serde_json::from_slice(&sent).unwrap();
            let (arrives, opens) = (arrives.clone(), opens.clone());
            async move {
                arrives.add_permits(1);
                opens.acquire().await.unwrap().forget();
                let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                    "response": {"uid": sent["request"]["uid"], "allowed": true}});
                (200, review.to_string())
            }
        });
        let rules = json!([{"operations": ["CREATE"], "apiGroups": [group], "apiVersions": ["*"], "resources": [resource]}]);
        let hook = json!({"name": "gate.example.com", "rules": rules, "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "timeoutSeconds": 30,
            "clientConfig": {"url": url, "caBundle": STANDARD.encode(&pki.ca.certificate)}});
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        let configuration = json!({"metadata": {"name": resource}, "webhooks": [hook]});
        ok(server, &admin(), &format!("POST {path}"), configuration).await;
        Gate { arrived, opened, _dir: dir }
    }

    /// Does something while a creation waits; the creation's code and message.
    async fn meanwhile(
        &self,
        server: &TestCluster,
        path: &str,
        object: &Value,
        work: impl Future<Output = ()>,
    ) -> (u16, String) {
        let work = async {
            self.arrived.acquire().await.unwrap().forget();
            work.await;
            // The creation may be judged again.
            self.opened.add_permits(2);
        };
        let (user, request) = (admin(), format!("POST {path}"));
        let ((code, answer), ()) = tokio::join!(ask(server, &user, &request, object), work);
        // It stands before the next one, however often this one was judged.
        self.opened.forget_permits(2);
        self.arrived.forget_permits(2);
        (code, answer["message"].as_str().unwrap_or_default().to_owned())
    }
}

/// A server over a store that the test sees.
async fn over_memory() -> (TestCluster, Arc<dyn Store>) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
    let environment =
        |options: &kaji::Options| Environment { store: Some(store.clone()), ..Environment::machine(options) };
    let dir = tempfile::tempdir().unwrap();
    let server = TestCluster::start_from(dir, 0, StoreKind::Memory, |_| {}, environment).await;
    (server, store)
}

/// The keys below a prefix.
async fn keys(store: &Arc<dyn Store>, prefix: &str) -> Vec<String> {
    let found = store.range(Range::prefix(prefix)).await.unwrap().kvs;
    found.into_iter().map(|kv| kv.key.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waited_for_a_webhook_does_not_outlive_its_namespace() {
    let (server, store) = over_memory().await;
    ok(&server, &admin(), &format!("POST {NAMESPACES}"), namespace("n")).await;
    let gate = Gate::before(&server, "", "configmaps").await;
    let path = format!("{NAMESPACES}/n/configmaps");
    let removal = async {
        let mut going = ok(&server, &admin(), &format!("DELETE {NAMESPACES}/n"), Value::Null).await;
        going["spec"]["finalizers"] = json!([]);
        ok(&server, &admin(), &format!("PUT {NAMESPACES}/n/finalize"), going).await;
        answers(&server, &format!("GET {NAMESPACES}/n"), &Value::Null, 404).await;
    };
    let answer = gate.meanwhile(&server, &path, &map("late", 0), removal).await;
    assert_eq!(answer, (404, "namespaces \"n\" not found".into()));
    assert_eq!(keys(&store, "/registry/core/configmaps/n/").await, [""; 0]);

    // A change that leaves the namespace what it is delays the creation, and no more.
    ok(&server, &admin(), &format!("POST {NAMESPACES}"), namespace("m")).await;
    let labelled = async {
        let labels = json!({"metadata": {"labels": {"a": "b"}}});
        ok(&server, &admin(), &format!("PATCH {NAMESPACES}/m"), labels).await;
    };
    let path = format!("{NAMESPACES}/m/configmaps");
    assert_eq!(gate.meanwhile(&server, &path, &map("late", 0), labelled).await.0, 201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waited_for_a_webhook_does_not_outlive_its_definition() {
    let (server, store) = over_memory().await;
    let definition = definition(&json!({"size": {"type": "integer"}}));
    ok(&server, &admin(), &format!("POST {CRDS}"), definition).await;
    answers(&server, &format!("GET {WIDGETS}"), &Value::Null, 200).await;
    let gate = Gate::before(&server, "example.com", "widgets").await;
    let removal = async {
        ok(&server, &admin(), &format!("DELETE {CRDS}/widgets.example.com"), Value::Null).await;
        answers(&server, &format!("GET {CRDS}/widgets.example.com"), &Value::Null, 404).await;
    };
    let (code, _) = gate.meanwhile(&server, WIDGETS, &widget("late", 1), removal).await;
    assert_eq!(code, 404);
    assert_eq!(keys(&store, "/registry/example.com/").await, [""; 0]);
    server.stop().await;
}

/// Another server has established a definition, taken objects and deleted it, before this one has the event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_that_is_first_seen_at_its_end_is_emptied() {
    let (server, store) = over_memory().await;
    ok(&server, &admin(), &format!("POST {CRDS}"), definition(&json!({"size": {"type": "integer"}}))).await;
    answers(&server, &format!("POST {WIDGETS}"), &widget("w", 1), 201).await;
    until("the definition is established", async || {
        let found = ok(&server, &admin(), &format!("GET {CRDS}/widgets.example.com"), Value::Null).await;
        found["status"]["conditions"].to_string().contains("initial names have been accepted")
    })
    .await;
    let (of_definition, of_widget) = (
        "/registry/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com",
        "/registry/example.com/widgets/default/w",
    );
    let read = async |key: &str| store.range(Range::key(key)).await.unwrap().kvs.remove(0).value;
    let (known, object) = (read(of_definition).await, read(of_widget).await);
    ok(&server, &admin(), &format!("DELETE {CRDS}/widgets.example.com"), Value::Null).await;
    answers(&server, &format!("GET {CRDS}/widgets.example.com"), &Value::Null, 404).await;

    let mut going: Value = serde_json::from_slice(&known).unwrap();
    going["metadata"]["uid"] = "another".into();
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    going["metadata"]["finalizers"] = json!([CLEANUP]);
    let put = |key: &str, value| Op::Put { key: key.to_owned(), value, lease: None };
    let ops = vec![put(of_definition, going.to_string().into()), put(of_widget, object)];
    store.txn(Txn { compare: vec![], ops }).await.unwrap();
    until("the definition is gone", async || keys(&store, of_definition).await.is_empty()).await;
    assert_eq!(keys(&store, "/registry/example.com/").await, [""; 0]);
    server.stop().await;
}

/// Without its objects in the cache it would go, and they would stay in the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_stays_while_its_objects_cannot_be_read() {
    let Some(etcd) = Etcd::start("a_definition_stays_while_its_objects_cannot_be_read") else { return };
    let start = async || {
        let kind = store(&etcd, StorageMediaType::Json);
        TestCluster::start_in(tempfile::tempdir().unwrap(), 0, kind).await
    };
    let first = start().await;
    ok(&first, &admin(), &format!("POST {CRDS}"), definition(&json!({"size": {"type": "integer"}}))).await;
    answers(&first, &format!("POST {WIDGETS}"), &widget("w", 1), 201).await;
    first.stop().await;
    let damaged = "/registry/example.com/widgets/default/damaged";
    let etcd_client = client(&etcd).await;
    etcd_client.txn(Txn::put(damaged, &b"{"[..])).await.unwrap();

    let second = start().await;
    let definition = format!("{CRDS}/widgets.example.com");
    answers(&second, &format!("GET {WIDGETS}/w"), &Value::Null, 500).await;
    ok(&second, &admin(), &format!("DELETE {definition}"), Value::Null).await;
    until("the deletion fails", async || {
        let (_, found) = ask(&second, &admin(), &format!("GET {definition}"), &Value::Null).await;
        let conditions = found["status"]["conditions"].as_array().expect("the definition is there");
        conditions.iter().any(|c| c["reason"] == "InstanceDeletionFailed" && c["status"] == "True")
    })
    .await;
    let left = etcd_client.range(Range::key(damaged)).await.unwrap().kvs.remove(0);
    etcd_client.txn(Txn::delete(damaged, left.mod_revision)).await.unwrap();
    answers(&second, &format!("GET {definition}"), &Value::Null, 404).await;
    assert!(raw(&etcd, "/registry/example.com/").await.is_empty());
    second.stop().await;
}
