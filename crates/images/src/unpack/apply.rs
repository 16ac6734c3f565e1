//! Makes what one entry of a layer describes.

use super::directories::remove;
use super::{DirectoryAttributes, InnerPath, Unpacked, Unpacker, is_root, owner};
use crate::error::{Context, ImageError};
use crate::tar::{Entry, EntryKind, TarReader};
use kaji_files::NamespaceIds;
use rustix::fs::{AtFlags, Dev, FileType, Mode, OFlags, Stat, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// How a layer says that a directory hides those below.
const OPAQUE: &[u8] = b".wh..wh..opq";

impl Unpacker {
    /// The layer's own root.
    pub(super) fn root(&mut self, entry: &Entry) -> Result<(), ImageError> {
        if entry.kind != EntryKind::Directory {
            return Err(ImageError::Invalid("the root is not a directory".into()));
        }
        self.own(self.directories.root(), entry)?;
        let attributes = DirectoryAttributes { mode: entry.mode, mtime: entry.mtime };
        self.deferred.insert(vec![], attributes);
        Ok(())
    }

    pub(super) fn directory(&mut self, path: &InnerPath, entry: &Entry) -> Result<(), ImageError> {
        let Some((parent, name)) = path.split() else { return self.root(entry) };
        let directory = self.parent(&parent)?;
        let former = lstat(directory.as_fd(), name)?;
        let is_directory = former.as_ref().is_some_and(|stat| kind(stat) == FileType::Directory);
        if !is_directory {
            self.clear(&directory, name)?;
            rustix::fs::mkdirat(&*directory, name, Mode::from_raw_mode(0o700))
                .context(|| "failed to create the directory".into())?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&*directory, name, flags, Mode::empty())
            .context(|| "failed to open the directory".into())?;
        if former.as_ref().is_some_and(is_whiteout) {
            // The layer hides what is below, and has a directory of its own there.
            self.make_opaque(made.as_fd())?;
        }
        self.own(made.as_fd(), entry)?;
        let path = path.join();
        self.unpacked.implied.retain(|implied| *implied != path);
        self.deferred.insert(path, DirectoryAttributes { mode: entry.mode, mtime: entry.mtime });
        Ok(())
    }

    pub(super) fn file<R: Read>(
        &mut self,
        parent: &[u8],
        name: &[u8],
        entry: &Entry,
        archive: &mut TarReader<R>,
    ) -> Result<(), ImageError> {
        let directory = self.parent(parent)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&*directory, name, flags, Mode::from_raw_mode(0o600));
        let made = match open() {
            Err(Errno::EXIST) => {
                self.clear(&directory, name)?;
                open()
            }
            result => result,
        };
        let mut file = File::from(made.context(|| "failed to create the file".into())?);
        loop {
            let read = archive.read(&mut self.buffer).map_err(super::read_error)?;
            if read == 0 {
                break;
            }
            file.write_all(&self.buffer[..read]).context(|| "failed to write the file".into())?;
        }
        self.unpacked.bytes += entry.size;
        // Changing the owner takes setuid bits and capabilities away: mode and attributes come after it.
        self.own(file.as_fd(), entry)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(entry.mode))
            .context(|| "failed to set the mode".into())?;
        rustix::fs::futimens(&file, &times(entry.mtime)).context(|| "failed to set the time".into())
    }

    pub(super) fn symlink(&mut self, parent: &[u8], name: &[u8], entry: &Entry) -> Result<(), ImageError> {
        let directory = self.parent(parent)?;
        self.clear(&directory, name)?;
        if entry.link.is_empty() || entry.link.contains(&0) {
            return Err(ImageError::Invalid("symbolic link without a target".into()));
        }
        rustix::fs::symlinkat(&entry.link[..], &*directory, name)
            .context(|| "failed to create the symbolic link".into())?;
        self.own_name(&directory, name, entry)
    }

    pub(super) fn hard_link(&mut self, parent: &[u8], name: &[u8], entry: &Entry) -> Result<(), ImageError> {
        let target = InnerPath::parse(&entry.link)?;
        let Some((target_parent, target_name)) = target.split() else {
            return Err(ImageError::Invalid("hard link to the root".into()));
        };
        let failed = || "failed to create the hard link".to_owned();
        let from = self.directories.existing(&target_parent, OFlags::empty()).context(failed)?;
        let found = rustix::fs::statat(&from, target_name, AtFlags::SYMLINK_NOFOLLOW).context(failed)?;
        let directory = self.parent(parent)?;
        let former = lstat(directory.as_fd(), name)?;
        if former.is_some_and(|f| (f.st_dev, f.st_ino) == (found.st_dev, found.st_ino)) {
            return Ok(());
        }
        if kind(&found) == FileType::Directory {
            return Err(ImageError::Invalid("hard link to a directory".into()));
        }
        self.clear(&directory, name)?;
        rustix::fs::linkat(&from, target_name, &*directory, name, AtFlags::empty()).context(failed)
    }

    /// A device or a named pipe.
    pub(super) fn node(&mut self, parent: &[u8], name: &[u8], entry: &Entry) -> Result<(), ImageError> {
        let directory = self.parent(parent)?;
        self.clear(&directory, name)?;
        let (kind, device) = match entry.kind {
            EntryKind::CharDevice => (FileType::CharacterDevice, device(entry.device)),
            EntryKind::BlockDevice => (FileType::BlockDevice, device(entry.device)),
            _ => (FileType::Fifo, 0),
        };
        if !self.privileged && kind != FileType::Fifo {
            tracing::debug!(name = %String::from_utf8_lossy(&entry.name), "a device is skipped: creating devices requires root");
            return Ok(());
        }
        rustix::fs::mknodat(&*directory, name, kind, Mode::from_raw_mode(entry.mode), device)
            .context(|| "failed to create the node".into())?;
        self.own_name(&directory, name, entry)?;
        // The mode of creation had the umask taken off. The name is not a link: it was made here, and nothing else writes.
        rustix::fs::chmodat(&*directory, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())
            .context(|| "failed to set the mode".into())
    }

    /// Hides what a name is in the layers below.
    pub(super) fn whiteout(&mut self, parent: &[u8], name: &[u8]) -> Result<(), ImageError> {
        if name != OPAQUE && name.starts_with(b".wh..wh.") {
            // Records of aufs.
            return Ok(());
        }
        let directory = self.parent(parent)?;
        if name == OPAQUE {
            return self.make_opaque(directory.as_fd());
        }
        let hidden = &name[b".wh.".len()..];
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(ImageError::Invalid("invalid whiteout".into()));
        }
        match lstat(directory.as_fd(), hidden)? {
            // A whiteout hides what is below, not what its own layer has.
            Some(found) if kind(&found) == FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let open = rustix::fs::openat(&*directory, hidden, flags, Mode::empty())
                    .context(|| "failed to open the directory".into())?;
                self.make_opaque(open.as_fd())
            }
            Some(_) => Ok(()),
            None => rustix::fs::mknodat(&*directory, hidden, FileType::CharacterDevice, Mode::empty(), 0)
                .context(|| "failed to create the whiteout".into()),
        }
    }

    /// Gives directories their modes and times, the deepest first.
    pub(super) fn finish(mut self) -> Result<Unpacked, ImageError> {
        for (path, attributes) in std::mem::take(&mut self.deferred).into_iter().rev() {
            let directory = match self.directories.existing(&path, OFlags::NOFOLLOW) {
                Ok(directory) => directory,
                // A later entry has replaced it.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(error) => return Err(error).context(|| "failed to open a directory".into()),
            };
            rustix::fs::futimens(&directory, &times(attributes.mtime))
                .and_then(|()| rustix::fs::fchmod(&directory, Mode::from_raw_mode(attributes.mode)))
                .context(|| "failed to set the attributes of a directory".into())?;
        }
        Ok(self.unpacked)
    }

    fn parent(&mut self, path: &[u8]) -> Result<Arc<OwnedFd>, ImageError> {
        self.directories.make(path, &mut self.unpacked.implied)
    }

    /// Removes what a later entry replaces.
    fn clear(&mut self, directory: &OwnedFd, name: &[u8]) -> Result<(), ImageError> {
        if lstat(directory.as_fd(), name)?.is_some() {
            self.directories.changed();
            remove(directory.as_fd(), name).context(|| "failed to replace an earlier entry".into())?;
        }
        Ok(())
    }

    fn make_opaque(&self, directory: BorrowedFd<'_>) -> Result<(), ImageError> {
        let name = if self.privileged { "trusted.overlay.opaque" } else { "user.overlay.opaque" };
        rustix::fs::fsetxattr(directory, name, b"y", XattrFlags::empty())
            .context(|| "failed to mark the directory opaque".into())
    }

    /// Sets owner and extended attributes of what is open.
    fn own(&self, file: BorrowedFd<'_>, entry: &Entry) -> Result<(), ImageError> {
        if let Some((user, group)) = owner(NamespaceIds::own(), entry.uid, entry.gid) {
            rustix::fs::fchown(file, user, group).context(|| "failed to set the owner".into())?;
        }
        for (name, value) in &entry.xattrs {
            if !self.takes_attribute(name) {
                tracing::debug!(name = %String::from_utf8_lossy(name), "an extended attribute is skipped");
                continue;
            }
            match rustix::fs::fsetxattr(file, &name[..], value, XattrFlags::empty()) {
                // The file system has none.
                Ok(()) | Err(Errno::NOTSUP) => {}
                // They name ids that the user namespace does not have.
                Err(Errno::INVAL | Errno::PERM) if !self.privileged => {}
                Err(error) => {
                    let shown = String::from_utf8_lossy(name).into_owned();
                    return Err(error).context(|| format!("failed to set the attribute {shown:?}"));
                }
            }
        }
        Ok(())
    }

    fn takes_attribute(&self, name: &[u8]) -> bool {
        match name {
            b"security.capability" => is_root(),
            b"system.posix_acl_access" | b"system.posix_acl_default" => true,
            _ => name.starts_with(b"user.") && !name.starts_with(b"user.overlay."),
        }
    }

    /// Owner and time of what cannot be opened.
    fn own_name(&self, directory: &OwnedFd, name: &[u8], entry: &Entry) -> Result<(), ImageError> {
        if let Some((user, group)) = owner(NamespaceIds::own(), entry.uid, entry.gid) {
            rustix::fs::chownat(directory, name, user, group, AtFlags::SYMLINK_NOFOLLOW)
                .context(|| "failed to set the owner".into())?;
        }
        rustix::fs::utimensat(directory, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)
            .context(|| "failed to set the time".into())
    }
}

