//! The way of events from requests to where they go: a bounded queue and a worker that empties it.
//!
//! Invariants:
//! - In batch mode nothing waits: what finds no room is lost, counted and told of.
//! - In the blocking modes a request waits until its event is delivered or cannot be.
//! - At the end everything that was taken is delivered or told of.

use futures_util::FutureExt;
use jiff::Timestamp;
use kaji_audit::{BatchOptions, Batcher, Event, Metrics, Mode, Throttle};
use kaji_meta::Clock;
use kaji_resource::BoxFuture;
use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Semaphore, mpsc, oneshot, watch},
    task::JoinSet,
    time::Instant,
};

/// The name of this part in metrics.
const BUFFERED: &str = "buffered";
/// Bytes of bodies that may wait in batch mode: events are small, bodies need not be.
const MOST_BYTES: usize = 256 << 20;
/// Events that are taken at once when they need not wait for each other.
const AT_ONCE: usize = 400;
/// Events that requests may wait for in the blocking modes.
const WAITING: usize = 1024;

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// It has not begun.
    Running,
    /// Nothing new is taken.
    Draining,
    /// What could not be delivered is lost.
    GivenUp,
}

/// Tells of lost events.
#[derive(Clone)]
pub(super) struct Lost {
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
    pub plugin: &'static str,
}

impl Lost {
    pub fn tell(&self, plugin: &'static str, error: &str, events: &[Arc<Event>]) {
        self.metrics.lost(plugin, error, events, self.now());
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// Where events go.
pub(super) trait Backend: Send + Sync + 'static {
    /// How many deliveries may be under way.
    fn parallel(&self) -> usize;

    /// Delivers, and tells of what it cannot; whether it was all.
    fn deliver(&self, events: Vec<Arc<Event>>) -> BoxFuture<'_, bool>;
}

/// Gives bytes back when dropped.
struct Held(Arc<AtomicUsize>, usize);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

struct Entry {
    event: Arc<Event>,
    done: Option<oneshot::Sender<bool>>,
    _held: Option<Held>,
}

/// One destination of events, as requests see it.
pub(super) struct Sink {
    mode: Mode,
    queue: mpsc::Sender<Entry>,
    bytes: Arc<AtomicUsize>,
    lost: Lost,
}

/// Tells of an event whose request went away while it waited for room.
struct Waiting<'a>(&'a Sink, Option<&'a Arc<Event>>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(event) = self.1 {
            let error = "the request ended before there was room for its event";
            self.0.lost.tell(BUFFERED, error, std::slice::from_ref(event));
        }
    }
}

impl Sink {
    /// Starts the worker.
    pub fn start(
        backend: Arc<dyn Backend>,
        mode: Mode,
        options: &BatchOptions,
        phases: &watch::Receiver<Phase>,
        workers: &mut JoinSet<()>,
        lost: &Lost,
    ) -> Sink {
        let batch = mode == Mode::Batch;
        let capacity = if batch { usize::try_from(options.buffer_size).unwrap_or(1) } else { WAITING };
        let (queue, entries) = mpsc::channel(capacity.clamp(1, Semaphore::MAX_PERMITS));
        let paced = options.throttle_enable;
        let throttle = |_| {
            Throttle::new(options.throttle_qps, u32::try_from(options.throttle_burst).unwrap_or(u32::MAX))
        };
        let size = usize::try_from(options.max_size).unwrap_or(1);
        let worker = Worker {
            entries,
            batcher: (batch && (size > 1 || paced)).then(|| Batcher::new(size, options.max_wait)),
            throttle: (batch && paced).then_some(()).map(throttle),
            slots: Arc::new(Semaphore::new(backend.parallel())),
            backend,
            phases: phases.clone(),
            lost: lost.clone(),
            origin: Instant::now(),
        };
        workers.spawn(worker.run());
        Sink { mode, queue, bytes: Arc::default(), lost: lost.clone() }
    }

    /// Takes an event; whether the request may go on.
    pub async fn put(&self, event: &Arc<Event>) -> bool {
        if self.mode == Mode::Batch {
            self.put_now(event);
            return true;
        }
        let (done, outcome) = oneshot::channel();
        let mut waiting = Waiting(self, Some(event));
        let entry = Entry { event: event.clone(), done: Some(done), _held: None };
        let taken = self.queue.send(entry).await.is_ok();
        waiting.1 = None;
        if !taken {
            self.closed(event);
        }
        (taken && outcome.await.unwrap_or(false)) || self.mode == Mode::Blocking
    }

