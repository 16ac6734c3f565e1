//! Encryption at rest of a cluster: the configuration file, which may be reloaded, and the health of its KMS plugins.
//!
//! Invariants:
//! - A start waits a bounded time for a plugin. If stored values cannot be decrypted then, it fails with the reason: objects
//!   are served from complete caches only.
//! - A reloaded file that cannot be used changes nothing; neither does one with an unhealthy plugin, or one that cannot
//!   decrypt a stored value. It is retried.

use kaji_encryption::{
    Config, ConfigError, Deps, EncryptedStore, Fingerprint, InForce, Metrics, Scrubbing, Transformers,
};
use kaji_meta::{Clock, SystemClock, SystemRandom};
use kaji_options::{EncryptionFile, WatchedFiles};
use kaji_server::{Health, ReloadMetrics};
use kaji_store::Store;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::watch;

/// The key under which a store has a value, which encryption binds the value to.
pub use kaji_encryption::StoredKeys;

/// How values are encrypted.
pub struct Encryption {
    current: InForce,
    reload: Option<Reload>,
    /// Of the file in use; `None` without one.
    fingerprint: Option<watch::Receiver<Fingerprint>>,
}

impl Encryption {
    /// Reads the file. `keys` are those that the store has values under, if not its caller's. `server` is the label of this
    /// server in metrics.
    ///
    /// # Errors
    /// A file that cannot be used. An unavailable plugin is no error.
    pub async fn new(
        file: Option<&EncryptionFile>,
        keys: Option<StoredKeys>,
        server: &str,
        page: &mut kaji_server::Metrics,
    ) -> Result<Encryption, ConfigError> {
        let random = Arc::new(SystemRandom);
        let Some(EncryptionFile { path, follow }) = file else {
            // Encrypted values are distinguished from damaged ones even so.
            return Ok(Encryption {
                current: Transformers::none(random).into(),
                reload: None,
                fingerprint: None,
            });
        };
        let (metrics, reloads) = (Arc::new(Metrics::new(server)), ReloadMetrics::new("encryption", server));
        metrics.register(page.registry());
        reloads.register(page.registry());
        // Upstream's servers neither encrypt nor decrypt what they share beside the resources.
        let unencrypted = crate::internal_keys::is_internal;
        let deps = Deps { metrics, stored_keys: keys, unencrypted, ..Deps::new(random) };
        let data = std::fs::read(path)
            .map_err(|e| ConfigError::Read { path: path.clone(), reason: e.to_string() })?;
        let current = InForce::from(Transformers::begun(&Config::of_file(path, &data)?, &deps).await?);
        reloads.configured(&data);
        let (configured, fingerprint) = watch::channel(Fingerprint::of(&data));
        let reload = follow.then(|| Reload {
            configured,
            file: WatchedFiles::new([(path.clone(), data)]),
            path: path.clone(),
            deps,
            current: current.clone(),
            reloads,
        });
        Ok(Encryption { current, reload, fingerprint: Some(fingerprint) })
    }

    /// Removes the former forms of rewritten values from the files of `inner`, which are in `dir`.
    pub async fn scrubbing(&self, inner: &Arc<dyn Store>, dir: &Path) -> Option<Scrubbing> {
        Scrubbing::new(self.current.clone(), inner.clone(), dir, self.fingerprint.clone()).await
    }

    /// A store that encrypts its values and writes them to `inner`.
    pub fn around(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(EncryptedStore::new(inner, self.current.clone()))
    }

    /// Whether values under a key are written encrypted, by the configuration in force at the time.
    pub fn encrypts(&self) -> Arc<dyn Fn(&str) -> bool + Send + Sync> {
        let current = self.current.clone();
        Arc::new(move |key| current.get().encrypts(key))
    }

    /// Adds the health of plugins to the server's. A reload may add plugins later.
    pub fn add_check(&self, health: &Health) {
        if self.reload.is_some() || self.current.get().has_plugins() {
            let current = self.current.clone();
            let check = move || {
                let transformers = current.get();
                Box::pin(async move { transformers.check().await }) as _
            };
            health.add_slow("kms-providers", Arc::new(check));
        }
    }

    /// Reloads the file when it changes, if that is enabled, until `stop` turns true. `inner` has the encrypted values.
    pub async fn follow(self, inner: Arc<dyn Store>, stop: watch::Receiver<bool>) {
        if let Some(reload) = self.reload {
            reload.run(&*inner, stop).await;
        }
    }
}

/// Watches the file.
struct Reload {
    file: WatchedFiles,
    path: PathBuf,
    deps: Deps,
    current: InForce,
    reloads: ReloadMetrics,
    /// The file in use.
    configured: watch::Sender<Fingerprint>,
}

impl Reload {
    async fn run(mut self, inner: &dyn Store, mut stop: watch::Receiver<bool>) {
        while let Some(found) = self.file.changed(&mut stop).await {
            let outcome = match found.map(|mut files| files.pop().unwrap_or_default()) {
                Ok(data) => self.apply(&data, inner).await.map(|()| data),
                Err(error) => Err(error.to_string()),
            };
            let (path, now) = (self.path.display(), SystemClock.now());
            match outcome {
                Ok(data) => {
                    tracing::info!(%path, "the encryption configuration is reloaded");
                    self.reloads.reloaded(true, now);
                    self.reloads.configured(&data);
                    self.configured.send_replace(Fingerprint::of(&data));
                }
                Err(error) => {
                    tracing::error!(%path, error, "the encryption configuration is not reloaded");
                    self.reloads.reloaded(false, now);
                    // The plugin may become healthy, and unreadable values may be rewritten.
                    self.file.retry();
                }
            }
        }
    }

    async fn apply(&self, data: &[u8], inner: &dyn Store) -> Result<(), String> {
        let config = Config::of_file(&self.path, data).map_err(|e| e.to_string())?;
        let new = Transformers::begun(&config, &self.deps).await.map_err(|e| e.to_string())?;
        new.check().await.map_err(|e| format!("health check for new transformers failed: {e}"))?;
        self.current.replace(new, inner).await.map_err(|e| e.to_string())
    }
}
