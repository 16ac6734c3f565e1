//! The filter of API Priority and Fairness (KEP-1040): every request but the streaming ones other than watches gets its seats here,
//! waits for them, or is rejected with 429. `kaji_flowcontrol` decides; this is its clock, its timers and its wake-ups.
//!
//! It lies in the server, not in that crate, because it needs the server's types: [`RequestInfo`] is what is classified, the
//! engine's caches give the size of a list (here) and the configuration objects (`configuration.rs`), and a response body
//! releases the seats (`release.rs`).
//!
//! Invariants:
//! - A [`Seat`] gives back what it holds when it is dropped, however its request ends.
//! - No lock is held across an await.
//! - A watch holds its seats until it has sent what was there when it began.

mod configuration;
mod release;

pub use configuration::{ensure, follow};
pub use kaji_flowcontrol::Limits;
pub use release::hold;

use crate::{
    body::ResponseBody,
    cpu_fairness::{AtomicLane, CpuPermit, Lane, Lanes},
    route::RequestInfo,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use kaji_engine::Engine;
use kaji_flowcontrol::{
    Controller, Detail, Digest, Estimate, InFlightPermit, Level, MaxInFlight, Nanos, Reason, Request,
    ResourceDigest, Route, SchemaMetrics, Started, WatchGuard, WatchTracker, controller, estimate, shard,
};
use kaji_meta::{Query, time::Clock};
use kaji_resource::UserInfo;
use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::oneshot, time::Instant};

/// Wakes a request that waits for its seats.
type Waker = oneshot::Sender<()>;

const SCHEMA_HEADER: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL_HEADER: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
/// No request waits longer, whatever its timeout.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The flow control of one server.
pub struct FlowControl {
    controller: Controller<Waker>,
    /// Instead of the controller, when fairness is off.
    max_in_flight: Option<MaxInFlight>,
    /// Requests that wait, of those that read and those that write.
    waiting: Family<[(&'static str, &'static str); 1], Gauge>,
    watches: Arc<WatchTracker>,
    lanes: Arc<Lanes>,
    clock: Arc<dyn Clock>,
    origin: Instant,
    /// Wall clock at the origin, for people.
    began: jiff::Timestamp,
}

/// How flow control classified a request.
#[derive(Default)]
pub struct Classification {
    /// Uids of its FlowSchema and its PriorityLevelConfiguration, once it is classified.
    uids: Option<(HeaderValue, HeaderValue)>,
    /// Whether it was rejected.
    pub refused: bool,
    /// How long it was queued.
    pub waited: Duration,
}

impl Classification {
    /// Sets the headers of the response.
    pub fn put(self, headers: &mut HeaderMap) {
        if let Some((schema, level)) = self.uids {
            headers.insert(LEVEL_HEADER, level);
            headers.insert(SCHEMA_HEADER, schema);
        }
    }
}

/// Counts a request as waiting until dropped.
struct Waiting(Gauge);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// What an admitted request holds, until it is dropped.
pub struct Seat {
    /// With fairness.
    request: Option<SeatRequest>,
    /// Without fairness.
    _in_flight: Option<InFlightPermit>,
    watch: Option<WatchGuard>,
}

/// A request of seats in a priority level: queued, or executing with its seats, which an exempt one has at once.
struct SeatRequest {
    flow: Arc<FlowControl>,
    level: Arc<Level<Waker>>,
    metrics: Arc<SchemaMetrics>,
    /// The flow that it takes CPU permits for; `None` for an exempt request.
    flow_hash: Option<u64>,
    id: u32,
    /// Since when it has waited or, once it has its seats, executed; `None` while it does neither.
    since: Option<Nanos>,
    mutating: bool,
    watch: bool,
}

impl FlowControl {
    /// With the mandatory configuration, until [`follow`] reads another.
    pub fn new(limits: Limits, clock: Arc<dyn Clock>) -> Arc<FlowControl> {
        Arc::new(FlowControl {
            controller: Controller::new(limits.reading.saturating_add(limits.mutating), 0),
            max_in_flight: (!limits.fair).then(|| MaxInFlight::new(limits)),
            waiting: Family::default(),
            watches: Arc::default(),
            lanes: Lanes::new(cpu_permits()),
            origin: Instant::now(),
            began: clock.now(),
            clock,
        })
    }

