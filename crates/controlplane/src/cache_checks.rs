//! Regular comparisons of the caches with etcd: whether this server shows what is stored, which others may have written.
//!
//! Invariants: a resource is compared at one revision, that of its cache; a difference is counted and logged, with the first object
//! that differs; memory is needed for a page of values, and for the keys of the cache, which are shared with it.
//!
//! Source: `consistencyChecker` in apiserver's `storage/cacher/delegator.go`.

use kaji_engine::{Engine, Resource};
use kaji_meta::random::{Random, fraction};
use kaji_store::{Range, Revision, Store, StoreError};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{sync::watch, time::timeout};

/// The shortest time between two comparisons; the longest is half as much more. As upstream.
const PERIOD: Duration = Duration::from_secs(300);
/// Objects that are read at once.
const PAGE: usize = 500;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    group: String,
    resource: String,
    status: &'static str,
}

/// The comparisons of a server. Clones share the numbers.
#[derive(Clone, Debug, Default)]
pub struct CacheChecks {
    outcomes: Family<Labels, Counter>,
}

/// An object that the cache and the store do not agree about.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Difference {
    key: String,
    /// Its revisions, where it is there.
    cached: Option<Revision>,
    stored: Option<Revision>,
}

impl CacheChecks {
    /// Adds the metric to those of a server.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_storage_consistency_checks_total",
            "[ALPHA] Counter for status of consistency checks between etcd and watch cache",
            self.outcomes.clone(),
        );
    }

    /// Compares regularly, until `stop` turns true or the engine is gone.
    pub async fn run(self, engine: Weak<Engine>, random: Arc<dyn Random>, mut stop: watch::Receiver<bool>) {
        loop {
            // Servers that were started together do not read at the same time.
            let jitter = fraction(&*random) / 2.0;
            if timeout(PERIOD.mul_f64(1.0 + jitter), stop.wait_for(|stop| *stop)).await.is_ok() {
                return;
            }
            let Some(engine) = engine.upgrade() else { return };
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                () = self.round(&engine) => {}
            }
        }
    }

    /// Compares every resource that has a cache of its own.
    async fn round(&self, engine: &Engine) {
        let registry = engine.registry();
        let stored = registry
            .iter()
            .filter(|resource| resource.def.stored && resource.def.shares_storage_of.is_none());
        for resource in stored {
            let outcome = compare(resource, &**engine.store()).await;
            self.note(resource, &outcome);
        }
    }

    fn note(&self, resource: &Resource, outcome: &Result<Option<Difference>, StoreError>) {
        let name = &resource.group_resource;
        let status = match outcome {
            Ok(None) => "success",
            Ok(Some(difference)) => {
                tracing::error!(resource = %name, ?difference, "Cache consistency check failed");
                "failure"
            }
            Err(error) => {
                tracing::warn!(resource = %name, %error, "Cache consistency check error");
                "error"
            }
        };
        let labels = Labels { group: name.group.clone(), resource: name.resource.clone(), status };
        self.outcomes.get_or_create(&labels).inc();
    }
}

/// The first object that differs, at the cache's revision.
async fn compare(resource: &Resource, store: &dyn Store) -> Result<Option<Difference>, StoreError> {
    let snapshot = resource.cache.snapshot();
    let mut range = Range::prefix(&resource.prefix).limit(PAGE).at(snapshot.revision).uncounted();
    let mut cached = snapshot.objects.iter();
    loop {
        let page = store.range(range.clone()).await?;
        for kv in &page.kvs {
            let (key, stored) = (kv.key.to_string(), Some(kv.mod_revision));
            match cached.next() {
                Some((name, entry)) if **name == *kv.key && entry.revision == kv.mod_revision => {}
                Some((name, entry)) if **name == *kv.key => {
                    return Ok(Some(Difference { key, cached: Some(entry.revision), stored }));
                }
                // Both are in order: what comes first is missing on the other side.
                Some((name, entry)) if **name < *kv.key => {
                    let (key, cached) = (name.to_string(), Some(entry.revision));
                    return Ok(Some(Difference { key, cached, stored: None }));
                }
                _ => return Ok(Some(Difference { key, cached: None, stored })),
            }
        }
        match page.kvs.last() {
            Some(last) if page.more => range.start = format!("{}\0", last.key),
            _ => break,
        }
    }
    Ok(cached.next().map(|(name, entry)| Difference {
        key: name.to_string(),
        cached: Some(entry.revision),
        stored: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_engine::EngineOptions;
    use kaji_meta::{SeededRandom, time::SystemClock};
    use kaji_store::{Txn, memory::MemoryStore};

    async fn engine(store: &Arc<MemoryStore>) -> Arc<Engine> {
        let engine = Engine::open(store.clone(), EngineOptions::default()).await.unwrap();
        let deps = kaji_builtins::Deps::new(Arc::new(SystemClock), Arc::new(SeededRandom::new(1)));
        let maps = kaji_builtins::all(&deps).into_iter().filter(|def| def.kind == "ConfigMap");
        engine.register(maps.collect()).await.unwrap();
        engine
    }

    fn put(name: &str) -> Txn {
        let object = serde_json::json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {
            "name": name, "namespace": "a", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}});
        Txn::put(format!("/registry/core/configmaps/a/{name}"), object.to_string())
    }

    #[tokio::test]
    async fn caches_that_show_what_is_stored() {
        let store = Arc::new(MemoryStore::new().unwrap());
        let engine = engine(&store).await;
        // More than a page.
        for n in 0..PAGE + 7 {
            store.txn(put(&format!("m{n:04}"))).await.unwrap();
        }
        engine.wait_applied(store.revision().await.unwrap()).await;
        let registry = engine.registry();
        let resource = registry.iter().next().unwrap();
        assert_eq!(resource.cache.count(), PAGE + 7);
        assert_eq!(compare(resource, &*store).await.unwrap(), None);
        let checks = CacheChecks::default();
        checks.round(&engine).await;
        let labels = Labels { group: String::new(), resource: "configmaps".into(), status: "success" };
        assert_eq!(checks.outcomes.get_or_create(&labels).get(), 1);
        engine.shutdown().await;
    }

    /// The same objects in another store have other revisions, or are not there.
    #[tokio::test]
    async fn objects_that_differ_are_named() {
        let (store, other) = (Arc::new(MemoryStore::new().unwrap()), Arc::new(MemoryStore::new().unwrap()));
        let engine = engine(&store).await;
        for name in ["m1", "m2", "m3"] {
            store.txn(put(name)).await.unwrap();
            other.txn(put(name)).await.unwrap();
        }
        engine.wait_applied(store.revision().await.unwrap()).await;
        let registry = engine.registry();
        let resource = registry.iter().next().unwrap();
        assert_eq!(compare(resource, &*other).await.unwrap(), None);
        let (former, key) = (engine.applied(), |name: &str| format!("/registry/core/configmaps/a/{name}"));
        store.txn(Txn::delete(key("m2"), former - 1)).await.unwrap();
        other.txn(put("m3")).await.unwrap();
        engine.wait_applied(former + 1).await;
        let missing = Difference { key: key("m2"), cached: None, stored: Some(former - 1) };
        assert_eq!(compare(resource, &*other).await.unwrap(), Some(missing));
        other.txn(Txn::delete(key("m2"), former - 1)).await.unwrap();
        store.txn(put("m1")).await.unwrap();
        engine.wait_applied(former + 2).await;
        let other_revision =
            Difference { key: key("m1"), cached: Some(former + 2), stored: Some(former - 2) };
        assert_eq!(compare(resource, &*other).await.unwrap(), Some(other_revision));
        engine.shutdown().await;
    }
}
