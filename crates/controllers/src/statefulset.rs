//! Stateful sets: pods with stable names and dedicated claims, one after another unless the policy is parallel.
//!
//! Invariants:
//! - A pod's claims exist before the pod does. Those that exist get the owners that the retention policy asks for beside the creation
//!   of the pod, while it is pending, and whenever it is looked at later.
//! - In order: pod n+1 is created only when pod n is ready; the highest goes first; one update at a time, or as many as
//!   `maxUnavailable` says.
//! - Without order, pods are written in batches that double in size; a failure in one keeps the later ones back.
//! - The present template has a controller revision before any pod is made of it; pods carry that revision's name.

mod batches;
mod identity;
mod status;

use crate::{
    Descriptor, Start, WorkersFlag,
    shared::{
        controller_ref::{claim, labels_differ, owner_keys, quiet, unchanged},
        history::{HASH_LABEL, History, Retention, Subject, template_of},
        pods::{delete_pod, namespace_terminating, status_patch},
    },
};
use identity::{claims, conflicting, identity_labels, ordinal, owners, pod_name, stale};
use kaji_meta::intstr::IntOrString;
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, Meta, Metric, ObjectSnapshot, PatchKind, Plan,
    Projection, Reconciler, Step, View, Write,
    client::Target,
    objects::{ControllerRevision, PersistentVolumeClaim, Pod, StatefulSet, Workload},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

/// The label that carries a revision's hash.
const REVISION_HASH_LABEL: &str = "controller.kubernetes.io/hash";
/// How long to wait for a claim that is being deleted.
const CLAIM_WAIT: Duration = Duration::from_secs(1);

const COMPONENT: &str = "statefulset-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "statefulset-controller",
    components: &[COMPONENT],
    service_account: Some("statefulset-controller"),
    workers: Some(WorkersFlag { name: "concurrent-statefulset-syncs", default: 5 }),
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

/// The stateful set controller.
fn controller(informers: &Arc<Informers>) -> Controller {
    let clock = informers.clock().clone();
    Controller::new(StatefulSets, informers)
        .reads::<StatefulSet>(|change, _| vec![change.any().metadata.key()])
        .reads::<Pod>(keys_of)
        .reads::<ControllerRevision>(keys_of)
        .reads::<PersistentVolumeClaim>(|_, _| vec![])
        .gauges(move |view| status::gauges(&view.get(), &view.get(), clock.now()))
}

/// The owners of what changed, and for an orphan those that may adopt it.
fn keys_of<T: Projection>(change: &Change<T>, view: &View) -> Vec<Key> {
    owner_keys::<StatefulSet, T>(change, view, selects, labels_differ)
}

fn selects(set: &StatefulSet, meta: &Meta) -> bool {
    !set.spec.selector.parsed.is_everything() && set.spec.selector.matches(&meta.labels)
}

struct StatefulSets;

impl Reconciler for StatefulSets {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "statefulset"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &status::METRICS
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let sets = view.get::<StatefulSet>();
        let Some(set) = sets.by_key(key) else { return Plan::nothing() };
        let meta = &set.metadata;
        let reference = meta.controller_ref(&StatefulSet::api_version(), StatefulSet::KIND);
        let all = view.get::<Pod>();
        let candidates = all.owned_by(&meta.uid).chain(all.orphans(&meta.namespace)).cloned();
        let claimed = claim(meta, &reference, |m| selects(set, m) && ordinal(set, m).is_some(), candidates);
        let (pods, plan) = claimed.into_plan(unchanged::<StatefulSet>(meta));
        if !plan.is_empty() {
            return plan;
        }
        let subject = Subject {
            meta,
            reference,
            template: &set.spec.template,
            collisions: set.status.collision_count,
            hash_label: REVISION_HASH_LABEL,
        };
        let (update, old) = match subject.history::<StatefulSet>(view, |m| selects(set, m)) {
            History::Open(_) if meta.deleting() => return Plan::nothing(),
            History::Open(plan) => return plan,
            History::Collision => {
                let count = set.status.collision_count.unwrap_or(0) + 1;
                return plan.then(status_patch::<StatefulSet>(meta, json!({"collisionCount": count})));
            }
            History::Settled { current, old } => (current, old),
        };
        let current = old.iter().find(|r| r.metadata.name == set.status.current_revision).unwrap_or(&update);
        let mut work = Work {
            set,
            now: cx.now,
            claims: view.get::<PersistentVolumeClaim>(),
            current: current.clone(),
            update: update.clone(),
            regarding: meta.reference(&StatefulSet::api_version(), StatefulSet::KIND),
            plan,
            units: vec![vec![]],
        };
        let status = status::of(set, &pods, &current.metadata.name, &update.metadata.name, cx.now);
        if let Some(body) = status::patch(set, &status) {
            work.plan = work.plan.then(status_patch::<StatefulSet>(meta, body));
        }
        if status.ready_replicas != status.available_replicas {
            work.again(status::next_availability(set, &pods, cx.now));
        }
        if !meta.deleting() && !cx.failures.iter().any(|f| namespace_terminating(&f.error)) {
            work.go(&pods);
        }
        let mut live: HashSet<&str> =
            pods.iter().filter_map(|p| p.metadata.labels.get(HASH_LABEL)).map(String::as_str).collect();
        live.insert(&current.metadata.name);
        let limit = set.spec.revision_history_limit.unwrap_or(10);
        work.plan.stage(Retention { limit, live: &live, label: REVISION_HASH_LABEL }.of_unused(&old))
    }
}

