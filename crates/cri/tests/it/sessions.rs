//! Exec, attach and port-forward through the streaming server.

use crate::fake::{Age, Fake};
use crate::streaming_server;
use kaji_containers::{
    AttachRequest, ContainerRuntime, ExecRequest, Exit, Reader, RuntimeError, Session, TerminalSize,
};
use kaji_cri::CriRuntime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn start() -> (Fake, CriRuntime) {
    let fake = Fake::start(Age::New);
    fake.state.lock().unwrap().url = streaming_server::start().await;
    let runtime = fake.runtime().await;
    (fake, runtime)
}

fn exec(program: &str, tty: bool, stdin: bool) -> ExecRequest {
    let command = vec![program.to_owned()];
    ExecRequest { container_id: "c".into(), command, tty, stdin, stdout: true, stderr: true }
}

async fn text(reader: Option<Reader>) -> String {
    let mut text = String::new();
    if let Some(mut reader) = reader {
        reader.read_to_string(&mut text).await.unwrap();
    }
    text
}

async fn finish(session: Session) -> (String, String, Result<Exit, RuntimeError>) {
    let Session { stdout, stderr, exit, .. } = session;
    let exit = exit.await;
    (text(stdout).await, text(stderr).await, exit)
}

#[tokio::test]
async fn the_end_of_input_reaches_a_process_and_its_output_and_exit_come_back() {
    let (_fake, runtime) = start().await;
    let attach =
        AttachRequest { container_id: "c".into(), tty: false, stdin: true, stdout: true, stderr: true };
    // How a container ends is in its status, and not in what is attached to it.
    for (mut session, code) in [
        (runtime.exec(exec("cat", false, true)).await.unwrap(), 3),
        (runtime.attach(attach).await.unwrap(), 0),
    ] {
        let mut stdin = session.stdin.take().unwrap();
        stdin.write_all(b"hello ").await.unwrap();
        stdin.write_all(b"world").await.unwrap();
        stdin.shutdown().await.unwrap();
        assert_eq!(finish(session).await, ("hello world".into(), "done".into(), Ok(Exit { code })));
    }
}

#[tokio::test]
async fn input_that_is_dropped_ends_too() {
    let (_fake, runtime) = start().await;
    let mut session = runtime.exec(exec("cat", false, true)).await.unwrap();
    drop(session.stdin.take());
    assert_eq!(finish(session).await, (String::new(), "done".into(), Ok(Exit { code: 3 })));
}

#[tokio::test]
async fn a_terminal_gets_its_size_and_has_one_output() {
    let (_fake, runtime) = start().await;
    let session = runtime.exec(exec("sizes", true, true)).await.unwrap();
    assert!(session.stderr.is_none());
    session.resize.as_ref().unwrap().send(TerminalSize { width: 80, height: 24 }).await.unwrap();
    assert_eq!(finish(session).await, ("80x24".into(), String::new(), Ok(Exit { code: 0 })));
}

#[tokio::test]
async fn output_of_any_length_arrives_whole() {
    let (_fake, runtime) = start().await;
    let session = runtime.exec(exec("big", false, false)).await.unwrap();
    let Session { stdout, stderr, exit, .. } = session;
    let (stdout, stderr, exit) = tokio::join!(text(stdout), text(stderr), exit);
    assert_eq!((stdout.len(), stderr.as_str(), exit), (3 << 20, "", Ok(Exit { code: 0 })));
}

#[tokio::test]
async fn a_session_that_is_refused_or_cannot_be_reached_is_an_error() {
    let (fake, runtime) = start().await;
    let error = runtime.exec(exec("absent", false, false)).await.unwrap_err();
    assert_eq!(error, RuntimeError::NotFound("cannot find the session".into()));
    for (url, part) in [("https://127.0.0.1:1", "uses TLS"), ("http://127.0.0.1:1", "connect"), ("x", "URL")]
    {
        fake.state.lock().unwrap().url = url.into();
        let error = runtime.exec(exec("cat", false, false)).await.unwrap_err();
        assert!(error.to_string().contains(part), "{url}: {error}");
    }
}

#[tokio::test]
async fn a_port_is_forwarded_in_both_directions() {
    let (_fake, runtime) = start().await;
    let mut connection = runtime.port_forward("s", 80).await.unwrap();
    connection.write_all(b"over there").await.unwrap();
    connection.shutdown().await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "OVER THERE");
    // A refusal that comes late ends the connection.
    match runtime.port_forward("s", 1).await {
        Err(error) => assert!(error.to_string().contains("connection refused"), "{error}"),
        Ok(mut connection) => assert_eq!(connection.read_to_string(&mut String::new()).await.unwrap(), 0),
    }
}
