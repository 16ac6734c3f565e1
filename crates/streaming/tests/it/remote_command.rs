//! Exec and attach over both protocols.

use crate::{
    client::{SpdyClient, channels, connection, websocket},
    process::{Process, start},
};
use expect_test::expect;
use futures_util::SinkExt;
use kaji_containers::{RuntimeError, Session};
use kaji_streaming::{Action, StreamOptions, Timeouts, remote_command, spdy::Frame};
use std::{sync::Mutex, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::oneshot,
};
use tokio_tungstenite::tungstenite::Message;

const PIPES: StreamOptions = StreamOptions { stdin: true, stdout: true, stderr: true, tty: false };
const TERMINAL: StreamOptions = StreamOptions { stdin: true, stdout: true, stderr: false, tty: true };

fn exec() -> Action {
    Action::Exec { command: vec!["cat".into(), "-n".into()] }
}

/// A connection to a server that serves one session.
fn serve(
    options: StreamOptions,
    action: Action,
    open: impl Future<Output = Result<Session, RuntimeError>> + Send + 'static,
) -> DuplexStream {
    let once = Mutex::new(Some((action, open)));
    connection(move |request| {
        let (action, open) = once.lock().unwrap().take().expect("one session");
        remote_command(request, options, action, open, Timeouts::default())
    })
}

/// Serves a process that copies its input to its output, says something else, and exits with 3.
fn cat(options: StreamOptions) -> DuplexStream {
    serve(options, exec(), async move {
        Ok(start(options, |mut process| async move {
            tokio::io::copy(&mut process.stdin, &mut process.stdout).await.unwrap();
            process.stderr.write_all(b"done").await.unwrap();
            3
        }))
    })
}

