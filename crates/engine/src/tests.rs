//! The read side over a store in memory: objects are put into the store directly, as a committed write would.

mod forms;
mod lists;
mod members;
mod modules;
mod outage;
mod property;
mod protobuf;
mod read_your_writes;
mod registration;
mod sizes;
mod unreadable;
mod watches;

use crate::{Accept, ApiRequest, Body, Encoding, Engine, EngineOptions, Form, cache::Progress, storage};
use futures_util::{StreamExt, stream::BoxStream};
use kaji_meta::GroupResource;
use kaji_resource::{
    Column, NoHooks, ResourceDef, Scope, SelectableField, UserInfo, Verb, age_column, name_column,
};
use kaji_store::{Op, Revision, Store, Txn, TxnOutcome, memory::MemoryStore};
use serde_json::{Value, json};
use std::{fmt::Write, sync::Arc, time::Duration};

/// A GET of all config maps.
pub(crate) fn request() -> ApiRequest {
    let user = UserInfo::default();
    ApiRequest { user, ..ApiRequest::own(Verb::List, GroupResource::new("", "configmaps"), "v1", "") }
}

const COLUMNS: &[Column] = &[name_column(), age_column()];

/// Config maps that can be selected by `data.color` (indexed) and `data.size`.
fn config_maps() -> ResourceDef {
    ResourceDef::builtin("", "v1", "ConfigMap", "configmaps", Scope::Namespaced, COLUMNS, NoHooks).select(&[
        SelectableField::new("data.color").indexed(),
        SelectableField::new("data.size").missing("none"),
    ])
}

fn nodes() -> ResourceDef {
    ResourceDef::builtin("", "v1", "Node", "nodes", Scope::Cluster, COLUMNS, NoHooks)
}

/// A store and an engine over it.
struct World {
    store: Arc<MemoryStore>,
    engine: Arc<Engine>,
}

fn options() -> EngineOptions {
    EngineOptions {
        clock: Arc::new(kaji_meta::ManualClock::new("2024-01-01T01:00:00Z".parse().unwrap())),
        read_wait: Duration::from_millis(20),
        bookmark_interval: Duration::from_millis(1),
        ..EngineOptions::default()
    }
}

impl World {
    async fn new() -> World {
        World::with(options()).await
    }

    async fn with(options: EngineOptions) -> World {
        let store = Arc::new(MemoryStore::new().unwrap());
        let engine = Engine::open(store.clone(), options).await.unwrap();
        engine.register(vec![config_maps(), nodes()]).await.unwrap();
        World { store, engine }
    }

    async fn commit(&self, op: Op) -> Revision {
        match self.store.txn(Txn { compare: vec![], ops: vec![op] }).await.unwrap() {
            TxnOutcome::Committed { revision, .. } => revision,
            TxnOutcome::Conflict { .. } => unreachable!(),
        }
    }

    /// Puts a config map with labels (`a=1,b=2`) and data.
    async fn put(&self, ns: &str, name: &str, labels: &str, data: &[(&str, &str)]) -> Revision {
        let labels: serde_json::Map<String, Value> =
            labels.split(',').filter_map(|l| l.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
        let data: serde_json::Map<String, Value> =
            data.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data, "metadata":
            {"name": name, "namespace": ns, "labels": labels, "creationTimestamp": "2024-01-01T00:00:00Z"}});
        self.put_value(&format!("/registry/core/configmaps/{ns}/{name}"), &value).await
    }

    async fn put_value(&self, key: &str, value: &Value) -> Revision {
        self.commit(Op::Put { key: key.into(), value: storage::encode(value), lease: None }).await
    }

    async fn delete(&self, ns: &str, name: &str) -> Revision {
        self.commit(Op::Delete { key: format!("/registry/core/configmaps/{ns}/{name}") }).await
    }

    /// Something else happens in the store.
    async fn tick(&self) -> Revision {
        self.commit(Op::Put { key: "/outside".into(), value: bytes::Bytes::new(), lease: None }).await
    }

    async fn send(&self, req: ApiRequest) -> (u16, Value) {
        let (code, text) = self.send_text(req).await;
        (code, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e} in {text}")))
    }

    async fn send_text(&self, req: ApiRequest) -> (u16, String) {
        let response = self.engine.handle(req).await;
        let body = response.body.into_bytes().expect("not a watch");
        (response.code, String::from_utf8(body.to_vec()).unwrap())
    }

    /// A list of config maps.
    async fn list(&self, ns: &str, query: &str) -> (u16, Value) {
        self.send(ApiRequest { namespace: ns.into(), query: pairs(query), ..request() }).await
    }

    /// A list in short: revision, names, what remains; or the error.
    async fn listed(&self, ns: &str, query: &str) -> String {
        let (code, v) = self.list(ns, query).await;
        short_list(code, &v)
    }

    async fn watch(&self, ns: &str, query: &str) -> Watch {
        self.watch_as(ns, query, Accept::default()).await
    }

    async fn watch_as(&self, ns: &str, query: &str, accept: Accept) -> Watch {
        let req =
            ApiRequest { verb: Verb::Watch, namespace: ns.into(), query: pairs(query), accept, ..request() };
        let response = self.engine.handle(req).await;
        assert_eq!(response.code, 200);
        match response.body {
            Body::Watch(stream) => Watch { stream, text: String::new() },
            _ => panic!("not a watch"),
        }
    }
}

