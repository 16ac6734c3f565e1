//! Calls between a client and a server over unix sockets.

use expect_test::expect;
use futures_util::stream;
use kaji_grpc::{CallError, Channel, ChannelOptions, Client, Code, Router, Status, bind, serve};
use prost::Message;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::JoinHandle;

const ECHO: &str = "/test.v1.Echo/Echo";
const COUNT: &str = "/test.v1.Echo/Count";
const SILENT: &str = "/test.v1.Echo/Silent";
const SOON: Duration = Duration::from_secs(30);

#[derive(Clone, PartialEq, Message)]
struct Text {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(uint32, tag = "2")]
    count: u32,
}

fn text(text: &str, count: u32) -> Text {
    Text { text: text.to_owned(), count }
}

fn start(path: &Path) -> JoinHandle<()> {
    let router = Router::default()
        .message_limit(1 << 16)
        .unary(ECHO, |message: Text| async move {
            match message.count {
                0 => Err(Status::invalid_argument("count is 0")),
                n => Ok(Text { text: message.text.repeat(n as usize), count: n }),
            }
        })
        .unary(SILENT, |_: Text| std::future::pending::<Result<Text, Status>>())
        .server_streaming(COUNT, |message: Text| async move {
            let counted = (1..=message.count).map(move |n| Ok(text(&message.text, n)));
            let last = Err(Status::data_loss("counted"));
            Ok::<_, Status>(stream::iter(counted.chain([last])))
        });
    tokio::spawn(serve(bind(path).expect("a socket"), router))
}

fn socket(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("made").join("echo.sock")
}

async fn echo(client: &Client, message: Text) -> Result<Text, CallError> {
    client.unary(ECHO, message, SOON).await
}

#[tokio::test]
async fn a_call_that_waits_finds_a_peer_that_starts_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = socket(&dir);
    let client = Client::new(&path).waiting_for_peer();
    let hurried = client.unary::<Text, Text>(ECHO, text("a", 1), Duration::from_millis(1)).await.unwrap_err();
    let shown = hurried.to_string().replace(dir.path().to_str().unwrap(), "DIR");
    expect![[r#"rpc error: code = DeadlineExceeded desc = latest balancer error: connection error: desc = "transport: Error while dialing: dial unix DIR/made/echo.sock: connect: no such file or directory""#]]
        .assert_eq(&shown);
    let mut waiting = std::pin::pin!(echo(&client, text("ab", 2)));
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("there is no peer yet"),
        () = std::future::ready(()) => {}
    }
    let server = start(&path);
    assert_eq!(waiting.await.unwrap(), text("abab", 2));
    server.abort();
}

