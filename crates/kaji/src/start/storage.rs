//! The store of a cluster: opened as the options say, with the encryption and the media type of its values, and its health.
//!
//! Invariant: what the engine reads is JSON in the clear, whichever server wrote it and however.

use super::{Settings, Storage, StoreClock};
use crate::{
    cluster::{STORE, StartError},
    encryption::{Encryption, StoredKeys},
    etcd_metrics::EtcdMetrics,
    snapshots, storage_keys,
    storage_media::{Defaults, MediaStore},
};
use kaji_builtins::Deps;
use kaji_etcd::{EtcdOptions, EtcdStore, KeyMap, KeyMapError, Observer};
use kaji_meta::{Features, ServedVersions, SystemRandom, time::SystemClock};
use kaji_options::{EtcdConfig, Options, StoreKind};
use kaji_resource::ResourceDef;
use kaji_server::{Metrics, SlowCheck, SnapshotSource, Stack};
use kaji_store::{
    Store, StoreError,
    archive::Layout,
    disk::{DiskOptions, DiskStore},
    memory::{MemoryOptions, MemoryStore},
};
use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Weak},
    time::Duration,
};

/// How long a check of the store may take, unless a flag says otherwise.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Where upstream has the objects of built-in resources, below a prefix.
fn keys(prefix: &str) -> Result<KeyMap, KeyMapError> {
    let defs = definitions();
    let internal = [storage_keys::ALLOCATIONS, storage_keys::SERVERS];
    let stored = defs.iter().filter(|def| def.stored && def.shares_storage_of.is_none());
    KeyMap::resources(
        prefix,
        stored
            .map(|def| {
                let group = if def.group.is_empty() { "core" } else { &def.group };
                (format!("{group}/{}", def.plural), def.storage_prefix.to_string())
            })
            .chain(internal.map(|(resource, prefix)| (resource.to_owned(), prefix.to_owned()))),
    )
}

/// The built-in resources, those too that are not served by default, for their names and defaults.
fn definitions() -> Vec<ResourceDef> {
    let deps = Deps::new(Arc::new(SystemClock), Arc::new(SystemRandom));
    kaji_builtins::all(&Deps { features: Features::ALL, served: ServedVersions::all(), ..deps })
}

/// The defaults that upstream's API server fills in when it reads an object, of the version that it was stored in.
pub(crate) fn defaults() -> Defaults {
    let mut hooks = HashMap::new();
    for def in definitions() {
        for version in &def.versions {
            let api_version = match def.group.is_empty() {
                true => version.name.to_string(),
                false => format!("{}/{}", def.group, version.name),
            };
            hooks.insert((api_version, def.kind.to_string()), (def.hooks.clone(), version.name.to_string()));
        }
    }
    Arc::new(move |api_version, kind, object| {
        if let Some((hooks, version)) = hooks.get(&(api_version.to_owned(), kind.to_owned())) {
            hooks.default(version, object);
        }
    })
}

/// The keys that encryption binds values to, where they are not those of this program.
pub(crate) fn stored_keys(options: &Options) -> Result<Option<StoredKeys>, StartError> {
    let StoreKind::Etcd(config) = &options.store else { return Ok(None) };
    let keys = keys(&config.prefix)?;
    Ok(Some(Arc::new(move |key| keys.key(key).ok())))
}

impl Settings {
    /// Opens the store that the options name.
    pub async fn open_store(&self, metrics: &mut Metrics) -> Result<Arc<dyn Store>, StartError> {
        if let Some(store) = &self.environment.store {
            return Ok(store.clone());
        }
        Ok(match &self.options.store {
            StoreKind::Memory => {
                let clock = Arc::new(StoreClock(self.object_clock.clone()));
                Arc::new(MemoryStore::with_options(MemoryOptions { clock, ..MemoryOptions::default() })?)
            }
            StoreKind::Disk => open_disk(&self.options).await?,
            StoreKind::Etcd(config) => {
                let observer = EtcdMetrics::new(metrics.registry());
                open_etcd(config, Some(Arc::new(observer))).await?
            }
        })
    }

    /// What the engine gets: values in the clear, as JSON.
    pub fn around(&self, raw: Arc<dyn Store>, encryption: &Encryption) -> Arc<dyn Store> {
        around(&self.options, raw, encryption)
    }
}

impl Storage {
    /// Where snapshots come from: values as the store has them.
    pub fn snapshots(&self, options: &Options) -> SnapshotSource {
        let layout = match options.store {
            StoreKind::Etcd(_) => Layout::Etcd,
            StoreKind::Disk | StoreKind::Memory => Layout::Embedded,
        };
        snapshots::source(self.raw_store.clone(), layout)
    }
}

/// Values in the clear, as JSON, of the store that the options name.
pub(crate) fn around(options: &Options, raw: Arc<dyn Store>, encryption: &Encryption) -> Arc<dyn Store> {
    let clear = encryption.around(raw);
    match &options.store {
        StoreKind::Etcd(config) => Arc::new(MediaStore::new(clear, config.media_type, defaults())),
        StoreKind::Disk | StoreKind::Memory => clear,
    }
}

