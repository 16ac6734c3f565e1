//! What is measured of volumes and claims: upstream's names, labels and texts.
//!
//! Source: upstream's `pkg/controller/volume/persistentvolume/metrics`. `volume_operation_total_errors` is not here: it is deprecated,
//! and `volume_operation_errors_total` says the same.
//!
//! Invariant: an operation is remembered no longer than its claim is without a volume, or its volume is there.

use jiff::Timestamp;
use kaji_runtime::{
    Buckets, Key, Metric, Moment, ObjectSnapshot, Plan, Sample,
    metrics::Label,
    objects::{PersistentVolume, PersistentVolumeClaim},
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Where nothing is known of what makes or deletes a volume.
pub const NOT_AVAILABLE: &str = "N/A";

const OF_CLAIMS: &[&str] = &["namespace", "storage_class", "volume_attributes_class"];
const OF_OPERATION: &[&str] = &["plugin_name", "operation_name"];

static VOLUMES: Metric = Metric::gauge(
    "pv_collector_total_pv_count",
    "[ALPHA] Gauge measuring total number of persistent volumes",
    &["plugin_name", "volume_mode"],
);
static BOUND_VOLUMES: Metric = Metric::gauge(
    "pv_collector_bound_pv_count",
    "[ALPHA] Gauge measuring number of persistent volume currently bound",
    &["storage_class"],
);
static UNBOUND_VOLUMES: Metric = Metric::gauge(
    "pv_collector_unbound_pv_count",
    "[ALPHA] Gauge measuring number of persistent volume currently unbound",
    &["storage_class"],
);
static BOUND_CLAIMS: Metric = Metric::gauge(
    "pv_collector_bound_pvc_count",
    "[ALPHA] Gauge measuring number of persistent volume claim currently bound",
    OF_CLAIMS,
);
static UNBOUND_CLAIMS: Metric = Metric::gauge(
    "pv_collector_unbound_pvc_count",
    "[ALPHA] Gauge measuring number of persistent volume claim currently unbound",
    OF_CLAIMS,
);
static OPERATION_ERRORS: Metric =
    Metric::counter("volume_operation_errors_total", "[ALPHA] Total volume operation errors", OF_OPERATION);
static OPERATION_SECONDS: Metric = Metric::histogram(
    "volume_operation_total_seconds",
    "[BETA] Storage operation end to end duration in seconds",
    OF_OPERATION,
    Buckets::Bounds(&[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0]),
);
static ASSIGNED_CLASSES: Metric = Metric::counter(
    "retroactive_storageclass_total",
    "[ALPHA] Total number of retroactive StorageClass assignments to persistent volume claim",
    &[],
);
static CLASS_ERRORS: Metric = Metric::counter(
    "retroactive_storageclass_errors_total",
    "[ALPHA] Total number of failed retroactive StorageClass assignments to persistent volume claim",
    &[],
);

/// The metrics of the controller.
pub static METRICS: [&Metric; 9] = [
    &VOLUMES,
    &BOUND_VOLUMES,
    &UNBOUND_VOLUMES,
    &BOUND_CLAIMS,
    &UNBOUND_CLAIMS,
    &OPERATION_ERRORS,
    &OPERATION_SECONDS,
    &ASSIGNED_CLASSES,
    &CLASS_ERRORS,
];

/// The plug-in of a volume, of those that upstream's controller asks: they can delete or recycle volumes.
fn plugin(volume: &PersistentVolume) -> &'static str {
    match (&volume.spec.host_path, volume.spec.nfs) {
        (Some(_), _) => "kubernetes.io/host-path",
        (None, true) => "kubernetes.io/nfs",
        (None, false) => NOT_AVAILABLE,
    }
}

