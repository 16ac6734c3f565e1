//! An extension server: TLS on a port of its own, its clients' certificates from the front-proxy authority of a cluster.

use crate::common::TestCluster;
use bytes::Bytes;
use futures_util::StreamExt;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kaji_resource::{DeleteOptions, ObjectWriter};
use kaji_server::{LocalService, pki::Pki};
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::{
    net::TcpListener,
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
use tower::ServiceExt;

/// The group that it serves.
pub const GROUP: &str = "ext.example.com";
/// Its APIService.
pub const NAME: &str = "v1.ext.example.com";
/// Its resources.
pub const ECHOES: &str = "/apis/ext.example.com/v1/namespaces/default/echoes";

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// How it behaves, and what it saw.
#[derive(Default)]
pub struct State {
    /// Requests about resources: method, target, headers and body.
    pub seen: Mutex<Vec<Value>>,
    /// The common name of the last client's certificate.
    pub client: Mutex<String>,
    /// `/apis` is never answered.
    pub hangs: AtomicBool,
    /// `/apis` and `/openapi/v3` are not there.
    pub old: AtomicBool,
    /// How often `/apis` was answered with something new.
    pub told: Mutex<Vec<u16>>,
    /// Where events of the last watch go; an error breaks it off.
    pub events: Mutex<Option<mpsc::UnboundedSender<Result<Bytes, std::io::Error>>>>,
    /// Those of watches before it.
    pub former: Mutex<Vec<mpsc::UnboundedSender<Result<Bytes, std::io::Error>>>>,
    /// Where `…/relay` is sent back to.
    pub relay: Mutex<Option<LocalService>>,
    /// It is gone.
    gone: watch::Sender<bool>,
}

impl Drop for Extension {
    fn drop(&mut self) {
        self.state.gone.send_replace(true);
    }
}

/// A running one. Dropping it ends it, connections and all.
pub struct Extension {
    /// Its certificates are for `ext.default.svc`.
    pub pki: Pki,
    /// Where it listens.
    pub port: u16,
    /// Its state.
    pub state: Arc<State>,
    _tasks: JoinSet<()>,
}

impl Extension {
    /// Starts one that trusts the cluster's proxy certificate.
    pub async fn start(cluster: &TestCluster) -> Extension {
        Extension::offering(cluster, &[]).await
    }

    /// One that offers these protocols.
    pub async fn offering(cluster: &TestCluster, protocols: &[&str]) -> Extension {
        let names = ["ext.default.svc".to_owned()];
        let pki = Pki::in_memory(None, &names, jiff::Timestamp::now()).unwrap();
        let certificates = |pem: &str| -> Vec<CertificateDer<'static>> {
            CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
        };
        let mut roots = RootCertStore::empty();
        for root in certificates(&cluster.cluster.pki.front_proxy_ca.certificate) {
            roots.add(root).unwrap();
        }
        let provider = Arc::new(ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.build().unwrap())
            .with_single_cert(
                certificates(&pki.serving.certificate),
                PrivateKeyDer::from_pem_slice(pki.serving.key.as_bytes()).unwrap(),
            )
            .unwrap();
        tls.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        let tcp = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
        let port = tcp.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(tcp, TlsAcceptor::from(Arc::new(tls)), state.clone()));
        Extension { pki, port, state, _tasks: tasks }
    }

    /// An APIService for it.
    pub fn api_service(&self) -> Value {
        use base64::{Engine, engine::general_purpose::STANDARD};
        json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": NAME},
            "spec": {
                "group": GROUP, "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 15,
                "caBundle": STANDARD.encode(&self.pki.ca.certificate),
                "service": {"namespace": "default", "name": "ext", "port": self.port},
            },
        })
    }

    /// A service that leads to it without endpoints.
    pub fn external(&self) -> Value {
        json!({"metadata": {"name": "ext"}, "spec": {"type": "ExternalName", "externalName": "localhost"}})
    }

    /// Makes it known to a cluster.
    pub async fn join(&self, cluster: &TestCluster) {
        create(cluster, "", "services", "default", self.external()).await;
        create(cluster, "apiregistration.k8s.io", "apiservices", "", self.api_service()).await;
    }

    /// What it saw since the last time.
    pub fn seen(&self) -> Vec<Value> {
        std::mem::take(&mut *self.state.seen.lock().unwrap())
    }
}

