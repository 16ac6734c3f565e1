//! A bounded queue in front of a backend, and the worker that delivers its events.
//!
//! Invariants:
//! - In batch mode no request waits: an event that does not fit is lost, counted and logged.
//! - In the blocking modes a request waits until its event is delivered or cannot be: on its thread if the backend can do so
//!   at once, else in the queue.
//! - On shutdown every accepted event is delivered, or reported as lost.
//!
//! Source: upstream's `plugin/pkg/audit/buffered`.

use crate::{BatchOptions, Batcher, Event, Metrics, Mode, Throttle};
use futures_util::FutureExt;
use jiff::Timestamp;
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

/// The name of this plugin in metrics.
const BUFFERED: &str = "buffered";
/// Bytes of bodies in the queue in batch mode.
const MAX_QUEUED_BYTES: usize = 256 << 20;
/// Events that a worker without a batcher takes at once.
const RECEIVE_BATCH: usize = 400;
/// Length of the queue in the blocking modes.
const BLOCKING_QUEUE: usize = 1024;

/// Stages of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Not shutting down.
    Running,
    /// No new events are accepted.
    Draining,
    /// Events that are not delivered yet are lost.
    GivenUp,
}

/// Counts and logs lost events.
#[derive(Clone)]
pub(super) struct LossReporter {
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
    pub plugin: &'static str,
}

impl LossReporter {
    pub fn report(&self, plugin: &'static str, error: &str, events: &[Arc<Event>]) {
        self.metrics.lost(plugin, error, events, self.now());
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// A destination of events.
pub(super) trait Backend: Send + Sync + 'static {
    /// How many deliveries may be in flight.
    fn parallel(&self) -> usize;

    /// Delivers events and reports those that it cannot deliver. True if all were delivered.
    fn deliver(&self, events: Vec<Arc<Event>>) -> BoxFuture<'_, bool>;

    /// Delivers an event on the caller's thread, or reports it, if that takes microseconds: `Some(true)` if it was delivered.
    /// `None` if the event has to take the queue.
    fn deliver_inline(&self, _: &Arc<Event>) -> Option<bool> {
        None
    }
}

/// Bytes of the queue, released when this is dropped.
struct QueuedBytes(Arc<AtomicUsize>, usize);

impl Drop for QueuedBytes {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

struct Entry {
    event: Arc<Event>,
    done: Option<oneshot::Sender<bool>>,
    _bytes: Option<QueuedBytes>,
}

/// A backend behind its queue.
pub(super) struct BufferedBackend {
    mode: Mode,
    backend: Arc<dyn Backend>,
    queue: mpsc::Sender<Entry>,
    bytes: Arc<AtomicUsize>,
    losses: LossReporter,
}

/// Reports an event as lost if its request is dropped while it waits for room.
struct WaitingEvent<'a>(&'a BufferedBackend, Option<&'a Arc<Event>>);

impl Drop for WaitingEvent<'_> {
    fn drop(&mut self) {
        if let Some(event) = self.1 {
            let error = "the request ended before there was room for its event";
            self.0.losses.report(BUFFERED, error, std::slice::from_ref(event));
        }
    }
}

impl BufferedBackend {
    /// Starts the worker.
    pub fn start(
        backend: Arc<dyn Backend>,
        mode: Mode,
        options: &BatchOptions,
        phases: &watch::Receiver<Phase>,
        workers: &mut JoinSet<()>,
        losses: &LossReporter,
    ) -> BufferedBackend {
        let batch = mode == Mode::Batch;
        let capacity = if batch { usize::try_from(options.buffer_size).unwrap_or(1) } else { BLOCKING_QUEUE };
        let (queue, entries) = mpsc::channel(capacity.clamp(1, Semaphore::MAX_PERMITS));
        let throttled = options.throttle_enable;
        let throttle = |_| {
            Throttle::new(options.throttle_qps, u32::try_from(options.throttle_burst).unwrap_or(u32::MAX))
        };
        let size = usize::try_from(options.max_size).unwrap_or(1);
        let worker = Worker {
            entries,
            batcher: (batch && (size > 1 || throttled)).then(|| Batcher::new(size, options.max_wait)),
            throttle: (batch && throttled).then_some(()).map(throttle),
            slots: Arc::new(Semaphore::new(backend.parallel())),
            backend: backend.clone(),
            phases: phases.clone(),
            losses: losses.clone(),
            origin: Instant::now(),
        };
        workers.spawn(worker.run());
        BufferedBackend { mode, backend, queue, bytes: Arc::default(), losses: losses.clone() }
    }

