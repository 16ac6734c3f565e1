//! Requests that are not upgraded, and what they are answered with.

use crate::client::{UPGRADE_SPDY, refusal, websocket_headers};
use expect_test::expect;
use http::StatusCode;
use kaji_meta::Query;
use kaji_streaming::{
    Action, PodName, PortForwardPorts, StreamOptions, Timeouts, Upgrade, UpgradeRejection, UpgradeRequest,
    port_forward, remote_command,
};
use std::sync::Arc;

fn exec(request: UpgradeRequest<'_>) -> Result<Upgrade, UpgradeRejection> {
    let options = StreamOptions { stdout: true, ..StreamOptions::default() };
    remote_command(request, options, Action::Attach, std::future::pending(), Timeouts::default())
}

fn forward(request: UpgradeRequest<'_>) -> Result<Upgrade, UpgradeRejection> {
    let pod = PodName { name: "p".into(), uid: String::new() };
    let connect = Arc::new(|_| Box::pin(std::future::pending()) as _);
    port_forward(request, PortForwardPorts::default(), pod, connect, Timeouts::default())
}

#[tokio::test]
async fn rejects_invalid_exec_requests() {
    let spdy = |protocols: &str| format!("{UPGRADE_SPDY}X-Stream-Protocol-Version: {protocols}\n");
    let answers = [
        refusal(exec, "").await,
        refusal(exec, "Connection: upgrade\n").await,
        refusal(exec, UPGRADE_SPDY).await,
        refusal(exec, &spdy("")).await,
        refusal(exec, &spdy(" , ")).await,
        refusal(exec, &spdy("v5.channel.k8s.io, v6.channel.k8s.io")).await,
        refusal(exec, "Connection: upgrade\nUpgrade: h2c\nX-Stream-Protocol-Version: v4.channel.k8s.io\n")
            .await,
        refusal(exec, "Connection: upgrade\nUpgrade: websocket\n").await,
        refusal(exec, "Connection: upgrade\nUpgrade: websocket\nSec-WebSocket-Key: x\n").await,
        refusal(exec, &websocket_headers("v6.channel.k8s.io")).await,
        refusal(exec, &websocket_headers("SPDY/3.1+portforward.k8s.io")).await,
    ];
    expect![[r#"
        500 [] Upgrade request required
        400 [] unable to upgrade: header X-Stream-Protocol-Version does not exist in request with 1 headers
        400 [] unable to upgrade: header X-Stream-Protocol-Version does not exist in request with 2 headers
        400 [] unable to upgrade: header X-Stream-Protocol-Version contains [], but no valid protocols
        400 [] unable to upgrade: header X-Stream-Protocol-Version contains [,], but no valid protocols
        403 ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"] unable to upgrade: unable to negotiate protocol: client supports [v5.channel.k8s.io v6.channel.k8s.io], server accepts [v4.channel.k8s.io v3.channel.k8s.io v2.channel.k8s.io channel.k8s.io]
        400 [] unable to upgrade: missing upgrade headers in request
        400 [] mismatch challenge/response
        400 [] missing or bad WebSocket Version
        403 [] 
        403 [] "#]].assert_eq(&answers.join("\n"));
}

#[tokio::test]
async fn rejects_invalid_port_forward_requests() {
    let answers = [
        refusal(forward, "").await,
        refusal(forward, &format!("{UPGRADE_SPDY}X-Stream-Protocol-Version: v4.channel.k8s.io\n")).await,
        refusal(forward, &websocket_headers("SPDY/3.1+other.k8s.io")).await,
        refusal(forward, &websocket_headers("v5.channel.k8s.io")).await,
    ];
    expect![[r#"
        500 [] Upgrade request required
        403 ["portforward.k8s.io"] unable to upgrade: unable to negotiate protocol: client supports [v4.channel.k8s.io], server accepts [portforward.k8s.io]
        403 ["portforward.k8s.io"] unable to upgrade: unable to negotiate protocol: client supports [other.k8s.io], server accepts [portforward.k8s.io]
        403 [] "#]].assert_eq(&answers.join("\n"));
}

#[test]
fn rejects_invalid_queries() {
    let options = |query: &str| StreamOptions::of(&Query::parse(query));
    let (stdin, stdout, stderr, tty) = (true, true, true, false);
    assert_eq!(options("input=1&output=1&error=1"), Ok(StreamOptions { stdin, stdout, stderr, tty }));
    let terminal = StreamOptions { stdout, tty: true, ..StreamOptions::default() };
    assert_eq!(options("output=1&error=1&tty=1"), Ok(terminal));
    for query in ["", "output=true", "error=1&tty=1", "tty=1"] {
        let refusal = options(query).unwrap_err();
        assert_eq!(refusal.code, StatusCode::BAD_REQUEST);
        expect!["you must specify at least 1 of stdin, stdout, stderr"].assert_eq(&refusal.text);
    }
}
