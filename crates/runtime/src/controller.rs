//! A controller: event handlers of informers add keys to a queue, workers reconcile them and apply the plans.
//!
//! Invariants:
//! - A key is retried with backoff after a failed write or a panic; other keys go on.
//! - A worker observes its own writes in the informers, or waits [`OBSERVE`], before it processes the same key again.

use crate::{
    client::{Client, Error, Target},
    events::Recorder,
    informer::{Change, Informers, Observed},
    meta::Key,
    metrics::{Gauges, Metric, Observing, Sample},
    objects::{Workload, WorkloadVisitor, visit_workloads},
    plan::{Plan, Step, Write},
    queue::Queue,
    time,
    view::{Projection, Source, View},
};
use futures_util::{StreamExt, future::BoxFuture, stream};
use kaji_decisions::{Decision, Decisions};
use kaji_meta::{random::Random, time::Clock};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::watch;

/// Writes of one stage in flight at once.
const PARALLEL: usize = 16;
/// How long to wait for the informer to show a write: for as long as upstream's controllers expect theirs.
const OBSERVE: Duration = Duration::from_secs(5 * 60);
/// A key with an expensive reconcile (a replica set of ten thousand pods) is not processed again before this many times its
/// duration, so that a stream of its events uses a tenth of a core at most. Cheap keys are not delayed.
const REST_FACTOR: u32 = 10;
const SHORTEST_REST: Duration = Duration::from_millis(2);
const LONGEST_REST: Duration = Duration::from_millis(200);

/// A write of the last plan that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The object.
    pub target: Target,
    /// The error.
    pub error: Error,
}

/// The context of a reconcile, besides the view.
pub struct Cx<'a> {
    /// The time.
    pub now: jiff::Timestamp,
    /// Randomness.
    pub random: &'a dyn Random,
    /// The failed writes of this key's last plan.
    pub failures: &'a [Failure],
}

/// The decision of a controller: pure, level-triggered.
pub trait Reconciler: Send + Sync + 'static {
    /// The component's name in events and field managers (`deployment-controller`).
    fn name(&self) -> &'static str;

    /// The client's `User-Agent` for the writes of a key, where that is not the controller's name: one process of several
    /// simulated kubelets acts as the kubelet of the key's node.
    fn agent(&self, _view: &View, _key: &Key) -> Option<String> {
        None
    }

    /// The name of its queue in metrics, as upstream's.
    fn queue_name(&self) -> &'static str {
        self.name()
    }

    /// Its metrics beside those of its queue.
    fn metrics(&self) -> &'static [&'static Metric] {
        &[]
    }

    /// Whether it has something to [prepare](Reconciler::prepare).
    fn prepares(&self) -> bool {
        false
    }

    /// Reads what no informer has, before a key is reconciled; by the same worker, so that no other one does both at once.
    fn prepare<'a>(&'a self, _view: &'a View, _key: &'a Key, _client: &'a Client) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The writes that turn the observed state into the desired one.
    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan;

    /// What became of a write of a key's plan: the object as it is now, or the error. For objects that no informer has, and that are
    /// updated from what the server returned the last time.
    fn written(&self, _key: &Key, _write: &Write, _outcome: Result<&Value, &Error>) {}

    /// What is counted of the work on a key that depends on how its writes failed: it has ended, and took so many seconds. What does
    /// not depend on that is in the plan.
    fn ended(&self, _failures: &[Failure], _seconds: f64) -> Vec<Sample> {
        vec![]
    }
}

type Ready = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// A reconciler with its informers and queue, ready to run.
pub struct Controller {
    reconciler: Arc<dyn Reconciler>,
    informers: Arc<Informers>,
    queue: Arc<Queue>,
    sources: Vec<Source>,
    ready: Vec<Ready>,
    observed: HashMap<(String, String), Arc<dyn Observed>>,
    /// Held for the pages of metrics, which read them.
    gauges: Vec<Gauges>,
    workers: usize,
}

