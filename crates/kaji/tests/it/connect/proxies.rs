//! Proxies of nodes, pods and services: which requests reach them, and as what.

use super::{Backend, PODS, cluster, create, header, node, pod};
use crate::{
    aggregation::own_address,
    common::{
        TestCluster,
        access::{admin, ask, ok, person},
        skipped,
        wire::{connect, send},
    },
};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const NODE: &str = "/api/v1/nodes/n/proxy";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_request_reaches_a_kubelet() {
    let (cluster, kubelet) = cluster().await;
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let body = if method == "GET" { Value::Null } else { json!({"a": 1}) };
        let said = ok(&cluster, &admin(), &format!("{method} {NODE}/metrics"), body.clone()).await;
        let length = if body.is_null() { 0 } else { body.to_string().len() };
        assert_eq!((&said["method"], &said["length"]), (&json!(method), &json!(length)));
    }
    let (code, _) = ask(&cluster, &admin(), &format!("HEAD {NODE}/metrics"), &Value::Null).await;
    assert_eq!(code, 200);
    let (code, said) = ask(&cluster, &admin(), &format!("TRACE {NODE}/metrics"), &Value::Null).await;
    assert_eq!(code, 405, "{said}");
    assert_eq!(kubelet.state.client.lock().unwrap().as_deref(), Some("kube-apiserver-kubelet-client"));
    // The kubelet's own port may be named; any other on the loopback address may not.
    let port = kubelet.port;
    ok(&cluster, &admin(), &format!("GET /api/v1/nodes/n:{port}/proxy/metrics"), Value::Null).await;
    for id in ["n:1", "https:n:1"] {
        let (code, said) =
            ask(&cluster, &admin(), &format!("GET /api/v1/nodes/{id}/proxy/x"), &Value::Null).await;
        assert_eq!((code, &said["message"]), (400, &json!("address not allowed")), "{id}");
    }
    let (code, said) = ask(&cluster, &admin(), "GET /api/v1/nodes/ftp:n:1/proxy/x", &Value::Null).await;
    assert_eq!((code, &said["message"]), (400, &json!("invalid node request \"ftp:n:1\"")));
    let (code, _) = ask(&cluster, &admin(), "GET /api/v1/nodes/missing/proxy/x", &Value::Null).await;
    assert_eq!(code, 404);
    cluster.stop().await;
}

