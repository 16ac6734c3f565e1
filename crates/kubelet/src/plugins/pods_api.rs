//! The pods API (KEP-4188): the node's pods with the newest statuses that the kubelet knows, for programs on the node, on a socket below
//! the kubelet's directory. Upstream's `apis/pods`.
//!
//! Invariants: it only tells; the socket is for this process's user alone. A watch has every pod before it has changes, and one that is
//! too slow is ended, so that it misses none.

mod feed;
pub mod messages;

pub use feed::{PodChange, PodFeed};

use crate::metrics::families::{self as f, Counted};
use crate::pods::context::NodeContext;
use crate::pods::core::Pod;
use crate::pods::model;
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use jiff::Timestamp;
use kaji_grpc::{CallError, Router, Status, bind, serve};
use kaji_schema::{protobuf, types};
use messages::{self as m, EventType};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::broadcast;

/// Below the kubelet's directory.
pub const SOCKET: &str = "pods-api/pods-api.sock";

/// Calls that are answered at once, and those a second after them. Upstream's `DefaultBurstTokens` and `DefaultQPS`.
const BURST: f64 = 10.0;
const RATE: f64 = 100.0;

/// Bytes of an answer: Go's servers bound what they take, not what they send.
const MOST_BYTES: usize = 64 << 20;

/// All pods of the node; `None` until the API's are known.
pub type LocalPods = Arc<dyn Fn() -> Option<Vec<Arc<Pod>>> + Send + Sync>;

/// Serves the socket, until it is dropped.
pub async fn run(cx: Arc<NodeContext>, pods: LocalPods) {
    let path = cx.config.root_dir.join(SOCKET);
    match bind(&path) {
        Ok(listener) => serve(listener, router(cx, pods)).await,
        Err(error) => tracing::error!(%error, path = %path.display(), "the pods API cannot be served"),
    }
}

fn router(cx: Arc<NodeContext>, pods: LocalPods) -> Router {
    let limiter = Mutex::new(Limiter { tokens: BURST, at: cx.clock.now() });
    let list = Arc::new(Server { cx, pods, limiter });
    let (get, watch) = (list.clone(), list.clone());
    Router::default()
        .message_limit(MOST_BYTES)
        .unary(m::LIST, move |_: m::Empty| std::future::ready(list.limited(&f::PODS_LISTS, || list.list())))
        .unary(m::GET, move |request: m::GetRequest| {
            std::future::ready(get.limited(&f::PODS_GETS, || get.get(&request.pod_uid)))
        })
        .server_streaming(m::WATCH, move |_: m::Empty| std::future::ready(watch.watch()))
}

/// Go's `rate.Limiter`.
struct Limiter {
    tokens: f64,
    at: Timestamp,
}

impl Limiter {
    fn allows(&mut self, now: Timestamp) -> bool {
        let passed = now.duration_since(self.at).as_secs_f64().max(0.0);
        self.tokens = (self.tokens + passed * RATE).min(BURST);
        self.at = now;
        let allowed = self.tokens >= 1.0;
        if allowed {
            self.tokens -= 1.0;
        }
        allowed
    }
}

struct Server {
    cx: Arc<NodeContext>,
    pods: LocalPods,
    limiter: Mutex<Limiter>,
}

