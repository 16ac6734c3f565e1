//! One run: a cluster is started, worked on while things go wrong, left alone, and judged.
//!
//! Invariant: the run has a runtime of its own, with one thread and a paused clock; nothing of it is left when it returns.

use crate::{
    clock::SimulatedClock,
    faults::{Dice, Fault, Faults, Rates},
    laws::{Laws, reached},
    manifests,
    objects::PODS,
    panics,
    scenario::{Action, Step, churn::churn, disturbances, workload},
    store::{FullDisk, SimulatedStore},
    trace::Trace,
};
use bytes::Bytes;
use futures_util::{StreamExt, future::LocalBoxFuture};
use http::Method;
use kaji_meta::{
    random::{Random, SeededRandom},
    time::Clock,
};
use kaji_runtime::{Client, Error, Interception};
use kaji_store::{
    Store, WatchBatch, WatchStream,
    memory::{MemoryOptions, MemoryStore},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep, sleep_until};

/// What a simulated cluster is started with.
#[derive(Clone)]
pub struct Parts {
    /// The time of everything.
    pub clock: Arc<dyn Clock>,
    /// Names, uids and jitter.
    pub random: Arc<dyn Random>,
    /// Outlives the cluster.
    pub store: Arc<dyn Store>,
    /// Stands between the control loops and the server.
    pub interception: Arc<dyn Interception>,
    /// How many simulated nodes it has.
    pub nodes: u16,
}

/// A cluster under simulation. Dropping it is its sudden end.
pub trait SimulatedCluster: Send {
    /// A client with all rights, for which nothing goes wrong.
    fn client(&self) -> Client;
    /// Kills the control loops, and starts them again.
    fn restart_control_loops(&mut self);
}

/// Starts clusters.
pub trait Subject: Sync {
    /// Starts one.
    ///
    /// # Errors
    /// Why it does not start.
    fn start(&self, parts: Parts) -> LocalBoxFuture<'_, Result<Box<dyn SimulatedCluster>, String>>;
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Draws everything.
    pub seed: u64,
    /// Simulated nodes.
    pub nodes: u16,
    /// The faults that may come about, by number; `None` for all.
    pub allowed: Option<BTreeSet<u64>>,
    /// What is done.
    pub scenario: Scenario,
}

/// What is done in a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Scenario {
    /// What the seed draws.
    Drawn,
    /// These objects are created at the start; what goes wrong is drawn.
    Objects(Vec<Value>),
    /// [`churn`] for so long; nothing goes wrong but nodes.
    Churn(Duration),
}

/// A law that was broken, or a state that was not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Milliseconds since the start.
    pub at_millis: u64,
    /// What.
    pub text: String,
}

/// What became of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Of all writes; see [`Trace`].
    pub digest: u64,
    /// How many writes there were.
    pub writes: u64,
    /// How much time passed in the cluster.
    pub simulated: Duration,
    /// Empty when all is well.
    pub violations: Vec<Violation>,
    /// What went wrong on purpose.
    pub faults: Vec<Fault>,
    /// The last writes.
    pub trace: Vec<String>,
}

/// Faults go on for so long after the last step.
const AFTERMATH: Duration = Duration::from_secs(30);
/// A cluster reaches what it must within this time after the end of faults.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// The same with a quota. A rollout that it holds up moves on by a pod for each retry of its replica set: the old pod that goes
/// makes room, which no event tells the new set, and the longest back-off of its queue is 1,000 s.
const CONVERGENCE_TIMEOUT_WITH_QUOTA: Duration = Duration::from_secs(6 * 60 * 60);
/// A cluster that has reached it is watched for so long.
const SETTLED: Duration = Duration::from_secs(10 * 60);
/// With a quota, pods that were refused come late, when others have gone: a cluster rests when none was created for so long, the
/// longest back-off of a queue.
const NO_LATE_POD: Duration = Duration::from_secs(1_020);
/// Writes of a settled cluster in that time, beside leases, events and the status of nodes.
const SETTLED_WRITES: u64 = 10;
/// Violations that are kept.
const KEPT: usize = 50;

