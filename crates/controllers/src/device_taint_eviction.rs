//! Deletes the pods that use allocated devices with `NoExecute` taints, of ResourceSlices and of DeviceTaintRules, once the shortest of
//! the tolerations that match has ended; and says in the status of each rule how far that is.
//!
//! Invariants:
//! - A pod is marked as the target of a disruption before it is deleted, and the delete names its uid.
//! - The time of a toleration runs from when the taint was added, so that a restart changes nothing.
//! - Keys with a namespace are pods, those without are rules.
//! - What is kept beside that (which deletions were announced, how many pods a rule has evicted since the start) is for events and
//!   messages alone, as upstream's.
//!
//! Source: upstream's `pkg/controller/devicetainteviction`, KEP-5055.

mod rule_status;
mod taints;

use crate::{
    Descriptor, Start, WorkersFlag,
    shared::{
        controller_ref::quiet,
        pods::{DELETION_BUCKETS, delete_pod, disruption_target},
    },
};
use jiff::SignedDuration;
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, Metric, Moment, ObjectSnapshot, PatchKind, Plan,
    Projection, Reconciler, View, Write,
    client::Target,
    objects::{DeviceTaintRule, Pod, ResourceClaim, ResourceSlice},
};
use serde_json::json;
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use taints::{Taints, consumers, results, users};

const COMPONENT: &str = "device-taint-eviction-controller";
const REASON: &str = "DeletionByDeviceTaintManager";
/// The longest wait without another look, so that no toleration overflows the timers.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

static DELETIONS: Metric = Metric::counter(
    "device_taint_eviction_controller_pod_deletions_total",
    "[ALPHA] Total number of Pods deleted by DeviceTaintEvictionController since its start.",
    &[],
);
static DELETION_DURATION: Metric = Metric::histogram(
    "device_taint_eviction_controller_pod_deletion_duration_seconds",
    "[ALPHA] Latency, in seconds, between the time when a device taint effect has been activated and a Pod's deletion via DeviceTaintEvictionController.",
    &[],
    DELETION_BUCKETS,
);

/// The metrics of the controller.
pub static METRICS: [&Metric; 2] = [&DELETIONS, &DELETION_DURATION];

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "device-taint-eviction-controller",
    components: &[COMPONENT],
    service_account: Some("device-taint-eviction-controller"),
    workers: Some(WorkersFlag { name: "concurrent-device-taint-eviction-syncs", default: 10 }),
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

/// The controller. Pods without claims of devices cost nothing.
fn controller(informers: &Arc<Informers>) -> Controller {
    let memory = Memory::default();
    let (of_pods, of_rules) = (memory.clone(), memory.clone());
    Controller::new(Evictions { memory }, informers)
        .reads::<ResourceSlice>(|_, _| vec![])
        .reads::<DeviceTaintRule>(|_, _| vec![])
        .reads::<ResourceClaim>(keys_of_claim)
        .reads::<Pod>(move |change, view| keys_of_pod(change, view, &of_pods))
        .reads::<ResourceSlice>(keys_of_slice)
        .reads::<DeviceTaintRule>(move |change, view| keys_of_rule(change, view, &of_rules))
}

fn key_of_rule(rule: &DeviceTaintRule) -> Key {
    Key::new("", rule.metadata.name.as_str())
}

/// The rules that evict users of a claim's devices.
fn evicting<'a>(
    rules: &'a ObjectSnapshot<DeviceTaintRule>,
    claim: &'a ResourceClaim,
) -> impl Iterator<Item = Key> + 'a {
    let concerns = move |rule: &&Arc<DeviceTaintRule>| {
        taints::evicts(&rule.spec.taint)
            && results(claim).any(|r| rule.spec.selects(&r.driver, &r.pool, &r.device))
    };
    rules.iter().filter(concerns).map(|rule| key_of_rule(rule))
}

/// The pods that use a claim, or did, and the rules about its devices.
fn keys_of_claim(change: &Change<ResourceClaim>, view: &View) -> Vec<Key> {
    let facts = |claim: &Arc<ResourceClaim>| {
        let allocated = results(claim).cloned().collect::<Vec<_>>();
        (claim.metadata.uid.clone(), claim.status.reserved_for.clone(), allocated)
    };
    if change.old.as_ref().map(facts) == change.new.as_ref().map(facts) {
        return vec![];
    }
    let rules = view.get::<DeviceTaintRule>();
    let claims = change.old.iter().chain(&change.new);
    let keys = claims.flat_map(|claim| consumers(claim).chain(evicting(&rules, claim)));
    keys.collect::<BTreeSet<Key>>().into_iter().collect()
}

