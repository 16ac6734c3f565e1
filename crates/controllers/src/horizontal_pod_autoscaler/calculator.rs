//! How many replicas a metric asks for. Pure.
//!
//! Values are milli-units throughout. Pods that are not ready, and pods without a value, are counted against the direction of
//! the change: as idle when replicas would grow, as busy when they would shrink.
//!
//! Invariants:
//! - Pods that fail, or are being deleted, never count.
//! - What is assumed of pods without a value never turns the direction of a change around.
//! - The result grows with the values.
//!
//! Source: upstream's `replica_calculator.go` and `metrics/utilization.go`.

use jiff::{SignedDuration, Timestamp};
use kaji_meta::quantity::Quantity;
use kaji_runtime::objects::{Amounts, Pod};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The value of a pod's metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PodMetric {
    /// Milli-units.
    pub value: i64,
    /// When it was measured.
    pub at: Timestamp,
    /// Over which time.
    pub window: SignedDuration,
}

impl PodMetric {
    /// A value that was not measured.
    fn assumed(value: i64) -> PodMetric {
        PodMetric { value, at: Timestamp::UNIX_EPOCH, window: SignedDuration::ZERO }
    }
}

/// Values by the names of pods.
pub type PodMetrics = BTreeMap<String, PodMetric>;

/// How far a ratio may be from one without a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerances {
    /// Below.
    pub down: f64,
    /// Above.
    pub up: f64,
}

impl Tolerances {
    fn contain(self, ratio: f64) -> bool {
        (1.0 - self.down..=1.0 + self.up).contains(&ratio)
    }
}

/// How young pods are treated.
#[derive(Clone, Copy, Debug)]
pub struct StartPeriods {
    /// For so long after a pod's start, CPU samples count only if they are wholly of the time that it was ready.
    pub cpu_initialization: SignedDuration,
    /// For so long after it, a change of readiness counts as the initial one.
    pub initial_readiness: SignedDuration,
}

/// The pods of a target at a moment.
pub struct Pods<'a> {
    /// All that the selector matches.
    pub pods: &'a [Arc<Pod>],
    /// How young ones are treated.
    pub periods: StartPeriods,
    /// The moment.
    pub now: Timestamp,
}

/// The outcome for a metric with utilization as its target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Utilized {
    /// Replicas that it asks for.
    pub replicas: i64,
    /// Percent of the requests.
    pub utilization: i64,
    /// The average value of a pod.
    pub average: i64,
}

/// The most replicas that a scale can carry.
const MOST: f64 = i32::MAX as f64;

fn whole(replicas: f64) -> i64 {
    if replicas.is_nan() { 0 } else { replicas.ceil().clamp(0.0, MOST) as i64 }
}

/// Pods by what their metrics are worth.
#[derive(Debug, Default, PartialEq)]
struct Groups {
    ready: usize,
    unready: BTreeSet<String>,
    missing: BTreeSet<String>,
    ignored: BTreeSet<String>,
}

impl Groups {
    fn of(pods: &Pods<'_>, metrics: &PodMetrics, resource: &str) -> Groups {
        let mut groups = Groups::default();
        for pod in pods.pods {
            let name = &pod.metadata.name;
            let group = if pod.metadata.deleting() || pod.status.phase == "Failed" {
                &mut groups.ignored
            } else if pod.status.phase == "Pending" {
                &mut groups.unready
            } else {
                match metrics.get(name) {
                    None => &mut groups.missing,
                    Some(metric) if resource == "cpu" && pods.starting(pod, metric) => &mut groups.unready,
                    Some(_) => {
                        groups.ready += 1;
                        continue;
                    }
                }
            };
            group.insert(name.clone());
        }
        groups
    }
}