    /// Accepts an event. False if the request may not continue.
    pub async fn process(&self, event: &Arc<Event>) -> bool {
        if self.mode == Mode::Batch {
            self.try_process(event);
            return true;
        }
        // A request waits for its event in any case; to hand it to a worker and back costs more than most requests.
        if !self.queue.is_closed()
            && let Some(delivered) = self.backend.deliver_inline(event)
        {
            return delivered || self.mode == Mode::Blocking;
        }
        let (done, outcome) = oneshot::channel();
        let mut waiting = WaitingEvent(self, Some(event));
        let entry = Entry { event: event.clone(), done: Some(done), _bytes: None };
        let taken = self.queue.send(entry).await.is_ok();
        waiting.1 = None;
        if !taken {
            self.closed(event);
        }
        (taken && outcome.await.unwrap_or(false)) || self.mode == Mode::Blocking
    }

    /// Accepts an event if there is room.
    pub fn try_process(&self, event: &Arc<Event>) {
        let size = event.bodies();
        let before = self.bytes.fetch_add(size, Ordering::Relaxed);
        let bytes = QueuedBytes(self.bytes.clone(), size);
        let entry = Entry { event: event.clone(), done: None, _bytes: Some(bytes) };
        let full = before.saturating_add(size) > MAX_QUEUED_BYTES;
        match if full { Err(mpsc::error::TrySendError::Full(entry)) } else { self.queue.try_send(entry) } {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.losses.report(BUFFERED, "audit buffer queue blocked", std::slice::from_ref(event));
            }
            Err(mpsc::error::TrySendError::Closed(_)) => self.closed(event),
        }
    }

    fn closed(&self, event: &Arc<Event>) {
        self.losses.report(BUFFERED, "audit backend shut down", std::slice::from_ref(event));
    }
}

struct Worker {
    entries: mpsc::Receiver<Entry>,
    /// Without one, all queued events are delivered at once.
    batcher: Option<Batcher<Entry>>,
    throttle: Option<Throttle>,
    slots: Arc<Semaphore>,
    backend: Arc<dyn Backend>,
    phases: watch::Receiver<Phase>,
    losses: LossReporter,
    origin: Instant,
}

impl Worker {
    async fn run(mut self) {
        let mut deliveries = JoinSet::new();
        while let Some(batch) = self.collect().await {
            self.throttle().await;
            // The semaphore is never closed.
            let Ok(slot) = self.slots.clone().acquire_owned().await else { break };
            let (backend, losses) = (self.backend.clone(), self.losses.clone());
            deliveries.spawn(async move {
                deliver(&*backend, &losses, batch).await;
                drop(slot);
            });
            while deliveries.try_join_next().is_some() {}
        }
        while deliveries.join_next().await.is_some() {}
    }

