//! The real kubectl against a server with one pod, over each of the protocols that it speaks. Skipped where there is no kubectl.

use crate::process::{socket, start};
use http::{Request, Response, StatusCode, header};
use hyper::{body::Incoming, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use kaji_containers::Duplex;
use kaji_meta::Query;
use kaji_streaming::{
    Action, PodName, PortForwardPorts, StreamOptions, Timeouts, Upgrade, UpgradeRejection, UpgradeRequest,
    port_forward, remote_command,
};
use std::{
    convert::Infallible,
    ffi::OsString,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    process::{Child, Command, Output, Stdio},
    sync::Arc,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const POD: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"default","uid":"u"},
    "spec":{"containers":[{"name":"c","stdin":true}]},"status":{"phase":"Running"}}"#;
const RESOURCES: &str = r#"{"kind":"APIResourceList","groupVersion":"v1","resources":[
    {"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get","list"]}]}"#;

fn document(path: &str) -> Option<&'static str> {
    Some(match path {
        "/version" => r#"{"major":"1","minor":"37","gitVersion":"v1.37.0"}"#,
        "/api" => r#"{"kind":"APIVersions","versions":["v1"]}"#,
        "/apis" => r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[]}"#,
        "/api/v1" => RESOURCES,
        "/api/v1/namespaces/default/pods/p" => POD,
        _ => return None,
    })
}

/// The sessions of the pod: its process copies its input, says that it is done, and exits with 3; its ports answer in capitals.
fn session(
    path: &str,
    query: &Query,
    request: UpgradeRequest<'_>,
) -> Option<Result<Upgrade, UpgradeRejection>> {
    let flag = |name| query.first(name) == Some("true");
    let tty = flag("tty");
    let options =
        StreamOptions { stdin: flag("stdin"), stdout: flag("stdout"), stderr: flag("stderr") && !tty, tty };
    let action = match path.strip_prefix("/api/v1/namespaces/default/pods/p/")? {
        "exec" => Action::Exec { command: query.all("command").map(str::to_owned).collect() },
        "attach" => Action::Attach,
        "portforward" => {
            let connect: kaji_streaming::Connect = Arc::new(|_| {
                Box::pin(async {
                    let (near, mut far) = socket();
                    tokio::spawn(async move {
                        let mut text = vec![];
                        far.read_to_end(&mut text).await.unwrap();
                        far.write_all(text.to_ascii_uppercase().as_slice()).await.unwrap();
                    });
                    Ok(Box::new(near) as Duplex)
                })
            });
            let ports = match PortForwardPorts::of(request.headers, query) {
                Ok(ports) => ports,
                Err(refusal) => return Some(Err(refusal)),
            };
            let pod = PodName { name: "p".into(), uid: String::new() };
            return Some(port_forward(request, ports, pod, connect, Timeouts::default()));
        }
        _ => return None,
    };
    let open = async move {
        Ok(start(options, move |mut process| async move {
            tokio::io::copy(&mut process.stdin, &mut process.stdout).await.unwrap();
            if options.stderr {
                process.stderr.write_all(b"done\n").await.unwrap();
            }
            3
        }))
    };
    Some(remote_command(request, options, action, open, Timeouts::default()))
}

fn answer(mut request: Request<Incoming>) -> Response<String> {
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let path = request.uri().path().to_owned();
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let mut response = Response::new(String::new());
    if let Some(text) = document(&path) {
        response.headers_mut().insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
        *response.body_mut() = text.to_owned();
        return response;
    }
    let (method, headers) = (request.method(), request.headers());
    match session(&path, &query, UpgradeRequest { method, headers, upgrade: upgrade.as_ref() }) {
        Some(Ok(Upgrade { response, session })) => {
            tokio::spawn(session);
            return response.map(|()| String::new());
        }
        Some(Err(UpgradeRejection { code, headers, text })) => {
            *response.status_mut() = code;
            *response.body_mut() = text;
            response.headers_mut().extend(headers);
        }
        None => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    response
}

async fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(request))));
            let server = hyper::server::conn::http1::Builder::new();
            // How kubectl ends its connections is no fault of a test.
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service).with_upgrades());
        }
    });
    address
}

