//! `exec`, `attach` and `portforward`: connections that switch protocols.

use super::{Backend, PODS, cluster, header, node, pod};
use crate::common::{
    TestCluster,
    access::{admin, ask, person},
    api::Api,
    wire::send,
};
use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kaji_resource::Verb;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn open(cluster: &TestCluster, method: Method, rest: &str) -> Response<Incoming> {
    let request = Request::builder()
        .method(method)
        .uri(format!("{PODS}/{rest}"))
        .header("host", "localhost")
        .header(header::CONNECTION, "keep-alive, Upgrade")
        .header(header::UPGRADE, "SPDY/3.1")
        .header("x-stream-protocol-version", "v4.channel.k8s.io")
        .header("x-remote-user", "mallory")
        .header("impersonate_user", "mallory")
        .header("content-length", "0")
        .body(Empty::<Bytes>::new())
        .unwrap();
    send(cluster, request).await
}

async fn text(answer: Response<Incoming>) -> String {
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let said =
        serde_json::from_slice(&body).unwrap_or_else(|_| json!({"message": String::from_utf8_lossy(&body)}));
    format!("{code} {}", said["message"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_passed_both_ways() {
    let (cluster, kubelet) = cluster().await;
    pod(&cluster, "p", Some("n"), None).await;
    let targets = [
        (
            Method::POST,
            "exec?command=sh&command=-c&command=a%26b&stdin=true&stdout=true&tty=false",
            "/exec/default/p/c?command=sh&command=-c&command=a%26b&input=1&output=1",
        ),
        (Method::GET, "attach?stdout=1&stderr=1&container=c", "/attach/default/p/c?error=1&output=1"),
        (Method::POST, "portforward?ports=80&x=1", "/portForward/default/p?port=80"),
    ];
    for (method, rest, expected) in targets {
        let answer = open(&cluster, method.clone(), &format!("p/{rest}")).await;
        assert_eq!(answer.status(), 101, "{rest}");
        let seen = kubelet.seen();
        assert_eq!((&seen[0]["target"], &seen[0]["method"]), (&json!(expected), &json!(method.as_str())));
        assert_eq!(header(&seen[0], "x-stream-protocol-version"), ["v4.channel.k8s.io"]);
        for claim in ["x-remote-user", "impersonate_user", "authorization"] {
            assert_eq!(header(&seen[0], claim), [""; 0], "{claim}");
        }
        assert_eq!(kubelet.state.client.lock().unwrap().as_deref(), Some("kube-apiserver-kubelet-client"));
        let mut both = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
        for word in ["one", "another"] {
            both.write_all(word.as_bytes()).await.unwrap();
            let mut back = vec![0; word.len()];
            both.read_exact(&mut back).await.unwrap();
            assert_eq!(back, word.as_bytes());
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ends_on_one_side_ends_on_the_other() {
    let (cluster, kubelet) = cluster().await;
    pod(&cluster, "p", Some("n"), None).await;
    let opened = async || {
        let answer = open(&cluster, Method::POST, "p/exec?command=sh&stdin=1").await;
        assert_eq!(answer.status(), 101);
        TokioIo::new(hyper::upgrade::on(answer).await.unwrap())
    };
    let (mut first, mut second) = (opened().await, opened().await);
    // It counts as a request until its end.
    let metric = || {
        let page =
            cluster.cluster.stack.metrics.render(&cluster.cluster.stack.engine, &cluster.cluster.stack.flow);
        let line = page.lines().find(|l| l.starts_with("apiserver_longrunning_requests")).unwrap_or_default();
        line.rsplit(' ').next().unwrap_or_default().to_owned()
    };
    assert_eq!(metric(), "2");
    first.shutdown().await.unwrap();
    assert_eq!(first.read(&mut [0; 8]).await.unwrap_or(0), 0);
    crate::common::until("the end is counted", async || metric() == "1").await;
    drop(kubelet);
    assert_eq!(second.read(&mut [0; 8]).await.unwrap_or(0), 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_end_with_the_server() {
    let (cluster, _kubelet) = cluster().await;
    pod(&cluster, "p", Some("n"), None).await;
    let answer = open(&cluster, Method::POST, "p/exec?command=sh&stdin=1").await;
    let mut both = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
    let mut buffer = [0; 8];
    let (_, read) = tokio::join!(cluster.stop(), both.read(&mut buffer));
    assert_eq!(read.unwrap_or(0), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_said() {
    let (cluster, kubelet) = cluster().await;
    for name in ["p", "refused", "ignores", "other", "redirected", "silent"] {
        pod(&cluster, name, Some("n"), None).await;
    }
    pod(&cluster, "waits", None, None).await;
    pod(&cluster, "lost", Some("gone"), None).await;
    let mut said = vec![];
    for name in ["refused", "ignores", "other", "redirected", "silent", "waits", "lost", "missing"] {
        said.push(text(open(&cluster, Method::POST, &format!("{name}/exec?command=sh")).await).await);
    }
    said.push(text(open(&cluster, Method::POST, "p/exec?command=sh&dryRun=All").await).await);
    said.push(text(open(&cluster, Method::POST, "p/portforward?ports=x").await).await);
    let plain = Request::post(format!("{PODS}/p/exec?command=sh"))
        .header("host", "localhost")
        .body(Empty::new())
        .unwrap();
    said.push(text(send(&cluster, plain).await).await);
    kubelet.stop().await;
    let gone = text(open(&cluster, Method::POST, "p/exec?command=sh").await).await;
    said.push(gone.rsplit_once(": dial tcp 127.0.0.1:").unwrap().0.to_owned());
    expect_test::expect![[r#"
        403 not this one

        500 invalid upgrade response: status code 200
        502 backend tried to switch protocol "h2c" when "SPDY/3.1" was requested
        500 invalid upgrade response: status code 302
        404 the server could not find the requested resource ( pods/exec silent)
        400 pod waits does not have a host assigned
        404 nodes "gone" not found
        404 pods "missing" not found
        400 dryRun is not supported
        400 cannot convert to []int32: strconv.ParseUint: parsing "x": invalid syntax
        400 Upgrade request required
        500 error dialing backend"#]]
    .assert_eq(&said.join("\n"));
    cluster.stop().await;
}

/// WebSockets come by GET: that alone would be the right to read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_stream_needs_the_right_to_create() {
    let (cluster, kubelet) = cluster().await;
    pod(&cluster, "p", Some("n"), None).await;
    let rules = json!([{"apiGroups": [""], "resources": ["pods/exec", "pods/attach", "pods/portforward"], "verbs": ["get"]}]);
    let api = Api(&cluster);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": rules});
    api.ok(Verb::Create, "rbac.authorization.k8s.io/v1/roles?namespace=default", role).await;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "r"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]});
    api.ok(Verb::Create, "rbac.authorization.k8s.io/v1/rolebindings?namespace=default", binding).await;
    for sub in ["exec?command=sh", "attach", "portforward"] {
        let request = format!("GET {PODS}/p/{sub}\nconnection: Upgrade\nupgrade: websocket");
        let (code, said) = ask(&cluster, &person("alice"), &request, &Value::Null).await;
        assert_eq!((code, &said["message"]), (403, &json!("pods \"p\" is forbidden: ")), "{sub}");
        // The administrator gets further: only a part of the process cannot switch protocols.
        let (code, said) = ask(&cluster, &admin(), &request, &Value::Null).await;
        assert_eq!((code, &said["message"]), (500, &json!("request connection cannot be hijacked")), "{sub}");
    }
    assert!(kubelet.seen().is_empty());
    cluster.stop().await;
}

/// A stream is recorded when it begins and once more when it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_recorded_until_their_end() {
    let dir = tempfile::tempdir().unwrap();
    let (policy, log) = (dir.path().join("policy.yaml"), dir.path().join("audit.log"));
    let rules = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: RequestResponse, resources: [{group: '', resources: [pods/exec]}]}]\n";
    std::fs::write(&policy, rules).unwrap();
    let cluster = TestCluster::start_with(|o| {
        o.audit.policy_file = Some(policy);
        o.audit.log.path = log.to_str().unwrap().into();
    })
    .await;
    let kubelet = Backend::kubelet(&cluster, &cluster.cluster.pki.ca.clone()).await;
    node(&cluster, "n", "127.0.0.1", kubelet.port).await;
    pod(&cluster, "p", Some("n"), None).await;
    let events = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let shown = events.map(|e| format!("{} {} {}", e["stage"], e["verb"], e["responseStatus"]["code"]));
        shown.collect::<Vec<_>>().join(", ").replace('"', "")
    };
    let answer = open(&cluster, Method::POST, "p/exec?command=sh&stdin=1").await;
    let both = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
    let began = "RequestReceived create null, ResponseStarted create 101";
    crate::common::until("the beginning is recorded", async || events() == began).await;
    drop(both);
    let ended = format!("{began}, ResponseComplete create 101");
    crate::common::until("the end is recorded", async || events() == ended).await;
    cluster.stop().await;
}
