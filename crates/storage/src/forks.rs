//! A second cluster that begins as another one is: of its data directory, while its server runs or not, or of a snapshot.
//!
//! The fork keeps the source's certificates and keys, so that tokens of service accounts, certificates of nodes and users, and the
//! authorities that objects name are as good in it as in the source; a fork is for tests and experiments, and not for other users than those of
//! the source. A snapshot has no keys: a fork of one gets new ones, and tokens in it are not accepted.
//!
//! Invariants: the source is only read. Objects keep their uids; resourceVersions go on where those of the source were, or, of a snapshot,
//! above all that its cluster may have given out. Where nodes are simulated, no container of the source runs twice.

use crate::{
    STORE,
    progress::silent,
    snapshots::{self, BUMP, SnapshotError, SnapshotFile},
};
use kaji_encryption::sealed::SealingKey;
use kaji_store::{Revision, StoreError, disk};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Of a data directory, the certificates and keys.
const PKI: &str = "pki";
/// Directories in each other.
const MAX_DEPTH: usize = 8;

/// Why a cluster was not forked.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// A file or directory.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The snapshot.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// What was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forked {
    /// A copy of a store, of the same revision.
    Store(disk::Forked),
    /// A store of a snapshot.
    Snapshot {
        /// Its objects.
        objects: u64,
        /// The revision that it begins with.
        revision: Revision,
    },
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> ForkError + '_ {
    move |source| ForkError::File { path: path.to_owned(), source }
}

/// Makes a data directory of `source`, which is a data directory or the file of a snapshot. `data_dir` must have no store. A cluster over it
/// is started as over any other; see [`kaji_options::Options::simulates_found_nodes`]. Blocks.
///
/// # Errors
/// When the source cannot be read, and those of the store.
pub fn fork(source: &Path, data_dir: &Path) -> Result<Forked, ForkError> {
    fork_with_key(source, None, data_dir)
}

/// The same, with the key that a snapshot is encrypted with.
///
/// # Errors
/// As [`fork`].
pub fn fork_with_key(source: &Path, key: Option<SealingKey>, data_dir: &Path) -> Result<Forked, ForkError> {
    let found = fs::metadata(source).map_err(file_error(source))?;
    if found.is_file() {
        let (objects, revision) = snapshots::restore_to_disk(
            &SnapshotFile { path: source.to_owned(), key },
            data_dir,
            BUMP,
            &silent,
        )?;
        return Ok(Forked::Snapshot { objects, revision });
    }
    kaji_files::parent_of_private(data_dir).map_err(file_error(data_dir))?;
    let forked = disk::fork(&source.join(STORE), &data_dir.join(STORE))?;
    let keys = source.join(PKI);
    if keys.is_dir() {
        copy_directory(&keys, &data_dir.join(PKI), MAX_DEPTH)?;
    }
    Ok(Forked::Store(forked))
}

/// Copies regular files and directories, with their modes.
fn copy_directory(from: &Path, to: &Path, depth: usize) -> Result<(), ForkError> {
    kaji_files::private_dir(to).map_err(file_error(to))?;
    for entry in fs::read_dir(from).map_err(file_error(from))? {
        let entry = entry.map_err(file_error(from))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().map_err(file_error(&path))?;
        if kind.is_dir() && depth > 0 {
            copy_directory(&path, &target, depth - 1)?;
        } else if kind.is_file() {
            fs::copy(&path, &target).map_err(file_error(&path))?;
        }
    }
    Ok(())
}
