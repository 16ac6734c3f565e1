//! Requests and responses of the kubelet's server, as handlers see them.
//!
//! Invariants:
//! - A handler gets a request only after it was authorized, with the path and the query that were authorized: nothing parses the URI again.
//! - What goes on after the response (a session over an upgraded connection) runs in the connection's own task: it counts as a
//!   connection, and ends with the server.

use bytes::Bytes;
use futures_util::{Stream, future::BoxFuture};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::upgrade::OnUpgrade;
use kaji_meta::{Status, query::Query};
use kaji_server::ZPage;
use std::{fmt, io, sync::Arc};
use tokio::sync::mpsc;

/// The content type of plain answers.
pub const PLAIN: &str = "text/plain; charset=utf-8";
/// The content type of JSON.
pub const JSON: &str = "application/json";

/// The body of a response. An error ends the connection.
pub type ServerBody = UnsyncBoxBody<Bytes, io::Error>;

/// A request that was authorized.
pub struct KubeletRequest {
    /// Its method.
    pub method: Method,
    /// Its path, without percent escapes.
    pub path: String,
    /// Its query.
    pub query: Query,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body; not bounded, a handler that reads it bounds it.
    pub body: Incoming,
    /// The connection, after a 101 response; absent over HTTP/2 and where the client asked for no upgrade.
    pub upgrade: Option<OnUpgrade>,
    /// Runs what follows an upgrade.
    pub sessions: Sessions,
}

impl fmt::Debug for KubeletRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeletRequest")
            .field("method", &self.method)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl KubeletRequest {
    /// The path's segments. A trailing slash is an empty last one.
    #[must_use]
    pub fn segments(&self) -> Vec<&str> {
        self.path.strip_prefix('/').unwrap_or(&self.path).split('/').collect()
    }
}

/// Runs sessions in the task of a connection.
#[derive(Clone)]
pub struct Sessions(pub(super) mpsc::Sender<BoxFuture<'static, ()>>);

impl Sessions {
    /// Runs a session until it ends, its connection is given up, or the server stops. A connection carries one session; another one
    /// is dropped, with a line in the log.
    pub fn run(&self, session: impl Future<Output = ()> + Send + 'static) {
        if self.0.try_send(Box::pin(session)).is_err() {
            tracing::warn!("kubelet server: a second session on one connection is dropped");
        }
    }
}

/// Answers requests of a node.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request. The response may stream, or switch protocols if the request has an upgrade.
    fn handle(self: Arc<Self>, request: KubeletRequest) -> BoxFuture<'static, Response<ServerBody>>;
}

/// A response with a whole body.
pub fn respond(code: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<ServerBody> {
    with_body(code, content_type, Full::new(body.into()).map_err(|never| match never {}).boxed_unsync())
}

/// A page of metrics.
pub fn metrics(request: &KubeletRequest, page: String) -> Response<ServerBody> {
    let accept = request.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    respond(StatusCode::OK, kaji_exposition::content_type(accept), page)
}

/// A page of `/statusz` or `/flagz`, or the error instead of it.
pub fn zpage(page: Result<ZPage, Status>) -> Response<ServerBody> {
    match page {
        Ok(page) => {
            let mut response = respond(StatusCode::OK, page.content_type, page.body.clone());
            page.warn(&mut response);
            response
        }
        Err(status) => {
            let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            respond(code, JSON, status.to_value().to_string())
        }
    }
}

/// A 200 response; its body is sent while it is made.
pub fn stream(
    content_type: &'static str,
    chunks: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Response<ServerBody> {
    use futures_util::TryStreamExt;
    with_body(StatusCode::OK, content_type, StreamBody::new(chunks.map_ok(Frame::data)).boxed_unsync())
}

/// An error, as a line of text.
pub fn error(code: StatusCode, text: impl Into<String>) -> Response<ServerBody> {
    respond(code, PLAIN, text.into())
}

/// 404.
pub fn not_found() -> Response<ServerBody> {
    error(StatusCode::NOT_FOUND, "404: Page Not Found")
}

/// 405.
pub fn method_not_allowed() -> Response<ServerBody> {
    error(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed")
}

fn with_body(code: StatusCode, content_type: &'static str, body: ServerBody) -> Response<ServerBody> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
