//! Manifests and configurations, by digest.

use super::Store;
use crate::digest::Digest;
use crate::error::{Context, ImageError};
use std::path::PathBuf;

impl Store {
    /// Keeps a document; the caller holds the lock.
    pub(super) fn put_blob(&self, bytes: &[u8]) -> Result<Digest, ImageError> {
        let digest = Digest::of(bytes);
        let path = self.blob_path(&digest);
        if !path.exists() {
            let temporary = self.temporary();
            kaji_files::replace(&temporary, bytes, 0o600).on("write", &temporary)?;
            std::fs::rename(&temporary, &path).on("create", &path)?;
        }
        Ok(digest)
    }

    /// Reads a document, verifying it.
    ///
    /// # Errors
    /// [`ImageError::NotFound`], [`ImageError::Digest`].
    pub fn blob(&self, digest: &Digest) -> Result<Vec<u8>, ImageError> {
        let path = self.blob_path(digest);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(ImageError::NotFound(format!("content {digest}: not found")));
            }
            result => result.on("read", &path)?,
        };
        if Digest::of(&bytes) != *digest {
            return Err(ImageError::Digest(format!("content {digest} is damaged on disk")));
        }
        Ok(bytes)
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root().join("blobs/sha256").join(digest.hex())
    }
}
