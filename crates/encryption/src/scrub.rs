//! Scrubbing: former forms of encrypted or deleted values do not stay readable in the store's files.
//!
//! A rewritten value leaves its former one in the store's history and in free pages of its file. Once all values of a
//! resource are stored under the current configuration, the store is scrubbed: its history is compacted and its file is
//! rewritten. `kaji store scrub` does both for a store that no server has open.
//!
//! Invariants:
//! - A scrub follows the rewrite of the last of a resource's values, after a quiet period; it does not follow every write of a
//!   value that was stored under a former configuration.
//! - Which configuration the files were scrubbed under is recorded beside them, so that neither a server that was killed
//!   before it scrubbed nor values that were deleted before there was encryption are forgotten.

use crate::{Config, ConfigError, Deps, EncryptedStore, InForce, Transformers};
use kaji_meta::SystemRandom;
use kaji_store::{
    Revision, Store, StoreError,
    disk::{DiskOptions, DiskStore},
};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;

/// The record, in the store's directory.
const RECORD: &str = "SCRUBBED";
/// The revision of a store in which nothing was ever written.
const EMPTY: Revision = 1;
/// A rewrite is complete once no value was rewritten for this long.
const QUIET_PERIOD: Duration = Duration::from_secs(2);
/// The pause after a scrub that failed.
const RETRY: Duration = Duration::from_secs(60);

/// Identifies a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Of a configuration file.
    pub fn of(data: &[u8]) -> Fingerprint {
        Fingerprint(kaji_meta::text::hex(&Sha256::digest(data)))
    }
}

/// Scrubs a store when its values have been rewritten.
pub struct Scrubbing {
    current: InForce,
    inner: Arc<dyn Store>,
    record: PathBuf,
    configured: watch::Receiver<Fingerprint>,
}

impl Scrubbing {
    /// For the store in a directory; `None` without encryption.
    pub async fn new(
        current: InForce,
        inner: Arc<dyn Store>,
        dir: &Path,
        configured: Option<watch::Receiver<Fingerprint>>,
    ) -> Option<Scrubbing> {
        let record = dir.join(RECORD);
        let Some(configured) = configured else {
            // Values are not encrypted from now on.
            match fs::remove_file(&record) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %record.display(), %error, "cannot be removed");
                }
                _ => {}
            }
            return None;
        };
        let scrubbing = Scrubbing { current, inner, record, configured };
        if scrubbing.inner.current_revision_hint() == Some(EMPTY) {
            scrubbing.note();
        }
        Some(scrubbing)
    }

    /// Whether the files were scrubbed under the configuration in force.
    fn recorded(&self) -> bool {
        fs::read_to_string(&self.record).is_ok_and(|text| text == self.configured.borrow().0)
    }

    fn note(&self) {
        let fingerprint = self.configured.borrow().0.clone();
        if let Err(error) = kaji_files::replace(&self.record, fingerprint.as_bytes(), kaji_files::PRIVATE) {
            tracing::warn!(path = %self.record.display(), %error, "the next start scrubs the store again");
        }
    }

    /// Runs until `stop` turns true.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut waiting = BTreeSet::new();
        let mut due = !self.recorded();
        loop {
            if !due {
                tokio::select! {
                    biased;
                    _ = stop.wait_for(|stop| *stop) => return,
                    () = self.current.replaced().next() => {}
                    Ok(()) = self.configured.changed() => {}
                }
            }
            // Until it is quiet.
            while tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                () = self.current.replaced().next() => true,
                Ok(()) = self.configured.changed() => true,
                () = tokio::time::sleep(QUIET_PERIOD) => false,
            } {}
            waiting.append(&mut self.current.replaced().take());
            due = false;
            if let Err(error) = self.round(&mut waiting).await {
                tracing::error!(%error, "the store is not scrubbed: former values may still be in its files");
                tokio::select! {
                    biased;
                    _ = stop.wait_for(|stop| *stop) => return,
                    () = tokio::time::sleep(RETRY) => due = true,
                }
            }
        }
    }

    /// Scrubs if a resource of which values were replaced, or the whole store, holds nothing any more that would be stored
    /// otherwise now.
    async fn round(&self, waiting: &mut BTreeSet<String>) -> Result<(), StoreError> {
        let mut done = BTreeSet::new();
        for prefix in waiting.iter() {
            if !self.current.stale_below(&*self.inner, prefix).await? {
                done.insert(prefix.clone());
            }
        }
        let recorded = self.recorded();
        let all = !recorded && !self.current.stale_below(&*self.inner, "/").await?;
        if done.is_empty() && !all {
            return Ok(());
        }
        self.inner.scrub().await?;
        waiting.retain(|prefix| !done.contains(prefix));
        if all {
            self.note();
        }
        Ok(())
    }
}

/// Why a store was not scrubbed.
#[derive(Debug, thiserror::Error)]
pub enum ScrubError {
    /// There is none.
    #[error("there is no store in {0}")]
    Missing(PathBuf),
    /// The encryption configuration.
    #[error("error while parsing file: {0}")]
    Encryption(#[from] ConfigError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Scrubs the store in a directory, which no server may have open. With a configuration, values that it would store differently
/// are rewritten before. Returns their number.
///
/// # Errors
/// When the store or the configuration cannot be used, or a value cannot be read.
pub async fn scrub(dir: &Path, configuration: Option<&Path>) -> Result<usize, ScrubError> {
    // Opening would make one.
    if !dir.is_dir() {
        return Err(ScrubError::Missing(dir.into()));
    }
    let begun = match configuration {
        None => None,
        Some(path) => {
            let data =
                fs::read(path).map_err(|e| ConfigError::Read { path: path.into(), reason: e.to_string() })?;
            let deps = Deps::new(Arc::new(SystemRandom));
            Some((Transformers::begun(&Config::of_file(path, &data)?, &deps).await?, Fingerprint::of(&data)))
        }
    };
    let opened = {
        let (dir, disk) = (dir.to_owned(), DiskOptions { erase_replaced: true, ..DiskOptions::default() });
        tokio::task::spawn_blocking(move || DiskStore::open(dir, disk)).await
    };
    let inner: Arc<dyn Store> = Arc::new(opened.map_err(|e| StoreError::Unavailable(e.to_string()))??);
    let written = match begun {
        None => inner.scrub().await.map(|()| 0),
        Some((transformers, fingerprint)) => {
            let store = EncryptedStore::new(inner.clone(), transformers);
            let written = async {
                let written = store.rewrite().await?;
                inner.scrub().await.map(|()| written)
            };
            let written = written.await;
            if written.is_ok() {
                let path = dir.join(RECORD);
                kaji_files::replace(&path, fingerprint.0.as_bytes(), kaji_files::PRIVATE)
                    .map_err(|e| StoreError::Unavailable(format!("{}: {e}", path.display())))?;
            }
            written
        }
    };
    inner.close().await;
    Ok(written?)
}
