//! Opening the store that the options name, and the layers around it: encryption, and the media type of values.
//!
//! Invariant: above the layers every value is JSON in the clear, whichever server wrote it and however.

use crate::{
    OpenError, STORE,
    encryption::{Encryption, StoredKeys},
    etcd_metrics::EtcdMetrics,
    internal_keys,
    media::{Defaults, MediaStore},
};
use kaji_builtins::Deps;
use kaji_etcd::{EtcdOptions, EtcdStore, KeyMap, KeyMapError, Observer};
use kaji_meta::{
    Features, ServedVersions, SystemRandom,
    time::{Clock, SystemClock},
};
use kaji_options::{EtcdConfig, Options, StoreKind};
use kaji_resource::ResourceDef;
use kaji_server::Metrics;
use kaji_store::{
    Store, StoreError,
    disk::{DiskOptions, DiskStore},
    memory::{MemoryOptions, MemoryStore},
};
use std::{collections::HashMap, path::Path, sync::Arc};

/// Where upstream has the objects of built-in resources, below a prefix.
fn keys(prefix: &str) -> Result<KeyMap, KeyMapError> {
    let defs = definitions();
    let internal = [internal_keys::ALLOCATIONS, internal_keys::SERVERS];
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
            let api_version = kaji_meta::gvk::api_version(&def.group, &version.name);
            hooks.insert((api_version, def.kind.to_string()), (def.hooks.clone(), version.name.to_string()));
        }
    }
    Arc::new(move |api_version, kind, object| {
        if let Some((hooks, version)) = hooks.get(&(api_version.to_owned(), kind.to_owned())) {
            hooks.default(version, object);
            hooks.complete_stored(object);
        }
    })
}

/// The keys that encryption binds values to, where they are not those of this program.
///
/// # Errors
/// Resources that cannot have keys in etcd.
pub fn stored_keys(options: &Options) -> Result<Option<StoredKeys>, OpenError> {
    let StoreKind::Etcd(config) = &options.store else { return Ok(None) };
    let keys = keys(&config.prefix)?;
    Ok(Some(Arc::new(move |key| keys.key(key).ok())))
}

/// Opens the store that the options name. `clock` is that of objects, by which leases in memory end.
///
/// # Errors
/// Those of the store, and of the layout of keys in etcd.
pub async fn open(
    options: &Options,
    clock: &Arc<dyn Clock>,
    metrics: &mut Metrics,
) -> Result<Arc<dyn Store>, OpenError> {
    Ok(match &options.store {
        StoreKind::Memory => {
            let clock = Arc::new(StoreClock(clock.clone()));
            Arc::new(MemoryStore::with_options(MemoryOptions { clock, ..MemoryOptions::default() })?)
        }
        StoreKind::Disk => open_disk(options).await?,
        StoreKind::Etcd(config) => {
            let observer = EtcdMetrics::new(metrics.registry());
            open_etcd(config, Some(Arc::new(observer))).await?
        }
    })
}

/// The clock of objects, in milliseconds, as the store's leases use it.
struct StoreClock(Arc<dyn Clock>);

impl kaji_store::Clock for StoreClock {
    fn now_millis(&self) -> u64 {
        u64::try_from(self.0.now().as_millisecond()).unwrap_or(0)
    }
}

/// Values in the clear, as JSON, of the store that the options name.
pub fn around(options: &Options, raw: Arc<dyn Store>, encryption: &Encryption) -> Arc<dyn Store> {
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
) -> Result<Arc<dyn Store>, OpenError> {
    let options = EtcdOptions::new(config.endpoints.clone(), keys(&config.prefix)?);
    let options = match observer {
        Some(observer) => EtcdOptions { compaction: config.compaction, observer, ..options },
        None => EtcdOptions { compaction: None, ..options },
    };
    Ok(Arc::new(EtcdStore::open(options).await?))
}

pub(crate) async fn open_disk(options: &Options) -> Result<Arc<dyn Store>, OpenError> {
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
