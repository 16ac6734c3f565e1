//! Watches over WebSockets, as clients that prefer them open them: the same events under the same rules.

use crate::common::{
    TestCluster,
    api::Api,
    until,
    wire::{connect, send_on},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::{Request, Response, header, request};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use kaji_resource::Verb;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        protocol::{CloseFrame, Role, frame::coding::CloseCode},
    },
};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CRDS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";

/// An opening handshake.
fn opening(path: &str) -> request::Builder {
    Request::get(path)
        .header("host", "localhost")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("origin", "https://localhost")
}

async fn ask(cluster: &TestCluster, admin: bool, request: request::Builder) -> Response<Incoming> {
    send_on(connect(cluster, admin).await, request.body(Empty::<Bytes>::new()).unwrap()).await
}

/// Code and body of an answer that is no WebSocket.
async fn refused(answer: Response<Incoming>) -> (u16, String) {
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(body.to_vec()).unwrap())
}

/// A watch that has begun.
struct Watch(WebSocketStream<TokioIo<Upgraded>>);

impl Watch {
    async fn of(answer: Response<Incoming>) -> Watch {
        assert_eq!(answer.status(), 101);
        assert_eq!(answer.headers()[header::SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let socket = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
        Watch(WebSocketStream::from_raw_socket(socket, Role::Client, None).await)
    }

    async fn open(cluster: &TestCluster, path: &str) -> Watch {
        Watch::of(ask(cluster, true, opening(path)).await).await
    }

    /// The next message, which is one event.
    async fn event(&mut self) -> Value {
        match self.0.next().await.unwrap().unwrap() {
            Message::Text(text) => {
                assert!(text.ends_with('\n'));
                serde_json::from_str(&text).unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Type and name of the next event.
    async fn change(&mut self) -> String {
        let event = self.event().await;
        format!(
            "{} {}",
            event["type"].as_str().unwrap(),
            event["object"]["metadata"]["name"].as_str().unwrap()
        )
    }

    /// What else comes before the socket is closed, and the code that it is closed with.
    async fn end(mut self) -> (usize, Option<CloseCode>) {
        let (mut events, mut code) = (0, None);
        while let Some(Ok(message)) = self.0.next().await {
            match message {
                Message::Close(frame) => code = frame.map(|f| f.code),
                _ => events += 1,
            }
        }
        (events, code)
    }
}

/// Creates configmaps, each `namespace/name` with a label.
async fn create(cluster: &TestCluster, maps: &[(&str, &str)]) {
    for (map, label) in maps {
        let (namespace, name) = map.split_once('/').unwrap();
        let map = json!({"metadata": {"name": name, "labels": {"l": label}}});
        Api(cluster).ok(Verb::Create, &format!("/v1/configmaps?namespace={namespace}"), map).await;
    }
}

/// Waits until that many requests stay open.
async fn open_requests(cluster: &TestCluster, wanted: &str) {
    until(&format!("{wanted} open"), async || {
        let page =
            cluster.cluster.stack.metrics.render(&cluster.cluster.stack.engine, &cluster.cluster.stack.flow);
        let families = kaji_testing::text_format::parse(&page).unwrap();
        let open = families.get("apiserver_longrunning_requests").map_or(0.0, |family| family.sum(&[]));
        open.abs().to_string() == wanted
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_messages_within_the_scope_that_was_asked_for() {
    let cluster = TestCluster::start(0).await;
    let mut all = Watch::open(&cluster, &format!("{MAPS}?watch=1")).await;
    let mut legacy = Watch::open(&cluster, "/api/v1/watch/namespaces/default/configmaps").await;
    let mut labelled = Watch::open(&cluster, "/api/v1/configmaps?watch=true&labelSelector=l%3Db").await;
    let mut named = Watch::open(&cluster, &format!("{MAPS}?watch=1&fieldSelector=metadata.name%3Dtwo")).await;
    create(&cluster, &[("kube-system/other", "b"), ("default/one", "a"), ("default/two", "b")]).await;
    let api = Api(&cluster);
    let patch = json!([{"op": "replace", "path": "/metadata/labels/l", "value": "a"}]);
    api.ok(Verb::Patch, "/v1/configmaps/two?namespace=default", patch).await;
    api.ok(Verb::Delete, "/v1/configmaps/one?namespace=default", Value::Null).await;
    let wanted = ["ADDED one", "ADDED two", "MODIFIED two", "DELETED one"];
    for change in wanted {
        assert_eq!(all.change().await, change);
        assert_eq!(legacy.change().await, change);
    }
    for change in ["ADDED other", "ADDED two", "DELETED two"] {
        assert_eq!(labelled.change().await, change);
    }
    for change in ["ADDED two", "MODIFIED two"] {
        assert_eq!(named.change().await, change);
    }
    // From a revision that the window still holds, and what is there with its bookmark.
    let mut again = Watch::open(&cluster, &format!("{MAPS}?watch=1&resourceVersion=1")).await;
    for change in wanted {
        assert_eq!(again.change().await, change);
    }
    let initial = "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let mut initial = Watch::open(&cluster, &format!("{MAPS}?watch=1&{initial}")).await;
    assert_eq!(initial.change().await, "ADDED two");
    assert_eq!(initial.event().await["type"], "BOOKMARK");
    // A table: its columns are in its first event alone.
    let table =
        opening(&format!("{MAPS}?watch=1")).header("accept", "application/json;as=Table;g=meta.k8s.io;v=v1");
    let mut table = Watch::of(ask(&cluster, true, table).await).await;
    assert_eq!(table.event().await["object"]["kind"], "Table");
    drop((all, legacy, labelled, named, again, initial, table));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resources_and_protobuf_come_the_same_way() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let definition = json!({"metadata": {"name": "foos.example.com"}, "spec": {
        "group": "example.com", "scope": "Cluster", "names": {"plural": "foos", "kind": "Foo"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    api.ok(Verb::Create, CRDS, definition).await;
    until("foos", async || api.raw(Verb::List, "example.com/v1/foos", "", &Value::Null).await.code == 200)
        .await;
    let mut foos = Watch::open(&cluster, "/apis/example.com/v1/foos?watch=1").await;
    let foo = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "f"}});
    api.ok(Verb::Create, "example.com/v1/foos", foo).await;
    assert_eq!(foos.change().await, "ADDED f");

    let binary = opening(&format!("{MAPS}?watch=1")).header("accept", "application/vnd.kubernetes.protobuf");
    let mut binary = Watch::of(ask(&cluster, true, binary).await).await;
    create(&cluster, &[("default/one", "a"), ("default/two", "a")]).await;
    for name in ["one", "two"] {
        let Some(Ok(Message::Binary(event))) = binary.0.next().await else { panic!("no event") };
        // A WatchEvent's first field is its type; its object is in an envelope.
        assert_eq!(&event[..7], b"\x0a\x05ADDED");
        let object = event.windows(4).position(|w| w == b"k8s\0").unwrap();
        assert!(event[object..].windows(3).any(|w| w == name.as_bytes()));
    }
    drop((foos, binary));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_are_those_of_other_watches() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let token = api
        .ok(Verb::Create, "/v1/serviceaccounts/default/token?namespace=default", json!({"spec": {}}))
        .await;
    let token = URL_SAFE_NO_PAD.encode(token["status"]["token"].as_str().unwrap());
    let token = format!("base64url.bearer.authorization.k8s.io.{token}");
    let with = |path: &str, protocols: &str| opening(path).header("sec-websocket-protocol", protocols);
    let watch = format!("{MAPS}?watch=1");
    let refusal = async |request| {
        let (code, body) = refused(ask(&cluster, false, request).await).await;
        let status: Value = serde_json::from_str(&body).unwrap();
        (code, status["reason"].as_str().unwrap().to_owned())
    };
    // No token, an invalid one, and one without the right to watch.
    assert_eq!(refusal(opening(&watch)).await, (403, "Forbidden".into()));
    let wrong = format!("base64url.bearer.authorization.k8s.io.{}, v1", URL_SAFE_NO_PAD.encode("wrong"));
    assert_eq!(refusal(with(&watch, &wrong)).await, (401, "Unauthorized".into()));
    assert_eq!(refusal(with(&watch, &format!("{token}, v1"))).await, (403, "Forbidden".into()));
    // It needs another subprotocol to be answered with.
    assert_eq!(refusal(with(&watch, &token)).await, (401, "Unauthorized".into()));

    let role = json!({"metadata": {"name": "watcher"}, "rules": [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"]}]});
    api.ok(Verb::Create, "rbac.authorization.k8s.io/v1/roles?namespace=default", role).await;
    let binding = json!({"metadata": {"name": "watcher"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "watcher"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]});
    api.ok(Verb::Create, "rbac.authorization.k8s.io/v1/rolebindings?namespace=default", binding).await;
    let answer = ask(&cluster, false, with(&watch, &format!("{token}, base64.binary.k8s.io"))).await;
    // The subprotocol that is no token is agreed to, and changes nothing.
    assert_eq!(answer.headers()[header::SEC_WEBSOCKET_PROTOCOL], "base64.binary.k8s.io");
    let mut mine = Watch::of(answer).await;
    create(&cluster, &[("kube-system/other", "a"), ("default/own", "a")]).await;
    assert_eq!(mine.change().await, "ADDED own");
    let all = with("/api/v1/configmaps?watch=1", &format!("{token}, v1"));
    assert_eq!(refusal(all).await, (403, "Forbidden".into()));
    let list = with(MAPS, &format!("{token}, v1"));
    assert_eq!(refusal(list).await, (403, "Forbidden".into()));
    drop(mine);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_a_socket_is_answered_in_http() {
    let cluster = TestCluster::start(0).await;
    let watch = format!("{MAPS}?watch=1");
    let answer = async |request| refused(ask(&cluster, true, request).await).await;
    let without = |name: &str| {
        let mut request = opening(&watch);
        request.headers_mut().unwrap().remove(name);
        request
    };
    assert_eq!(answer(without("origin")).await, (403, String::new()));
    assert_eq!(answer(without("sec-websocket-key")).await, (400, "mismatch challenge/response".into()));
    let old = without("sec-websocket-version").header("sec-websocket-version", "8");
    assert_eq!(answer(old).await, (400, "missing or bad WebSocket Version".into()));
    let two = opening(&watch).header("sec-websocket-protocol", "a, b");
    assert_eq!(answer(two).await, (400, String::new()));
    // Another origin is as good as this one: there are no cookies that it could make use of.
    let other = without("origin").header("origin", "http://evil.example.com");
    assert_eq!(ask(&cluster, true, other).await.status(), 101);
    // What is wrong with a watch itself is said as always.
    for (query, code) in [("labelSelector=%3D%3D", 400), ("timeoutSeconds=x", 400)] {
        let (got, body) = answer(opening(&format!("{watch}&{query}"))).await;
        assert_eq!(
            (got, &serde_json::from_str::<Value>(&body).unwrap()["kind"]),
            (code, &json!("Status")),
            "{query}"
        );
    }
    let yaml = opening(&watch).header("accept", "application/yaml");
    assert_eq!(answer(yaml).await.0, 406);
    // Other requests are what they are without the wish.
    for (path, kind) in
        [(MAPS, "ConfigMapList"), ("/api/v1/namespaces/default", "Namespace"), ("/version", "")]
    {
        let (code, body) = answer(opening(path)).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((code, body["kind"].as_str().unwrap_or_default()), (200, kind));
    }
    open_requests(&cluster, "0").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_end_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (policy, log) = (dir.path().join("policy.yaml"), dir.path().join("audit.log"));
    let rules = "rules: [{level: Metadata, verbs: [watch], users: [kubernetes-admin]}]";
    std::fs::write(&policy, format!("{{apiVersion: audit.k8s.io/v1, kind: Policy, {rules}}}")).unwrap();
    let cluster = TestCluster::start_with(|o| {
        o.audit.policy_file = Some(policy.clone());
        o.audit.log.path = log.to_str().unwrap().into();
    })
    .await;
    // By the time that the client set.
    let timed = Watch::open(&cluster, &format!("{MAPS}?watch=1&timeoutSeconds=1")).await;
    let stages = || -> Vec<String> {
        let log = std::fs::read_to_string(&log).unwrap();
        let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.map(|e| format!("{} {}", e["stage"].as_str().unwrap(), e["responseStatus"]["code"])).collect()
    };
    assert_eq!(stages(), ["RequestReceived null", "ResponseStarted 101"]);
    assert_eq!(timed.end().await, (0, Some(CloseCode::Normal)));
    until("recorded", async || stages().last().is_some_and(|last| last == "ResponseComplete 101")).await;
    // By the client, which is answered.
    let mut closed = Watch::open(&cluster, &format!("{MAPS}?watch=1")).await;
    open_requests(&cluster, "1").await;
    closed.0.send(Message::text("ignored")).await.unwrap();
    closed.0.send(Message::Ping("x".into())).await.unwrap();
    assert_eq!(closed.0.next().await.unwrap().unwrap(), Message::Pong("x".into()));
    let away = CloseFrame { code: CloseCode::Away, reason: "enough".into() };
    closed.0.send(Message::Close(Some(away))).await.unwrap();
    assert_eq!(closed.end().await, (0, Some(CloseCode::Away)));
    // By the client, without a word.
    let gone = Watch::open(&cluster, &format!("{MAPS}?watch=1")).await;
    drop(gone);
    open_requests(&cluster, "0").await;
    // Because of what the client sends: a text of a gigabyte, of which the beginning comes.
    let mut large = Watch::open(&cluster, &format!("{MAPS}?watch=1")).await;
    large.0.get_mut().write_all(&[0x81, 0xff, 0, 0, 0, 0, 0x40, 0, 0, 0, 1, 2, 3, 4, 5]).await.unwrap();
    large.0.get_mut().flush().await.unwrap();
    assert_eq!(large.end().await, (0, Some(CloseCode::Size)));
    open_requests(&cluster, "0").await;
    // By the server's end.
    let last = Watch::open(&cluster, &format!("{MAPS}?watch=1")).await;
    let (ended, _) = tokio::join!(last.end(), cluster.stop());
    assert_eq!(ended, (0, Some(CloseCode::Normal)));
}

/// A client that does not read keeps no others waiting, and is forgotten when it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_harms_no_other() {
    let cluster = TestCluster::start_with(|o| o.serving.connections = Some(2)).await;
    let idle = Watch::open(&cluster, &format!("{MAPS}?watch=1")).await;
    let mut reader = Watch::open(&cluster, &format!("{MAPS}?watch=1")).await;
    // Both have a connection's slot as long as they are there.
    let mut third = Box::pin(connect(&cluster, true));
    let api = Api(&cluster);
    let data = "x".repeat(200_000);
    for i in 0..100 {
        let map = json!({"metadata": {"name": format!("m{i}")}, "data": {"k": data}});
        api.ok(Verb::Create, "/v1/configmaps?namespace=default", map).await;
        tokio::select! {
            change = reader.change() => assert_eq!(change, format!("ADDED m{i}")),
            _ = &mut third => panic!("a third connection"),
        }
    }
    drop(idle);
    drop(third.await);
    open_requests(&cluster, "1").await;
    drop(reader);
    cluster.stop().await;
}
