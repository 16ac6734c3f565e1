//! The whole request path, readable in one place:
//! connection identity -> deadline -> authentication -> impersonation -> flow control -> authorization -> route ->
//! engine or document -> response.
//!
//! Invariants:
//! - Every request, from a socket or from inside the process, takes this path; nothing bypasses authorization.
//! - A request that changes something runs to its end even when its client goes away.
//! - A panic in a handler answers 500 and harms nobody else.
//! - A request that is being served holds its seats, even when its client goes away.

use crate::{
    api, authorize,
    body::ResponseBody,
    deadline,
    discovery::Discovery,
    flow::{self, Flow, Seat},
    health::Health,
    identity::Authentication,
    impersonate::{self, Impersonation},
    metrics::Metrics,
    openapi::OpenApi,
    plain,
    route::{self, RequestInfo, Target},
};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kaji_auth::{Authorizer, authn::IssuerDocuments};
use kaji_engine::{ApiRequest, ApiResponse, Engine};
use kaji_meta::{Status, random};
use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

/// Upstream's `MaxRequestBodyBytes`.
pub const MAX_BODY: usize = 3 * 1024 * 1024;
/// How long a client may take to send its body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// What can go wrong below the API.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// A certificate that says nothing usable.
    #[error("{0}")]
    Certificate(String),
    /// The listener.
    #[error("listen: {0}")]
    Listen(#[from] std::io::Error),
    /// TLS set-up.
    #[error("tls: {0}")]
    Tls(String),
}

/// What a server is made of.
pub struct Stack {
    /// The objects.
    pub engine: Arc<Engine>,
    /// Who somebody is.
    pub authentication: Authentication,
    /// Who may act as somebody else.
    pub impersonation: Impersonation,
    /// Where others find the keys of the cluster's tokens.
    pub issuer: Option<IssuerDocuments>,
    /// Who may do what.
    pub authorizer: Arc<dyn Authorizer>,
    /// Health checks.
    pub health: Health,
    /// Counters.
    pub metrics: Metrics,
    /// Discovery documents.
    pub discovery: Discovery,
    /// OpenAPI documents.
    pub openapi: OpenApi,
    /// `host:port` that discovery names.
    pub address: String,
    /// Who runs and who waits.
    pub flow: Arc<Flow>,
    /// How long a request may take (`--request-timeout`).
    pub request_timeout: Duration,
    /// For audit ids.
    pub random: Arc<dyn random::Random>,
}

/// What an answer says besides the answer, however the request ends.
#[derive(Default)]
struct Notes {
    marks: flow::Marks,
    warnings: Vec<String>,
}

impl Stack {
    /// Serves one request.
    pub async fn serve<B>(self: Arc<Self>, request: Request<B>) -> Response<ResponseBody>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let started = Instant::now();
        let (mut parts, body) = request.into_parts();
        let query = parts.uri.query().map(route::query).unwrap_or_default();
        let path = route::unescape(parts.uri.path(), false);
        let info = RequestInfo::parse(&parts.method, &path, &query);
        let in_flight = self.metrics.begin(&info);
        let (mut notes, mut cut_short) = (Notes::default(), false);
        let answer = match deadline::of(&info, &query, self.request_timeout) {
            Err(status) => Err(status),
            Ok(None) => self.admit(&mut parts, &info, query, body, self.request_timeout, &mut notes).await,
            Ok(Some(time)) => {
                let answer = self.admit(&mut parts, &info, query, body, time, &mut notes);
                tokio::time::timeout(time, answer).await.unwrap_or_else(|_| {
                    cut_short = true;
                    Err(deadline::exceeded())
                })
            }
        };
        let mut response = answer.unwrap_or_else(|status| {
            let mut response = api::response(ApiResponse::from(status.clone()), false);
            if let Some(seconds) = status.details.as_ref().map(|d| d.retry_after_seconds).filter(|s| *s > 0) {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            response
        });
        cut_short |= notes.marks.refused;
        notes.marks.put(response.headers_mut());
        api::add_warnings(response.headers_mut(), &notes.warnings);
        let known = info
            .resource
            .as_ref()
            .is_some_and(|t| self.engine.registry().lookup(&t.group, &t.version, &t.resource).is_some());
        self.metrics.finish(&info, known, response.status().as_u16(), started.elapsed());
        if cut_short {
            self.metrics.terminated(&info, known, response.status().as_u16());
        }
        if let Ok(id) = HeaderValue::from_str(&random::uid(&*self.random)) {
            response.headers_mut().insert("audit-id", id);
        }
        if let ResponseBody::Stream(stream) = response.body_mut() {
            // A stream is in flight until its client has had enough of it.
            let inner = std::mem::replace(stream, futures_util::stream::empty().boxed());
            *stream = inner
                .map(move |piece| {
                    let _held = &in_flight;
                    piece
                })
                .boxed();
        }
        response
    }