/// A pod is looked at when it comes, goes, is bound, or gets its claims; the rules that it concerns as well.
fn keys_of_pod(change: &Change<Pod>, view: &View, memory: &Memory) -> Vec<Key> {
    let pod = change.any();
    if pod.spec.resource_claims.is_empty() {
        return vec![];
    }
    let facts = |pod: &Arc<Pod>| {
        let claims: Vec<String> = pod.device_claims().map(str::to_owned).collect();
        (pod.metadata.uid.clone(), pod.metadata.deleting(), pod.spec.node_name.clone(), claims)
    };
    if change.old.is_some() && change.old.as_ref().map(facts) == change.new.as_ref().map(facts) {
        return vec![];
    }
    let (rules, claims) = (view.get::<DeviceTaintRule>(), view.get::<ResourceClaim>());
    let key = pod.metadata.key();
    let live = change.new.as_ref().filter(|pod| !pod.metadata.deleting());
    let evicted = memory.left(&key, live.map(|pod| pod.metadata.uid.as_str()));
    let mut keys: BTreeSet<Key> = rules
        .iter()
        .filter(|rule| evicted.contains(&rule.metadata.uid))
        .map(|rule| key_of_rule(rule))
        .collect();
    for name in pod.device_claims() {
        let claim = claims.get(&pod.metadata.namespace, name);
        keys.extend(claim.iter().flat_map(|claim| evicting(&rules, claim)));
    }
    keys.insert(key);
    keys.into_iter().collect()
}

/// The users of a pool with slices that change, if it has, or had, taints that evict.
fn keys_of_slice(change: &Change<ResourceSlice>, view: &View) -> Vec<Key> {
    if change.old.as_ref().map(|s| &s.spec) == change.new.as_ref().map(|s| &s.spec) {
        return vec![];
    }
    let evicts =
        |slice: &Arc<ResourceSlice>| slice.spec.devices.iter().flat_map(|d| &d.taints).any(taints::evicts);
    let slices = view.get::<ResourceSlice>();
    let mut keys = BTreeSet::new();
    for slice in change.old.iter().chain(&change.new) {
        let (driver, pool) = (&*slice.spec.driver, &*slice.spec.pool.name);
        // Another generation of the pool puts taints of the others in force, or out of it.
        let term = ResourceSlice::pool_term(driver, pool);
        if evicts(slice) || slices.indexed(ResourceSlice::POOL, &term).any(evicts) {
            keys.extend(users(&view.get(), |r| *r.driver == *driver && *r.pool == *pool));
        }
    }
    keys.into_iter().collect()
}

/// A rule with another spec is looked at, and the users of its devices if it evicts, or did.
fn keys_of_rule(change: &Change<DeviceTaintRule>, view: &View, memory: &Memory) -> Vec<Key> {
    let facts = |rule: &Arc<DeviceTaintRule>| (rule.metadata.uid.clone(), rule.spec.clone());
    if change.old.is_some() && change.old.as_ref().map(facts) == change.new.as_ref().map(facts) {
        return vec![];
    }
    if let Some(old) = &change.old
        && change.new.as_ref().is_none_or(|new| new.metadata.uid != old.metadata.uid)
    {
        memory.lock().evicted.remove(&old.metadata.uid);
    }
    let mut keys = BTreeSet::from([key_of_rule(change.any())]);
    for rule in change.old.iter().chain(&change.new).filter(|rule| taints::evicts(&rule.spec.taint)) {
        keys.extend(users(&view.get(), |r| rule.spec.selects(&r.driver, &r.pool, &r.device)));
    }
    keys.into_iter().collect()
}

/// The deletion of a pod that was announced.
struct Deletion {
    uid: String,
    /// The uids of the rules that ask for it.
    rules: BTreeSet<String>,
    /// Whether it was requested: then it can not be cancelled, but the request may have to be repeated.
    requested: bool,
}

