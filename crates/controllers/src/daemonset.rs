//! Daemon sets: one pod on every node that fits.
//!
//! Invariants:
//! - The scheduler binds the pods; each names its one node in its affinity.
//! - The present template has a controller revision before any pod is made of it; pods carry that revision's hash.
//! - What is refused for one node does not hold up the others, except that creations, which may all fail for one reason, are made in
//!   batches that double in size.
//! - Failed pods of a node are replaced later and later (`back_off`): it may reject the next one too.

mod back_off;
mod nodes;
mod rollout;

use crate::{
    Descriptor, Start, WorkersFlag,
    shared::{
        controller_ref::{claim, labels_differ, owner_keys, quiet, unchanged},
        history::{self, HASH_LABEL, History, Retention, Subject},
        pods::{delete_pod_step, namespace_terminating, pod_from_template, status_patch},
    },
};
use back_off::BackOff;
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, Meta, PatchKind, Plan, Projection, Reconciler, Step,
    View, Write,
    client::Target,
    objects::{ControllerRevision, DaemonSet, DaemonSetStatus, Node, Pod},
};
use nodes::{Fit, Placement, bind, node_of, tolerations};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Creates and deletes of one plan.
const BURST: usize = 250;
const GENERATION: &str = "deprecated.daemonset.template.generation";
const GENERATION_LABEL: &str = "pod-template-generation";

const COMPONENT: &str = "daemonset-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "daemonset-controller",
    components: &[COMPONENT],
    service_account: Some("daemon-set-controller"),
    workers: Some(WorkersFlag { name: "concurrent-daemonset-syncs", default: 2 }),
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

/// The daemon set controller.
fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(DaemonSets::default(), informers)
        .reads::<DaemonSet>(|change, _| vec![change.any().metadata.key()])
        .reads::<Pod>(|change, view| owner_keys::<DaemonSet, Pod>(change, view, selects, pods_differ))
        .reads::<ControllerRevision>(|change, view| {
            owner_keys::<DaemonSet, ControllerRevision>(change, view, selects, labels_differ)
        })
        .reads::<Node>(keys_of_node)
}

fn pods_differ(old: &Pod, new: &Pod) -> bool {
    labels_differ(old, new) || old.spec.node_name != new.spec.node_name
}

/// Nodes concern all daemon sets, but only in what decides about placement.
fn keys_of_node(change: &Change<Node>, view: &View) -> Vec<Key> {
    if let (Some(old), Some(new)) = (&change.old, &change.new)
        && old.metadata.labels == new.metadata.labels
        && old.spec.taints == new.spec.taints
    {
        return vec![];
    }
    view.get::<DaemonSet>().iter().map(|s| s.metadata.key()).collect()
}

fn selects(set: &DaemonSet, meta: &Meta) -> bool {
    !set.spec.selector.parsed.is_everything() && set.spec.selector.matches(&meta.labels)
}

/// A node and the pods of one daemon set on it, the oldest first.
struct DaemonNode {
    name: String,
    fit: Fit,
    pods: Vec<Arc<Pod>>,
}

/// A daemon set with its pods.
struct Daemons<'a> {
    set: &'a DaemonSet,
    hash: String,
    nodes: Vec<DaemonNode>,
    /// Pods for nodes that are not there, and that no scheduler will ever see to.
    lost: Vec<Arc<Pod>>,
    now: jiff::Timestamp,
}

impl<'a> Daemons<'a> {
    fn new(set: &'a DaemonSet, hash: String, pods: Vec<Arc<Pod>>, view: &View, now: jiff::Timestamp) -> Self {
        let mut by_node: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in pods.into_iter().filter(|p| !(p.finished() && p.metadata.deleting())) {
            if let Some(node) = node_of(&pod).map(str::to_owned) {
                by_node.entry(node).or_default().push(pod);
            }
        }
        let placement = Placement::of(&set.spec.template);
        let nodes = view.get::<Node>();
        let places = nodes.iter().map(|node| {
            let mut pods = by_node.remove(&node.metadata.name).unwrap_or_default();
            pods.sort_by(|a, b| {
                let rank = |p: &Pod| (p.spec.node_name.is_empty(), p.metadata.creation_timestamp);
                rank(a).cmp(&rank(b)).then_with(|| a.metadata.name.cmp(&b.metadata.name))
            });
            DaemonNode { name: node.metadata.name.clone(), fit: placement.fit(node), pods }
        });
        let nodes = places.collect();
        let lost = by_node.into_values().flatten().filter(|p| p.spec.node_name.is_empty()).collect();
        Daemons { set, hash, nodes, lost, now }
    }