/// The path that was authorized is the one that is sent, once cleaned; the query is the other server's alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_paths_and_queries() {
    let (cluster, kubelet) = cluster().await;
    let mut said = vec![];
    for rest in [
        "/",
        "/a/b/",
        "/a%2Fb",
        "/a/../../../../pods",
        "/%2e%2e/%2e%2e/pods",
        "/..%2F..%2Fpods/",
        "/a%20b/%C3%A9?x=1&x=2&y=%2F&z;w&watch=false",
        "/a?timeout=1ns&fieldSelector=metadata.name%3Dx",
    ] {
        let (code, seen) = ask(&cluster, &admin(), &format!("GET {NODE}{rest}"), &Value::Null).await;
        let uri = header(&seen, "x-forwarded-uri").concat();
        said.push(format!("{rest} -> {code} {} by {uri}", seen["target"].as_str().unwrap()));
    }
    expect_test::expect![[r#"
        / -> 200 / by /api/v1/nodes/n/proxy/
        /a/b/ -> 200 /a/b/ by /api/v1/nodes/n/proxy/a/b/
        /a%2Fb -> 200 /a/b by /api/v1/nodes/n/proxy/a/b
        /a/../../../../pods -> 200 /pods by /api/v1/nodes/n/proxy/pods
        /%2e%2e/%2e%2e/pods -> 200 /pods by /api/v1/nodes/n/proxy/pods
        /..%2F..%2Fpods/ -> 200 /pods/ by /api/v1/nodes/n/proxy/pods/
        /a%20b/%C3%A9?x=1&x=2&y=%2F&z;w&watch=false -> 200 /a%20b/%C3%A9?x=1&x=2&y=%2F&z;w&watch=false by /api/v1/nodes/n/proxy/a%20b/%C3%A9
        /a?timeout=1ns&fieldSelector=metadata.name%3Dx -> 200 /a?timeout=1ns&fieldSelector=metadata.name%3Dx by /api/v1/nodes/n/proxy/a"#]].assert_eq(&said.join("\n"));
    kubelet.seen();
    // Without a slash relative links would miss the prefix.
    let request = Request::get(format!("{NODE}?x=1")).header("host", "localhost").body(Empty::new()).unwrap();
    let answer = send(&cluster, request).await;
    assert_eq!(
        (answer.status().as_u16(), answer.headers()["location"].to_str().unwrap()),
        (301, "/api/v1/nodes/n/proxy/?x=1")
    );
    assert!(kubelet.seen().is_empty());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_identity_leaves() {
    let (cluster, kubelet) = cluster().await;
    let claims = "authorization: Bearer x\nx-remote-user: root\nX_Remote_Group: system:masters\nimpersonate_user: bob\nx-forwarded-for: 1.1.1.1\nproxy-authorization: x\nconnection: close, x-private\nx-private: 1\naudit-id: forged\ncookie: theirs=1\nx-own: kept";
    let seen = ok(&cluster, &admin(), &format!("GET {NODE}/x\n{claims}"), Value::Null).await;
    for claim in [
        "authorization",
        "x-remote-user",
        "x_remote_group",
        "x-remote-group",
        "impersonate_user",
        "x-forwarded-for",
        "proxy-authorization",
        "x-private",
        "audit-id",
        "x-remote-extra-a",
    ] {
        assert_eq!(header(&seen, claim), [""; 0], "{claim}");
    }
    assert_eq!(header(&seen, "x-own"), ["kept"]);
    assert_eq!(header(&seen, "cookie"), ["theirs=1"]);
    // Neither do permissions of browsers come back.
    let request = Request::get(format!("{NODE}/x")).header("host", "api.example").body(Empty::new()).unwrap();
    let answer = send(&cluster, request).await;
    assert!(!answer.headers().contains_key("access-control-allow-origin"));
    let seen: Value =
        serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap();
    assert_eq!(header(&seen, "host"), ["api.example"]);
    assert_eq!(header(&seen, "x-forwarded-for"), ["127.0.0.1"]);
    let (code, said) = ask(&cluster, &person("alice"), &format!("GET {NODE}/x"), &Value::Null).await;
    assert_eq!(code, 403, "{said}");
    kubelet.seen();
    // A request that went through such proxies too often goes round.
    let passes = "via: 1.1 kube-aggregator, 1.1 kube-aggregator, 1.1 kube-aggregator, 1.1 kube-aggregator";
    assert_eq!(ask(&cluster, &admin(), &format!("GET {NODE}/x\n{passes}"), &Value::Null).await.0, 508);
    assert!(kubelet.seen().is_empty());
    cluster.stop().await;
}

/// Two lengths, or a second request in a body, never become a second request on the other side.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_not_smuggled() {
    let (cluster, kubelet) = cluster().await;
    let hidden = "GET /secret HTTP/1.1\r\nhost: x\r\n\r\n";
    let upgrade = "connection: Upgrade\r\nupgrade: SPDY/3.1\r\n";
    let length = hidden.len();
    for head in [
        format!(
            "POST {NODE}/a HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{hidden}"
        ),
        format!(
            "POST {NODE}/a HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n{length:x}\r\n{hidden}\r\n0\r\n\r\n"
        ),
        format!(
            "POST {NODE}/a HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{hidden}"
        ),
        format!("GET {NODE}/a HTTP/1.1\r\nhost: x\r\n{upgrade}content-length: {length}\r\n\r\n{hidden}"),
    ] {
        let mut stream = connect(&cluster, true).await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let read = stream.read(&mut answer).await.unwrap_or(0);
        let seen = kubelet.seen();
        assert!(seen.len() <= 1, "{head}: {seen:?}");
        assert!(seen.iter().all(|s| s["target"] == "/a"), "{head}: {seen:?}");
        assert!(!String::from_utf8_lossy(&answer[..read]).contains("/secret"), "{head}");
    }
    cluster.stop().await;
}

/// Bodies are passed on as they come, whatever their size: only bodies of API objects are bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_are_not_gathered() {
    let (cluster, _kubelet) = cluster().await;
    let big = Value::from("x".repeat(8 << 20));
    let said = ok(&cluster, &admin(), &format!("POST {NODE}/upload"), big).await;
    assert_eq!(said["length"], (8 << 20) + 2);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_and_services_are_reached_by_their_addresses() {
    let Some(ip) = own_address().map(|ip| ip.to_string()) else {
        return skipped(
            "pods_and_services_are_reached_by_their_addresses",
            "the machine has no address of its own",
        );
    };
    let cluster = TestCluster::start(0).await;
    let (plain, tls) =
        (Backend::plain().await, Backend::kubelet(&cluster, &cluster.cluster.pki.ca.clone()).await);
    node(&cluster, "n", "127.0.0.1", 1).await;
    pod(&cluster, "p", Some("n"), Some(&ip)).await;
    pod(&cluster, "own", Some("n"), Some("127.0.0.1")).await;
    let (http, https) = (plain.port, tls.port);
    let said = ok(&cluster, &admin(), &format!("GET {PODS}/p:{http}/proxy/a?b=c&b=d"), Value::Null).await;
    assert_eq!(said["target"], "/a?b=c&b=d");
    let said = ok(&cluster, &admin(), &format!("GET {PODS}/https:p:{https}/proxy/a"), Value::Null).await;
    assert_eq!(said["target"], "/a");
    assert_eq!(*tls.state.client.lock().unwrap(), None, "pods are shown no certificate");
    let (code, said) = ask(&cluster, &admin(), &format!("GET {PODS}/own:{http}/proxy/a"), &Value::Null).await;
    assert_eq!((code, &said["message"]), (400, &json!("address not allowed")));
    // A port where nothing listens.
    let (code, said) = ask(&cluster, &admin(), &format!("GET {PODS}/p:1/proxy/a"), &Value::Null).await;
    let refused = format!("error trying to reach service: dial tcp {ip}:1: connect: connection refused");
    assert_eq!((code, &said["message"]), (503, &json!(refused)));

    let services = "/api/v1/namespaces/default/services";
    create(
        &cluster,
        "services",
        json!({"metadata": {"name": "s"}, "spec": {"ports": [{"name": "web", "port": 80}]}}),
    )
    .await;
    let (code, _) = ask(&cluster, &admin(), &format!("GET {services}/s:web/proxy/x"), &Value::Null).await;
    assert_eq!(code, 404);
    let address = json!({"ip": ip, "targetRef": {"kind": "Pod", "namespace": "default", "name": "p"}});
    create(
        &cluster,
        "endpoints",
        json!({"metadata": {"name": "s"},
        "subsets": [{"addresses": [address], "ports": [{"name": "web", "port": http}]}]}),
    )
    .await;
    for id in ["s:web", "s:80", "http:s:web"] {
        let said = ok(&cluster, &admin(), &format!("GET {services}/{id}/proxy/x/"), Value::Null).await;
        assert_eq!(said["target"], "/x/", "{id}");
    }
    let (code, said) = ask(&cluster, &admin(), &format!("GET {services}/s:81/proxy/x"), &Value::Null).await;
    assert_eq!((code, &said["message"]), (503, &json!("no service port 81 found for service \"s\"")));
    let (code, said) =
        ask(&cluster, &person("alice"), &format!("GET {services}/s:web/proxy/x"), &Value::Null).await;
    assert_eq!(
        (code, said["message"].as_str().unwrap()),
        (
            403,
            r#"services "s:web" is forbidden: User "alice" cannot get resource "services/proxy" in API group "" in the namespace "default""#
        )
    );
    // Links lead back through the proxy.
    let request = Request::get(format!("{PODS}/p:{http}/proxy/page"))
        .header("host", "localhost")
        .body(Empty::new())
        .unwrap();
    let page = send(&cluster, request).await.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(page, format!("<a href=\"{PODS}/p:{http}/proxy/x\">x</a>"));
    for (location, expected) in [
        ("/login".to_owned(), format!("{PODS}/p:{http}/proxy/login")),
        (format!("http://{ip}:{http}/login"), format!("{PODS}/p:{http}/proxy/login")),
        ("https://other.example/login".to_owned(), "https://other.example/login".to_owned()),
    ] {
        let request = Request::get(format!("{PODS}/p:{http}/proxy/redirected?{location}"));
        let answer = send(&cluster, request.header("host", "localhost").body(Empty::new()).unwrap()).await;
        assert_eq!(
            (answer.status().as_u16(), answer.headers()["location"].to_str().unwrap()),
            (302, &*expected)
        );
    }
    // Other protocols go through as well.
    let request = Request::get(format!("{PODS}/p:{http}/proxy/socket?a=b"))
        .header("host", "localhost")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .body(Empty::<Bytes>::new())
        .unwrap();
    plain.seen();
    assert_eq!(send(&cluster, request).await.status(), 101);
    assert_eq!(plain.seen()[0]["target"], "/socket?a=b");
    cluster.stop().await;
}
