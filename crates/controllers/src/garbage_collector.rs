//! Garbage collection: dependents of absent owners are deleted, in the background or in the foreground, or orphaned.
//!
//! The graph ([`graph`]) is fed by a metadata watch of every resource that can be deleted ([`monitor`]); resources are
//! found by discovery, again and again. Decisions ([`decide`]) are pure; this file reads from the server what they need and
//! carries them out.
//!
//! Invariants:
//! - No decision is made before every resource of the first discovery has been listed (or has had half a minute for it).
//!   Resources that come later are not waited for, as upstream: one that cannot be listed stops no other's collection.
//! - The graph's lock is never held during a request.

mod decide;
mod graph;
mod monitor;

use crate::{
    ControllerContext, Descriptor, Start, WorkersFlag,
    shared::{
        discovery::{Discovered, Resource, discover},
        workers::{self, Works},
    },
};
use decide::{Facts, Live, Next, ORPHAN, decide};
use futures_util::{StreamExt, stream};
use graph::{Effect, Graph, Identity};
use kaji_runtime::{
    Client, ControllerMetrics, Error, EventRecord, Key, Metric, OwnerRef, PatchKind, Recorder,
    client::Target, queue::Queue, signal::Signal,
};
use monitor::{Head, Monitor};
use serde_json::{Value, json};
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    task::{AbortHandle, JoinSet},
};

/// Dependents of one owner that are written at once.
const PARALLEL: usize = 20;
/// How often discovery is read without a hint of a change.
const RESYNC: Duration = Duration::from_secs(30);
/// Delays after a hint: a definition is stored before its resource is served.
const HINTED: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// How long the lists of new resources may take; decisions wait for those of the first discovery.
const SYNC: Duration = Duration::from_secs(30);
/// Lookups of one decision: the object and each of its owners.
const LOOKUPS: usize = 200;
/// Marks keys of owners that have the finalizer `orphan`: their dependents are to be orphaned.
const ORPHANING: &str = "orphan";

static SYNC_ERRORS: Metric = Metric::counter(
    "garbagecollector_controller_resources_sync_error_total",
    "[ALPHA] Number of garbage collector resources sync errors",
    &[],
);
/// The metrics of the controller.
pub static METRICS: [&Metric; 1] = [&SYNC_ERRORS];

type Kinds = HashMap<(String, String), Resource>;

/// A monitor's task.
struct Running {
    task: AbortHandle,
    /// Whether it has listed its resource, or does not have to any more.
    synced: Arc<AtomicBool>,
}

type Monitors = HashMap<Resource, Running>;

/// The collector's state, shared by monitors and workers.
struct Collector {
    client: Client,
    /// The same, for metadata only.
    metadata: Client,
    recorder: Recorder,
    graph: Mutex<Graph>,
    queue: Queue,
    kinds: RwLock<Arc<Kinds>>,
    /// A hint that resources have been added or removed.
    refresh: Notify,
    /// Some monitor has listed its resource.
    synced: Notify,
    /// Whether decisions may be made.
    open: Signal<bool>,
    metrics: ControllerMetrics,
}

const COMPONENT: &str = "garbage-collector-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "garbage-collector-controller",
    components: &[COMPONENT],
    service_account: Some("generic-garbage-collector"),
    workers: Some(WorkersFlag { name: "concurrent-gc-syncs", default: 20 }),
    start: Start::Tasks(spawn),
};

/// Starts the collector.
fn spawn(tasks: &mut JoinSet<()>, context: ControllerContext<'_>) {
    let ControllerContext { informers, shared, config, stop } = context;
    if !config.loops.garbage_collector {
        return;
    }
    let client = shared.client.named(COMPONENT);
    let collector = Arc::new(Collector {
        metadata: client.metadata_only(),
        recorder: Recorder::start(client.clone(), COMPONENT, shared.clock.clone(), shared.random.clone()),
        client,
        graph: Mutex::default(),
        queue: informers.queue("garbage_collector_attempt_to_delete"),
        kinds: RwLock::default(),
        refresh: Notify::new(),
        synced: Notify::new(),
        open: Signal::new(false),
        metrics: informers.metrics().clone(),
    });
    collector.metrics.declare(&METRICS);
    let workers = config.loops.workers(CONTROLLER.name);
    tasks.spawn(run(collector, workers, stop));
}

async fn run(collector: Arc<Collector>, workers: usize, stop: watch::Receiver<bool>) {
    workers::run(collector.clone(), workers, follow_discovery(&collector), stop).await;
}

impl Works for Collector {
    fn queue(&self) -> &Queue {
        &self.queue
    }

    async fn handle(&self, key: &Key) {
        self.open.wait_for(|open| *open).await;
        self.work(key).await;
    }
}

