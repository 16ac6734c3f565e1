//! The process under the name `etcd`: it answers `/health`, because envtest waits for that, and holds nothing. The API
//! server beside it keeps its objects itself.
//!
//! Invariant: requests of etcd clients fail with an explanation; no request is answered as if something were stored.

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use std::{
    convert::Infallible,
    future::Future,
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinSet};

/// The default of `--listen-client-urls`.
const DEFAULT: &str = "http://localhost:2379";
const LISTEN: &str = "listen-client-urls";
/// Flags that would make it speak TLS.
const TLS: [&str; 4] = ["cert-file", "key-file", "client-cert-auth", "auto-tls"];
/// envtest searches these flags in the help.
const HELP: &str = "\
etcd, as kaji has it: answers /health and holds nothing.

  --listen-client-urls 'http://localhost:2379'
    Where to listen.
  --advertise-client-urls, --data-dir, --listen-peer-urls, --unsafe-no-fsync and others
    Accepted, without effect.
  --unsafe-no-fsync
    Accepted, without effect.
";
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests take no time; only a connection that says nothing is still open then.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// A flag.
    #[error("--{0} is not supported: this etcd speaks plain HTTP and holds nothing")]
    Flag(String),
    /// An address.
    #[error("{0:?} is no http:// address to listen on")]
    Address(String),
    /// The network.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What went wrong.
        source: std::io::Error,
    },
}

/// Runs until `stop` is done. With `--help` or `--version` there is a text to print instead.
///
/// # Errors
/// When it cannot listen on these addresses.
pub async fn run(
    args: impl IntoIterator<Item = String>,
    stop: impl Future<Output = ()>,
) -> Result<Option<String>, EtcdError> {
    let addresses = match parse(args)? {
        Parsed::Text(text) => return Ok(Some(text)),
        Parsed::Listen(addresses) => addresses,
    };
    let mut listeners = JoinSet::new();
    let (ended, end) = tokio::sync::watch::channel(false);
    for address in addresses {
        let bound = TcpListener::bind(address).await;
        let listener = bound.map_err(|source| EtcdError::Listen { address, source })?;
        tracing::info!(address = %listener.local_addr().unwrap_or(address), "serving client traffic");
        listeners.spawn(serve(listener, end.clone()));
    }
    stop.await;
    ended.send_replace(true);
    while listeners.join_next().await.is_some() {}
    Ok(None)
}

enum Parsed {
    Text(String),
    Listen(Vec<SocketAddr>),
}

fn parse(args: impl IntoIterator<Item = String>) -> Result<Parsed, EtcdError> {
    let mut urls = DEFAULT.to_owned();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        // Go's flags: one dash or two, the value behind a `=` or in the next argument.
        let Some(flag) = arg.strip_prefix("--").or(arg.strip_prefix('-')) else { continue };
        let (name, value) = flag.split_once('=').map_or((flag, None), |(n, v)| (n, Some(v.to_owned())));
        match name {
            "help" | "h" => return Ok(Parsed::Text(HELP.into())),
            "version" => {
                let version = env!("CARGO_PKG_VERSION");
                return Ok(Parsed::Text(format!(
                    "kaji {version}: answers /health as etcd does, holds nothing\n"
                )));
            }
            LISTEN => urls = value.or_else(|| args.next()).unwrap_or_default(),
            _ if TLS.contains(&name) => return Err(EtcdError::Flag(name.into())),
            _ => tracing::info!(flag = name, "without effect: this etcd holds nothing"),
        }
    }
    urls.split(',').map(listen_address).collect::<Result<Vec<_>, _>>().map(|all| Parsed::Listen(all.concat()))
}

fn listen_address(url: &str) -> Result<Vec<SocketAddr>, EtcdError> {
    let bad = || EtcdError::Address(url.to_owned());
    let authority = url.strip_prefix("http://").ok_or_else(bad)?.trim_end_matches('/');
    let mut addresses: Vec<SocketAddr> = authority.to_socket_addrs().map_err(|_| bad())?.collect();
    addresses.sort();
    addresses.dedup();
    if addresses.is_empty() { Err(bad()) } else { Ok(addresses) }
}

async fn serve(listener: TcpListener, mut end: tokio::sync::watch::Receiver<bool>) {
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = end.wait_for(|end| *end) => break,
        };
        let Ok((stream, _)) = accepted else {
            // Out of file descriptors, mostly.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| {
            std::future::ready(Ok::<_, Infallible>(answer(request.uri().path())))
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        let served = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
        connections.spawn(served);
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
        connections.abort_all();
    }
}

fn answer(path: &str) -> Response<Full<&'static [u8]>> {
    let (status, kind, text): (_, _, &'static [u8]) = match path {
        "/health" => (StatusCode::OK, "application/json", br#"{"health":"true","reason":""}"#),
        "/livez" | "/readyz" => (StatusCode::OK, "text/plain; charset=utf-8", b"ok\n"),
        _ => (
            StatusCode::NOT_FOUND,
            "text/plain; charset=utf-8",
            b"this etcd holds nothing: it stands in for one beside kaji's API server, which keeps its objects itself\n",
        ),
    };
    let mut response = Response::new(Full::new(text));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listens(args: &[&str]) -> Result<Vec<SocketAddr>, String> {
        match parse(args.iter().map(|a| (*a).to_owned())) {
            Ok(Parsed::Listen(addresses)) => Ok(addresses),
            Ok(Parsed::Text(text)) => Err(text),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn parses_flags_as_go_does() {
        let one: SocketAddr = ([127, 0, 0, 1], 2000).into();
        let two: SocketAddr = ([127, 0, 0, 1], 2001).into();
        assert_eq!(listens(&["--listen-client-urls=http://127.0.0.1:2000"]), Ok(vec![one]));
        assert_eq!(
            listens(&[
                "--data-dir",
                "/tmp/x",
                "-listen-client-urls",
                "http://127.0.0.1:2000,http://127.0.0.1:2001/",
                "--unsafe-no-fsync=true",
            ]),
            Ok(vec![one, two])
        );
        assert_eq!(
            listens(&["--listen-client-urls=https://127.0.0.1:1"]),
            Err(r#""https://127.0.0.1:1" is no http:// address to listen on"#.into())
        );
        assert_eq!(
            listens(&["--cert-file=x"]),
            Err("--cert-file is not supported: this etcd speaks plain HTTP and holds nothing".into())
        );
        assert!(listens(&["--version"]).unwrap_err().ends_with("holds nothing\n"));
        // envtest searches the flag at the start of a line.
        assert!(listens(&["--help"]).unwrap_err().lines().any(|l| l.trim().starts_with("--unsafe-no-fsync")));
    }

    #[test]
    fn serves_health_only() {
        assert_eq!(answer("/health").status(), 200);
        assert_eq!(answer("/v3/kv/range").status(), 404);
        assert_eq!(answer("/version").status(), 404);
    }
}
