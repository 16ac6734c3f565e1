//! The layer between a client under test and the API server: it records requests, and brings faults about.
//!
//! It is a tower service around the server's, so that it stands behind a listener of its own ([`crate::listener`]) for clients in other
//! processes, and behind a `kube::Client` for those in this one. The client gets JSON from it where it takes JSON, too: answers to writes
//! are read for their resourceVersion, and watches for the number of their events.
//!
//! Invariants:
//! - Every fault is one that the API permits: an answer that the server could have given, at a time at which it could have given it.
//! - What waits here is bounded in time.

mod answers;
mod watches;

use crate::{
    call::Call,
    fault::{Fault, FaultKind, Point},
    record::{Record, Recorder},
};
use answers::{Written, refusal, status_response, written};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header, request::Parts};
use kaji_meta::{Query, Status};
use kaji_runtime::VirtualClock;
use kaji_server::ResponseBody;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tower_service::Service;

/// How far [`FaultKind::TimeJump`] advances the clock.
pub const JUMP: Duration = Duration::from_secs(3600);
/// How long a client that is to be killed waits for an answer at most.
const LAST_ANSWER: Duration = Duration::from_secs(30);
/// How long a restarted client has for its first list.
const RESTART: Duration = Duration::from_secs(20);
/// How long a client may take to list and watch again after a watch has expired: it backs off.
const RECOVERY: Duration = Duration::from_secs(10);
/// Signals that wait.
const SIGNALS: usize = 16;
/// Set and removed by the other writer of [`FaultKind::Conflict`].
pub const PHANTOM: &str = "kaji.dev/phantom-writer";

/// The connection breaks instead of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the response was dropped by a fault")]
pub struct AnswerLost;

/// What the owner of the client's process has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Kill it and start it again.
    Kill,
}

/// Lists of a resource are answered from the past.
struct StaleView {
    client: String,
    resource: String,
    revision: u64,
    until: Instant,
    listed: bool,
}

/// Events of a resource wait.
struct Held {
    client: String,
    resource: String,
    since: Instant,
    until: Instant,
    /// Watches that were open end with 410.
    expires: bool,
}

/// A client's view of a resource is of the past because of a fault, until it watches again or this time is over.
struct Outdated {
    client: String,
    resource: String,
    /// From then on a watch brings the present.
    current_from: Instant,
    until: Instant,
}

struct State {
    recorder: Recorder,
    armed: Vec<Fault>,
    fired: Vec<Fault>,
    stale: Option<StaleView>,
    held: Vec<Held>,
    outdated: Vec<Outdated>,
}

/// See the module.
pub struct FaultLayer {
    /// The other writer of conflicts and leases.
    administrator: kube::Client,
    clock: Option<Arc<VirtualClock>>,
    /// How long events are held back.
    delay: Duration,
    signals: mpsc::Sender<Signal>,
    state: Mutex<State>,
}

impl fmt::Debug for FaultLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultLayer").field("armed", &self.state().armed).finish_non_exhaustive()
    }
}

impl FaultLayer {
    /// Brings `faults` about, and holds events back for `delay` where a fault says so. `administrator` is a client past the layer; without
    /// a clock, time does not jump.
    #[must_use]
    pub fn new(
        administrator: kube::Client,
        clock: Option<Arc<VirtualClock>>,
        faults: Vec<Fault>,
        delay: Duration,
    ) -> (Arc<FaultLayer>, mpsc::Receiver<Signal>) {
        let (signals, receiver) = mpsc::channel(SIGNALS);
        let state = State {
            recorder: Recorder::new(),
            armed: faults,
            fired: vec![],
            stale: None,
            held: vec![],
            outdated: vec![],
        };
        let layer = FaultLayer { administrator, clock, delay, signals, state: Mutex::new(state) };
        (Arc::new(layer), receiver)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at what was recorded.
    pub fn recorder<T>(&self, look: impl FnOnce(&Recorder) -> T) -> T {
        look(&self.state().recorder)
    }

    /// Notes what the test does.
    pub fn note(&self, text: &str) {
        self.state().recorder.note(text);
    }

    /// What was recorded.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.state().recorder.records().to_vec()
    }

