//! Forwarding a request to the server that stands behind an APIService.
//!
//! Invariants:
//! - The forwarded request is built in `forwarded_request`, from what was authorized.
//! - A request that is answered in pieces, or that switches protocols, is passed on as it comes; when one side ends, so
//!   does the other. An answer that breaks off breaks off here too and never looks complete.
//!
//! Source: upstream's `proxyHandler` and the reverse proxy that it uses.

use crate::{Aggregator, Route, forwarded_request};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header, request::Parts};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kaji_meta::{Query, Reason, Status};
use kaji_outbound::{CallError, RequestBody, RequestClass, RequestPermit};
use kaji_resource::{BoxFuture, UserInfo};
use std::{
    any::Any,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, sleep_until};

/// Documents that clients wait for are there soon or not at all.
const DOCUMENT: Duration = Duration::from_secs(5);

/// What browsers may do with an answer is this server's to say.
const CORS: [HeaderName; 4] = [
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_HEADERS,
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
];

/// The body of an extension server's response.
pub type ProxiedBody = UnsyncBoxBody<Bytes, ProxiedBodyError>;

/// An extension server did not finish its response.
#[derive(Debug, thiserror::Error)]
#[error("the response of an extension server ended early: {0}")]
pub struct ProxiedBodyError(String);

/// What is known of a request besides what the client sent.
pub struct ForwardContext<'a> {
    /// Its path, as it was understood and authorized.
    pub path: &'a str,
    /// Likewise its query.
    pub query: &'a Query,
    /// Whether it is about a resource.
    pub resource: bool,
    /// The authenticated user.
    pub user: &'a UserInfo,
    /// The id in the audit log.
    pub audit_id: &'a HeaderValue,
    /// Where it came from; `None` for parts of this process.
    pub remote: Option<IpAddr>,
    /// How long the whole exchange may take; `None` for what stays open by design.
    pub time: Option<Duration>,
    /// What counts the connection, which is held as long as it speaks another protocol.
    pub connection: Option<Arc<dyn Any + Send + Sync>>,
}

