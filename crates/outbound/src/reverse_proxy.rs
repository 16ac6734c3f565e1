//! Sending a client's request on to another server and its response back, also when both sides switch protocols.
//!
//! Invariants:
//! - A request that is answered in pieces, or that switches protocols, is passed on as it comes; when one side ends, so
//!   does the other. An answer that breaks off breaks off here too and never looks complete.
//! - A connection that has switched protocols is carried by a [`Tunnel`], which runs no longer than this server.
//!
//! Source: Go's `httputil.ReverseProxy` and upstream's `UpgradeAwareHandler`.

mod headers;

pub use headers::{escaped, forwarded, is_loop, is_upgrade, remove_hops};

use crate::{CallError, RequestPermit, StreamedBody};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kaji_resource::BoxFuture;
use std::{
    any::Any,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{
    io::AsyncWriteExt,
    sync::watch,
    time::{Instant, sleep_until},
};

/// What browsers may do with an answer is this server's to say.
const CORS: [HeaderName; 4] = [
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_HEADERS,
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
];

/// The body of another server's response.
pub type ProxiedBody = UnsyncBoxBody<Bytes, ProxiedBodyError>;

/// Another server did not finish its response.
#[derive(Debug, thiserror::Error)]
#[error("the response of another server ended early: {0}")]
pub struct ProxiedBodyError(pub String);

/// What keeps a connection counted, for as long as it is held.
pub type ConnectionHold = Option<Arc<dyn Any + Send + Sync>>;

/// Why a response to a request for another protocol cannot be passed on.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// It is a success without the other protocol.
    #[error("invalid upgrade response: status code {0}")]
    Code(u16),
    /// It is another protocol than that which was requested.
    #[error("backend tried to switch protocol {found:?} when {requested:?} was requested")]
    Protocol {
        /// What the client requested.
        requested: String,
        /// What the other server switches to.
        found: String,
    },
}

/// What a redirection becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirects {
    /// 502.
    Refused,
    /// Whatever the caller has made of it.
    Passed,
}

/// Why a request could not be sent, without the request itself in front of it.
pub fn reason(error: &CallError) -> String {
    let said = error.to_string();
    match said.split_once("\": ") {
        Some((request, why)) if request.contains(" \"http") => why.to_owned(),
        _ => said,
    }
}

/// A response as it comes.
pub fn streamed(response: Response<StreamedBody>) -> Response<ProxiedBody> {
    response.map(|body| body.map_err(|e| ProxiedBodyError(e.to_string())).boxed_unsync())
}

/// When an answer ends, whatever there is of it by then: one that is open by design (`until` is `None`) when this server
/// does.
pub fn end(mut stop: watch::Receiver<bool>, until: Option<Instant>) -> BoxFuture<'static, End> {
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

/// Two connections that have switched protocols, in the extensions of the response that says so. Dropping it ends both.
#[derive(Clone)]
pub struct Tunnel {
    ours: OnUpgrade,
    theirs: OnUpgrade,
    stop: watch::Receiver<bool>,
    held: (Option<RequestPermit>, ConnectionHold),
}

impl Tunnel {
    /// Passes bytes both ways until either side ends, or this server does. The response has to be sent meanwhile.
    pub async fn run(self) {
        let Tunnel { ours, theirs, mut stop, held: _held } = self;
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
            tracing::debug!(%error, "a connection to another server ended");
        }
        // What was written before the end is still delivered.
        let _ = tokio::join!(to_client.shutdown(), to_server.shutdown());
    }
}

/// The response to a request for another protocol: one that switches has a [`Tunnel`] among its extensions; a refusal is
/// the other server's.
///
/// # Errors
/// It is neither.
pub fn switch(
    mut answer: Response<ProxiedBody>,
    requested: Option<&HeaderValue>,
    ours: OnUpgrade,
    connection: ConnectionHold,
    stop: watch::Receiver<bool>,
) -> Result<Response<ProxiedBody>, SwitchError> {
    let code = answer.status();
    if code != StatusCode::SWITCHING_PROTOCOLS {
        if code.as_u16() < 400 {
            return Err(SwitchError::Code(code.as_u16()));
        }
        return Ok(pass(answer, Redirects::Refused, end(stop, None)));
    }
    agreed(requested, answer.headers().get(header::UPGRADE))?;
    let theirs = hyper::upgrade::on(&mut answer);
    let permit = answer.extensions_mut().remove::<RequestPermit>();
    let (mut parts, _) = answer.into_parts();
    parts.extensions = http::Extensions::new();
    parts.extensions.insert(Tunnel { ours, theirs, stop, held: (permit, connection) });
    Ok(Response::from_parts(parts, empty()))
}

/// Whether the protocol that the other side switches to is one that the client requested.
fn agreed(requested: Option<&HeaderValue>, found: Option<&HeaderValue>) -> Result<(), SwitchError> {
    let text = |value: Option<&HeaderValue>| {
        value.map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned()).unwrap_or_default()
    };
    let (requested, found) = (text(requested), text(found));
    if requested.split(',').any(|one| one.trim().eq_ignore_ascii_case(found.trim())) {
        return Ok(());
    }
    Err(SwitchError::Protocol { requested, found })
}

/// The answer as the client gets it.
pub fn pass(
    answer: Response<ProxiedBody>,
    redirects: Redirects,
    end: BoxFuture<'static, End>,
) -> Response<ProxiedBody> {
    let (mut parts, inner) = answer.into_parts();
    if parts.status.is_informational() {
        return text(StatusCode::BAD_GATEWAY, "the backend switched protocols without a request to");
    }
    let refused = redirects == Redirects::Refused && parts.status.is_redirection();
    if refused && parts.headers.contains_key(header::LOCATION) {
        let refused = "the backend attempted to redirect this request, which is not permitted";
        return text(StatusCode::BAD_GATEWAY, refused);
    }
    if parts.headers.contains_key(header::TRANSFER_ENCODING) {
        // The length is not the body's then (RFC 9112, 6.3).
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    remove_hops(&mut parts.headers);
    CORS.iter().for_each(|name| drop(parts.headers.remove(name)));
    parts.extensions = http::Extensions::new();
    parts.version = http::Version::HTTP_11;
    Response::from_parts(parts, Ending { inner, end }.boxed_unsync())
}

/// Why a body ends before its other side says so.
pub enum End {
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

/// No body.
pub fn empty() -> ProxiedBody {
    Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync()
}

/// A response of this server, in text that browsers do not take for anything else.
pub fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<ProxiedBody> {
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
            agreed(Some("websocket"), Some("h2c")).unwrap_err().to_string(),
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
            let answer =
                pass(response.body(empty()).unwrap(), Redirects::Refused, Box::pin(std::future::pending()));
            format!("{}\n{}", answer.status().as_u16(), show(answer.headers()))
        };
        assert!(answer(302, &[("location", "https://other.example")]).starts_with("502\n"));
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
