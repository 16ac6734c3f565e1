//! The whole request path, readable in one place:
//! connection identity -> deadline -> authentication -> audit -> impersonation -> flow control -> authorization -> route ->
//! extension server, engine or document -> response.
//!
//! Invariants:
//! - Every request, from a socket or from inside the process, takes this path; nothing bypasses authorization.
//! - A request that changes something here runs to its end even when its client goes away.
//! - A panic answers 500 and harms nobody else.
//! - A request that is being served holds its seats, even when its client goes away.

use crate::{
    api,
    audit::{Audit, Draft, ID_HEADER, Record, Remote},
    authorize,
    body::ResponseBody,
    deadline,
    demand::Demand,
    discovery::Discovery,
    flow::{self, Flow, Seat, SharedLane},
    health::Health,
    identity::Authentication,
    impersonate::{self, Impersonation},
    listen::Held,
    metrics::Metrics,
    openapi::OpenApi,
    plain,
    receive::receive,
    route::{RequestInfo, Target},
    routing,
    websocket::{self, Opening},
};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::BodyExt;
use kaji_aggregator::{Aggregator, Facts, Route};
use kaji_auth::{Authorizer, authn::IssuerDocuments};
use kaji_engine::{ApiRequest, ApiResponse, AuditContext, Deadline, Engine};
use kaji_meta::{Query, Status, query::unescape, random};
use kaji_resource::{ObjectReader, UserInfo};
use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

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
    /// Who serves what is not served here.
    pub aggregator: Arc<Aggregator>,
    /// Who may do what.
    pub authorizer: Arc<dyn Authorizer>,
    /// Health checks.
    pub health: Health,
    /// Counters.
    pub metrics: Metrics,
    /// Discovery documents.
    pub discovery: Discovery,
    /// OpenAPI documents.
    pub openapi: Arc<OpenApi>,
    /// `host:port` that discovery names.
    pub address: String,
    /// Who runs and who waits.
    pub flow: Arc<Flow>,
    /// How long a request may take (`--request-timeout`).
    pub request_timeout: Duration,
    /// Memory for the bodies of requests.
    pub demand: Arc<Demand>,
    /// Records requests; `None` when nothing is recorded.
    pub audit: Option<Arc<Audit>>,
    /// For audit ids.
    pub random: Arc<dyn random::Random>,
}

