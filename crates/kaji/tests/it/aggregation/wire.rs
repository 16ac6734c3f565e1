//! What goes over a connection for longer: watches, other protocols, answers that break off.

use super::{
    extension::{ECHOES, Extension, NAME},
    reason,
};
use crate::common::{
    TestCluster,
    access::admin,
    api::Api,
    wire::{connect, send},
};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use kaji_resource::Verb;
use kaji_server::LocalService;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_stream_and_break_off_visibly() {
    let cluster = TestCluster::start(0).await;
    let extension = Extension::start(&cluster).await;
    extension.join(&cluster).await;
    reason(&cluster, NAME, "Passed").await;
    let watch = || {
        Request::get(format!("{ECHOES}?watch=true")).header("host", "localhost").body(Empty::new()).unwrap()
    };
    let mut answer = send(&cluster, watch()).await;
    assert_eq!(answer.status(), 200);
    let events = extension.state.events.lock().unwrap().take().unwrap();
    for event in ["{\"type\":\"ADDED\"}\n", "{\"type\":\"MODIFIED\"}\n"] {
        events.send(Ok(event.into())).unwrap();
        let frame = answer.body_mut().frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), event);
    }
    // The server breaks off: the client must not take that for the end.
    events.send(Err(std::io::Error::other("died"))).unwrap();
    assert!(answer.body_mut().frame().await.unwrap().is_err());

    // It ends properly: so does this.
    let mut answer = send(&cluster, watch()).await;
    drop(extension.state.events.lock().unwrap().take().unwrap());
    assert!(answer.body_mut().frame().await.is_none());

    // The client disconnects: the server sees the end of the request.
    let answer = send(&cluster, watch()).await;
    let events = extension.state.events.lock().unwrap().take().unwrap();
    drop(answer);
    events.closed().await;

    // The server is gone: whatever is open breaks off, and what is new says so.
    let mut answer = send(&cluster, watch()).await;
    let port = extension.port;
    drop(extension);
    assert!(answer.body_mut().frame().await.unwrap().is_err());
    let service = LocalService::new(cluster.cluster.stack.clone(), admin());
    let request = Request::get(ECHOES).body(Empty::<Bytes>::new()).unwrap();
    let answer = service.oneshot(request).await.unwrap();
    assert_eq!(answer.status(), 503);
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text).into_owned();
    let refused =
        format!("error trying to reach service: dial tcp 127.0.0.1:{port}: connect: connection refused\n");
    assert_eq!(text.replace("[::1]", "127.0.0.1"), refused);
    // Looked at again, it is not available.
    let touch = json!([{"op": "add", "path": "/metadata/labels", "value": {"touched": "yes"}}]);
    Api(&cluster).ok(Verb::Patch, "/v1/services/ext?namespace=default", touch).await;
    reason(&cluster, NAME, "FailedDiscoveryCheck").await;
    cluster.stop().await;
}

