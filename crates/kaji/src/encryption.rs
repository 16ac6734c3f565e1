//! Encryption at rest in a cluster: the file that a flag names, and the health of the KMS plugins that it names.
//!
//! Invariant: a start waits a bounded time for a plugin. If what is stored cannot be read then, it fails and says why, since
//! whatever is served is read from memory: who served half of it would deny objects that are there.

use kaji_encryption::{Config, ConfigError, Deps, EncryptedStore, Metrics, Transformers};
use kaji_meta::SystemRandom;
use kaji_server::Health;
use kaji_store::Store;
use std::{path::Path, sync::Arc, time::Duration};

/// How long a start waits for plugins that are not well, and as long as one call may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// How values are encrypted.
pub struct Encryption(Arc<Transformers>);

impl Encryption {
    /// As a file says. `server` is the name by which metrics know this one.
    ///
    /// # Errors
    /// A file that cannot be used. A plugin that is away is none.
    pub async fn new(
        file: Option<&Path>,
        server: &str,
        page: &mut kaji_server::Metrics,
    ) -> Result<Encryption, ConfigError> {
        let random = Arc::new(SystemRandom);
        let Some(file) = file else {
            // Values that were encrypted are told apart from damaged ones even so.
            return Ok(Encryption(Arc::new(Transformers::none(random))));
        };
        let metrics = Arc::new(Metrics::new(server));
        metrics.register(page.registry());
        let deps = Deps { metrics, ..Deps::new(random) };
        let transformers = Transformers::new(&Config::read(file)?, &deps)?;
        transformers.begin(PATIENCE).await;
        Ok(Encryption(Arc::new(transformers)))
    }

    /// A store that keeps its values in this one.
    pub fn around(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(EncryptedStore::new(inner, self.0.clone()))
    }

    /// Makes plugins part of the server's health.
    pub fn add_check(self, health: &Health) {
        if self.0.has_plugins() {
            let check = move || {
                let transformers = self.0.clone();
                Box::pin(async move { transformers.check().await }) as _
            };
            health.add_slow("kms-providers", Arc::new(check));
        }
    }
}
