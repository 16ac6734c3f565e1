//! Horizontal pod autoscaling: replicas of whatever has a scale subresource follow metrics.
//!
//! An autoscaler has a turn when it is new, when its spec has changed, and every period: it reads the scale of its target and
//! its metrics (`sources`), computes what each metric asks for (`proposal`, `calculator`), stabilizes and limits the greatest
//! of them (`behaviour`), changes the scale and says in its status what it did (`turn`).
//!
//! Invariants:
//! - A target with zero replicas is not scaled unless its autoscaler scaled it to zero, which the condition `ScaledToZero`
//!   records; zero replicas that a user sets turn autoscaling off.
//! - A target beyond its bounds is brought within them without metrics.
//! - A turn sees the status that the turn before it wrote.
//! - Nothing is scaled while pods of a target are another autoscaler's as well.
//! - A change of the scale names the version that was read, or is made from a new reading.
//!
//! Source: upstream's `pkg/controller/podautoscaler`; reasons and texts are those that users see there.

mod behaviour;
mod calculator;
mod metrics;
mod proposal;
mod sources;
mod turn;

use crate::{
    ControllerContext, Descriptor, Start,
    shared::{
        discovery,
        workers::{self, Works},
    },
};
use behaviour::{Bounds, History, normalize};
use calculator::{Pods, StartPeriods, Tolerances};
use futures_util::{StreamExt, stream};
use jiff::SignedDuration;
use kaji_meta::labels::Selector;
use kaji_runtime::{
    Change, Client, ControllerMetrics, Error, EventRecord, Informer, Informers, Key, Observed, PatchKind,
    Recorder, Shared,
    client::Target,
    metrics::Gauges,
    objects::{HorizontalPodAutoscaler, Pod},
    queue::Queue,
};
pub use metrics::METRICS;
use proposal::Scaled;
use serde_json::{Value, json};
use sources::Sources;
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};
use turn::{ABLE, ACTIVE, LIMITED, Turn};

const COMPONENT: &str = "horizontal-pod-autoscaler";
/// Metrics of an autoscaler that are read at once.
const PARALLEL: usize = 4;
/// How often a scale is written that other writers change meanwhile.
const TRIES: usize = 5;
/// Autoscalers of the same pods that a message names.
const NAMED: usize = 2;
/// How long a turn waits until the informer shows the status that the turn before it wrote.
const CATCH_UP: Duration = Duration::from_secs(1);
const ABOVE_MAX: &str = "Current number of replicas above Spec.MaxReplicas";
const BELOW_MIN: &str = "Current number of replicas below Spec.MinReplicas";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "horizontal-pod-autoscaler-controller",
    components: &[COMPONENT],
    service_account: Some("horizontal-pod-autoscaler"),
    workers: None,
    start: Start::Tasks(spawn),
};

/// How replicas are scaled: upstream's flags of the same names.
#[derive(Clone, Debug, PartialEq)]
pub struct AutoscalerConfig {
    /// `--concurrent-horizontal-pod-autoscaler-syncs`
    pub workers: usize,
    /// `--horizontal-pod-autoscaler-sync-period`
    pub sync_period: Duration,
    /// `--horizontal-pod-autoscaler-downscale-stabilization`
    pub downscale_stabilization: Duration,
    /// `--horizontal-pod-autoscaler-tolerance`
    pub tolerance: f64,
    /// `--horizontal-pod-autoscaler-cpu-initialization-period`
    pub cpu_initialization_period: Duration,
    /// `--horizontal-pod-autoscaler-initial-readiness-delay`
    pub initial_readiness_delay: Duration,
}

impl Default for AutoscalerConfig {
    fn default() -> AutoscalerConfig {
        AutoscalerConfig {
            workers: 5,
            sync_period: Duration::from_secs(15),
            downscale_stabilization: Duration::from_secs(300),
            tolerance: 0.1,
            cpu_initialization_period: Duration::from_secs(300),
            initial_readiness_delay: Duration::from_secs(30),
        }
    }
}

