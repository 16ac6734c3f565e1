//! The HTTPS API of a real node over TLS: which clients may do what, and what each path answers.

mod logs;
mod pages;
mod streams;
mod system_logs;

use crate::fake::Fake;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kaji_kubelet::node::Housekeeping;
use kaji_kubelet::pods::core::Pod;
use kaji_kubelet::server::{KubeletServerConfig, NodeApi, NodePods};
use kaji_meta::time::SystemClock;
use kaji_runtime::Client;
use kaji_server::pki;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};

/// Pods that a test binds to the node.
#[derive(Clone, Default)]
pub struct Bound(Arc<Mutex<Vec<Arc<Pod>>>>);

impl Bound {
    /// Binds a pod, in place of one of the same name.
    pub fn set(&self, pod: Value) {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let mut all = self.0.lock().unwrap();
        all.retain(|p| p.metadata.name != pod.metadata.name);
        all.push(Arc::new(pod));
    }
}

impl NodePods for Bound {
    fn all(&self) -> Vec<Arc<Pod>> {
        self.0.lock().unwrap().clone()
    }
}

/// An API server that knows the users `admin` and `metrics` by tokens of the same names: `admin` may do anything, `metrics` may
/// do what concerns `nodes/metrics` and `nodes/healthz`.
fn api_server() -> Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| async move {
        let kind = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let body = request.into_body().collect_bytes().await.unwrap();
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        review["status"] = match &*kind {
            "tokenreviews" => {
                let token = review["spec"]["token"].as_str().unwrap();
                let known = ["admin", "metrics"].contains(&token);
                json!({"authenticated": known, "user": {"username": token}})
            }
            _ => {
                let attributes = &review["spec"]["resourceAttributes"];
                let named = attributes["name"] == "node-1" && attributes["resource"] == "nodes";
                let own = ["metrics", "healthz"].map(|s| attributes["subresource"] == s);
                let allowed = named && (review["spec"]["user"] == "admin" || own.contains(&true));
                json!({"allowed": allowed})
            }
        };
        let body = kube::client::Body::from(serde_json::to_vec(&review).unwrap());
        Ok::<_, std::convert::Infallible>(http::Response::builder().status(201).body(body).unwrap())
    });
    Client::new(kube::Client::new(service, "default"), "test")
}

/// A node's API that is served.
pub struct Served {
    pub fake: Fake,
    pub pods: Bound,
    pub stop: watch::Sender<bool>,
    address: SocketAddr,
    authority: pki::Identity,
}

impl Served {
    pub async fn start() -> Served {
        let fake = Fake::new();
        let pods = Bound::default();
        let authority = pki::authority("ca", jiff::Timestamp::now()).unwrap();
        let authentication = kaji_auth::authn::ClusterAuthenticationInfo {
            client_ca: authority.certificate.clone(),
            request_header_ca: authority.certificate.clone(),
            request_header: kaji_auth::authn::RequestHeader::default(),
        };
        let (_, authentication) = watch::channel(authentication);
        let config = KubeletServerConfig::new(&authority, authentication, Arc::new(SystemClock)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = Arc::new(NodeApi::new(fake.cx.clone(), Arc::new(pods.clone()), Housekeeping::default()));
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(config.serve("node-1", listener, api_server(), api, stopped).unwrap());
        Served { fake, pods, stop, address, authority }
    }

    /// Sends a request, with a token unless that is empty.
    pub async fn send(&self, method: Method, path: &str, token: &str) -> http::Response<Incoming> {
        let mut request = Request::builder().method(method).uri(path).header("host", "node-1");
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.send_request(request.body(Empty::new()).unwrap()).await
    }

    /// Sends a request as it is.
    pub async fn send_request(&self, request: Request<Empty<Bytes>>) -> http::Response<Incoming> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.certificate.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::IpAddress(self.address.ip().into());
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        sender.send_request(request).await.unwrap()
    }

    /// The code and the body that `admin` gets.
    pub async fn get(&self, path: &str) -> (StatusCode, String) {
        whole(self.send(Method::GET, path, "admin").await).await
    }

    /// The same as a line.
    pub async fn shown(&self, path: &str) -> String {
        let (code, body) = self.get(path).await;
        format!("{path}: {} {}", code.as_u16(), body.trim_end())
    }
}

pub async fn whole(response: http::Response<Incoming>) -> (StatusCode, String) {
    let code = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(body.to_vec()).unwrap())
}

/// The next bytes of a response that is being sent.
pub async fn next_bytes(response: &mut http::Response<Incoming>) -> Option<String> {
    loop {
        let frame = response.body_mut().frame().await?.unwrap();
        if let Ok(data) = frame.into_data() {
            return Some(String::from_utf8(data.to_vec()).unwrap());
        }
    }
}

#[tokio::test]
async fn clients_do_what_they_may() {
    let served = Served::start().await;
    let mut lines = vec![];
    for (token, method, path) in [
        ("", "GET", "/healthz"),
        ("unknown", "GET", "/healthz"),
        ("metrics", "GET", "/healthz"),
        ("metrics", "GET", "/healthz/syncloop"),
        ("metrics", "GET", "/containerLogs/n/p/c"),
        ("metrics", "POST", "/exec/n/p/c"),
        ("admin", "GET", "/healthz/ping"),
        ("admin", "POST", "/healthz"),
        ("admin", "GET", "/containerLogs/n/p/c"),
        ("admin", "POST", "/containerLogs/n/p/c"),
        ("admin", "GET", "/healthz/../containerLogs/n/p/c"),
        ("metrics", "GET", "/healthz/%2e%2e/containerLogs/n/p/c"),
        ("admin", "GET", "/nothing"),
        ("admin", "GET", "/"),
    ] {
        let response = served.send(method.parse().unwrap(), path, token).await;
        let (code, body) = whole(response).await;
        lines.push(format!("{token:?} {method} {path}: {} {}", code.as_u16(), body.trim_end()));
    }
    expect_test::expect![[r#"
        "" GET /healthz: 401 Unauthorized
        "unknown" GET /healthz: 401 Unauthorized
        "metrics" GET /healthz: 200 ok
        "metrics" GET /healthz/syncloop: 200 ok
        "metrics" GET /containerLogs/n/p/c: 403 Forbidden (user=metrics, verb=get, resource=nodes, subresource(s)=[proxy])
        "metrics" POST /exec/n/p/c: 403 Forbidden (user=metrics, verb=create, resource=nodes, subresource(s)=[proxy])
        "admin" GET /healthz/ping: 200 ok
        "admin" POST /healthz: 405 405: Method Not Allowed
        "admin" GET /containerLogs/n/p/c: 404 pod "p" does not exist
        "admin" POST /containerLogs/n/p/c: 405 405: Method Not Allowed
        "admin" GET /healthz/../containerLogs/n/p/c: 404 404: Page Not Found
        "metrics" GET /healthz/%2e%2e/containerLogs/n/p/c: 404 404: Page Not Found
        "admin" GET /nothing: 404 404: Page Not Found
        "admin" GET /: 404 404: Page Not Found"#]].assert_eq(&lines.join("\n"));
}