impl Server {
    fn limited<T>(
        &self,
        what: &'static Counted,
        answer: impl FnOnce() -> Result<T, Status>,
    ) -> Result<T, Status> {
        let allowed = self.limiter.lock().unwrap_or_else(PoisonError::into_inner).allows(self.cx.clock.now());
        if !allowed {
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        let answer = answer();
        self.count(what, code(answer.as_ref().err()));
        answer
    }

    fn count(&self, what: &'static Counted, code: &str) {
        let labels = [("server_api_version", "v1alpha1"), ("status_code", code)];
        self.cx.metrics.count(&f::PODS_REQUESTS, &labels);
        self.cx.metrics.count(what, &labels);
    }

    /// All pods by uid, with their statuses.
    fn all(&self) -> Result<Vec<Pod>, Status> {
        let pods = (self.pods)().ok_or_else(|| Status::failed_precondition("Kubelet is initializing"))?;
        let mut pods: Vec<Pod> = pods.iter().map(|pod| self.cx.pod_feed.with_status(pod)).collect();
        pods.sort_by(|a, b| a.metadata.uid.cmp(&b.metadata.uid));
        Ok(pods)
    }

    fn list(&self) -> Result<m::ListResponse, Status> {
        let pods = self.all()?.iter().map(encode).collect::<Result<_, _>>();
        Ok(m::ListResponse {
            pods: pods.map_err(|e| Status::internal(format!("failed to marshal pod: {e}")))?,
        })
    }

    fn get(&self, uid: &str) -> Result<m::GetResponse, Status> {
        let all = self.all()?;
        let missing = || Status::not_found(format!("pod with UID {uid} not found"));
        let pod = all.iter().find(|pod| model::uid(pod) == uid).ok_or_else(missing)?;
        let pod = encode(pod).map_err(|e| Status::internal(format!("failed to marshal pod: {e}")))?;
        Ok(m::GetResponse { pod })
    }

    fn watch(
        self: &Arc<Server>,
    ) -> Result<impl Stream<Item = Result<m::WatchEvent, Status>> + Send + use<>, Status> {
        // Before pods are read: a change that comes between is shown twice and not missed.
        let changes = self.cx.pod_feed.watch();
        let all = match self.all() {
            Ok(all) => all,
            Err(status) => {
                self.count(&f::PODS_WATCHES, code(Some(&status)));
                return Err(status);
            }
        };
        let server = self.clone();
        let watch = Watch { server, first: Some(all.into()), changes, code: CANCELED };
        Ok(stream::unfold(Some(watch), |watch| async move {
            let mut watch = watch?;
            match watch.next().await {
                Ok(event) => Some((Ok(event), Some(watch))),
                // It ends with its watch.
                Err(status) => Some((Err(status), None)),
            }
        }))
    }
}

/// The name of a status, as metrics have it.
fn code(status: Option<&Status>) -> &'static str {
    status.map_or("OK", |status| CallError::from(status.clone()).code_name())
}

/// How a watch ends that its client gives up.
const CANCELED: &str = "Canceled";

/// A watch; it is counted when it ends.
struct Watch {
    server: Arc<Server>,
    /// Pods that were there when it began; `None` once all of them were sent.
    first: Option<VecDeque<Pod>>,
    changes: broadcast::Receiver<PodChange>,
    code: &'static str,
}

impl Watch {
    async fn next(&mut self) -> Result<m::WatchEvent, Status> {
        if let Some(first) = &mut self.first {
            let Some(pod) = first.pop_front() else {
                self.first = None;
                return Ok(m::WatchEvent { kind: EventType::InitialSyncComplete.into(), pod: Bytes::new() });
            };
            return self.event(EventType::Added, &pod, "initial watch event");
        }
        match self.changes.recv().await {
            Ok(change) => self.event(change.kind, &change.pod, "watch event"),
            // It is too late, or the node ends.
            Err(_) => Err(self.fails(Status::resource_exhausted("watch client channel closed"))),
        }
    }

    fn event(&mut self, kind: EventType, pod: &Pod, what: &str) -> Result<m::WatchEvent, Status> {
        let encoded = encode(pod);
        let encoded = encoded
            .map_err(|e| self.fails(Status::internal(format!("error marshalling {what} pod: {e}"))))?;
        Ok(m::WatchEvent { kind: kind.into(), pod: encoded })
    }

    /// Notes a failure, by which an event is lost to the client.
    fn fails(&mut self, status: Status) -> Status {
        self.code = code(Some(&status));
        self.server.cx.metrics.count(&f::POD_EVENTS_DROPPED, &[]);
        status
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.server.count(&f::PODS_WATCHES, self.code);
    }
}

/// A pod in Kubernetes' protobuf form.
fn encode(pod: &Pod) -> Result<Bytes, String> {
    let schema = types::for_gvk("", "v1", "Pod").ok_or("pods have no protobuf form")?;
    let value = serde_json::to_value(pod).map_err(|error| error.to_string())?;
    protobuf::encode(&schema, &value).map(Bytes::from).map_err(|error| error.to_string())
}
