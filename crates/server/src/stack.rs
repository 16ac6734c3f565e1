//! The whole request path, readable in one place:
//! connection identity -> refusal while shutting down -> deadline -> authentication -> audit -> impersonation -> flow control -> authorization -> route ->
//! extension server, engine or document -> response.
//!
//! Invariants:
//! - Every request, from a socket or from inside the process, takes this path; nothing but the console's files bypasses authorization.
//! - A write runs to its end, in one task, even when its client disconnects.
//! - A panic is answered with 500 and affects no other request.
//! - A request that is being served holds its seats, even when its client disconnects.

mod connecting;
mod counting;
mod explaining;
mod state;

use crate::{
    api,
    audit::{Audit, ID_HEADER, Record, RemoteAddress, RequestAudit},
    authorize,
    batch::SharedSeat,
    body::ResponseBody,
    body_memory::BodyMemory,
    connect::Connector,
    cpu_fairness::{AtomicLane, with_permit},
    deadline,
    discovery::Discovery,
    documents,
    explanations::Explanations,
    flowcontrol::{self, FlowControl, Seat},
    health::Health,
    identity::{Authenticated, Authentication},
    impersonate::{self, Impersonation},
    listen::{ConnectionGuard, ConnectionHandle},
    local::SeparateObjects,
    metrics::{Answered, InFlight, Metrics},
    on_behalf::OnBehalf,
    openapi::OpenApi,
    plain,
    receive::receive,
    refusals,
    request_trace::RequestTrace,
    route::RequestInfo,
    routing,
    shutdown::Shutdown,
    watch_deadline,
    websocket::{self, Handshake},
    zpages::ZPages,
};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::BodyExt;
use kaji_aggregator::{Aggregator, ForwardContext, Route};
use kaji_auth::{Authorizer, authn::IssuerDocuments};
use kaji_engine::{ApiRequest, ApiResponse, AuditContext, Deadline, Engine};
use kaji_meta::{Query, Status, query::unescape, random};
use kaji_outbound::reverse_proxy::Tunnel;
use kaji_refusals::Refusals;
use kaji_resource::{ObjectReader, UserInfo};
use kaji_traces::{Provider, within};
use state::{Authorized, ReceivedRequest, Rejection, RequestContext};
use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

/// Errors below the API.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// An unusable certificate.
    #[error("{0}")]
    Certificate(String),
    /// The listener.
    #[error("listen: {0}")]
    Listen(#[from] std::io::Error),
    /// TLS set-up.
    #[error("tls: {0}")]
    Tls(String),
}

/// The parts of a server.
pub struct Stack {
    /// The objects.
    pub engine: Arc<Engine>,
    /// Authenticates requests.
    pub authentication: Authentication,
    /// Impersonation of users.
    pub impersonation: Impersonation,
    /// Discovery documents of the service account token issuer.
    pub issuer: Option<IssuerDocuments>,
    /// Group versions that extension servers serve.
    pub aggregator: Arc<Aggregator>,
    /// Connects clients to nodes, pods and services.
    pub connector: Arc<Connector>,
    /// Authorizes requests.
    pub authorizer: Arc<dyn Authorizer>,
    /// Health checks.
    pub health: Health,
    /// Whether new requests are refused.
    pub shutdown: Shutdown,
    /// Counters.
    pub metrics: Metrics,
    /// `/statusz` and `/flagz`.
    pub zpages: ZPages,
    /// Discovery documents.
    pub discovery: Discovery,
    /// OpenAPI documents.
    pub openapi: Arc<OpenApi>,
    /// `host:port` that discovery names.
    pub address: String,
    /// API Priority and Fairness.
    pub flow: Arc<FlowControl>,
    /// How long a request may take (`--request-timeout`).
    pub request_timeout: Duration,
    /// Memory for the bodies of requests.
    pub body_memory: Arc<BodyMemory>,
    /// Records requests; `None` when nothing is recorded.
    pub audit: Option<Arc<Audit>>,
    /// Traces requests; `None` when none are traced.
    pub traces: Option<Arc<Provider>>,
    /// Writes that were refused.
    pub refusals: Arc<Refusals>,
    /// For audit ids.
    pub random: Arc<dyn random::Random>,
    /// Where snapshots of the store come from.
    pub snapshots: Option<plain::SnapshotSource>,
    /// Explanations of objects and refusals.
    pub explanations: Option<Explanations>,
}