    fn available(&self, pod: &Pod) -> bool {
        pod.available(self.set.spec.min_ready_seconds, self.now)
    }

    fn any_pod(&self, holds: impl Fn(&Pod) -> bool) -> bool {
        self.nodes.iter().flat_map(|node| &node.pods).any(|pod| holds(pod))
    }

    /// Whether a pod is of the present template.
    fn updated(&self, pod: &Pod) -> bool {
        let labels = &pod.metadata.labels;
        let generation = self.set.metadata.annotations.get(GENERATION).filter(|g| g.parse::<i64>().is_ok());
        labels.get(HASH_LABEL) == Some(&self.hash)
            || generation.is_some() && labels.get(GENERATION_LABEL) == generation
    }

    fn surges(&self) -> bool {
        let strategy = &self.set.spec.update_strategy;
        let surge = strategy.rolling_update.as_ref().map(|r| &r.max_surge);
        let surge = surge.and_then(kaji_meta::intstr::IntOrString::from_value);
        strategy.kind == "RollingUpdate"
            && surge.is_some_and(|s| s.scaled_value(1, true).is_ok_and(|n| n > 0))
    }

    fn status(&self) -> DaemonSetStatus {
        let old = &self.set.status;
        let mut status = DaemonSetStatus {
            observed_generation: self.set.metadata.generation,
            collision_count: old.collision_count,
            ..DaemonSetStatus::default()
        };
        for place in &self.nodes {
            match (place.fit.run, place.pods.first()) {
                (true, pod) => {
                    status.desired_number_scheduled += 1;
                    let Some(pod) = pod else { continue };
                    status.current_number_scheduled += 1;
                    status.number_ready += i64::from(pod.ready());
                    status.number_available += i64::from(self.available(pod));
                    status.updated_number_scheduled += i64::from(self.updated(pod));
                }
                (false, Some(_)) => status.number_misscheduled += 1,
                (false, None) => {}
            }
        }
        status.number_unavailable = status.desired_number_scheduled - status.number_available;
        status
    }

    /// What is to be done without an update: missing pods, failed ones, those in the wrong place, those too many.
    fn manage(&self, work: &mut Work<'_>) {
        for place in &self.nodes {
            if place.fit.run && place.pods.is_empty() {
                work.create.push(place.name.clone());
            } else if place.fit.keep {
                self.keep(place, work);
            } else {
                work.delete.extend(place.pods.iter().filter(|p| !p.metadata.deleting()).cloned());
            }
        }
        work.delete.extend(self.lost.iter().filter(|p| !p.metadata.deleting()).cloned());
    }

    fn keep(&self, place: &DaemonNode, work: &mut Work<'_>) {
        let mut running = vec![];
        for pod in place.pods.iter().filter(|p| !p.metadata.deleting()) {
            let about = format!("{} on node {}", pod.metadata.key(), place.name);
            match pod.status.phase.as_str() {
                "Failed" => match work.back_off(self, &place.name) {
                    Some(wait) => work.wait = Some(work.wait.map_or(wait, |w| w.min(wait))),
                    None => {
                        let text = format!("Found failed daemon pod {about}, will try to kill it");
                        work.events.push(("FailedDaemonPod", text));
                        work.delete.push(pod.clone());
                    }
                },
                "Succeeded" => {
                    let text = format!("Found succeeded daemon pod {about}, will try to delete it");
                    work.events.push(("SucceededDaemonPod", text));
                    work.delete.push(pod.clone());
                }
                _ => running.push(pod.clone()),
            }
        }
        if !self.surges() {
            work.delete.extend(running.into_iter().skip(1));
        } else if running.is_empty() && place.fit.run {
            work.create.push(place.name.clone());
        } else if running.len() > 1 {
            self.keep_two(running, work);
        }
    }

    /// With a surge there may be an old and a new pod, while the old one is ready and the new one not yet available.
    fn keep_two(&self, running: Vec<Arc<Pod>>, work: &mut Work<'_>) {
        let (mut new, mut old) = (None, None);
        for pod in running {
            let is_new = pod.metadata.labels.get(HASH_LABEL) == Some(&self.hash);
            let place = if is_new { &mut new } else { &mut old };
            match place {
                None => *place = Some(pod),
                Some(_) => work.delete.push(pod),
            }
        }
        if let (Some(new), Some(old)) = (new, old)
            && (!old.ready() || self.available(&new))
        {
            work.delete.push(old);
        }
    }

