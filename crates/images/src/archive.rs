//! Archives of images: what `docker save` writes, and OCI layouts; both may hold several images.
//!
//! The archive is read in place: its entries are found in one pass, and layers are unpacked from their offsets. What cannot be
//! read in place (a pipe, a compressed archive) is copied to the store's directory first.

use crate::digest::Digest;
use crate::error::{Context, ImageError};
use crate::install::{NewImage, install};
use crate::layer::decoder;
use crate::manifest::{
    self, Configuration, Descriptor, Document, MAX_CONFIG, MAX_MANIFEST, Manifest, Platform,
};
use crate::reference::Reference;
use crate::store::{ImageRecord, Store, Workspace};
use crate::tar::{EntryKind, TarReader};
use crate::tar_writer::{TarWriter, entry};
use crate::unpack::{InnerPath, read_error};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Entries of an archive.
const MAX_ENTRIES: usize = 100_000;
/// Indexes that name each other.
const MAX_DEPTH: usize = 4;
/// What containerd calls an image in an index.
const NAME: &str = "io.containerd.image.name";
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// An archive that can be read in place.
struct Archive {
    file: File,
    /// Offsets and sizes of files.
    files: BTreeMap<Vec<u8>, (u64, u64)>,
    /// What links lead to.
    links: BTreeMap<Vec<u8>, Vec<u8>>,
    _workspace: Option<Workspace>,
}

/// An entry of Docker's `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Loads the images of an archive. `name` is for an archive of one image that has none.
///
/// # Errors
/// The archive cannot be read or is malformed, its images are not for this machine, or the store cannot be written.
pub fn load(
    store: &Arc<Store>,
    source: File,
    name: Option<&Reference>,
) -> Result<Vec<ImageRecord>, ImageError> {
    let archive = Archive::open(store, source)?;
    let named = name.and_then(Reference::repo_tag);
    if archive.find(b"index.json").is_some() {
        return load_layout(store, &archive, named.as_deref());
    }
    if archive.find(b"manifest.json").is_some() {
        return load_saved(store, &archive, named.as_deref());
    }
    Err(ImageError::Invalid("archive has neither index.json nor manifest.json".into()))
}

fn load_layout(
    store: &Arc<Store>,
    archive: &Archive,
    name: Option<&str>,
) -> Result<Vec<ImageRecord>, ImageError> {
    let bytes = archive.document(b"index.json", MAX_MANIFEST)?;
    let Document::Index(index) = Document::parse(&bytes, manifest::OCI_INDEX)? else {
        return Err(ImageError::Invalid("index.json is not an index".into()));
    };
    let single = index.manifests.len() == 1;
    let mut loaded = vec![];
    for descriptor in &index.manifests {
        let mut tags = tags_of(descriptor);
        if single {
            tags.extend(name.map(str::to_owned));
        }
        let Some((bytes, manifest)) = archive.manifest(descriptor, 0)? else { continue };
        let config = archive.content(&manifest.config, MAX_CONFIG)?;
        manifest::check_layers(manifest.layers.len(), &Configuration::parse(&config)?)?;
        let image = NewImage { manifest: bytes, config, repo_tags: tags, repo_digests: BTreeSet::new() };
        loaded.push(install(store, &image, |at| {
            let layer = &manifest.layers[at];
            Ok((archive.reader(&blob_path(&layer.digest))?, Some(layer.digest.clone())))
        })?);
    }
    if loaded.is_empty() {
        return Err(ImageError::NotFound("no match for platform in manifest: not found".into()));
    }
    Ok(loaded)
}

/// The names of an image in a layout. A bare tag names nothing.
fn tags_of(descriptor: &Descriptor) -> BTreeSet<String> {
    let annotation = |key: &str| descriptor.annotations.get(key);
    let full = annotation(NAME).or_else(|| annotation(REF_NAME).filter(|name| name.contains(['/', ':'])));
    full.and_then(|name| Reference::parse(name).ok()).and_then(|name| name.repo_tag()).into_iter().collect()
}

fn load_saved(
    store: &Arc<Store>,
    archive: &Archive,
    name: Option<&str>,
) -> Result<Vec<ImageRecord>, ImageError> {
    let bytes = archive.document(b"manifest.json", MAX_MANIFEST)?;
    let saved: Vec<Saved> = serde_json::from_slice(&bytes)
        .map_err(|error| ImageError::Invalid(format!("manifest.json: {error}")))?;
    let single = saved.len() == 1;
    let mut loaded = vec![];
    for image in &saved {
        let mut tags = BTreeSet::new();
        for tag in image.repo_tags.iter().flatten() {
            tags.extend(Reference::parse(tag)?.repo_tag());
        }
        if single {
            tags.extend(name.map(str::to_owned));
        }
        let config = archive.document(image.config.as_bytes(), MAX_CONFIG)?;
        let configuration = Configuration::parse(&config)?;
        manifest::check_layers(image.layers.len(), &configuration)?;
        let mut sizes = vec![];
        for layer in &image.layers {
            sizes.push(archive.locate(layer.as_bytes())?.1);
        }
        let image_manifest = made_manifest(&config, &configuration, &sizes)?;
        let new =
            NewImage { manifest: image_manifest, config, repo_tags: tags, repo_digests: BTreeSet::new() };
        loaded.push(install(store, &new, |at| Ok((archive.reader(image.layers[at].as_bytes())?, None)))?);
    }
    Ok(loaded)
}

