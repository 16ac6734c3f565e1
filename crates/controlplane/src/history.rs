//! The history of objects as the options ask for it: an archive in the data directory, fed by the server's store.
//!
//! Invariant: without a data directory that outlives the process there is none.

use kaji_engine::Attributions;
use kaji_history::{DIR, History, HistoryOptions, Sources};
use kaji_meta::time::Clock;
use kaji_options::{HistoryConfig, Options, SecretValues, StoreKind};
use kaji_store::Store;
use std::sync::Arc;

/// The history that the options ask for. `store` has values in the clear, and `encrypts` says which of them are encrypted below it.
pub fn of_options(
    options: &Options,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    encrypts: Arc<dyn Fn(&str) -> bool + Send + Sync>,
) -> Option<Arc<History>> {
    if options.store == StoreKind::Memory {
        return None;
    }
    let HistoryConfig { limits, excluded, secrets } = options.history.clone()?;
    let whole_secrets = secrets == SecretValues::Whole;
    let options = HistoryOptions { dir: options.data_dir.join(DIR), limits, excluded, whole_secrets };
    let attributions = Arc::new(Attributions::default());
    let sources = Sources { store: store.clone(), attributions, clock: clock.clone(), encrypts };
    Some(History::new(options, sources))
}
