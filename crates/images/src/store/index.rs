//! The index of images: one file, replaced as a whole, read again when it is another one.

use super::Store;
use crate::digest::Digest;
use crate::error::{Context, ImageError};
use crate::reference::Reference;
use kaji_containers::ImageConfig;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, PoisonError};

const FILE: &str = "index.json";
const VERSION: u32 = 1;
/// The least part of an id that names an image.
const MIN_ID: usize = 6;

/// An image in the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageRecord {
    /// Digest of the configuration.
    pub id: Digest,
    /// Digest of the manifest.
    pub manifest: Digest,
    /// `docker.io/library/nginx:latest`.
    pub repo_tags: BTreeSet<String>,
    /// `docker.io/library/nginx@sha256:…`.
    pub repo_digests: BTreeSet<String>,
    /// Chain ids of its layers, the lowest first.
    pub layers: Vec<Digest>,
    /// Bytes of its files, unpacked.
    pub size: u64,
    /// How containers run.
    pub config: ImageConfig,
    /// It is not garbage-collected.
    #[serde(default)]
    pub pinned: bool,
    /// Nanoseconds since the epoch when it came into the store.
    pub added_nanos: i64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Index {
    version: u32,
    pub images: Vec<ImageRecord>,
}

/// Tells files of the same name apart: each replacement is a new inode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Index {
    pub fn find(&self, name: &str) -> Option<&ImageRecord> {
        let id = name.strip_prefix("sha256:").unwrap_or(name);
        if id.len() >= MIN_ID && id.bytes().all(|b| b.is_ascii_hexdigit()) {
            let mut found = self.images.iter().filter(|image| image.id.hex().starts_with(id));
            if let (Some(image), None) = (found.next(), found.next()) {
                return Some(image);
            }
        }
        let reference = Reference::parse(name).ok()?;
        if let Some(digest) = reference.digest() {
            let name = reference.repo_digest(digest);
            return self.images.iter().find(|image| image.repo_digests.contains(&name));
        }
        let tag = reference.repo_tag()?;
        self.images.iter().find(|image| image.repo_tags.contains(&tag))
    }

    /// Adds an image or its names; a name belongs to one image only.
    pub fn add(&mut self, mut record: ImageRecord) {
        for image in &mut self.images {
            image.repo_tags.retain(|tag| !record.repo_tags.contains(tag));
            image.repo_digests.retain(|digest| !record.repo_digests.contains(digest));
        }
        if let Some(at) = self.images.iter().position(|image| image.id == record.id) {
            let former = self.images.remove(at);
            record.repo_tags.extend(former.repo_tags);
            record.repo_digests.extend(former.repo_digests);
            record.pinned |= former.pinned;
            record.added_nanos = former.added_nanos;
        }
        let at = self.images.partition_point(|image| image.id < record.id);
        self.images.insert(at, record);
    }
}

impl Store {
    pub(super) fn read_index(&self) -> Result<Arc<Index>, ImageError> {
        let path = self.root().join(FILE);
        let mut kept = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match std::fs::metadata(&path) {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Arc::default()),
            Err(error) => return Err(error).on("read", &path),
        };
        let stamp = Stamp {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            changed: (found.ctime(), found.ctime_nsec()),
        };
        if let Some((known, index)) = &*kept
            && *known == stamp
        {
            return Ok(index.clone());
        }
        // The file may be replaced after its metadata were read: the older stamp then leads to another reading.
        let text = std::fs::read(&path).on("read", &path)?;
        let index: Index = serde_json::from_slice(&text)
            .map_err(|error| ImageError::Invalid(format!("{}: {error}", path.display())))?;
        if index.version != VERSION {
            let text = format!("{}: version {} is not supported", path.display(), index.version);
            return Err(ImageError::Invalid(text));
        }
        let index = Arc::new(index);
        *kept = Some((stamp, index.clone()));
        Ok(index)
    }

    /// Replaces the index; the caller holds the lock.
    pub(super) fn write_index(&self, index: &Index) -> Result<(), ImageError> {
        let path = self.root().join(FILE);
        let index = Index { version: VERSION, images: index.images.clone() };
        let text = serde_json::to_vec(&index).map_err(|error| ImageError::Invalid(error.to_string()))?;
        kaji_files::replace(&path, &text, 0o600).on("write", &path)?;
        let directory = self.open_directory(self.root())?;
        rustix::fs::fsync(directory).on("sync", self.root())
    }
}
