//! A server that connections lead to: a kubelet (TLS, clients' certificates by the cluster's authority) or what runs in a pod.

use crate::common::{TestCluster, until};
use bytes::Bytes;
use futures_util::StreamExt;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kaji_server::pki::{self, Identity};
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::WebPkiClientVerifier,
    },
};

type Body = UnsyncBoxBody<Bytes, std::io::Error>;
/// The rest of a body; an error breaks it off.
pub type Pieces = mpsc::UnboundedSender<Result<Bytes, std::io::Error>>;

/// What it saw.
#[derive(Default)]
pub struct State {
    /// Requests: method, target, headers and body.
    pub seen: Mutex<Vec<Value>>,
    /// The common name of the last client's certificate.
    pub client: Mutex<Option<String>>,
    /// Where the pieces of the last followed log go.
    pub pieces: Mutex<Option<Pieces>>,
    gone: watch::Sender<bool>,
}

/// A running one. Dropping it ends it, connections and all.
pub struct Backend {
    /// Where it listens, on all addresses of the machine.
    pub port: u16,
    /// Its state.
    pub state: Arc<State>,
    _tasks: JoinSet<()>,
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.state.gone.send_replace(true);
    }
}

fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
}

impl Backend {
    /// A kubelet of a cluster, with a certificate for the loopback address by this authority.
    pub async fn kubelet(cluster: &TestCluster, authority: &Identity) -> Backend {
        let names = ["127.0.0.1".to_owned()];
        let now = jiff::Timestamp::now();
        let serving = pki::kubelet_serving(authority, "n", &names, now).unwrap();
        let mut roots = RootCertStore::empty();
        let own = certificates(&cluster.cluster.pki.ca.certificate);
        own.into_iter().for_each(|root| roots.add(root).unwrap());
        let provider = Arc::new(ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.allow_unauthenticated().build().unwrap())
            .with_single_cert(
                certificates(&serving.certificate),
                PrivateKeyDer::from_pem_slice(serving.key.as_bytes()).unwrap(),
            )
            .unwrap();
        Backend::start(Some(TlsAcceptor::from(Arc::new(tls)))).await
    }

    /// What runs in a pod, without TLS.
    pub async fn plain() -> Backend {
        Backend::start(None).await
    }

    async fn start(tls: Option<TlsAcceptor>) -> Backend {
        let tcp = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
        let port = tcp.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(tcp, tls, state.clone()));
        Backend { port, state, _tasks: tasks }
    }

    /// Ends it, and waits until nothing listens there.
    pub async fn stop(self) {
        let port = self.port;
        drop(self);
        let refused = async || {
            let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
            connected.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
        };
        until("nothing listens", refused).await;
    }

    /// What it saw since the last time.
    pub fn seen(&self) -> Vec<Value> {
        std::mem::take(&mut *self.state.seen.lock().unwrap())
    }
}

async fn accept(tcp: TcpListener, tls: Option<TlsAcceptor>, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = tcp.accept().await {
        while connections.try_join_next().is_some() {}
        let (tls, state) = (tls.clone(), state.clone());
        connections.spawn(async move {
            let Some(tls) = tls else { return serve(stream, state).await };
            let Ok(stream) = tls.accept(stream).await else { return };
            let name = stream.get_ref().1.peer_certificates().map(|chain| {
                let (_, leaf) = x509_parser::parse_x509_certificate(&chain[0]).unwrap();
                leaf.subject().iter_common_name().next().unwrap().as_str().unwrap().to_owned()
            });
            *state.client.lock().unwrap() = name;
            serve(stream, state).await;
        });
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, state: Arc<State>) {
    let service = hyper::service::service_fn(move |request| {
        let state = state.clone();
        async move { Ok::<_, Infallible>(answer(request, &state).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new();
    // A client that leaves ends it with an error.
    let _ = connection.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}

async fn answer(mut request: Request<Incoming>, state: &State) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let followed = request.uri().query().is_some_and(|q| q.contains("follow=true"));
    let upgrade = request.headers().contains_key(header::UPGRADE);
    match path.as_str() {
        _ if path.contains("/refused") => whole(403, "text/plain", "not this one\n"),
        _ if path.contains("/silent") => whole(404, "text/plain", ""),
        _ if path.contains("/fails") => whole(500, "text/plain", "it broke"),
        _ if path.contains("/redirected") => {
            let mut response = whole(302, "text/plain", "");
            let location = request.uri().query().unwrap_or("/other").to_owned();
            response.headers_mut().insert(header::LOCATION, location.parse().unwrap());
            response
        }
        _ if upgrade && !path.contains("/ignores") => upgraded(&mut request, state),
        "/page" => whole(200, "text/html; charset=utf-8", "<a href=\"/x\">x</a>"),
        _ if followed => {
            let (sender, receiver) = mpsc::unbounded_channel();
            note(&request, state, &[]);
            *state.pieces.lock().unwrap() = Some(sender);
            let pieces = futures_util::stream::unfold(receiver, async |mut receiver| {
                receiver.recv().await.map(|piece| (piece, receiver))
            });
            let body = StreamBody::new(pieces.map(|piece| piece.map(http_body::Frame::data)));
            Response::new(body.boxed_unsync())
        }
        _ if path.starts_with("/containerLogs/") => {
            note(&request, state, &[]);
            whole(200, "application/octet-stream", "one\ntwo\n")
        }
        _ => {
            let (parts, body) = request.into_parts();
            let sent = body.collect().await.unwrap().to_bytes();
            let said = note(&Request::from_parts(parts, ()), state, &sent);
            let mut response = whole(200, "application/json", said.to_string());
            response.headers_mut().insert("access-control-allow-origin", "*".parse().unwrap());
            response
        }
    }
}

/// Sends back whatever comes, in the protocol that was asked for, or in another.
fn upgraded(request: &mut Request<Incoming>, state: &State) -> Response<Body> {
    let upgraded = hyper::upgrade::on(&mut *request);
    note(&*request, state, &[]);
    let mut gone = state.gone.subscribe();
    tokio::spawn(async move {
        let Ok(both) = upgraded.await else { return };
        let (mut from, mut to) = tokio::io::split(TokioIo::new(both));
        tokio::select! {
            _ = tokio::io::copy(&mut from, &mut to) => {}
            _ = gone.wait_for(|g| *g) => {}
        }
    });
    let other = request.uri().path().contains("/other");
    let asked = request.headers()[header::UPGRADE].clone();
    let mut response = whole(101, "text/plain", "");
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_TYPE);
    headers.insert(header::CONNECTION, "Upgrade".parse().unwrap());
    headers.insert(header::UPGRADE, if other { "h2c".parse().unwrap() } else { asked });
    response
}

fn note<B>(request: &Request<B>, state: &State, sent: &[u8]) -> Value {
    let shown = |(k, v): (&header::HeaderName, &header::HeaderValue)| {
        format!("{k}: {}", String::from_utf8_lossy(v.as_bytes()))
    };
    let mut headers: Vec<String> = request.headers().iter().map(shown).collect();
    headers.sort();
    let said = json!({
        "method": request.method().as_str(),
        "target": request.uri().to_string(),
        "headers": headers,
        "length": sent.len(),
    });
    state.seen.lock().unwrap().push(said.clone());
    said
}

fn whole(code: u16, content_type: &str, body: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    Response::builder().status(code).header(header::CONTENT_TYPE, content_type).body(body).unwrap()
}