    /// A pod of the present template for a node.
    fn pod(&self, node: &str) -> Value {
        let meta = &self.set.metadata;
        let reference = meta.controller_ref(&DaemonSet::api_version(), DaemonSet::KIND);
        let mut pod = pod_from_template(&self.set.spec.template, meta, &reference);
        if let Some(generation) = meta.annotations.get(GENERATION).filter(|g| g.parse::<i64>().is_ok()) {
            pod["metadata"]["labels"][GENERATION_LABEL] = generation.as_str().into();
        }
        pod["metadata"]["labels"][HASH_LABEL] = self.hash.as_str().into();
        pod["spec"]["tolerations"] = tolerations(&pod["spec"]).into();
        bind(&mut pod["spec"], node);
        pod
    }
}

/// What is to be done.
struct Work<'a> {
    waits: &'a Mutex<BackOff>,
    create: Vec<String>,
    delete: Vec<Arc<Pod>>,
    events: Vec<(&'static str, String)>,
    wait: Option<Duration>,
}

impl<'a> Work<'a> {
    fn new(waits: &'a Mutex<BackOff>) -> Self {
        Work { waits, create: vec![], delete: vec![], events: vec![], wait: None }
    }

    /// How long a node's failed pod has still to stay.
    fn back_off(&self, daemons: &Daemons<'_>, node: &str) -> Option<Duration> {
        let place = back_off::BackOffKey {
            uid: daemons.set.metadata.uid.clone(),
            generation: daemons.set.status.observed_generation,
            node: node.to_owned(),
        };
        self.waits.lock().unwrap_or_else(PoisonError::into_inner).next(place, daemons.now)
    }
}

/// The loop, with the waits that failed pods began: they are lost with the process, as upstream's.
#[derive(Default)]
struct DaemonSets {
    waits: Mutex<BackOff>,
}

impl Reconciler for DaemonSets {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "daemonset"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let sets = view.get::<DaemonSet>();
        let Some(set) = sets.by_key(key) else { return Plan::nothing() };
        let meta = &set.metadata;
        let regarding = meta.reference(&DaemonSet::api_version(), DaemonSet::KIND);
        if set.spec.selector.parsed.is_everything() {
            let text = "This daemon set is selecting all pods. A non-empty selector is required.";
            return Plan::nothing().event(EventRecord::warning(regarding, "SelectingAll", text));
        }
        if meta.deleting() {
            return Plan::nothing();
        }
        let reference = meta.controller_ref(&DaemonSet::api_version(), DaemonSet::KIND);
        let pods = view.get::<Pod>();
        let candidates = pods.owned_by(&meta.uid).chain(pods.orphans(&meta.namespace)).cloned();
        let claimed = claim(meta, &reference, |m| selects(set, m), candidates);
        let (owned, plan) = claimed.into_plan(unchanged::<DaemonSet>(meta));
        if !plan.is_empty() {
            return plan;
        }
        let live: Vec<Arc<Pod>> = owned.clone();
        let subject = Subject {
            meta,
            reference,
            template: &set.spec.template,
            collisions: set.status.collision_count,
            hash_label: HASH_LABEL,
        };
        let (current, old) = match subject.history::<DaemonSet>(view, |m| selects(set, m)) {
            History::Open(plan) => return plan,
            History::Collision => {
                let count = set.status.collision_count.unwrap_or(0) + 1;
                return plan.then(status_patch::<DaemonSet>(meta, json!({"collisionCount": count})));
            }
            History::Settled { current, old } => (current, old),
        };
        let hash = hash_of(&current).to_owned();
        let twins = subject.twins(&old);
        if !twins.is_empty() {
            return merge(plan, &twins, &hash, &live);
        }
        let daemons = Daemons::new(set, hash, owned, view, cx.now);
        let mut plan = write_status(plan, set, &daemons);
        if !cx.failures.iter().any(|f| namespace_terminating(&f.error)) {
            plan = work(plan, &daemons, Work::new(&self.waits), &regarding);
        }
        let hashes: HashSet<&str> =
            live.iter().filter_map(|p| p.metadata.labels.get(HASH_LABEL)).map(String::as_str).collect();
        let limit = set.spec.revision_history_limit.unwrap_or(10);
        plan.stage(Retention { limit, live: &hashes, label: HASH_LABEL }.of_all(&old))
    }
}