    fn now(&self) -> Nanos {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether fairness is off.
    fn is_disabled(&self) -> bool {
        self.max_in_flight.is_some()
    }

    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        if self.max_in_flight.is_some() {
            return;
        }
        self.controller.metrics.register(registry);
        let help =
            "[ALPHA] Maximal number of queued requests in this apiserver per request kind in last second.";
        registry.register("apiserver_current_inqueue_requests", help, self.waiting.clone());
    }

    /// Updates the metrics that are computed when they are read.
    pub fn observe(&self) {
        self.controller.observe(self.now());
    }

    /// A page of `/debug/api_priority_and_fairness/`.
    pub fn debug(&self, page: &str, query: &Query) -> Option<String> {
        match page {
            _ if self.max_in_flight.is_some() => None,
            "dump_priority_levels" => Some(self.controller.dump_priority_levels()),
            "dump_queues" => Some(self.controller.dump_queues()),
            "dump_requests" => {
                let details = !query.text("includeRequestDetails").is_empty();
                Some(self.controller.dump_requests(self.began, details))
            }
            _ => None,
        }
    }

    /// Acquires the seats of a request, waiting for them if necessary; `None` for one that needs none. It may wait for a
    /// quarter of `timeout`, the request's.
    ///
    /// # Errors
    /// The 429 for the client.
    pub async fn acquire_seats(
        self: &Arc<Self>,
        engine: &Engine,
        user: &UserInfo,
        info: &RequestInfo,
        timeout: Duration,
        classification: &mut Classification,
    ) -> Result<Option<Seat>, Response<ResponseBody>> {
        let watch = info.verb == "watch";
        if info.long_running() && !watch {
            return Ok(None);
        }
        let mutating = !matches!(&*info.verb, "get" | "list" | "watch");
        if let Some(limits) = &self.max_in_flight {
            let permit = if watch { Some(None) } else { limits.admit(user, mutating) };
            classification.refused = permit.is_none();
            let seat = |permit| Seat { request: None, _in_flight: Some(permit), watch: None };
            return permit.map(|permit| permit.map(seat)).ok_or_else(|| too_many_requests(1));
        }
        let digest = digest(user, info);
        let active = self.controller.active();
        let route = active.classify(&digest);
        let uid = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
        classification.uids = Some((uid(&route.schema.uid), uid(&route.level_uid)));
        let mut request = self.request(engine, &digest, &info.query, route);
        let (level, metrics) = (route.level.clone(), route.metrics.clone());
        let waits = !route.exempt;
        let flow_hash =
            waits.then(|| if route.sharded { request.hash } else { shard::hash(&route.schema.name, "") });
        request.busy = flow_hash.is_some_and(|flow| self.lanes.lane(flow) == Lane::Busy);
        let mut queued = SeatRequest {
            flow: self.clone(),
            level,
            metrics,
            flow_hash,
            id: 0,
            since: None,
            mutating,
            watch,
        };
        drop(active);
        let arrived = self.now();
        let admitted = queued.acquire(request, arrived, (timeout / 4).min(LONGEST_WAIT)).await;
        if waits {
            let waited = self.now().saturating_sub(arrived);
            classification.waited = Duration::from_nanos(waited);
            queued.metrics.waited(waited as f64 / 1e9, admitted.is_ok());
        }
        if admitted.is_err() {
            let seconds = queued.level.dropped(arrived / 1_000_000_000);
            classification.refused = true;
            return Err(too_many_requests(seconds));
        }
        let target = digest.resource.as_ref().filter(|target| watch && is_tracked(target, &info.query));
        let watch = target.map(|target| WatchTracker::register(&self.watches, target));
        Ok(Some(Seat { request: Some(queued), _in_flight: None, watch }))
    }

    /// Acquires a CPU permit for a request with such a seat; `None` for an exempt request. Sets the target lane of its
    /// connection.
    pub async fn cpu_permit(
        &self,
        seat: Option<&Seat>,
        connection: Option<&AtomicLane>,
    ) -> Option<CpuPermit> {
        let flow = seat?.request.as_ref()?.flow_hash?;
        Some(self.lanes.acquire(flow, connection).await)
    }

    /// How many CPU permits are held at this moment.
    pub fn held_cpu_permits(&self) -> usize {
        self.lanes.held_permits()
    }

