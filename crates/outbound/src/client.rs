//! The client of one server: its connections, and the requests on them.
//!
//! HTTP/2 is used where the server offers it; requests that upgrade the connection use HTTP/1.1.
//!
//! Invariants: the number of requests in flight is limited (`concurrency`), further ones wait. A request is retried, once,
//! only if the server has not processed it, or if it is idempotent and the connection, which had served others, ended
//! before any byte of the response. Source: Go's `shouldRetryRequest` and `isReplayable`, and
//! `canRetryError` of its HTTP/2; RFC 9110, 9.2.2.
//!
//! Requests are boxed futures: HTTP/2 and TLS would be compiled again in each crate that awaits an `async fn`.

use crate::{
    CallError, ClientConfig,
    clients::ServiceResolver,
    concurrency::{ConcurrencyLimits, RequestClass, RequestPermit},
    connect::{Connected, Dialler},
    error::{DEADLINE, UNREAD, broken, cause, cut},
    pool::{Idle, Lease, Sender, Shared, Single, Stream},
    spans,
};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, Uri, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, client::conn::TrySendError};
use kaji_meta::{GroupResource, Status, duration};
use kaji_resource::BoxFuture;
use std::{
    error::Error,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// The body of a request.
pub type RequestBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// A body that is there as a whole.
pub fn body(bytes: impl Into<Bytes>) -> RequestBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A client of one configuration.
pub struct Client {
    dialler: Arc<Dialler>,
    idle: Arc<Idle>,
    shared: Arc<Shared>,
    limits: ConcurrencyLimits,
}

impl Client {
    pub(crate) fn new(config: Arc<ClientConfig>, finder: Arc<ServiceResolver>) -> Result<Client, CallError> {
        Ok(Client {
            dialler: Arc::new(Dialler::new(config, finder)?),
            idle: Arc::default(),
            shared: Arc::default(),
            limits: ConcurrencyLimits::default(),
        })
    }

    /// Posts JSON to the target's own path and reads the answer, no more than `limit` bytes of it. The query has the
    /// server's deadline (`?timeout=10s`).
    ///
    /// # Errors
    /// Whatever keeps the answer of a success from being there in time.
    pub async fn post_json(&self, body: Bytes, timeout: Duration, limit: usize) -> Result<Bytes, CallError> {
        let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
        let target =
            format!("{}?timeout={}", self.dialler.place.path, duration::format(Duration::from_secs(seconds)));
        self.exchange(Method::POST, &target, body, (timeout, limit)).await
    }

    /// Gets a document from a path of the target (`""` for its own).
    ///
    /// # Errors
    /// Whatever keeps the answer of a success from being there in time.
    pub async fn get(&self, target: &str, timeout: Duration, limit: usize) -> Result<Bytes, CallError> {
        let target = if target.is_empty() { &self.dialler.place.path } else { target };
        self.exchange(Method::GET, target, Bytes::new(), (timeout, limit)).await
    }

    fn url(&self, target: &str) -> String {
        let scheme = if self.dialler.is_plain() { "http" } else { "https" };
        format!("{scheme}://{}{target}", self.dialler.place.authority)
    }

    /// One request and its whole answer.
    fn exchange<'a>(
        &'a self,
        method: Method,
        target: &'a str,
        bytes: Bytes,
        (time, limit): (Duration, usize),
    ) -> BoxFuture<'a, Result<Bytes, CallError>> {
        Box::pin(async move {
            let until = Instant::now() + time;
            let mut span = spans::begin(&method, &self.dialler.place.authority);
            let request = || {
                let mut request = Request::new(body(bytes.clone()));
                *request.method_mut() = method.clone();
                *request.uri_mut() =
                    target.parse().map_err(|e| CallError::Config(format!("{target:?}: {e}")))?;
                let headers = request.headers_mut();
                spans::inject(span.as_ref(), headers);
                headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, */*"));
                headers.insert(header::USER_AGENT, HeaderValue::from_static("kube-apiserver-admission"));
                if method == Method::POST {
                    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                    request.extensions_mut().insert(Alone);
                }
                Ok(request)
            };
            let asked = async {
                let (first, began) = (request()?, self.shared.count());
                let idempotent = is_idempotent(&first);
                let answer = match self.once(first, RequestClass::Regular, None).await {
                    Err(failed) if failed.loss.may_repeat(idempotent) => {
                        self.once(request()?, RequestClass::Regular, Some(began)).await
                    }
                    other => other,
                };
                answer.map_err(|failed| failed.error)
            };
            let late = |_| Err(CallError::Timeout(DEADLINE.into()));
            let answer = timeout_at(until, asked).await.unwrap_or_else(late);
            spans::answered(span.as_mut(), &answer);
            let answer = answer.map_err(|error| error.about(&method, &self.url(target)))?;
            let late = |_| Err(CallError::Timeout(format!("{UNREAD}{DEADLINE}")));
            timeout_at(until, read(answer, &method, limit)).await.unwrap_or_else(late)
        })
    }

    /// Sends a request, with a path and a query for its URI, and returns the response whatever its code. The body of the answer
    /// holds the connection until it was read or dropped; so does the [`RequestPermit`] among its extensions, which is for
    /// upgraded connections (`hyper::upgrade::on`). The caller limits the time.
    ///
    /// # Errors
    /// There is no answer.
    pub fn send(
        &self,
        request: Request<RequestBody>,
        class: RequestClass,
    ) -> BoxFuture<'_, Result<Response<StreamedBody>, CallError>> {
        Box::pin(async move {
            let (method, url) = (request.method().clone(), self.url(&request.uri().to_string()));
            let (again, idempotent) = (copy(&request), is_idempotent(&request));
            let began = self.shared.count();
            let answer = match (self.once(request, class, None).await, again) {
                (Err(failed), Some(again)) if failed.loss.may_repeat(idempotent) => {
                    self.once(again, class, Some(began)).await
                }
                (other, _) => other,
            };
            answer.map_err(|failed| failed.error.about(&method, &url))
        })
    }

    /// Sends a request; if a number is given, on a connection that came after it.
    async fn once(
        &self,
        mut request: Request<RequestBody>,
        class: RequestClass,
        mut after: Option<u64>,
    ) -> Result<Response<StreamedBody>, Failed> {
        let fatal = |error| Failed { error, loss: Loss::Final };
        self.dress(&mut request).map_err(fatal)?;
        let single =
            request.headers().contains_key(header::UPGRADE) || request.extensions().get::<Alone>().is_some();
        let began = self.shared.count();
        loop {
            let (line, reused, permit) = self.line(class, single, after).await.map_err(fatal)?;
            let sent = match line {
                Line::Single(mut sender) => {
                    relative(&mut request);
                    let sent = sender.try_send_request(request).await;
                    sent.map(|response| self.streamed(response, Line::Single(sender), permit))
                }
                Line::Stream(mut stream) => {
                    absolute(&mut request, &self.dialler.place.authority).map_err(fatal)?;
                    match stream.sender.try_send_request(request).await {
                        Ok(response) => Ok(self.streamed(response, Line::Stream(stream), permit)),
                        Err(error) => {
                            // The end of one request says nothing about the others.
                            if !cause::<h2::Error>(error.error()).is_some_and(h2::Error::is_reset) {
                                self.shared.forget(&stream);
                            }
                            Err(error)
                        }
                    }
                }
            };
            match sent {
                Ok(response) => return Ok(response),
                Err(error) => request = unsent(error, reused, after.is_none())?,
            }
            // What was kept is not what it was; nothing was sent.
            after = Some(began);
        }
    }

    /// Something to send a request on, whether it was used before, and the right to use it.
    async fn line(
        &self,
        class: RequestClass,
        single: bool,
        after: Option<u64>,
    ) -> Result<(Line, bool, RequestPermit), CallError> {
        if !single && self.shared.spoken() {
            let permit = self.limits.acquire(class, true).await?;
            while self.shared.spoken() {
                match self.shared.place(class, after, || self.dial(class)) {
                    Lease::Open(stream) => {
                        let reused = stream.reused;
                        return Ok((Line::Stream(stream), reused, permit));
                    }
                    Lease::Dialing(dial) => dial.wait().await?,
                }
            }
        }
        let permit = self.limits.acquire(class, false).await?;
        if after.is_none()
            && let Some(sender) = self.idle.take().await
        {
            return Ok((Line::Single(sender), true, permit));
        }
        match self.dialler.connect(class, single).await? {
            Connected::Single(sender) => Ok((Line::Single(sender), false, permit)),
            Connected::Shared(sender) => {
                drop(permit);
                let permit = self.limits.acquire(class, true).await?;
                let gone = || CallError::Transport("EOF".into());
                let stream = self.shared.put(class, sender).ok_or_else(gone)?;
                let reused = stream.reused;
                Ok((Line::Stream(stream), reused, permit))
            }
        }
    }

    /// A dial that waiting requests share.
    fn dial(
        &self,
        class: RequestClass,
    ) -> impl Future<Output = Result<Option<Sender>, CallError>> + Send + use<> {
        let (dialler, idle) = (self.dialler.clone(), self.idle.clone());
        async move {
            match dialler.connect(class, false).await? {
                Connected::Shared(sender) => Ok(Some(sender)),
                Connected::Single(sender) => {
                    idle.put(sender);
                    Ok(None)
                }
            }
        }
    }

    /// The headers that every request has.
    fn dress(&self, request: &mut Request<RequestBody>) -> Result<(), CallError> {
        let value =
            |text: &str| HeaderValue::from_str(text).map_err(|e| CallError::Config(format!("header: {e}")));
        if !request.headers().contains_key(header::HOST) {
            request.headers_mut().insert(header::HOST, value(&self.dialler.place.authority)?);
        }
        if let Some(authorization) = &self.dialler.config.authorization {
            let mut value = value(authorization)?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        Ok(())
    }

    fn streamed(
        &self,
        response: Response<Incoming>,
        on: Line,
        permit: RequestPermit,
    ) -> Response<StreamedBody> {
        let (mut parts, inner) = response.into_parts();
        parts.extensions.insert(permit.clone());
        let held = Held { on, idle: Arc::downgrade(&self.idle), _permit: permit };
        let switched = parts.status == http::StatusCode::SWITCHING_PROTOCOLS;
        let mut body = StreamedBody { inner, held: (!switched).then_some(held) };
        if body.inner.is_end_stream() {
            body.give_back();
        }
        Response::from_parts(parts, body)
    }
}

/// A request that shares its connection with no other at the same time, and so uses HTTP/1.1: a webhook request. The
/// replicas of a service share the work by connections. Source: kubernetes #75791.
#[derive(Clone, Copy)]
struct Alone;

/// The request if nothing of it was sent, on a connection that had been closed. Of a second attempt nothing is left.
fn unsent(
    mut error: TrySendError<Request<RequestBody>>,
    reused: bool,
    first: bool,
) -> Result<Request<RequestBody>, Failed> {
    match error.take_message() {
        Some(unsent) if reused && first => Ok(unsent),
        Some(_) => Err(Failed { error: broken(&error.into_error()), loss: Loss::Final }),
        None => {
            let error = error.into_error();
            Err(Failed { error: broken(&error), loss: Loss::of(&error, reused) })
        }
    }
}

/// What a failure says about the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// The other side has done nothing about it.
    Untouched,
    /// The connection, which had served others, ended before anything of an answer came.
    Ended,
    /// Another attempt would end as this did, or do twice what was done.
    Final,
}

impl Loss {
    fn of(error: &hyper::Error, reused: bool) -> Loss {
        if let Some(said) = cause::<h2::Error>(error) {
            let code = said.reason().unwrap_or(h2::Reason::INTERNAL_ERROR);
            let untouched = if said.is_go_away() {
                // Only requests after the last that the other side looks at end so. One that goes with an error at the
                // first of a connection does not want any.
                reused || code == h2::Reason::NO_ERROR
            } else {
                code == h2::Reason::REFUSED_STREAM
            };
            return if untouched && said.is_remote() { Loss::Untouched } else { Loss::Final };
        }
        let gone = error.is_incomplete_message() || error.is_closed() || error.is_canceled();
        let gone = gone || error.is_timeout() || cause::<std::io::Error>(error).is_some();
        if reused && gone { Loss::Ended } else { Loss::Final }
    }

    fn may_repeat(self, idempotent: bool) -> bool {
        self == Loss::Untouched || self == Loss::Ended && idempotent
    }
}

/// Whether asking twice changes no more than asking once.
fn is_idempotent(request: &Request<RequestBody>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
        || ["idempotency-key", "x-idempotency-key"].iter().any(|k| request.headers().contains_key(*k))
}

/// As HTTP/1.1 requires it: the path, and the host in a header.
fn relative(request: &mut Request<RequestBody>) {
    let Some(authority) = request.uri().authority().cloned() else { return };
    if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
        request.headers_mut().insert(header::HOST, host);
    }
    if let Some(path) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = Uri::from(path);
    }
}

/// As HTTP/2 requires it: all in the URI.
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

/// The same request once more, if it has no body: others can be read once only.
fn copy(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    if !request.body().is_end_stream() || request.headers().contains_key(header::UPGRADE) {
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
    loss: Loss,
}

/// What carries a request and its answer.
enum Line {
    Single(Single),
    Stream(Stream),
}

struct Held {
    on: Line,
    idle: Weak<Idle>,
    _permit: RequestPermit,
}

/// The body of an answer as it comes.
pub struct StreamedBody {
    inner: Incoming,
    held: Option<Held>,
}

impl StreamedBody {
    fn give_back(&mut self) {
        if let Some(Held { on: Line::Single(sender), idle, .. }) = self.held.take()
            && let Some(idle) = idle.upgrade()
        {
            idle.put(sender);
        }
    }
}

impl Body for StreamedBody {
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
async fn read(answer: Response<StreamedBody>, method: &Method, limit: usize) -> Result<Bytes, CallError> {
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
