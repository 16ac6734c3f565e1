//! Manifests, indexes and configurations of images: Docker's schema 2 and OCI's, which differ in media types only.
//!
//! Invariant: what is parsed here has bounded size, and as many layers as digests of uncompressed layers.

use crate::digest::Digest;
use crate::error::ImageError;
use kaji_containers::ImageConfig;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes of a manifest or an index, as registries bound them.
pub const MAX_MANIFEST: usize = 4 << 20;
/// Bytes of a configuration.
pub const MAX_CONFIG: usize = 8 << 20;
/// More layers than overlayfs can stack in a mount's options.
pub const MAX_LAYERS: usize = 500;
/// Manifests in an index.
const MAX_MANIFESTS: usize = 10_000;

/// Docker's manifest.
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// Docker's index.
pub const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// OCI's manifest.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// OCI's index.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// OCI's configuration.
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// Names content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Of the content; empty where a document leaves it out.
    #[serde(default)]
    pub media_type: String,
    /// Of the content.
    pub digest: Digest,
    /// Bytes.
    pub size: u64,
    /// Of a manifest in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Names, in an archive's index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// What an image runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Platform {
    /// `amd64`, `arm64`, `arm`.
    pub architecture: String,
    /// `linux`.
    pub os: String,
    /// `v8`, `v7`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub variant: String,
}

impl Platform {
    /// This machine's.
    #[must_use]
    pub fn machine() -> Platform {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", ""),
            "x86" => ("386", ""),
            "aarch64" => ("arm64", "v8"),
            "arm" => ("arm", "v7"),
            "powerpc64" => ("ppc64le", ""),
            "loongarch64" => ("loong64", ""),
            other => (other, ""),
        };
        Platform { architecture: architecture.into(), os: "linux".into(), variant: variant.into() }
    }

    /// How well an image's platform fits this machine's, the least number best; `None` if it cannot run there.
    #[must_use]
    pub fn rank(&self, image: &Platform) -> Option<u32> {
        if image.os != self.os || image.architecture != self.architecture {
            return None;
        }
        let level = |variant: &str| variant.strip_prefix('v').and_then(|v| v.parse::<u32>().ok());
        let ours = level(&self.variant).unwrap_or(match self.architecture.as_str() {
            "arm64" => 8,
            "arm" => 7,
            _ => 1,
        });
        match (image.variant.is_empty(), level(&image.variant)) {
            (true, _) => Some(1),
            (false, Some(theirs)) if theirs <= ours => {
                Some(if theirs == ours { 0 } else { 1 + ours - theirs })
            }
            _ => None,
        }
    }
}

/// The manifest of one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// 2.
    pub schema_version: u32,
    /// Its own.
    #[serde(default)]
    pub media_type: String,
    /// Of the configuration.
    pub config: Descriptor,
    /// The lowest first.
    pub layers: Vec<Descriptor>,
}

/// The manifests of an image for several platforms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// 2.
    pub schema_version: u32,
    /// Its own.
    #[serde(default)]
    pub media_type: String,
    /// In order of preference.
    pub manifests: Vec<Descriptor>,
}

/// A manifest or an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// Of one image.
    Manifest(Manifest),
    /// Of several ones.
    Index(Index),
}

impl Document {
    /// Parses a document. Its own media type counts before the one that it came with.
    ///
    /// # Errors
    /// [`ImageError::Invalid`], [`ImageError::Limit`].
    pub fn parse(bytes: &[u8], media_type: &str) -> Result<Document, ImageError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Kind {
            schema_version: u32,
            #[serde(default)]
            media_type: String,
            #[serde(default)]
            manifests: Option<serde::de::IgnoredAny>,
            #[serde(default)]
            layers: Option<serde::de::IgnoredAny>,
        }
        bounded("manifest", bytes, MAX_MANIFEST)?;
        let kind: Kind = json("manifest", bytes)?;
        if kind.schema_version != 2 {
            return Err(ImageError::Invalid(format!(
                "manifest schema version {} is not supported, please rebuild the image with schema 2 or OCI",
                kind.schema_version
            )));
        }
        if kind.manifests.is_some() && kind.layers.is_some() {
            // One digest must not name two things, depending on the reader.
            return Err(ImageError::Invalid("manifest has both layers and manifests".into()));
        }
        let own = if kind.media_type.is_empty() { media_type } else { &kind.media_type };
        match own.split(';').next().unwrap_or_default().trim() {
            DOCKER_INDEX | OCI_INDEX => Ok(Document::Index(index(bytes)?)),
            DOCKER_MANIFEST | OCI_MANIFEST => Ok(Document::Manifest(manifest(bytes)?)),
            _ if kind.manifests.is_some() => Ok(Document::Index(index(bytes)?)),
            _ if kind.layers.is_some() => Ok(Document::Manifest(manifest(bytes)?)),
            other => Err(ImageError::Invalid(format!("unsupported manifest media type {other:?}"))),
        }
    }
}

