//! Unpacks a layer into a directory, with whiteouts as overlayfs has them.
//!
//! Invariants:
//! - Nothing outside the directory is read, changed or created, whatever the archive has: names are taken apart here, `..` is
//!   refused, directories are opened by `openat2` with `RESOLVE_IN_ROOT` (so that symbolic links end inside), and each
//!   operation names the last component in its opened directory and follows no link.
//! - Entries and bytes are bounded by [`Limits`].
//! - Extended attributes that mean something to overlayfs are never taken from an archive.
//!
//! Where the process is not the machine's root: device nodes are left out, and opaque directories are marked by
//! `user.overlay.opaque` (the overlay has to be mounted with `userxattr`). Root of a user namespace sets the owners that this
//! namespace has, other users set none.

pub(crate) mod apply;
mod directories;

use crate::error::ImageError;
use crate::tar::{Entry, EntryKind, TarReader};
use directories::Directories;
use kaji_files::NamespaceIds;
use rustix::fs::{Gid, Uid};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// As long as paths can be.
const MAX_PATH: usize = 4096;

/// Bounds of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Entries.
    pub entries: u64,
    /// Bytes of the uncompressed archive.
    pub bytes: u64,
    /// How many bytes a compressed byte may become, once the layer is larger than `ratio_from`.
    pub ratio: u64,
    /// Bytes of the uncompressed archive up to which the ratio does not count.
    pub ratio_from: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { entries: 2_000_000, bytes: 128 << 30, ratio: 400, ratio_from: 1 << 30 }
    }
}

/// What was unpacked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Bytes of files.
    pub bytes: u64,
    /// Entries.
    pub entries: u64,
    /// Directories that the archive needs but does not describe, parents first: owner and mode are those of the layers below.
    pub implied: Vec<Vec<u8>>,
}

/// Unpacks an archive into an empty directory.
///
/// # Errors
/// The archive cannot be read, is malformed or refused, or the directory cannot be written.
pub fn unpack<R: Read>(
    archive: &mut TarReader<R>,
    directory: &Path,
    limits: &Limits,
) -> Result<Unpacked, ImageError> {
    let mut unpacker = Unpacker {
        directories: Directories::open(directory)?,
        unpacked: Unpacked::default(),
        deferred: BTreeMap::new(),
        privileged: is_root() && NamespaceIds::own().is_whole(),
        buffer: vec![0; 128 << 10],
    };
    while let Some(entry) = archive.next_entry().map_err(read_error)? {
        unpacker.unpacked.entries += 1;
        if unpacker.unpacked.entries > limits.entries {
            return Err(ImageError::Limit(format!("layer has more than {} entries", limits.entries)));
        }
        let shown = String::from_utf8_lossy(&entry.name).into_owned();
        unpacker.entry(entry, archive).map_err(|error| error.within(&format!("layer entry {shown:?}")))?;
    }
    archive.drain().map_err(read_error)?;
    unpacker.finish()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The owner that can be given: what the user namespace does not have is left as it is. `None` for nothing.
pub(crate) fn owner(ids: &NamespaceIds, uid: u32, gid: u32) -> Option<(Option<Uid>, Option<Gid>)> {
    let user = ids.has_user(uid).then(|| Uid::from_raw(uid));
    let group = ids.has_group(gid).then(|| Gid::from_raw(gid));
    (is_root() && (user.is_some() || group.is_some())).then_some((user, group))
}

/// What the kinds of read errors mean: limits and broken downloads pass through the readers as I/O errors.
pub(crate) fn read_error(error: std::io::Error) -> ImageError {
    if error.get_ref().is_some_and(|inner| inner.is::<ImageError>()) {
        let inner = error.into_inner().and_then(|inner| inner.downcast::<ImageError>().ok());
        return inner.map_or_else(|| ImageError::Invalid("failed to read layer".into()), |inner| *inner);
    }
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::UnexpectedEof
        | ErrorKind::InvalidData
        | ErrorKind::InvalidInput
        | ErrorKind::Unsupported
        | ErrorKind::Other => ImageError::Invalid(format!("failed to read layer: {error}")),
        _ => ImageError::Io { context: "failed to read layer".into(), error },
    }
}

/// A path inside the directory: its components, none of which is `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InnerPath(Vec<Vec<u8>>);

impl InnerPath {
    /// Takes a name apart. Leading slashes mean nothing.
    pub fn parse(name: &[u8]) -> Result<InnerPath, ImageError> {
        if name.len() > MAX_PATH {
            return Err(ImageError::Invalid("path is too long".into()));
        }
        if name.contains(&0) {
            return Err(ImageError::Invalid("path has a NUL".into()));
        }
        let mut components = vec![];
        for component in name.split(|b| *b == b'/') {
            match component {
                b"" | b"." => {}
                b".." => return Err(ImageError::Invalid("path leaves the layer by \"..\"".into())),
                other => components.push(other.to_vec()),
            }
        }
        Ok(InnerPath(components))
    }

    /// Directory and last component; `None` for the root.
    pub fn split(&self) -> Option<(Vec<u8>, &[u8])> {
        let (last, parents) = self.0.split_last()?;
        Some((parents.join(&b'/'), last))
    }

    pub fn join(&self) -> Vec<u8> {
        self.0.join(&b'/')
    }
}

/// Mode and time of a directory, set at the end: files that come into it change its time, and its mode may forbid them.
struct DirectoryAttributes {
    mode: u32,
    mtime: (i64, u32),
}

struct Unpacker {
    directories: Directories,
    unpacked: Unpacked,
    deferred: BTreeMap<Vec<u8>, DirectoryAttributes>,
    privileged: bool,
    buffer: Vec<u8>,
}

impl Unpacker {
    fn entry<R: Read>(&mut self, entry: Entry, archive: &mut TarReader<R>) -> Result<(), ImageError> {
        let path = InnerPath::parse(&entry.name)?;
        // It means "unchanged" to the kernel.
        if entry.uid == u32::MAX || entry.gid == u32::MAX {
            return Err(ImageError::Invalid("invalid owner".into()));
        }
        let Some((parent, name)) = path.split() else {
            return self.root(&entry);
        };
        if name.starts_with(b".wh.") {
            return self.whiteout(&parent, name);
        }
        match entry.kind {
            EntryKind::Directory => self.directory(&path, &entry),
            EntryKind::Regular => self.file(&parent, name, &entry, archive),
            EntryKind::HardLink => self.hard_link(&parent, name, &entry),
            EntryKind::Symlink => self.symlink(&parent, name, &entry),
            EntryKind::CharDevice | EntryKind::BlockDevice | EntryKind::Fifo => {
                self.node(&parent, name, &entry)
            }
        }
    }
}

#[cfg(test)]
mod tests;