/// What is remembered of an autoscaler from its addition to its deletion.
struct Kept {
    history: History,
    /// Of its target's pods, as last read.
    selector: Selector,
    /// The revision of the status that was written last, until the informer shows it.
    wrote: Option<u64>,
}

struct Autoscalers {
    client: Client,
    shared: Shared,
    config: AutoscalerConfig,
    queue: Queue,
    recorder: Recorder,
    sources: Sources,
    autoscalers: Arc<Informer<HorizontalPodAutoscaler>>,
    pods: Arc<Informer<Pod>>,
    /// Ordered, so that those of a namespace are together.
    kept: Mutex<BTreeMap<Key, Kept>>,
    metrics: ControllerMetrics,
    /// Held for the pages of metrics, which read them.
    _gauges: Gauges,
}

/// Starts the controller.
fn spawn(tasks: &mut JoinSet<()>, context: ControllerContext<'_>) {
    let ControllerContext { informers, shared, config, stop } = context;
    let autoscalers = Arc::new(Autoscalers::new(informers, shared, &config.autoscaler));
    let seen = Arc::downgrade(&autoscalers);
    autoscalers.autoscalers.handle(move |change| {
        if let Some(seen) = seen.upgrade() {
            seen.changed(change);
        }
    });
    let workers = autoscalers.config.workers;
    tasks.spawn(workers::run(autoscalers, workers, std::future::pending(), stop));
}

impl Works for Autoscalers {
    fn queue(&self) -> &Queue {
        &self.queue
    }

    async fn handle(&self, key: &Key) {
        self.pods.synced().await;
        if !self.caught_up(key).await {
            metrics::skipped(&self.metrics);
            self.queue.add_after(key.clone(), self.config.sync_period);
            return;
        }
        let Some(hpa) = self.autoscalers.snapshot().by_key(key).cloned() else { return };
        self.take_turn(&hpa, key).await;
        self.queue.add_after(key.clone(), self.config.sync_period);
    }
}

/// The scale of a target.
struct Scale {
    target: Target,
    object: Value,
}

impl Scale {
    fn replicas(&self, of: &str) -> i64 {
        self.object.pointer(of).and_then(Value::as_i64).unwrap_or(0)
    }

    fn selector(&self) -> &str {
        self.object.pointer("/status/selector").and_then(Value::as_str).unwrap_or_default()
    }
}

/// What a turn decides about the scale: replicas, and why.
type Decision = Option<(i64, String)>;

