//! Port-forward over each of its carriers.

use crate::{
    client::{SpdyClient, channels, connection, tunnel, websocket},
    process::socket,
};
use expect_test::expect;
use futures_util::SinkExt;
use kaji_containers::{Duplex, RuntimeError};
use kaji_meta::Query;
use kaji_streaming::{
    Connect, PodName, PortForwardPorts, Timeouts, port_forward,
    spdy::{Frame, reset},
};
use std::sync::Arc;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream},
    sync::oneshot,
};
use tokio_tungstenite::tungstenite::Message;

/// Port 80 answers a client's bytes in capitals when the client has sent all of them. Port 81 reads nothing. Others refuse.
fn ports() -> Connect {
    Arc::new(|port| {
        Box::pin(async move {
            let (near, mut far) = socket();
            match port {
                80 => {
                    tokio::spawn(async move {
                        let mut text = vec![];
                        far.read_to_end(&mut text).await.unwrap();
                        far.write_all(text.to_ascii_uppercase().as_slice()).await.unwrap();
                    });
                }
                81 => {
                    tokio::spawn(async move {
                        std::future::pending::<()>().await;
                        drop(far);
                    });
                }
                _ => return Err(RuntimeError::Internal("connection refused".into())),
            }
            Ok(Box::new(near) as Duplex)
        })
    })
}

fn serve(query: &'static str, connect: Connect) -> DuplexStream {
    connection(move |request| {
        let pod = PodName { name: "p1".into(), uid: String::new() };
        let ports = PortForwardPorts::of(request.headers, &Query::parse(query))?;
        port_forward(request, ports, pod, connect.clone(), Timeouts::default())
    })
}

async fn pair<S>(client: &mut SpdyClient<S>, port: &str, id: &str) -> (u32, u32)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let error = client.open(&[("streamType", "error"), ("port", port), ("requestID", id)]).await;
    let data = client.open(&[("streamType", "data"), ("port", port), ("requestID", id)]).await;
    (error, data)
}

fn is_end(stream: u32) -> impl Fn(&Frame) -> bool {
    move |frame| match frame {
        Frame::Data { stream: s, fin: true, .. } | Frame::RstStream { stream: s, .. } => *s == stream,
        _ => false,
    }
}

/// Connections that run beside each other, one after the other, and one that is refused.
async fn connections<S: AsyncRead + AsyncWrite + Unpin>(mut client: SpdyClient<S>) {
    let (first, stalled) = (pair(&mut client, "80", "0").await, pair(&mut client, "81", "1").await);
    client.data(stalled.1, &vec![0; 30_000], false).await;
    client.data(first.1, b"hello ", false).await;
    client.data(first.1, b"world", true).await;
    let streams = client.until(is_end(first.0)).await;
    assert_eq!(streams.text(first.1), "HELLO WORLD");
    assert_eq!(streams.ended, [(first.1, "fin".into()), (first.0, "fin".into())]);

    let refused = pair(&mut client, "82", "2").await;
    let streams = client.until(is_end(refused.0)).await;
    expect!["error forwarding port 82 to pod p1, uid : connection refused"]
        .assert_eq(&streams.text(refused.0));

    let again = pair(&mut client, "80", "0").await;
    client.data(again.1, b"x", true).await;
    assert_eq!(client.until(is_end(again.0)).await.text(again.1), "X");
}

#[tokio::test]
async fn forwards_connections_over_spdy() {
    connections(SpdyClient::connect(serve("", ports()), "portforward.k8s.io").await).await;
}

#[tokio::test]
async fn forwards_connections_over_spdy_in_a_websocket() {
    let socket = websocket(serve("", ports()), "SPDY/3.1+portforward.k8s.io").await;
    connections(SpdyClient::new(tunnel(socket))).await;
}

#[tokio::test]
async fn forwards_connections_over_websocket_channels() {
    let mut socket = websocket(serve("port=80,82", ports()), "v4.channel.k8s.io").await;
    socket.send(Message::binary(&b"\0hello"[..])).await.unwrap();
    use futures_util::StreamExt;
    let mut got = std::collections::BTreeMap::<u8, Vec<u8>>::new();
    while got.get(&3).is_none_or(|error| error.len() <= 2) {
        let data = socket.next().await.unwrap().unwrap().into_data();
        got.entry(data[0]).or_default().extend(&data[1..]);
    }
    let expected = b"R\0error forwarding port 82 to pod p1, uid : connection refused";
    assert_eq!(got[&3], expected);
    assert_eq!((&got[&0][..], &got[&1][..], &got[&2][..]), (&b"P\0"[..], &b"P\0"[..], &b"R\0"[..]));
}

