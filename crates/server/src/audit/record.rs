//! The audit record of one request, from its arrival to its end.
//!
//! Invariants: each stage gives at most one event; the last is given also when the client has disconnected; no event follows
//! it.

use super::{Audit, response};
use crate::body::ResponseBody;
use bytes::Bytes;
use http::Response;
use kaji_audit::{Event, Level, ResponseStatus, Stage, Verdict, without_managed_fields};
use kaji_engine::{ApiResponse, AuditContext, Body};
use kaji_meta::{Status, object};
use kaji_resource::UserInfo;
use serde_json::Value;
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The prefix of annotations that hold the patches of mutating webhooks.
const PATCH: &str = "patch.webhook.admission.k8s.io/";

/// The record of one request.
pub struct Record {
    audit: Arc<Audit>,
    verdict: Verdict,
    long_running: bool,
    state: Mutex<State>,
}

struct State {
    event: Event,
    /// The response has begun, of requests that stay open.
    started: bool,
    /// The request was refused because it could not be authenticated or parsed.
    unauthenticated: bool,
    panicked: bool,
    /// The response status is final.
    settled: bool,
    ended: bool,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Record").field(&self.lock().event.head.audit_id).finish()
    }
}

impl Record {
    pub(super) fn new(audit: Arc<Audit>, verdict: Verdict, event: Event, long_running: bool) -> Record {
        let state = State {
            event,
            started: false,
            unauthenticated: false,
            panicked: false,
            settled: false,
            ended: false,
        };
        Record { audit, verdict, long_running, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request arrives.
    ///
    /// # Errors
    /// It cannot be recorded and may not continue without a record.
    pub async fn received(&self) -> Result<(), ()> {
        if self.stage(Stage::RequestReceived).await {
            return Ok(());
        }
        self.audit.metrics.rejected();
        // Upstream gives no further event either.
        self.lock().ended = true;
        Err(())
    }

    /// The request will be refused because it could not be authenticated or parsed.
    pub fn unauthenticated(&self) {
        self.lock().unauthenticated = true;
    }

    /// The user impersonates another; `constraint` is the verb that limits it, or empty.
    pub fn impersonated(&self, user: &UserInfo, constraint: &str) {
        self.lock().event.impersonated = Some(Arc::new((user.clone(), constraint.to_owned())));
    }

    /// The request is refused.
    pub fn refused(&self, status: &Status) {
        let answered = self.verdict.level >= Level::RequestResponse && self.lock().event.object.is_some();
        let body = answered.then(|| Bytes::from(status.to_value().to_string()));
        let mut state = self.lock();
        if !state.settled {
            state.settled = true;
            state.event.status = Some(Arc::new(status.into()));
            state.event.response_object = body;
        }
    }

    /// Whether the bodies of responses are recorded.
    pub fn has_responses(&self) -> bool {
        self.verdict.level >= Level::RequestResponse
    }

    /// The engine has responded. A list that is encoded lazily is encoded here if it is recorded.
    pub fn responded(&self, response: &mut ApiResponse) {
        response.annotations.drain(..).for_each(|(key, value)| self.annotate(&key, &value));
        let mut body = None;
        if self.has_responses() && !matches!(response.body, Body::Watch(_) | Body::Connect(_)) {
            let whole = std::mem::replace(&mut response.body, Body::Full(Bytes::new()));
            let whole = whole.into_bytes().unwrap_or_default();
            body = response::json(response.content_type, &whole).and_then(|json| self.redacted(json));
            response.body = Body::Full(whole);
        }
        let status = response::status(response);
        let mut state = self.lock();
        if !state.settled {
            let code = response.code;
            let status = status.map(|s| ResponseStatus { code, ..s });
            state.event.status =
                Some(Arc::new(status.unwrap_or(ResponseStatus { code, ..ResponseStatus::default() })));
            state.event.response_object = body;
        }
    }

    fn redacted(&self, json: Bytes) -> Option<Bytes> {
        const FIELD: &[u8] = b"\"managedFields\"";
        if !self.verdict.omit_managed_fields || !json.windows(FIELD.len()).any(|w| w == FIELD) {
            return Some(json);
        }
        let value = serde_json::from_slice(&json).ok()?;
        Some(without_managed_fields(value).to_string().into())
    }

    /// The response is sent: the request ends now, or when its stream does.
    pub async fn finish(self: Arc<Self>, mut response: Response<ResponseBody>) -> Response<ResponseBody> {
        let (unauthenticated, panicked) = {
            let mut state = self.lock();
            let status = state.event.status.get_or_insert_default();
            Arc::make_mut(status).code = response.status().as_u16();
            (state.unauthenticated, state.panicked)
        };
        if unauthenticated || (self.long_running && !panicked) {
            self.stage(Stage::ResponseStarted).await;
        }
        match response.body_mut() {
            _ if unauthenticated => self.lock().ended = true,
            // When the body is dropped, so is the record.
            body @ (ResponseBody::Stream(_) | ResponseBody::Proxied { .. }) => body.hold(self),
            _ => {
                self.stage(if panicked { Stage::Panic } else { Stage::ResponseComplete }).await;
            }
        }
        response
    }

    /// Passes a stage's event to the backends. False if the request may not continue.
    async fn stage(&self, stage: Stage) -> bool {
        match self.event(stage) {
            Some(event) => self.audit.backends.process(&event).await,
            None => true,
        }
    }

    /// The event of a stage, unless the policy omits it.
    fn event(&self, stage: Stage) -> Option<Arc<Event>> {
        let mut state = self.lock();
        if state.ended {
            return None;
        }
        state.started |= stage == Stage::ResponseStarted;
        state.ended |= matches!(stage, Stage::ResponseComplete | Stage::Panic);
        if self.verdict.omit.contains(stage) {
            return None;
        }
        self.audit.metrics.event();
        let mut event = state.event.clone();
        event.stage = stage;
        event.at = match stage {
            Stage::RequestReceived => event.head.received,
            _ => self.audit.clock.now(),
        };
        Some(Arc::new(event))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let started = {
            let mut state = self.lock();
            if state.ended {
                return;
            }
            if state.event.status.is_none() {
                // The client disconnected before there was a response. Source: upstream's audit filter.
                let message = "Connection closed early".into();
                let status =
                    ResponseStatus { status: "Success".into(), message, code: 200, ..Default::default() };
                state.event.status = Some(Arc::new(status));
            }
            state.started || !self.long_running
        };
        let last = [Stage::ResponseStarted, Stage::ResponseComplete];
        for stage in &last[usize::from(started)..] {
            if let Some(event) = self.event(*stage) {
                self.audit.backends.try_process(&event);
            }
        }
    }
}

impl AuditContext for Record {
    fn object(&self, body: &Value) {
        if body.is_null() {
            return;
        }
        let json = (self.verdict.level >= Level::Request).then(|| {
            let bare = self.verdict.omit_managed_fields
                && object::at(body, &["metadata", "managedFields"]).is_some();
            let json = if bare { without_managed_fields(body.clone()).to_string() } else { body.to_string() };
            Bytes::from(json)
        });
        let mut state = self.lock();
        if let Some(reference) = &mut state.event.object
            && body.get("metadata").is_some_and(Value::is_object)
        {
            let reference = Arc::make_mut(reference);
            let fill = |field: &mut String, text: &str| {
                if field.is_empty() {
                    *field = text.to_owned();
                }
            };
            fill(&mut reference.namespace, object::namespace(body));
            fill(&mut reference.name, object::name(body));
            fill(&mut reference.uid, object::uid(body));
            fill(&mut reference.resource_version, object::resource_version(body));
        }
        state.event.request_object = json;
    }

    fn patch(&self, patch: &Value) {
        if self.verdict.level >= Level::Request {
            self.lock().event.request_object = Some(patch.to_string().into());
        }
    }

    fn annotate(&self, key: &str, value: &str) {
        // It contains parts of the request.
        if key.starts_with(PATCH) && self.verdict.level < Level::Request {
            return;
        }
        let mut state = self.lock();
        let Event { annotations, head, .. } = &mut state.event;
        match annotations.get(key) {
            Some(present) if present == value => {}
            Some(present) => {
                let id = &head.audit_id;
                tracing::warn!(
                    "Failed to set annotations[{key:?}] to {value:?} for audit:{id:?}, it has already been set to {present:?}"
                );
            }
            None => {
                Arc::make_mut(annotations).insert(key.to_owned(), value.to_owned());
            }
        }
    }

    fn panicked(&self) {
        let mut state = self.lock();
        (state.panicked, state.settled) = (true, true);
        let status = Status::internal("");
        let message = "APIServer panic'd: the handler of the request panicked".into();
        state.event.status = Some(Arc::new(ResponseStatus { message, ..(&status).into() }));
    }
}