    /// The faults that came about.
    #[must_use]
    pub fn fired(&self) -> Vec<Fault> {
        self.state().fired.clone()
    }

    /// The faults that have not come about.
    #[must_use]
    pub fn armed(&self) -> Vec<Fault> {
        self.state().armed.clone()
    }

    /// Begins anew, with these faults: points are counted from here, and what was recorded is forgotten.
    pub fn arm(&self, faults: Vec<Fault>) {
        let mut state = self.state();
        let recorder = Recorder::after(&state.recorder);
        *state =
            State { recorder, armed: faults, fired: vec![], stale: None, held: vec![], outdated: vec![] };
    }

    /// Whether a fault lasts, so that nothing can be said about the client yet.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        let (state, now) = (self.state(), Instant::now());
        state.held.iter().any(|held| held.until > now) || state.stale.as_ref().is_some_and(|s| s.until > now)
    }

    /// No more faults from now on; the rest of a list of faults has not come about.
    pub fn disarm(&self) {
        let mut state = self.state();
        state.armed.clear();
        state.stale = None;
        state.held.clear();
    }

    /// Counts a request, and takes the fault at it, if there is one.
    fn begin(&self, call: &Call) -> (Point, Option<FaultKind>, Option<usize>) {
        let mut state = self.state();
        let point = state.recorder.point(call);
        let found = state.armed.iter().position(|fault| fault.at == point);
        let fault = found.map(|found| state.armed.swap_remove(found));
        let place = state.recorder.push(call, point.clone());
        if let Some(fault) = &fault {
            state.recorder.change(place, |record| record.fault = Some(fault.kind.name().to_owned()));
            state.fired.push(fault.clone());
        }
        (point, fault.map(|fault| fault.kind), place)
    }

    fn change(&self, place: Option<usize>, change: impl FnOnce(&mut Record)) {
        self.state().recorder.change(place, change);
    }

    /// Serves one request.
    ///
    /// # Errors
    /// When the answer is to be lost.
    pub async fn serve<S, B>(
        self: Arc<Self>,
        inner: S,
        request: Request<B>,
    ) -> Result<Response<ResponseBody>, AnswerLost>
    where
        S: Service<Request<B>, Response = Response<ResponseBody>, Error = Infallible>,
    {
        let (mut parts, body) = request.into_parts();
        let Some(call) = Call::of(&parts.method, &parts.uri, &parts.headers) else {
            return Ok(forward(inner, Request::from_parts(parts, body)).await);
        };
        prefer_json(&mut parts);
        if call.verb == "watch" {
            if let Some(refused) = self.refuse_streamed_list(&call, &parts.uri) {
                return Ok(status_response(&refused));
            }
            let response = forward(inner, Request::from_parts(parts, body)).await;
            self.note_watch(&call, response.status());
            return Ok(watches::follow(self, call, response));
        }
        let (_, fault, place) = self.begin(&call);
        if let Some(status) = fault.and_then(refusal) {
            self.change(place, |record| record.code = Some(status.code));
            return Ok(status_response(&status));
        }
        if let Some(fault) = fault {
            self.before(fault, &call).await;
        }
        if call.verb == "list" {
            self.answer_from_the_past(&call, &mut parts, place);
        }
        let response = forward(inner, Request::from_parts(parts, body)).await;
        let code = response.status().as_u16();
        self.change(place, |record| record.code = Some(code));
        if response.status().is_success() {
            self.excuse(&call);
        }
        if !call.writes() {
            return Ok(response);
        }
        let (response, written) = written(response).await;
        self.change(place, |record| {
            record.revision = written.revision;
            if record.name.is_empty() {
                record.name.clone_from(&written.name);
            }
        });
        match fault {
            Some(fault) => self.after(fault, &call, &written, place, response).await,
            None => Ok(response),
        }
    }

    /// What happens before a request reaches the server.
    async fn before(&self, fault: FaultKind, call: &Call) {
        match fault {
            FaultKind::Conflict => {
                for value in [json!("1"), Value::Null] {
                    self.patch(&call.path, &json!({"metadata": {"annotations": {PHANTOM: value}}})).await;
                }
            }
            FaultKind::LostLease => {
                let now = jiff::Timestamp::now();
                let spec = json!({"holderIdentity": "kaji-phantom", "renewTime": format!("{now:.6}"),
                    "leaseTransitions": 1_000});
                self.patch(&call.path, &json!({"spec": spec})).await;
            }
            FaultKind::TimeJump => self.clock.iter().for_each(|clock| clock.advance(JUMP)),
            _ => {}
        }
    }

    /// Writes past the layer. What is not there, or not permitted to be so, stays as it is.
    async fn patch(&self, path: &str, patch: &Value) {
        let request = Request::patch(path)
            .header(header::CONTENT_TYPE, "application/merge-patch+json")
            .body(patch.to_string().into_bytes());
        let Ok(request) = request else { return };
        if let Err(error) = self.administrator.request::<Value>(request).await {
            tracing::debug!(%error, path, "the write of the concurrent writer was rejected");
        }
    }

    /// Gives the leases back that a killed process held, as time would.
    pub async fn release_leases(&self) {
        let leases = self.recorder(Recorder::leases);
        for (namespace, name) in leases {
            let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}");
            self.patch(&path, &json!({"spec": {"holderIdentity": ""}})).await;
        }
    }

    /// What happens after a write was carried out.
    async fn after(
        &self,
        fault: FaultKind,
        call: &Call,
        written: &Written,
        place: Option<usize>,
        response: Response<ResponseBody>,
    ) -> Result<Response<ResponseBody>, AnswerLost> {
        match fault {
            FaultKind::AnswerLost => {
                self.change(place, |record| record.code = None);
                return Err(AnswerLost);
            }
            FaultKind::LateEvents => self.hold(call, false, self.delay),
            FaultKind::Kill | FaultKind::StaleView => {
                self.change(place, |record| record.code = None);
                if fault == FaultKind::StaleView
                    && let Some(revision) = written.revision
                {
                    self.state().stale = Some(StaleView {
                        client: call.client.clone(),
                        resource: main_resource(&call.resource).to_owned(),
                        revision: revision.saturating_sub(1),
                        until: Instant::now() + RESTART,
                        listed: false,
                    });
                }
                // A full queue has a signal to kill already.
                let _ = self.signals.try_send(Signal::Kill);
                sleep(LAST_ANSWER).await;
                return Err(AnswerLost);
            }
            _ => {}
        }
        Ok(response)
    }

    /// Holds events of a resource back.
    fn hold(&self, call: &Call, expires: bool, delay: Duration) {
        let (mut state, now) = (self.state(), Instant::now());
        state.held.retain(|held| held.until > now);
        let resource = main_resource(&call.resource).to_owned();
        let (client, until) = (call.client.clone(), now + delay);
        let recovery = if expires { RECOVERY } else { Duration::ZERO };
        state.outdated.retain(|outdated| outdated.until > now);
        state.outdated.push(Outdated {
            client: client.clone(),
            resource: resource.clone(),
            current_from: until,
            until: until + recovery,
        });
        state.held.push(Held { client, resource, since: now, until, expires });
    }

    /// Takes note of a watch that begins.
    fn note_watch(&self, call: &Call, status: StatusCode) {
        if !status.is_success() {
            return;
        }
        let (mut state, now) = (self.state(), Instant::now());
        let resource = main_resource(&call.resource);
        for outdated in &mut state.outdated {
            if outdated.client == call.client && outdated.resource == resource {
                outdated.until = outdated.until.min(outdated.current_from.max(now));
            }
        }
    }

    /// Does not hold against a client what it does successfully by a view that a fault keeps in the past: other controllers may undo
    /// it at once, and it does it again. What is refused counts all the same.
    fn excuse(&self, call: &Call) {
        let (mut state, now) = (self.state(), Instant::now());
        let concerns = |outdated: &Outdated| outdated.client == call.client && outdated.until > now;
        if state.outdated.iter().any(concerns) {
            state.recorder.excuse(call);
        }
    }

    /// Makes a list at resourceVersion 0 one at the revision of the stale view, if there is one. The watch that follows is late, too.
    fn answer_from_the_past(&self, call: &Call, parts: &mut Parts, place: Option<usize>) {
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let any = Query::parse(&query).first("resourceVersion") == Some("0");
        let mut state = self.state();
        let Some(stale) = state.stale.as_mut().filter(|stale| is_stale(stale, call)) else { return };
        if !any {
            // It has read the present.
            state.stale = None;
            return;
        }
        let revision = stale.revision;
        let rest = query
            .split('&')
            .filter(|p| !p.starts_with("resourceVersion") && !p.is_empty())
            .map(str::to_owned);
        let exact = [format!("resourceVersion={revision}"), "resourceVersionMatch=Exact".to_owned()];
        let query = rest.chain(exact).collect::<Vec<_>>().join("&");
        let Ok(uri) = format!("{}?{query}", parts.uri.path()).parse::<Uri>() else { return };
        parts.uri = uri;
        let first = !stale.listed;
        stale.listed = true;
        if first {
            stale.until = Instant::now() + self.delay;
        }
        state.recorder.change(place, |record| record.fault = Some(format!("answered as of {revision}")));
        drop(state);
        if first {
            self.hold(call, false, self.delay);
        }
    }

    /// Refuses lists that are asked for as watches while a view is stale, as servers do that do not stream lists: the client lists then.
    fn refuse_streamed_list(&self, call: &Call, uri: &Uri) -> Option<Status> {
        let streamed = Query::parse(uri.query().unwrap_or_default()).flag("sendInitialEvents") == Some(true);
        let stale = self.state().stale.as_ref().is_some_and(|stale| is_stale(stale, call));
        (streamed && stale).then(answers::no_streamed_lists)
    }
}