/// Runs a seed.
///
/// # Errors
/// When the runtime or the cluster cannot be started.
pub fn run(settings: &Settings, subject: &dyn Subject) -> Result<Outcome, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .map_err(|error| format!("cannot start a runtime: {error}"))?;
    runtime.block_on(simulate(settings, subject))
}

/// What the observer of the store finds.
#[derive(Debug, Default)]
struct Findings {
    laws: Laws,
    trace: Trace,
    violations: Vec<Violation>,
    /// Writes that a settled cluster has no reason for.
    busy: Vec<String>,
    /// When the last pod was created, in milliseconds.
    last_pod_millis: u64,
}

impl Findings {
    fn add(&mut self, at_millis: u64, text: String) {
        if self.violations.len() < KEPT {
            self.violations.push(Violation { at_millis, text });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Follows the store.
async fn observe(
    mut events: WatchStream,
    clock: SimulatedClock,
    faults: Arc<Faults>,
    findings: Arc<Mutex<Findings>>,
) {
    while let Some(batch) = events.next().await {
        let now = clock.elapsed_millis();
        let mut found = lock(&findings);
        faults.take_killed().into_iter().for_each(|at| found.laws.loop_killed(at));
        let batch = match batch.and_then(WatchBatch::all_readable) {
            Ok(batch) => batch,
            Err(error) => return found.add(now, format!("the store's watch ended: {error}")),
        };
        for event in &batch.events {
            let (object, broken) = found.laws.apply(now, event);
            if event.kv.version == 1 && event.kv.key.starts_with(PODS) {
                found.last_pod_millis = now;
            }
            found.trace.add(now, event, object.as_deref());
            let key = &event.kv.key;
            let regular = ["/leases/", "/events/", "/core/nodes/"].iter().any(|part| key.contains(part));
            if !regular && found.busy.len() < 1_000 {
                found.busy.push(key.to_string());
            }
            broken.into_iter().for_each(|text| found.add(now, text));
        }
    }
}

async fn simulate(settings: &Settings, subject: &dyn Subject) -> Result<Outcome, String> {
    let (clock, dice) = (SimulatedClock::start(), Dice::new(settings.seed));
    let options = MemoryOptions { clock: Arc::new(clock.clone()), inline: true, ..MemoryOptions::default() };
    let memory = Arc::new(MemoryStore::with_options(options).map_err(|error| error.to_string())?);
    let findings = Arc::new(Mutex::new(Findings::default()));
    let events = memory.watch("/registry/", 1).await.map_err(|error| error.to_string())?;
    let disk = FullDisk::default();
    let rates = match settings.scenario {
        Scenario::Churn(_) => Rates::NONE,
        _ => Rates::draw(&dice),
    };
    let faults =
        Arc::new(Faults::new(Dice::new(settings.seed ^ 0x6661_756c_7473), rates, settings.allowed.clone()));
    let observer = tokio::spawn(observe(events, clock.clone(), faults.clone(), findings.clone()));
    let ticking = memory.clone();
    let ticker = tokio::spawn(async move {
        while ticking.tick().await.is_ok() {
            sleep(Duration::from_millis(500)).await;
        }
    });
    let parts = Parts {
        clock: Arc::new(clock.clone()),
        random: Arc::new(SeededRandom::new(settings.seed ^ 0x006e_616d_6573)),
        store: Arc::new(SimulatedStore::new(
            memory.clone(),
            Dice::new(settings.seed ^ 0x0073_746f_7265),
            disk.clone(),
        )),
        interception: faults.clone(),
        nodes: settings.nodes,
    };
    panics::count();
    let panics = panics::counted();
    let mut run = Run {
        parts,
        subject,
        dice,
        faults: faults.clone(),
        findings: findings.clone(),
        clock: clock.clone(),
        disk,
        cluster: None,
    };
    run.start().await?;
    run.work(settings).await?;
    faults.end();
    run.settle().await;
    if panics::counted() > panics {
        let text = format!("{} panics", panics::counted() - panics);
        lock(&findings).add(clock.elapsed_millis(), text);
    }
    drop(run.cluster.take());
    memory.close().await;
    observer.abort();
    ticker.abort();
    let found = std::mem::take(&mut *lock(&findings));
    Ok(Outcome {
        digest: found.trace.digest(),
        writes: found.trace.events(),
        simulated: Duration::from_millis(clock.elapsed_millis()),
        violations: found.violations,
        faults: faults.list(),
        trace: found.trace.lines().map(str::to_owned).collect(),
    })
}

struct Run<'a> {
    parts: Parts,
    subject: &'a dyn Subject,
    dice: Dice,
    faults: Arc<Faults>,
    findings: Arc<Mutex<Findings>>,
    clock: SimulatedClock,
    disk: FullDisk,
    cluster: Option<Box<dyn SimulatedCluster>>,
}

impl Run<'_> {
    async fn start(&mut self) -> Result<(), String> {
        // The former one ends before the next begins.
        self.cluster = None;
        self.cluster = Some(self.subject.start(self.parts.clone()).await?);
        Ok(())
    }

    fn fail(&self, text: String) {
        lock(&self.findings).add(self.clock.elapsed_millis(), text);
    }

    /// Does what the scenario says, in its time.
    async fn work(&mut self, settings: &Settings) -> Result<(), String> {
        let begin = Instant::now() + Duration::from_secs(5);
        for Step { at_millis, fault, action } in self.steps(settings).await? {
            sleep_until(begin + Duration::from_millis(at_millis)).await;
            if fault.is_none_or(|number| self.faults.disturbs(number, || format!("{action:?}"))) {
                self.act(action).await?;
            }
        }
        sleep(AFTERMATH).await;
        Ok(())
    }

    /// What is done, in the order of time; a scenario of objects begins with their creation.
    async fn steps(&self, settings: &Settings) -> Result<Vec<Step>, String> {
        let nodes = settings.nodes;
        let mut steps = match &settings.scenario {
            Scenario::Churn(time) => churn(&self.dice, nodes, *time),
            Scenario::Drawn => workload(&self.dice, nodes),
            Scenario::Objects(objects) => {
                for object in objects {
                    self.create(object).await?;
                }
                vec![]
            }
        };
        if !matches!(settings.scenario, Scenario::Churn(_)) {
            steps.extend(disturbances(&self.dice, nodes));
        }
        steps.sort_by_key(|step| step.at_millis);
        Ok(steps)
    }

    async fn create(&self, object: &Value) -> Result<(), String> {
        match &self.cluster {
            Some(cluster) => manifests::create(&cluster.client(), object).await,
            None => Ok(()),
        }
    }

    async fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Create(path, object) => {
                self.expect(Method::POST, path, "application/json", &object).await
            }
            Action::CreateServed(object) => {
                self.wait_for_room().await;
                if let Err(error) = self.create(&object).await {
                    self.fail(error);
                }
            }
            Action::Patch(path, patch) => self.patch(&path, &patch).await,
            Action::Delete(path, policy) => {
                let options = json!({"propagationPolicy": policy});
                self.expect(Method::DELETE, &path, "application/json", &options).await;
            }
            Action::Evict(app) => self.evict(&app).await,
            Action::NodeDown(node, failure) => self.annotate(&node, &json!(failure)).await,
            Action::NodeUp(node) => self.annotate(&node, &Value::Null).await,
            Action::Partition(node, seconds) => {
                self.faults.partition(&format!("kubelet/{node}"), Duration::from_secs(seconds));
            }
            Action::RestartLoops => {
                if let Some(cluster) = &mut self.cluster {
                    cluster.restart_control_loops();
                }
                self.loops_restarted();
            }
            Action::RestartServer => {
                self.wait_for_room().await;
                self.start().await?;
                self.loops_restarted();
            }
            Action::FullDisk(seconds) => {
                self.disk.fill(Duration::from_secs(seconds));
                let until = self.clock.elapsed_millis() + seconds * 1_000;
                lock(&self.findings).laws.disk_full_until(until);
            }
            Action::ClockStep(seconds) => {
                if seconds < 0 {
                    lock(&self.findings).laws.clock_stepped_back();
                }
                self.clock.step(seconds * 1_000);
            }
        }
        Ok(())
    }

    async fn patch(&self, path: &str, patch: &Value) {
        self.expect(Method::PATCH, path, "application/merge-patch+json", patch).await;
    }

    /// Says of a node how it is down, or with null that it is up.
    async fn annotate(&self, node: &str, value: &Value) {
        let patch = json!({"metadata": {"annotations": {"sim.kaji.dev/down": value}}});
        self.patch(&format!("/api/v1/nodes/{node}"), &patch).await;
    }

    fn loops_restarted(&self) {
        lock(&self.findings).laws.loops_restarted(self.clock.elapsed_millis());
    }

    async fn call(&self, method: Method, uri: &str, kind: &str, body: &Value) -> Result<Value, Error> {
        let Some(cluster) = &self.cluster else { return Ok(Value::Null) };
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let answer = cluster.client().call(method, uri, kind, body).await?;
        serde_json::from_slice(&answer).map_err(|error| Error::Decode(error.to_string()))
    }

    /// No server starts over a store without room.
    async fn wait_for_room(&self) {
        while self.disk.is_full() {
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// A call of the scenario, which has no reason to fail once there is room.
    async fn expect(&self, method: Method, uri: &str, kind: &str, body: &Value) {
        self.wait_for_room().await;
        if let Err(error) = self.call(method.clone(), uri, kind, body).await {
            self.fail(format!("{method} {uri}: {error}"));
        }
    }

    /// Evicts one of an application's pods; a budget may refuse that.
    async fn evict(&self, app: &str) {
        let pods = format!("/api/v1/namespaces/default/pods?labelSelector=app%3D{app}");
        let Ok(list) = self.call(Method::GET, &pods, "application/json", &Value::Null).await else { return };
        let names: Vec<&str> = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|pod| pod["metadata"]["name"].as_str())
            .collect();
        let Some(name) = names.get(usize::try_from(self.dice.below(names.len() as u64)).unwrap_or(0)) else {
            return;
        };
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}});
        let uri = format!("/api/v1/namespaces/default/pods/{name}/eviction");
        match self.call(Method::POST, &uri, "application/json", &eviction).await {
            Err(error) if !matches!(error.code(), Some(404 | 409 | 429)) && !self.disk.is_full() => {
                self.fail(format!("eviction of {name}: {error}"))
            }
            _ => {}
        }
    }

    /// Whether a quota may let pods in that it has refused.
    fn awaits_late_pods(&self) -> bool {
        let found = lock(&self.findings);
        let since = Duration::from_millis(self.clock.elapsed_millis().saturating_sub(found.last_pod_millis));
        found.laws.objects().have_quota() && since < NO_LATE_POD
    }

    /// Waits for what the cluster must reach, and then watches that it rests.
    async fn settle(&self) {
        let has_quota = lock(&self.findings).laws.objects().have_quota();
        let timeout = if has_quota { CONVERGENCE_TIMEOUT_WITH_QUOTA } else { CONVERGENCE_TIMEOUT };
        let until = Instant::now() + timeout;
        let missing = loop {
            sleep(Duration::from_secs(15)).await;
            let mut missing = reached::missing(lock(&self.findings).laws.objects());
            if self.awaits_late_pods() {
                missing.push("pods are still created within the quota".to_owned());
            }
            if missing.is_empty() || Instant::now() >= until {
                break missing;
            }
        };
        let stuck = !missing.is_empty();
        missing.into_iter().for_each(|text| self.fail(format!("not reached: {text}")));
        if stuck {
            return;
        }
        // Counters and statuses that follow the last change.
        sleep(Duration::from_secs(60)).await;
        lock(&self.findings).busy.clear();
        sleep(SETTLED).await;
        let busy = std::mem::take(&mut lock(&self.findings).busy);
        if busy.len() as u64 > SETTLED_WRITES {
            let keys: BTreeSet<&String> = busy.iter().collect();
            self.fail(format!("{} writes in {SETTLED:?} of rest: {keys:?}", busy.len()));
        }
        let missing = reached::missing(lock(&self.findings).laws.objects());
        missing.into_iter().for_each(|text| self.fail(format!("reached, and lost again: {text}")));
    }
}