/// Makes an object past all authorization.
pub async fn create(cluster: &TestCluster, group: &str, resource: &str, namespace: &str, object: Value) {
    let resource = kaji_meta::GroupResource::new(group, resource);
    cluster.cluster.stack.engine.create(&resource, namespace, object, false).await.unwrap();
}

/// Deletes one.
pub async fn delete(cluster: &TestCluster, group: &str, resource: &str, namespace: &str, name: &str) {
    let resource = kaji_meta::GroupResource::new(group, resource);
    let engine = &cluster.cluster.stack.engine;
    engine.delete(&resource, namespace, name, DeleteOptions::default()).await.unwrap();
}

/// An address of this machine that endpoints may have.
pub fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // No datagram is sent.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

async fn accept(tcp: TcpListener, tls: TlsAcceptor, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = tcp.accept().await {
        while connections.try_join_next().is_some() {}
        let (tls, state) = (tls.clone(), state.clone());
        connections.spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let chain = stream.get_ref().1.peer_certificates().unwrap();
            let (_, leaf) = x509_parser::parse_x509_certificate(&chain[0]).unwrap();
            let name = leaf.subject().iter_common_name().next().unwrap().as_str().unwrap().to_owned();
            *state.client.lock().unwrap() = name;
            let service = hyper::service::service_fn(move |request| {
                let state = state.clone();
                async move { Ok::<_, Infallible>(answer(request, &state).await) }
            });
            if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                return;
            }
            let connection = hyper::server::conn::http1::Builder::new();
            let _ = connection.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
        });
    }
}

async fn answer(mut request: Request<Incoming>, state: &State) -> Response<Body> {
    let path = request.uri().path().to_owned();
    match path.as_str() {
        "/apis" if state.hangs.load(Ordering::SeqCst) => std::future::pending().await,
        "/apis" if state.old.load(Ordering::SeqCst) => whole(404, "text/plain", "404 page not found\n"),
        "/apis" => discovery(&request, state),
        "/apis/ext.example.com/v1" => whole(200, "application/json", resources().to_string()),
        "/openapi/v2" => whole(200, "application/json", openapi().to_string()),
        path if path.starts_with("/openapi/v3") && state.old.load(Ordering::SeqCst) => {
            whole(404, "text/plain", "404 page not found\n")
        }
        "/openapi/v3" => whole(
            200,
            "application/json",
            json!({"paths": {"apis/ext.example.com/v1": {"serverRelativeURL": "/openapi/v3/apis/ext.example.com/v1?hash=E1"}}})
                .to_string(),
        ),
        "/openapi/v3/apis/ext.example.com/v1" => {
            whole(200, "application/json", json!({"openapi": "3.0.0", "paths": {ECHOES: {}}}).to_string())
        }
        path if path.ends_with("/relay") => {
            note(&request, state, &[]);
            // With the headers that it came with, as reverse proxies do.
            let mut back = Request::get(request.uri().path()).body(Full::<Bytes>::default()).unwrap();
            *back.headers_mut() = request.headers().clone();
            let service = state.relay.lock().unwrap().clone().unwrap();
            let answer = service.oneshot(back).await.unwrap();
            let code = answer.status().as_u16();
            let body = answer.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
            whole(code, "application/json", body)
        }
        _ if request.headers().contains_key(header::UPGRADE) => {
            let upgraded = hyper::upgrade::on(&mut request);
            note(&request, state, &[]);
            let mut gone = state.gone.subscribe();
            tokio::spawn(async move {
                let both = TokioIo::new(upgraded.await.unwrap());
                let (mut from, mut to) = tokio::io::split(both);
                tokio::select! {
                    _ = tokio::io::copy(&mut from, &mut to) => {}
                    _ = gone.wait_for(|g| *g) => {}
                }
            });
            let mut response = whole(101, "text/plain", "");
            let headers = response.headers_mut();
            headers.remove(header::CONTENT_TYPE);
            headers.insert(header::CONNECTION, "Upgrade".parse().unwrap());
            headers.insert(header::UPGRADE, "echo".parse().unwrap());
            response
        }
        _ if request.uri().query().unwrap_or_default().contains("watch=true") => {
            let (sender, receiver) = mpsc::unbounded_channel();
            note(&request, state, &[]);
            let former = state.events.lock().unwrap().replace(sender);
            state.former.lock().unwrap().extend(former);
            let events = futures_util::stream::unfold(receiver, async |mut receiver| {
                receiver.recv().await.map(|piece| (piece, receiver))
            });
            let body = StreamBody::new(events.map(|piece| piece.map(http_body::Frame::data)));
            Response::builder().header("content-type", "application/json").body(body.boxed_unsync()).unwrap()
        }
        _ => {
            let (parts, body) = request.into_parts();
            let sent = body.collect().await.unwrap().to_bytes();
            let request = Request::from_parts(parts, ());
            let said = note(&request, state, &sent);
            let code = if path.ends_with("/missing") { 404 } else { 200 };
            whole(code, "application/json", said.to_string())
        }
    }
}