/// How many pods may be unavailable during an update: one at least.
fn max_unavailable(set: &StatefulSet) -> i64 {
    let rolling = set.spec.update_strategy.rolling_update.as_ref();
    let most = rolling.and_then(|rolling| IntOrString::from_value(&rolling.max_unavailable));
    most.and_then(|most| most.scaled_value(set.replicas(), false).ok()).unwrap_or(1).max(1)
}

/// Whether to go on with the next pod.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Go,
    Stop,
}

/// The work on one set.
struct Work<'a> {
    set: &'a StatefulSet,
    now: jiff::Timestamp,
    claims: ObjectSnapshot<PersistentVolumeClaim>,
    current: Arc<ControllerRevision>,
    update: Arc<ControllerRevision>,
    regarding: Value,
    plan: Plan,
    /// The stages of each pod since the last [`Work::flush`]; the last one is of the pod in progress.
    units: Vec<Vec<Vec<Step>>>,
}

impl Work<'_> {
    fn ordered(&self) -> bool {
        self.set.spec.pod_management_policy != "Parallel"
    }

    fn available(&self, pod: &Pod) -> bool {
        pod.available(self.set.spec.min_ready_seconds, self.now)
    }

    fn ready(pod: &Pod) -> bool {
        pod.status.phase == "Running" && pod.ready()
    }

    fn healthy(&self, pod: &Pod) -> bool {
        self.available(pod) && !pod.metadata.deleting()
    }

    /// Replicas from the first to the last, then those too many from the last to the first, then an update.
    fn go(&mut self, pods: &[Arc<Pod>]) {
        let numbered: BTreeMap<i64, &Arc<Pod>> =
            pods.iter().filter_map(|p| Some((ordinal(self.set, &p.metadata)?, p))).collect();
        let range = self.set.start()..self.set.start() + self.set.replicas();
        for number in range.clone() {
            let next = self.replica(number, numbered.get(&number).copied());
            self.units.push(vec![]);
            if next == Next::Stop && self.ordered() {
                return self.flush();
            }
        }
        self.flush();
        let condemned: Vec<&Arc<Pod>> =
            numbered.iter().rev().filter(|(n, _)| !range.contains(n)).map(|(_, p)| *p).collect();
        for pod in &condemned {
            self.retain(pod, false);
            self.units.push(vec![]);
        }
        self.flush();
        let replicas = numbered.range(range.clone()).map(|(_, pod)| *pod);
        let first_sick = replicas.chain(condemned.iter().rev().copied()).find(|p| !self.healthy(p));
        for pod in condemned {
            let next = self.condemned(pod, first_sick);
            self.units.push(vec![]);
            if next == Next::Stop && self.ordered() {
                return self.flush();
            }
        }
        if self.set.spec.update_strategy.kind != "OnDelete" {
            let replicas: Vec<_> = range.map(|number| (number, numbered.get(&number).copied())).collect();
            self.roll(&replicas);
        }
        self.flush();
    }

    /// Adds the stages of the pods so far to the plan.
    fn flush(&mut self) {
        let units = std::mem::replace(&mut self.units, vec![vec![]]);
        let stages = if self.ordered() { batches::one_by_one(units) } else { batches::doubling(units) };
        for stage in stages {
            self.plan = std::mem::take(&mut self.plan).stage(stage);
        }
    }

    fn replica(&mut self, number: i64, pod: Option<&Arc<Pod>>) -> Next {
        let Some(pod) = pod else { return self.create(number) };
        if pod.finished() {
            if !pod.metadata.deleting() {
                self.delete(pod);
            }
            return Next::Stop;
        }
        let pending = pod.status.phase == "Pending";
        if pending && self.create_claims(number) {
            self.retain(pod, true);
        }
        if self.ordered() {
            // When it becomes available is planned for with the status.
            if pod.metadata.deleting() || !Self::ready(pod) || !self.available(pod) {
                return Next::Stop;
            }
        }
        self.identify(number, pod);
        if !pending {
            self.retain(pod, false);
        }
        Next::Go
    }

    fn again(&mut self, wait: Duration) {
        self.plan = std::mem::take(&mut self.plan).again_after(wait);
    }

    /// Adds a stage of the pod in progress.
    fn stage(&mut self, steps: Vec<Step>) {
        if let Some(unit) = self.units.last_mut().filter(|_| !steps.is_empty()) {
            unit.push(steps);
        }
    }

    fn event(&self, verb: &str, pod: &str) -> (EventRecord, EventRecord) {
        let about = format!("{verb} Pod {pod} in StatefulSet {}", self.set.metadata.name);
        (
            EventRecord::normal(
                self.regarding.clone(),
                &format!("Successful{verb}"),
                format!("{about} successful"),
            ),
            EventRecord::warning(
                self.regarding.clone(),
                &format!("Failed{verb}"),
                format!("{about} failed error: {{error}}"),
            ),
        )
    }

    /// Creates the claims of a pod that are missing. Says whether the pod may be created.
    fn create_claims(&mut self, number: i64) -> bool {
        let namespace = &self.set.metadata.namespace;
        let (mut steps, mut free) = (vec![], true);
        for (_, name, body) in claims(self.set, number) {
            match self.claims.get(namespace, &name) {
                Some(claim) => free &= !claim.metadata.deleting(),
                None => {
                    let about = format!("Claim {name} Pod {}", pod_name(self.set, number));
                    let set = &self.set.metadata.name;
                    let good = format!("Create {about} in StatefulSet {set} success");
                    let bad = format!("Create {about} in StatefulSet {set} failed error: {{error}}");
                    steps.push(Step {
                        write: Write::Create {
                            target: Target::of::<PersistentVolumeClaim>(namespace, ""),
                            body,
                        },
                        on_success: Some(EventRecord::normal(
                            self.regarding.clone(),
                            "SuccessfulCreate",
                            good,
                        )),
                        on_failure: Some(EventRecord::warning(self.regarding.clone(), "FailedCreate", bad)),
                    });
                }
            }
        }
        self.stage(steps);
        free
    }

    fn create(&mut self, number: i64) -> Next {
        let namespace = self.set.metadata.namespace.clone();
        let name = pod_name(self.set, number);
        // A claim that a former pod of this name owns is about to go.
        let future = Pod { metadata: Meta { name: name.clone(), ..Meta::default() }, ..Pod::default() };
        let leaving = claims(self.set, number).iter().any(|(_, claim, _)| {
            self.claims.get(&namespace, claim).is_some_and(|c| stale::<Pod>(c, &future.metadata))
        });
        if leaving || !self.create_claims(number) {
            self.again(CLAIM_WAIT);
            return Next::Stop;
        }
        let revision = if self.of_current(number) { &self.current } else { &self.update };
        let body = identity::pod(self.set, template_of(revision), &revision.metadata.name, number);
        let (good, bad) = self.event("Create", &name);
        let write = Write::Create { target: Target::of::<Pod>(&namespace, ""), body };
        // Side by side: claims that exist get their owners even if the pod is refused.
        let mut steps = vec![Step { write, on_success: Some(good), on_failure: Some(bad) }];
        steps.extend(self.retention(&future, true));
        self.stage(steps);
        Next::Stop
    }

    /// Whether a new pod is made of the template that is being replaced.
    fn of_current(&self, number: i64) -> bool {
        let (set, strategy) = (self.set, &self.set.spec.update_strategy);
        let below = match &strategy.rolling_update {
            None => set.status.current_replicas,
            Some(rolling) => rolling.partition.unwrap_or(0),
        };
        strategy.kind == "RollingUpdate" && number < set.start() + below
    }

    fn delete(&mut self, pod: &Pod) {
        let (good, bad) = self.event("Delete", &pod.metadata.name);
        self.stage(vec![Step { write: delete_pod(pod), on_success: Some(good), on_failure: Some(bad) }]);
    }

    /// Puts lost labels back.
    fn identify(&mut self, number: i64, pod: &Pod) {
        let labels = identity_labels(self.set, number);
        if pod.metadata.labels.get(labels[0].0) == Some(&labels[0].1) {
            return;
        }
        let (good, bad) = self.event("Update", &pod.metadata.name);
        let labels: serde_json::Map<String, Value> =
            labels.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        let write = Write::Patch {
            target: Target::of::<Pod>(&pod.metadata.namespace, &pod.metadata.name),
            kind: PatchKind::Merge,
            body: json!({"metadata": {"uid": pod.metadata.uid, "labels": labels}}),
        };
        self.stage(vec![Step { write, on_success: Some(good), on_failure: Some(bad) }]);
    }

    /// Gives a pod's claims the owners that the retention policy asks for.
    fn retain(&mut self, pod: &Pod, starting: bool) {
        let steps = self.retention(pod, starting);
        self.stage(steps);
    }

    /// The patches of a pod's claims. A claim that another controller owns is warned of while the pod starts, and when any of its
    /// claims is patched, as upstream.
    fn retention(&mut self, pod: &Pod, starting: bool) -> Vec<Step> {
        let set = self.set;
        let Some(number) = ordinal(set, &pod.metadata) else { return vec![] };
        let namespace = &set.metadata.namespace;
        let names = claims(set, number);
        let claims: Vec<&Arc<PersistentVolumeClaim>> =
            names.iter().filter_map(|(_, name, _)| self.claims.get(namespace, name)).collect();
        let patch = |claim: &&Arc<PersistentVolumeClaim>| {
            let owners = owners(set, pod, claim)?;
            let meta = &claim.metadata;
            Some(quiet(Write::Patch {
                target: Target::of::<PersistentVolumeClaim>(namespace, &meta.name),
                kind: PatchKind::Merge,
                body: json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version,
                    "ownerReferences": owners}}),
            }))
        };
        let steps: Vec<Step> = claims.iter().filter_map(patch).collect();
        if starting || !steps.is_empty() {
            for claim in claims.into_iter().filter(|claim| conflicting(set, pod, claim)) {
                let name = &claim.metadata.name;
                let text = format!(
                    "PersistentVolumeClaim {name} has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim"
                );
                let event = EventRecord::warning(self.regarding.clone(), "ConflictingController", text);
                self.plan = std::mem::take(&mut self.plan).event(event);
            }
        }
        steps
    }

    fn condemned(&mut self, pod: &Arc<Pod>, first_sick: Option<&Arc<Pod>>) -> Next {
        if pod.metadata.deleting() {
            return Next::Stop;
        }
        let sick = !(Self::ready(pod) && self.available(pod));
        // In order, one that is not ready goes only if it is the one that holds up the rest.
        if self.ordered() && sick && first_sick.is_none_or(|f| f.metadata.uid != pod.metadata.uid) {
            return Next::Stop;
        }
        self.delete(pod);
        Next::Stop
    }

    /// Replaces the last pods that are not of the update's revision, as long as no more pods are unavailable than may be. In parallel,
    /// those that are unavailable already go first, whatever is left: each of them is replaced at no cost.
    fn roll(&mut self, replicas: &[(i64, Option<&Arc<Pod>>)]) {
        let rolling = self.set.spec.update_strategy.rolling_update.as_ref();
        let first = self.set.start() + rolling.and_then(|r| r.partition).unwrap_or(0);
        let outdated = |pod: &Pod| {
            pod.metadata.labels.get(HASH_LABEL) != Some(&self.update.metadata.name)
                && !pod.metadata.deleting()
        };
        let sick = replicas.iter().filter(|(_, pod)| pod.is_none_or(|p| !self.healthy(p))).count();
        let left = usize::try_from(max_unavailable(self.set)).unwrap_or(usize::MAX).saturating_sub(sick);
        let targets = replicas.iter().rev().take_while(|(number, _)| *number >= first);
        let targets = targets.filter_map(|(_, pod)| pod.filter(|p| outdated(p)).cloned());
        let old: Vec<Arc<Pod>> = if self.ordered() {
            targets.take(left).collect()
        } else {
            let (good, bad): (Vec<_>, Vec<_>) = targets.partition(|pod| self.available(pod));
            bad.into_iter().chain(good.into_iter().take(left)).collect()
        };
        // One that is over is deleted anyway.
        for pod in old.iter().filter(|pod| !pod.finished()) {
            self.delete(pod);
            self.units.push(vec![]);
        }
    }
}

#[cfg(test)]
mod tests;
