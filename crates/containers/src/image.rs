//! Images: the [`ImageService`] trait and its messages.

use crate::error::RuntimeError;
use crate::sandbox::PodSandboxConfig;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tokio::sync::watch;

/// Names an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageSpec {
    /// A reference (`repository:tag`, `repository@digest`) or an id.
    pub image: String,
    /// As the user wrote it in the pod's spec; empty where that is not known.
    pub user_specified: String,
    /// What the RuntimeClass names; images may differ by it.
    pub runtime_handler: String,
    /// Of the image, for backends that use them.
    pub annotations: BTreeMap<String, String>,
}

impl From<&str> for ImageSpec {
    fn from(image: &str) -> ImageSpec {
        ImageSpec { image: image.to_owned(), user_specified: image.to_owned(), ..Default::default() }
    }
}

/// An image on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Digest of its configuration, `sha256:...`.
    pub id: String,
    /// With repository and tag.
    pub repo_tags: Vec<String>,
    /// With repository and digest.
    pub repo_digests: Vec<String>,
    /// Bytes that it takes, unpacked.
    pub size: u64,
    /// User id that it runs as, if its configuration has a number.
    pub uid: Option<i64>,
    /// The user's name otherwise; both are empty for root.
    pub username: String,
    /// It is not removed by garbage collection.
    pub pinned: bool,
}

impl Image {
    /// Its names, with repository and tag or digest.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.repo_tags.iter().chain(&self.repo_digests).map(String::as_str)
    }
}

/// Credentials for a registry.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RegistryAuth {
    /// Basic authentication.
    pub username: String,
    /// Basic authentication.
    pub password: String,
    /// `username:password` in base64, instead of them.
    pub auth: String,
    /// A refresh token.
    pub identity_token: String,
    /// A bearer token.
    pub registry_token: String,
}

impl std::fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RegistryAuth(secret)")
    }
}

/// Which image to pull, and how.
#[derive(Debug, Clone, Default)]
pub struct PullRequest {
    /// Its reference.
    pub image: ImageSpec,
    /// `None`: anonymously.
    pub auth: Option<RegistryAuth>,
    /// The pod that it is for.
    pub sandbox: Option<PodSandboxConfig>,
    /// Gets the progress, if anything reads it.
    pub progress: Option<watch::Sender<PullProgress>>,
}

/// How far a pull is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PullProgress {
    /// Bytes received, resumed ones included.
    pub received: u64,
    /// Bytes in all; 0 while that is not known.
    pub total: u64,
    /// Layers that are unpacked.
    pub unpacked_layers: u32,
    /// Layers in all.
    pub layers: u32,
}

/// What file systems hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// Nanoseconds since the epoch.
    pub at_nanos: i64,
    /// A directory on it.
    pub mountpoint: String,
    /// Bytes.
    pub used_bytes: u64,
    /// Inodes.
    pub inodes_used: u64,
}

/// File systems of images, and of containers' writable layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageFilesystems {
    /// Of images.
    pub images: Vec<FilesystemUsage>,
    /// Of writable layers; the same ones where they are not apart.
    pub containers: Vec<FilesystemUsage>,
}

/// Holds the images of a node. Used as `Arc<dyn ImageService>`.
pub trait ImageService: Send + Sync + 'static {
    /// All images.
    fn list_images(&self) -> BoxFuture<'_, Result<Vec<Image>, RuntimeError>>;

    /// The image of a reference or an id, if it is on this node.
    fn image_status<'a>(&'a self, image: &'a ImageSpec)
    -> BoxFuture<'a, Result<Option<Image>, RuntimeError>>;

    /// Fetches and unpacks an image. Answers its reference as a pod's `imageID` shows it: repository and digest, or the id
    /// for images that came from an archive. Concurrent pulls of the same layers share them.
    ///
    /// # Errors
    /// [`RuntimeError::NotFound`] where the registry has none, [`RuntimeError::RegistryUnavailable`],
    /// [`RuntimeError::SignatureValidationFailed`] for bytes that do not have their digest.
    fn pull_image(&self, request: PullRequest) -> BoxFuture<'_, Result<String, RuntimeError>>;

    /// Removes an image; what is absent already is a success. Containers made of it go on.
    fn remove_image<'a>(&'a self, image: &'a ImageSpec) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// What images and writable layers take.
    fn filesystems(&self) -> BoxFuture<'_, Result<ImageFilesystems, RuntimeError>>;
}