    /// The next batch; `None` after the last.
    async fn collect(&mut self) -> Option<Vec<Entry>> {
        loop {
            let open = !self.entries.is_closed();
            let due = self.batcher.as_ref().and_then(Batcher::due).map(|due| self.origin + due);
            let mut batch = vec![];
            tokio::select! {
                biased;
                ended = self.phases.wait_for(|p| *p >= Phase::Draining), if open => {
                    // A dropped sender ends the worker as well.
                    drop(ended);
                    self.entries.close();
                }
                count = self.entries.recv_many(&mut batch, if self.batcher.is_some() { 1 } else { RECEIVE_BATCH }) => {
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

    /// Waits until the next batch may be delivered.
    async fn throttle(&mut self) {
        let Some(throttle) = &mut self.throttle else { return };
        let wait = throttle.take(self.origin.elapsed());
        if wait > Duration::ZERO {
            tokio::select! {
                biased;
                () = tokio::time::sleep(wait) => {}
                ended = self.phases.wait_for(|p| *p == Phase::GivenUp) => drop(ended),
            }
        }
    }
}

async fn deliver(backend: &dyn Backend, losses: &LossReporter, batch: Vec<Entry>) {
    let events: Vec<Arc<Event>> = batch.iter().map(|e| e.event.clone()).collect();
    let delivered = AssertUnwindSafe(backend.deliver(events.clone())).catch_unwind().await;
    let delivered = delivered.unwrap_or_else(|_| {
        losses.report(losses.plugin, "the backend panicked", &events);
        false
    });
    for entry in batch {
        if let Some(done) = entry.done {
            // The receiver is gone if the request was dropped.
            let _ = done.send(delivered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        testing::event,
        webhook::{Post, Webhook},
    };
    use super::*;
    use crate::TruncateOptions;
    use bytes::Bytes;
    use kaji_meta::{SeededRandom, SystemClock};
    use prometheus_client::registry::Registry;
    use std::sync::Mutex;

    /// Delivers a batch per permit; a batch with the event "bad" is not delivered.
    struct Gate {
        open: Semaphore,
        received: mpsc::UnboundedSender<Vec<String>>,
    }

    impl Backend for Gate {
        fn parallel(&self) -> usize {
            1
        }

        fn deliver(&self, events: Vec<Arc<Event>>) -> BoxFuture<'_, bool> {
            Box::pin(async move {
                let ids: Vec<String> = events.iter().map(|e| e.head.audit_id.clone()).collect();
                let delivered = !ids.contains(&"bad".to_owned());
                self.received.send(ids).unwrap();
                self.open.acquire().await.unwrap().forget();
                delivered
            })
        }
    }

    struct Fixture {
        registry: Registry,
        losses: LossReporter,
        phase: watch::Sender<Phase>,
        workers: JoinSet<()>,
    }

    impl Fixture {
        fn new() -> Fixture {
            let mut registry = Registry::default();
            let metrics = Arc::new(Metrics::new(&mut registry));
            let losses = LossReporter { metrics, clock: Arc::new(SystemClock), plugin: "test" };
            Fixture { registry, losses, phase: watch::Sender::new(Phase::Running), workers: JoinSet::new() }
        }

        fn gate(
            &mut self,
            mode: Mode,
            options: &BatchOptions,
        ) -> (BufferedBackend, Arc<Gate>, mpsc::UnboundedReceiver<Vec<String>>) {
            let (received, batches) = mpsc::unbounded_channel();
            let gate = Arc::new(Gate { open: Semaphore::new(0), received });
            let phases = self.phase.subscribe();
            let sink =
                BufferedBackend::start(gate.clone(), mode, options, &phases, &mut self.workers, &self.losses);
            (sink, gate, batches)
        }

        fn errors(&self) -> String {
            let page = kaji_exposition::encode(&self.registry);
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
    async fn batch_mode_does_not_wait() {
        let mut fixture = Fixture::new();
        let (sink, gate, mut came) = fixture.gate(Mode::Batch, &batches(3, 2));
        sink.try_process(&event("a", 1));
        sink.try_process(&event("b", 1));
        // The first batch is being delivered until permits are added.
        assert_eq!(came.recv().await.unwrap(), ["a", "b"]);
        // Room: the queue, a batch that waits to go, and one that fills.
        for n in 0..100 {
            assert!(sink.process(&event(&n.to_string(), 1)).await);
        }
        fixture.phase.send_replace(Phase::Draining);
        gate.open.add_permits(100);
        fixture.workers.join_next().await.unwrap().unwrap();
        let mut delivered = vec![];
        while let Ok(batch) = came.try_recv() {
            assert!(batch.len() <= 2);
            delivered.extend(batch);
        }
        // The first events were kept, the others were counted as lost.
        let kept: Vec<String> = (0..delivered.len()).map(|n| n.to_string()).collect();
        assert_eq!(delivered, kept);
        assert_eq!(
            fixture.errors(),
            format!("apiserver_audit_error_total{{plugin=\"buffered\"}} {}", 100 - delivered.len())
        );
        assert_eq!(sink.bytes.load(Ordering::Relaxed), 0);
        sink.try_process(&event("late", 1));
        assert!(fixture.errors().ends_with(&(101 - delivered.len()).to_string()));
    }

    #[tokio::test]
    async fn queued_bytes_are_bounded() {
        let mut fixture = Fixture::new();
        let (sink, gate, _came) = fixture.gate(Mode::Batch, &batches(100, 1));
        let body = Bytes::from(vec![b' '; MAX_QUEUED_BYTES / 2]);
        for n in 0..3 {
            let event = event(&n.to_string(), 0);
            sink.try_process(&Arc::new(Event { request_object: Some(body.clone()), ..(*event).clone() }));
        }
        assert_eq!(fixture.errors(), "apiserver_audit_error_total{plugin=\"buffered\"} 1");
        gate.open.add_permits(100);
        fixture.phase.send_replace(Phase::Draining);
        fixture.workers.join_next().await.unwrap().unwrap();
        assert_eq!(sink.bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn blocking_modes_wait_for_delivery() {
        let mut fixture = Fixture::new();
        for (mode, goes_on) in [(Mode::Blocking, true), (Mode::BlockingStrict, false)] {
            let (sink, gate, mut came) = fixture.gate(mode, &batches(1, 1));
            let bad = event("bad", 1);
            let mut put = std::pin::pin!(sink.process(&bad));
            assert!(futures_util::poll!(&mut put).is_pending());
            assert_eq!(came.recv().await.unwrap(), ["bad"]);
            assert!(futures_util::poll!(&mut put).is_pending());
            gate.open.add_permits(2);
            assert_eq!(put.await, goes_on);
            assert!(sink.process(&event("good", 1)).await);
        }
        fixture.phase.send_replace(Phase::Draining);
        while fixture.workers.join_next().await.is_some() {}
        assert_eq!(fixture.errors(), "");
    }

    #[tokio::test]
    async fn delivers_full_batches_and_the_rest_on_shutdown() {
        let mut fixture = Fixture::new();
        let (sink, gate, mut came) = fixture.gate(Mode::Batch, &batches(10, 3));
        gate.open.add_permits(10);
        for id in ["a", "b", "c", "d"] {
            sink.try_process(&event(id, 0));
        }
        assert_eq!(came.recv().await.unwrap(), ["a", "b", "c"]);
        fixture.phase.send_replace(Phase::Draining);
        assert_eq!(came.recv().await.unwrap(), ["d"]);
        fixture.workers.join_next().await.unwrap().unwrap();
    }

    /// Gives these answers, the last first, then never answers.
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
        fixture: &Fixture,
        answers: Vec<Result<(), String>>,
        truncate: TruncateOptions,
    ) -> (Webhook, mpsc::UnboundedReceiver<Bytes>) {
        let (posted, posts) = mpsc::unbounded_channel();
        let hook = Webhook {
            post: Arc::new(Server(Mutex::new(answers), posted)),
            initial: Duration::ZERO,
            truncate,
            random: Arc::new(SeededRandom::new(1)),
            phases: fixture.phase.subscribe(),
            losses: fixture.losses.clone(),
        };
        (hook, posts)
    }

    #[tokio::test]
    async fn a_webhook_is_tried_five_times() {
        let fixture = Fixture::new();
        let down = || Err("down".to_owned());
        let (hook, mut posts) = webhook(&fixture, vec![Ok(()), down(), down()], TruncateOptions::default());
        assert!(hook.deliver(vec![event("a", 0)]).await);
        assert_eq!((posts.len(), fixture.errors().as_str()), (3, ""));
        let body = posts.recv().await.unwrap();
        assert!(body.starts_with(b"{\"kind\":\"EventList\""));
        let (hook, posts) = webhook(&fixture, (0..9).map(|_| down()).collect(), TruncateOptions::default());
        assert!(!hook.deliver(vec![event("a", 0), event("b", 0)]).await);
        assert_eq!(posts.len(), 5);
        assert_eq!(fixture.errors(), "apiserver_audit_error_total{plugin=\"test\"} 2");
    }

    #[tokio::test]
    async fn shutdown_does_not_wait_for_a_webhook() {
        let fixture = Fixture::new();
        let (hook, mut posts) = webhook(&fixture, vec![], TruncateOptions::default());
        let mut delivery = std::pin::pin!(hook.deliver(vec![event("a", 0)]));
        assert!(futures_util::poll!(&mut delivery).is_pending());
        assert!(posts.recv().await.is_some());
        fixture.phase.send_replace(Phase::GivenUp);
        assert!(!delivery.await);
        assert_eq!(fixture.errors(), "apiserver_audit_error_total{plugin=\"test\"} 1");
    }

    #[tokio::test]
    async fn lists_are_limited_in_size() {
        let fixture = Fixture::new();
        let limits = TruncateOptions { enabled: true, max_batch_size: 500, max_event_size: 300 };
        let (hook, mut posts) = webhook(&fixture, vec![Ok(()), Ok(()), Ok(())], limits);
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
        assert_eq!(fixture.errors(), "apiserver_audit_error_total{plugin=\"truncate\"} 1");
    }
}
