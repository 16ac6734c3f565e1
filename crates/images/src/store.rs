//! The images of a node, on disk.
//!
//! ```text
//! DIR/lock               taken for every change, by every process that uses the store
//! DIR/index.json         the images; replaced as a whole
//! DIR/blobs/sha256/HEX   manifests and configurations; layers are kept unpacked only
//! DIR/layers/HEX/fs      a layer on top of the ones below it, named by half of its chain id; layer.json is beside it
//! DIR/leases/OWNER       what a container uses
//! DIR/tmp/NAME           work of a process that holds the lock on tmp/NAME/lock
//! ```
//!
//! Invariants:
//! - A blob, a layer or an index is visible under its name only as a whole: each is made in `tmp` and renamed. A process that is
//!   killed leaves at most a directory in `tmp` and layers that no image names; [`Store::sweep`] removes both.
//! - An index names only layers that are there and are on disk (`syncfs` comes before it). A layer that an image or a lease
//!   names is not removed.
//! - Several processes use a store at the same time: changes are made under the lock, after the index was read again.

mod blobs;
mod index;
mod layers;
mod leases;
mod sweep;
mod workspace;

pub use index::ImageRecord;
pub use layers::UnpackedLayer;
pub use workspace::Workspace;

use crate::digest::Digest;
use crate::error::{Context, ImageError};
use crate::reference::Reference;
use crate::unpack::Limits;
use index::Index;
use kaji_containers::ImageLayers;
use kaji_meta::{Clock, Random};
use rustix::fs::{FlockOperation, OFlags};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The store of a directory. Its methods block.
pub struct Store {
    root: PathBuf,
    /// Bounds of each layer that is unpacked.
    pub limits: Limits,
    pub(crate) clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    index: Mutex<Option<(index::Stamp, Arc<Index>)>>,
    /// Layers that this process makes, by chain id: they are no garbage before an image names them.
    making: Mutex<HashMap<Digest, usize>>,
}

impl Store {
    /// Opens a store, creating its directories.
    ///
    /// # Errors
    /// The directories cannot be made or do not belong to this user.
    pub fn open(root: &Path, clock: Arc<dyn Clock>, random: Arc<dyn Random>) -> Result<Store, ImageError> {
        kaji_files::private_dir(root).on("create", root)?;
        for name in ["blobs/sha256", "layers", "leases", "tmp"] {
            let path = root.join(name);
            kaji_files::make_dirs(&path, 0o700).on("create", &path)?;
        }
        let store = Store {
            root: root.to_owned(),
            limits: Limits::default(),
            clock,
            random,
            index: Mutex::new(None),
            making: Mutex::default(),
        };
        store.make_empty_layer()?;
        Ok(store)
    }