impl Pods<'_> {
    /// Whether a CPU sample says more about a pod's start than about its load.
    fn starting(&self, pod: &Pod, metric: &PodMetric) -> bool {
        let (Some(ready), Some(started)) = (pod.condition("Ready"), pod.status.start_time) else {
            return true;
        };
        let changed = ready.last_transition_time.unwrap_or(Timestamp::UNIX_EPOCH);
        let after = |at: Timestamp, period| at.saturating_add(period).unwrap_or(Timestamp::MAX);
        let unready = ready.status == "False";
        if after(started, self.periods.cpu_initialization) > self.now {
            unready || metric.at < after(changed, metric.window)
        } else {
            // It has never been ready.
            unready && after(started, self.periods.initial_readiness) > changed
        }
    }

    fn require_any(&self) -> Result<(), String> {
        match self.pods.is_empty() {
            true => Err("no pods returned by selector while calculating replica count".into()),
            false => Ok(()),
        }
    }

    /// Replicas for a target in percent of the requests.
    ///
    /// # Errors
    /// There are no pods, no values of them, or a request is missing; the texts are upstream's.
    pub fn by_utilization(
        &self,
        mut metrics: PodMetrics,
        current: i64,
        target: i64,
        (resource, container): (&str, &str),
        tolerances: Tolerances,
    ) -> Result<Utilized, String> {
        self.require_any()?;
        let groups = self.group(&mut metrics, resource)?;
        let requests = requests(self.pods, container, resource)?;
        let first = utilization(&metrics, &requests, target)?;
        let assumed = |pod: &str| requests.get(pod).map_or(0, |r| r.saturating_mul(target.max(100)) / 100);
        let ratio = |metrics: &PodMetrics| utilization(metrics, &requests, target).map(|u| u.ratio);
        let change = Change { current, first: first.ratio, tolerances };
        let replicas = change.replicas(&groups, &mut metrics, ratio, assumed)?;
        Ok(Utilized { replicas, utilization: first.percent, average: first.average })
    }

    /// Replicas for a target that is a pod's average, and the average as it is. `resource` is `""` for what is no resource.
    ///
    /// # Errors
    /// There are no pods, or no values of them; the texts are upstream's.
    pub fn by_value(
        &self,
        mut metrics: PodMetrics,
        current: i64,
        target: i64,
        resource: &str,
        tolerances: Tolerances,
    ) -> Result<(i64, i64), String> {
        self.require_any()?;
        let groups = self.group(&mut metrics, resource)?;
        let usage = average(&metrics);
        let ratio = |metrics: &PodMetrics| Ok(average(metrics) as f64 / target as f64);
        let change = Change { current, first: usage as f64 / target as f64, tolerances };
        Ok((change.replicas(&groups, &mut metrics, ratio, |_| target)?, usage))
    }

    fn group(&self, metrics: &mut PodMetrics, resource: &str) -> Result<Groups, String> {
        let groups = Groups::of(self, metrics, resource);
        metrics.retain(|pod, _| !groups.ignored.contains(pod) && !groups.unready.contains(pod));
        match metrics.is_empty() {
            true => Err("did not receive metrics for targeted pods (pods might be unready)".into()),
            false => Ok(groups),
        }
    }

    /// Replicas for a target that is the value of the metric as a whole.
    ///
    /// # Errors
    /// There are no pods although there should be.
    pub fn by_ratio(&self, current: i64, ratio: f64, tolerances: Tolerances) -> Result<i64, String> {
        if current == 0 {
            return Ok(whole(ratio));
        }
        if tolerances.contain(ratio) {
            return Ok(current);
        }
        self.require_any().map_err(|error| format!("unable to calculate ready pods: {error}"))?;
        let ready = self.pods.iter().filter(|p| p.status.phase == "Running" && p.ready()).count();
        Ok(whole(ratio * ready as f64))
    }
}

/// Replicas for a metric as a whole with a target for each pod, and what falls to each pod at present.
pub fn per_pod(replicas: i64, usage: i64, target: i64, tolerances: Tolerances) -> (i64, i64) {
    let ratio = usage as f64 / (target as f64 * replicas as f64);
    let wanted = if tolerances.contain(ratio) { replicas } else { whole(usage as f64 / target as f64) };
    (wanted, (usage as f64 / replicas.max(1) as f64).ceil() as i64)
}

/// A change that the pods with values ask for.
struct Change {
    current: i64,
    first: f64,
    tolerances: Tolerances,
}

impl Change {
    fn replicas(
        &self,
        groups: &Groups,
        metrics: &mut PodMetrics,
        ratio: impl Fn(&PodMetrics) -> Result<f64, String>,
        assumed: impl Fn(&str) -> i64,
    ) -> Result<i64, String> {
        let first = self.first;
        let idle_unready = !groups.unready.is_empty() && first > 1.0;
        if !idle_unready && groups.missing.is_empty() {
            let unchanged = self.tolerances.contain(first);
            return Ok(if unchanged { self.current } else { whole(first * groups.ready as f64) });
        }
        for pod in &groups.missing {
            if first < 1.0 {
                metrics.insert(pod.clone(), PodMetric::assumed(assumed(pod)));
            } else if first > 1.0 {
                metrics.insert(pod.clone(), PodMetric::assumed(0));
            }
        }
        if idle_unready {
            metrics.extend(groups.unready.iter().map(|pod| (pod.clone(), PodMetric::assumed(0))));
        }
        let second = ratio(metrics)?;
        let turned = |one: bool, other: bool| one && other;
        if self.tolerances.contain(second)
            || turned(first < 1.0, second > 1.0)
            || turned(first > 1.0, second < 1.0)
        {
            return Ok(self.current);
        }
        let new = whole(second * metrics.len() as f64);
        if turned(second < 1.0, new > self.current) || turned(second > 1.0, new < self.current) {
            return Ok(self.current);
        }
        Ok(new)
    }
}