#[tokio::test]
async fn spdy_v4_copies_streams_and_says_the_exit_code() {
    let mut client =
        SpdyClient::connect(cat(PIPES), "v5.channel.k8s.io, v4.channel.k8s.io, channel.k8s.io").await;
    let error = client.open(&[("streamType", "error")]).await;
    let stdin = client.open(&[("streamType", "stdin")]).await;
    client.open(&[("streamType", "unknown")]).await;
    let stdout = client.open(&[("streamType", "stdout")]).await;
    let stderr = client.open(&[("streamType", "stderr")]).await;
    client.data(stdin, b"hello ", false).await;
    client.data(stdin, b"world", true).await;
    let streams = client.rest().await;
    expect![[r#"
        hello world
        done
        {"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: error executing command [cat -n], exit code 3","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#]]
    .assert_eq(&[stdout, stderr, error].map(|stream| streams.text(stream)).join("\n"));
    let ended = format!("{:?}", &streams.ended[streams.ended.len() - 3..]);
    expect![[r#"[(1, "fin"), (3, "reset 5"), (0, "goaway 0")]"#]].assert_eq(&ended);
}

#[tokio::test]
async fn spdy_v2_has_a_text_at_the_end_and_no_sizes() {
    let mut client = SpdyClient::connect(cat(TERMINAL), "v2.channel.k8s.io").await;
    let error = client.open(&[("streamType", "error")]).await;
    let stdin = client.open(&[("streamType", "stdin")]).await;
    let stdout = client.open(&[("streamType", "stdout")]).await;
    client.data(stdin, b"x", true).await;
    let streams = client.rest().await;
    assert_eq!(streams.text(stdout), "x");
    expect!["Internal error occurred: error executing command in container: killed"]
        .assert_eq(&streams.text(error));
}

/// A terminal's program: prints the sizes that it gets until its input ends.
async fn sizes(mut process: Process) -> i32 {
    loop {
        tokio::select! {
            Some(size) = process.resize.recv() => {
                let line = format!("{}x{}\n", size.width, size.height);
                process.stdout.write_all(line.as_bytes()).await.unwrap();
            }
            read = process.stdin.read_u8() => if read.is_err() { return 0 },
        }
    }
}

#[tokio::test]
async fn sizes_of_a_terminal_reach_it() {
    let open = async { Ok(start(TERMINAL, sizes)) };
    let mut client = SpdyClient::connect(serve(TERMINAL, exec(), open), "v4.channel.k8s.io").await;
    let error = client.open(&[("streamType", "error")]).await;
    let stdin = client.open(&[("streamType", "stdin")]).await;
    let stdout = client.open(&[("streamType", "stdout")]).await;
    let resize = client.open(&[("streamType", "resize")]).await;
    client.data(resize, b"{\"Width\":80,\"Hei", false).await;
    client.data(resize, b"ght\":24}\n", false).await;
    let first = client.until(|frame| matches!(frame, Frame::Data { .. })).await;
    assert_eq!(first.text(stdout), "80x24\n");
    client.data(stdin, b"", true).await;
    let streams = client.rest().await;
    assert_eq!(streams.text(error), r#"{"metadata":{},"status":"Success"}"#);

    let open = async { Ok(start(TERMINAL, sizes)) };
    let mut socket = websocket(serve(TERMINAL, exec(), open), "v5.channel.k8s.io").await;
    socket.send(Message::binary(&b"\x04{\"Width\":1,\"Height\":2}"[..])).await.unwrap();
    use futures_util::StreamExt;
    // The greeting, and then the size.
    assert_eq!(socket.next().await.unwrap().unwrap().into_data(), &b"\x01"[..]);
    assert_eq!(socket.next().await.unwrap().unwrap().into_data(), &b"\x011x2\n"[..]);
}

#[tokio::test]
async fn websocket_v5_closes_channels() {
    let mut socket = websocket(cat(PIPES), "v5.channel.k8s.io").await;
    for message in [&b"\0hello"[..], b"", b"\x09nothing", b"\x02ignored", b"\xff\0", b"\0late"] {
        socket.send(Message::binary(message)).await.unwrap();
    }
    let (channels, code) = channels(&mut socket).await;
    let text = |channel: u8| String::from_utf8_lossy(&channels[&channel]).into_owned();
    assert_eq!((text(1), text(2), code), ("hello".into(), "done".into(), Some(1000)));
    expect![[r#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: command terminated with exit code 3","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#]]
        .assert_eq(&text(3));
}

#[tokio::test]
async fn websockets_with_base64_are_text() {
    let options = StreamOptions { stdin: true, stdout: true, ..StreamOptions::default() };
    let open = async move {
        Ok(start(options, |mut process| async move {
            let mut line = [0; 5];
            process.stdin.read_exact(&mut line).await.unwrap();
            process.stdout.write_all(&line).await.unwrap();
            0
        }))
    };
    let mut socket = websocket(serve(options, exec(), open), "v4.base64.channel.k8s.io").await;
    socket.send(Message::text("0aGVsbG8=")).await.unwrap();
    let (channels, code) = channels(&mut socket).await;
    expect![[r#"{49: "aGVsbG8=", 51: "eyJtZXRhZGF0YSI6e30sInN0YXR1cyI6IlN1Y2Nlc3MifQ=="} Some(1000)"#]]
        .assert_eq(&format!(
            "{:?} {code:?}",
            channels
                .iter()
                .map(|(channel, data)| (channel, String::from_utf8_lossy(data)))
                .collect::<std::collections::BTreeMap<_, _>>()
        ));
}

#[tokio::test]
async fn a_process_that_does_not_start_is_an_internal_error() {
    let failed = || async { Err(RuntimeError::StartFailed("exec: \"x\": not found".into())) };
    let mut socket = websocket(serve(PIPES, exec(), failed()), "v4.channel.k8s.io").await;
    let (got, _) = channels(&mut socket).await;
    expect![[r#"{"metadata":{},"status":"Failure","message":"Internal error occurred: error executing command in container: exec: \"x\": not found","reason":"InternalError","code":500}"#]]
        .assert_eq(&String::from_utf8_lossy(&got[&3]));
    let mut socket = websocket(serve(PIPES, Action::Attach, failed()), "").await;
    let (got, _) = channels(&mut socket).await;
    expect![[r#"Internal error occurred: error attaching to container: exec: "x": not found"#]]
        .assert_eq(&String::from_utf8_lossy(&got[&3]));
}

/// Connects a client, has it write `input`, and closes the connection.
async fn come_and_go(kind: &str, connection: DuplexStream, options: StreamOptions, input: &[u8]) {
    use futures_util::StreamExt;
    if kind == "spdy" {
        let mut client = SpdyClient::connect(connection, "v4.channel.k8s.io").await;
        let mut stdin = None;
        let wanted = [
            ("error", true),
            ("stdin", options.stdin),
            ("stdout", options.stdout),
            ("stderr", options.stderr),
        ];
        for (kind, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
            let stream = client.open(&[("streamType", kind)]).await;
            stdin = stdin.or((kind == "stdin").then_some(stream));
        }
        if options.tty {
            client.open(&[("streamType", "resize")]).await;
        }
        client.until(|frame| matches!(frame, Frame::Data { .. })).await;
        if let Some(stdin) = stdin.filter(|_| !input.is_empty()) {
            client.data(stdin, input, false).await;
        }
    } else {
        let mut socket = websocket(connection, "v5.channel.k8s.io").await;
        socket.next().await.unwrap().unwrap();
        socket.next().await.unwrap().unwrap();
        if !input.is_empty() {
            socket.send(Message::Binary([&[0], input].concat().into())).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_terminal_hangs_up_when_its_client_is_gone() {
    let options = StreamOptions { stdin: true, stdout: true, tty: true, ..StreamOptions::default() };
    for kind in ["spdy", "websocket"] {
        let (killed, end) = oneshot::channel::<()>();
        let open = async move {
            Ok(start(options, |mut process| async move {
                let _killed = killed;
                process.stdout.write_all(b"up").await.unwrap();
                std::future::pending().await
            }))
        };
        come_and_go(kind, serve(options, exec(), open), options, b"").await;
        end.await.expect_err("dropped, not sent");
    }
}

/// As with upstream's runtimes: what copies a file to a pod sends it and is gone.
#[tokio::test]
async fn a_command_outlives_its_client() {
    for kind in ["spdy", "websocket"] {
        let (send, received) = oneshot::channel();
        let open = async move {
            Ok(start(PIPES, |mut process| async move {
                process.stdout.write_all(b"up").await.unwrap();
                let mut input = vec![];
                process.stdin.read_to_end(&mut input).await.unwrap();
                // More than the pipe has room for.
                process.stdout.write_all(&[b'x'; 8 << 10]).await.unwrap();
                process.stderr.write_all(&[b'x'; 8 << 10]).await.unwrap();
                send.send(input).unwrap();
                0
            }))
        };
        come_and_go(kind, serve(PIPES, exec(), open), PIPES, &[b'i'; 5000]).await;
        assert_eq!(received.await.unwrap(), [b'i'; 5000], "{kind}");
    }
}

/// The process writes on while its client does not read, until queues are full, and all arrives when the client reads.
#[tokio::test]
async fn a_client_that_does_not_read_holds_up_its_process() {
    const LENGTH: usize = 8 << 20;
    let options = StreamOptions { stdout: true, ..StreamOptions::default() };
    let (written, mut count) = tokio::sync::watch::channel(0);
    let open = async move {
        Ok(start(options, |mut process| async move {
            for _ in 0..LENGTH / 1024 {
                process.stdout.write_all(&[b'x'; 1024]).await.unwrap();
                written.send_modify(|n| *n += 1024);
            }
            0
        }))
    };
    let mut client = SpdyClient::connect(serve(options, exec(), open), "v4.channel.k8s.io").await;
    let error = client.open(&[("streamType", "error")]).await;
    let stdout = client.open(&[("streamType", "stdout")]).await;
    // Writing has stopped when it does not go on while everything else has run.
    loop {
        let before = *count.borrow_and_update();
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        if before > 0 && *count.borrow() == before {
            assert!(before < 2 << 20, "{before} bytes are queued");
            break;
        }
    }
    let streams = client.rest().await;
    assert_eq!(streams.text(stdout).len(), LENGTH);
    assert_eq!(streams.text(error), r#"{"metadata":{},"status":"Success"}"#);
}

#[tokio::test]
async fn input_that_is_not_read_is_dropped_when_the_process_ends() {
    let open = async { Ok(start(PIPES, |_| async { 0 })) };
    let mut client = SpdyClient::connect(serve(PIPES, exec(), open), "v4.channel.k8s.io").await;
    let error = client.open(&[("streamType", "error")]).await;
    let stdin = client.open(&[("streamType", "stdin")]).await;
    client.open(&[("streamType", "stdout")]).await;
    client.data(stdin, &[0; 8000], false).await;
    client.open(&[("streamType", "stderr")]).await;
    assert_eq!(client.rest().await.text(error), r#"{"metadata":{},"status":"Success"}"#);
}

#[tokio::test(start_paused = true)]
async fn streams_that_do_not_come_end_the_connection() {
    let (opened, open) = oneshot::channel::<()>();
    let open_session = async move {
        drop(opened);
        std::future::pending().await
    };
    let mut client = SpdyClient::connect(serve(PIPES, exec(), open_session), "v4.channel.k8s.io").await;
    client.open(&[("streamType", "error")]).await;
    let begin = tokio::time::Instant::now();
    assert_eq!(client.rest().await.ended, [(0, "goaway 0".to_owned())]);
    assert_eq!(begin.elapsed().as_secs(), 30);
    open.await.expect_err("the session was never opened, and is dropped");
}

#[tokio::test(start_paused = true)]
async fn idle_sessions_end() {
    let open = async { Ok(start(PIPES, |_| std::future::pending())) };
    let mut client = SpdyClient::connect(serve(PIPES, exec(), open), "v4.channel.k8s.io").await;
    for kind in ["error", "stdin", "stdout", "stderr"] {
        client.open(&[("streamType", kind)]).await;
    }
    let begin = tokio::time::Instant::now();
    tokio::time::advance(Duration::from_secs(3600)).await;
    client.send(Frame::Ping(1)).await;
    while client.frame().await != Some(Frame::Ping(1)) {}
    assert_eq!(client.rest().await.ended, []);
    assert_eq!(begin.elapsed().as_secs(), 5 * 3600);
}

#[tokio::test]
async fn what_is_not_spdy_ends_the_connection() {
    let open = async { Ok(start(PIPES, |_| std::future::pending())) };
    let mut client = SpdyClient::connect(serve(PIPES, exec(), open), "v4.channel.k8s.io").await;
    client.raw(&[0x80, 3, 0, 1, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2]).await;
    client.rest().await;
}

#[tokio::test]
async fn streams_beyond_those_that_are_needed_are_refused() {
    let open = async { Ok(start(PIPES, |_| std::future::pending())) };
    let mut client = SpdyClient::connect(serve(PIPES, exec(), open), "v4.channel.k8s.io").await;
    for _ in 0..40 {
        client.open(&[("streamType", "unknown")]).await;
    }
    let refused = client.until(|frame| matches!(frame, Frame::RstStream { stream: 79, .. })).await;
    assert_eq!(refused.ended.len(), 40 - 16, "{refused:?}");
    assert!(refused.ended.iter().all(|(_, how)| how == "reset 3"), "{refused:?}");
}
