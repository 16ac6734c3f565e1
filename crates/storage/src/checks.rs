//! The health of a store, as `/readyz` and `/livez` report it.
//!
//! Invariants: a check ends within its time limit; a check of a store on disk writes only while its last write failed, and then
//! changes no revision.

use kaji_options::{EtcdConfig, StoreKind};
use kaji_server::{Health, SlowCheck};
use kaji_store::Store;
use std::{
    sync::{Arc, Weak},
    time::Duration,
};

/// How long a check of the store may take, unless a flag says otherwise.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Adds upstream's checks `etcd` and `etcd-readiness` of a store to the server's health.
pub fn add(health: &Health, store: &Arc<dyn Store>, kind: &StoreKind) {
    let store = Arc::downgrade(store);
    match kind {
        StoreKind::Etcd(config) => {
            let EtcdConfig { readiness_timeout, .. } = **config;
            health.add_readiness("etcd-readiness", answers(&store, readiness_timeout));
            health.add_slow("etcd", answers(&store, PROBE_TIMEOUT));
        }
        StoreKind::Disk | StoreKind::Memory => {
            let writable = store.clone();
            let check: SlowCheck = Arc::new(move || Box::pin(can_write(writable.upgrade())));
            health.add_readiness("etcd-readiness", check);
            let open = move || store.upgrade().map(drop).ok_or_else(|| "the store is closed".to_owned());
            health.add("etcd", Arc::new(open));
        }
    }
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