impl Aggregator {
    /// Sends a request on and gives the answer, which is one of this server's if the other cannot be reached.
    pub async fn forward(
        &self,
        route: &Route,
        parts: &mut Parts,
        request_body: RequestBody,
        facts: &ForwardContext<'_>,
    ) -> Response<ProxiedBody> {
        if forwarded_request::is_loop(&parts.headers) {
            return loop_detected();
        }
        if !route.service.is_available() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "service unavailable\n");
        }
        let client = match route.client(&self.clients) {
            Ok(client) => client,
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        };
        let until = facts.time.map(|time| Instant::now() + time);
        let upgrade = is_upgrade(&parts.headers);
        let protocol = parts.headers.get(header::UPGRADE).cloned();
        let ours = upgrade.then(|| parts.extensions.remove::<OnUpgrade>()).flatten();
        if upgrade && ours.is_none() {
            return unavailable("request connection cannot be hijacked");
        }
        let request = match forwarded_request::request(parts, request_body, facts, upgrade) {
            Ok(request) => request,
            Err(why) => return unavailable(&format!("error trying to reach service: {why}")),
        };
        let about = format!(
            "{} {:?}: ",
            verb(request.method()),
            format!("https://{}{}", route.authority(), request.uri())
        );
        let is_document = !facts.resource && facts.path.trim_matches('/').split('/').count() == 3;
        let class = if facts.time.is_none() { RequestClass::LongRunning } else { RequestClass::Regular };
        let sent = client.send(request, class);
        let answer = match is_document {
            true => tokio::time::timeout(DOCUMENT, sent)
                .await
                .unwrap_or_else(|_| Err(CallError::Timeout("context deadline exceeded".into()))),
            false => sent.await,
        };
        match answer {
            Err(CallError::Service { status, .. }) => {
                tracing::info!(name = route.service.name, error = %status, "an extension server cannot be found");
                text(StatusCode::SERVICE_UNAVAILABLE, "service unavailable\n")
            }
            Err(error) => {
                let said = error.to_string();
                let why = said.strip_prefix(&about).unwrap_or(&said);
                match upgrade {
                    true => unavailable(&format!("error dialing backend: {why}")),
                    false => unavailable(&format!("error trying to reach service: {why}")),
                }
            }
            Ok(answer) => {
                let answer = answer.map(|b| b.map_err(|e| ProxiedBodyError(e.to_string())).boxed_unsync());
                match ours {
                    Some(ours) => self.switch(answer, protocol.as_ref(), ours, facts.connection.clone()),
                    None => pass(answer, self.end(until)),
                }
            }
        }
    }

    /// When an answer ends, whatever there is of it by then: one that is open by design when this server does.
    fn end(&self, until: Option<Instant>) -> BoxFuture<'static, End> {
        let mut stop = self.stop.subscribe();
        match until {
            Some(until) => Box::pin(async move {
                sleep_until(until).await;
                End::Late
            }),
            None => Box::pin(async move {
                // An error says that the sender is gone, and with it the server.
                let _ = stop.wait_for(|s| *s).await;
                End::Stopped
            }),
        }
    }

    /// Connects both sides once they have agreed on another protocol.
    fn switch(
        &self,
        mut answer: Response<ProxiedBody>,
        protocol: Option<&HeaderValue>,
        ours: OnUpgrade,
        connection: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Response<ProxiedBody> {
        let code = answer.status();
        if code != StatusCode::SWITCHING_PROTOCOLS {
            if code.as_u16() < 400 {
                return unavailable(&format!("invalid upgrade response: status code {}", code.as_u16()));
            }
            return pass(answer, self.end(None));
        }
        if let Err(why) = agreed(protocol, answer.headers().get(header::UPGRADE)) {
            return text(StatusCode::BAD_GATEWAY, why);
        }
        let theirs = hyper::upgrade::on(&mut answer);
        let slot = answer.extensions_mut().remove::<RequestPermit>();
        let mut stop = self.stop.subscribe();
        tokio::spawn(async move {
            let _held = (slot, connection);
            let both = async { tokio::join!(ours, theirs) };
            let both = tokio::select! {
                both = both => both,
                _ = stop.wait_for(|s| *s) => return,
            };
            let (Ok(ours), Ok(theirs)) = both else { return };
            let (mut from_client, mut to_client) = tokio::io::split(TokioIo::new(ours));
            let (mut from_server, mut to_server) = tokio::io::split(TokioIo::new(theirs));
            // Whichever side ends first ends the other.
            let ended = tokio::select! {
                ended = tokio::io::copy(&mut from_client, &mut to_server) => ended,
                ended = tokio::io::copy(&mut from_server, &mut to_client) => ended,
                _ = stop.wait_for(|s| *s) => Ok(0),
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection to an extension server ended");
            }
            use tokio::io::AsyncWriteExt;
            // What was written before the end is still delivered.
            let _ = tokio::join!(to_client.shutdown(), to_server.shutdown());
        });
        let (parts, _) = answer.into_parts();
        Response::from_parts(parts, empty())
    }
}

/// Whether the protocol that the other side switches to is one that the client asked for.
///
/// # Errors
/// Go's text for one that is not.
fn agreed(asked: Option<&HeaderValue>, found: Option<&HeaderValue>) -> Result<(), String> {
    let text = |value: Option<&HeaderValue>| {
        value.map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned()).unwrap_or_default()
    };
    let (asked, found) = (text(asked), text(found));
    if asked.split(',').any(|one| one.trim().eq_ignore_ascii_case(found.trim())) {
        return Ok(());
    }
    Err(format!("backend tried to switch protocol {found:?} when {asked:?} was requested"))
}

/// Whether a client wants another protocol on its connection.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    let lower = |v: &HeaderValue| v.to_str().unwrap_or_default().to_ascii_lowercase();
    headers.get_all(header::CONNECTION).iter().any(|v| lower(v).contains("upgrade"))
}

/// The method as Go's client writes it.
fn verb(method: &Method) -> String {
    let (first, rest) = method.as_str().split_at(method.as_str().len().min(1));
    format!("{first}{}", rest.to_ascii_lowercase())
}