    /// Takes an event if there is room. For those who cannot wait.
    pub fn put_now(&self, event: &Arc<Event>) {
        let size = event.bodies();
        let before = self.bytes.fetch_add(size, Ordering::Relaxed);
        let held = Held(self.bytes.clone(), size);
        let entry = Entry { event: event.clone(), done: None, _held: Some(held) };
        let full = before.saturating_add(size) > MOST_BYTES;
        match if full { Err(mpsc::error::TrySendError::Full(entry)) } else { self.queue.try_send(entry) } {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.lost.tell(BUFFERED, "audit buffer queue blocked", std::slice::from_ref(event));
            }
            Err(mpsc::error::TrySendError::Closed(_)) => self.closed(event),
        }
    }

    fn closed(&self, event: &Arc<Event>) {
        self.lost.tell(BUFFERED, "audit backend shut down", std::slice::from_ref(event));
    }
}

struct Worker {
    entries: mpsc::Receiver<Entry>,
    /// Without one, whatever is there goes at once.
    batcher: Option<Batcher<Entry>>,
    throttle: Option<Throttle>,
    slots: Arc<Semaphore>,
    backend: Arc<dyn Backend>,
    phases: watch::Receiver<Phase>,
    lost: Lost,
    origin: Instant,
}

impl Worker {
    async fn run(mut self) {
        let mut deliveries = JoinSet::new();
        while let Some(batch) = self.collect().await {
            self.pace().await;
            // Nobody closes the semaphore.
            let Ok(slot) = self.slots.clone().acquire_owned().await else { break };
            let (backend, lost) = (self.backend.clone(), self.lost.clone());
            deliveries.spawn(async move {
                deliver(&*backend, &lost, batch).await;
                drop(slot);
            });
            while deliveries.try_join_next().is_some() {}
        }
        while deliveries.join_next().await.is_some() {}
    }

    /// The next batch; `None` when no further ones will come.
    async fn collect(&mut self) -> Option<Vec<Entry>> {
        loop {
            let open = !self.entries.is_closed();
            let due = self.batcher.as_ref().and_then(Batcher::due).map(|due| self.origin + due);
            let mut batch = vec![];
            tokio::select! {
                biased;
                ended = self.phases.wait_for(|p| *p >= Phase::Draining), if open => {
                    // When nobody is left who could say so, it has ended as well.
                    drop(ended);
                    self.entries.close();
                }
                count = self.entries.recv_many(&mut batch, if self.batcher.is_some() { 1 } else { AT_ONCE }) => {
                    let Some(batcher) = &mut self.batcher else {
                        return (count > 0).then_some(batch);
                    };
                    let Some(entry) = batch.pop() else { return batcher.take() };
                    if let Some(full) = batcher.push(entry, self.origin.elapsed()) {
                        return Some(full);
                    }
                }
                () = tokio::time::sleep_until(due.unwrap_or(self.origin)), if due.is_some() => {
                    if let Some(batch) = self.batcher.as_mut().and_then(Batcher::take) {
                        return Some(batch);
                    }
                }
            }
        }
    }

    /// Waits until the next batch may go.
    async fn pace(&mut self) {
        let Some(throttle) = &mut self.throttle else { return };
        let wait = throttle.take(self.origin.elapsed());
        if wait > Duration::ZERO {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                ended = self.phases.wait_for(|p| *p == Phase::GivenUp) => drop(ended),
            }
        }
    }
}