fn is_stale(stale: &StaleView, call: &Call) -> bool {
    stale.until > Instant::now() && stale.resource == call.resource && stale.client == call.client
}

/// Without a subresource.
fn main_resource(resource: &str) -> &str {
    resource.split('/').next().unwrap_or_default()
}

/// Leaves protobuf out of what the client takes, if it takes JSON.
fn prefer_json(parts: &mut Parts) {
    let accepted = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let Some(accepted) = accepted.filter(|accepted| accepted.contains("protobuf")) else { return };
    let left: Vec<&str> = accepted.split(',').filter(|a| !a.contains("protobuf")).map(str::trim).collect();
    if let Ok(value) = HeaderValue::from_str(&left.join(","))
        && !left.is_empty()
    {
        parts.headers.insert(header::ACCEPT, value);
    }
}

async fn forward<S, B>(mut inner: S, request: Request<B>) -> Response<ResponseBody>
where
    S: Service<Request<B>, Response = Response<ResponseBody>, Error = Infallible>,
{
    // The services of a server are always ready.
    match inner.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// A service with the layer in front of it.
#[derive(Clone, Debug)]
pub struct FaultService<S> {
    layer: Arc<FaultLayer>,
    inner: S,
}

impl<S> FaultService<S> {
    /// Puts the layer in front of `inner`, which is always ready.
    pub fn new(layer: Arc<FaultLayer>, inner: S) -> FaultService<S> {
        FaultService { layer, inner }
    }
}

impl<S, B> Service<Request<B>> for FaultService<S>
where
    S: Service<Request<B>, Response = Response<ResponseBody>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<ResponseBody>;
    type Error = AnswerLost;
    type Future = BoxFuture<'static, Result<Self::Response, AnswerLost>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), AnswerLost>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(self.layer.clone().serve(self.inner.clone(), request))
    }
}

#[cfg(test)]
mod tests;