/// A manifest for an image that came without one.
fn made_manifest(config: &[u8], configuration: &Configuration, sizes: &[u64]) -> Result<Vec<u8>, ImageError> {
    let descriptor = |media_type: &str, digest: Digest, size: u64| Descriptor {
        media_type: media_type.into(),
        digest,
        size,
        platform: None,
        annotations: BTreeMap::new(),
    };
    let layers = configuration.diff_ids.iter().zip(sizes);
    let manifest = Manifest {
        schema_version: 2,
        media_type: manifest::OCI_MANIFEST.into(),
        config: descriptor(manifest::OCI_CONFIG, Digest::of(config), config.len() as u64),
        layers: layers
            .map(|(id, size)| descriptor("application/vnd.oci.image.layer.v1.tar", id.clone(), *size))
            .collect(),
    };
    serde_json::to_vec(&manifest).map_err(|error| ImageError::Invalid(error.to_string()))
}

/// How containers of an imported file system run.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// `NAME=value`.
    pub env: Vec<String>,
    /// The command.
    pub entrypoint: Vec<String>,
    /// Its arguments.
    pub cmd: Vec<String>,
    /// `user[:group]`.
    pub user: String,
    /// Where the command runs.
    pub working_dir: String,
}

/// Makes an image of a root file system in an archive (which may be compressed): one layer.
///
/// # Errors
/// The archive cannot be read or is malformed, or the store cannot be written.
pub fn import(
    store: &Arc<Store>,
    source: impl Read,
    name: &Reference,
    options: &ImportOptions,
) -> Result<ImageRecord, ImageError> {
    let tag =
        name.repo_tag().ok_or_else(|| ImageError::Invalid("the name needs a tag, not a digest".into()))?;
    let unpacked = store.unpack(source, &crate::layer::Expected::default())?;
    let diff_id = unpacked.layer().diff_id.clone();
    let size = unpacked.layer().unpacked.bytes;
    let _making = store.making(&diff_id);
    store.seal(unpacked, &[])?;
    let platform = Platform::machine();
    let config = serde_json::json!({
        "architecture": platform.architecture,
        "os": platform.os,
        "rootfs": {"type": "layers", "diff_ids": [diff_id.as_str()]},
        "config": {
            "Env": options.env,
            "Entrypoint": options.entrypoint,
            "Cmd": options.cmd,
            "User": options.user,
            "WorkingDir": options.working_dir,
        },
    });
    let config = config.to_string().into_bytes();
    let configuration = Configuration::parse(&config)?;
    let manifest = made_manifest(&config, &configuration, &[size])?;
    let image = NewImage { manifest, config, repo_tags: [tag].into(), repo_digests: BTreeSet::new() };
    crate::install::record(store, &image, &configuration)
}

impl Archive {
    fn open(store: &Arc<Store>, source: File) -> Result<Archive, ImageError> {
        let what = || "failed to read the archive".to_owned();
        let regular = source.metadata().context(what)?.is_file();
        let mut first = [0; 6];
        let compressed = regular && {
            let read = source.read_at(&mut first, 0).context(what)?;
            [&b"\x1f\x8b"[..], b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ"]
                .iter()
                .any(|m| first[..read].starts_with(m))
        };
        let (mut file, workspace) = if regular && !compressed {
            (source, None)
        } else {
            let workspace = store.workspace()?;
            (copy(source, &workspace.path().join("archive"), store.limits.bytes)?, Some(workspace))
        };
        file.seek(SeekFrom::Start(0)).context(what)?;
        let mut archive =
            Archive { file, files: BTreeMap::new(), links: BTreeMap::new(), _workspace: workspace };
        archive.scan()?;
        Ok(archive)
    }

    fn scan(&mut self) -> Result<(), ImageError> {
        let file = self.file.try_clone().context(|| "failed to read the archive".into())?;
        let mut reader = TarReader::new(BufReader::with_capacity(64 << 10, file));
        while let Some(entry) = reader.next_entry().map_err(read_error)? {
            if self.files.len() + self.links.len() >= MAX_ENTRIES {
                return Err(ImageError::Limit(format!("archive has more than {MAX_ENTRIES} entries")));
            }
            let name = InnerPath::parse(&entry.name)?.join();
            match entry.kind {
                EntryKind::Regular => drop(self.files.insert(name, (reader.position(), entry.size))),
                EntryKind::HardLink => drop(self.links.insert(name, InnerPath::parse(&entry.link)?.join())),
                EntryKind::Symlink => drop(self.links.insert(name.clone(), beside(&name, &entry.link))),
                _ => {}
            }
        }
        Ok(())
    }

    fn find(&self, name: &[u8]) -> Option<(u64, u64)> {
        let mut name = name;
        // A link leads to a file, or to another link once.
        for _ in 0..3 {
            if let Some(found) = self.files.get(name) {
                return Some(*found);
            }
            name = self.links.get(name)?;
        }
        None
    }

    fn locate(&self, name: &[u8]) -> Result<(u64, u64), ImageError> {
        let missing = || ImageError::Invalid(format!("archive has no {:?}", String::from_utf8_lossy(name)));
        self.find(name).ok_or_else(missing)
    }

    fn reader(&self, name: &[u8]) -> Result<Box<dyn Read + '_>, ImageError> {
        let (offset, size) = self.locate(name)?;
        Ok(Box::new(Part { file: &self.file, offset, rest: size }))
    }

