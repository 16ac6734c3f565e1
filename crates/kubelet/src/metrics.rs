//! What a kubelet counts and times, for its pages of metrics.
//!
//! Invariants: the number of series is bounded; series of a pod end with it; labels are sorted by name, as upstream shows them.

pub(crate) mod families;
pub(crate) mod measured;

use crate::pods::memory_qos::Protected;
use families::{Counted, Timed};
use jiff::Timestamp;
use kaji_exposition::{Page, Sample};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Series of one set of metrics.
const MOST: usize = 20_000;

/// How often each bound was not exceeded, and the sum.
#[derive(Debug, Clone, Default)]
struct Distribution {
    /// By bucket; not cumulated.
    buckets: Vec<u64>,
    count: u64,
    sum: f64,
}

#[derive(Debug, Default)]
struct State {
    counters: BTreeMap<&'static str, (&'static Counted, BTreeMap<String, u64>)>,
    times: BTreeMap<&'static str, (&'static Timed, BTreeMap<String, Distribution>)>,
    series: usize,
    /// What is protected of the memory of pods, where cgroups are kept.
    protected: Option<Protected>,
}

/// A set of metrics.
#[derive(Debug, Default)]
pub struct KubeletMetrics {
    state: Mutex<State>,
    /// Seconds since the epoch when the runtime was listed last; 0 before.
    listed_at: AtomicI64,
    /// The same of the last graceful shutdown of the node.
    shutdown_began_at: AtomicI64,
    shutdown_ended_at: AtomicI64,
}

fn sorted(labels: &[(&str, &str)]) -> String {
    let mut labels = labels.to_vec();
    labels.sort_unstable();
    kaji_exposition::labels(&labels)
}

impl KubeletMetrics {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one.
    pub(crate) fn count(&self, what: &'static Counted, labels: &[(&str, &str)]) {
        let labels = sorted(labels);
        let mut state = self.state();
        let room = state.series < MOST;
        let (_, counts) = state.counters.entry(what.0.name).or_insert_with(|| (what, BTreeMap::new()));
        match counts.get_mut(&labels) {
            Some(count) => *count += 1,
            None if room => {
                counts.insert(labels, 1);
                state.series += 1;
            }
            None => {}
        }
    }

    /// Takes note of how long something took.
    pub(crate) fn observe(&self, what: &'static Timed, labels: &[(&str, &str)], took: Duration) {
        let (labels, seconds) = (sorted(labels), took.as_secs_f64());
        let mut state = self.state();
        let room = state.series < MOST;
        let (_, times) = state.times.entry(what.family.name).or_insert_with(|| (what, BTreeMap::new()));
        if !times.contains_key(&labels) {
            if !room {
                return;
            }
            let empty = Distribution { buckets: vec![0; what.buckets.len()], ..Distribution::default() };
            times.insert(labels.clone(), empty);
            state.series += 1;
        }
        let Some((_, times)) = state.times.get_mut(what.family.name) else { return };
        let Some(found) = times.get_mut(&labels) else { return };
        if let Some(bucket) = what.buckets.iter().position(|bound| seconds <= *bound) {
            found.buckets[bucket] += 1;
        }
        found.count += 1;
        found.sum += seconds;
    }

    /// The runtime was listed.
    pub(crate) fn relisted(&self, now: Timestamp) {
        self.listed_at.store(now.as_second(), Ordering::Relaxed);
    }

    /// When the last graceful shutdown of the node began and ended.
    pub(crate) fn shut_down(&self, began: Option<Timestamp>, ended: Option<Timestamp>) {
        // A time before the epoch is upstream's form of none.
        let seconds = |at: Option<Timestamp>| at.map_or(0, |at| at.as_second().max(0));
        self.shutdown_began_at.store(seconds(began), Ordering::Relaxed);
        self.shutdown_ended_at.store(seconds(ended), Ordering::Relaxed);
    }

    /// What is protected of the memory of pods.
    pub(crate) fn memory_protected(&self, protected: Protected) {
        self.state().protected = Some(protected);
    }

