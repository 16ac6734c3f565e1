//! The pods of a fleet of simulated nodes: when each is synced at, and what of a [`step`] is written to the API.
//!
//! Invariants: only pods bound to this fleet's nodes are touched, and those of a node that is down are not; a pod is synced at by one
//! worker at a time; the whole object is read only when there is something to do, so that a pod at rest costs no memory but that of
//! its [`SimulatedPod`].

use super::addresses::Addresses;
use super::facts::{self, Facts};
use super::faults::{Faults, NodeChange};
use super::files::HostFiles;
use super::fleet::{Fleet, SimulatedNode};
use super::step::{Inputs, Outcome, SimulatedPod, step};
use crate::node::status_patch;
use crate::pods::admission;
use crate::pods::core::Pod as FullPod;
use crate::pods::model;
use crate::pods::sources::{Keyed, KeyedRef};
use futures_util::FutureExt;
use jiff::Timestamp;
use kaji_meta::quantity::Quantity;
use kaji_runtime::intern::Text;
use kaji_runtime::objects::{Node, Pod, Service};
use kaji_runtime::queue::Queue;
use kaji_runtime::{
    Change, Client, Error, EventRecord, Informer, Informers, Key, PatchKind, Recorder, Shared, Target,
};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Pods that are synced at side by side.
const WORKERS: usize = 16;
/// The configuration map that nearly every pod refers to; it is synced up once in so many seconds for each namespace.
const ROOT_CA: (&str, i64) = ("kube-root-ca.crt", 600);
/// Namespaces for which it is remembered.
const MOST_KNOWN: usize = 10_000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change of what these locks protect is complete before anything can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pod that was synced at.
pub(super) struct Kept {
    pub(super) pod: SimulatedPod,
    node: Text,
    /// The version that the last write made.
    written: Box<str>,
    /// When there is something to do without change.
    due: Option<Timestamp>,
}

/// The pods of a fleet.
pub struct Pods {
    fleet: Fleet,
    addresses: Addresses,
    pub(super) faults: Arc<Faults>,
    shared: Shared,
    nodes: Arc<Informer<Node>>,
    pods: Arc<Informer<Pod>>,
    services: Arc<Informer<Service>>,
    queue: Queue,
    kept: Mutex<HashMap<String, Arc<Mutex<Kept>>>>,
    known: Mutex<HashMap<KeyedRef, (Arc<Keyed>, Timestamp)>>,
    host_files: HostFiles,
    /// Counts steps, for followers of logs.
    steps: watch::Sender<u64>,
}

impl Pods {
    /// Follows the pods that the informers show.
    pub fn new(fleet: Fleet, faults: Arc<Faults>, informers: &Arc<Informers>, shared: &Shared) -> Arc<Pods> {
        let pods = Arc::new(Pods {
            fleet,
            addresses: Addresses::default(),
            faults,
            nodes: informers.get::<Node>(),
            pods: informers.get::<Pod>(),
            services: informers.get::<Service>(),
            queue: Queue::new(shared.clock.clone()),
            shared: shared.clone(),
            kept: Mutex::default(),
            known: Mutex::default(),
            host_files: HostFiles::default(),
            steps: watch::Sender::new(0),
        });
        let follower = Arc::downgrade(&pods);
        pods.pods.handle(move |change| {
            if let Some(pods) = follower.upgrade() {
                pods.pod_changed(change);
            }
        });
        let follower = Arc::downgrade(&pods);
        pods.nodes.handle(move |change| {
            if let Some(pods) = follower.upgrade() {
                pods.node_changed(change);
            }
        });
        pods
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        let replaced =
            |old: &&Arc<Pod>| change.new.as_ref().is_none_or(|new| new.metadata.uid != old.metadata.uid);
        if let Some(old) = change.old.as_ref().filter(replaced) {
            self.addresses.release(&old.metadata.uid);
            lock(&self.kept).remove(&old.metadata.uid);
            self.steps.send_modify(|steps| *steps += 1);
        }
        if let Some(new) = change.new.as_ref().filter(|new| self.fleet.has(&new.spec.node_name)) {
            self.queue.add(new.metadata.key());
        }
    }