/// The kubectl that `KUBECTL` names, else the one on the path.
fn program() -> OsString {
    std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into())
}

/// The minor version of kubectl; `None` where there is none.
fn minor_version(test: &str) -> Option<u32> {
    let Ok(output) = Command::new(program()).args(["version", "--client", "--output=json"]).output() else {
        println!("SKIPPED {test}: kubectl is not there");
        return None;
    };
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let minor = version["clientVersion"]["minor"].as_str().unwrap();
    Some(minor.trim_end_matches('+').parse().unwrap())
}

/// Whether a session over WebSockets can be asked of this kubectl: one before 1.34 reads frames
/// before it has made the streams, and drops what it read (kubernetes/kubernetes#131189).
fn over_websockets(test: &str, minor: u32) -> &'static [bool] {
    if minor < 34 {
        println!("SKIPPED {test} over WebSockets: kubectl 1.{minor} is older than 1.34");
        return &[false];
    }
    &[true, false]
}

/// Starts kubectl, over WebSockets or SPDY; it ends after half a minute.
fn kubectl(server: SocketAddr, websockets: bool, arguments: &[&str]) -> Child {
    let websockets = websockets.to_string();
    Command::new("timeout")
        .args(["-k", "1", "30"])
        .arg(program())
        .arg(format!("--server=http://{server}"))
        .args(arguments)
        .env("KUBECONFIG", "/dev/null")
        .env("NO_PROXY", "*")
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", &websockets)
        .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", &websockets)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

async fn output(mut child: Child, input: Vec<u8>) -> Output {
    blocking(move || {
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        output
    })
    .await
}

#[tokio::test]
async fn exec_and_attach() {
    let Some(minor) = minor_version("exec_and_attach") else { return };
    let server = serve().await;
    let input = b"0123456789abcdef".repeat(64 << 10);
    for &websockets in over_websockets("exec_and_attach", minor) {
        let child = kubectl(server, websockets, &["exec", "-i", "p", "--", "cat", "-n"]);
        let Output { status, stdout, stderr } = output(child, input.clone()).await;
        assert_eq!(String::from_utf8_lossy(&stderr), "done\ncommand terminated with exit code 3\n");
        assert!(stdout == input, "{} of {} bytes", stdout.len(), input.len());
        assert_eq!(status.code(), Some(3));

        let child = kubectl(server, websockets, &["exec", "p", "--", "true"]);
        let Output { status, stderr, .. } = output(child, vec![]).await;
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        assert_eq!(
            (stderr.as_str(), status.code()),
            ("done\ncommand terminated with exit code 3\n", Some(3))
        );

        let child = kubectl(server, websockets, &["attach", "-i", "p", "-c", "c"]);
        let Output { status, stdout, .. } = output(child, b"hello".to_vec()).await;
        assert_eq!((String::from_utf8_lossy(&stdout).as_ref(), status.code()), ("hello", Some(0)));
    }
}

#[tokio::test]
async fn forwarded_ports() {
    if minor_version("forwarded_ports").is_none() {
        return;
    }
    let server = serve().await;
    for websockets in [true, false] {
        let arguments = ["port-forward", "--address=127.0.0.1", "pod/p", ":80"];
        let mut child = kubectl(server, websockets, &arguments);
        blocking(move || {
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            let address = line.strip_prefix("Forwarding from ").and_then(|rest| rest.split(' ').next());
            let address: SocketAddr = address.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
            for _ in 0..3 {
                let mut connection = TcpStream::connect(address).unwrap();
                connection.write_all(&b"hello ".repeat(20_000)).unwrap();
                connection.shutdown(Shutdown::Write).unwrap();
                let mut answer = String::new();
                connection.read_to_string(&mut answer).unwrap();
                assert!(answer == "HELLO ".repeat(20_000), "{} bytes", answer.len());
            }
            // SIGTERM, which `timeout` passes on.
            let killed = Command::new("kill").arg(child.id().to_string()).status().unwrap();
            assert!(killed.success());
            child.wait().unwrap();
        })
        .await;
    }
}
