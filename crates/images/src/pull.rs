//! Pulling: manifests, then layers, each in one pass from the connection to its directory.
//!
//! Layers download in order, a few at a time, and are unpacked as they come; they become visible from the lowest up. A layer that
//! several pulls need is downloaded by one of them, the others wait for it.

use crate::digest::Digest;
use crate::error::ImageError;
use crate::install::{ATTEMPTS, NewImage, chains, check_platform, record};
use crate::layer::Expected;
use crate::manifest::{Configuration, Descriptor, Document, MAX_CONFIG, Manifest, Platform, check_layers};
use crate::reference::Reference;
use crate::registry::{Download, Registries, Repository};
use crate::store::{ImageRecord, Store, UnpackedLayer};
use futures_util::future::try_join_all;
use kaji_containers::{PullProgress, RegistryAuth};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{Semaphore, watch};

/// Layers of one pull that download at a time, as containerd's default.
const PARALLEL: usize = 3;
/// Indexes that name each other.
const MAX_DEPTH: usize = 4;

/// Pulls images into a store.
pub(crate) struct Puller {
    pub store: Arc<Store>,
    pub registries: Arc<Registries>,
    /// Locks of the layers that are being downloaded, by chain id.
    layers: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
}

/// What a pull has found out.
struct Resolved {
    image: NewImage,
    configuration: Configuration,
    layers: Vec<Descriptor>,
}

/// Counts for those that watch.
struct Progress {
    sender: Option<watch::Sender<PullProgress>>,
}

impl Progress {
    fn change(&self, change: impl FnOnce(&mut PullProgress)) {
        if let Some(sender) = &self.sender {
            sender.send_modify(change);
        }
    }
}

impl Puller {
    pub fn new(store: Arc<Store>, registries: Arc<Registries>) -> Puller {
        Puller { store, registries, layers: Mutex::default() }
    }

    /// Pulls an image from the first of its registry's endpoints that has it.
    pub async fn pull(
        &self,
        reference: &Reference,
        auth: Option<&RegistryAuth>,
        progress: Option<watch::Sender<PullProgress>>,
    ) -> Result<ImageRecord, ImageError> {
        let progress = Progress { sender: progress };
        let failed =
            |error: ImageError| error.within(&format!("failed to pull and unpack image \"{reference}\""));
        let mut last = None;
        for repository in self.registries.repositories(reference, auth).await.map_err(failed)? {
            match self.pull_from(&repository, reference, &progress).await {
                Ok(record) => return Ok(record),
                // The registry itself is asked last: its error counts.
                Err(error) => last = Some(error),
            }
        }
        let none = || ImageError::Invalid("no endpoint".into());
        Err(failed(last.unwrap_or_else(none)))
    }