/// A server that dies under many watches on few connections: all of them break off, and nothing else suffers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_under_watches() {
    let cluster = TestCluster::start(0).await;
    let extension = Extension::offering(&cluster, &["h2", "http/1.1"]).await;
    extension.join(&cluster).await;
    reason(&cluster, NAME, "Passed").await;
    let ask = async |path: String| {
        let service = LocalService::new(cluster.cluster.stack.clone(), admin());
        service.oneshot(Request::get(path).body(Empty::<Bytes>::new()).unwrap()).await.unwrap()
    };
    let maps = "/api/v1/namespaces/default/configmaps";
    let own = ask(format!("{maps}?watch=true&resourceVersion=0")).await;
    let mut watches = vec![];
    for _ in 0..200 {
        let answer = ask(format!("{ECHOES}?watch=true")).await;
        assert_eq!(answer.status(), 200);
        watches.push(answer);
    }
    extension.state.events.lock().unwrap().as_ref().unwrap().send(Ok("event\n".into())).unwrap();
    let last = watches.last_mut().unwrap();
    assert_eq!(last.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), "event\n");
    drop(extension);
    for mut watch in watches {
        assert!(watch.body_mut().frame().await.unwrap().is_err());
    }
    assert_eq!(ask(ECHOES.to_owned()).await.status(), 503);
    // Those of this server are as they were.
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    Api(&cluster).ok(Verb::Create, "/v1/configmaps?namespace=default", map).await;
    let mut own = own.into_body();
    loop {
        let piece = own.frame().await.unwrap().unwrap().into_data().unwrap();
        if String::from_utf8_lossy(&piece).contains("\"name\":\"m\"") {
            break;
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_protocols_are_spoken_through() {
    let cluster = TestCluster::start(0).await;
    let extension = Extension::start(&cluster).await;
    extension.join(&cluster).await;
    reason(&cluster, NAME, "Passed").await;
    let request = Request::get(format!("{ECHOES}/x/exec?command=ls"))
        .header("host", "localhost")
        .header(header::CONNECTION, "keep-alive, Upgrade")
        .header(header::UPGRADE, "echo")
        .header("x-remote-user", "mallory")
        .header("x_remote_user", "mallory")
        .header("x-forwarded-for", "192.0.2.1")
        .header("x-forwarded-uri", "/elsewhere")
        .body(Empty::new())
        .unwrap();
    let answer = send(&cluster, request).await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()[header::UPGRADE]),
        (101, &"echo".parse().unwrap())
    );
    let seen = extension.seen();
    assert_eq!(super::header(&seen[0], "x-remote-user"), ["kubernetes-admin"]);
    assert_eq!(super::header(&seen[0], "x_remote_user"), [""; 0]);
    assert_eq!(super::header(&seen[0], "x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(super::header(&seen[0], "x-forwarded-uri"), [format!("{ECHOES}/x/exec")]);
    let mut both = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
    for word in ["one", "another"] {
        both.write_all(word.as_bytes()).await.unwrap();
        let mut back = vec![0; word.len()];
        both.read_exact(&mut back).await.unwrap();
        assert_eq!(back, word.as_bytes());
    }
    // When the server goes, so does the connection.
    drop(extension);
    assert_eq!(both.read(&mut [0; 8]).await.unwrap_or(0), 0);
    cluster.stop().await;
}

/// A connection counts as long as it is there, whatever is spoken on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_protocols_hold_their_connections_slot() {
    let cluster = TestCluster::start_with(|o| o.serving.connections = Some(1)).await;
    let extension = Extension::start(&cluster).await;
    extension.join(&cluster).await;
    reason(&cluster, NAME, "Passed").await;
    let request = Request::get(format!("{ECHOES}/x/exec"))
        .header("host", "localhost")
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "echo")
        .body(Empty::new())
        .unwrap();
    let answer = send(&cluster, request).await;
    assert_eq!(answer.status(), 101);
    let mut first = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
    let mut second = Box::pin(connect(&cluster, true));
    for _ in 0..50 {
        first.write_all(b"word").await.unwrap();
        let mut back = [0; 4];
        tokio::select! {
            read = first.read_exact(&mut back) => assert_eq!(read.unwrap(), 4),
            _ = &mut second => panic!("a second connection"),
        }
    }
    drop(first);
    drop(second.await);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_the_process_cannot_switch_protocols() {
    let cluster = TestCluster::start(0).await;
    let extension = Extension::start(&cluster).await;
    extension.join(&cluster).await;
    reason(&cluster, NAME, "Passed").await;
    let request = Request::get(format!("{ECHOES}/x/exec"))
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "echo")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let service = LocalService::new(cluster.cluster.stack.clone(), admin());
    assert_eq!(service.oneshot(request).await.unwrap().status(), 503);
    assert!(extension.seen().is_empty());
    cluster.stop().await;
}