/// A query without escapes.
pub(crate) fn pairs(query: &str) -> kaji_meta::Query {
    query.split('&').filter_map(|pair| pair.split_once('=')).collect()
}

fn names(v: &Value) -> Vec<String> {
    let name = |i: &Value| match kaji_meta::object::namespace(i) {
        "" => kaji_meta::object::name(i).to_owned(),
        ns => format!("{ns}/{}", kaji_meta::object::name(i)),
    };
    v["items"].as_array().into_iter().flatten().map(name).collect()
}

fn short_list(code: u16, v: &Value) -> String {
    if code != 200 {
        let more = if v["metadata"]["continue"].is_string() { " +token" } else { "" };
        return format!(
            "{code} {} {}{more}",
            v["reason"].as_str().unwrap_or(""),
            v["message"].as_str().unwrap_or("")
        );
    }
    let meta = &v["metadata"];
    let mut out = format!("@{} [{}]", meta["resourceVersion"].as_str().unwrap_or("?"), names(v).join(" "));
    if meta["continue"].as_str().is_some_and(|token| !token.is_empty()) {
        out.push_str(" more");
    }
    if let Some(n) = meta["remainingItemCount"].as_u64() {
        let _ = write!(out, " {n}");
    }
    out
}

/// A running watch.
struct Watch {
    stream: BoxStream<'static, bytes::Bytes>,
    text: String,
}

impl Watch {
    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.text.find('\n') {
                let line: String = self.text.drain(..=end).collect();
                return Some(serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e} in {line}")));
            }
            let next = tokio::time::timeout(Duration::from_secs(20), self.stream.next()).await;
            let chunk = next.expect("an event comes, or the end")?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The next event in short, bookmarks left out unless they are the end of the initial ones.
    async fn short(&mut self) -> String {
        loop {
            let Some(event) = self.next().await else { return "end".into() };
            let object = &event["object"];
            let ty = event["type"].as_str().unwrap_or("?");
            let rv = kaji_meta::object::resource_version(object);
            let data = object["data"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(k, v)| format!(" {k}={}", v.as_str().unwrap()));
            match ty {
                "BOOKMARK" if object["metadata"]["annotations"].is_null() => {}
                "BOOKMARK" => return format!("BOOKMARK end @{rv}"),
                "ERROR" => {
                    return format!("ERROR {} {}", object["code"], object["message"].as_str().unwrap_or(""));
                }
                _ => {
                    return format!(
                        "{ty} {}@{rv}{}",
                        kaji_meta::object::name(object),
                        data.collect::<String>()
                    );
                }
            }
        }
    }

    async fn shorts(&mut self, n: usize) -> Vec<String> {
        let mut out = vec![];
        for _ in 0..n {
            out.push(self.short().await);
        }
        out
    }
}

#[tokio::test]
async fn progress_wakes_waiting_requests() {
    let progress = Arc::new(Progress::new(1));
    let waiting = tokio::spawn({
        let progress = progress.clone();
        async move { progress.wait(3).await }
    });
    tokio::task::yield_now().await;
    progress.advance(2);
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    progress.advance(3);
    waiting.await.unwrap();
    progress.advance(2);
    assert_eq!(progress.applied(), 3);
}
