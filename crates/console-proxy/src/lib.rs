//! The console on a loopback address, with the credentials of a kubeconfig: `kaji console`.
//!
//! - `session`: one-time codes and the tokens that they are exchanged for.
//! - `forward`: requests sent on to the API server, WebSockets as well.
//! - `explain`: what `kaji why` says, for the console.
//! - `listen`: the listener and its connections.
//!
//! Explanations are computed here also where the API server has explanations of its own: it may be one of another make, and here they are
//! not bounded by what a server can spare.
//!
//! Invariants:
//! - Credentials of the kubeconfig never reach the browser: it has a token that is good for this process alone, in the
//!   `Authorization` header or a WebSocket's subprotocol, never in a cookie. Without it nothing but the console's files is served.
//! - Another site's page reaches nothing: its requests name another host (DNS rebinding) or another origin, and are refused.
//! - A code is good once, and for a few minutes.

mod explain;
mod forward;
mod listen;
mod session;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test code: a panic is a failure")]
mod tests;

pub use listen::serve;
pub use session::Sessions;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited, combinators::UnsyncBoxBody};
use kaji_meta::random::Random;
use serde_json::json;
use std::{fmt::Write as _, sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// The longest body of a request, which is the API server's.
const LONGEST_BODY: usize = 3 << 20;
/// Explanations at one time.
const EXPLANATIONS: usize = 4;
/// How long the beginning of an answer is waited for.
const RESPONSE_HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// The body of an answer.
pub type AnswerBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// What the console needs.
pub struct Proxy {
    /// The API server, with the caller's credentials.
    pub client: kube::Client,
    /// How the page calls the cluster.
    pub cluster: String,
    /// The namespace that is shown first.
    pub namespace: String,
    /// Codes and tokens.
    pub sessions: Sessions,
    /// For nonces.
    pub random: Arc<dyn Random>,
    /// Bounds explanations.
    pub explanations: Semaphore,
}

impl Proxy {
    /// With the caller's connection.
    pub fn new(client: kube::Client, cluster: String, namespace: String, random: Arc<dyn Random>) -> Self {
        let sessions = Sessions::new(random.clone());
        Proxy { client, cluster, namespace, sessions, random, explanations: Semaphore::new(EXPLANATIONS) }
    }

    /// Answers a request to `host`, the address that is listened on.
    pub async fn answer<B>(&self, request: Request<B>, port: u16) -> Response<AnswerBody>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if !is_ours(&request, port) {
            return refusal(StatusCode::FORBIDDEN, "this address is the console's alone");
        }
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if let Some(page) = kaji_console::serve(&method, &path, request.headers(), || nonce(&*self.random)) {
            return page.map(full);
        }
        if path == "/" {
            let mut response = refusal(StatusCode::TEMPORARY_REDIRECT, "");
            response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/console/"));
            return response;
        }
        if path == "/kaji-console/session" {
            return self.open_session(request).await;
        }
        if !self.sessions.admits(request.headers()) {
            return refusal(StatusCode::UNAUTHORIZED, "the session has ended: start kaji console anew");
        }
        match path.as_str() {
            "/kaji-console/session" => refusal(StatusCode::NOT_FOUND, "not found"),
            explain::PATH if method == Method::GET => self.why(request.uri().query()).await,
            _ if forward::is_api(&path) => forward::forward(&self.client, request).await,
            _ => refusal(StatusCode::NOT_FOUND, "not found"),
        }
    }

    /// Exchanges a code for a token.
    async fn open_session<B>(&self, request: Request<B>) -> Response<AnswerBody>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if request.method() != Method::POST {
            // Whether there is such a server: an API server has no such path.
            return json_answer(StatusCode::OK, &json!({"proxy": true, "cluster": self.cluster}));
        }
        let Ok(body) = Limited::new(request.into_body(), 256).collect().await else {
            return refusal(StatusCode::PAYLOAD_TOO_LARGE, "too long");
        };
        match self.sessions.exchange(&body.to_bytes()) {
            Some(token) => json_answer(
                StatusCode::OK,
                &json!({"token": token, "cluster": self.cluster, "namespace": self.namespace}),
            ),
            None => {
                refusal(StatusCode::FORBIDDEN, "the code was used, or is too old: start kaji console anew")
            }
        }
    }
}

/// Whether a request was meant for this address, and comes from its own page if it comes from one.
fn is_ours<B>(request: &Request<B>, port: u16) -> bool {
    let hosts = [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")];
    let text = |name| request.headers().get(name).map(|v| v.to_str().unwrap_or("?"));
    let host = text(header::HOST).is_some_and(|host| hosts.iter().any(|h| h == host));
    let origin = text(header::ORIGIN);
    host && origin.is_none_or(|origin| hosts.iter().any(|h| origin == format!("http://{h}")))
}

/// 128 bits in hexadecimal digits.
fn nonce(random: &dyn Random) -> String {
    let mut text = String::new();
    for _ in 0..2 {
        // Writing to a string does not fail.
        let _ = write!(text, "{:016x}", random.u64());
    }
    text
}

fn full(bytes: Bytes) -> AnswerBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn json_answer(code: StatusCode, value: &serde_json::Value) -> Response<AnswerBody> {
    let mut response = Response::new(full(value.to_string().into()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// An error in the form of the API's.
fn refusal(code: StatusCode, message: &str) -> Response<AnswerBody> {
    json_answer(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(), "message": message}),
    )
}