fn index(bytes: &[u8]) -> Result<Index, ImageError> {
    let index: Index = json("index", bytes)?;
    if index.manifests.len() > MAX_MANIFESTS {
        return Err(ImageError::Limit(format!("index has more than {MAX_MANIFESTS} manifests")));
    }
    Ok(index)
}

fn manifest(bytes: &[u8]) -> Result<Manifest, ImageError> {
    let manifest: Manifest = json("manifest", bytes)?;
    if manifest.layers.len() > MAX_LAYERS {
        return Err(ImageError::Limit(format!("manifest has more than {MAX_LAYERS} layers")));
    }
    Ok(manifest)
}

impl Index {
    /// The manifests that a machine can use, the best first.
    ///
    /// # Errors
    /// [`ImageError::NotFound`], with containerd's text.
    pub fn select(&self, machine: &Platform) -> Result<Vec<&Descriptor>, ImageError> {
        // Attestations have the platform `unknown`; what names none may fit.
        let rank = |found: &Descriptor| match &found.platform {
            Some(platform) => machine.rank(platform),
            None => Some(u32::MAX),
        };
        let mut fitting: Vec<_> = self.manifests.iter().filter_map(|m| Some((rank(m)?, m))).collect();
        fitting.sort_by_key(|(rank, _)| *rank);
        if fitting.is_empty() {
            return Err(ImageError::NotFound("no match for platform in manifest: not found".into()));
        }
        Ok(fitting.into_iter().map(|(_, manifest)| manifest).collect())
    }
}

/// What is used of an image's configuration document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// What it runs on.
    pub platform: Platform,
    /// Digests of the uncompressed layers, the lowest first.
    pub diff_ids: Vec<Digest>,
    /// How containers run.
    pub config: ImageConfig,
}

#[derive(Deserialize)]
struct RawConfiguration {
    #[serde(flatten)]
    platform: Platform,
    rootfs: RawRootfs,
    #[serde(default)]
    config: Option<RawConfig>,
}

#[derive(Deserialize)]
struct RawRootfs {
    diff_ids: Vec<Digest>,
}

/// Go writes empty lists and maps as null.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct RawConfig {
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    user: Option<String>,
    working_dir: Option<String>,
    stop_signal: Option<String>,
    volumes: Option<BTreeMap<String, serde::de::IgnoredAny>>,
    labels: Option<BTreeMap<String, String>>,
    exposed_ports: Option<BTreeMap<String, serde::de::IgnoredAny>>,
}

impl Configuration {
    /// Parses a configuration document.
    ///
    /// # Errors
    /// [`ImageError::Invalid`], [`ImageError::Limit`].
    pub fn parse(bytes: &[u8]) -> Result<Configuration, ImageError> {
        bounded("image config", bytes, MAX_CONFIG)?;
        let raw: RawConfiguration = json("image config", bytes)?;
        if raw.rootfs.diff_ids.len() > MAX_LAYERS {
            return Err(ImageError::Limit(format!("image config has more than {MAX_LAYERS} layers")));
        }
        let config = raw.config.unwrap_or_default();
        Ok(Configuration {
            platform: raw.platform,
            diff_ids: raw.rootfs.diff_ids,
            config: ImageConfig {
                env: config.env.unwrap_or_default(),
                entrypoint: config.entrypoint.unwrap_or_default(),
                cmd: config.cmd.unwrap_or_default(),
                user: config.user.unwrap_or_default(),
                working_dir: config.working_dir.unwrap_or_default(),
                stop_signal: config.stop_signal.unwrap_or_default(),
                volumes: config.volumes.unwrap_or_default().into_keys().collect(),
                labels: config.labels.unwrap_or_default(),
                exposed_ports: config.exposed_ports.unwrap_or_default().into_keys().collect(),
            },
        })
    }
}