    fn node_changed(&self, change: &Change<Node>) {
        let name = &change.any().metadata.name;
        if !self.fleet.has(name) {
            return;
        }
        let Some(node) = &change.new else { return self.faults.forget(name) };
        let failure = self.faults.notice(node);
        if failure == NodeChange::Crashed {
            let now = self.shared.clock.now();
            let kept: Vec<_> = lock(&self.kept).values().cloned().collect();
            for pod in kept {
                let mut pod = lock(&pod);
                if pod.node == *name {
                    pod.pod.runtime.crash(now);
                }
            }
        }
        // Its first pods have waited for a range.
        let ranges = change.old.as_ref().is_some_and(|old| old.spec.pod_cidrs != node.spec.pod_cidrs);
        if ranges || failure == NodeChange::Returned {
            for pod in self.pods.snapshot().indexed("node", name) {
                lock(&self.kept)
                    .get(&pod.metadata.uid)
                    .into_iter()
                    .for_each(|kept| lock(kept).written = Box::default());
                self.queue.add(pod.metadata.key());
            }
        }
    }

    /// Works until `stop` turns true.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let synced = async {
            self.nodes.synced().await;
            self.pods.synced().await;
            self.services.synced().await;
        };
        tokio::select! { biased; () = synced => {}, _ = stop.wait_for(|stop| *stop) => return }
        let Shared { client, clock, random, .. } = &self.shared;
        let recorder = Recorder::start(client.clone(), "kubelet", clock.clone(), random.clone());
        let mut tasks = JoinSet::new();
        for _ in 0..WORKERS {
            let (pods, recorder) = (self.clone(), recorder.clone());
            tasks.spawn(async move {
                while let Some(key) = pods.queue.next().await {
                    pods.work(&key, &recorder).await;
                    pods.queue.done(&key);
                }
            });
        }
        let _ = stop.wait_for(|stop| *stop).await;
        self.queue.close();
        tasks.shutdown().await;
    }

    async fn work(&self, key: &Key, recorder: &Recorder) {
        // Before the time of the decision: a clock that jumps meanwhile makes no wait longer.
        let (began, now) = (kaji_runtime::time::instant(&*self.shared.clock), self.shared.clock.now());
        let synced = AssertUnwindSafe(self.sync_pod(key, now, recorder)).catch_unwind().await;
        match synced {
            Ok(Ok(again)) => {
                self.queue.forget(key);
                if let Some(at) = again {
                    let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
                    self.queue.add_at(key.clone(), began + wait);
                }
            }
            Ok(Err(error)) => {
                tracing::debug!(%key, %error, "a simulated pod could not be reported");
                self.queue.retry(key.clone());
            }
            Err(_) => {
                tracing::error!(%key, "the simulation of a pod panicked");
                self.queue.retry(key.clone());
            }
        }
    }

    /// Brings the status of a pod up to date. When its next step is due.
    async fn sync_pod(
        &self,
        key: &Key,
        now: Timestamp,
        recorder: &Recorder,
    ) -> Result<Option<Timestamp>, Error> {
        let Some(known) = self.pods.snapshot().by_key(key).cloned() else { return Ok(None) };
        let Some(place) = self.fleet.place(&known.spec.node_name) else { return Ok(None) };
        if self.faults.down(&place.name) {
            return Ok(None);
        }
        let uid = &known.metadata.uid;
        let kept = lock(&self.kept).get(uid).cloned();
        let over = known.finished() && !known.metadata.deleting();
        if let Some(kept) = &kept {
            let kept = lock(kept);
            let at_rest = kept.due.is_none_or(|due| due > now);
            let is_current = not_newer(&known.metadata.resource_version, &kept.written);
            if at_rest && (is_current || over && kept.pod.runtime.alive().next().is_none()) {
                return Ok(kept.due);
            }
        } else if over {
            return Ok(None);
        }
        let client = self.shared.client.named(&super::agent(&place.name));
        let target = Target::of::<Pod>(&key.namespace, &key.name);
        let full = match client.get::<FullPod>(&target.path()).await {
            Ok(full) if model::uid(&full) == uid => full,
            Ok(_) => return Ok(None),
            Err(error) if error.not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let kept = kept.unwrap_or_else(|| self.keep(&full, &place, now));
        let (outcome, events) = self.step(&full, &kept, &place, &client, now).await;
        events.into_iter().for_each(|event| recorder.record(event));
        let written = self.write(&outcome, &full, &target, &client).await?;
        {
            let mut kept = lock(&kept);
            kept.due = outcome.again;
            let read = full.metadata.resource_version.as_deref().unwrap_or_default();
            kept.written = written.as_deref().unwrap_or(read).into();
        }
        self.steps.send_modify(|steps| *steps += 1);
        Ok(outcome.again)
    }

    fn keep(&self, pod: &FullPod, place: &SimulatedNode, now: Timestamp) -> Arc<Mutex<Kept>> {
        let mut restored = SimulatedPod::restore(pod, now);
        restored.plan(pod, &self.host_files);
        let kept =
            Kept { pod: restored, node: place.name.as_str().into(), written: Box::default(), due: None };
        let kept = Arc::new(Mutex::new(kept));
        lock(&self.kept).insert(model::uid(pod).to_owned(), kept.clone());
        kept
    }

    fn addresses(&self, pod: &FullPod, place: &SimulatedNode) -> Vec<IpAddr> {
        if model::host_network(pod) {
            return vec![];
        }
        let status = pod.status.as_ref();
        let reported = status.and_then(|s| s.pod_ips.as_ref()).into_iter().flatten();
        let reported: Vec<IpAddr> = reported.filter_map(|p| p.ip.parse().ok()).collect();
        self.addresses.assign(model::uid(pod), &reported, || {
            let nodes = self.nodes.snapshot();
            let node = nodes.get("", &place.name);
            node.iter().flat_map(|n| &n.spec.pod_cidrs).filter_map(|range| range.parse().ok()).collect()
        })
    }

    async fn step(
        &self,
        pod: &FullPod,
        kept: &Mutex<Kept>,
        place: &SimulatedNode,
        client: &Client,
        now: Timestamp,
    ) -> (Outcome, Vec<EventRecord>) {
        let addresses = self.addresses(pod, place);
        let mut events = vec![];
        let mut once = |facts: Option<&Facts>| {
            let inputs = Inputs {
                pod,
                host: place.address.into(),
                addresses: &addresses,
                facts,
                services: &|| self.services(),
                room: &|pod| self.room(pod, &place.name),
                host_files: &self.host_files,
                random: &*self.shared.random,
                now,
            };
            step(&mut lock(kept).pod, &inputs, &mut events)
        };
        let mut outcome = once(None);
        if outcome.needs_facts {
            let facts = self.facts(client, pod, now).await;
            outcome = once(Some(&facts));
        }
        (outcome, events)
    }

    /// Looks up what a pod refers to.
    pub(super) async fn facts(&self, client: &Client, pod: &FullPod, now: Timestamp) -> Facts {
        let known = |name: &KeyedRef| {
            let known = lock(&self.known);
            let (found, at) = known.get(name)?;
            (now.duration_since(*at).as_secs() < ROOT_CA.1).then(|| found.clone())
        };
        let facts = facts::gather(client, pod, &known).await;
        for (name, found) in facts.keyed.iter().filter(|(name, _)| name.name == ROOT_CA.0) {
            if let Ok(Some(found)) = found {
                let mut known = lock(&self.known);
                if known.len() >= MOST_KNOWN {
                    known.clear();
                }
                known.entry(name.clone()).or_insert((found.clone(), now));
            }
        }
        facts
    }

    /// Writes what a step says. The version that the write made.
    async fn write(
        &self,
        outcome: &Outcome,
        pod: &FullPod,
        target: &Target,
        client: &Client,
    ) -> Result<Option<String>, Error> {
        let mut version = None;
        if let Some(status) = &outcome.status {
            let before = pod.status.clone().unwrap_or_default();
            let mut body = status_patch(model::uid(pod), &before, status);
            // What was written since the look was not decided about, and is not synced for in versions up to that of this write.
            body["metadata"]["resourceVersion"] = pod.metadata.resource_version.clone().into();
            let target = target.clone().subresource("status");
            match client.patch(&target, PatchKind::Strategic.content_type(), "", &body).await {
                Ok(answer) => version = answer["metadata"]["resourceVersion"].as_str().map(str::to_owned),
                Err(error) if error.not_found() => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        if outcome.remove {
            let options = json!({
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": model::uid(pod)},
            });
            match client.delete(target, &options).await {
                Err(error) if !error.not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(version)
    }

    /// Whether a node has room for what a pod asks for now, beside its other pods. As on real nodes, a resize waits also if it is for more
    /// than the node has at all, which admission refuses (`PodResizeValidator`).
    fn room(&self, pod: &FullPod, node: &str) -> Result<(), (String, String)> {
        let allocatable = super::nodes::allocatable();
        let asked = admission::pod_requests(pod);
        let pods = self.pods.snapshot();
        let others: Vec<_> = pods
            .indexed("node", node)
            .filter(|other| other.metadata.uid != model::uid(pod) && !other.finished())
            .map(|other| requests(other))
            .collect();
        for name in ["cpu", "memory"] {
            let (asked, capacity) =
                (asked.get(name).copied().unwrap_or(0), allocatable.get(name).copied().unwrap_or(0));
            let used: i64 = others.iter().map(|o| o.get(name).copied().unwrap_or(0)).sum();
            if asked.saturating_add(used) > capacity {
                let text = format!(
                    "Node didn't have enough resource: {name}, requested: {asked}, used: {used}, capacity: {capacity}"
                );
                return Err(("Deferred".to_owned(), text));
            }
        }
        Ok(())
    }

    /// A node's pod by its name, as the node reads it, and what is kept of it.
    pub(super) async fn find(
        &self,
        node: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<(FullPod, Option<Arc<Mutex<Kept>>>)>, Error> {
        let bound = self.pods.snapshot().get(namespace, name).is_some_and(|pod| pod.spec.node_name == node);
        if !bound {
            return Ok(None);
        }
        let client = self.shared.client.named(&super::agent(node));
        match client.get::<FullPod>(&Target::of::<Pod>(namespace, name).path()).await {
            Ok(pod) => {
                let kept = lock(&self.kept).get(model::uid(&pod)).cloned();
                Ok(Some((pod, kept)))
            }
            Err(error) if error.not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All services.
    pub(super) fn services(&self) -> Vec<Arc<Service>> {
        self.services.snapshot().iter().cloned().collect()
    }

    /// Changes with every step.
    pub(super) fn step_counter(&self) -> watch::Receiver<u64> {
        self.steps.subscribe()
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(super) fn host_files(&self) -> &HostFiles {
        &self.host_files
    }
}

/// Whether a version is that of a write, or of one before it: what the informer shows may be older than what was written.
fn not_newer(version: &str, written: &str) -> bool {
    match (version.parse::<u64>(), written.parse::<u64>()) {
        (Ok(version), Ok(written)) => version <= written,
        _ => version == written,
    }
}

/// What a pod asks for, thousandths for `cpu`.
fn requests(pod: &Pod) -> BTreeMap<&'static str, i64> {
    let sidecars = pod.spec.init_containers.iter().filter(|c| c.sidecar());
    let mut sums = BTreeMap::from([("cpu", 0_i64), ("memory", 0)]);
    for (name, text) in pod.spec.containers.iter().chain(sidecars).flat_map(|c| c.resources.requests.iter()) {
        let (Some(sum), Ok(amount)) = (sums.get_mut(name), Quantity::parse(text)) else { continue };
        let amount = if name == "cpu" { amount.milli_value() } else { amount.value() };
        *sum = sum.saturating_add(amount);
    }
    sums
}
