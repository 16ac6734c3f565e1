//! Flow control at the HTTP edge (KEP-1040): every request but the streaming ones gets its seats here, or waits for them,
//! or is turned away with 429. What decides is `kaji_flowcontrol`; this is its clock, its sleep and its wake.
//!
//! Invariants:
//! - A [`Seat`] gives back what it holds when it is dropped, however its request ends.
//! - No lock is held across an await.
//! - A watch holds its seats until it has sent what was there when it began.

mod counted;
mod follow;
mod hold;
mod lanes;
mod pace;
mod watches;

pub use counted::Limits;
pub use follow::{ensure, follow};
pub use hold::hold;
pub use lanes::{Lane, Lanes, SharedLane};
pub use pace::{Place, during};

use crate::{body::ResponseBody, route::RequestInfo};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use kaji_engine::Engine;
use kaji_flowcontrol::{
    Controller, Detail, Digest, Estimate, Level, Nanos, Reason, Request, ResourceDigest, Route,
    SchemaMetrics, Started, controller, estimate, shard,
};
use kaji_meta::{Query, time::Clock};
use kaji_resource::UserInfo;
use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::oneshot, time::Instant};
use watches::{Watches, Watching};

/// Who waits for a seat.
type Token = oneshot::Sender<()>;

const SCHEMA_HEADER: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL_HEADER: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
/// No request waits longer, whatever its timeout.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The gate of one server.
pub struct Flow {
    controller: Controller<Token>,
    /// Instead of the controller, when fairness is off.
    counts: Option<counted::Counts>,
    /// Requests that wait, of those that read and those that write.
    waiting: Family<[(&'static str, &'static str); 1], Gauge>,
    watches: Arc<Watches>,
    lanes: Arc<Lanes>,
    clock: Arc<dyn Clock>,
    origin: Instant,
    /// Wall clock at the origin, for people.
    began: jiff::Timestamp,
}

/// What became of a request here.
#[derive(Default)]
pub struct Marks {
    /// Uids of its FlowSchema and its PriorityLevelConfiguration, once it is classified.
    uids: Option<(HeaderValue, HeaderValue)>,
    /// Whether it was turned away.
    pub refused: bool,
}

impl Marks {
    /// Puts what it was classified as on its response.
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

/// What one request holds. Dropping it gives that back.
pub struct Seat {
    /// With fairness.
    turn: Option<Turn>,
    /// Without.
    _counted: Option<counted::Counted>,
    watching: Option<Watching>,
}

/// A request's place on its priority level.
struct Turn {
    flow: Arc<Flow>,
    level: Arc<Level<Token>>,
    metrics: Arc<SchemaMetrics>,
    /// Whom it takes turns with at the processors; `None` for one that need not.
    flow_hash: Option<u64>,
    id: u32,
    /// `None` until it has its seats.
    since: Option<Nanos>,
    mutating: bool,
    watch: bool,
}

impl Flow {
    /// A gate with the mandatory configuration until [`follow`] brings another.
    pub fn new(limits: Limits, clock: Arc<dyn Clock>) -> Arc<Flow> {
        Arc::new(Flow {
            controller: Controller::new(limits.reading.saturating_add(limits.mutating), 0),
            counts: (!limits.fair).then(|| counted::Counts::new(limits)),
            waiting: Family::default(),
            watches: Arc::default(),
            lanes: Lanes::new(places()),
            origin: Instant::now(),
            began: clock.now(),
            clock,
        })
    }

