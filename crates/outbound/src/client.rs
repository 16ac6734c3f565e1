//! One stranger: its connections and requests to it.
//!
//! HTTP/2 is spoken where the other side offers it; requests that switch protocols are HTTP/1.1.
//!
//! Invariant: no more than a fixed number of requests is under way (`lanes`), whoever wants another waits.

use crate::{
    CallError, ClientConfig, Endpoint, Target,
    callers::Finder,
    config::Place,
    connect::{Connected, connect},
    error::{DEADLINE, broken, cause, cut},
    lanes::{Lane, Rooms, Slot},
    pool::{Idle, Shared, Single, Stream},
    tls,
};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, Uri, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, client::conn::TrySendError};
use kaji_meta::{GroupResource, Status};
use std::{
    error::Error,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio_rustls::rustls::ClientConfig as Tls;

/// The body of a request.
pub type RequestBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// A body that is there as a whole.
pub fn body(bytes: impl Into<Bytes>) -> RequestBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Somebody who can be called.
pub struct Client {
    config: Arc<ClientConfig>,
    place: Place,
    /// Offers both protocols.
    tls: Arc<Tls>,
    /// Offers the one that can be switched from.
    tls_http1: Arc<Tls>,
    finder: Arc<Finder>,
    idle: Arc<Idle>,
    shared: Shared,
    /// The other side chose HTTP/2 the last time.
    shares: AtomicBool,
    rooms: Rooms,
}

impl Client {
    pub(crate) fn new(config: Arc<ClientConfig>, finder: Arc<Finder>) -> Result<Client, CallError> {
        let tls = tls::config(&config)?;
        let mut tls_http1 = tls.clone();
        tls_http1.alpn_protocols.retain(|protocol| protocol != tls::HTTP2);
        Ok(Client {
            place: Place::of(&config.target)?,
            tls: Arc::new(tls),
            tls_http1: Arc::new(tls_http1),
            config,
            finder,
            idle: Arc::default(),
            shared: Shared::default(),
            shares: AtomicBool::new(false),
            rooms: Rooms::default(),
        })
    }

    /// Posts JSON to the target's own path and reads the answer, no more than `limit` bytes of it. The other side is
    /// told how long it has (`?timeout=10s`).
    ///
    /// # Errors
    /// Whatever keeps the answer of a success from being there in time.
    pub async fn post_json(&self, body: Bytes, timeout: Duration, limit: usize) -> Result<Bytes, CallError> {
        let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
        let target = format!("{}?timeout={}", self.place.path, duration(seconds));
        let exchange = self.exchange(Method::POST, &target, body, limit);
        self.timed(exchange, timeout, &Method::POST, &target).await
    }

    /// Gets a document from a path of the target (`""` for its own).
    ///
    /// # Errors
    /// Whatever keeps the answer of a success from being there in time.
    pub async fn get(&self, target: &str, timeout: Duration, limit: usize) -> Result<Bytes, CallError> {
        let target = if target.is_empty() { &self.place.path } else { target };
        let exchange = self.exchange(Method::GET, target, Bytes::new(), limit);
        self.timed(exchange, timeout, &Method::GET, target).await
    }

    async fn timed(
        &self,
        exchange: impl Future<Output = Result<Bytes, CallError>>,
        timeout: Duration,
        method: &Method,
        target: &str,
    ) -> Result<Bytes, CallError> {
        let late = |_| Err(CallError::Timeout(DEADLINE.into()).about(method, &self.url(target)));
        tokio::time::timeout(timeout, exchange).await.unwrap_or_else(late)
    }

    fn url(&self, target: &str) -> String {
        format!("https://{}{target}", self.place.authority)
    }

    /// One request and its whole answer, on another connection if the first turns out to be stale.
    async fn exchange(
        &self,
        method: Method,
        target: &str,
        bytes: Bytes,
        limit: usize,
    ) -> Result<Bytes, CallError> {
        let request = || {
            let mut request = Request::new(body(bytes.clone()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = target.parse().map_err(|e| CallError::Config(format!("{target:?}: {e}")))?;
            let headers = request.headers_mut();
            headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, */*"));
            headers.insert(header::USER_AGENT, HeaderValue::from_static("kube-apiserver-admission"));
            if method == Method::POST {
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                request.extensions_mut().insert(Alone);
            }
            Ok(request)
        };
        let about = |error: CallError| error.about(&method, &self.url(target));
        let answer = match self.once(request()?, Lane::Short, true).await {
            // It had been closed before anything of an answer came; the other side can be asked again.
            Err(Failed { reused: true, stale: true, .. }) => self.once(request()?, Lane::Short, false).await,
            other => other,
        };
        let answer = answer.map_err(|failed| about(failed.error))?;
        read(answer, &method, limit).await.map_err(|e| match e {
            CallError::Timeout(_) => about(e),
            other => other,
        })
    }

    /// Sends a request, whose URI is a path and a query, and gives the answer whatever its code. The body of the answer
    /// holds the connection until it was read or dropped; so does the [`Slot`] among its extensions, for those who
    /// switch protocols (`hyper::upgrade::on`). The caller sees to the time.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn send(
        &self,
        request: Request<RequestBody>,
        lane: Lane,
    ) -> Result<Response<Streamed>, CallError> {
        let (method, url) = (request.method().clone(), self.url(&request.uri().to_string()));
        let again = repeatable(&request);
        let answer = match (self.once(request, lane, true).await, again) {
            // It had been closed before anything of an answer came, and asking twice changes nothing.
            (Err(Failed { reused: true, stale: true, .. }), Some(again)) => {
                self.once(again, lane, false).await
            }
            (other, _) => other,
        };
        answer.map_err(|failed| failed.error.about(&method, &url))
    }

    async fn once(
        &self,
        mut request: Request<RequestBody>,
        lane: Lane,
        reuse: bool,
    ) -> Result<Response<Streamed>, Failed> {
        let fresh = |error| Failed { error, reused: false, stale: false };
        self.dress(&mut request).map_err(fresh)?;
        let single =
            request.headers().contains_key(header::UPGRADE) || request.extensions().get::<Alone>().is_some();
        let mut reuse = reuse;
        loop {
            let (line, reused, slot) = self.line(lane, single, reuse).await.map_err(fresh)?;
            let sent = match line {
                Line::Single(mut sender) => {
                    relative(&mut request);
                    let sent = sender.try_send_request(request).await;
                    sent.map(|response| self.streamed(response, Line::Single(sender), slot))
                }
                Line::Stream(mut stream) => {
                    absolute(&mut request, &self.place.authority).map_err(fresh)?;
                    match stream.sender.try_send_request(request).await {
                        Ok(response) => Ok(self.streamed(response, Line::Stream(stream), slot)),
                        Err(error) => {
                            self.shared.forget(&stream);
                            Err(error)
                        }
                    }
                }
            };
            match sent {
                Ok(response) => return Ok(response),
                Err(error) => request = unsent(error, reused)?,
            }
            // What was kept is not what it was; nothing was sent.
            reuse = false;
        }
    }

    /// Something to send a request on, whether it was used before, and the right to use it.
    async fn line(&self, lane: Lane, single: bool, reuse: bool) -> Result<(Line, bool, Slot), CallError> {
        let shares = !single && self.shares.load(Ordering::Relaxed);
        let slot = self.rooms.take(lane, shares).await?;
        if reuse && shares {
            if let Some(stream) = self.shared.take(lane) {
                return Ok((Line::Stream(stream), true, slot));
            }
        } else if reuse && let Some(sender) = self.idle.take().await {
            return Ok((Line::Single(sender), true, slot));
        }
        let connected = self.connect(single).await?;
        let chosen = matches!(connected, Connected::Shared(_));
        if !single {
            self.shares.store(chosen, Ordering::Relaxed);
        }
        let slot = if chosen == shares {
            slot
        } else {
            drop(slot);
            self.rooms.take(lane, chosen).await?
        };
        Ok(match connected {
            Connected::Single(sender) => (Line::Single(sender), false, slot),
            // Others may have connected meanwhile, and have room.
            Connected::Shared(sender) => match self.shared.take(lane).filter(|_| reuse) {
                Some(stream) => (Line::Stream(stream), true, slot),
                None => (Line::Stream(self.shared.put(lane, sender)), false, slot),
            },
        })
    }

    /// The headers that every request has.
    fn dress(&self, request: &mut Request<RequestBody>) -> Result<(), CallError> {
        let value =
            |text: &str| HeaderValue::from_str(text).map_err(|e| CallError::Config(format!("header: {e}")));
        if !request.headers().contains_key(header::HOST) {
            request.headers_mut().insert(header::HOST, value(&self.place.authority)?);
        }
        if let Some(authorization) = &self.config.authorization {
            let mut value = value(authorization)?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        Ok(())
    }

    async fn connect(&self, single: bool) -> Result<Connected, CallError> {
        let endpoint = match &self.config.target {
            Target::Url(_) => Endpoint { host: self.place.host.clone(), port: self.place.port },
            Target::Service { namespace, name, port, .. } => {
                self.finder.find((namespace, name), *port).await?
            }
        };
        let tls = if single { &self.tls_http1 } else { &self.tls };
        connect(&self.config, tls, &self.place, &endpoint).await
    }

    fn streamed(&self, response: Response<Incoming>, on: Line, slot: Slot) -> Response<Streamed> {
        let (mut parts, inner) = response.into_parts();
        parts.extensions.insert(slot.clone());
        let held = Held { on, idle: Arc::downgrade(&self.idle), _slot: slot };
        let switched = parts.status == http::StatusCode::SWITCHING_PROTOCOLS;
        let mut body = Streamed { inner, held: (!switched).then_some(held) };
        if body.inner.is_end_stream() {
            body.give_back();
        }
        Response::from_parts(parts, body)
    }
}

/// A request that shares its connection with no other at the same time, and so speaks HTTP/1.1: what a webhook is asked. The
/// replicas of a service share the work by connections. Source: kubernetes #75791.
#[derive(Clone, Copy)]
struct Alone;

/// The request if nothing of it was sent, on a connection that had been closed.
fn unsent(
    mut error: TrySendError<Request<RequestBody>>,
    reused: bool,
) -> Result<Request<RequestBody>, Failed> {
    match error.take_message() {
        Some(unsent) if reused => Ok(unsent),
        _ => {
            let error = error.into_error();
            let gone = error.is_incomplete_message() || error.is_closed() || error.is_canceled();
            let stale = gone || cause::<std::io::Error>(&error).is_some() || is_http2(&error);
            Err(Failed { error: broken(&error), reused, stale })
        }
    }
}

/// Whether a connection of HTTP/2 ended, or ended this request: servers do so when they go, or have had enough of it.
fn is_http2(error: &hyper::Error) -> bool {
    error.to_string().starts_with("http2 error")
}

/// As HTTP/1.1 wants it: the path, and the host in a header.
fn relative(request: &mut Request<RequestBody>) {
    let Some(authority) = request.uri().authority().cloned() else { return };
    if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
        request.headers_mut().insert(header::HOST, host);
    }
    if let Some(path) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = Uri::from(path);
    }
}

/// As HTTP/2 wants it: all in the URI.
fn absolute(request: &mut Request<RequestBody>, place: &str) -> Result<(), CallError> {
    let host = request.headers_mut().remove(header::HOST);
    if request.uri().authority().is_some() {
        return Ok(());
    }
    let host = host.as_ref().and_then(|h| h.to_str().ok()).unwrap_or(place);
    let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
    let uri = format!("https://{host}{path}").parse();
    *request.uri_mut() = uri.map_err(|e| CallError::Config(format!("{path:?}: {e}")))?;
    Ok(())
}

/// The same request once more, if it only reads and has no body.
fn repeatable(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD) && request.body().is_end_stream();
    if !reads || request.headers().contains_key(header::UPGRADE) {
        return None;
    }
    let mut again = Request::new(body(Bytes::new()));
    *again.method_mut() = request.method().clone();
    *again.uri_mut() = request.uri().clone();
    *again.headers_mut() = request.headers().clone();
    Some(again)
}

struct Failed {
    error: CallError,
    /// On a connection that had been used before.
    reused: bool,
    /// Nothing of an answer had come.
    stale: bool,
}

/// What carries a request and its answer.
enum Line {
    Single(Single),
    Stream(Stream),
}

struct Held {
    on: Line,
    idle: Weak<Idle>,
    _slot: Slot,
}

/// The body of an answer as it comes.
pub struct Streamed {
    inner: Incoming,
    held: Option<Held>,
}

impl Streamed {
    fn give_back(&mut self) {
        if let Some(Held { on: Line::Single(sender), idle, .. }) = self.held.take()
            && let Some(idle) = idle.upgrade()
        {
            idle.put(sender);
        }
    }
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(_)) if !self.inner.is_end_stream() => {}
            Some(Err(_)) => drop(self.held.take()),
            _ => self.give_back(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Reads an answer as upstream's REST client does.
async fn read(answer: Response<Streamed>, method: &Method, limit: usize) -> Result<Bytes, CallError> {
    let (parts, body) = answer.into_parts();
    let large = || Err(CallError::Transport(format!("the response body is larger than {limit} bytes")));
    if body.size_hint().lower() > limit as u64 {
        return large();
    }
    let bytes = match Limited::new(body, limit).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return large(),
        Err(error) => return Err(cut(&*error)),
    };
    if matches!(parts.status.as_u16(), 200..=206) {
        return Ok(bytes);
    }
    let said = serde_json::from_slice(&bytes).ok();
    if let Some(status) =
        said.as_ref().filter(|v: &&serde_json::Value| v["kind"] == "Status").and_then(Status::from_value)
    {
        return Err(CallError::Answer(Box::new(status)));
    }
    let header = |name| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("");
    let text = header(header::CONTENT_TYPE).starts_with("text/");
    let message = if text { String::from_utf8_lossy(&bytes).trim().to_owned() } else { "unknown".to_owned() };
    let code = parts.status.as_u16();
    let mut status = Status::generic(code, method.as_str(), &GroupResource::default(), "", &message);
    if let (Some(details), Ok(after)) = (&mut status.details, header(header::RETRY_AFTER).parse()) {
        details.retry_after_seconds = after;
    }
    Err(CallError::Answer(Box::new(status)))
}

/// Whole seconds as Go prints them.
fn duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}