#[derive(Default)]
struct Remembered {
    /// Entries go with their pods.
    deletions: HashMap<Key, Deletion>,
    /// How many pods each rule has evicted, by its uid; entries go with their rules.
    evicted: HashMap<String, u64>,
}

/// What the loop remembers.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Remembered>>);

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes notice of what is there under a pod's name: the pod of this uid, or none that would run on. Counts a pod that was evicted;
    /// returns the uids of the rules that did it.
    fn left(&self, key: &Key, live: Option<&str>) -> BTreeSet<String> {
        let mut memory = self.lock();
        let same = |deletion: &Deletion| live == Some(deletion.uid.as_str());
        if memory.deletions.get(key).is_none_or(same) {
            return BTreeSet::new();
        }
        let Some(deletion) = memory.deletions.remove(key).filter(|d| d.requested) else {
            return BTreeSet::new();
        };
        for rule in &deletion.rules {
            *memory.evicted.entry(rule.clone()).or_default() += 1;
        }
        deletion.rules
    }
}

struct Evictions {
    memory: Memory,
}

impl Reconciler for Evictions {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &METRICS
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        if !key.namespace.is_empty() {
            return self.pod(view, key, cx);
        }
        let rules = view.get::<DeviceTaintRule>();
        let Some(rule) = rules.by_key(key) else { return Plan::nothing() };
        let evicted = self.memory.lock().evicted.get(&rule.metadata.uid).copied().unwrap_or_default();
        rule_status::plan(view, rule, evicted, cx.now)
    }
}

impl Evictions {
    fn pod(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let pods = view.get::<Pod>();
        let Some(pod) = pods.by_key(key).filter(|pod| !pod.metadata.deleting()) else {
            return Plan::nothing();
        };
        let uid = &pod.metadata.uid;
        let eviction = Taints::of(view).of_pod(pod, &view.get::<ResourceClaim>());
        let mut memory = self.memory.lock();
        let deletions = &mut memory.deletions;
        let Some(eviction) = eviction else {
            let announced = deletions.remove(key).is_some_and(|d| d.uid == *uid && !d.requested);
            let plan = Plan::nothing();
            return if announced { plan.event(event(pod, "Cancelling deletion")) } else { plan };
        };
        let left = Duration::try_from(eviction.at.duration_since(cx.now)).unwrap_or_default();
        let requested = left.is_zero() || deletions.get(key).is_some_and(|d| d.uid == *uid && d.requested);
        let late = cx.now.duration_since(eviction.at);
        deletions.insert(key.clone(), Deletion { uid: uid.clone(), rules: eviction.rules, requested });
        if left.is_zero() {
            return delete(pod, cx, late);
        }
        Plan::nothing().again_after(left.min(LONGEST_WAIT))
    }
}

fn event(pod: &Pod, what: &str) -> EventRecord {
    let about = pod.metadata.reference(&Pod::api_version(), Pod::KIND);
    EventRecord::normal(about, "DeviceTaintManagerEviction", what)
}

/// Marks the pod and deletes it, so long after the taint has taken effect.
fn delete(pod: &Pod, cx: &Cx<'_>, late: SignedDuration) -> Plan {
    let mut plan = Plan::nothing();
    if cx.failures.is_empty() {
        plan = plan.event(event(pod, "Marking for deletion"));
    }
    let marked = pod.condition("DisruptionTarget").is_some_and(|c| c.status == "True" && c.reason == REASON);
    if !marked {
        let message = "Device Taint manager: deleting due to NoExecute taint";
        let condition = disruption_target(&pod.metadata, true, Some(REASON), Some(message), cx.now);
        plan = plan.stage(vec![quiet(Write::Patch {
            target: Target::of::<Pod>(&pod.metadata.namespace, &pod.metadata.name).subresource("status"),
            kind: PatchKind::Strategic,
            body: json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}}),
        })]);
    }
    let write = delete_pod(pod);
    let deleted = Moment::Written(write.target().clone());
    plan.stage(vec![quiet(write)])
        .observe(deleted.clone(), DELETIONS.one([]))
        .observe_elapsed(deleted, DELETION_DURATION.sample([], late.as_secs_f64()))
}

#[cfg(test)]
mod tests;