fn average(metrics: &PodMetrics) -> i64 {
    let total: i128 = metrics.values().map(|m| i128::from(m.value)).sum();
    let count = i128::try_from(metrics.len().max(1)).unwrap_or(1);
    i64::try_from(total / count).unwrap_or(i64::MAX)
}

struct Utilization {
    ratio: f64,
    percent: i64,
    average: i64,
}

fn utilization(
    metrics: &PodMetrics,
    requests: &BTreeMap<String, i64>,
    target: i64,
) -> Result<Utilization, String> {
    let known =
        metrics.iter().filter_map(|(pod, m)| Some((i128::from(m.value), i128::from(*requests.get(pod)?))));
    let (mut used, mut requested, mut count) = (0_i128, 0_i128, 0_i128);
    for (value, request) in known {
        (used, requested, count) = (used + value, requested + request, count + 1);
    }
    if requested == 0 {
        return Err("no metrics returned matched known pods".into());
    }
    let narrow = |n: i128| i64::try_from(n).unwrap_or(i64::MAX);
    let percent = narrow(used * 100 / requested).min(i64::from(i32::MAX));
    Ok(Utilization { ratio: percent as f64 / target as f64, percent, average: narrow(used / count.max(1)) })
}

fn amount(amounts: &Amounts, resource: &str) -> Option<i64> {
    let (_, text) = amounts.iter().find(|(name, _)| *name == resource)?;
    Some(Quantity::parse(text).ok()?.milli_value())
}

/// Resources that a pod as a whole may request.
fn for_whole_pods(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || resource.starts_with("hugepages-")
}

/// What each pod requests of a resource, or one of its containers.
fn requests(pods: &[Arc<Pod>], container: &str, resource: &str) -> Result<BTreeMap<String, i64>, String> {
    let of = |pod: &Arc<Pod>| {
        let for_whole = pod.spec.resources.requests.iter().any(|(name, _)| for_whole_pods(name));
        let request = if for_whole && container.is_empty() {
            request_of_pod(pod, resource)
        } else {
            request_of_containers(pod, container, resource)
        };
        Ok((pod.metadata.name.clone(), request?))
    };
    pods.iter().map(of).collect()
}

/// The request of a pod that has requests of its own, for some resource at least.
fn request_of_pod(pod: &Pod, resource: &str) -> Result<i64, String> {
    let own = amount(&pod.spec.resources.requests, resource).filter(|_| for_whole_pods(resource));
    let own = own.or_else(|| {
        let (mut sidecars, mut at_start) = (None, None);
        for container in &pod.spec.init_containers {
            let request = amount(&container.resources.requests, resource);
            if container.sidecar() {
                sidecars = plus(sidecars, request);
                at_start = at_start.max(sidecars);
            } else {
                at_start = at_start.max(plus(sidecars, request));
            }
        }
        let containers = pod.spec.containers.iter().map(|c| amount(&c.resources.requests, resource));
        containers.fold(sidecars, plus).max(at_start)
    });
    let overhead = amount(&pod.spec.overhead, resource);
    let name = &pod.metadata.name;
    own.map(|own| own + overhead.unwrap_or(0))
        .ok_or_else(|| format!("missing pod-level request for {resource} in Pod {name}"))
}

fn plus(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}

fn request_of_containers(pod: &Pod, container: &str, resource: &str) -> Result<i64, String> {
    let sidecars = pod.spec.init_containers.iter().filter(|c| c.sidecar());
    let name = &pod.metadata.name;
    let mut total = 0_i64;
    for one in pod.spec.containers.iter().chain(sidecars) {
        if container.is_empty() || container == &*one.name {
            let request = amount(&one.resources.requests, resource);
            let missing =
                || format!("missing request for {resource} in container {} of Pod {name}", one.name);
            total = total.saturating_add(request.ok_or_else(missing)?);
        }
        if container == &*one.name {
            return Ok(total);
        }
    }
    match container {
        "" => Ok(total),
        _ => Err(format!("container {container} not found in Pod {name}")),
    }
}

#[cfg(test)]
mod tests;