/// The answer as the client gets it.
fn pass(answer: Response<ProxiedBody>, end: BoxFuture<'static, End>) -> Response<ProxiedBody> {
    let (mut parts, inner) = answer.into_parts();
    if parts.status.is_informational() {
        return text(StatusCode::BAD_GATEWAY, "the backend switched protocols without a request to");
    }
    if parts.status.is_redirection() && parts.headers.contains_key(header::LOCATION) {
        let refused = "the backend attempted to redirect this request, which is not permitted";
        return text(StatusCode::BAD_GATEWAY, refused);
    }
    if parts.headers.contains_key(header::TRANSFER_ENCODING) {
        // The length is not the body's then (RFC 9112, 6.3).
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    forwarded_request::remove_hops(&mut parts.headers);
    CORS.iter().for_each(|name| drop(parts.headers.remove(name)));
    parts.extensions = http::Extensions::new();
    parts.version = http::Version::HTTP_11;
    Response::from_parts(parts, Ending { inner, end }.boxed_unsync())
}

/// Why a body ends before its other side says so.
enum End {
    /// Its time is over.
    Late,
    /// This server ends.
    Stopped,
}

/// A body that ends in any case.
struct Ending {
    inner: ProxiedBody,
    end: BoxFuture<'static, End>,
}

impl Body for Ending {
    type Data = Bytes;
    type Error = ProxiedBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxiedBodyError>>> {
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Pending => {}
            ready => return ready,
        }
        match (self.end.as_mut().poll(cx), self.inner.size_hint().exact()) {
            (Poll::Pending, _) => Poll::Pending,
            (Poll::Ready(End::Late), _) => {
                Poll::Ready(Some(Err(ProxiedBodyError("its time is over".into()))))
            }
            // A stream ends as the server's own do.
            (Poll::Ready(End::Stopped), None) => Poll::Ready(None),
            (Poll::Ready(End::Stopped), Some(_)) => {
                Poll::Ready(Some(Err(ProxiedBodyError("the server is shutting down".into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

fn empty() -> ProxiedBody {
    Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync()
}

fn unavailable(why: &str) -> Response<ProxiedBody> {
    text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}

/// A request goes around in a circle: an extension server sends it back to where it came from.
fn loop_detected() -> Response<ProxiedBody> {
    let message = "the request was forwarded to extension servers too often: one of them sends requests back";
    let status = Status::new(StatusCode::LOOP_DETECTED.as_u16(), Reason::Unknown, message);
    let mut response = text(StatusCode::LOOP_DETECTED, status.to_value().to_string());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<ProxiedBody> {
    let full = Full::new(text.into()).map_err(|never: std::convert::Infallible| match never {});
    let mut response = Response::new(full.boxed_unsync());
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_testing::headers::show;

    #[test]
    fn protocols_are_those_that_were_asked_for() {
        let agreed = |asked: Option<&'static str>, found: Option<&'static str>| {
            let value = |text: Option<&'static str>| text.map(HeaderValue::from_static);
            agreed(value(asked).as_ref(), value(found).as_ref())
        };
        assert!(agreed(Some("websocket"), Some("WebSocket")).is_ok());
        assert!(agreed(Some("a, SPDY/3.1"), Some("SPDY/3.1")).is_ok());
        assert_eq!(
            agreed(Some("websocket"), Some("h2c")).unwrap_err(),
            r#"backend tried to switch protocol "h2c" when "websocket" was requested"#
        );
        assert!(agreed(Some("websocket"), None).is_err());
    }

    #[test]
    fn redirects_are_refused_and_hops_stay() {
        let answer = |code: u16, headers: &[(&'static str, &'static str)]| {
            let mut response = Response::builder().status(code);
            for (name, value) in headers {
                response = response.header(*name, *value);
            }
            let answer = pass(response.body(empty()).unwrap(), Box::pin(std::future::pending()));
            format!("{}\n{}", answer.status().as_u16(), show(answer.headers()))
        };
        assert!(answer(302, &[("location", "https://elsewhere")]).starts_with("502\n"));
        assert!(answer(101, &[("upgrade", "x")]).starts_with("502\n"));
        assert_eq!(answer(304, &[("etag", "\"x\"")]), "304\netag: \"x\"\n");
        let headers =
            [("keep-alive", "5"), ("access-control-allow-origin", "*"), ("content-type", "text/html")];
        assert_eq!(answer(200, &headers), "200\ncontent-type: text/html\n");
        assert_eq!(answer(200, &[("content-length", "5")]), "200\ncontent-length: 5\n");
        let smuggled = [("transfer-encoding", "chunked"), ("content-length", "5")];
        assert_eq!(answer(200, &smuggled), "200\n");
    }
}
