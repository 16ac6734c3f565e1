//! The scheduling loop: it updates cache and queue from the informers, decides one pod at a time, and binds in the background.
//!
//! Invariants:
//! - An assumed pod stays in the cache until its binding has failed or the informer shows it.
//! - At most [`BINDINGS`] bindings are in flight.

use crate::{
    cache::{Cache, PodInfo},
    schedule_one::{Decision, schedule_pod},
    scheduling_queue::SchedulingQueue,
};
use kaji_runtime::{
    Client, Error, EventRecord, Informer, Informers, Key, PatchKind, Projection, Recorder, Shared, Target,
    objects::{Node, Pod},
    time,
};
use serde_json::json;
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{
    sync::{Notify, Semaphore, mpsc, watch},
    time::Instant,
};

/// The scheduler name of pods that name none.
const NAME: &str = "default-scheduler";
/// Bindings in flight at once.
const BINDINGS: usize = 64;

/// Keys that changed since the last iteration of the loop, each once.
#[derive(Default)]
struct Changed {
    pods: Mutex<HashSet<Key>>,
    nodes: Mutex<HashSet<Key>>,
    wake: Notify,
}

impl Changed {
    fn note(&self, set: &Mutex<HashSet<Key>>, key: Key) {
        set.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        self.wake.notify_one();
    }