    /// Its directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All images, in order of their ids.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn images(&self) -> Result<Vec<ImageRecord>, ImageError> {
        Ok(self.read_index()?.images.clone())
    }

    /// The image of a reference, an id or the unique beginning of an id.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn find(&self, name: &str) -> Result<Option<ImageRecord>, ImageError> {
        Ok(self.read_index()?.find(name).cloned())
    }

    /// Adds an image after its layers, with its manifest and its configuration; its names are taken from other images.
    ///
    /// # Errors
    /// [`ImageError::NotFound`] if a layer was removed in between: it has to be unpacked again.
    pub fn add(&self, record: ImageRecord, documents: [&[u8]; 2]) -> Result<(), ImageError> {
        let _lock = self.lock()?;
        for document in documents {
            self.put_blob(document)?;
        }
        if let Some(missing) = record.layers.iter().find(|chain| !self.has_layer(chain)) {
            return Err(ImageError::NotFound(format!("layer {missing} was removed: not found")));
        }
        self.sync()?;
        let mut index = Index::clone(&*self.read_index()?);
        index.add(record);
        self.write_index(&index)
    }

    /// Removes an image with all its names; what is absent is removed already. Layers that nothing uses go with it.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn remove(&self, name: &str) -> Result<(), ImageError> {
        let _lock = self.lock()?;
        let mut index = Index::clone(&*self.read_index()?);
        let Some(id) = index.find(name).map(|image| image.id.clone()) else { return Ok(()) };
        index.images.retain(|image| image.id != id);
        self.write_index(&index)?;
        self.collect(&index)
    }

    /// Takes one name from an image, and removes the image with its last name. Answers whether the image was removed.
    ///
    /// # Errors
    /// [`ImageError::NotFound`].
    pub fn untag(&self, name: &str) -> Result<bool, ImageError> {
        let _lock = self.lock()?;
        let mut index = Index::clone(&*self.read_index()?);
        let missing = || ImageError::NotFound(format!("image {name:?}: not found"));
        let id = index.find(name).map(|image| image.id.clone()).ok_or_else(missing)?;
        let tag = Reference::parse(name).ok().and_then(|reference| reference.repo_tag());
        let image = index.images.iter_mut().find(|image| image.id == id).ok_or_else(missing)?;
        let removed = match tag {
            Some(tag) if image.repo_tags.remove(&tag) => image.repo_tags.is_empty(),
            _ => true,
        };
        if removed {
            index.images.retain(|image| image.id != id);
        }
        self.write_index(&index)?;
        self.collect(&index)?;
        Ok(removed)
    }

    /// Keeps an image from garbage collection, or stops to.
    ///
    /// # Errors
    /// [`ImageError::NotFound`].
    pub fn pin(&self, name: &str, pinned: bool) -> Result<(), ImageError> {
        let _lock = self.lock()?;
        let mut index = Index::clone(&*self.read_index()?);
        let missing = || ImageError::NotFound(format!("image {name:?}: not found"));
        let id = index.find(name).map(|image| image.id.clone()).ok_or_else(missing)?;
        index.images.iter_mut().filter(|image| image.id == id).for_each(|image| image.pinned = pinned);
        self.write_index(&index)
    }

    /// The layers of an image.
    ///
    /// # Errors
    /// [`ImageError::NotFound`].
    pub fn resolve(&self, name: &str) -> Result<ImageLayers, ImageError> {
        let missing = || ImageError::NotFound(format!("image {name:?}: not found"));
        let record = self.find(name)?.ok_or_else(missing)?;
        Ok(self.layers_of(&record.id, &record.layers, record.config))
    }

    /// A name in `tmp` that nothing has.
    fn temporary(&self) -> PathBuf {
        self.root.join("tmp").join(format!("{:016x}", self.random.u64()))
    }

    /// Waits for the right to change the store. Other processes have it for moments only.
    fn lock(&self) -> Result<StoreLock, ImageError> {
        let path = self.root.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path).on("open", &path)?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Err(rustix::io::Errno::INTR) => {}
                result => return result.on("lock", &path).map(|()| StoreLock { _file: file }),
            }
        }
    }

    /// Everything that was written is on disk afterwards.
    fn sync(&self) -> Result<(), ImageError> {
        rustix::fs::syncfs(self.open_directory(&self.root)?).on("sync", &self.root)
    }

    fn open_directory(&self, path: &Path) -> Result<OwnedFd, ImageError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, rustix::fs::Mode::empty()).on("open", path)
    }

    /// Marks a layer as being made by this process, until the guard is dropped.
    #[must_use]
    pub fn making(self: &Arc<Self>, chain: &Digest) -> Making {
        let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        *making.entry(chain.clone()).or_default() += 1;
        Making { store: self.clone(), chain: chain.clone() }
    }
}

/// Held while the store is changed.
struct StoreLock {
    _file: File,
}

/// See [`Store::making`].
pub struct Making {
    store: Arc<Store>,
    chain: Digest,
}

impl Drop for Making {
    fn drop(&mut self) {
        let mut making = self.store.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = making.get_mut(&self.chain) {
            *count -= 1;
            if *count == 0 {
                making.remove(&self.chain);
            }
        }
    }
}
