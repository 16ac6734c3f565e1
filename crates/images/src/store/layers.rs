//! Unpacked layers: a directory each, shared by all images that have the same layers up to it.

use super::{Store, Workspace};
use crate::digest::Digest;
use crate::error::{Context, ImageError};
use crate::layer::{Expected, Layer, unpack_layer};
use crate::unpack::apply::inherit;
use kaji_containers::{ImageConfig, ImageLayers};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Digits of a chain id in a directory's name: mount options have little room.
const NAME: usize = 32;
/// Stands for the layers of an image that has none: overlayfs has to have one.
const EMPTY: &str = "empty";
const DESCRIPTION: &str = "layer.json";

/// What `layer.json` has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Description {
    chain: Digest,
    diff_id: Digest,
    size: u64,
    entries: u64,
}

/// A layer that is unpacked in a workspace.
pub struct UnpackedLayer {
    workspace: Workspace,
    layer: Layer,
}

impl UnpackedLayer {
    /// Digests and contents.
    #[must_use]
    pub fn layer(&self) -> &Layer {
        &self.layer
    }
}

impl Store {
    /// Unpacks a layer. Layers do not depend on each other here, so several can be unpacked at a time.
    ///
    /// # Errors
    /// See [`unpack_layer`].
    pub fn unpack(&self, source: impl Read, expected: &Expected) -> Result<UnpackedLayer, ImageError> {
        let workspace = self.workspace()?;
        let root = workspace.path().join("layer/fs");
        kaji_files::make_dirs(&root, 0o755).on("create", &root)?;
        let layer = unpack_layer(source, expected, &root, &self.limits)?;
        Ok(UnpackedLayer { workspace, layer })
    }

    /// Makes an unpacked layer visible, on top of the layers below it. Answers its chain id.
    ///
    /// # Errors
    /// A layer below is missing, or the store cannot be written.
    pub fn seal(&self, unpacked: UnpackedLayer, below: &[Digest]) -> Result<Digest, ImageError> {
        let chain = Digest::chain(below.last(), &unpacked.layer.diff_id);
        let made = unpacked.workspace.path().join("layer");
        let paths: Vec<PathBuf> = below.iter().rev().map(|chain| self.layer_path(chain).join("fs")).collect();
        let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
        inherit(&made.join("fs"), &unpacked.layer.unpacked.implied, &paths)?;
        let description = Description {
            chain: chain.clone(),
            diff_id: unpacked.layer.diff_id.clone(),
            size: unpacked.layer.unpacked.bytes,
            entries: unpacked.layer.unpacked.entries,
        };
        let text =
            serde_json::to_vec(&description).map_err(|error| ImageError::Invalid(error.to_string()))?;
        let file = made.join(DESCRIPTION);
        std::fs::write(&file, text).on("write", &file)?;
        let _lock = self.lock()?;
        if !self.has_layer(&chain) {
            // The layer has to be on disk before its name is.
            self.sync()?;
            let path = self.layer_path(&chain);
            std::fs::rename(&made, &path).on("create", &path)?;
        }
        Ok(chain)
    }

    /// Whether a layer is there.
    #[must_use]
    pub fn has_layer(&self, chain: &Digest) -> bool {
        self.describe(chain).is_some()
    }

    /// Bytes of a layer's files; 0 if it is missing.
    #[must_use]
    pub fn layer_size(&self, chain: &Digest) -> u64 {
        self.describe(chain).map_or(0, |description| description.size)
    }

    fn describe(&self, chain: &Digest) -> Option<Description> {
        let text = std::fs::read(self.layer_path(chain).join(DESCRIPTION)).ok()?;
        let description: Description = serde_json::from_slice(&text).ok()?;
        (description.chain == *chain).then_some(description)
    }

    fn layer_path(&self, chain: &Digest) -> PathBuf {
        self.root().join("layers").join(layer_name(chain))
    }

    /// The directories of a stack of layers.
    pub(super) fn layers_of(&self, id: &Digest, layers: &[Digest], config: ImageConfig) -> ImageLayers {
        let mut paths: Vec<_> = layers.iter().rev().map(|chain| self.layer_path(chain).join("fs")).collect();
        if paths.is_empty() {
            paths.push(self.root().join("layers").join(EMPTY).join("fs"));
        }
        ImageLayers { id: id.to_string(), layers: paths, config }
    }

    pub(super) fn make_empty_layer(&self) -> Result<(), ImageError> {
        let path = self.root().join("layers").join(EMPTY).join("fs");
        kaji_files::make_dirs(&path, 0o755).on("create", &path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).on("change", &path)
    }

    /// Removes the layers that are not in use; the caller holds the lock.
    pub(super) fn remove_layers(&self, used: impl Fn(&str) -> bool) -> Result<(), ImageError> {
        let directory = self.root().join("layers");
        let mut garbage = vec![];
        for entry in std::fs::read_dir(&directory).on("read", &directory)? {
            let name = entry.on("read", &directory)?.file_name();
            match name.to_str() {
                Some(name) if name == EMPTY || used(name) => {}
                _ => garbage.push(directory.join(name)),
            }
        }
        for path in garbage {
            // Under another name first: a layer is never there in part.
            let removed = self.temporary();
            std::fs::rename(&path, &removed).on("remove", &path)?;
            std::fs::remove_dir_all(&removed).on("remove", &removed)?;
        }
        Ok(())
    }
}

pub(super) fn layer_name(chain: &Digest) -> &str {
    &chain.hex()[..NAME]
}
