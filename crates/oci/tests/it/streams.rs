//! Logs, exec and attach.

use crate::common::node;
use kaji_containers::{AttachRequest, ContainerRuntime, ExecRequest, RuntimeError, TerminalSize};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_have_streams_and_parts() {
    let Some(node) = node("logs").await else { return };
    let script = "echo out; sleep 0.05; echo err >&2; sleep 0.05; head -c 20000 /dev/zero | tr '\\0' a; echo";
    let sandbox = node.sandbox().await;
    let script = script.replace("tr '\\0' a", "busybox tr '\\0' a");
    let id = node.start(&sandbox, node.script(&script)).await;
    let status = node.ended(&id).await;
    let log = std::fs::read_to_string(&status.log_path).unwrap();
    let heads: Vec<String> =
        log.lines().map(|l| l.splitn(4, ' ').skip(1).take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(heads, ["stdout F", "stderr F", "stdout P", "stdout F"]);
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_opened_anew() {
    let Some(node) = node("reopen").await else { return };
    let sandbox = node.sandbox().await;
    let id = node
        .start(
            &sandbox,
            node.script("echo one; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo two; exec sleep 1000"),
        )
        .await;
    node.printed(&id, "one").await;
    let path = node.runtime().container_status(&id).await.unwrap().log_path;
    std::fs::rename(&path, format!("{path}.1")).unwrap();
    node.runtime().reopen_container_log(&id).await.unwrap();
    node.runtime().exec_sync(&id, words("touch /tmp/go"), Duration::from_secs(20)).await.unwrap();
    node.printed(&id, "two").await;
    assert!(!std::fs::read_to_string(&path).unwrap().contains("one"));
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_has_output_codes_and_deadlines() {
    let Some(node) = node("exec").await else { return };
    let sandbox = node.sandbox().await;
    let id = node.start(&sandbox, node.script("exec sleep 1000")).await;
    let run = |command: Vec<String>, timeout| node.runtime().exec_sync(&id, command, timeout);
    let script = |text: &str| vec!["/bin/sh".to_owned(), "-c".to_owned(), text.to_owned()];
    let before = std::time::Instant::now();
    let output = run(script("echo out; echo err >&2; exit 5"), Duration::ZERO).await.unwrap();
    eprintln!("exec: {:?}", before.elapsed());
    assert_eq!((output.stdout, output.stderr, output.exit_code), (b"out\n".to_vec(), b"err\n".to_vec(), 5));
    let error = run(words("no-such-program"), Duration::ZERO).await.unwrap_err();
    let text = "executable file not found in $PATH";
    assert!(matches!(&error, RuntimeError::StartFailed(m) if m.contains(text)), "{error:?}");
    let error = run(words("sleep 1000"), Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(error, RuntimeError::DeadlineExceeded(_)), "{error:?}");
    let large = run(script("head -c 3000000 /dev/zero"), Duration::from_secs(20)).await.unwrap();
    assert_eq!(large.stdout.len(), 3_000_000);
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_streams_and_terminals() {
    let Some(node) = node("tty").await else { return };
    let sandbox = node.sandbox().await;
    let container_id = node.start(&sandbox, node.script("exec sleep 1000")).await;
    let request = ExecRequest {
        container_id: container_id.clone(),
        command: words("cat"),
        stdin: true,
        stdout: true,
        ..Default::default()
    };
    let mut session = node.runtime().exec(request).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"through").await.unwrap();
    drop(stdin);
    let mut text = String::new();
    session.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
    assert_eq!((text.as_str(), session.exit.await.unwrap().code), ("through", 0));

    let request = ExecRequest {
        container_id,
        command: vec!["/bin/sh".into(), "-c".into(), "tty; read line; stty size".into()],
        tty: true,
        stdin: true,
        stdout: true,
        ..Default::default()
    };
    let mut session = node.runtime().exec(request).await.unwrap();
    session.resize.take().unwrap().send(TerminalSize { width: 111, height: 22 }).await.unwrap();
    let mut stdout = session.stdout.take().unwrap();
    let mut text = String::new();
    let mut buffer = [0; 256];
    while !text.contains("/dev/pts/") {
        let length = stdout.read(&mut buffer).await.unwrap();
        text.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    let mut stdin = session.stdin.take().unwrap();
    // The size is set in the background: the answer comes only after this line.
    tokio::time::sleep(Duration::from_millis(100)).await;
    stdin.write_all(b"go\n").await.unwrap();
    stdout.read_to_string(&mut text).await.unwrap();
    assert!(text.contains("22 111"), "{text:?}");
    assert_eq!(session.exit.await.unwrap().code, 0);
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attaches_to_the_containers_own_streams() {
    let Some(node) = node("attach").await else { return };
    let sandbox = node.sandbox().await;
    let mut config = node.script("while read line; do echo got $line; done; echo end");
    (config.stdin, config.stdin_once) = (true, true);
    let id = node.start(&sandbox, config).await;
    let request = AttachRequest {
        container_id: id.clone(),
        stdin: true,
        stdout: true,
        stderr: true,
        ..Default::default()
    };
    let mut session = node.runtime().attach(request).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"a\nb\n").await.unwrap();
    drop(stdin);
    let mut text = String::new();
    session.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "got a\ngot b\nend\n");
    assert_eq!(session.exit.await.unwrap().code, 0);
    assert_eq!(node.output(&node.ended(&id).await), text);
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_ends_with_its_input_while_the_containers_goes_on() {
    let Some(node) = node("attach-open").await else { return };
    let sandbox = node.sandbox().await;
    let mut config = node.script("read line; echo got $line");
    config.stdin = true;
    let id = node.start(&sandbox, config).await;
    let request =
        || AttachRequest { container_id: id.clone(), stdin: true, stdout: true, ..Default::default() };
    let mut first = node.runtime().attach(request()).await.unwrap();
    drop(first.stdin.take());
    let limit = std::time::Duration::from_secs(20);
    assert_eq!(tokio::time::timeout(limit, first.exit).await.unwrap().unwrap().code, 0);
    let mut second = node.runtime().attach(request()).await.unwrap();
    let mut stdin = second.stdin.take().unwrap();
    stdin.write_all(b"a\n").await.unwrap();
    let mut text = String::new();
    second.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "got a\n");
    node.ended(&id).await;
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_has_a_terminal() {
    let Some(node) = node("terminal").await else { return };
    let sandbox = node.sandbox().await;
    let mut config = node.script("tty; read line; echo got $line");
    (config.stdin, config.tty) = (true, true);
    let id = node.start(&sandbox, config).await;
    let request = AttachRequest {
        container_id: id.clone(),
        stdin: true,
        stdout: true,
        tty: true,
        ..Default::default()
    };
    let mut session = node.runtime().attach(request).await.unwrap();
    session.stdin.take().unwrap().write_all(b"word\n").await.unwrap();
    assert_eq!(session.exit.await.unwrap().code, 0);
    let text = node.output(&node.ended(&id).await);
    assert!(text.contains("/dev/") && text.contains("got word"), "{text:?}");
    node.finish().await;
}