impl Stack {
    /// Serves one request.
    pub async fn serve<B>(self: Arc<Self>, request: Request<B>) -> Response<ResponseBody>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let started = Instant::now();
        let (method, uri) = (request.method().clone(), request.uri().clone());
        // What breaks before a request is understood, or after it is answered. Between them it is recorded, too.
        let response = AssertUnwindSafe(self.clone().respond(request, started)).catch_unwind().await;
        response.unwrap_or_else(|_| {
            self.metrics.finish(&RequestInfo::default(), false, 500, started.elapsed());
            panicked(&method, &uri, None)
        })
    }

    async fn respond<B>(self: Arc<Self>, request: Request<B>, started: Instant) -> Response<ResponseBody>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (mut parts, body) = request.into_parts();
        let draft = Draft::new(self.audit.as_ref(), &parts.headers, &*self.random);
        let query = parts.uri.query().map(Query::parse).unwrap_or_default();
        let path = unescape(parts.uri.path(), false);
        let info = match RequestInfo::parse(&parts.method, &path, query) {
            Ok(info) => info,
            Err(error) => {
                self.metrics.finish(&RequestInfo::default(), false, 500, started.elapsed());
                let mut response = authorize::undecided(&parts.uri, &format!("{error}, {}", parts.uri));
                response.headers_mut().insert(ID_HEADER, draft.id);
                return response;
            }
        };
        let in_flight = self.metrics.begin(&info);
        let (marks, deadline) = (flow::Marks::default(), Deadline::default());
        let mut course = Course { marks, warnings: vec![], draft, deadline };
        let mut cut_short = false;
        let answer = match deadline::of(&info, self.request_timeout) {
            Err(status) => {
                self.stranger(&parts, &info, &mut course);
                Err(status)
            }
            Ok(limit) => {
                let time = limit.unwrap_or(self.request_timeout);
                course.deadline = limit.map(Deadline::after).unwrap_or_default();
                let end = course.deadline.instant();
                let answer = self.admit(&mut parts, &info, body, time, &mut course);
                let answer = AssertUnwindSafe(answer).catch_unwind();
                let answer = match end {
                    None => answer.await,
                    Some(end) => tokio::time::timeout_at(end, answer).await.unwrap_or_else(|_| {
                        cut_short = true;
                        Ok(Err(Deadline::exceeded()))
                    }),
                };
                answer.unwrap_or_else(|_| {
                    course.draft.record.iter().for_each(|r| r.panicked());
                    Ok(panicked(&parts.method, &parts.uri, Some(&course.draft.id)))
                })
            }
        };
        let Course { marks, warnings, draft, .. } = course;
        let mut response = answer.unwrap_or_else(|status| {
            draft.record.iter().for_each(|r| r.refused(&status));
            let mut response = api::response(ApiResponse::from(status.clone()), false);
            if let Some(seconds) = status.details.as_ref().map(|d| d.retry_after_seconds).filter(|s| *s > 0) {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            response
        });
        cut_short |= marks.refused;
        marks.put(response.headers_mut());
        api::add_warnings(response.headers_mut(), &warnings);
        let known = info.resource.as_ref().is_some_and(|t| self.is_served(t));
        self.metrics.finish(&info, known, response.status().as_u16(), started.elapsed());
        if cut_short {
            self.metrics.terminated(&info, known, response.status().as_u16());
        }
        response.headers_mut().insert(ID_HEADER, draft.id);
        if let Some(record) = draft.record {
            response = record.finish(response).await;
        }
        // A stream is in flight until its client has had enough of it.
        response.body_mut().hold(in_flight);
        websocket::send_off(response)
    }

    #[expect(clippy::too_many_lines, reason = "to be divided")]
    async fn admit<B>(
        &self,
        parts: &mut http::request::Parts,
        info: &RequestInfo,
        body: B,
        time: Duration,
        course: &mut Course,
    ) -> Result<Response<ResponseBody>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let identity = match self.authentication.attempt(parts, &self.metrics.attempts).await {
            Ok(identity) => identity,
            Err(status) => {
                self.stranger(parts, info, course);
                return Err(status);
            }
        };
        course.warnings.extend(identity.warnings);
        self.authentication.chain.strip(&mut parts.headers);
        let mut user = identity.user;
        let record = self.record(parts, info, &user, &mut course.draft);
        if let Some(record) = &record
            && record.received().await.is_err()
        {
            return Ok(not_recorded(parts));
        }
        let asks = authorize::attributes(&user, info);
        if let Some((other, constraint)) =
            self.impersonation.act_as(&*self.authorizer, &parts.headers, &asks).await?
        {
            record.iter().for_each(|r| r.impersonated(&other, &constraint));
            user = other;
        }
        impersonate::strip(&mut parts.headers);
        let seat = match self.flow.admit(&self.engine, &user, info, time, &mut course.marks).await {
            Ok(seat) => seat,
            Err(refusal) => return Ok(refusal),
        };
        let outcome = self.authorizer.authorize(&authorize::attributes(&user, info)).await;
        if let Some(record) = &record {
            authorize::annotate(&**record, &outcome);
        }
        if !outcome.allowed() {
            return match outcome.error {
                Some(error) => Ok(authorize::undecided(&parts.uri, &error)),
                None => {
                    let asked = authorize::attributes(&user, info);
                    Err(authorize::forbidden(&asked, &outcome.reason))
                }
            };
        }
        if let Some(route) = self.route(info).await {
            return Ok(self.elsewhere(&route, parts, body, info, (&user, seat), course).await);
        }
        let parts = &*parts;
        match &info.resource {
            None => plain::serve(self, parts, info).await,
            Some(target) => {
                let routed = routing::check(&self.engine.registry(), &parts.method, info, target);
                if let Err(refused) = routed {
                    return plain::no_route(refused);
                }
                let (body, memory) = receive(parts, body, &self.demand).await?;
                let memory = memory.map(|m| m as _);
                let audit = record.clone().map(|r| r as _);
                let create_authorizer = authorize::create_authorizer(&self.authorizer, info);
                let (headers, deadline) = (&parts.headers, course.deadline);
                let connection = parts.extensions.get::<SharedLane>();
                let socket = (info.verb == "watch").then(|| Opening::of(parts)).flatten();
                let parts = api::Parts {
                    headers,
                    info,
                    target,
                    user,
                    body,
                    memory,
                    audit,
                    create_authorizer,
                    deadline,
                };
                let gzip = plain::takes_gzip(parts.headers);
                let (answer, seat) = self.resource(api::request(parts)?, seat, record, connection).await;
                let response = match socket {
                    Some(opening) => websocket::watch(opening, answer),
                    None => api::response(answer, gzip),
                };
                Ok(response.map(|body| flow::hold(body, seat, time)))
            }
        }
    }

    /// Who serves a request, if that is not this server. Before anything is said not to be there, the caches catch up: an
    /// APIService counts from the moment that its write is acknowledged.
    async fn route(&self, info: &RequestInfo) -> Option<Arc<Route>> {
        let found = self.aggregator.route(&info.path);
        let known = match &info.resource {
            Some(t) => self.engine.registry().lookup(&t.group, &t.version, &t.resource).is_some(),
            None => !info.path.starts_with("/apis") && !info.path.starts_with("/openapi"),
        };
        if found.is_some() || known {
            return found;
        }
        // Without an answer from the store, what is known has to do.
        let _ = self.engine.sync().await;
        self.aggregator.route(&info.path)
    }

    /// A request of a group version that an extension server serves leaves here. It streams in both directions, and its
    /// client's leaving ends it.
    async fn elsewhere<B>(
        &self,
        route: &Route,
        parts: &mut http::request::Parts,
        body: B,
        info: &RequestInfo,
        (user, mut seat): (&UserInfo, Option<Seat>),
        course: &mut Course,
    ) -> Response<ResponseBody>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let time = deadline::of(info, self.request_timeout).unwrap_or_default();
        if time.is_none() {
            // What a watch costs at its beginning is the other server's affair.
            seat = None;
        }
        let facts = Facts {
            path: &info.path,
            query: &info.query,
            resource: info.resource.is_some(),
            user,
            audit_id: &course.draft.id,
            remote: parts.extensions.get::<Remote>().map(|r| r.0),
            time,
            connection: parts.extensions.get::<Held>().map(|held| Arc::new(held.clone()) as _),
        };
        let body = body.map_err(Into::into).boxed_unsync();
        let response = self.aggregator.forward(route, parts, body, &facts).await;
        let response = response.map(|inner| ResponseBody::Foreign { inner, held: vec![] });
        response.map(|body| flow::hold(body, seat, self.request_timeout))
    }

    /// Whether such a target is served here. What is not is counted without its names: they are the client's.
    fn is_served(&self, target: &Target) -> bool {
        let registry = self.engine.registry();
        let resource = registry.lookup(&target.group, &target.version, &target.resource);
        resource.and_then(|r| r.def.version(&target.version)).is_some_and(|version| {
            target.subresource.is_empty() || version.subresource(&target.subresource).is_some()
        })
    }

    /// The beginning of a request's record, if it has one.
    fn record(
        &self,
        parts: &http::request::Parts,
        info: &RequestInfo,
        user: &UserInfo,
        draft: &mut Draft,
    ) -> Option<Arc<Record>> {
        draft.record = self.audit.as_ref()?.begin(parts, info, user, draft);
        draft.record.clone()
    }

    /// A request that is refused before it is known who asks.
    fn stranger(&self, parts: &http::request::Parts, info: &RequestInfo, course: &mut Course) {
        let record = self.record(parts, info, &UserInfo::default(), &mut course.draft);
        record.iter().for_each(|r| r.outsider());
    }

    async fn resource(
        &self,
        request: ApiRequest,
        seat: Option<Seat>,
        record: Option<Arc<Record>>,
        connection: Option<&SharedLane>,
    ) -> (ApiResponse, Option<Seat>) {
        let engine = self.engine.clone();
        let reads = matches!(
            request.verb,
            kaji_resource::Verb::Get | kaji_resource::Verb::List | kaji_resource::Verb::Watch
        );
        let place = self.flow.place(seat.as_ref(), connection).await;
        if reads {
            return (flow::during(place, handle(&engine, request, record.as_deref())).await, seat);
        }
        // A task of its own: hyper drops the request's future when the client goes away.
        let write =
            async move { (flow::during(place, handle(&engine, request, record.as_deref())).await, seat) };
        match tokio::spawn(write).await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(done) => done,
            Err(Ok(panic)) => resume_unwind(panic),
            Err(Err(_)) => (Status::service_unavailable("the server is shutting down").into(), None),
        }
    }
}

