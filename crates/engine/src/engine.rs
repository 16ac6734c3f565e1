//! The engine: a store, a registry, and the one task that feeds every cache.
//!
//! Invariants:
//! - One store watch over `/registry/` feeds all caches in revision order; `applied()` moves after all of them.
//! - A resource is in the registry only once its cache is complete.

use crate::{
    admission::{Admission, AdmissionSteps, Chain},
    attribution::Attributions,
    cache::{Cache, Feed, Limits, Normal, Progress, Shaping},
    decoded::DecodedObjects,
    leases::Leases,
    registry::{Registry, Resource, prefix_of},
    storage,
    store_error::store_status,
};
use arc_swap::ArcSwap;
use futures_util::{StreamExt, TryStreamExt, stream};
use kaji_meta::{Clock, Features, GroupResource, Random, SystemClock, SystemRandom};
use kaji_resource::{ObjectReader, ResourceDef};
use kaji_store::{Revision, Store, StoreError};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep},
};

/// How many caches load at the same time.
const LOADS: usize = 8;
/// The lowest rate at which watches end as a server does. Upstream's.
const DRAINED_A_SECOND: f64 = 200.0;
/// How often some are ended.
const DRAIN_TICK: Duration = Duration::from_millis(10);

/// What an engine is made of, besides its store.
#[derive(Clone)]
pub struct EngineOptions {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
    /// The feature gates, for hooks.
    pub features: Features,
    /// Admission plugins, in order; may be replaced later.
    pub admission: Vec<Arc<dyn Admission>>,
    /// Events kept in memory per resource.
    pub watch_window: usize,
    /// Bytes of objects that only the kept events hold on to, per resource.
    pub watch_window_bytes: usize,
    /// Events waiting for one watcher before it must catch up from the window instead.
    pub watch_queue: usize,
    /// Time between bookmarks.
    pub bookmark_interval: Duration,
    /// How long a read waits for the cache to reach a revision.
    pub read_wait: Duration,
    /// Watches without `timeoutSeconds` last this long, and up to twice as long.
    pub min_request_timeout: Duration,
    /// Bytes of a request body, decoded.
    pub max_body: usize,
    /// Whether a garbage collector runs, so that its finalizers may be set.
    pub garbage_collection: bool,
    /// Where it is kept which request has made a revision; `None` when that is of no use.
    pub attributions: Option<Arc<Attributions>>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            clock: Arc::new(SystemClock),
            random: Arc::new(SystemRandom),
            features: Features::default(),
            admission: vec![],
            watch_window: 16 * 1024,
            watch_window_bytes: 16 << 20,
            watch_queue: 1024,
            bookmark_interval: Duration::from_secs(60),
            read_wait: Duration::from_secs(3),
            min_request_timeout: Duration::from_secs(1800),
            max_body: 3 << 20,
            garbage_collection: true,
            attributions: None,
        }
    }
}

/// Why the engine cannot do what its owner asks. Requests answer with a `Status` instead.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// The store failed.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// A definition shares the storage of a resource that is not there.
    #[error("{resource} shares the storage of {owner}, which is not registered")]
    NoOwner {
        /// The definition.
        resource: GroupResource,
        /// What it refers to.
        owner: GroupResource,
    },
    /// The engine has been shut down.
    #[error("the engine has been shut down")]
    Closed,
}