    /// The lanes that connections migrate between.
    pub fn lanes(&self) -> Arc<Lanes> {
        self.lanes.clone()
    }

    fn request(&self, engine: &Engine, digest: &Digest<'_>, query: &Query, route: &Route<Waker>) -> Request {
        let estimate = if route.exempt { Estimate::ONE } else { self.estimate(engine, digest, query, route) };
        route.metrics.estimated(estimate.seats());
        let flow = if route.sharded { route.schema.distinguish(digest) } else { "" };
        let hash = if route.sharded { shard::hash(&route.schema.name, flow) } else { 0 };
        let detail = (!route.exempt).then(|| Box::new(detail(digest, flow)));
        Request { estimate, hash, metrics: route.metrics.clone(), detail, busy: false }
    }

    fn estimate(
        &self,
        engine: &Engine,
        digest: &Digest<'_>,
        query: &Query,
        route: &Route<Waker>,
    ) -> Estimate {
        let Some(target) = &digest.resource else { return Estimate::ONE };
        match digest.verb {
            "watch"
                if query.flag("sendInitialEvents") != Some(true)
                    && !matches!(query.text("resourceVersion"), "" | "0") =>
            {
                Estimate::ONE
            }
            "list" | "watch" => {
                let Some(collection) = collection(engine, target) else { return Estimate::ONE };
                let limit = query.number("limit").ok().flatten().and_then(|n| u64::try_from(n).ok());
                estimate::list(collection, limit, !target.name.is_empty(), route.most_seats)
            }
            // A token request changes no object.
            "create" | "update" | "patch" | "delete"
                if (target.resource, target.subresource) != ("serviceaccounts", "token") =>
            {
                let watchers = self.watches.interested(target);
                route.metrics.watched(watchers);
                estimate::write(watchers, route.most_seats)
            }
            _ => Estimate::ONE,
        }
    }

    fn count_waiting(&self, mutating: bool) -> Waiting {
        let labels = [("request_kind", if mutating { "mutating" } else { "readOnly" })];
        let gauge = self.waiting.get_or_create_owned(&labels);
        gauge.inc();
        Waiting(gauge)
    }

    /// Wakes requests that have got their seats. No lock may be held: a dropped request takes locks.
    fn wake(woken: Vec<Waker>) {
        for waker in woken {
            // A request that is being dropped returns its seats itself.
            let _ = waker.send(());
        }
    }

    /// Releases lingering seats when their time has passed, while there are any.
    async fn release(self: Arc<Self>, level: Arc<Level<Waker>>) {
        loop {
            let next = {
                let mut set = level.queues();
                let next = set.next_release();
                set.timed = next.is_some();
                next
            };
            let Some(at) = next else { return };
            tokio::time::sleep_until(self.origin + Duration::from_nanos(at)).await;
            let mut woken = vec![];
            level.queues().advance(self.now(), &mut woken);
            FlowControl::wake(woken);
        }
    }
}

impl SeatRequest {
    /// Acquires the seats, waiting at most `limit`.
    async fn acquire(&mut self, request: Request, now: Nanos, limit: Duration) -> Result<(), Reason> {
        let mut woken = vec![];
        let started = {
            let mut set = self.level.queues();
            match set.start(now, request, &mut woken) {
                Started::Running(id) => Ok((id, None)),
                Started::Rejected(reason) => Err(reason),
                Started::Waiting(id) => {
                    let (waker, turn) = oneshot::channel();
                    set.set_token(id, waker);
                    Ok((id, Some(turn)))
                }
            }
        };
        FlowControl::wake(woken);
        let (id, turn) = started?;
        self.id = id;
        self.since = Some(now);
        if let Some(turn) = turn {
            let _counted = self.flow.count_waiting(self.mutating);
            if !matches!(tokio::time::timeout(limit, turn).await, Ok(Ok(()))) {
                let mut woken = vec![];
                let still_queued = self.level.queues().cancel(self.flow.now(), id, &mut woken);
                FlowControl::wake(woken);
                if still_queued {
                    self.since = None;
                    return Err(Reason::TimeOut);
                }
            }
            self.since = Some(self.flow.now());
        }
        Ok(())
    }
}

