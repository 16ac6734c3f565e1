//! Leases: what containers use stays, also when its image is removed. A lease is a file, since containers outlive processes.

use super::Store;
use crate::digest::Digest;
use crate::error::{Context, ImageError};
use kaji_containers::{ImageConfig, ImageLayers};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

const MAX_OWNER: usize = 200;

/// What an owner uses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lease {
    pub id: Digest,
    pub layers: Vec<Digest>,
    config: ImageConfig,
}

impl Store {
    /// Keeps the layers of an image for an owner, and answers them.
    ///
    /// # Errors
    /// [`ImageError::NotFound`], [`ImageError::Leased`]; [`ImageError::Invalid`] for an owner that is no file name.
    pub fn lease(&self, name: &str, owner: &str) -> Result<ImageLayers, ImageError> {
        let path = self.lease_path(owner)?;
        let _lock = self.lock()?;
        let record = self.find(name)?;
        if let Some(lease) = self.read_lease(owner)? {
            // The image may have been removed since.
            if record.is_some_and(|record| record.id != lease.id) {
                return Err(ImageError::Leased(format!("{owner} has a lease on {} already", lease.id)));
            }
            return Ok(self.layers_of(&lease.id, &lease.layers, lease.config));
        }
        let record = record.ok_or_else(|| ImageError::NotFound(format!("image {name:?}: not found")))?;
        let lease = Lease { id: record.id.clone(), layers: record.layers, config: record.config.clone() };
        let text = serde_json::to_vec(&lease).map_err(|error| ImageError::Invalid(error.to_string()))?;
        let workspace = self.temporary();
        kaji_files::replace(&workspace, &text, 0o600).on("write", &workspace)?;
        std::fs::rename(&workspace, &path).on("create", &path)?;
        Ok(self.layers_of(&lease.id, &lease.layers, lease.config))
    }

    /// Ends an owner's lease; one that does not exist is ended already. Layers that nothing uses any more are removed.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn release(&self, owner: &str) -> Result<(), ImageError> {
        let path = self.lease_path(owner)?;
        let _lock = self.lock()?;
        let Some(lease) = self.read_lease(owner)? else { return Ok(()) };
        std::fs::remove_file(&path).on("remove", &path)?;
        let index = self.read_index()?;
        if index.images.iter().any(|image| image.id == lease.id) {
            return Ok(());
        }
        self.collect(&index)
    }

    /// The owners of leases.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn lease_owners(&self) -> Result<Vec<String>, ImageError> {
        let directory = self.root().join("leases");
        let mut owners = vec![];
        for entry in std::fs::read_dir(&directory).on("read", &directory)? {
            owners.extend(entry.on("read", &directory)?.file_name().into_string());
        }
        owners.sort();
        Ok(owners)
    }

    pub(super) fn read_lease(&self, owner: &str) -> Result<Option<Lease>, ImageError> {
        let path = self.lease_path(owner)?;
        let text = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            result => result.on("read", &path)?,
        };
        let invalid = |error| ImageError::Invalid(format!("{}: {error}", path.display()));
        serde_json::from_slice(&text).map(Some).map_err(invalid)
    }

    fn lease_path(&self, owner: &str) -> Result<PathBuf, ImageError> {
        let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if owner.is_empty() || owner.len() > MAX_OWNER || owner.starts_with('.') || !owner.bytes().all(word) {
            return Err(ImageError::Invalid(format!("{owner:?} cannot be the owner of a lease")));
        }
        Ok(self.root().join("leases").join(owner))
    }
}