impl Controller {
    /// A controller that reads nothing yet.
    pub fn new(reconciler: impl Reconciler, informers: &Arc<Informers>) -> Self {
        informers.metrics().declare(reconciler.metrics());
        Controller {
            queue: Arc::new(informers.queue(reconciler.queue_name())),
            reconciler: Arc::new(reconciler),
            informers: informers.clone(),
            sources: vec![],
            ready: vec![],
            observed: HashMap::new(),
            gauges: vec![],
            workers: 5,
        }
    }

    /// Reads a resource. `keys` maps a change to keys; its view has the resources that were added before this one.
    pub fn reads<T: Projection>(
        self,
        keys: impl Fn(&Change<T>, &View) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self {
        self.reads_after(Duration::ZERO, keys)
    }

    /// The same, with keys that wait for so long, so that one reconcile has further changes too.
    pub fn reads_after<T: Projection>(
        mut self,
        wait: Duration,
        keys: impl Fn(&Change<T>, &View) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self {
        self.add_source::<T, _>(move |change, view| {
            keys(change, view).into_iter().map(move |key| (key, wait))
        });
        self
    }

    /// The same, with a wait of its own for each key.
    pub fn reads_with_waits<T: Projection>(
        mut self,
        keys: impl Fn(&Change<T>, &View) -> Vec<(Key, Duration)> + Send + Sync + 'static,
    ) -> Self {
        self.add_source::<T, _>(keys);
        self
    }

    /// Reads the kinds that [`visit_workloads`] shows. Their changes name no keys.
    pub fn reads_workloads(mut self) -> Self {
        struct Reading<'a>(&'a mut Controller);

        impl WorkloadVisitor for Reading<'_> {
            fn visit<W: Workload>(&mut self) {
                self.0.add_source::<W, Vec<(Key, Duration)>>(|_, _| vec![]);
            }
        }

        visit_workloads(&mut Reading(&mut self));
        self
    }

    fn add_source<T: Projection, K: IntoIterator<Item = (Key, Duration)>>(
        &mut self,
        keys: impl Fn(&Change<T>, &View) -> K + Send + Sync + 'static,
    ) {
        let informer = self.informers.get::<T>();
        let (queue, earlier) = (self.queue.clone(), Arc::<[Source]>::from(&self.sources[..]));
        informer.handle(move |change| {
            let view = View::present(earlier.clone());
            keys(change, &view).into_iter().for_each(|(key, wait)| queue.add_after(key, wait));
        });
        let source = informer.clone();
        self.sources.push(Source::new(move || source.snapshot()));
        let source = informer.clone();
        self.ready.push(Box::new(move || {
            let source = source.clone();
            Box::pin(async move { source.synced().await })
        }));
        self.observed.insert((T::GROUP.into(), T::RESOURCE.into()), informer);
    }

    /// Counts changes of a resource, the objects of the first list included.
    pub fn counts<T: Projection>(
        self,
        samples: impl Fn(&Change<T>) -> Option<Sample> + Send + Sync + 'static,
    ) -> Self {
        let metrics = self.informers.metrics().clone();
        self.informers.get::<T>().handle(move |change| {
            if let Some(sample) = samples(change) {
                metrics.observe(&sample);
            }
        });
        self
    }

    /// Shows gauges, which are read when metrics are asked for. Their view has the resources that were added before.
    pub fn gauges(mut self, read: impl Fn(&View) -> Vec<Sample> + Send + Sync + 'static) -> Self {
        let sources = Arc::<[Source]>::from(&self.sources[..]);
        let gauges = self.informers.metrics().gauges(move || read(&View::present(sources.clone())));
        self.gauges.push(gauges);
        self
    }

    /// The number of workers (5 by default).
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = count.max(1);
        self
    }

    /// Adds a key at the start (`Key::default()` for controllers without keys).
    pub fn seed(self, key: Key) -> Self {
        self.queue.add(key);
        self
    }

    /// The component's name.
    pub fn name(&self) -> &'static str {
        self.reconciler.name()
    }

    fn view(&self) -> View {
        View::of(&self.sources)
    }
}