fn note<B>(request: &Request<B>, state: &State, sent: &[u8]) -> Value {
    let mut headers: Vec<String> = request
        .headers()
        .iter()
        .map(|(k, v)| format!("{k}: {}", String::from_utf8_lossy(v.as_bytes())))
        .collect();
    headers.sort();
    let said = json!({
        "method": request.method().as_str(),
        "target": request.uri().to_string(),
        "headers": headers,
        "body": String::from_utf8_lossy(sent),
    });
    state.seen.lock().unwrap().push(said.clone());
    said
}

fn discovery<B>(request: &Request<B>, state: &State) -> Response<Body> {
    let document = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": [{"metadata": {"name": GROUP, "creationTimestamp": null}, "versions": [{"version": "v1",
            "freshness": "Current", "resources": [{"resource": "echoes", "scope": "Namespaced", "verbs": ["get", "list"],
                "singularResource": "echo", "responseKind": {"group": GROUP, "version": "v1", "kind": "Echo"}}]}]}]});
    let known = request.headers().get(header::IF_NONE_MATCH).is_some_and(|v| v == "\"one\"");
    let code = if known { 304 } else { 200 };
    state.told.lock().unwrap().push(code);
    let form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let mut response = whole(code, form, if known { String::new() } else { document.to_string() });
    response.headers_mut().insert(header::ETAG, "\"one\"".parse().unwrap());
    response
}

fn resources() -> Value {
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "ext.example.com/v1", "resources": [
        {"name": "echoes", "singularName": "echo", "namespaced": true, "kind": "Echo", "verbs": ["get", "list"]}]})
}

fn openapi() -> Value {
    let pod = "io.k8s.api.core.v1.Pod";
    json!({
        "swagger": "2.0",
        "info": {"title": "ext", "version": "v1"},
        "paths": {
            "/apis/ext.example.com/v1/echoes": {"get": {"operationId": "listEcho",
                "responses": {"200": {"schema": {"$ref": format!("#/definitions/{pod}")}}}}},
            "/api/v1/pods": {"get": {"operationId": "stolen"}},
        },
        "definitions": {
            pod: {"description": "another pod", "type": "object",
                "properties": {"echo": {"$ref": "#/definitions/com.example.ext.v1.Echo"}}},
            "com.example.ext.v1.Echo": {"type": "object"},
            "com.example.ext.v1.Unused": {"type": "object"},
        },
    })
}

fn whole(code: u16, content_type: &str, body: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    Response::builder().status(code).header("content-type", content_type).body(body).unwrap()
}