impl Stack {
    /// Serves one request.
    pub async fn serve<B>(self: Arc<Self>, request: Request<B>) -> Response<ResponseBody>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let started = Instant::now();
        if let Some(refusal) = self.shutdown.refusal(request.uri().path(), request.headers()) {
            return refusal;
        }
        if let Some(file) = crate::console::serve(&request, &*self.random) {
            return file;
        }
        let (method, uri) = (request.method().clone(), request.uri().clone());
        // A panic before a request is parsed, or after it is answered. One between them is caught, and recorded, below.
        let response = AssertUnwindSafe(self.clone().respond(request, started)).catch_unwind().await;
        response.unwrap_or_else(|_| {
            self.metrics.finish(&Answered::unresolved(&RequestInfo::default(), 500, started.elapsed()));
            plain::panicked(&method, &uri, None)
        })
    }

    async fn respond<B>(self: Arc<Self>, request: Request<B>, started: Instant) -> Response<ResponseBody>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (mut parts, body) = request.into_parts();
        let audit = RequestAudit::new(self.audit.as_ref(), &parts.headers, &*self.random);
        let query = parts.uri.query().map(Query::parse).unwrap_or_default();
        let path = unescape(parts.uri.path(), false);
        let info = match RequestInfo::parse(&parts.method, &path, query) {
            Ok(info) => info,
            Err(error) => {
                self.metrics.finish(&Answered::unresolved(&RequestInfo::default(), 500, started.elapsed()));
                let mut response = authorize::undecided(&parts.uri, &format!("{error}, {}", parts.uri));
                response.headers_mut().insert(ID_HEADER, audit.id);
                return response;
            }
        };
        let served = info.resource.as_ref().and_then(|target| self.served(target));
        let in_flight = self.metrics.begin(&info, served.is_some());
        let mut context = RequestContext::new(audit);
        let mut cut_short = false;
        let answer = match deadline::of(&info, self.request_timeout) {
            Err(status) => {
                self.record_unauthenticated(&parts, &info, &mut context);
                Err(status)
            }
            Ok(limit) => {
                let time = limit.unwrap_or(self.request_timeout);
                context.deadline = limit.map(Deadline::after).unwrap_or_default();
                // What shares a task with others is not dropped: the engine commits nothing after the deadline.
                let together = parts.extensions.get::<SharedSeat>().is_some();
                let end = context.deadline.instant().filter(|_| !together);
                let answer = self.handle(&mut parts, &info, body, time, &mut context);
                // Boxed, because it is large and would be copied with every future around it.
                let answer = Box::pin(AssertUnwindSafe(answer).catch_unwind());
                let answer = match end {
                    None => answer.await,
                    Some(end) => tokio::time::timeout_at(end, answer).await.unwrap_or_else(|_| {
                        cut_short = true;
                        Ok(Err(Deadline::exceeded()))
                    }),
                };
                answer.unwrap_or_else(|_| {
                    context.audit.record.iter().for_each(|r| r.panicked());
                    Ok(plain::panicked(&parts.method, &parts.uri, Some(&context.audit.id)))
                })
            }
        };
        let RequestContext { classification, warnings, audit, webhooks, trace, .. } = context;
        let mut response = answer.unwrap_or_else(|status| {
            audit.record.iter().for_each(|r| r.refused(&status));
            documents::refusal(&parts, &info, &status)
        });
        cut_short |= classification.refused;
        let outside = classification.waited.saturating_add(webhooks.total());
        classification.put(response.headers_mut());
        api::add_warnings(response.headers_mut(), &warnings);
        response.headers_mut().insert(ID_HEADER, audit.id);
        if let Some(record) = audit.record {
            response = record.finish(response).await;
        }
        let response = self.count(response, &parts, &info, served, cut_short, (started.elapsed(), outside));
        send(response, (in_flight, trace), &parts, &info)
    }

    /// Authenticates, authorizes and serves a request.
    async fn handle<B>(
        self: &Arc<Self>,
        parts: &mut http::request::Parts,
        info: &RequestInfo,
        body: B,
        time: Duration,
        context: &mut RequestContext,
    ) -> Result<Response<ResponseBody>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match self.authenticate_and_authorize(parts, info, time, context).await {
            Ok(authorized) => self.serve_authorized(parts, info, body, authorized, time, context).await,
            Err(Rejection::Response(response)) => Ok(response),
            Err(Rejection::Status(status)) => Err(status),
        }
    }

    /// Authenticates a request, records it, acquires its seat and authorizes it.
    async fn authenticate_and_authorize(
        &self,
        parts: &mut http::request::Parts,
        info: &RequestInfo,
        time: Duration,
        context: &mut RequestContext,
    ) -> Result<Authorized, Rejection> {
        context.trace = RequestTrace::begin(self.traces.as_deref());
        let authenticated = self.authentication.attempt(parts, &self.metrics.attempts).await;
        let Authenticated { caller, warnings } = match authenticated {
            Ok(authenticated) => authenticated,
            Err(status) => {
                self.record_unauthenticated(parts, info, context);
                return Err(status.into());
            }
        };
        context.warnings.extend(warnings);
        self.authentication.chain.strip(&mut parts.headers);
        if let Some(trace) = &mut context.trace {
            trace.authenticated(parts, info, caller.user(), &context.audit.id);
        }
        context.enter("audit");
        let record = self.record(parts, info, caller.user(), &mut context.audit);
        if let Some(record) = &record
            && record.received().await.is_err()
        {
            return Err(Rejection::Response(plain::not_recorded(parts)));
        }
        context.enter("constrainedimpersonation");
        let asks = authorize::attributes(caller.user(), info);
        let impersonated = self.impersonation.act_as(&*self.authorizer, &parts.headers, &asks).await?;
        let reads_as = || Box::new(OnBehalf::of(&caller, parts, &context.audit.id));
        let reads_as = self.explains(parts, info).then(reads_as);
        let user = match impersonated {
            Some((other, constraint)) => {
                record.iter().for_each(|r| r.impersonated(&other, &constraint));
                other
            }
            None => caller.into_user(),
        };
        impersonate::strip(&mut parts.headers);
        context.enter("priorityandfairness");
        let shares = parts.extensions.get::<SharedSeat>().is_some_and(|shared| shared.covers(&user, info));
        let seat = match shares {
            true => Ok(None),
            false => {
                self.flow.acquire_seats(&self.engine, &user, info, time, &mut context.classification).await
            }
        };
        let seat = seat.map_err(Rejection::Response)?;
        context.enter("authorization");
        let outcome = self.authorizer.authorize(&authorize::attributes(&user, info)).await;
        if let Some(record) = &record {
            authorize::annotate(&**record, &outcome);
        }
        if outcome.allowed() {
            return Ok(Authorized { user, record, seat, reads_as });
        }
        Err(match outcome.error {
            Some(error) => Rejection::Response(authorize::undecided(&parts.uri, &error)),
            None => {
                let status = authorize::forbidden(&authorize::attributes(&user, info), &outcome.reason);
                refusals::unauthorized(&self.refusals, info, &parts.headers, &user, &status);
                status.into()
            }
        })
    }

    /// Serves an authorized request, here or by another server.
    async fn serve_authorized<B>(
        self: &Arc<Self>,
        parts: &mut http::request::Parts,
        info: &RequestInfo,
        body: B,
        mut authorized: Authorized,
        time: Duration,
        context: &mut RequestContext,
    ) -> Result<Response<ResponseBody>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let parent = context.parent();
        if let Some(reads_as) = authorized.reads_as.take() {
            return Box::pin(self.explain(info, &authorized.user, authorized.seat, *reads_as)).await;
        }
        if let Some(route) = self.route(info).await {
            let Authorized { user, seat, .. } = authorized;
            let proxied = Box::pin(self.proxy(&route, parts, body, info, (&user, seat), context));
            return Ok(within(parent, proxied).await);
        }
        let Some(target) = &info.resource else { return Box::pin(plain::serve(self, parts, info)).await };
        if let Err(refused) = routing::check(&self.engine.registry(), &parts.method, info, target) {
            return plain::no_route(refused);
        }
        if let Some(carries) = self.connects(target) {
            let (facts, Authorized { user, record, .. }) = ((info, target, carries), authorized);
            return within(parent, Box::pin(self.connect(parts, body, facts, user, record, context))).await;
        }
        if let Some(trace) = &mut context.trace {
            trace.verb(parts, info, target, &context.audit.id);
        }
        let received = receive(parts, body, &self.body_memory).await?;
        if let Some(trace) = context.trace.as_mut().filter(|_| !received.0.is_empty()) {
            trace.event("limitedReadBody succeeded", &[("len", received.0.len().into())]);
        }
        let (audit_id, webhooks) = (context.audit.id.clone(), context.webhooks.clone());
        let (deadline, trace) = (context.deadline, context.parent());
        let request = ReceivedRequest { deadline, info, target, received, audit_id, webhooks, trace };
        self.call_engine(parts, request, authorized, time).await
    }

    /// Has the engine answer.
    async fn call_engine(
        &self,
        parts: &http::request::Parts,
        request: ReceivedRequest<'_>,
        Authorized { user, record, seat, .. }: Authorized,
        time: Duration,
    ) -> Result<Response<ResponseBody>, Status> {
        let ReceivedRequest { info, target, received: (body, memory), .. } = request;
        let connection = parts.extensions.get::<ConnectionHandle>().map(|c| &c.target);
        let separate = parts.extensions.get::<SeparateObjects>().is_some();
        let socket = (info.verb == "watch").then(|| Handshake::of(parts)).flatten();
        let pending = refusals::pending(info, &user, &body);
        let mut request = api::request(api::Parts {
            headers: &parts.headers,
            info,
            target,
            user,
            body,
            memory: memory.map(|m| m as _),
            audit_id: &request.audit_id,
            audit: record.clone().map(|r| r as _),
            further_authorizer: authorize::authorizer_of_creates(&self.authorizer, info),
            deadline: request.deadline,
            webhooks: request.webhooks,
            trace: request.trace,
        })?;
        request.accept.separate = separate && record.as_ref().is_none_or(|r| !r.has_responses());
        let (answer, seat) = match parts.extensions.get::<SharedSeat>() {
            // In the task that it shares.
            Some(_) => (handle(&self.engine, request, record.as_deref()).await, seat),
            None => self.dispatch(request, seat, record, connection).await,
        };
        if let Some(pending) = pending {
            pending.answered(&self.refusals, info, &parts.headers, &answer);
        }
        let response = match socket {
            Some(opening) => websocket::watch(opening, answer),
            None => documents::response(parts, info, answer, plain::takes_gzip(&parts.headers)),
        };
        Ok(response.map(|body| flowcontrol::hold(body, seat, time)))
    }

    /// The extension server that serves a request, if one does. Before a group version is reported as not found, the caches
    /// catch up: an APIService counts from the moment that its write is acknowledged.
    async fn route(&self, info: &RequestInfo) -> Option<Arc<Route>> {
        let found = self.aggregator.route(&info.path);
        let known = match &info.resource {
            Some(t) => self.engine.registry().lookup(&t.group, &t.version, &t.resource).is_some(),
            None => !info.path.starts_with("/apis") && !info.path.starts_with("/openapi"),
        };
        if found.is_some() || known {
            return found;
        }
        // If the store does not answer, the caches decide as they are.
        let _ = self.engine.sync().await;
        self.aggregator.route(&info.path)
    }

    /// Proxies a request to the extension server of its group version. It streams in both directions, and ends when the
    /// client disconnects.
    async fn proxy<B>(
        &self,
        route: &Route,
        parts: &mut http::request::Parts,
        body: B,
        info: &RequestInfo,
        (user, mut seat): (&UserInfo, Option<Seat>),
        context: &mut RequestContext,
    ) -> Response<ResponseBody>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let time = deadline::of(info, self.request_timeout).unwrap_or_default();
        if time.is_none() {
            // The initial events of a watch cost the extension server, not this one.
            seat = None;
        }
        let forward = ForwardContext {
            path: &info.path,
            query: &info.query,
            resource: info.resource.is_some(),
            user,
            audit_id: &context.audit.id,
            remote: parts.extensions.get::<RemoteAddress>().map(|r| r.0),
            time,
            connection: parts.extensions.get::<ConnectionGuard>().map(|guard| Arc::new(guard.clone()) as _),
        };
        let body = body.map_err(Into::into).boxed_unsync();
        let response = self.aggregator.forward(route, parts, body, &forward).await;
        let response = response.map(|inner| ResponseBody::Proxied { inner, held: vec![] });
        response.map(|body| flowcontrol::hold(body, seat, self.request_timeout))
    }

    /// Begins the audit record of a request, if the policy selects it.
    fn record(
        &self,
        parts: &http::request::Parts,
        info: &RequestInfo,
        user: &UserInfo,
        context: &mut RequestAudit,
    ) -> Option<Arc<Record>> {
        context.record = self.audit.as_ref()?.begin(parts, info, user, context);
        context.record.clone()
    }

    /// Records a request that is refused before it is authenticated.
    fn record_unauthenticated(
        &self,
        parts: &http::request::Parts,
        info: &RequestInfo,
        context: &mut RequestContext,
    ) {
        let record = self.record(parts, info, &UserInfo::default(), &mut context.audit);
        record.iter().for_each(|r| r.unauthenticated());
    }

    /// Runs the engine's handler with a CPU permit, a write in a task.
    async fn dispatch(
        &self,
        request: ApiRequest,
        seat: Option<Seat>,
        record: Option<Arc<Record>>,
        connection: Option<&AtomicLane>,
    ) -> (ApiResponse, Option<Seat>) {
        let engine = self.engine.clone();
        let reads = matches!(
            request.verb,
            kaji_resource::Verb::Get | kaji_resource::Verb::List | kaji_resource::Verb::Watch
        );
        let permit = self.flow.cpu_permit(seat.as_ref(), connection).await;
        if reads {
            return (with_permit(permit, handle(&engine, request, record.as_deref())).await, seat);
        }
        // The one task of a write: hyper drops the request's future when the client disconnects.
        let write =
            async move { (with_permit(permit, handle(&engine, request, record.as_deref())).await, seat) };
        match tokio::spawn(write).await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(done) => done,
            Err(Ok(panic)) => resume_unwind(panic),
            Err(Err(_)) => (Status::service_unavailable("the server is shutting down").into(), None),
        }
    }
}