    fn take(set: &Mutex<HashSet<Key>>) -> HashSet<Key> {
        std::mem::take(&mut *set.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The result of a binding.
struct Bound {
    key: Key,
    outcome: Result<(), Error>,
}

/// Runs until `stop` turns true.
pub async fn run(informers: Arc<Informers>, shared: Shared, mut stop: watch::Receiver<bool>) {
    let client = shared.client.named("kube-scheduler");
    let recorder = Recorder::start(shared.client.clone(), NAME, shared.clock.clone(), shared.random.clone());
    let (changed, clock) = (Arc::new(Changed::default()), shared.clock.clone());
    let (pods, nodes) = (informers.get::<Pod>(), informers.get::<Node>());
    let noted = changed.clone();
    nodes.handle(move |c| noted.note(&noted.nodes, c.any().meta().key()));
    let noted = changed.clone();
    pods.handle(move |c| noted.note(&noted.pods, c.any().meta().key()));
    tokio::select! { () = async { pods.synced().await; nodes.synced().await } => {}, _ = stop.wait_for(|s| *s) => return }
    // Room for the results of all bindings in flight.
    let (sender, mut results) = mpsc::channel(BINDINGS);
    let mut scheduler = Scheduler {
        cache: Cache::default(),
        queue: SchedulingQueue::default(),
        pods,
        nodes,
        shared,
        client,
        recorder,
        permits: Arc::new(Semaphore::new(BINDINGS)),
        sender,
    };
    loop {
        scheduler.update(&changed);
        scheduler.queue.flush_due(scheduler.now());
        let full = scheduler.schedule_all(&changed).await;
        // After scheduling: unschedulable pods have entered their backoff.
        let next = scheduler.queue.next_due();
        let timer = async {
            match next {
                Some(at) => time::sleep_until(&*clock, at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(bound) = results.recv() => {
                scheduler.bound(bound);
                while let Ok(bound) = results.try_recv() {
                    scheduler.bound(bound);
                }
            }
            () = changed.wake.notified(), if !full => {}
            () = timer, if !full => {}
            _ = stop.wait_for(|s| *s) => return,
        }
    }
}

struct Scheduler {
    cache: Cache,
    queue: SchedulingQueue,
    pods: Arc<Informer<Pod>>,
    nodes: Arc<Informer<Node>>,
    shared: Shared,
    client: Client,
    recorder: Recorder,
    permits: Arc<Semaphore>,
    sender: mpsc::Sender<Bound>,
}

impl Scheduler {
    fn now(&self) -> Instant {
        time::instant(&*self.shared.clock)
    }

    /// Updates cache and queue from the informers.
    fn update(&mut self, changed: &Changed) {
        let mut requeue = false;
        let nodes = self.nodes.snapshot();
        for key in Changed::take(&changed.nodes) {
            self.cache.set_node(&key.name, nodes.by_key(&key).cloned());
            requeue = true;
        }
        let pods = self.pods.snapshot();
        for key in Changed::take(&changed.pods) {
            match pods.by_key(&key) {
                Some(pod) if pod.finished() => {
                    self.queue.remove(&key);
                    requeue |= self.cache.remove_pod(&key);
                }
                Some(pod) if !pod.spec.node_name.is_empty() => {
                    self.queue.remove(&key);
                    self.cache.add_pod(&key, &pod.spec.node_name, &PodInfo::new(pod.clone()));
                }
                // An assumed pod stays counted until its binding has ended.
                Some(pod) if self.cache.node_of(&key).is_some() && !pod.metadata.deleting() => {}
                Some(pod) if responsible(pod) => self.queue.add(key, PodInfo::new(pod.clone())),
                Some(_) => self.queue.remove(&key),
                None => {
                    self.queue.remove(&key);
                    requeue |= self.cache.remove_pod(&key);
                }
            }
        }
        if requeue {
            self.queue.move_all_to_active();
        }
    }

    /// Schedules every active pod. True when no further binding may start before one ends.
    async fn schedule_all(&mut self, changed: &Changed) -> bool {
        let mut since = 0;
        loop {
            let Ok(permit) = self.permits.clone().try_acquire_owned() else { return true };
            let Some((key, info)) = self.queue.pop() else { return false };
            match schedule_pod(&self.cache, &info, &*self.shared.random) {
                Decision::Bind(node) => {
                    self.queue.remove(&key);
                    self.cache.add_pod(&key, &node, &info);
                    let (client, sender, recorder) =
                        (self.client.clone(), self.sender.clone(), self.recorder.clone());
                    tokio::spawn(async move {
                        let outcome = bind(&client, &info, &node).await;
                        if outcome.is_ok() {
                            recorder.record(EventRecord::normal(
                                info.pod.metadata.reference("v1", "Pod"),
                                "Scheduled",
                                format!("Successfully assigned {key} to {node}"),
                            ));
                        }
                        // Before the result is sent: the loop expects a free permit when it receives one.
                        drop(permit);
                        // The receiver is gone only after the loop has ended.
                        let _ = sender.send(Bound { key, outcome }).await;
                    });
                }
                Decision::Unschedulable(message) => {
                    self.queue.add_unschedulable(&key, self.now());
                    self.report(&info, message);
                }
            }
            since += 1;
            if since % 64 == 0 {
                tokio::task::yield_now().await;
                self.update(changed);
            }
        }
    }

    fn report(&self, info: &PodInfo, message: String) {
        let pod = &info.pod;
        self.recorder.record(EventRecord::warning(
            pod.metadata.reference("v1", "Pod"),
            "FailedScheduling",
            message.clone(),
        ));
        if pod.condition("PodScheduled").is_some_and(|c| c.status == "False" && c.reason == "Unschedulable") {
            return;
        }
        let now = kaji_meta::time::Time::new(self.shared.clock.now()).to_string();
        let patch = json!({
            "metadata": {"uid": pod.metadata.uid},
            "status": {"conditions": [{
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": message,
                "lastTransitionTime": now,
                "observedGeneration": pod.metadata.generation,
            }]},
        });
        let (client, target) = (self.client.clone(), target(pod).subresource("status"));
        tokio::spawn(async move {
            if let Err(error) = client.patch(&target, PatchKind::Strategic.content_type(), "", &patch).await {
                tracing::debug!(%error, "failed to write the condition of a pod");
            }
        });
    }

    fn bound(&mut self, bound: Bound) {
        let Bound { key, outcome } = bound;
        let Err(error) = outcome else { return };
        tracing::debug!(pod = %key, %error, "binding failed");
        let snapshot = self.pods.snapshot();
        let still = snapshot.by_key(&key).filter(|p| p.spec.node_name.is_empty());
        if snapshot.by_key(&key).is_none() || still.is_some() {
            self.cache.remove_pod(&key);
        }
        if let Some(pod) = still.filter(|p| responsible(p)) {
            self.queue.add(key.clone(), PodInfo::new(pod.clone()));
            self.queue.add_unschedulable(&key, self.now());
            self.queue.move_all_to_active();
        }
    }
}

/// Whether this scheduler is responsible for a pod.
fn responsible(pod: &Pod) -> bool {
    let name = &pod.spec.scheduler_name;
    pod.spec.node_name.is_empty()
        && (name.is_empty() || name == NAME)
        && pod.active()
        && pod.spec.scheduling_gates.is_empty()
}

fn target(pod: &Pod) -> Target {
    Target::of::<Pod>(&pod.metadata.namespace, &pod.metadata.name)
}

async fn bind(client: &Client, info: &PodInfo, node: &str) -> Result<(), Error> {
    let meta = &info.pod.metadata;
    let body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    client.post(&target(&info.pod).subresource("binding"), &body).await
}
