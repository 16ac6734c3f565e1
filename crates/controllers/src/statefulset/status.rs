//! A stateful set's status out of its pods, and what is measured of it: upstream's names, labels and texts.
//!
//! Source: upstream's `pkg/controller/statefulset/metrics`. `stale_sync_skips_total` is not here: no sync is skipped, since a worker waits
//! for its own writes.

use super::{identity::ordinal, max_unavailable};
use crate::shared::history::HASH_LABEL;
use kaji_runtime::{
    Metric, ObjectSnapshot, Sample,
    objects::{Pod, StatefulSet, StatefulSetStatus, Workload},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const LABELS: &[&str] = &["statefulset_namespace", "statefulset_name", "pod_management_policy"];

static MAX_UNAVAILABLE: Metric = Metric::gauge(
    "statefulset_controller_statefulset_max_unavailable",
    "[ALPHA] Maximum number of unavailable pods allowed during StatefulSet rolling updates",
    LABELS,
);
static UNAVAILABLE: Metric = Metric::gauge(
    "statefulset_controller_statefulset_unavailable_replicas",
    "[ALPHA] Current number of unavailable pods in StatefulSet",
    LABELS,
);

/// The metrics of the controller.
pub static METRICS: [&Metric; 2] = [&MAX_UNAVAILABLE, &UNAVAILABLE];

/// The status; a rolling update that is through makes the update's revision the current one.
pub fn of(
    set: &StatefulSet,
    pods: &[Arc<Pod>],
    current: &str,
    update: &str,
    now: jiff::Timestamp,
) -> StatefulSetStatus {
    let ready = |p: &&Arc<Pod>| p.status.phase == "Running" && p.ready();
    let count = |keep: &dyn Fn(&&Arc<Pod>) -> bool| {
        i64::try_from(pods.iter().filter(|p| keep(p)).count()).unwrap_or(0)
    };
    let of_revision = |p: &&Arc<Pod>, name: &str| {
        !p.metadata.deleting() && p.metadata.labels.get(HASH_LABEL).is_some_and(|r| r == name)
    };
    let mut status = StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: count(&|_| true),
        ready_replicas: count(&|p| ready(p)),
        available_replicas: count(&|p| ready(p) && p.available(set.spec.min_ready_seconds, now)),
        current_replicas: count(&|p| of_revision(p, current)),
        updated_replicas: count(&|p| of_revision(p, update)),
        current_revision: current.to_owned(),
        update_revision: update.to_owned(),
        collision_count: Some(set.status.collision_count.unwrap_or(0)),
    };
    let wanted = set.replicas();
    let through =
        [status.updated_replicas, status.ready_replicas, status.replicas].iter().all(|n| *n == wanted);
    if through && set.spec.update_strategy.kind == "RollingUpdate" {
        status.current_replicas = status.updated_replicas;
        status.current_revision.clone_from(&status.update_revision);
    }
    status
}

/// How long it takes until the next ready pod has been ready for `minReadySeconds`.
pub fn next_availability(set: &StatefulSet, pods: &[Arc<Pod>], now: jiff::Timestamp) -> Duration {
    let patience = set.spec.min_ready_seconds;
    let ready =
        |p: &Pod| p.condition("Ready").filter(|c| c.status == "True").and_then(|c| c.last_transition_time);
    let due = pods.iter().filter(|p| !p.available(patience, now)).filter_map(|p| ready(p));
    let due = due.filter_map(|since| jiff::Timestamp::from_second(since.as_second() + patience).ok()).min();
    let left = due.and_then(|due| Duration::try_from(due.duration_since(now)).ok());
    left.unwrap_or(Duration::from_secs(u64::try_from(patience).unwrap_or(0)))
}

/// What is to be written, if anything.
pub fn patch(set: &StatefulSet, status: &StatefulSetStatus) -> Option<Value> {
    let some = |n: i64| (n != 0).then_some(n);
    (*status != set.status).then(|| {
        json!({
            "observedGeneration": some(status.observed_generation),
            "replicas": status.replicas,
            "readyReplicas": some(status.ready_replicas),
            "currentReplicas": some(status.current_replicas),
            "updatedReplicas": some(status.updated_replicas),
            "availableReplicas": status.available_replicas,
            "currentRevision": status.current_revision,
            "updateRevision": status.update_revision,
            "collisionCount": status.collision_count,
        })
    })
}

/// The replicas of each set that are missing, not available or being deleted, and how many may be.
pub fn gauges(
    sets: &ObjectSnapshot<StatefulSet>,
    pods: &ObjectSnapshot<Pod>,
    now: jiff::Timestamp,
) -> Vec<Sample> {
    let of_set = |set: &StatefulSet| {
        let meta = &set.metadata;
        let range = set.start()..set.start() + set.replicas();
        let available = pods.owned_by(&meta.uid).filter(|pod| {
            ordinal(set, &pod.metadata).is_some_and(|number| range.contains(&number))
                && pod.available(set.spec.min_ready_seconds, now)
                && !pod.metadata.deleting()
        });
        let replicas = usize::try_from(set.replicas()).unwrap_or(0);
        let unavailable = replicas.saturating_sub(available.count());
        let policy = &set.spec.pod_management_policy;
        let labels = || [&meta.namespace, &meta.name, policy].map(|value| value.clone().into());
        let most = max_unavailable(set);
        [MAX_UNAVAILABLE.sample(labels(), most as f64), UNAVAILABLE.count(labels(), unavailable)]
    };
    sets.iter().flat_map(|set| of_set(set)).collect()
}