    fn now(&self) -> Nanos {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Makes the gate's metrics part of a page.
    pub fn register(&self, registry: &mut Registry) {
        if self.counts.is_some() {
            return;
        }
        self.controller.metrics.register(registry);
        let help = "Maximal number of queued requests in this apiserver per request kind in last second.";
        registry.register("apiserver_current_inqueue_requests", help, self.waiting.clone());
    }

    /// Brings metrics up to date that are only looked at when somebody asks.
    pub fn observe(&self) {
        self.controller.observe(self.now());
    }

    /// A page of `/debug/api_priority_and_fairness/`.
    pub fn debug(&self, page: &str, query: &Query) -> Option<String> {
        match page {
            _ if self.counts.is_some() => None,
            "dump_priority_levels" => Some(self.controller.dump_priority_levels()),
            "dump_queues" => Some(self.controller.dump_queues()),
            "dump_requests" => {
                let details = !query.text("includeRequestDetails").is_empty();
                Some(self.controller.dump_requests(self.began, details))
            }
            _ => None,
        }
    }

    /// Seats for a request, after waiting for them if need be; `None` for one that needs none. `timeout` is the
    /// request's own, a quarter of which it may spend waiting. The marks are set as soon as it is classified.
    ///
    /// # Errors
    /// The 429 that its client gets.
    pub async fn admit(
        self: &Arc<Self>,
        engine: &Engine,
        user: &UserInfo,
        info: &RequestInfo,
        timeout: Duration,
        marks: &mut Marks,
    ) -> Result<Option<Seat>, Response<ResponseBody>> {
        let watch = info.verb == "watch";
        if info.long_running() && !watch {
            return Ok(None);
        }
        let mutating = !matches!(&*info.verb, "get" | "list" | "watch");
        if let Some(counts) = &self.counts {
            let counted = if watch { Some(None) } else { counts.admit(user, mutating) };
            marks.refused = counted.is_none();
            let seat = |count| Seat { turn: None, _counted: Some(count), watching: None };
            return counted.map(|count| count.map(seat)).ok_or_else(|| refusal(1));
        }
        let digest = digest(user, info);
        let active = self.controller.active();
        let route = active.classify(&digest);
        let uid = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
        marks.uids = Some((uid(&route.schema.uid), uid(&route.level_uid)));
        let mut request = self.request(engine, &digest, &info.query, route);
        let (level, metrics) = (route.level.clone(), route.metrics.clone());
        let waits = !route.exempt;
        let flow_hash =
            waits.then(|| if route.sharded { request.hash } else { shard::hash(&route.schema.name, "") });
        request.busy = flow_hash.is_some_and(|flow| self.lanes.lane(flow) == Lane::Busy);
        let mut turn =
            Turn { flow: self.clone(), level, metrics, flow_hash, id: 0, since: None, mutating, watch };
        drop(active);
        let arrived = self.now();
        let admitted = turn.take(request, arrived, (timeout / 4).min(LONGEST_WAIT)).await;
        if waits {
            let waited = self.now().saturating_sub(arrived);
            turn.metrics.waited(waited as f64 / 1e9, admitted.is_ok());
        }
        if admitted.is_err() {
            let seconds = turn.level.dropped(arrived / 1_000_000_000);
            marks.refused = true;
            return Err(refusal(seconds));
        }
        let target = info.resource.as_ref().filter(|_| watch);
        let watching = target.map(|t| Watches::register(&self.watches, t, info));
        Ok(Some(Seat { turn: Some(turn), _counted: None, watching }))
    }

    /// A place at the processors for the holder of such a seat; `None` for whom nothing holds up. Says where its connection
    /// should go on.
    pub async fn place(&self, seat: Option<&Seat>, connection: Option<&SharedLane>) -> Option<Place> {
        let flow = seat?.turn.as_ref()?.flow_hash?;
        Some(self.lanes.place(flow, connection).await)
    }

    /// What connections move between.
    pub fn lanes(&self) -> Arc<Lanes> {
        self.lanes.clone()
    }

    fn request(&self, engine: &Engine, digest: &Digest<'_>, query: &Query, route: &Route<Token>) -> Request {
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
        route: &Route<Token>,
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
                let Some(what) = collection(engine, target) else { return Estimate::ONE };
                let limit = query.number("limit").ok().flatten().and_then(|n| u64::try_from(n).ok());
                estimate::list(what, limit, !target.name.is_empty(), route.most_seats)
            }
            // A token that is made changes no object.
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

    fn waits(&self, mutating: bool) -> Waiting {
        let labels = [("request_kind", if mutating { "mutating" } else { "readOnly" })];
        let gauge = self.waiting.get_or_create_owned(&labels);
        gauge.inc();
        Waiting(gauge)
    }

    /// Wakes those whose turn has come. Nobody's lock may be held: what they do is their own affair.
    fn wake(woken: Vec<Token>) {
        for token in woken {
            // Whoever does not listen any more gives its seats back when it is dropped.
            let _ = token.send(());
        }
    }

    /// Gives lingering seats back in time while there are any.
    async fn release(self: Arc<Self>, level: Arc<Level<Token>>) {
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
            Flow::wake(woken);
        }
    }
}

impl Turn {
    /// Gets the seats, waiting at most so long.
    async fn take(&mut self, request: Request, now: Nanos, most: Duration) -> Result<(), Reason> {
        let mut woken = vec![];
        let started = {
            let mut set = self.level.queues();
            match set.start(now, request, &mut woken) {
                Started::Running(id) => Ok((id, None)),
                Started::Rejected(reason) => Err(reason),
                Started::Waiting(id) => {
                    let (token, turn) = oneshot::channel();
                    set.set_token(id, token);
                    Ok((id, Some(turn)))
                }
            }
        };
        Flow::wake(woken);
        let (id, turn) = started?;
        self.id = id;
        self.since = Some(now);
        if let Some(turn) = turn {
            let _counted = self.flow.waits(self.mutating);
            if !matches!(tokio::time::timeout(most, turn).await, Ok(Ok(()))) {
                let mut woken = vec![];
                let gave_up = self.level.queues().cancel(self.flow.now(), id, &mut woken);
                Flow::wake(woken);
                if gave_up {
                    self.since = None;
                    return Err(Reason::TimeOut);
                }
            }
            self.since = Some(self.flow.now());
        }
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(since) = self.since else { return };
        let now = self.flow.now();
        let mut woken = vec![];
        let (waited, lingers, _ended) = {
            let mut set = self.level.queues();
            // One that is dropped while it waits leaves its queue.
            let waited = set.cancel(now, self.id, &mut woken);
            let ended = (!waited).then(|| set.finish(now, self.id, &mut woken));
            let lingers = ended.as_ref().is_some_and(|e| e.later.is_some()) && !set.timed;
            set.timed |= lingers;
            (waited, lingers, ended)
        };
        Flow::wake(woken);
        if !waited {
            self.metrics.executed(now.saturating_sub(since) as f64 / 1e9, self.watch);
        }
        if lingers && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(self.flow.clone().release(self.level.clone()));
        }
    }
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
fn refusal(seconds: u64) -> Response<ResponseBody> {
    let mut response =
        crate::plain::text(429, "text/plain; charset=utf-8", "Too many requests, please try again later.\n");
    response.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// Handlers that may be ready to run at once: enough that no processor waits for one.
fn places() -> usize {
    4 * std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// How often [`follow`] lets limits follow demand.
const ADJUSTMENT: Duration = controller::ADJUSTMENT;
