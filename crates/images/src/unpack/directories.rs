//! The directories of a layer that is being unpacked, opened so that no link leads out of it.

use super::InnerPath;
use crate::error::{Context, ImageError};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Opens directories below a root.
pub(super) struct Directories {
    root: OwnedFd,
    /// The last one that was opened: entries of a directory follow each other.
    last: Option<(Vec<u8>, Arc<OwnedFd>)>,
}

impl Directories {
    pub fn open(root: &Path) -> Result<Directories, ImageError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty()).on("open", root)?;
        Ok(Directories { root, last: None })
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Forgets what is open: a component may be another directory now.
    pub fn changed(&mut self) {
        self.last = None;
    }

    /// A directory that exists. Links in the path lead to inside the root.
    pub fn existing(&self, path: &[u8], last: OFlags) -> rustix::io::Result<OwnedFd> {
        let path = if path.is_empty() { &b"."[..] } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | last;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        kaji_files::open_within(&self.root, path, flags, resolve)
    }

    /// A directory; missing ones are created, with the paths of those added to `created`.
    pub fn make(&mut self, path: &[u8], created: &mut Vec<Vec<u8>>) -> Result<Arc<OwnedFd>, ImageError> {
        if let Some((name, directory)) = &self.last
            && name == path
        {
            return Ok(directory.clone());
        }
        let directory = Arc::new(match self.existing(path, OFlags::empty()) {
            Err(Errno::NOENT) => self.make_all(path, created)?,
            result => result.context(|| "failed to open the parent directory".into())?,
        });
        self.last = Some((path.to_vec(), directory.clone()));
        Ok(directory)
    }

    fn make_all(&self, path: &[u8], created: &mut Vec<Vec<u8>>) -> Result<OwnedFd, ImageError> {
        let components = InnerPath::parse(path)?.0;
        let mut at = self.existing(b"", OFlags::empty()).context(|| "open the layer".into())?;
        for end in 1..=components.len() {
            let prefix = components[..end].join(&b'/');
            at = match self.existing(&prefix, OFlags::empty()) {
                Err(Errno::NOENT) => {
                    let name = &components[end - 1][..];
                    // A link that leads to nothing is refused here, since it exists.
                    rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755))
                        .context(|| "failed to create a parent directory".into())?;
                    created.push(prefix.clone());
                    self.existing(&prefix, OFlags::NOFOLLOW)
                }
                result => result,
            }
            .context(|| "failed to open a parent directory".into())?;
        }
        Ok(at)
    }
}

/// Removes whatever a name in a directory is; what is absent is removed already.
pub(super) fn remove(directory: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    // Directories on the way to the one that is being emptied; bounded by the length of paths.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let mut stack = vec![(top, name.to_vec())];
    while let Some((open, own)) = stack.pop() {
        let mut deeper = None;
        for entry in rustix::fs::Dir::read_from(&open)? {
            let entry = entry?;
            let child = entry.file_name().to_bytes();
            if matches!(child, b"." | b"..") {
                continue;
            }
            match rustix::fs::unlinkat(&open, child, AtFlags::empty()) {
                Ok(()) => {}
                Err(Errno::ISDIR | Errno::PERM) => {
                    deeper = Some((rustix::fs::openat(&open, child, flags, Mode::empty())?, child.to_vec()));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(child) = deeper {
            stack.push((open, own));
            stack.push(child);
        } else {
            let above = stack.last().map_or(directory, |(above, _)| above.as_fd());
            rustix::fs::unlinkat(above, &own[..], AtFlags::REMOVEDIR)?;
        }
    }
    Ok(())
}