/// Gives the directories that a layer implies the mode and owner that they have in the layers below, the topmost first.
pub(crate) fn inherit(layer: &Path, implied: &[Vec<u8>], below: &[&Path]) -> Result<(), ImageError> {
    if implied.is_empty() || below.is_empty() {
        return Ok(());
    }
    let target = super::Directories::open(layer)?;
    let below: Vec<_> = below.iter().map(|path| super::Directories::open(path)).collect::<Result<_, _>>()?;
    for path in implied {
        let found = below.iter().find_map(|layer| layer.existing(path, OFlags::empty()).ok());
        let Some(found) = found else { continue };
        let context = || "failed to copy the attributes of a directory".to_owned();
        let stat = rustix::fs::fstat(&found).context(context)?;
        let directory = target.existing(path, OFlags::NOFOLLOW).context(context)?;
        if let Some((user, group)) = owner(NamespaceIds::own(), stat.st_uid, stat.st_gid) {
            rustix::fs::fchown(&directory, user, group).context(context)?;
        }
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(stat.st_mode & 0o7777)).context(context)?;
    }
    Ok(())
}

fn lstat(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>, ImageError> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error).context(|| "failed to look at an earlier entry".into()),
    }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn is_whiteout(stat: &Stat) -> bool {
    kind(stat) == FileType::CharacterDevice && stat.st_rdev == 0
}

fn device((major, minor): (u32, u32)) -> Dev {
    rustix::fs::makedev(major, minor)
}

fn times((seconds, nanos): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}