/// What a request takes along, and what it leaves behind on its way.
struct Course {
    deadline: Deadline,
    marks: flow::Marks,
    warnings: Vec<String>,
    draft: Draft,
}

/// The engine's answer, recorded even if nobody waits for it any more.
async fn handle(engine: &Arc<Engine>, request: ApiRequest, record: Option<&Record>) -> ApiResponse {
    let mut answer = engine.handle(request).await;
    if let Some(record) = record {
        record.answered(&mut answer);
    }
    answer
}

/// Upstream's answer to a request that broke its handler. What happened is in the log, by the process' panic hook.
fn panicked(method: &Method, uri: &http::Uri, id: Option<&HeaderValue>) -> Response<ResponseBody> {
    tracing::error!(%method, %uri, audit_id = ?id, "apiserver panic'd");
    let text = "This request caused apiserver to panic. Look in the logs for details.\n";
    plain::text(500, "text/plain; charset=utf-8", text)
}

/// Upstream's answer to a request that may not go on unrecorded.
fn not_recorded(parts: &http::request::Parts) -> Response<ResponseBody> {
    let uri = kaji_meta::text::quote(&parts.uri.to_string());
    let text = format!("Internal Server Error: {uri}: failed to store audit event\n");
    plain::text(500, "text/plain; charset=utf-8", text)
}