    async fn admit<B>(
        &self,
        parts: &mut http::request::Parts,
        info: &RequestInfo,
        query: Vec<(String, String)>,
        body: B,
        time: Duration,
        notes: &mut Notes,
    ) -> Result<Response<ResponseBody>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let identity = self.authentication.authenticate(parts).await?;
        notes.warnings.extend(identity.warnings);
        self.authentication.chain.strip(&mut parts.headers);
        // Audit takes its place here.
        let mut user = identity.user;
        let asks = authorize::attributes(&user, info, &query);
        let other = self.impersonation.act_as(&*self.authorizer, &parts.headers, &asks).await?;
        impersonate::strip(&mut parts.headers);
        user = other.unwrap_or(user);
        let seat = match self.flow.admit(&self.engine, &user, info, &query, time, &mut notes.marks).await {
            Ok(seat) => seat,
            Err(refusal) => return Ok(refusal),
        };
        let parts = &*parts;
        let outcome = self.authorizer.authorize(&authorize::attributes(&user, info, &query)).await;
        if !outcome.allowed() {
            return Err(authorize::forbidden(&user, info, &outcome.reason));
        }
        match &info.resource {
            None => plain::serve(self, parts, info, &query),
            Some(target) => {
                let body = read_body(parts, body).await?;
                let parts = api::Parts { headers: &parts.headers, query, info, target, user, body };
                let gzip = plain::takes_gzip(parts.headers);
                let (answer, seat) = self.resource(api::request(parts)?, target, seat).await;
                Ok(api::response(answer, gzip).map(|body| flow::hold(body, seat, time)))
            }
        }
    }

    async fn resource(
        &self,
        request: ApiRequest,
        target: &Target,
        seat: Option<Seat>,
    ) -> (ApiResponse, Option<Seat>) {
        let engine = self.engine.clone();
        let reads = matches!(
            request.verb,
            kaji_resource::Verb::Get | kaji_resource::Verb::List | kaji_resource::Verb::Watch
        );
        let outcome = if reads {
            let answer = AssertUnwindSafe(engine.handle(request)).catch_unwind().await;
            answer.map(|answer| (answer, seat)).map_err(|_| ())
        } else {
            // A task of its own: hyper drops the request's future when the client goes away.
            tokio::spawn(async move { (engine.handle(request).await, seat) }).await.map_err(|_| ())
        };
        outcome.unwrap_or_else(|()| {
            tracing::error!(?target, "a handler panicked");
            let text = "an error on the server (\"this request caused a panic\") has prevented the request from succeeding";
            (Status::internal(text).into(), None)
        })
    }
}

async fn read_body<B>(parts: &http::request::Parts, body: B) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if matches!(parts.method, Method::GET | Method::HEAD) || body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let too_large = || Status::request_entity_too_large(format!("limit is {MAX_BODY}"));
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_TIMEOUT, Box::pin(Limited::new(body, MAX_BODY).collect())).await {
        Ok(Ok(all)) => Ok(all.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Status::bad_request(format!("unable to read the request body: {error}"))),
        Err(_) => Err(Status::timeout("the request body did not arrive in time", 0)),
    }
}

use futures_util::StreamExt;