    async fn pull_from(
        &self,
        repository: &Repository,
        reference: &Reference,
        progress: &Progress,
    ) -> Result<ImageRecord, ImageError> {
        let resolved = self.resolve(repository, reference).await?;
        let mut attempt = 1;
        loop {
            self.layers(repository, &resolved, progress).await?;
            let (store, image) = (self.store.clone(), resolved.image.clone());
            let configuration = resolved.configuration.clone();
            let recorded = blocking(move || record(&store, &image, &configuration)).await;
            match recorded {
                // Another process removed a layer as garbage before the image named it.
                Err(ImageError::NotFound(_)) if attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    async fn resolve(&self, repository: &Repository, reference: &Reference) -> Result<Resolved, ImageError> {
        let unresolved =
            |error: ImageError| error.within(&format!("failed to resolve reference \"{reference}\""));
        let top = repository.manifest(reference.object()).await.map_err(unresolved)?;
        let top_digest = top.digest.clone();
        let mut document = Document::parse(&top.bytes, &top.media_type)?;
        let mut bytes = top.bytes;
        for _ in 0..MAX_DEPTH {
            let Document::Index(index) = &document else { break };
            let machine = Platform::machine();
            let chosen = index.select(&machine)?;
            let chosen =
                chosen.first().ok_or_else(|| ImageError::NotFound("no manifest: not found".into()))?;
            let fetched = repository.manifest(chosen.digest.as_str()).await?;
            document = Document::parse(&fetched.bytes, &fetched.media_type)?;
            bytes = fetched.bytes;
        }
        let Document::Manifest(Manifest { config, layers, .. }) = document else {
            return Err(ImageError::Limit("indexes are nested too deeply".into()));
        };
        let config = repository.document(&config.digest, MAX_CONFIG).await?;
        let configuration = Configuration::parse(&config)?;
        check_layers(layers.len(), &configuration)?;
        check_platform(&configuration)?;
        let image = NewImage {
            manifest: bytes,
            config,
            repo_tags: reference.repo_tag().into_iter().collect(),
            repo_digests: [reference.repo_digest(&top_digest)].into(),
        };
        Ok(Resolved { image, configuration, layers })
    }

    async fn layers(
        &self,
        repository: &Repository,
        resolved: &Resolved,
        progress: &Progress,
    ) -> Result<(), ImageError> {
        let chains = chains(&resolved.configuration.diff_ids);
        let making: Vec<_> = chains.iter().map(|chain| self.store.making(chain)).collect();
        progress.change(|progress| {
            *progress = PullProgress {
                total: resolved.layers.iter().map(|layer| layer.size).sum(),
                layers: u32::try_from(chains.len()).unwrap_or(u32::MAX),
                ..PullProgress::default()
            };
        });
        // Fair: permits come in the order of the layers.
        let permits = Semaphore::new(PARALLEL);
        let sealed = watch::Sender::new(0);
        let layers = (0..chains.len())
            .map(|at| self.layer(repository, resolved, (&chains, at), progress, (&permits, &sealed)));
        try_join_all(layers).await?;
        drop(making);
        Ok(())
    }

    async fn layer(
        &self,
        repository: &Repository,
        resolved: &Resolved,
        (chains, at): (&[Digest], usize),
        progress: &Progress,
        (permits, sealed): (&Semaphore, &watch::Sender<usize>),
    ) -> Result<(), ImageError> {
        let (chain, descriptor) = (&chains[at], &resolved.layers[at]);
        let lock = self.layer_lock(chain);
        let _locked = lock.lock().await;
        if self.store.has_layer(chain) {
            progress.change(|progress| progress.received += descriptor.size);
            wait_for_layers(sealed, at).await;
        } else {
            let diff_id = &resolved.configuration.diff_ids[at];
            let unpacked = {
                // Not while it waits for the layers below, which may need the permit.
                let _permit = permits.acquire().await;
                self.download(repository, descriptor, diff_id, progress).await
            };
            let unpacked =
                unpacked.map_err(|error| error.within(&format!("failed to extract layer {diff_id}")))?;
            wait_for_layers(sealed, at).await;
            let (store, below) = (self.store.clone(), chains[..at].to_vec());
            blocking(move || store.seal(unpacked, &below)).await?;
        }
        progress.change(|progress| progress.unpacked_layers += 1);
        sealed.send_replace(at + 1);
        Ok(())
    }

    async fn download(
        &self,
        repository: &Repository,
        descriptor: &Descriptor,
        diff_id: &Digest,
        progress: &Progress,
    ) -> Result<UnpackedLayer, ImageError> {
        let (download, reader) = Download::new(repository, &descriptor.digest, descriptor.size);
        let expected = Expected { blob: Some(descriptor.digest.clone()), diff_id: Some(diff_id.clone()) };
        let store = self.store.clone();
        let unpacking = blocking(move || store.unpack(reader, &expected));
        let downloading = download.run(|bytes| progress.change(|progress| progress.received += bytes));
        let ((), unpacked) = futures_util::future::join(downloading, unpacking).await;
        unpacked
    }

    fn layer_lock(&self, chain: &Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        layers.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = layers.get(chain).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        layers.insert(chain.clone(), Arc::downgrade(&lock));
        lock
    }
}

/// Waits until the layers below are visible.
async fn wait_for_layers(sealed: &watch::Sender<usize>, below: usize) {
    // The caller holds the sender: it cannot be gone.
    drop(sealed.subscribe().wait_for(|sealed| *sealed >= below).await);
}

/// Runs blocking work on a thread for it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ImageError::Invalid(format!("a thread ended: {error}"))),
    }
}
