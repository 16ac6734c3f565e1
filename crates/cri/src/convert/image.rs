//! Images, and the file systems that hold them.

use crate::messages as cri;
use kaji_containers::{FilesystemUsage, Image, ImageSpec, RegistryAuth};

/// Names an image.
#[must_use]
pub fn spec(spec: &ImageSpec) -> cri::ImageSpec {
    cri::ImageSpec {
        image: spec.image.clone(),
        annotations: spec.annotations.clone(),
        user_specified_image: spec.user_specified.clone(),
        runtime_handler: spec.runtime_handler.clone(),
        image_ref: String::new(),
    }
}

/// As a runtime names it.
#[must_use]
pub fn spec_of(spec: cri::ImageSpec) -> ImageSpec {
    ImageSpec {
        image: spec.image,
        user_specified: spec.user_specified_image,
        runtime_handler: spec.runtime_handler,
        annotations: spec.annotations,
    }
}

/// An image of the node.
#[must_use]
pub fn image(image: cri::Image) -> Image {
    Image {
        id: image.id,
        repo_tags: image.repo_tags,
        repo_digests: image.repo_digests,
        size: image.size,
        uid: image.uid.map(|uid| uid.value),
        username: image.username,
        pinned: image.pinned,
    }
}

/// Credentials for a registry.
#[must_use]
pub fn auth(auth: &RegistryAuth) -> cri::AuthConfig {
    cri::AuthConfig {
        username: auth.username.clone(),
        password: auth.password.clone(),
        auth: auth.auth.clone(),
        server_address: String::new(),
        identity_token: auth.identity_token.clone(),
        registry_token: auth.registry_token.clone(),
    }
}

/// What a file system holds.
#[must_use]
pub fn filesystem(usage: cri::FilesystemUsage) -> FilesystemUsage {
    let number = |value: Option<cri::Uint64Value>| value.map_or(0, |v| v.value);
    FilesystemUsage {
        at_nanos: usage.timestamp,
        mountpoint: usage.fs_id.map(|id| id.mountpoint).unwrap_or_default(),
        used_bytes: number(usage.used_bytes),
        inodes_used: number(usage.inodes_used),
    }
}