/// What the controllers of a process share.
#[derive(Clone)]
pub struct Shared {
    /// The client; each controller names itself.
    pub client: Client,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
    /// What is remembered of decisions, where explanations are read from this process.
    pub decisions: Option<Arc<Decisions>>,
}

impl Shared {
    /// Remembers a decision for explanations.
    pub fn remember(&self, decision: impl FnOnce() -> Decision) {
        if let Some(decisions) = &self.decisions {
            decisions.remember(decision());
        }
    }

    /// Forgets what a component decided of a key.
    pub fn settle(&self, component: &str, key: &Key) {
        if let Some(decisions) = &self.decisions {
            decisions.settle(component, &key.to_string());
        }
    }
}

/// Runs a controller until `stop` turns true.
pub async fn run(controller: Controller, shared: Shared, mut stop: watch::Receiver<bool>) {
    for ready in &controller.ready {
        tokio::select! { biased; () = ready() => {}, _ = stop.wait_for(|s| *s) => return }
    }
    let name = controller.reconciler.name();
    let client = shared.client.named(name);
    let recorder = Recorder::start(client.clone(), name, shared.clock.clone(), shared.random.clone());
    let worker = Arc::new(Worker { controller, shared, client, recorder, failures: Mutex::default() });
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..worker.controller.workers {
        let worker = worker.clone();
        tasks.spawn(async move {
            while let Some(key) = worker.controller.queue.next().await {
                let effort = worker.work(&key).await;
                let rest = (effort * REST_FACTOR).min(LONGEST_REST);
                worker
                    .controller
                    .queue
                    .done_after(&key, if rest < SHORTEST_REST { Duration::ZERO } else { rest });
            }
        });
    }
    let _ = stop.wait_for(|s| *s).await;
    worker.controller.queue.close();
    // Pending writes are aborted.
    tasks.shutdown().await;
}

struct Worker {
    controller: Controller,
    shared: Shared,
    client: Client,
    recorder: Recorder,
    failures: Mutex<HashMap<Key, Vec<Failure>>>,
}