/// Opens a store on etcd. Without an observer it is a tool's, which leaves compaction to servers.
pub(crate) async fn open_etcd(
    config: &EtcdConfig,
    observer: Option<Arc<dyn Observer>>,
) -> Result<Arc<dyn Store>, StartError> {
    let options = EtcdOptions::new(config.endpoints.clone(), keys(&config.prefix)?);
    let options = match observer {
        Some(observer) => EtcdOptions { compaction: config.compaction, observer, ..options },
        None => EtcdOptions { compaction: None, ..options },
    };
    Ok(Arc::new(EtcdStore::open(options).await?))
}

pub(crate) async fn open_disk(options: &Options) -> Result<Arc<dyn Store>, StartError> {
    let dir = options.data_dir.clone();
    let disk = DiskOptions { erase_replaced: options.encryption.is_some(), ..DiskOptions::default() };
    let opened = tokio::task::spawn_blocking(move || {
        kaji_files::parent_of_private(&dir)
            .map_err(|e| StoreError::Unavailable(format!("{}: {e}", dir.display())))?;
        DiskStore::open(dir.join(STORE), disk)
    });
    let opened = opened.await.map_err(|e| StoreError::Unavailable(e.to_string()))?;
    Ok(Arc::new(opened.map_err(|error| with_remedy(error, &options.data_dir))?))
}

/// Says what to do about a store that is damaged.
fn with_remedy(error: StoreError, data_dir: &Path) -> StoreError {
    let StoreError::Corrupt(what) = error else { return error };
    let dir = data_dir.display();
    StoreError::Corrupt(format!(
        "{what}\n`kaji store check --data-dir {dir}` says what is damaged and what is intact; `kaji store salvage {dir} NEW_DIRECTORY` \
         makes a store of what is intact; `kaji snapshot restore` makes one of a snapshot. Nothing has been changed"
    ))
}

pub(super) fn add_checks(stack: &Stack, storage: &Storage, options: &Options) {
    let engine = Arc::downgrade(&stack.engine);
    let store = Arc::downgrade(&storage.store);
    let health = &stack.health;
    let closed = |what: &str| format!("{what} is closed");
    match &options.store {
        StoreKind::Etcd(config) => {
            let EtcdConfig { readiness_timeout, .. } = **config;
            health.add_readiness("etcd-readiness", answers(&store, readiness_timeout));
            health.add_slow("etcd", answers(&store, PROBE_TIMEOUT));
        }
        StoreKind::Disk | StoreKind::Memory => {
            let writable = store.clone();
            let check: SlowCheck = Arc::new(move || Box::pin(can_write(writable.upgrade())));
            health.add_readiness("etcd-readiness", check);
            health
                .add("etcd", Arc::new(move || store.upgrade().map(drop).ok_or_else(|| closed("the store"))));
        }
    }
    let engine_check = move || engine.upgrade().map(drop).ok_or_else(|| closed("the engine"));
    health.add("informer-sync", Arc::new(engine_check));
    storage.encryption.add_check(health);
}

/// Whether a remote store answers a read in time.
fn answers(store: &Weak<dyn Store>, timeout: Duration) -> SlowCheck {
    let store = store.clone();
    Arc::new(move || {
        let store = store.upgrade();
        Box::pin(async move {
            let store = store.ok_or("the store is closed")?;
            match tokio::time::timeout(timeout, store.revision()).await {
                Ok(answer) => answer.map(drop).map_err(|error| error.to_string()),
                Err(_) => Err("error getting data from etcd: context deadline exceeded".into()),
            }
        })
    })
}

/// Whether the store can write. While its last write failed this writes a lease and removes it, which changes no revision:
/// a server without traffic would not become ready again otherwise.
async fn can_write(store: Option<Arc<dyn Store>>) -> Result<(), String> {
    let store = store.ok_or("the store is closed")?;
    let Some(failure) = store.write_failure() else { return Ok(()) };
    let probe = async { store.revoke(store.grant_lease(Duration::from_secs(60)).await?).await };
    match tokio::time::timeout(PROBE_TIMEOUT, probe).await {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(_) => Err(failure.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::keys;

    /// The layout of upstream's `DefaultStorageFactory`, as a running kube-apiserver of 1.36 has it.
    #[test]
    fn built_in_resources_have_upstreams_keys() {
        let keys = keys("/registry").unwrap();
        for (here, there) in [
            ("core/pods/ns/a", "pods/ns/a"),
            ("core/nodes/a", "minions/a"),
            ("core/services/ns/a", "services/specs/ns/a"),
            ("core/endpoints/ns/a", "services/endpoints/ns/a"),
            ("core/replicationcontrollers/ns/a", "controllers/ns/a"),
            ("core/events/ns/a", "events/ns/a"),
            ("apps/deployments/ns/a", "deployments/ns/a"),
            ("networking.k8s.io/ingresses/ns/a", "ingress/ns/a"),
            ("coordination.k8s.io/leases/ns/a", "leases/ns/a"),
            ("apiregistration.k8s.io/apiservices/v1.", "apiregistration.k8s.io/apiservices/v1."),
            (
                "apiextensions.k8s.io/customresourcedefinitions/a.b",
                "apiextensions.k8s.io/customresourcedefinitions/a.b",
            ),
            ("ex.io/pods/ns/a", "ex.io/pods/ns/a"),
        ] {
            let (here, there) = (format!("/registry/{here}"), format!("/registry/{there}"));
            assert_eq!(keys.key(&here).unwrap(), there);
            assert_eq!(keys.name(there.as_bytes()), Some(here));
        }
    }
}
