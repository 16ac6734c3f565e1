//! The files of pulls: one for each image that was pulled, and one for each that is being pulled, below the kubelet's directory, in
//! the form of upstream's kubelet, which may have left some.
//!
//! Invariants: only the kubelet's user can read them; a file is replaced as a whole, and is on disk when its write has returned; a file
//! that cannot be read is an error that names it, and never counts as absent.

use super::PulledWith;
use jiff::Timestamp;
use kaji_meta::text::hex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Repositories of one image.
const MOST_REPOSITORIES: usize = 32;
/// Bytes of a file; records are smaller.
const MOST: u64 = 8 << 20;
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const PREFIX: &str = "sha256-";
const UNFINISHED: &str = ".tmp";

/// What is kept of an image.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    kind: String,
    api_version: String,
    image_ref: String,
    pub(super) last_updated_time: Timestamp,
    /// By repository.
    #[serde(default)]
    pub(super) credential_mapping: BTreeMap<String, PulledWith>,
}

impl Record {
    pub(super) fn new(image_ref: &str, now: Timestamp) -> Record {
        Record {
            kind: "ImagePulledRecord".to_owned(),
            api_version: API_VERSION.to_owned(),
            image_ref: image_ref.to_owned(),
            last_updated_time: now,
            credential_mapping: BTreeMap::new(),
        }
    }

    /// Adds what the image was pulled with from a repository.
    pub(super) fn add(&mut self, repository: &str, with: PulledWith) {
        if let Some(known) = self.credential_mapping.get_mut(repository) {
            known.add(with);
            return;
        }
        if self.credential_mapping.len() >= MOST_REPOSITORIES {
            self.credential_mapping.pop_first();
        }
        self.credential_mapping.insert(repository.to_owned(), with);
    }
}

/// The file of an image's id, or of its name.
pub(super) fn name(image: &str) -> String {
    format!("{PREFIX}{}", hex(&Sha256::digest(image.as_bytes())))
}

/// The directories, upstream's.
#[derive(Debug)]
pub(super) struct Files {
    pulled: PathBuf,
    pulling: PathBuf,
}

impl Files {
    pub(super) fn new(root: &Path) -> Files {
        let all = root.join("image_manager");
        Files { pulled: all.join("pulled"), pulling: all.join("pulling") }
    }

    /// The record of an image, if there is one.
    pub(super) fn record(&self, image_ref: &str) -> Result<Option<Record>, String> {
        let path = self.pulled.join(name(image_ref));
        match read(&path)? {
            Some(record) if record.image_ref != image_ref => {
                Err(format!("{}: it is about another image", path.display()))
            }
            found => Ok(found),
        }
    }

    pub(super) fn write_record(&self, record: &Record) -> io::Result<()> {
        write(&self.pulled, &name(&record.image_ref), &serde_json::to_vec(record)?)
    }

    /// Removes the records of other images than these, unless they were written since, and what writes have left that were not finished.
    pub(super) fn sweep(&self, kept: &BTreeSet<String>, since: Timestamp) {
        for file in listed(&self.pulled) {
            let path = self.pulled.join(&file);
            // What cannot be read is about an image that is gone.
            let is_new = || matches!(read(&path), Ok(Some(record)) if record.last_updated_time >= since);
            if file.ends_with(UNFINISHED) || (file.starts_with(PREFIX) && !kept.contains(&file) && !is_new())
            {
                remove(&path);
            }
        }
        let unfinished = listed(&self.pulling).into_iter().filter(|file| file.ends_with(UNFINISHED));
        unfinished.for_each(|file| remove(&self.pulling.join(file)));
    }

    /// The names of the files of pulls that have begun.
    pub(super) fn intents(&self) -> Vec<String> {
        let all = listed(&self.pulling).into_iter();
        all.filter(|file| file.starts_with(PREFIX) && !file.ends_with(UNFINISHED)).collect()
    }

    pub(super) fn write_intent(&self, image: &str) -> io::Result<()> {
        let intent = json!({"kind": "ImagePullIntent", "apiVersion": API_VERSION, "image": image});
        write(&self.pulling, &name(image), intent.to_string().as_bytes())
    }

    pub(super) fn remove_intent(&self, file: &str) {
        remove(&self.pulling.join(file));
    }
}

fn listed(directory: &Path) -> Vec<String> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect(),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::error!(%error, directory = %directory.display(), "the records of image pulls cannot be listed");
            }
            vec![]
        }
    }
}

fn read(path: &Path) -> Result<Option<Record>, String> {
    let shown = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(shown(&error)),
    };
    let mut bytes = vec![];
    file.take(MOST).read_to_end(&mut bytes).map_err(|error| shown(&error))?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| shown(&error))
}

fn write(directory: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    kaji_files::private_dir(directory)?;
    kaji_files::replace(&directory.join(name), content, kaji_files::PRIVATE)?;
    // The name has to last, too.
    File::open(directory)?.sync_all()
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::error!(%error, path = %path.display(), "a record of image pulls cannot be removed");
        }
        _ => {}
    }
}
