//! The streaming server of a runtime: sessions of processes in memory, at a port of the loopback.

use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use kaji_containers::{Duplex, Exit, RuntimeError, Session};
use kaji_streaming::{
    Action, Connect, PodName, PortForwardPorts, StreamOptions, Timeouts, Upgrade, UpgradeRejection,
    UpgradeRequest, port_forward, remote_command,
};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Starts the server. Answers its URL.
pub async fn start() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(|request| async { Ok::<_, Infallible>(answer(request)) });
            tokio::spawn(async move {
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                // A client that ends its connection early is no fault of a test.
                let _ = connection.with_upgrades().await;
            });
        }
    });
    url
}

fn answer(mut request: Request<Incoming>) -> Response<String> {
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let (path, tty) = (request.uri().path().to_owned(), request.uri().query() == Some("tty=true"));
    let head =
        UpgradeRequest { method: request.method(), headers: request.headers(), upgrade: upgrade.as_ref() };
    let served = match path.as_str() {
        "/exec/absent" => Err(UpgradeRejection::new(http::StatusCode::NOT_FOUND, "cannot find the session")),
        "/portforward" => forward(head),
        path => process(path, tty, head),
    };
    match served {
        Ok(Upgrade { response, session }) => {
            tokio::spawn(session);
            response.map(|()| String::new())
        }
        Err(UpgradeRejection { code, text, .. }) => {
            let mut response = Response::new(text);
            *response.status_mut() = code;
            response
        }
    }
}

/// A port echoes in capitals; port 1 is closed.
fn forward(head: UpgradeRequest<'_>) -> Result<Upgrade, UpgradeRejection> {
    let connect: Connect = Arc::new(|port| {
        Box::pin(async move {
            if port == 1 {
                return Err(RuntimeError::Internal("connection refused".into()));
            }
            let (near, mut far) = tokio::io::duplex(64);
            tokio::spawn(async move {
                let mut text = vec![];
                far.read_to_end(&mut text).await.unwrap();
                far.write_all(&text.to_ascii_uppercase()).await.unwrap();
            });
            Ok(Box::new(near) as Duplex)
        })
    });
    let pod = PodName { name: "p".into(), uid: String::new() };
    port_forward(head, PortForwardPorts::default(), pod, connect, Timeouts::default())
}

/// `cat` copies its input, says so and ends with 3; `sizes` prints the size of its terminal; `big` prints three megabytes.
fn process(path: &str, tty: bool, head: UpgradeRequest<'_>) -> Result<Upgrade, UpgradeRejection> {
    let options = StreamOptions { stdin: !path.ends_with("big"), stdout: true, stderr: !tty, tty };
    let program = path.rsplit('/').next().unwrap_or_default().to_owned();
    let action = match path {
        "/attach" => Action::Attach,
        _ => Action::Exec { command: vec![program.clone()] },
    };
    let open = async move {
        let (stdin, mut input) = tokio::io::duplex(64);
        let (mut output, stdout) = tokio::io::duplex(64);
        let (mut errors, stderr) = tokio::io::duplex(64);
        let (resize, mut sizes) = mpsc::channel(4);
        let running = tokio::spawn(async move {
            match program.as_str() {
                "sizes" => {
                    let size: kaji_containers::TerminalSize = sizes.recv().await.unwrap();
                    output.write_all(format!("{}x{}", size.width, size.height).as_bytes()).await.unwrap();
                    0
                }
                "big" => {
                    output.write_all(&vec![b'x'; 3 << 20]).await.unwrap();
                    0
                }
                _ => {
                    tokio::io::copy(&mut input, &mut output).await.unwrap();
                    errors.write_all(b"done").await.unwrap();
                    3
                }
            }
        });
        Ok(Session {
            stdin: options.stdin.then(|| Box::new(stdin) as _),
            stdout: Some(Box::new(stdout) as _),
            stderr: options.stderr.then(|| Box::new(stderr) as _),
            resize: tty.then_some(resize),
            exit: Box::pin(async move {
                running.await.map(|code| Exit { code }).map_err(|e| RuntimeError::Internal(e.to_string()))
            }),
        })
    };
    remote_command(head, options, action, open, Timeouts::default())
}
