//! [`Images`]: the images of a node, as the kubelet and the runtime use them.

use crate::error::ImageError;
use crate::pull::{Puller, blocking};
use crate::reference::Reference;
use crate::registry::{Registries, RegistrySource, TokioDelay};
use crate::store::{ImageRecord, Store};
use kaji_containers::{
    BoxFuture, FilesystemUsage, Image, ImageFilesystems, ImageLayers, ImageRootfs, ImageService, ImageSpec,
    PullRequest, RuntimeError,
};
use kaji_meta::{Clock, Random};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The images of a node.
pub struct Images {
    store: Arc<Store>,
    puller: Puller,
    /// Where containers have their writable layers.
    containers: Option<PathBuf>,
}

impl Images {
    /// Opens the images in a directory and removes what a killed process left there.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn open(
        root: &Path,
        registries: RegistrySource,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Images, ImageError> {
        let store = Arc::new(Store::open(root, clock, random)?);
        store.sweep()?;
        Ok(Images::new(store, Registries::new(registries, Arc::new(TokioDelay))))
    }

    /// The images of a store that is open.
    #[must_use]
    pub fn new(store: Arc<Store>, registries: Registries) -> Images {
        let puller = Puller::new(store.clone(), Arc::new(registries));
        Images { store, puller, containers: None }
    }

    /// Says where containers have their writable layers, for [`ImageService::filesystems`].
    #[must_use]
    pub fn with_containers_in(mut self, directory: PathBuf) -> Images {
        self.containers = Some(directory);
        self
    }

    /// What is on disk.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, ImageError> + Send + 'static,
    ) -> Result<T, RuntimeError> {
        let store = self.store.clone();
        Ok(blocking(move || work(&store)).await?)
    }
}

impl ImageService for Images {
    fn list_images(&self) -> BoxFuture<'_, Result<Vec<Image>, RuntimeError>> {
        Box::pin(self.with_store(|store| Ok(store.images()?.iter().map(image).collect())))
    }

    fn image_status<'a>(&'a self, spec: &'a ImageSpec) -> BoxFuture<'a, Result<Option<Image>, RuntimeError>> {
        let name = spec.image.clone();
        Box::pin(self.with_store(move |store| Ok(store.find(&name)?.as_ref().map(image))))
    }

    fn pull_image(&self, request: PullRequest) -> BoxFuture<'_, Result<String, RuntimeError>> {
        Box::pin(async move {
            let reference = Reference::parse(&request.image.image)?;
            let record = self.puller.pull(&reference, request.auth.as_ref(), request.progress).await?;
            let repository = format!("{}@", reference.repository());
            let digest = record.repo_digests.iter().find(|digest| digest.starts_with(&repository));
            Ok(digest.cloned().unwrap_or_else(|| record.id.to_string()))
        })
    }

    fn remove_image<'a>(&'a self, spec: &'a ImageSpec) -> BoxFuture<'a, Result<(), RuntimeError>> {
        let name = spec.image.clone();
        Box::pin(self.with_store(move |store| store.remove(&name)))
    }

    fn filesystems(&self) -> BoxFuture<'_, Result<ImageFilesystems, RuntimeError>> {
        let containers = self.containers.clone();
        Box::pin(self.with_store(move |store| {
            let layers = store.root().join("layers");
            let images = vec![usage(store, &layers)?];
            let containers = match containers {
                Some(directory) => vec![usage(store, &directory)?],
                None => images.clone(),
            };
            Ok(ImageFilesystems { images, containers })
        }))
    }
}

impl ImageRootfs for Images {
    fn resolve<'a>(&'a self, spec: &'a ImageSpec) -> BoxFuture<'a, Result<ImageLayers, RuntimeError>> {
        let name = spec.image.clone();
        Box::pin(async move { self.with_store(move |store| store.resolve(&name)).await.map_err(not_present) })
    }

    fn lease<'a>(
        &'a self,
        spec: &'a ImageSpec,
        owner: &'a str,
    ) -> BoxFuture<'a, Result<ImageLayers, RuntimeError>> {
        let (name, owner) = (spec.image.clone(), owner.to_owned());
        Box::pin(async move {
            self.with_store(move |store| store.lease(&name, &owner)).await.map_err(not_present)
        })
    }

    fn release<'a>(&'a self, owner: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>> {
        let owner = owner.to_owned();
        Box::pin(self.with_store(move |store| store.release(&owner)))
    }

    fn leases(&self) -> BoxFuture<'_, Result<Vec<String>, RuntimeError>> {
        Box::pin(self.with_store(Store::lease_owners))
    }
}

fn not_present(error: RuntimeError) -> RuntimeError {
    match error {
        RuntimeError::NotFound(text) => RuntimeError::ImageNotPresent(text),
        other => other,
    }
}

fn image(record: &ImageRecord) -> Image {
    let user = record.config.user.split(':').next().unwrap_or_default();
    let uid = user.parse::<i64>().ok();
    Image {
        id: record.id.to_string(),
        repo_tags: record.repo_tags.iter().cloned().collect(),
        repo_digests: record.repo_digests.iter().cloned().collect(),
        size: record.size,
        uid,
        username: if uid.is_none() { user.to_owned() } else { String::new() },
        pinned: record.pinned,
    }
}

/// What a directory takes.
fn usage(store: &Store, directory: &Path) -> Result<FilesystemUsage, ImageError> {
    let failed = |path: &Path, error: std::io::Error| ImageError::Io {
        context: format!("read {}", path.display()),
        error,
    };
    let (mut used_bytes, mut inodes_used) = (0, 0);
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match std::fs::read_dir(&directory) {
            // It may be removed meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            result => result.map_err(|error| failed(&directory, error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| failed(&directory, error))?;
            let Ok(found) = entry.metadata() else { continue };
            inodes_used += 1;
            used_bytes += found.blocks() * 512;
            if found.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    let at_nanos = i64::try_from(store.clock.now().as_nanosecond()).unwrap_or(i64::MAX);
    Ok(FilesystemUsage { at_nanos, mountpoint: directory.display().to_string(), used_bytes, inodes_used })
}