impl Drop for SeatRequest {
    fn drop(&mut self) {
        let Some(since) = self.since else { return };
        let now = self.flow.now();
        let mut woken = vec![];
        let (waited, lingers, _ended) = {
            let mut set = self.level.queues();
            // A request that is dropped while it waits leaves its queue.
            let waited = set.cancel(now, self.id, &mut woken);
            let ended = (!waited).then(|| set.finish(now, self.id, &mut woken));
            let lingers = ended.as_ref().is_some_and(|e| e.later.is_some()) && !set.timed;
            set.timed |= lingers;
            (waited, lingers, ended)
        };
        FlowControl::wake(woken);
        if !waited {
            self.metrics.executed(now.saturating_sub(since) as f64 / 1e9, self.watch);
        }
        if lingers && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(self.flow.clone().release(self.level.clone()));
        }
    }
}

/// Whether a watch counts in the estimates of writes. One of the pods of a node does not: few writes are about them.
fn is_tracked(target: &ResourceDigest<'_>, query: &Query) -> bool {
    let fields = query.field_selector().unwrap_or_default();
    target.resource != "pods"
        || fields.and_then(|s| s.requires_exact("spec.nodeName").map(str::is_empty)).unwrap_or(true)
}

fn digest<'a>(user: &'a UserInfo, info: &'a RequestInfo) -> Digest<'a> {
    Digest {
        user: &user.name,
        groups: &user.groups,
        verb: &info.verb,
        path: &info.path,
        resource: info.resource.as_ref().map(|t| ResourceDigest {
            group: &t.group,
            version: &t.version,
            resource: &t.resource,
            subresource: &t.subresource,
            namespace: &t.namespace,
            name: info.name(),
        }),
    }
}

fn detail(digest: &Digest<'_>, flow: &str) -> Detail {
    let Digest { user, verb, path, .. } = *digest;
    let Some(ResourceDigest { group, version, resource, subresource, namespace, name }) = digest.resource
    else {
        return Detail::new(flow, [&[user], &[verb], &[path], &[], &[], &[], &[], &[]]);
    };
    let slash = if group.is_empty() { "" } else { "/" };
    let version: &[&str] = &[group, slash, version];
    let rest: [&[&str]; 4] = [&[namespace], &[name], &[resource], &[subresource]];
    Detail::new(flow, [&[user], &[verb], &[path], rest[0], rest[1], version, rest[2], rest[3]])
}

/// How many objects a list walks over, and how large a few of them are.
fn collection(engine: &Engine, target: &ResourceDigest<'_>) -> Option<estimate::Collection> {
    const SAMPLE: usize = 8;
    let registry = engine.registry();
    let resource = registry.lookup(target.group, target.version, target.resource)?;
    let objects = resource.cache.count() as u64;
    if objects == 0 {
        return Some(estimate::Collection { objects, average: 0 });
    }
    let snapshot = resource.cache.snapshot();
    let (count, bytes) = snapshot
        .objects
        .values()
        .take(SAMPLE)
        .fold((0_u64, 0_u64), |(n, sum), entry| (n + 1, sum + entry.object_len() as u64));
    Some(estimate::Collection { objects, average: bytes / count.max(1) })
}

/// Upstream's answer, which is plain text.
fn too_many_requests(seconds: u64) -> Response<ResponseBody> {
    let mut response =
        crate::plain::text(429, "text/plain; charset=utf-8", "Too many requests, please try again later.\n");
    response.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// CPU permits of a lane: enough that no processor is idle while handlers wait.
fn cpu_permits() -> usize {
    4 * std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// How often [`follow`] lets limits follow demand.
const ADJUSTMENT: Duration = controller::ADJUSTMENT;

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    #[test]
    fn watches_of_one_nodes_pods_are_not_tracked() {
        let tracked = |path: &str, query: &str| {
            let info = RequestInfo::parse(&Method::GET, path, Query::parse(query)).unwrap();
            is_tracked(digest(&UserInfo::default(), &info).resource.as_ref().unwrap(), &info.query)
        };
        assert!(tracked("/api/v1/pods", "watch=1"));
        assert!(tracked("/api/v1/namespaces/a/pods", "watch=1&fieldSelector=metadata.name%3Dq"));
        assert!(tracked("/api/v1/nodes", "watch=1&fieldSelector=spec.nodeName%3Dn1"));
        assert!(!tracked("/api/v1/pods", "watch=1&fieldSelector=spec.nodeName%3Dn1"));
    }
}
