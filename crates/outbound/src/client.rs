//! One stranger: its connections and requests to it.
//!
//! Invariants: a connection carries one request at a time and is used again only after its answer was read to the end;
//! no more than a fixed number is open, whoever wants another waits.

use crate::{
    CallError, ClientConfig, Endpoint, Target,
    callers::Finder,
    config::Place,
    connect::connect,
    error::{DEADLINE, broken, cause, cut},
    tls,
};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, client::conn::http1::SendRequest};
use kaji_meta::{GroupResource, Status};
use std::{
    error::Error,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::rustls::ClientConfig as Tls;

/// The body of a request.
pub type RequestBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// A body that is there as a whole.
pub fn body(bytes: impl Into<Bytes>) -> RequestBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Connections that wait for the next request. As client-go's `MaxIdleConnsPerHost`.
const MOST_IDLE: usize = 25;
/// They wait no longer than this.
const IDLE: Duration = Duration::from_secs(90);
/// How long a connection that was just used may take until it is ready.
const SETTLE: Duration = Duration::from_millis(50);

type Sender = SendRequest<RequestBody>;

#[derive(Default)]
struct Idle(Mutex<Vec<(Sender, Instant)>>);

impl Idle {
    /// The connection that was used last, if any is left that can be used.
    async fn take(&self) -> Option<Sender> {
        loop {
            let (mut sender, since) = {
                let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                all.retain(|(sender, since)| !sender.is_closed() && since.elapsed() < IDLE);
                all.pop()?
            };
            // One whose request is still being sent, though its answer is there, is of no use to anybody else.
            if since.elapsed() < IDLE
                && matches!(tokio::time::timeout(SETTLE, sender.ready()).await, Ok(Ok(())))
            {
                return Some(sender);
            }
        }
    }

    fn put(&self, sender: Sender) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MOST_IDLE && !sender.is_closed() {
            all.push((sender, Instant::now()));
        }
    }
}

/// Somebody who can be called.
pub struct Client {
    config: Arc<ClientConfig>,
    place: Place,
    tls: Arc<Tls>,
    finder: Arc<Finder>,
    idle: Arc<Idle>,
    slots: Arc<Semaphore>,
}

impl Client {
    pub(crate) fn new(
        config: Arc<ClientConfig>,
        finder: Arc<Finder>,
        connections: usize,
    ) -> Result<Client, CallError> {
        Ok(Client {
            place: Place::of(&config.target)?,
            tls: Arc::new(tls::config(&config)?),
            config,
            finder,
            idle: Arc::default(),
            slots: Arc::new(Semaphore::new(connections)),
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
            if method == Method::POST {
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            }
            headers.insert(header::USER_AGENT, HeaderValue::from_static("kube-apiserver-admission"));
            Ok(request)
        };
        let about = |error: CallError| error.about(&method, &self.url(target));
        let answer = match self.once(request()?, true).await {
            // It had been closed before anything of an answer came; the other side can be asked again.
            Err(Failed { reused: true, stale: true, .. }) => self.once(request()?, false).await,
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
    pub async fn send(&self, request: Request<RequestBody>) -> Result<Response<Streamed>, CallError> {
        let (method, url) = (request.method().clone(), self.url(&request.uri().to_string()));
        let again = repeatable(&request);
        let answer = match (self.once(request, true).await, again) {
            // It had been closed before anything of an answer came, and asking twice changes nothing.
            (Err(Failed { reused: true, stale: true, .. }), Some(again)) => self.once(again, false).await,
            (other, _) => other,
        };
        answer.map_err(|failed| failed.error.about(&method, &url))
    }

    async fn once(
        &self,
        mut request: Request<RequestBody>,
        reuse: bool,
    ) -> Result<Response<Streamed>, Failed> {
        let fresh = |error| Failed { error, reused: false, stale: false };
        self.dress(&mut request).map_err(fresh)?;
        let slot = self.slots.clone().acquire_owned().await;
        let slot = Slot(Arc::new(slot.map_err(|e| fresh(CallError::Transport(e.to_string())))?));
        let mut idle = if reuse { self.idle.take().await } else { None };
        loop {
            let reused = idle.is_some();
            let mut sender = match idle.take() {
                Some(sender) => sender,
                None => self.connect().await.map_err(fresh)?,
            };
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.streamed(response, sender, slot)),
                Err(mut error) => match error.take_message() {
                    // It was closed before anything was sent.
                    Some(unsent) if reused => request = unsent,
                    _ => {
                        let error = error.into_error();
                        let gone = error.is_incomplete_message() || error.is_closed() || error.is_canceled();
                        let stale = gone || cause::<std::io::Error>(&error).is_some();
                        return Err(Failed { error: broken(&error), reused, stale });
                    }
                },
            }
        }
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

    async fn connect(&self) -> Result<Sender, CallError> {
        let endpoint = match &self.config.target {
            Target::Url(_) => Endpoint { host: self.place.host.clone(), port: self.place.port },
            Target::Service { namespace, name, port, .. } => {
                self.finder.find((namespace, name), *port).await?
            }
        };
        connect(&self.config, &self.tls, &self.place, &endpoint).await
    }

    fn streamed(&self, response: Response<Incoming>, sender: Sender, slot: Slot) -> Response<Streamed> {
        let (mut parts, inner) = response.into_parts();
        parts.extensions.insert(slot.clone());
        let back = Back { sender, idle: Arc::downgrade(&self.idle), _slot: slot };
        let switched = parts.status == http::StatusCode::SWITCHING_PROTOCOLS;
        let mut body = Streamed { inner, back: (!switched).then_some(back) };
        if body.inner.is_end_stream() {
            body.give_back();
        }
        Response::from_parts(parts, body)
    }
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

/// The right to one connection.
#[derive(Clone, Debug)]
pub struct Slot(#[allow(dead_code, reason = "held")] Arc<OwnedSemaphorePermit>);

struct Back {
    sender: Sender,
    idle: Weak<Idle>,
    _slot: Slot,
}

/// The body of an answer as it comes.
pub struct Streamed {
    inner: Incoming,
    back: Option<Back>,
}

impl Streamed {
    fn give_back(&mut self) {
        if let Some(Back { sender, idle, .. }) = self.back.take()
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
            Some(Err(_)) => drop(self.back.take()),
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