/// Prepares a response for its connection: a stream is in flight until it ends, a watch ends also when its client does not
/// read, a WebSocket's events continue in a task.
fn send(
    mut response: Response<ResponseBody>,
    (in_flight, trace): (InFlight, Option<Box<RequestTrace>>),
    parts: &http::request::Parts,
    info: &RequestInfo,
) -> Response<ResponseBody> {
    response.body_mut().hold(in_flight);
    if let Some(mut trace) = trace {
        trace.answered(&response);
        response.body_mut().hold(trace);
    }
    if info.verb == "watch" {
        let connection = parts.extensions.get::<ConnectionHandle>().map(|c| c.abort.clone());
        let timeout = watch_deadline::timeout(&info.query);
        response = response.map(|body| watch_deadline::enforce(body, timeout, connection));
    }
    start_tunnel(websocket::start_upgrade(response))
}

/// If both sides have switched protocols, the connection and what the response holds go on in a task.
fn start_tunnel(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    if let Some(tunnel) = response.extensions_mut().remove::<Tunnel>() {
        let body = std::mem::replace(response.body_mut(), ResponseBody::full(Bytes::new()));
        tokio::spawn(async move {
            let _held = body;
            tunnel.run().await;
        });
    }
    response
}

/// The engine's response, recorded even if the client has disconnected; so is a panic.
async fn handle(engine: &Arc<Engine>, request: ApiRequest, record: Option<&Record>) -> ApiResponse {
    let Some(record) = record else { return engine.handle_to_completion(request).await };
    let handled = AssertUnwindSafe(engine.handle_to_completion(request)).catch_unwind().await;
    let mut response = handled.unwrap_or_else(|panic| {
        record.panicked();
        resume_unwind(panic)
    });
    record.responded(&mut response);
    response
}
