//! A registry on loopback, with faults.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kaji_images::digest::Digest;
use kaji_images::manifest::{DOCKER_MANIFEST, OCI_INDEX};
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// What the registry serves, and how it fails.
#[derive(Default)]
pub struct State {
    /// By path below `/v2/`.
    pub content: HashMap<String, (String, Vec<u8>)>,
    /// Blobs that end after so many bytes, each once.
    pub cut: HashMap<String, usize>,
    /// Answers of 503 that are left.
    pub unavailable: usize,
    /// User and password of the token service.
    pub login: Option<String>,
    /// Blobs are on this other host.
    pub redirect: Option<SocketAddr>,
    /// Ranges are answered with everything.
    pub without_ranges: bool,
    /// Method, path and authorization of requests, ranges too.
    pub seen: Vec<String>,
}

pub struct Server {
    pub address: SocketAddr,
    pub state: Arc<Mutex<State>>,
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

impl Server {
    pub async fn start() -> Server {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = shared.clone();
                let service = service_fn(move |request| {
                    let response = answer(&mut state.lock().unwrap(), address, &request);
                    async move { Ok::<_, Infallible>(response) }
                });
                tokio::spawn(async move {
                    // A body that is cut off ends the connection with an error.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Server { address, state }
    }

    /// Adds an image under a tag, behind an index. Answers the digest of the index.
    pub fn add(&self, repository: &str, tag: &str, config: &[u8], layers: &[Vec<u8>]) -> Digest {
        let descriptor =
            |bytes: &[u8]| serde_json::json!({"digest": Digest::of(bytes).as_str(), "size": bytes.len()});
        let layers_json: Vec<_> = layers.iter().map(|layer| descriptor(layer)).collect();
        let manifest =
            serde_json::json!({"schemaVersion": 2, "config": descriptor(config), "layers": layers_json})
                .to_string();
        let machine = kaji_images::manifest::Platform::machine();
        let mut described = descriptor(manifest.as_bytes());
        described["platform"] = serde_json::json!({"architecture": machine.architecture, "os": "linux"});
        let index = serde_json::json!({"schemaVersion": 2, "manifests": [described]}).to_string();
        let mut state = self.state.lock().unwrap();
        let mut put = |path: String, kind: &str, bytes: &[u8]| {
            state.content.insert(format!("{repository}/{path}"), (kind.to_owned(), bytes.to_vec()));
        };
        put(format!("manifests/{tag}"), OCI_INDEX, index.as_bytes());
        put(format!("manifests/{}", Digest::of(index.as_bytes())), OCI_INDEX, index.as_bytes());
        put(format!("manifests/{}", Digest::of(manifest.as_bytes())), DOCKER_MANIFEST, manifest.as_bytes());
        for blob in layers.iter().map(Vec::as_slice).chain([config]) {
            put(format!("blobs/{}", Digest::of(blob)), "application/octet-stream", blob);
        }
        Digest::of(index.as_bytes())
    }

    /// How many requests of a kind came.
    pub fn count(&self, part: &str) -> usize {
        self.state.lock().unwrap().seen.iter().filter(|seen| seen.contains(part)).count()
    }
}

fn answer(state: &mut State, address: SocketAddr, request: &Request<Incoming>) -> Response<Body> {
    let of = |name| request.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or("").to_owned();
    let (path, authorization, range) =
        (request.uri().path().to_owned(), of(header::AUTHORIZATION), of(header::RANGE));
    state.seen.push(format!("{} {path} {authorization} {range}", request.method()));
    let plain = |status: StatusCode| Response::builder().status(status);
    if path == "/token" {
        let allowed = state.login.as_ref().is_none_or(|login| *login == authorization);
        let body = if allowed { r#"{"token": "secret-token"}"# } else { "{}" };
        let status = if allowed { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
        return plain(status).body(body_of(vec![body.as_bytes().to_vec()], false)).unwrap();
    }
    if state.unavailable > 0 {
        state.unavailable -= 1;
        return plain(StatusCode::SERVICE_UNAVAILABLE).body(body_of(vec![], false)).unwrap();
    }
    if state.login.is_some() && authorization != "Bearer secret-token" {
        let challenge = format!(r#"Bearer realm="http://{address}/token",service="test""#);
        let response = plain(StatusCode::UNAUTHORIZED).header(header::WWW_AUTHENTICATE, challenge);
        return response.body(body_of(vec![], false)).unwrap();
    }
    let name = path.strip_prefix("/v2/").unwrap_or_default().to_owned();
    if let Some(other) = state.redirect
        && name.contains("/blobs/")
    {
        let response =
            plain(StatusCode::TEMPORARY_REDIRECT).header(header::LOCATION, format!("http://{other}{path}"));
        return response.body(body_of(vec![], false)).unwrap();
    }
    let Some((kind, bytes)) = state.content.get(&name) else {
        return plain(StatusCode::NOT_FOUND).body(body_of(vec![], false)).unwrap();
    };
    assert_eq!(request.method(), Method::GET);
    let begin =
        range.strip_prefix("bytes=").and_then(|r| r.strip_suffix('-')).and_then(|r| r.parse::<usize>().ok());
    let begin = begin.filter(|_| !state.without_ranges);
    let rest = bytes[begin.unwrap_or(0)..].to_vec();
    let mut response = plain(if begin.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK })
        .header(header::CONTENT_TYPE, kind)
        .header(header::CONTENT_LENGTH, rest.len());
    if let Some(begin) = begin {
        let range = format!("bytes {begin}-{}/{}", bytes.len() - 1, bytes.len());
        response = response.header(header::CONTENT_RANGE, range);
    }
    let body = match state.cut.remove(&name) {
        Some(at) => body_of(vec![rest[..at].to_vec()], true),
        None => body_of(rest.chunks(1000).map(<[u8]>::to_vec).collect(), false),
    };
    response.body(body).unwrap()
}

fn body_of(chunks: Vec<Vec<u8>>, broken: bool) -> Body {
    let frames = chunks.into_iter().map(|chunk| Ok(Frame::data(Bytes::from(chunk))));
    let end = async move {
        // What came before is sent while this waits.
        tokio::task::yield_now().await;
        broken.then(|| Err(std::io::Error::other("cut")))
    };
    let end = stream::once(end).filter_map(std::future::ready);
    BodyExt::boxed_unsync(StreamBody::new(Box::pin(stream::iter(frames).chain(end))))
}