#[tokio::test]
async fn a_websocket_ends_with_its_connections() {
    let mut socket = websocket(serve("port=82", ports()), "").await;
    let (got, code) = channels(&mut socket).await;
    assert_eq!((got[&0].as_slice(), code), (&b"R\0"[..], Some(1000)));
}

#[tokio::test]
async fn old_clients_do_not_name_their_pairs() {
    let mut client = SpdyClient::connect(serve("", ports()), "portforward.k8s.io").await;
    let error = client.open(&[("streamType", "error"), ("port", "80")]).await;
    let data = client.open(&[("streamType", "data"), ("port", "80")]).await;
    client.data(data, b"abc", true).await;
    assert_eq!(client.until(is_end(error)).await.text(data), "ABC");
}

#[tokio::test]
async fn streams_with_invalid_headers_are_reset() {
    let mut client = SpdyClient::connect(serve("", ports()), "portforward.k8s.io").await;
    for headers in [
        &[("streamType", "data")][..],
        &[("streamType", "data"), ("port", "0")],
        &[("streamType", "data"), ("port", "65536")],
        &[("port", "80")],
        &[("streamType", "stdin"), ("port", "80")],
    ] {
        let stream = client.open(headers).await;
        assert_eq!(
            client.frame().await,
            Some(Frame::RstStream { stream, status: reset::CANCEL }),
            "{headers:?}"
        );
    }
    // Ids only grow.
    client
        .send(Frame::SynStream {
            stream: 1,
            associated: 0,
            priority: 0,
            fin: false,
            unidirectional: false,
            headers: kaji_streaming::spdy::Headers::of(&[("streamType", "data"), ("port", "80")]),
        })
        .await;
    assert_eq!(client.frame().await, Some(Frame::RstStream { stream: 1, status: reset::PROTOCOL_ERROR }));
}

#[tokio::test]
async fn a_second_stream_of_a_kind_is_an_error() {
    let mut client = SpdyClient::connect(serve("", ports()), "portforward.k8s.io").await;
    let error = client.open(&[("streamType", "error"), ("port", "80"), ("requestID", "7")]).await;
    let second = client.open(&[("streamType", "error"), ("port", "80"), ("requestID", "7")]).await;
    let streams = client.until(is_end(second)).await;
    expect!["error processing stream for request 7: error stream already assigned"]
        .assert_eq(&streams.text(error));
}

#[tokio::test(start_paused = true)]
async fn half_a_pair_is_given_up() {
    let mut client = SpdyClient::connect(serve("", ports()), "portforward.k8s.io").await;
    let error = client.open(&[("streamType", "error"), ("port", "80"), ("requestID", "7")]).await;
    let begin = tokio::time::Instant::now();
    let streams = client.until(is_end(error)).await;
    assert_eq!(
        (streams.text(error).as_str(), begin.elapsed().as_secs()),
        ("(request=7) timed out waiting for streams", 30)
    );
}

#[tokio::test]
async fn a_reset_and_the_client_s_end_close_connections() {
    let (closed, mut ends) = tokio::sync::mpsc::channel::<oneshot::Receiver<()>>(2);
    let connect: Connect = Arc::new(move |_| {
        let closed = closed.clone();
        Box::pin(async move {
            let ((near, mut far), (ended, end)) = (socket(), oneshot::channel());
            closed.send(end).await.unwrap();
            tokio::spawn(async move {
                far.write_all(b"hi").await.unwrap();
                let mut rest = vec![];
                far.read_to_end(&mut rest).await.unwrap();
                drop(ended);
            });
            Ok(Box::new(near) as Duplex)
        })
    });
    let mut client = SpdyClient::connect(serve("", connect), "portforward.k8s.io").await;
    let first = pair(&mut client, "80", "0").await;
    client.until(|frame| matches!(frame, Frame::Data { .. })).await;
    client.send(Frame::RstStream { stream: first.1, status: reset::CANCEL }).await;
    ends.recv().await.unwrap().await.expect_err("dropped, not sent");
    pair(&mut client, "80", "1").await;
    client.until(|frame| matches!(frame, Frame::Data { data, .. } if !data.is_empty())).await;
    drop(client);
    ends.recv().await.unwrap().await.expect_err("dropped, not sent");
}