async fn deliver(backend: &dyn Backend, lost: &Lost, batch: Vec<Entry>) {
    let events: Vec<Arc<Event>> = batch.iter().map(|e| e.event.clone()).collect();
    let delivered = AssertUnwindSafe(backend.deliver(events.clone())).catch_unwind().await;
    let delivered = delivered.unwrap_or_else(|_| {
        lost.tell(lost.plugin, "the backend panicked", &events);
        false
    });
    for entry in batch {
        if let Some(done) = entry.done {
            // Whoever does not listen any more has gone.
            let _ = done.send(delivered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::webhook::{Post, Webhook};
    use bytes::Bytes;
    use kaji_audit::{Head, Level, Stage, TruncateOptions};
    use kaji_meta::{SeededRandom, SystemClock};
    use kaji_resource::UserInfo;
    use prometheus_client::registry::Registry;
    use std::sync::Mutex;

    /// Takes what it is given when it is let; a batch that has "bad" in it is not delivered.
    struct Gate {
        open: Semaphore,
        came: mpsc::UnboundedSender<Vec<String>>,
    }

    impl Backend for Gate {
        fn parallel(&self) -> usize {
            1
        }

        fn deliver(&self, events: Vec<Arc<Event>>) -> BoxFuture<'_, bool> {
            Box::pin(async move {
                let ids: Vec<String> = events.iter().map(|e| e.head.audit_id.clone()).collect();
                let delivered = !ids.contains(&"bad".to_owned());
                self.came.send(ids).unwrap();
                self.open.acquire().await.unwrap().forget();
                delivered
            })
        }
    }

    fn event(id: &str, body: usize) -> Arc<Event> {
        let head = Head {
            audit_id: id.into(),
            request_uri: "/".into(),
            verb: "get".into(),
            user: UserInfo::default(),
            source_ips: vec![],
            user_agent: String::new(),
            received: Timestamp::UNIX_EPOCH,
        };
        Arc::new(Event {
            level: Level::Metadata,
            stage: Stage::ResponseComplete,
            head: Arc::new(head),
            impersonated: None,
            object: None,
            status: None,
            request_object: Some(vec![b' '; body].into()),
            response_object: None,
            at: Timestamp::UNIX_EPOCH,
            annotations: Arc::default(),
        })
    }

    struct World {
        registry: Registry,
        lost: Lost,
        phase: watch::Sender<Phase>,
        workers: JoinSet<()>,
    }

    impl World {
        fn new() -> World {
            let mut registry = Registry::default();
            let metrics = Arc::new(Metrics::new(&mut registry));
            let lost = Lost { metrics, clock: Arc::new(SystemClock), plugin: "test" };
            World { registry, lost, phase: watch::Sender::new(Phase::Running), workers: JoinSet::new() }
        }

        fn gate(
            &mut self,
            mode: Mode,
            options: &BatchOptions,
        ) -> (Sink, Arc<Gate>, mpsc::UnboundedReceiver<Vec<String>>) {
            let (came, comes) = mpsc::unbounded_channel();
            let gate = Arc::new(Gate { open: Semaphore::new(0), came });
            let phases = self.phase.subscribe();
            let sink = Sink::start(gate.clone(), mode, options, &phases, &mut self.workers, &self.lost);
            (sink, gate, comes)
        }

        fn errors(&self) -> String {
            let mut page = String::new();
            prometheus_client::encoding::text::encode(&mut page, &self.registry).unwrap();
            let mut lines: Vec<&str> =
                page.lines().filter(|l| l.starts_with("apiserver_audit_error")).collect();
            lines.sort_unstable();
            lines.join("\n")
        }
    }

    fn batches(buffer_size: i64, max_size: i64) -> BatchOptions {
        let max_wait = Duration::from_secs(3600);
        BatchOptions { buffer_size, max_size, max_wait, throttle_enable: false, ..BatchOptions::default() }
    }

    #[tokio::test]
    async fn in_batch_mode_nothing_waits() {
        let mut world = World::new();
        let (sink, gate, mut came) = world.gate(Mode::Batch, &batches(3, 2));
        sink.put_now(&event("a", 1));
        sink.put_now(&event("b", 1));
        // The first batch is being delivered, and will be for a while.
        assert_eq!(came.recv().await.unwrap(), ["a", "b"]);
        // Room: the queue, a batch that waits to go, and one that fills.
        for n in 0..100 {
            assert!(sink.put(&event(&n.to_string(), 1)).await);
        }
        world.phase.send_replace(Phase::Draining);
        gate.open.add_permits(100);
        world.workers.join_next().await.unwrap().unwrap();
        let mut delivered = vec![];
        while let Ok(batch) = came.try_recv() {
            assert!(batch.len() <= 2);
            delivered.extend(batch);
        }
        // What came first was kept, the rest was counted.
        let kept: Vec<String> = (0..delivered.len()).map(|n| n.to_string()).collect();
        assert_eq!(delivered, kept);
        assert_eq!(
            world.errors(),
            format!("apiserver_audit_error_total{{plugin=\"buffered\"}} {}", 100 - delivered.len())
        );
        assert_eq!(sink.bytes.load(Ordering::Relaxed), 0);
        sink.put_now(&event("late", 1));
        assert!(world.errors().ends_with(&(101 - delivered.len()).to_string()));
    }

    #[tokio::test]
    async fn bodies_that_wait_are_bounded_too() {
        let mut world = World::new();
        let (sink, gate, _came) = world.gate(Mode::Batch, &batches(100, 1));
        let body = Bytes::from(vec![b' '; MOST_BYTES / 2]);
        for n in 0..3 {
            let event = event(&n.to_string(), 0);
            sink.put_now(&Arc::new(Event { request_object: Some(body.clone()), ..(*event).clone() }));
        }
        assert_eq!(world.errors(), "apiserver_audit_error_total{plugin=\"buffered\"} 1");
        gate.open.add_permits(100);
        world.phase.send_replace(Phase::Draining);
        world.workers.join_next().await.unwrap().unwrap();
        assert_eq!(sink.bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn in_blocking_modes_requests_wait() {
        let mut world = World::new();
        for (mode, goes_on) in [(Mode::Blocking, true), (Mode::BlockingStrict, false)] {
            let (sink, gate, mut came) = world.gate(mode, &batches(1, 1));
            let bad = event("bad", 1);
            let mut put = std::pin::pin!(sink.put(&bad));
            assert!(futures_util::poll!(&mut put).is_pending());
            assert_eq!(came.recv().await.unwrap(), ["bad"]);
            assert!(futures_util::poll!(&mut put).is_pending());
            gate.open.add_permits(2);
            assert_eq!(put.await, goes_on);
            assert!(sink.put(&event("good", 1)).await);
        }
        world.phase.send_replace(Phase::Draining);
        while world.workers.join_next().await.is_some() {}
        assert_eq!(world.errors(), "");
    }

    #[tokio::test]
    async fn a_full_batch_or_the_end_sends() {
        let mut world = World::new();
        let (sink, gate, mut came) = world.gate(Mode::Batch, &batches(10, 3));
        gate.open.add_permits(10);
        for id in ["a", "b", "c", "d"] {
            sink.put_now(&event(id, 0));
        }
        assert_eq!(came.recv().await.unwrap(), ["a", "b", "c"]);
        world.phase.send_replace(Phase::Draining);
        assert_eq!(came.recv().await.unwrap(), ["d"]);
        world.workers.join_next().await.unwrap().unwrap();
    }

    /// Answers as it is told, then never again.
    struct Server(Mutex<Vec<Result<(), String>>>, mpsc::UnboundedSender<Bytes>);

    impl Post for Server {
        fn post(&self, body: Bytes) -> BoxFuture<'_, Result<(), String>> {
            self.1.send(body).unwrap();
            let answer = self.0.lock().unwrap().pop();
            Box::pin(async move {
                match answer {
                    Some(answer) => answer,
                    None => std::future::pending().await,
                }
            })
        }
    }

    fn webhook(
        world: &World,
        answers: Vec<Result<(), String>>,
        truncate: TruncateOptions,
    ) -> (Webhook, mpsc::UnboundedReceiver<Bytes>) {
        let (posted, posts) = mpsc::unbounded_channel();
        let hook = Webhook {
            post: Arc::new(Server(Mutex::new(answers), posted)),
            initial: Duration::ZERO,
            truncate,
            random: Arc::new(SeededRandom::new(1)),
            phases: world.phase.subscribe(),
            lost: world.lost.clone(),
        };
        (hook, posts)
    }

    #[tokio::test]
    async fn a_webhook_is_tried_five_times() {
        let world = World::new();
        let down = || Err("down".to_owned());
        let (hook, mut posts) = webhook(&world, vec![Ok(()), down(), down()], TruncateOptions::default());
        assert!(hook.deliver(vec![event("a", 0)]).await);
        assert_eq!((posts.len(), world.errors().as_str()), (3, ""));
        let body = posts.recv().await.unwrap();
        assert!(body.starts_with(b"{\"kind\":\"EventList\""));
        let (hook, posts) = webhook(&world, (0..9).map(|_| down()).collect(), TruncateOptions::default());
        assert!(!hook.deliver(vec![event("a", 0), event("b", 0)]).await);
        assert_eq!(posts.len(), 5);
        assert_eq!(world.errors(), "apiserver_audit_error_total{plugin=\"test\"} 2");
    }

    #[tokio::test]
    async fn a_server_that_ends_waits_for_no_webhook() {
        let world = World::new();
        let (hook, mut posts) = webhook(&world, vec![], TruncateOptions::default());
        let mut delivery = std::pin::pin!(hook.deliver(vec![event("a", 0)]));
        assert!(futures_util::poll!(&mut delivery).is_pending());
        assert!(posts.recv().await.is_some());
        world.phase.send_replace(Phase::GivenUp);
        assert!(!delivery.await);
        assert_eq!(world.errors(), "apiserver_audit_error_total{plugin=\"test\"} 1");
    }

    #[tokio::test]
    async fn lists_are_as_large_as_they_may_be() {
        let world = World::new();
        let limits = TruncateOptions { enabled: true, max_batch_size: 500, max_event_size: 300 };
        let (hook, mut posts) = webhook(&world, vec![Ok(()), Ok(()), Ok(())], limits);
        let huge = "x".repeat(400);
        let events = vec![event("a", 0), event("b", 0), event(&huge, 0), event("c", 0)];
        let events = events.into_iter().map(|e| Arc::new(Event { request_object: None, ..(*e).clone() }));
        assert!(hook.deliver(events.collect()).await);
        let mut lists = vec![];
        while let Ok(body) = posts.try_recv() {
            let list: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let ids =
                list["items"].as_array().unwrap().iter().map(|i| i["auditID"].as_str().unwrap().to_owned());
            lists.push(ids.collect::<Vec<_>>().join(" "));
        }
        assert_eq!(lists, ["a b", "c"]);
        assert_eq!(world.errors(), "apiserver_audit_error_total{plugin=\"truncate\"} 1");
    }
}