/// Runs one monitor per discovered resource.
async fn follow_discovery(collector: &Arc<Collector>) {
    let mut monitors = Monitors::new();
    // Ends with this future, and so with the collector.
    let mut running = JoinSet::new();
    let (mut hints, begun) = (HINTED.iter(), tokio::time::Instant::now());
    loop {
        let wait = match discover(&collector.client).await {
            Ok(found) if monitors.is_empty() && !is_enough_to_begin(&found, begun.elapsed()) => {
                tracing::debug!(failed = ?found.failed, "the garbage collector waits for all of discovery");
                collector.metrics.observe(&SYNC_ERRORS.one([]));
                HINTED[1]
            }
            Ok(found) => {
                collector.update(&found, &mut monitors, &mut running).await;
                while running.try_join_next().is_some() {}
                hints.next().copied().unwrap_or(RESYNC)
            }
            Err(error) => {
                tracing::debug!(%error, "the garbage collector failed to read discovery");
                collector.metrics.observe(&SYNC_ERRORS.one([]));
                HINTED[1]
            }
        };
        tokio::select! {
            biased;
            () = tokio::time::sleep(wait) => {}
            () = collector.refresh.notified() => {
                hints = HINTED.iter();
                tokio::time::sleep(hints.next().copied().unwrap_or_default()).await;
            }
        }
    }
}

/// Whether the first discovery tells enough to begin. What is not known has no dependents: a group version that could not be read
/// just then is waited for, but not one that is out of order for long.
fn is_enough_to_begin(found: &Discovered, waited: Duration) -> bool {
    found.failed.is_empty() || waited >= SYNC
}

/// Events are neither owners nor worth owning.
fn collectable(resource: &Resource) -> bool {
    resource.supports(&["delete", "list", "watch"])
        && !(resource.resource == "events" && matches!(resource.group.as_str(), "" | "events.k8s.io"))
}

impl Collector {
    async fn update(
        self: &Arc<Self>,
        found: &Discovered,
        monitors: &mut Monitors,
        running: &mut JoinSet<()>,
    ) {
        *self.kinds.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(found.by_kind());
        let wanted: Vec<Resource> = found.preferred().into_iter().filter(collectable).collect();
        let first = monitors.is_empty();
        let unknown = |r: &Resource| found.failed.iter().any(|(version, _)| *version == r.api_version());
        monitors.retain(|resource, monitor| {
            let keep = wanted.contains(resource) || unknown(resource);
            if !keep {
                monitor.task.abort();
                monitor.synced.store(true, Ordering::Release);
                self.change(|graph| {
                    graph.forget_kind(&resource.api_version(), &resource.kind);
                    vec![]
                });
            }
            keep
        });
        let mut new = vec![];
        for resource in wanted {
            if let Entry::Vacant(entry) = monitors.entry(resource) {
                let synced = Arc::new(AtomicBool::new(false));
                let monitor = Monitor::new(self.clone(), entry.key(), synced.clone());
                let task = running.spawn(monitor.run());
                new.push(synced.clone());
                entry.insert(Running { task, synced });
            }
        }
        if new.is_empty() {
            return;
        }
        let listed = self.clone().listed(new);
        if first {
            listed.await;
            self.open.set(true);
        } else {
            running.spawn(listed);
        }
    }

    /// Waits until these monitors have listed their resources, as long as they have for it.
    async fn listed(self: Arc<Self>, new: Vec<Arc<AtomicBool>>) {
        let listed = async {
            loop {
                let notified = self.synced.notified();
                if new.iter().all(|synced| synced.load(Ordering::Acquire)) {
                    return;
                }
                // A list may end between the check and the wait: check again soon in any case.
                let _ = tokio::time::timeout(Duration::from_millis(100), notified).await;
            }
        };
        if tokio::time::timeout(SYNC, listed).await.is_err() {
            tracing::warn!("the garbage collector continues although some resources could not be listed");
            self.metrics.observe(&SYNC_ERRORS.one([]));
        }
    }

    /// Changes the graph and carries out the effects.
    fn change(&self, f: impl FnOnce(&mut Graph) -> Vec<Effect>) {
        let effects = f(&mut self.graph.lock().unwrap_or_else(PoisonError::into_inner));
        for effect in effects {
            match effect {
                Effect::Check(uid) => self.queue.add(Key::new("", &*uid)),
                Effect::CheckLater(uid) => self.queue.retry(Key::new("", &*uid)),
                Effect::Orphan(uid) => self.queue.add(Key::new(ORPHANING, &*uid)),
                Effect::WrongNamespace { dependent, owner } => {
                    let named = Identity { at: owner, namespace: dependent.namespace.clone() };
                    let text =
                        format!("ownerRef {named} does not exist in namespace \"{}\"", dependent.namespace);
                    let regarding = json!({
                        "kind": &*dependent.at.kind,
                        "apiVersion": &*dependent.at.api_version,
                        "namespace": &*dependent.namespace,
                        "name": &*dependent.at.name,
                        "uid": &*dependent.at.uid,
                    });
                    self.recorder.record(EventRecord::warning(regarding, "OwnerRefInvalidNamespace", text));
                }
            }
        }
    }

