//! Encryption at rest in a cluster: the file that a flag names, which may be followed, and the health of the KMS plugins
//! that it names.
//!
//! Invariants:
//! - A start waits a bounded time for a plugin. If what is stored cannot be read then, it fails and says why, since
//!   whatever is served is read from memory: who served half of it would deny objects that are there.
//! - A file that is followed and cannot be used changes nothing; nor does one whose plugins are not well, or with which
//!   something that is stored could not be read. It is tried again.

use crate::{
    follow::Followed,
    scrub::{Fingerprint, Scrubbing},
};
use kaji_encryption::{Config, ConfigError, Deps, EncryptedStore, InForce, Metrics, Transformers};
use kaji_meta::{Clock, SystemClock, SystemRandom};
use kaji_server::{Health, ReloadMetrics};
use kaji_store::Store;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;

/// How long a start waits for plugins that are not well, and as long as one call may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The file that says which values are encrypted, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptionFile {
    /// An `EncryptionConfiguration` (`--encryption-provider-config`).
    pub path: PathBuf,
    /// Whether it is followed (`--encryption-provider-config-automatic-reload`).
    pub follow: bool,
}

impl EncryptionFile {
    /// As upstream's two flags have it.
    ///
    /// # Errors
    /// When there is no file to follow.
    pub fn from_flags(path: Option<PathBuf>, follow: bool) -> Result<Option<EncryptionFile>, String> {
        match path {
            None if follow => Err(
                "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"
                    .into(),
            ),
            path => Ok(path.map(|path| EncryptionFile { path, follow })),
        }
    }
}

/// How values are encrypted.
pub struct Encryption {
    current: InForce,
    reload: Option<Reload>,
    /// Of the file in force; `None` without one.
    fingerprint: Option<watch::Receiver<Fingerprint>>,
}

impl Encryption {
    /// As a file says. `server` is the name by which metrics know this one.
    ///
    /// # Errors
    /// A file that cannot be used. A plugin that is away is none.
    pub async fn new(
        file: Option<&EncryptionFile>,
        server: &str,
        page: &mut kaji_server::Metrics,
    ) -> Result<Encryption, ConfigError> {
        let random = Arc::new(SystemRandom);
        let Some(EncryptionFile { path, follow }) = file else {
            // Values that were encrypted are told apart from damaged ones even so.
            return Ok(Encryption {
                current: Transformers::none(random).into(),
                reload: None,
                fingerprint: None,
            });
        };
        let (metrics, reloads) = (Arc::new(Metrics::new(server)), ReloadMetrics::new("encryption", server));
        metrics.register(page.registry());
        reloads.register(page.registry());
        let deps = Deps { metrics, ..Deps::new(random) };
        let data = std::fs::read(path)
            .map_err(|e| ConfigError::Read { path: path.clone(), reason: e.to_string() })?;
        let current = InForce::from(begun(path, &data, &deps).await?);
        reloads.configured(&data);
        let (configured, fingerprint) = watch::channel(Fingerprint::of(&data));
        let reload = follow.then(|| Reload {
            configured,
            file: Followed::new([(path.clone(), data)]),
            path: path.clone(),
            deps,
            current: current.clone(),
            reloads,
        });
        Ok(Encryption { current, reload, fingerprint: Some(fingerprint) })
    }

    /// Keeps values that were written anew from staying in the files of `inner`, which are in `dir`.
    pub async fn scrubbing(&self, inner: &Arc<dyn Store>, dir: &Path) -> Option<Scrubbing> {
        Scrubbing::new(self.current.clone(), inner.clone(), dir, self.fingerprint.clone()).await
    }

    /// A store that keeps its values in this one.
    pub fn around(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(EncryptedStore::new(inner, self.current.clone()))
    }

    /// Makes plugins part of the server's health. While a file is followed there may be some later.
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

    /// Follows the file, if it is to be, until told to stop. `inner` is the store that holds encrypted values.
    pub async fn follow(self, inner: Arc<dyn Store>, stop: watch::Receiver<bool>) {
        if let Some(reload) = self.reload {
            reload.run(&*inner, stop).await;
        }
    }
}

/// A configuration whose plugins have been asked once.
pub(crate) async fn begun(path: &Path, data: &[u8], deps: &Deps) -> Result<Arc<Transformers>, ConfigError> {
    let transformers = Transformers::new(&Config::of_file(path, data)?, deps)?;
    transformers.begin(PATIENCE).await;
    Ok(Arc::new(transformers))
}

/// Follows the file.
struct Reload {
    file: Followed,
    path: PathBuf,
    deps: Deps,
    current: InForce,
    reloads: ReloadMetrics,
    /// Tells of the file in force.
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
                    // Plugins come, and what cannot be read may be written anew.
                    self.file.again();
                }
            }
        }
    }

    async fn apply(&self, data: &[u8], inner: &dyn Store) -> Result<(), String> {
        let new = begun(&self.path, data, &self.deps).await.map_err(|e| e.to_string())?;
        new.check().await.map_err(|e| format!("health check for new transformers failed: {e}"))?;
        self.current.replace(new, inner).await.map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags() {
        let file = |follow| Some(EncryptionFile { path: "f".into(), follow });
        assert_eq!(EncryptionFile::from_flags(None, false), Ok(None));
        assert_eq!(EncryptionFile::from_flags(Some("f".into()), false), Ok(file(false)));
        assert_eq!(EncryptionFile::from_flags(Some("f".into()), true), Ok(file(true)));
        assert_eq!(
            EncryptionFile::from_flags(None, true).unwrap_err(),
            "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"
        );
    }
}
