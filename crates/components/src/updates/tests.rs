//! A server that lets nothing be patched, and what its clients do.

use super::*;
use kaji_meta::Reason;
use kaji_runtime::{Client, Target};
use serde_json::json;
use std::sync::{Arc, Mutex};

/// A server that lets nothing be patched: the object that it has, what updates it, and the requests.
#[derive(Clone)]
struct Server {
    object: Arc<Mutex<Value>>,
    seen: Arc<Mutex<Vec<String>>>,
    /// Updates that meet another write first.
    conflicts: Arc<Mutex<u32>>,
    /// Whether the object may be listed only.
    listed: bool,
}

impl Server {
    fn new(object: Value) -> Server {
        Server {
            object: Arc::new(Mutex::new(object)),
            seen: Arc::default(),
            conflicts: Arc::default(),
            listed: false,
        }
    }

    fn answer(&self, method: &Method, path: &str, sent: &[u8]) -> (u16, Value) {
        self.seen.lock().unwrap().push(format!("{method} {path}"));
        let status = |code: u16, reason| (code, Status::new(code, reason, "refused").to_value());
        let mut object = self.object.lock().unwrap();
        match method.as_str() {
            "GET" if path.ends_with("/pods") => {
                let mut item = object.clone();
                item.as_object_mut().unwrap().retain(|key, _| key != "kind" && key != "apiVersion");
                (200, json!({"kind": "PodList", "apiVersion": "v1", "items": [item]}))
            }
            "GET" if self.listed => status(403, Reason::Forbidden),
            "GET" if object.is_null() => status(404, Reason::NotFound),
            "GET" => (200, object.clone()),
            "PUT" => {
                let new: Value = serde_json::from_slice(sent).unwrap();
                let mut conflicts = self.conflicts.lock().unwrap();
                if *conflicts > 0 {
                    object["metadata"]["resourceVersion"] = format!("other-{conflicts}").into();
                    *conflicts -= 1;
                }
                if new["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                    return status(409, Reason::Conflict);
                }
                *object = new.clone();
                (200, new)
            }
            _ => status(403, Reason::Forbidden),
        }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let sent = body.collect_bytes().await.unwrap();
                let (code, body) = server.answer(&parts.method, parts.uri.path(), &sent);
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        let transport = Transport::new(kube::Client::new(service, "default"), None);
        Client::new(transport.into_client(), "a-controller")
    }

    fn seen(&self) -> String {
        std::mem::take(&mut *self.seen.lock().unwrap()).join(", ")
    }
}

fn target(subresource: &str) -> Target {
    let target = Target {
        version: "v1".into(),
        resource: "pods".into(),
        namespace: "default".into(),
        name: "p".into(),
        ..Target::default()
    };
    target.subresource(subresource)
}

fn pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": "u", "resourceVersion": "7",
        "finalizers": ["a", "b"]}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

#[tokio::test]
async fn a_refused_patch_becomes_an_update_and_the_next_one_is_sent_as_one() {
    let server = Server::new(pod());
    let client = server.client();
    let patch = json!({"status": {"conditions": [{"type": "Mine", "status": "True"}]}});
    let written = client.patch(&target("status"), STRATEGIC, "", &patch).await.unwrap();
    // The schema's merge key keeps the conditions of others.
    assert_eq!(written["status"]["conditions"].as_array().unwrap().len(), 2);
    let path = "/api/v1/namespaces/default/pods/p";
    assert_eq!(server.seen(), format!("PATCH {path}/status, GET {path}, PUT {path}/status"));
    client.patch(&target("status"), MERGE, "", &json!({"status": {"phase": "Failed"}})).await.unwrap();
    assert_eq!(server.seen(), format!("GET {path}, PUT {path}/status"));
    // Of another subresource nothing is known.
    let operations = json!([{"op": "remove", "path": "/metadata/finalizers/0"}]);
    client.patch(&target(""), "application/json-patch+json", "", &operations).await.unwrap();
    assert_eq!(server.seen(), format!("PATCH {path}, GET {path}, PUT {path}"));
    assert_eq!(server.object.lock().unwrap()["metadata"]["finalizers"], json!(["b"]));
}

#[tokio::test]
async fn an_object_that_may_only_be_listed_is_listed() {
    let server = Server { listed: true, ..Server::new(pod()) };
    let patch = json!({"status": {"conditions": [{"type": "Mine", "status": "True"}]}});
    let written = server.client().patch(&target("status"), STRATEGIC, "", &patch).await.unwrap();
    assert_eq!(written["status"]["conditions"].as_array().unwrap().len(), 2);
    let path = "/api/v1/namespaces/default/pods";
    assert_eq!(
        server.seen(),
        format!("PATCH {path}/p/status, GET {path}/p, GET {path}, PUT {path}/p/status")
    );
}

#[tokio::test]
async fn an_update_meets_other_writes_as_the_patch_would() {
    let server = Server::new(pod());
    let client = server.client();
    *server.conflicts.lock().unwrap() = 2;
    client.patch(&target(""), MERGE, "", &json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    // A patch of one version of the object is not for another one.
    let patch = json!({"metadata": {"resourceVersion": "7", "labels": {"a": "c"}}});
    let refused = client.patch(&target(""), MERGE, "", &patch).await.unwrap_err();
    assert!(refused.conflict(), "{refused}");
    assert_eq!(server.object.lock().unwrap()["metadata"]["labels"]["a"], "b");
}

#[tokio::test]
async fn what_no_update_can_do_is_answered_as_the_patch_was() {
    let gone = Server::new(Value::Null);
    let error = gone.client().patch(&target(""), MERGE, "", &json!({})).await.unwrap_err();
    assert!(error.not_found(), "{error}");
    let apply = gone.client().patch(&target(""), "application/apply-patch+yaml", "", &json!({})).await;
    assert_eq!(apply.unwrap_err().code(), Some(403));
}

#[test]
fn paths_are_taken_apart() {
    let show = |path: &str| {
        split(path)
            .map_or_else(|| format!("{path}: none"), |(main, rest)| format!("{main} {}", rest.join(" ")))
    };
    let all = [
        "/api/v1/namespaces/a/pods/p",
        "/api/v1/namespaces/a/pods/p/status",
        "/api/v1/namespaces/a/status",
        "/api/v1/nodes/n",
        "/apis/apps/v1/namespaces/a/deployments/d/scale",
        "/apis/g/v1/things/t",
        "/api/v1/namespaces/a/pods",
        "/apis/g/v1",
        "/metrics",
        "/",
    ];
    expect_test::expect![[r#"
        /api/v1/namespaces/a/pods/p /api/v1 pods 
        /api/v1/namespaces/a/pods/p /api/v1 pods status
        /api/v1/namespaces/a /api/v1 namespaces status
        /api/v1/nodes/n /api/v1 nodes 
        /apis/apps/v1/namespaces/a/deployments/d /apis/apps/v1 deployments scale
        /apis/g/v1/things/t /apis/g/v1 things 
        /api/v1/namespaces/a /api/v1 namespaces pods
        /apis/g/v1: none
        /metrics: none
        /: none"#]]
    .assert_eq(&all.map(show).join("\n"));
}