    fn read<R>(&self, f: impl FnOnce(&Graph) -> R) -> R {
        f(&self.graph.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn kinds(&self) -> Arc<Kinds> {
        self.kinds.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn work(&self, key: &Key) {
        let outcome = match key.namespace.as_str() {
            ORPHANING => self.orphan(&key.name).await,
            _ => self.attempt(&key.name).await,
        };
        match outcome {
            Ok(true) => self.queue.forget(key),
            Ok(false) => self.queue.retry(key.clone()),
            Err(error) => {
                tracing::debug!(uid = key.name, %error, "the garbage collector retries");
                self.queue.retry(key.clone());
            }
        }
    }

    /// Decides about an object and carries the decision out. `false` requests a retry.
    async fn attempt(&self, uid: &str) -> Result<bool, Error> {
        let (kinds, mut facts) = (self.kinds(), Facts::default());
        let scope = |api_version: &str, kind: &str| {
            kinds.get(&(api_version.to_owned(), kind.to_owned())).map(|r| r.namespaced)
        };
        for _ in 0..LOOKUPS {
            match self.read(|graph| decide(graph, uid, &facts, &scope)) {
                Next::Done => return Ok(true),
                Next::Later => return Ok(false),
                Next::LookUp(item) => match self.target(&kinds, &item) {
                    Where::Known(target) => facts.item = Some(self.live(&target).await?),
                    Where::Nowhere => return Ok(true),
                    Where::Unknown => return Ok(false),
                },
                Next::LookUpOwner(owner) => {
                    let Where::Known(target) = self.target(&kinds, &owner) else { return Ok(false) };
                    let live = self.live(&target).await?;
                    if live.as_ref().is_none_or(|l| l.uid != *owner.at.uid) {
                        self.modify(|graph| graph.mark_absent(owner.clone()));
                    }
                    facts.owners.insert((*owner.at).clone(), live);
                }
                Next::Absent(item) => {
                    self.change(|graph| graph.absent(&item));
                    return Ok(true);
                }
                Next::Push(dependents) => {
                    dependents.into_iter().for_each(|d| self.queue.add(Key::new("", &*d)));
                    return Ok(true);
                }
                write => {
                    self.carry_out(&kinds, write).await?;
                    // A virtual node must not stay in the graph: it is checked again.
                    return Ok(!self.read(|graph| graph.get(uid).is_some_and(|n| n.virtual_)));
                }
            }
        }
        Ok(false)
    }

    fn modify(&self, f: impl FnOnce(&mut Graph)) {
        self.change(|graph| {
            f(graph);
            vec![]
        });
    }

    fn target(&self, kinds: &Kinds, item: &Identity) -> Where {
        let Some(resource) = kinds.get(&(item.at.api_version.to_string(), item.at.kind.to_string())) else {
            return Where::Unknown;
        };
        // Only a cluster-scoped object's reference to a namespaced kind has no namespace.
        if resource.namespaced && item.namespace.is_empty() {
            return Where::Nowhere;
        }
        Where::Known(resource.target(&item.namespace, &item.at.name))
    }

    /// The object as the server has it now.
    async fn live(&self, target: &Target) -> Result<Option<Live>, Error> {
        match self.metadata.get::<Head>(&target.path()).await {
            Ok(head) => Ok(Some(head.into())),
            Err(error) if error.not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn carry_out(&self, kinds: &Kinds, next: Next) -> Result<(), Error> {
        let (item, outcome) = match next {
            Next::Release { item, live, finalizer } => {
                let Where::Known(target) = self.target(kinds, &item) else { return Ok(()) };
                let outcome = self.release(&target, &live, finalizer).await;
                (item, outcome)
            }
            Next::SetOwners { item, live, owners } => {
                let Where::Known(target) = self.target(kinds, &item) else { return Ok(()) };
                let outcome = self.set_owners(&target, &live, owners).await.map(drop);
                (item, outcome)
            }
            Next::Delete { item, live, policy, unblock } => {
                let Where::Known(target) = self.target(kinds, &item) else { return Ok(()) };
                let outcome = self.delete(&target, live, policy, unblock).await;
                (item, outcome)
            }
            _ => return Ok(()),
        };
        match outcome {
            Err(error) if error.not_found() => {
                self.change(|graph| graph.absent(&item));
                Ok(())
            }
            other => other,
        }
    }

    async fn patch(&self, target: &Target, live: &Live, metadata: Value) -> Result<Value, Error> {
        let mut body = json!({"metadata": metadata});
        body["metadata"]["uid"] = live.uid.as_str().into();
        body["metadata"]["resourceVersion"] = live.resource_version.as_str().into();
        self.metadata.patch(target, PatchKind::Merge.content_type(), "", &body).await
    }

    async fn release(&self, target: &Target, live: &Live, finalizer: &str) -> Result<(), Error> {
        let rest: Vec<&String> = live.finalizers.iter().filter(|f| *f != finalizer).collect();
        self.patch(target, live, json!({"finalizers": rest})).await.map(drop)
    }

    async fn set_owners(&self, target: &Target, live: &Live, owners: Vec<OwnerRef>) -> Result<Value, Error> {
        self.patch(target, live, json!({"ownerReferences": owners})).await
    }

    async fn delete(
        &self,
        target: &Target,
        mut live: Live,
        policy: &str,
        unblock: bool,
    ) -> Result<(), Error> {
        if unblock {
            let free = |o: &OwnerRef| OwnerRef { block_owner_deletion: false, ..o.clone() };
            let owners: Vec<OwnerRef> = live.owners.iter().map(free).collect();
            let patched = self.set_owners(target, &live, owners.clone()).await?;
            live.owners = owners;
            let revision = patched.pointer("/metadata/resourceVersion").and_then(Value::as_str);
            live.resource_version = revision.unwrap_or_default().to_owned();
        }
        let options =
            |preconditions: Value| json!({"preconditions": preconditions, "propagationPolicy": policy});
        let exact = json!({"uid": live.uid, "resourceVersion": live.resource_version});
        let outcome = self.metadata.delete(target, &options(exact)).await;
        if !outcome.as_ref().is_err_and(Error::conflict) {
            return outcome.map(drop);
        }
        // The object changed. A change of anything but its owners (of its status, say) does not prevent the deletion.
        let now = self.live(target).await?;
        match now {
            Some(now) if now.uid == live.uid && now.owners == live.owners => {
                self.metadata.delete(target, &options(json!({"uid": live.uid}))).await.map(drop)
            }
            _ => outcome.map(drop),
        }
    }

    /// Removes an owner that is being deleted from its dependents, then its finalizer.
    async fn orphan(&self, uid: &str) -> Result<bool, Error> {
        let plan = self.read(|graph| {
            let node = graph.get(uid)?;
            let dependents = node.dependents.iter().filter_map(|d| graph.get(d)).map(|n| n.identity.clone());
            Some((node.identity.clone(), dependents.collect::<Vec<_>>()))
        });
        let Some((owner, dependents)) = plan else { return Ok(true) };
        let kinds = self.kinds();
        let kinds = &kinds;
        let results: Vec<Result<(), Error>> = stream::iter(dependents)
            .map(|dependent| async move {
                match self.target(kinds, &dependent) {
                    Where::Known(target) => self.disown(&target, &dependent, uid).await,
                    Where::Unknown | Where::Nowhere => Ok(()),
                }
            })
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        if let Some(error) = results.into_iter().find_map(Result::err) {
            return Err(error);
        }
        let Where::Known(target) = self.target(kinds, &owner) else { return Ok(false) };
        match self.live(&target).await? {
            Some(live) if live.uid == uid && live.finalizers.iter().any(|f| f == ORPHAN) => {
                match self.release(&target, &live, ORPHAN).await {
                    Err(error) if error.not_found() => Ok(true),
                    other => other.map(|()| true),
                }
            }
            _ => Ok(true),
        }
    }

    async fn disown(&self, target: &Target, dependent: &Identity, owner: &str) -> Result<(), Error> {
        let Some(live) = self.live(target).await?.filter(|l| l.uid == *dependent.at.uid) else {
            return Ok(());
        };
        let rest: Vec<OwnerRef> = live.owners.iter().filter(|o| o.uid != owner).cloned().collect();
        if rest.len() == live.owners.len() {
            return Ok(());
        }
        match self.set_owners(target, &live, rest).await {
            Err(error) if error.not_found() => Ok(()),
            other => other.map(drop),
        }
    }
}

/// The location of an object.
enum Where {
    Known(Target),
    /// Its kind is not served, or not yet.
    Unknown,
    /// Its kind is namespaced and it has no namespace.
    Nowhere,
}

#[cfg(test)]
mod tests;
