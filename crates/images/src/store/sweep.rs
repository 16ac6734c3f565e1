//! Removes what nothing names.

use super::Store;
use super::index::Index;
use super::layers::layer_name;
use crate::error::{Context, ImageError};
use std::collections::HashSet;
use std::sync::PoisonError;

impl Store {
    /// Removes what killed processes left: unfinished work, and layers and documents that neither an image nor a lease names.
    /// For the start of a process that owns the store.
    ///
    /// # Errors
    /// The store cannot be read or changed.
    pub fn sweep(&self) -> Result<(), ImageError> {
        let _lock = self.lock()?;
        self.remove_abandoned()?;
        let index = self.read_index()?;
        self.collect(&index)
    }

    /// Removes layers and documents that nothing names; the caller holds the lock.
    pub(super) fn collect(&self, index: &Index) -> Result<(), ImageError> {
        let mut used: HashSet<String> = HashSet::new();
        let mut blobs: HashSet<&str> = HashSet::new();
        for image in &index.images {
            used.extend(image.layers.iter().map(|chain| layer_name(chain).to_owned()));
            blobs.extend([image.id.hex(), image.manifest.hex()]);
        }
        for owner in self.lease_owners()? {
            let lease = self.read_lease(&owner)?;
            used.extend(
                lease.iter().flat_map(|lease| &lease.layers).map(|chain| layer_name(chain).to_owned()),
            );
        }
        {
            let making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
            used.extend(making.keys().map(|chain| layer_name(chain).to_owned()));
        }
        self.remove_layers(|name| used.contains(name))?;
        let directory = self.root().join("blobs/sha256");
        for entry in std::fs::read_dir(&directory).on("read", &directory)? {
            let entry = entry.on("read", &directory)?;
            if entry.file_name().to_str().is_none_or(|name| !blobs.contains(name)) {
                let path = entry.path();
                std::fs::remove_file(&path).on("remove", &path)?;
            }
        }
        Ok(())
    }
}