impl Autoscalers {
    fn new(informers: &Informers, shared: &Shared, config: &AutoscalerConfig) -> Autoscalers {
        let client = shared.client.named(COMPONENT);
        let autoscalers = informers.get::<HorizontalPodAutoscaler>();
        let (metrics, counted) = (informers.metrics().clone(), autoscalers.clone());
        metrics.declare(&METRICS);
        let gauges = metrics.gauges(move || metrics::gauges(&counted.snapshot()));
        Autoscalers {
            recorder: Recorder::start(client.clone(), COMPONENT, shared.clock.clone(), shared.random.clone()),
            sources: Sources::new(client.clone()),
            client,
            shared: shared.clone(),
            config: config.clone(),
            queue: informers.queue("horizontalpodautoscaler"),
            autoscalers,
            pods: informers.get::<Pod>(),
            kept: Mutex::default(),
            metrics,
            _gauges: gauges,
        }
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<Key, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is remembered of an autoscaler; `None` once it is deleted, so that a turn under way leaves nothing behind.
    fn with<T>(&self, key: &Key, change: impl FnOnce(&mut Kept) -> T) -> Option<T> {
        self.kept().get_mut(key).map(change)
    }

    fn remember(&self, key: &Key) {
        let new = || Kept { history: History::default(), selector: Selector::nothing(), wrote: None };
        self.kept().entry(key.clone()).or_insert_with(new);
    }

    /// A new autoscaler, and one with another spec, has its turn at once. Other changes are mostly this controller's own
    /// statuses: turns stay a period apart.
    fn changed(&self, change: &Change<HorizontalPodAutoscaler>) {
        let key = change.any().metadata.key();
        let generation = |hpa: Option<&Arc<HorizontalPodAutoscaler>>| hpa.map(|hpa| hpa.metadata.generation);
        if change.new.is_none() {
            self.kept().remove(&key);
        } else if generation(change.old.as_ref()) == generation(change.new.as_ref()) {
            self.queue.add_after(key, self.config.sync_period);
        } else {
            self.remember(&key);
            self.queue.add(key);
        }
    }

    /// Whether the informer shows the status that was written last. On an older one a turn would not know, say, that it was
    /// the turn before it that scaled the target to zero.
    async fn caught_up(&self, key: &Key) -> bool {
        let Some(wrote) = self.with(key, |kept| kept.wrote).flatten() else { return true };
        let seen = tokio::time::timeout(CATCH_UP, self.autoscalers.reached(wrote)).await.is_ok();
        if seen {
            self.with(key, |kept| kept.wrote = None);
        }
        seen
    }

    async fn take_turn(&self, hpa: &HorizontalPodAutoscaler, key: &Key) {
        let (now, began) = (self.shared.clock.now(), Instant::now());
        let mut turn = Turn::new(hpa, now);
        self.scale(key, &mut turn).await;
        if let Some(status) = turn.status() {
            let meta = &hpa.metadata;
            let target = Target::of::<HorizontalPodAutoscaler>(&meta.namespace, &meta.name);
            let body = json!({"metadata": {"uid": meta.uid}, "status": status});
            let kind = PatchKind::Merge.content_type();
            match self.client.patch(&target.subresource("status"), kind, "", &body).await {
                Ok(written) => {
                    let revision = written.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                    self.with(key, |kept| kept.wrote = revision.and_then(|r| r.parse().ok()));
                }
                // It was deleted meanwhile.
                Err(error) if error.not_found() => {}
                Err(error) => {
                    turn.failed(metrics::INTERNAL);
                    turn.warn("FailedUpdateStatus", error.to_string());
                }
            }
        }
        metrics::turn_taken(&self.metrics, turn.action, turn.failure, began.elapsed());
        turn.events.drain(..).for_each(|event: EventRecord| self.recorder.record(event));
    }

    async fn scale(&self, key: &Key, turn: &mut Turn<'_>) {
        let (hpa, now) = (turn.hpa, turn.now);
        let scale = match self.read_scale(hpa).await {
            Ok(scale) => scale,
            Err(error) => {
                let message =
                    format!("the HPA controller was unable to get the target's current scale: {error}");
                turn.failed(match hpa.spec.scale_target_ref.api_version.matches('/').count() {
                    0 | 1 => metrics::INTERNAL,
                    _ => metrics::SPEC,
                });
                turn.warn("FailedGetScale", error);
                turn.condition(ABLE, false, "FailedGetScale", message);
                return;
            }
        };
        let message = "the HPA controller was able to get the target's current scale";
        turn.condition(ABLE, true, "SucceededGetScale", message);
        let (min, max) = (hpa.spec.min_replicas.unwrap_or(1), hpa.spec.max_replicas);
        let bounds = Bounds { min, max, current: scale.replicas("/spec/replicas") };
        let current = bounds.current;
        self.with(key, |kept| kept.history.begin(current, now));
        turn.saw(current);
        let decision = if current == 0 && !turn.leaves_zero(min) {
            let message = "scaling is disabled since the replica count of the target is zero";
            turn.condition(ACTIVE, false, "ScalingDisabled", message);
            turn.desired = 0;
            None
        } else if current > max {
            Some((max, ABOVE_MAX.to_owned()))
        } else if current != 0 && current < min {
            Some((min, BELOW_MIN.to_owned()))
        } else {
            self.decide(key, &scale, bounds, turn).await
        };
        if let Some((desired, why)) = decision {
            self.rescale(key, scale, (current, desired), &why, turn).await;
        }
    }

    /// What the metrics ask for, limited and stabilized; `None` leaves the scale as it is.
    async fn decide(&self, key: &Key, scale: &Scale, bounds: Bounds, turn: &mut Turn<'_>) -> Decision {
        let (hpa, now) = (turn.hpa, turn.now);
        let pods = match self.select(key, scale.selector(), turn) {
            Ok(pods) => pods,
            Err(error) => {
                turn.failed(metrics::INTERNAL);
                turn.warn("FailedComputeMetricsReplicas", error);
                return None;
            }
        };
        let proposals = {
            let scaled = Scaled {
                namespace: &key.namespace,
                selector: scale.selector(),
                pods: Pods { pods: &pods, periods: self.periods(), now },
                spec_replicas: bounds.current,
                status_replicas: scale.replicas("/status/replicas"),
                tolerances: self.tolerances(hpa),
            };
            let mut proposals = Vec::with_capacity(hpa.spec.metrics.len());
            for spec in &hpa.spec.metrics {
                let proposal = scaled.propose(spec, &self.sources);
                proposals.push(async move {
                    let began = Instant::now();
                    let proposal = proposal.await;
                    let of = (spec, hpa.status.current_replicas);
                    metrics::computed(&self.metrics, of, &proposal, began.elapsed());
                    proposal
                });
            }
            stream::iter(proposals).buffered(PARALLEL).collect().await
        };
        let (wanted, metric) = turn.combine(proposals, bounds.current)?;
        let window = SignedDuration::try_from(self.config.downscale_stabilization).unwrap_or_default();
        let behavior = hpa.spec.behavior.as_ref();
        let done =
            self.with(key, |kept| normalize(&mut kept.history, behavior, bounds, wanted, window, now))?;
        turn.condition(ABLE, true, done.able.0, done.able.1);
        turn.condition(LIMITED, done.limited, done.limit.0, done.limit.1);
        // From zero, rates of change do not keep the target below its least number.
        let raised = bounds.current == 0 && done.replicas < bounds.min;
        let replicas = if raised { bounds.min } else { done.replicas };
        if replicas == bounds.current {
            turn.desired = bounds.current;
            return None;
        }
        let why = match wanted.cmp(&bounds.current) {
            Ordering::Greater => format!("{metric} above target"),
            Ordering::Less => "All metrics below target".to_owned(),
            Ordering::Equal if raised => BELOW_MIN.to_owned(),
            Ordering::Equal => String::new(),
        };
        Some((replicas, why))
    }

    async fn rescale(
        &self,
        key: &Key,
        scale: Scale,
        (current, desired): (i64, i64),
        why: &str,
        turn: &mut Turn<'_>,
    ) {
        if let Err(error) = self.write_scale(scale, desired).await {
            turn.failed(metrics::INTERNAL);
            turn.warn("FailedRescale", format!("New size: {desired}; reason: {why}; error: {error}"));
            let message = format!("the HPA controller was unable to update the target scale: {error}");
            turn.condition(ABLE, false, "FailedUpdateScale", message);
            return;
        }
        let message = format!("the HPA controller was able to update the target scale to {desired}");
        turn.condition(ABLE, true, "SucceededRescale", message);
        turn.note("SuccessfulRescale", format!("New size: {desired}; reason: {why}"));
        turn.scaled_to(desired);
        turn.action = metrics::action(current, desired);
        if turn.hpa.spec.behavior.is_some() {
            self.with(key, |kept| kept.history.scaled(current, desired, turn.now));
        }
    }

    fn periods(&self) -> StartPeriods {
        let signed = |period| SignedDuration::try_from(period).unwrap_or(SignedDuration::MAX);
        StartPeriods {
            cpu_initialization: signed(self.config.cpu_initialization_period),
            initial_readiness: signed(self.config.initial_readiness_delay),
        }
    }

    fn tolerances(&self, hpa: &HorizontalPodAutoscaler) -> Tolerances {
        let behavior = hpa.spec.behavior.as_ref();
        let up = behavior.and_then(|b| b.scale_up.tolerance);
        let down = behavior.and_then(|b| b.scale_down.tolerance);
        let of = |own: Option<kaji_runtime::objects::Fraction>| own.map_or(self.config.tolerance, |t| t.0);
        Tolerances { up: of(up), down: of(down) }
    }

    /// The pods of a target, unless they are another autoscaler's as well.
    fn select(&self, key: &Key, selector: &str, turn: &mut Turn<'_>) -> Result<Vec<Arc<Pod>>, String> {
        if selector.is_empty() {
            let error = "selector is required";
            turn.warn("SelectorRequired", error);
            let message = "the HPA target's scale is missing a selector";
            turn.condition(ACTIVE, false, "InvalidSelector", message);
            return Err(error.into());
        }
        let mut refuse = |reason: &str, error: String| {
            turn.warn(reason, error.clone());
            turn.condition(ACTIVE, false, reason, error.clone());
            error
        };
        let parsed = Selector::parse(selector).map_err(|error| {
            let text = "couldn't convert selector into a corresponding internal selector object";
            refuse("InvalidSelector", format!("{text}: {error}"))
        })?;
        let snapshot = self.pods.snapshot();
        let all = snapshot.in_namespace(&key.namespace);
        let pods: Vec<Arc<Pod>> = all.filter(|pod| matches(&parsed, &pod.metadata.labels)).cloned().collect();
        if self.with(key, |kept| kept.selector = parsed).is_none() {
            return Err(format!("HPA {key} was deleted during reconciliation"));
        }
        let selecting = self.selecting(&key.namespace, &pods);
        if selecting.len() > 1 {
            let error = format!(
                "pods by selector {selector} are controlled by more than one HPA (e.g. [{}])",
                selecting.join(" ")
            );
            return Err(refuse("AmbiguousSelector", error));
        }
        Ok(pods)
    }

    /// The first autoscalers of a namespace with some of these pods, by name.
    fn selecting(&self, namespace: &str, pods: &[Arc<Pod>]) -> Vec<String> {
        // Pods of one template have the same labels.
        let labels: BTreeSet<&BTreeMap<String, String>> =
            pods.iter().map(|pod| &*pod.metadata.labels).collect();
        let kept = self.kept();
        let all = kept.range(Key::new(namespace, "")..).take_while(|(key, _)| key.namespace == namespace);
        let selecting = all.filter(|(_, kept)| labels.iter().any(|labels| matches(&kept.selector, labels)));
        selecting.take(NAMED).map(|(key, _)| key.to_string()).collect()
    }

    async fn read_scale(&self, hpa: &HorizontalPodAutoscaler) -> Result<Scale, String> {
        let reference = &hpa.spec.scale_target_ref;
        let group = match reference.api_version.split('/').collect::<Vec<_>>()[..] {
            [_] => "",
            [group, _] => group,
            _ => return Err(format!("unexpected GroupVersion string: {}", reference.api_version)),
        };
        let found = discovery::find_kind(&self.client, group, &reference.kind).await;
        let found = found.map_err(|error| error.to_string())?;
        let resource = found.ok_or_else(|| discovery::no_kind(group, &reference.kind))?;
        let target = resource.target(&hpa.metadata.namespace, &reference.name).subresource("scale");
        let object = self.client.get(&target.path()).await.map_err(|error: Error| error.to_string())?;
        Ok(Scale { target, object })
    }

    async fn write_scale(&self, mut scale: Scale, replicas: i64) -> Result<(), Error> {
        let mut last = Ok(());
        for _ in 0..TRIES {
            kaji_meta::object::set_at(&mut scale.object, &["spec", "replicas"], replicas);
            last = self.client.update(&scale.target, &scale.object).await.map(drop);
            match &last {
                Err(error) if error.conflict() => match self.client.get(&scale.target.path()).await {
                    Ok(object) => scale.object = object,
                    // The next try meets the conflict again, and that is reported.
                    Err(error) => tracing::debug!(%error, "a scale was not read after a conflict"),
                },
                _ => break,
            }
        }
        last
    }
}

fn matches(selector: &Selector, labels: &BTreeMap<String, String>) -> bool {
    selector.matches(|key| labels.get(key).map(String::as_str))
}

#[cfg(test)]
mod tests;