impl Worker {
    /// Processes a key; returns how long the decision took.
    async fn work(&self, key: &Key) -> Duration {
        let taken = tokio::time::Instant::now();
        let known =
            self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(key).unwrap_or_default();
        if self.controller.reconciler.prepares() {
            self.controller.reconciler.prepare(&self.controller.view(), key, &self.client).await;
        }
        // Before the time of the decision: a clock that jumps meanwhile makes no wait longer.
        let began = time::instant(&*self.shared.clock);
        let cx = Cx { now: self.shared.clock.now(), random: &*self.shared.random, failures: &known };
        let started = tokio::time::Instant::now();
        let view = self.controller.view();
        // A panic of one reconcile must not end the others. It is pure, so it leaves nothing half changed.
        let decide = std::panic::AssertUnwindSafe(|| self.controller.reconciler.reconcile(&view, key, &cx));
        let decided = std::panic::catch_unwind(decide);
        let effort = started.elapsed();
        let Ok(mut plan) = decided else {
            tracing::error!(controller = self.controller.reconciler.name(), %key, "a reconcile panicked");
            self.controller.queue.retry(key.clone());
            return effort;
        };
        let again = plan.requeue_after;
        let agent = self.controller.reconciler.agent(&view, key);
        let client = agent.map_or_else(|| self.client.clone(), |agent| self.client.named(&agent));
        let observations = std::mem::take(&mut plan.observations);
        let observing = Observing::new(self.controller.informers.metrics(), observations, taken);
        let failures = self.apply(key, plan, &client, &observing).await;
        observing.done(failures.is_empty());
        let ended = self.controller.reconciler.ended(&failures, taken.elapsed().as_secs_f64());
        ended.iter().for_each(|sample| self.controller.informers.metrics().observe(sample));
        let queue = &self.controller.queue;
        if failures.is_empty() {
            self.shared.settle(self.controller.reconciler.name(), key);
            queue.forget(key);
        } else {
            self.failures.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), failures);
            queue.retry(key.clone());
        }
        if let Some(wait) = again {
            queue.add_at(key.clone(), began + wait);
        }
        effort
    }

    /// Keeps the error of a key for explanations. Objects that changed or went away meanwhile are everyday life.
    fn remember(&self, key: &Key, write: &Write, error: &Error) {
        if error.conflict() || error.not_found() {
            return;
        }
        self.shared.remember(|| Decision {
            component: self.controller.reconciler.name().to_owned(),
            key: key.to_string(),
            about: write.target().about(),
            owner: write.owner(),
            reason: error.reason().to_owned(),
            message: error.to_string(),
            rejections: vec![],
        });
    }

    async fn apply(&self, key: &Key, plan: Plan, client: &Client, observing: &Observing<'_>) -> Vec<Failure> {
        plan.events.into_iter().for_each(|e| self.recorder.record(e));
        let mut failures: Vec<Failure> = vec![];
        for stage in plan.stages {
            let mut steps = stage.steps;
            steps.retain(|step| !failures.iter().any(|f| f.target.same_object(step.write.target())));
            let outcomes: Vec<_> = stream::iter(steps)
                .map(|step| self.step(key, step, client, observing))
                .buffer_unordered(PARALLEL)
                .collect()
                .await;
            let before = failures.len();
            failures.extend(outcomes.into_iter().filter_map(Result::err));
            if failures.len() > before && !stage.independent {
                break;
            }
        }
        failures
    }

    async fn step(
        &self,
        key: &Key,
        step: Step,
        client: &Client,
        observing: &Observing<'_>,
    ) -> Result<(), Failure> {
        let target = step.write.target().clone();
        let outcome = self.write(&step.write, client).await;
        self.controller.reconciler.written(key, &step.write, outcome.as_ref());
        observing.written(&target, outcome.is_ok());
        match outcome {
            Ok(response) => {
                if let Some(event) = step.on_success {
                    let name =
                        response.pointer("/metadata/name").and_then(Value::as_str).unwrap_or(&target.name);
                    self.recorder.record(event.filled(name, ""));
                }
                self.observe(&step.write, &response).await;
                Ok(())
            }
            Err(error) => {
                tracing::debug!(controller = self.controller.reconciler.name(), path = target.path(), %error, "write failed");
                if let Some(event) = step.on_failure
                    && !error.conflict()
                {
                    self.recorder.record(event.filled(&target.name, &error.to_string()));
                }
                self.remember(key, &step.write, &error);
                Err(Failure { target, error })
            }
        }
    }

    async fn write(&self, write: &Write, client: &Client) -> Result<Value, Error> {
        match write {
            Write::Create { target, body } => client.create(target, body).await,
            Write::Update { target, body } => client.update(target, body).await,
            Write::Patch { target, kind, body } => {
                let query = match kind {
                    crate::PatchKind::Apply => {
                        format!("fieldManager={}&force=true", self.controller.reconciler.name())
                    }
                    _ => String::new(),
                };
                client.patch(target, kind.content_type(), &query, body).await
            }
            Write::Delete { target, options } => match client.delete(target, options).await {
                Err(error) if error.not_found() => Ok(Value::Null),
                other => other,
            },
        }
    }

    /// Waits until the informer of the written resource, if the controller has one, shows the write.
    async fn observe(&self, write: &Write, response: &Value) {
        let target = write.target();
        let Some(informer) = self.controller.observed.get(&(target.group.clone(), target.resource.clone()))
        else {
            return;
        };
        let revision = response.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        let key = Key::new(target.namespace.as_str(), target.name.as_str());
        let seen = async {
            match (write, revision.and_then(|r| r.parse().ok())) {
                (Write::Delete { options, .. }, _) => {
                    informer.gone(&key, options.pointer("/preconditions/uid").and_then(Value::as_str)).await;
                }
                (_, Some(revision)) => informer.reached(revision).await,
                (_, None) => {}
            }
        };
        if tokio::time::timeout(OBSERVE, seen).await.is_err() {
            tracing::debug!(path = target.path(), "a write was not observed in time");
        }
    }
}

#[cfg(test)]
mod tests;