/// The object engine. See the crate's text.
pub struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) admission: ArcSwap<Chain>,
    pub(crate) options: EngineOptions,
    /// Objects that hooks and plugins read again and again.
    pub(crate) decoded: DecodedObjects,
    /// What objects with a time to live hang on.
    pub(crate) leases: Leases,
    pub(crate) registry: ArcSwap<Registry>,
    /// Registrations happen one at a time.
    registering: tokio::sync::Mutex<()>,
    feed: Arc<Feed>,
    progress: Arc<Progress>,
    /// No watch begins any more.
    draining: AtomicBool,
    stop: watch::Sender<bool>,
    task: std::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Opens an engine over a store and starts feeding its (as yet absent) caches.
    ///
    /// # Errors
    /// When the store cannot be read or watched.
    pub async fn open(store: Arc<dyn Store>, options: EngineOptions) -> Result<Arc<Engine>, EngineError> {
        let revision = store.revision().await?;
        let progress = Arc::new(Progress::new(revision));
        let feed = Arc::new(Feed::new(store.clone(), progress.clone()));
        let events = store.watch(Feed::PREFIX, revision + 1).await?;
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(feed.clone().run(events, stopped));
        Ok(Arc::new(Engine {
            store,
            clock: options.clock.clone(),
            random: options.random.clone(),
            admission: ArcSwap::from_pointee(Chain::new(options.admission.clone())),
            options,
            decoded: DecodedObjects::default(),
            leases: Leases::default(),
            registry: ArcSwap::default(),
            registering: tokio::sync::Mutex::new(()),
            feed,
            progress,
            draining: AtomicBool::new(false),
            stop,
            task: std::sync::Mutex::new(Some(task)),
        }))
    }

    /// Serves resources: loads the cache of each from the store, then adds all of them to the registry at once.
    /// A resource that is there already is replaced and keeps its cache and, unless its objects are converted by a webhook
    /// or [`Engine::end_watches`] follows, its watchers.
    ///
    /// # Errors
    /// When the store cannot be read; then everything is as it was.
    pub async fn register(&self, defs: Vec<ResourceDef>) -> Result<(), EngineError> {
        let _one_at_a_time = self.registering.lock().await;
        if *self.stop.borrow() {
            return Err(EngineError::Closed);
        }
        let mut fresh = Fresh { feed: &self.feed, caches: vec![] };
        let (mut shapings, mut resources, mut required) = (vec![], vec![], vec![]);
        for def in &defs {
            let resource = self.prepare(def, &defs, &mut fresh.caches)?;
            if def.required_to_start || !self.has_other_writers() {
                required.push(resource.cache.clone());
            }
            if def.shares_storage_of.is_none() {
                let (cache, normal) = (&resource.cache, normal_of(&resource.def));
                if !def.stored || fresh.caches.iter().any(|c| Arc::ptr_eq(c, cache)) {
                    // Written through another version, an object has not the defaults of the stored one; what other programs write
                    // to the store may have any shape.
                    let others = self.has_other_writers();
                    let later_writes = others || def.conversion.direct() && def.versions.len() > 1;
                    cache.set_normal(normal, later_writes);
                } else {
                    shapings.push(Shaping::new(cache.clone(), normal));
                }
            }
            resources.push(Arc::new(resource));
        }
        // Owned arguments: a future that borrows through the closure could not be spawned.
        let loads = fresh.caches.clone().into_iter().map(|cache: Arc<Cache>| {
            let required = required.iter().any(|c| Arc::ptr_eq(c, &cache));
            self.feed.load(cache, required)
        });
        stream::iter(loads).buffer_unordered(LOADS).try_collect::<Vec<()>>().await?;
        for shaping in &mut shapings {
            self.feed.shape(shaping).await?;
        }
        // From here on nothing fails.
        fresh.caches.clear();
        let before = self.registry.rcu(|old| {
            let mut new = Registry::clone(old);
            new.generation += 1;
            resources.iter().for_each(|r| new.insert(r.clone()));
            new
        });
        // A reader that sees an object in its new shape finds the definition that it is written by.
        shapings.into_iter().for_each(Shaping::finish);
        for resource in &resources {
            // Watches see objects through the definition that they began with.
            let webhook = |r: &Resource| r.def.conversion.webhook().is_some();
            let old = before.by_group_resource(&resource.group_resource);
            if old.is_some_and(|old| webhook(old) || webhook(resource)) {
                resource.cache.end_watches();
            }
        }
        Ok(())
    }

    /// A resource with its cache; a cache that is new is added to `fresh` and receives events from now on.
    fn prepare(
        &self,
        def: &ResourceDef,
        batch: &[ResourceDef],
        fresh: &mut Vec<Arc<Cache>>,
    ) -> Result<Resource, EngineError> {
        let gr = def.group_resource();
        let limits = Limits {
            window: self.options.watch_window,
            window_bytes: self.options.watch_window_bytes,
            queue: self.options.watch_queue,
        };
        let def = Arc::new(def.clone());
        let stored_as = |d: &ResourceDef| {
            (kaji_meta::gvk::api_version(&d.group, &d.storage_version().name), d.kind.clone())
        };
        if !def.stored {
            let cache = Cache::new(prefix_of(&gr).into(), limits, self.progress.clone());
            def.versions.iter().for_each(|v| cache.add_fields(&v.selectable));
            let (api_version, kind) = stored_as(&def);
            return Ok(Resource::new(def, Arc::new(cache), api_version, kind));
        }
        let owner = def.shares_storage_of.clone().unwrap_or_else(|| gr.clone());
        let (api_version, kind) = if owner == gr {
            stored_as(&def)
        } else if let Some(d) = batch.iter().find(|d| d.group_resource() == owner) {
            stored_as(d)
        } else if let Some(r) = self.registry.load().by_group_resource(&owner) {
            stored_as(&r.def)
        } else {
            return Err(EngineError::NoOwner { resource: gr, owner });
        };
        let (cache, is_new) = self.feed.cache(prefix_of(&owner).into(), limits);
        if is_new {
            fresh.push(cache.clone());
        }
        def.versions.iter().for_each(|v| cache.add_fields(&v.selectable));
        Ok(Resource::new(def, cache, api_version, kind))
    }

    /// Ends the watches of a resource, so that their clients begin anew with the definition that is in force now.
    pub fn end_watches(&self, gr: &GroupResource) {
        if let Some(resource) = self.registry.load().by_group_resource(gr) {
            resource.cache.end_watches();
        }
    }

    /// Stops serving a resource and ends its watches. Its objects stay in the store.
    pub fn unregister(&self, gr: &GroupResource) {
        let mut removed = None;
        self.registry.rcu(|old| {
            let mut new = Registry::clone(old);
            removed = new.remove(gr);
            new.generation += u64::from(removed.is_some());
            new
        });
        let Some(resource) = removed else { return };
        let shared = self.registry.load().iter().any(|r| Arc::ptr_eq(&r.cache, &resource.cache));
        if !shared {
            self.feed.remove(&resource.prefix);
            resource.cache.close();
        }
    }

    /// What is served now. Cheap.
    pub fn registry(&self) -> Arc<Registry> {
        self.registry.load_full()
    }

    /// Replaces the admission plugins, and the observer of their durations.
    pub fn set_admission(&self, plugins: Vec<Arc<dyn Admission>>, steps: Arc<dyn AdmissionSteps>) {
        self.admission.store(Arc::new(Chain::new(plugins).with_steps(steps)));
    }

    /// The store beneath.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Everything up to this revision is in the caches.
    pub fn applied(&self) -> Revision {
        self.progress.applied()
    }

    /// Waits until the caches have everything up to `revision`.
    pub async fn wait_applied(&self, revision: Revision) {
        self.progress.wait(revision).await;
    }

    /// Waits as [`Engine::wait_applied`] does, but no longer than a read may. Returns whether the caches got there.
    pub(crate) async fn wait_fresh(&self, revision: Revision) -> bool {
        if self.progress.applied() >= revision {
            return true;
        }
        self.store.request_progress();
        tokio::time::timeout(self.options.read_wait, self.progress.wait(revision)).await.is_ok()
    }

    /// Waits until the caches have everything up to a revision that a client named.
    ///
    /// # Errors
    /// 504 when they do not get there in time.
    pub(crate) async fn wait_not_older(&self, revision: Revision) -> Result<(), kaji_meta::Status> {
        if self.wait_fresh(revision).await {
            return Ok(());
        }
        Err(kaji_meta::Status::resource_version_too_large(revision, self.applied(), 1))
    }

    /// Waits until the caches hold every write acknowledged before this call.
    ///
    /// # Errors
    /// When the store cannot say what its revision is, or the caches do not get there in time.
    pub(crate) async fn wait_consistent(&self) -> Result<(), kaji_meta::Status> {
        let revision = match self.store.current_revision_hint() {
            Some(revision) => revision,
            None => self.store.revision().await.map_err(|e| store_status(&e))?,
        };
        self.wait_not_older(revision).await
    }

    /// Whether it is being shut down: watches begun now would end at once.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.draining.load(Ordering::Acquire) || *self.stop.borrow()
    }

    /// Ends watches one after another, so that their clients do not all begin anew at another server in the same moment: all within
    /// `grace`, and at least [`DRAINED_A_SECOND`] a second. No watch begins any more. Watches that do not keep up end with
    /// [`Engine::shutdown`]. Answers with the number of watches before and after.
    pub async fn drain_watches(&self, grace: Duration) -> (usize, usize) {
        self.draining.store(true, Ordering::Release);
        let (before, begun, mut ended) = (self.feed.live_watches(), Instant::now(), 0);
        while begun.elapsed() < grace {
            let due = drained_after(begun.elapsed(), before, grace);
            ended += self.feed.end_watches(due.saturating_sub(ended));
            if self.feed.live_watches() == 0 {
                break;
            }
            sleep(DRAIN_TICK).await;
        }
        (before, self.feed.live_watches())
    }

    /// Ends all watches and stops feeding the caches. The store stays open.
    pub async fn shutdown(&self) {
        self.stop.send_replace(true);
        self.feed.close();
        let task = self.task.lock().ok().and_then(|mut t| t.take());
        if let Some(task) = task
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the task that feeds the caches failed");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// How many of `all` watches a drain within `grace` has ended after a time. The first ends at once.
fn drained_after(elapsed: Duration, all: usize, grace: Duration) -> usize {
    let rate = (all as f64 / grace.as_secs_f64().max(1e-3)).max(DRAINED_A_SECOND);
    1 + (elapsed.as_secs_f64() * rate) as usize
}

/// Caches that are fed for a registration in progress, and no longer if it fails.
struct Fresh<'a> {
    feed: &'a Feed,
    caches: Vec<Arc<Cache>>,
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        self.caches.iter().for_each(|cache| self.feed.remove(cache.prefix()));
    }
}

/// How stored values of a resource are put into shape, if they have to be.
fn normal_of(def: &Arc<ResourceDef>) -> Option<Normal> {
    def.hooks.normalizer()?;
    let hooks = def.hooks.clone();
    Some(Arc::new(move |stored| {
        let before: serde_json::Value = serde_json::from_slice(stored).ok()?;
        let mut object = before.clone();
        hooks.normalizer()?.normalize(&mut object);
        (object != before).then(|| storage::encode(&object).to_vec())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_drained_at_a_rate() {
        let (second, after) = (Duration::from_secs(1), Duration::from_millis);
        let drained = |millis, all, grace| drained_after(after(millis), all, grace);
        // Few end at the lowest rate, many within the time that there is.
        assert_eq!([0, 5, 50, 1000].map(|t| drained(t, 10, second * 60)), [1, 2, 11, 201]);
        assert_eq!([0, 100, 1000].map(|t| drained(t, 10_000, second)), [1, 1_001, 10_001]);
        assert!(drained(0, 10, Duration::ZERO) >= 1);
    }
}