    fn document(&self, name: &[u8], limit: usize) -> Result<Vec<u8>, ImageError> {
        let (_, size) = self.locate(name)?;
        if size > limit as u64 {
            let shown = String::from_utf8_lossy(name);
            return Err(ImageError::Limit(format!("{shown} has {size} bytes, more than {limit}")));
        }
        let mut bytes = vec![];
        self.reader(name)?.read_to_end(&mut bytes).map_err(read_error)?;
        Ok(bytes)
    }

    fn content(&self, descriptor: &Descriptor, limit: usize) -> Result<Vec<u8>, ImageError> {
        let bytes = self.document(&blob_path(&descriptor.digest), limit)?;
        let found = Digest::of(&bytes);
        if found != descriptor.digest {
            return Err(ImageError::Digest(format!(
                "content has digest {found}, expected {}",
                descriptor.digest
            )));
        }
        Ok(bytes)
    }

    /// The manifest for this machine; `None` if there is none, or it is not in the archive.
    fn manifest(
        &self,
        descriptor: &Descriptor,
        depth: usize,
    ) -> Result<Option<(Vec<u8>, Manifest)>, ImageError> {
        if self.find(&blob_path(&descriptor.digest)).is_none() {
            return Ok(None);
        }
        let bytes = self.content(descriptor, MAX_MANIFEST)?;
        match Document::parse(&bytes, &descriptor.media_type)? {
            Document::Manifest(manifest) => Ok(Some((bytes, manifest))),
            Document::Index(index) if depth < MAX_DEPTH => {
                let Ok(fitting) = index.select(&Platform::machine()) else { return Ok(None) };
                for descriptor in fitting {
                    if let Some(found) = self.manifest(descriptor, depth + 1)? {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            }
            Document::Index(_) => Err(ImageError::Limit("indexes are nested too deeply".into())),
        }
    }
}

fn blob_path(digest: &Digest) -> Vec<u8> {
    format!("blobs/sha256/{}", digest.hex()).into_bytes()
}

/// A link's target as a name in the archive; `..` ends at its root.
fn beside(name: &[u8], target: &[u8]) -> Vec<u8> {
    let mut components: Vec<&[u8]> = name.split(|b| *b == b'/').collect();
    components.pop();
    for component in target.split(|b| *b == b'/') {
        match component {
            b"" | b"." => {}
            b".." => drop(components.pop()),
            other => components.push(other),
        }
    }
    components.join(&b'/')
}

/// Copies an archive, decompressed, to a file.
fn copy(source: File, path: &Path, limit: u64) -> Result<File, ImageError> {
    let mut reader = decoder(BufReader::new(source))?.take(limit + 1);
    let mut file = File::options().read(true).write(true).create_new(true).open(path).on("create", path)?;
    if io::copy(&mut reader, &mut file).map_err(read_error)? > limit {
        return Err(ImageError::Limit(format!("archive has more than {limit} bytes")));
    }
    Ok(file)
}

/// A part of a file.
struct Part<'a> {
    file: &'a File,
    offset: u64,
    rest: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.rest).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], self.offset)?;
        if read == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.offset += read as u64;
        self.rest -= read as u64;
        Ok(read)
    }
}

/// An image for [`save`]: its configuration, its names, its uncompressed layers with the lowest first.
pub type SavedImage<'a> = (&'a [u8], &'a [&'a str], &'a [&'a [u8]]);

/// Writes what `docker save` would: for tests and for moving images between nodes by file.
///
/// # Errors
/// The archive cannot be written.
pub fn save(images: &[SavedImage<'_>], to: impl Write) -> Result<(), ImageError> {
    let what = || "failed to write the archive".to_owned();
    let mut writer = TarWriter::new(to);
    let mut manifest = vec![];
    for (config, tags, layers) in images {
        let config_name = format!("{}.json", Digest::of(config).hex());
        writer.append(&entry(&config_name, EntryKind::Regular), config).context(what)?;
        let mut names = vec![];
        for layer in *layers {
            let name = format!("{}/layer.tar", Digest::of(layer).hex());
            writer.append(&entry(&name, EntryKind::Regular), layer).context(what)?;
            names.push(name);
        }
        manifest.push(serde_json::json!({"Config": config_name, "RepoTags": tags, "Layers": names}));
    }
    let manifest = serde_json::Value::Array(manifest).to_string();
    writer.append(&entry("manifest.json", EntryKind::Regular), manifest.as_bytes()).context(what)?;
    writer.finish().context(what)?;
    Ok(())
}