/// Checks that each layer of a manifest has its digest in the configuration.
///
/// # Errors
/// [`ImageError::Invalid`], with containerd's text.
pub fn check_layers(layers: usize, configuration: &Configuration) -> Result<(), ImageError> {
    if layers == configuration.diff_ids.len() {
        return Ok(());
    }
    Err(ImageError::Invalid("mismatched image rootfs and manifest layers".into()))
}

fn bounded(what: &str, bytes: &[u8], limit: usize) -> Result<(), ImageError> {
    if bytes.len() <= limit {
        return Ok(());
    }
    Err(ImageError::Limit(format!("{what} has {} bytes, more than {limit}", bytes.len())))
}

fn json<'a, T: Deserialize<'a>>(what: &str, bytes: &'a [u8]) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|error| ImageError::Invalid(format!("{what}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn platform(architecture: &str, variant: &str) -> Platform {
        Platform { architecture: architecture.into(), os: "linux".into(), variant: variant.into() }
    }

    #[test]
    fn the_manifest_of_the_best_variant_is_selected() {
        let of = |n: u8, platform: Option<Platform>| Descriptor {
            media_type: OCI_MANIFEST.into(),
            digest: Digest::of(&[n]),
            size: 1,
            platform,
            annotations: BTreeMap::new(),
        };
        let index = Index {
            schema_version: 2,
            media_type: String::new(),
            manifests: vec![
                of(1, Some(platform("amd64", "v3"))),
                of(2, Some(platform("amd64", ""))),
                of(3, Some(platform("arm", "v6"))),
                of(4, Some(platform("arm", "v7"))),
                of(5, Some(Platform { os: "windows".into(), ..platform("amd64", "") })),
            ],
        };
        let digests = |machine: &Platform| -> Vec<Digest> {
            index.select(machine).unwrap().iter().map(|m| m.digest.clone()).collect()
        };
        assert_eq!(digests(&platform("amd64", "")), [Digest::of(&[2])]);
        assert_eq!(digests(&platform("arm", "v7")), [Digest::of(&[4]), Digest::of(&[3])]);
        assert_eq!(
            index.select(&platform("s390x", "")).unwrap_err().to_string(),
            "no match for platform in manifest: not found"
        );
    }

    #[test]
    fn a_document_is_one_thing_only() {
        let digest = Digest::of(b"");
        let descriptor = json!({"mediaType": "x", "digest": digest.as_str(), "size": 0});
        let both = json!({"schemaVersion": 2, "config": descriptor, "layers": [], "manifests": []});
        assert!(Document::parse(both.to_string().as_bytes(), OCI_MANIFEST).is_err());
        let old = json!({"schemaVersion": 1, "fsLayers": []});
        assert!(
            Document::parse(old.to_string().as_bytes(), "").unwrap_err().to_string().contains("version 1")
        );
        let plain = json!({"schemaVersion": 2, "config": descriptor, "layers": [descriptor]});
        assert!(matches!(Document::parse(plain.to_string().as_bytes(), ""), Ok(Document::Manifest(_))));
    }

    #[test]
    fn a_configuration_takes_null_for_empty() {
        let text = json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []},
            "config": {"Env": null, "Cmd": ["/bin/sh"], "Volumes": {"/data": {}}, "ExposedPorts": {"80/tcp": {}}}});
        let parsed = Configuration::parse(text.to_string().as_bytes()).unwrap();
        assert_eq!(parsed.config.cmd, ["/bin/sh"]);
        assert_eq!(
            (parsed.config.volumes, parsed.config.exposed_ports),
            (vec!["/data".into()], vec!["80/tcp".into()])
        );
        assert!(check_layers(1, &Configuration::parse(text.to_string().as_bytes()).unwrap()).is_err());
    }
}