    /// Ends the series of a pod.
    pub(crate) fn forget_pod(&self, namespace: &str, name: &str) {
        let own = kaji_exposition::labels(&[("namespace", namespace), ("pod", name)]);
        let own = own.trim_start_matches('{').trim_end_matches('}').to_owned();
        let mut state = self.state();
        let is_other = |labels: &String| {
            // As whole labels: what follows is another one, or the end.
            labels
                .find(&own)
                .is_none_or(|at| !matches!(labels.as_bytes().get(at + own.len()), Some(b',' | b'}')))
        };
        state.counters.values_mut().for_each(|(_, counts)| counts.retain(|labels, _| is_other(labels)));
        state.times.values_mut().for_each(|(_, times)| times.retain(|labels, _| is_other(labels)));
        state.series = state.counters.values().map(|(_, counts)| counts.len()).sum::<usize>()
            + state.times.values().map(|(_, times)| times.len()).sum::<usize>();
    }

    /// Adds everything to a page.
    pub(crate) fn add(&self, page: &mut Page) {
        let listed_at = self.listed_at.load(Ordering::Relaxed);
        if listed_at != 0 {
            page.single(families::LISTED_AT, listed_at as f64);
        }
        let (began, ended) = (&self.shutdown_began_at, &self.shutdown_ended_at);
        let began = began.load(Ordering::Relaxed);
        // Sets of other subjects, probes for example, have none.
        if began != 0 {
            page.single(families::SHUTDOWN_BEGAN, began as f64);
            page.single(families::SHUTDOWN_ENDED, ended.load(Ordering::Relaxed) as f64);
        }
        let state = self.state();
        if let Some(protected) = state.protected {
            page.single(families::MEMORY_MIN, protected.min as f64);
            page.single(families::MEMORY_LOW, protected.low as f64);
        }
        for (what, counts) in state.counters.values() {
            let of = |(labels, count): (&String, &u64)| Sample {
                labels: labels.clone(),
                value: *count as f64,
                at: None,
            };
            page.family(what.0, counts.iter().map(of));
        }
        for (what, times) in state.times.values() {
            let all = times
                .iter()
                .map(|(labels, found)| (labels.as_str(), &*found.buckets, found.count, found.sum));
            page.histogram(what.family, what.buckets, all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::families::{PROBE_TIMES, PROBES, RUNTIME_OPERATIONS, STARTED_PODS};
    use super::*;

    #[test]
    fn counters_and_histograms_are_shown_and_end_with_their_pods() {
        let metrics = KubeletMetrics::default();
        metrics.count(&STARTED_PODS, &[]);
        for operation in ["version", "status", "version"] {
            metrics.count(&RUNTIME_OPERATIONS, &[("operation_type", operation)]);
        }
        for (pod, millis) in [("a", 1), ("a", 30), ("a", 20_000), ("ab", 5)] {
            let labels = [("pod", pod), ("probe_type", "Liveness"), ("container", "c"), ("namespace", "n")];
            metrics.observe(&PROBE_TIMES, &labels, Duration::from_millis(millis));
            metrics
                .count(&PROBES, &[labels.as_slice(), &[("result", "successful"), ("pod_uid", "u")]].concat());
        }
        let shown = || {
            let mut page = Page::default();
            metrics.add(&mut page);
            page.finish()
        };
        expect_test::expect![[r##"
            # HELP kubelet_runtime_operations_total [ALPHA] Cumulative number of runtime operations by operation type.
            # TYPE kubelet_runtime_operations_total counter
            kubelet_runtime_operations_total{operation_type="status"} 1
            kubelet_runtime_operations_total{operation_type="version"} 2
            # HELP kubelet_started_pods_total [ALPHA] Cumulative number of pods started
            # TYPE kubelet_started_pods_total counter
            kubelet_started_pods_total 1
            # HELP prober_probe_duration_seconds [ALPHA] Duration in seconds for a probe response.
            # TYPE prober_probe_duration_seconds histogram
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="a",probe_type="Liveness",le="0.005"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="a",probe_type="Liveness",le="0.01"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="a",probe_type="Liveness",le="0.025"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="a",probe_type="Liveness",le="0.05"} 2
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="a",probe_type="Liveness",le="0.1"} 2
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="a",probe_type="Liveness",le="0.25"} 2
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="a",probe_type="Liveness",le="0.5"} 2
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="a",probe_type="Liveness",le="1"} 2
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="a",probe_type="Liveness",le="2.5"} 2
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="a",probe_type="Liveness",le="5"} 2
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="a",probe_type="Liveness",le="10"} 2
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="a",probe_type="Liveness",le="+Inf"} 3
            prober_probe_duration_seconds_sum{container="c",namespace="n",pod="a",probe_type="Liveness"} 20.031
            prober_probe_duration_seconds_count{container="c",namespace="n",pod="a",probe_type="Liveness"} 3
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="ab",probe_type="Liveness",le="0.005"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="ab",probe_type="Liveness",le="0.01"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="ab",probe_type="Liveness",le="0.025"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="ab",probe_type="Liveness",le="0.05"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="ab",probe_type="Liveness",le="0.1"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="ab",probe_type="Liveness",le="0.25"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="ab",probe_type="Liveness",le="0.5"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="ab",probe_type="Liveness",le="1"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="ab",probe_type="Liveness",le="2.5"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="ab",probe_type="Liveness",le="5"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="ab",probe_type="Liveness",le="10"} 1
            prober_probe_duration_seconds_bucket{container="c",namespace="n",pod="ab",probe_type="Liveness",le="+Inf"} 1
            prober_probe_duration_seconds_sum{container="c",namespace="n",pod="ab",probe_type="Liveness"} 0.005
            prober_probe_duration_seconds_count{container="c",namespace="n",pod="ab",probe_type="Liveness"} 1
            # HELP prober_probe_total [BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.
            # TYPE prober_probe_total counter
            prober_probe_total{container="c",namespace="n",pod="a",pod_uid="u",probe_type="Liveness",result="successful"} 3
            prober_probe_total{container="c",namespace="n",pod="ab",pod_uid="u",probe_type="Liveness",result="successful"} 1
        "##]].assert_eq(&shown());
        metrics.forget_pod("n", "a");
        let left: Vec<String> = shown().lines().filter(|l| l.contains("pod=")).map(str::to_owned).collect();
        assert!(left.len() == 15 && left.iter().all(|line| line.contains("pod=\"ab\"")), "{left:?}");
        assert_eq!(metrics.state().series, 5);
    }

    #[test]
    fn series_are_bounded() {
        let metrics = KubeletMetrics::default();
        for index in 0..MOST + 10 {
            metrics.count(&RUNTIME_OPERATIONS, &[("operation_type", &index.to_string())]);
        }
        metrics.observe(&PROBE_TIMES, &[], Duration::ZERO);
        metrics.count(&RUNTIME_OPERATIONS, &[("operation_type", "0")]);
        let state = metrics.state();
        assert_eq!(state.series, MOST);
        assert_eq!(state.counters[RUNTIME_OPERATIONS.0.name].1["{operation_type=\"0\"}"], 2);
    }

    #[test]
    fn protected_memory_is_shown_once_it_is_known() {
        let metrics = KubeletMetrics::default();
        metrics.memory_protected(Protected { min: 7, low: 5 });
        let mut page = Page::default();
        metrics.add(&mut page);
        let page = page.finish();
        let lines: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        let wanted =
            ["kubelet_memory_qos_node_memory_low_bytes 5", "kubelet_memory_qos_node_memory_min_bytes 7"];
        assert!(wanted.iter().all(|line| lines.contains(line)) && lines.len() == 2, "{page}");
    }

    #[test]
    fn the_last_shutdown_is_shown() {
        let metrics = KubeletMetrics::default();
        let shown = || {
            let mut page = Page::default();
            metrics.add(&mut page);
            let page = page.finish();
            page.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(shown(), "");
        metrics.shut_down(Some(Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(9)), None);
        assert_eq!(
            shown(),
            "kubelet_graceful_shutdown_end_time_seconds 0\nkubelet_graceful_shutdown_start_time_seconds 9"
        );
    }
}