#[tokio::test]
async fn calls_are_answered_and_failures_have_codes() {
    let dir = tempfile::tempdir().unwrap();
    let path = socket(&dir);
    let client = Client::new(&path);
    let away = echo(&client, text("a", 1)).await.unwrap_err();
    assert_eq!(away.code, Code::Unavailable);
    let shown = away.to_string().replace(dir.path().to_str().unwrap(), "DIR");
    expect![[r#"rpc error: code = Unavailable desc = connection error: desc = "transport: Error while dialing: dial unix DIR/made/echo.sock: connect: no such file or directory""#]]
        .assert_eq(&shown);
    let server = start(&path);
    assert_eq!(echo(&client, text("ab", 2)).await.unwrap(), text("abab", 2));
    let refused = echo(&client, text("a", 0)).await.unwrap_err();
    expect!["rpc error: code = InvalidArgument desc = count is 0"].assert_eq(&refused.to_string());
    let unknown = client.unary::<Text, Text>("/test.v1.Echo/Other", text("", 0), SOON).await.unwrap_err();
    assert!(unknown.unimplemented());
    expect!["rpc error: code = Unimplemented desc = unknown method Other for service test.v1.Echo"]
        .assert_eq(&unknown.to_string());
    let late = client.unary::<Text, Text>(SILENT, text("", 0), Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(late.code, Code::DeadlineExceeded);
    // A peer that was started anew is found.
    server.abort();
    assert!(server.await.unwrap_err().is_cancelled());
    let again = start(&path);
    let found = loop {
        match echo(&client, text("c", 3)).await {
            Ok(found) => break found,
            Err(error) => assert_eq!(error.code, Code::Unavailable),
        }
    };
    assert_eq!(found, text("ccc", 3));
    again.abort();
}

#[tokio::test]
async fn messages_of_a_stream_come_in_order_and_its_end_has_a_code() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(&socket(&dir));
    let client = Client::new(socket(&dir));
    let mut messages = client.server_streaming::<Text, Text>(COUNT, text("n", 3), SOON).await.unwrap();
    for n in 1..=3 {
        assert_eq!(messages.next().await.unwrap(), Some(text("n", n)));
    }
    assert_eq!(messages.next().await.unwrap_err().code, Code::DataLoss);
    // A server that ends breaks the streams of its connections.
    let mut messages = client
        .server_streaming::<Text, Text>(COUNT, text(&"n".repeat(60_000), u32::MAX), SOON)
        .await
        .unwrap();
    assert!(messages.next().await.unwrap().is_some());
    server.abort();
    let code = loop {
        match messages.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a broken stream ended as if it were whole"),
            Err(error) => break error.code,
        }
    };
    assert_eq!(code, Code::Unavailable);
}

#[tokio::test]
async fn messages_beyond_the_limit_are_refused_on_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(&socket(&dir));
    let client = Client::new(socket(&dir));
    let long = "x".repeat(1 << 17);
    assert_eq!(echo(&client, text(&long, 1)).await.unwrap_err().code, Code::OutOfRange);
    let small = Client::new(socket(&dir)).message_limit(1000);
    assert_eq!(echo(&small, text("x", 2000)).await.unwrap_err().code, Code::OutOfRange);
    assert_eq!(echo(&small, text("x", 20)).await.unwrap().count, 20);
    server.abort();
}

#[tokio::test]
async fn only_sockets_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    assert_eq!(bind(&file).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    drop(bind(&dir.path().join("s")).unwrap());
    drop(bind(&dir.path().join("s")).unwrap());
}

#[test]
fn parses_endpoints() {
    for (endpoint, path) in [
        ("unix:///run/plugin.sock", Some("/run/plugin.sock")),
        ("unix:/run/plugin.sock", Some("/run/plugin.sock")),
        ("/run/plugin.sock", Some("/run/plugin.sock")),
        ("unix:///@plugin", Some("\0plugin")),
        ("unix://", None),
        ("unix:plugin.sock", None),
        ("tcp://localhost:1", None),
    ] {
        let found = Client::of_endpoint(endpoint);
        assert_eq!(found.as_ref().map(Client::path), path.map(Path::new), "{endpoint}");
    }
}

/// A connection to a peer that resets the first stream for this reason, and says then that it takes no other; with `None` it ends
/// without an answer.
async fn resetting(reason: Option<h2::Reason>) -> Channel {
    let (near, far) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(far).await.expect("HTTP/2");
        let accepted = connection.accept().await.expect("a request");
        let (_request, mut respond) = accepted.expect("a whole one");
        let Some(reason) = reason else { return };
        respond.send_reset(reason);
        connection.graceful_shutdown();
        // Until everything has been sent.
        while connection.accept().await.is_some() {}
    });
    let options = ChannelOptions::new(http::Uri::from_static("http://localhost"));
    Channel::over(near, &options).await.expect("HTTP/2")
}

#[tokio::test]
async fn a_failure_says_whether_the_peer_can_have_begun() {
    let call = async |channel: &Channel| {
        let error = channel.unary::<Text, Text>(ECHO, text("a", 1), SOON).await.unwrap_err();
        (error.code, error.unsent)
    };
    for (reason, unsent) in
        [(Some(h2::Reason::REFUSED_STREAM), true), (Some(h2::Reason::INTERNAL_ERROR), false), (None, false)]
    {
        let channel = resetting(reason).await;
        assert_eq!(call(&channel).await, (Code::Unavailable, unsent), "{reason:?}");
        // On a connection that is no more, nothing is sent.
        while !channel.is_closed() {
            tokio::task::yield_now().await;
        }
        assert_eq!(call(&channel).await, (Code::Unavailable, true), "{reason:?}");
    }
}