fn hash_of(revision: &ControllerRevision) -> &str {
    revision.metadata.labels.get(HASH_LABEL).unwrap_or(&revision.metadata.name)
}

/// Makes revisions of one template one: pods of the others have that template, and take its hash instead of being replaced.
fn merge(plan: Plan, twins: &[&Arc<ControllerRevision>], hash: &str, pods: &[Arc<Pod>]) -> Plan {
    let former: HashSet<&str> = twins.iter().map(|revision| hash_of(revision)).collect();
    let is_former = |pod: &&Arc<Pod>| {
        let label = pod.metadata.labels.get(HASH_LABEL).map(String::as_str);
        label.is_some_and(|label| label != hash && former.contains(label))
    };
    let label = |pod: &Arc<Pod>| {
        quiet(Write::Patch {
            target: Target::of::<Pod>(&pod.metadata.namespace, &pod.metadata.name),
            kind: PatchKind::Merge,
            body: json!({"metadata": {"uid": pod.metadata.uid, "labels": {HASH_LABEL: hash}}}),
        })
    };
    plan.stage(pods.iter().filter(is_former).map(label).collect())
        .stage(twins.iter().map(|revision| history::delete(revision)).collect())
}

fn write_status(plan: Plan, set: &DaemonSet, daemons: &Daemons<'_>) -> Plan {
    let status = daemons.status();
    let plan = match set.spec.min_ready_seconds {
        // Time alone makes them available. The status counts one pod a node; with a surge it is the second that is waited for.
        wait if wait > 0 && daemons.any_pod(|pod| pod.ready() && !daemons.available(pod)) => {
            plan.again_after(Duration::from_secs(u64::try_from(wait).unwrap_or(0)))
        }
        _ => plan,
    };
    if status == set.status {
        return plan;
    }
    let some = |n: i64| (n != 0).then_some(n);
    let body = json!({
        "currentNumberScheduled": status.current_number_scheduled,
        "numberMisscheduled": status.number_misscheduled,
        "desiredNumberScheduled": status.desired_number_scheduled,
        "numberReady": status.number_ready,
        "observedGeneration": some(status.observed_generation),
        "updatedNumberScheduled": some(status.updated_number_scheduled),
        "numberAvailable": some(status.number_available),
        "numberUnavailable": some(status.number_unavailable),
    });
    plan.then(status_patch::<DaemonSet>(&set.metadata, body))
}

/// Adds creates and deletes: first what keeps the set in order, and an update only when there is nothing of that.
fn work(mut plan: Plan, daemons: &Daemons<'_>, mut work: Work<'_>, regarding: &Value) -> Plan {
    daemons.manage(&mut work);
    if work.create.is_empty()
        && work.delete.is_empty()
        && daemons.set.spec.update_strategy.kind == "RollingUpdate"
    {
        let rollout = rollout::roll(daemons);
        (work.create, work.delete) = (rollout.create, rollout.delete);
    }
    for (reason, text) in work.events {
        plan = plan.event(match reason {
            "FailedDaemonPod" => EventRecord::warning(regarding.clone(), reason, text),
            _ => EventRecord::normal(regarding.clone(), reason, text),
        });
    }
    if let Some(wait) = work.wait {
        plan = plan.again_after(wait);
    }
    work.create.truncate(BURST);
    work.delete.truncate(BURST);
    let create = |node: &String| Step {
        write: Write::Create {
            target: Target::of::<Pod>(&daemons.set.metadata.namespace, ""),
            body: daemons.pod(node),
        },
        on_success: Some(EventRecord::normal(regarding.clone(), "SuccessfulCreate", "Created pod: {name}")),
        on_failure: Some(EventRecord::warning(regarding.clone(), "FailedCreate", "Error creating: {error}")),
    };
    // A refused creation holds back the later ones, which go to the same collection, but no deletion.
    let (mut rest, mut batch) = (work.create.as_slice(), 1);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(batch.min(rest.len()));
        plan = plan.independent(now.iter().map(create).collect());
        (rest, batch) = (later, batch * 2);
    }
    plan.stage(work.delete.iter().map(|pod| delete_pod_step(pod, regarding)).collect())
}

#[cfg(test)]
mod tests;
