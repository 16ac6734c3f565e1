//! What a runtime needs of an image to make a container of it: the [`ImageRootfs`] trait.

use crate::error::RuntimeError;
use crate::image::ImageSpec;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How an image's configuration says that its containers run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageConfig {
    /// `NAME=value`.
    pub env: Vec<String>,
    /// What a container's `command` replaces.
    pub entrypoint: Vec<String>,
    /// What a container's `args` replace; dropped when only `command` is given.
    pub cmd: Vec<String>,
    /// `user`, `uid`, `user:group`, `uid:gid`; empty for root.
    pub user: String,
    /// Empty for `/`.
    pub working_dir: String,
    /// `SIGTERM`, `15`; empty for SIGTERM.
    pub stop_signal: String,
    /// Directories that are volumes of their own.
    pub volumes: Vec<String>,
    /// For people and tools.
    pub labels: BTreeMap<String, String>,
    /// `80/tcp`.
    pub exposed_ports: Vec<String>,
}

/// An image that is unpacked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageLayers {
    /// Digest of the configuration, `sha256:...`.
    pub id: String,
    /// One directory a layer, the topmost first, as overlayfs takes them in `lowerdir`; never empty. Whiteouts are overlayfs's
    /// own (character devices 0/0, `trusted.overlay.opaque`). Read-only: images share them.
    pub layers: Vec<PathBuf>,
    /// How its containers run.
    pub config: ImageConfig,
}

/// Hands out the unpacked layers of images. Used as `Arc<dyn ImageRootfs>`.
///
/// A lease keeps the layers of an image from being removed, also when the image itself is removed. Leases are on disk: they
/// outlive the process that holds the trait.
pub trait ImageRootfs: Send + Sync + 'static {
    /// The layers of an image, without a lease: for looking at its configuration.
    ///
    /// # Errors
    /// [`RuntimeError::ImageNotPresent`].
    fn resolve<'a>(&'a self, image: &'a ImageSpec) -> BoxFuture<'a, Result<ImageLayers, RuntimeError>>;

    /// The layers of an image, kept until [`ImageRootfs::release`]. The owner is a container's id (for image volumes, any
    /// other id that is a file name); an owner that has a lease on the same image already gets it again.
    ///
    /// # Errors
    /// [`RuntimeError::ImageNotPresent`]; [`RuntimeError::AlreadyExists`] if the owner has a lease on another image.
    fn lease<'a>(
        &'a self,
        image: &'a ImageSpec,
        owner: &'a str,
    ) -> BoxFuture<'a, Result<ImageLayers, RuntimeError>>;

    /// Ends an owner's lease; one that does not exist is ended already.
    fn release<'a>(&'a self, owner: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// The owners of leases, so that a runtime can release those of containers that are gone.
    fn leases(&self) -> BoxFuture<'_, Result<Vec<String>, RuntimeError>>;
}