/// The volumes and claims that there are.
pub fn gauges(
    volumes: &ObjectSnapshot<PersistentVolume>,
    claims: &ObjectSnapshot<PersistentVolumeClaim>,
) -> Vec<Sample> {
    let mut kinds = BTreeMap::<(&str, &str), usize>::new();
    let mut classes = BTreeMap::<(bool, &str), usize>::new();
    for volume in volumes.iter() {
        let mode = volume.spec.volume_mode.as_deref().unwrap_or("Filesystem");
        *kinds.entry((plugin(volume), mode)).or_default() += 1;
        let class = volume.spec.storage_class_name.as_str();
        *classes.entry((volume.status.phase == "Bound", class)).or_default() += 1;
    }
    let mut of_claims = BTreeMap::<(bool, [&str; 3]), usize>::new();
    for claim in claims.iter() {
        let attributes = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
        let labels = [claim.metadata.namespace.as_str(), claim.class(), attributes];
        *of_claims.entry((claim.status.phase == "Bound", labels)).or_default() += 1;
    }
    let own = |text: &str| Label::from(text.to_owned());
    let kinds = kinds.into_iter().map(|((plugin, mode), n)| VOLUMES.count([own(plugin), own(mode)], n));
    let classes = classes.into_iter().map(|((bound, class), n)| {
        if bound { BOUND_VOLUMES.count([own(class)], n) } else { UNBOUND_VOLUMES.count([own(class)], n) }
    });
    let of_claims = of_claims.into_iter().map(|((bound, labels), n)| {
        let labels = labels.map(own);
        if bound { BOUND_CLAIMS.count(labels, n) } else { UNBOUND_CLAIMS.count(labels, n) }
    });
    kinds.chain(classes).chain(of_claims).collect()
}

/// Counts that a claim is given the default class.
pub fn class_assigned(plan: Plan) -> Plan {
    plan.observe(Moment::Succeeded, ASSIGNED_CLASSES.one([]))
        .observe(Moment::Failed, ASSIGNED_CLASSES.one([]))
        .observe(Moment::Failed, CLASS_ERRORS.one([]))
}

/// What is done to a volume outside of this controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is made for a claim.
    Provision,
    /// It is deleted.
    Delete,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Provision => "provision",
            Operation::Delete => "delete",
        }
    }
}

/// An operation that has not ended.
#[derive(Clone)]
struct Begun {
    plugin: Label,
    operation: Operation,
    at: Timestamp,
}

impl Begun {
    fn labels(&self) -> [Label; 2] {
        [self.plugin.clone(), self.operation.name().into()]
    }

    fn seconds(&self, now: Timestamp) -> Sample {
        let passed = now.duration_since(self.at).as_secs_f64();
        OPERATION_SECONDS.sample(self.labels(), passed.max(0.0))
    }
}

/// The operations that have not ended, by the key of the claim or the volume.
#[derive(Default)]
pub struct Operations(Mutex<HashMap<Key, Begun>>);

impl Operations {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Begun>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation is asked for, or was before.
    pub fn began(&self, key: &Key, plugin: &str, operation: Operation, now: Timestamp) {
        let begun = || Begun { plugin: plugin.to_owned().into(), operation, at: now };
        self.lock().entry(key.clone()).or_insert_with(begun);
    }

    /// There is nothing to wait for any more.
    pub fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// Counts that an operation failed; it goes on until it succeeds.
    pub fn failed(&self, plan: Plan, key: &Key, moment: Moment) -> Plan {
        match self.lock().get(key) {
            Some(begun) => plan.observe(moment, OPERATION_ERRORS.one(begun.labels())),
            None => plan,
        }
    }

    /// Measures an operation that has ended.
    pub fn ended(&self, plan: Plan, key: &Key, moment: Moment, now: Timestamp) -> Plan {
        match self.lock().remove(key) {
            Some(begun) => plan.observe(moment, begun.seconds(now)),
            None => plan,
        }
    }

    /// Measures the making of a volume for a claim, if it ends with this binding. If the binding fails it is still remembered; else it
    /// is forgotten when the claim is seen with its volume.
    pub fn bound(&self, plan: Plan, key: &Key, now: Timestamp) -> Plan {
        let Some(begun) = self.lock().get(key).cloned() else { return plan };
        plan.observe(Moment::Succeeded, begun.seconds(now))
            .observe(Moment::Failed, OPERATION_ERRORS.one(begun.labels()))
    }
}
