//! Root file systems as copies of an image's layers, where the kernel refuses overlays to a user namespace.
//!
//! Invariants: what a copy has is what an overlay of the layers would show: whiteouts and opaque directories hide what lies below, and
//! are not copied; links are copied as links, and nothing outside of the target is written.

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// How unpacking marks directories that hide those below, without root.
const OPAQUE: &str = "user.overlay.opaque";
/// Larger attributes than the kernel has.
const MOST_BYTES: usize = 64 << 10;

/// Copies layers (the topmost first) into an empty directory.
///
/// # Errors
/// Those of the file system, with the path.
pub fn copy_layers(layers: &[PathBuf], target: &Path) -> io::Result<()> {
    for layer in layers.iter().rev() {
        let mut copier = Copier::default();
        copier.directory(layer, target)?;
        // The deepest first: what is made in a directory changes its time, and its mode may forbid it.
        for (source, target) in copier.directories.into_iter().rev() {
            attributes(&source, &target).map_err(|error| named(&target, &error))?;
        }
    }
    Ok(())
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("copying a layer: {}: {error}", path.display()))
}

#[derive(Default)]
struct Copier {
    /// What has several names in the layer, and its first copy.
    links: HashMap<(u64, u64), PathBuf>,
    /// Parents first.
    directories: Vec<(PathBuf, PathBuf)>,
}

impl Copier {
    fn directory(&mut self, layer: &Path, root: &Path) -> io::Result<()> {
        let mut left = vec![(layer.to_owned(), root.to_owned())];
        while let Some((source, target)) = left.pop() {
            for entry in fs::read_dir(&source).map_err(|error| named(&source, &error))? {
                let entry = entry?;
                let (from, to) = (entry.path(), target.join(entry.file_name()));
                let found = entry.metadata().map_err(|error| named(&from, &error))?;
                self.entry(&from, &to, &found).map_err(|error| named(&to, &error))?;
                if found.is_dir() {
                    left.push((from, to));
                }
            }
            self.directories.push((source, target));
        }
        Ok(())
    }

    fn entry(&mut self, from: &Path, to: &Path, found: &Metadata) -> io::Result<()> {
        let kind = found.file_type();
        let former = fs::symlink_metadata(to).ok();
        let merges = kind.is_dir() && former.as_ref().is_some_and(Metadata::is_dir) && !is_opaque(from);
        if merges {
            return Ok(());
        }
        match former {
            Some(former) if former.is_dir() => fs::remove_dir_all(to)?,
            Some(_) => fs::remove_file(to)?,
            None => {}
        }
        if kind.is_dir() {
            return fs::create_dir(to);
        }
        if kind.is_char_device() || kind.is_block_device() {
            // A whiteout: devices are left out when layers are unpacked without root.
            return Ok(());
        }
        if let Some(first) = self.links.get(&(found.dev(), found.ino())) {
            return fs::hard_link(first, to);
        }
        if kind.is_symlink() {
            symlink(fs::read_link(from)?, to)?;
        } else if kind.is_file() {
            fs::copy(from, to)?;
        } else {
            rustix::fs::mknodat(CWD, to, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        }
        if found.nlink() > 1 {
            self.links.insert((found.dev(), found.ino()), to.to_owned());
        }
        attributes(from, to)
    }
}

fn is_opaque(directory: &Path) -> bool {
    let mut value = [0; 8];
    rustix::fs::lgetxattr(directory, OPAQUE, &mut value[..]).is_ok_and(|length| value[..length] == *b"y")
}

/// Owner, mode, attributes and time, in the order in which none takes another one away.
fn attributes(from: &Path, to: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(from)?;
    let owner = (Some(Uid::from_raw(found.uid())), Some(Gid::from_raw(found.gid())));
    rustix::fs::chownat(CWD, to, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?;
    if !found.is_symlink() {
        rustix::fs::chmodat(CWD, to, Mode::from_raw_mode(found.mode() & 0o7777), AtFlags::empty())?;
    }
    let mut names = vec![0; MOST_BYTES];
    let length = match rustix::fs::llistxattr(from, &mut names[..]) {
        // The file system has none.
        Err(rustix::io::Errno::NOTSUP) => 0,
        length => length?,
    };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if name.starts_with(b"user.overlay.") {
            continue;
        }
        let mut value = vec![0; MOST_BYTES];
        let length = rustix::fs::lgetxattr(from, name, &mut value[..])?;
        rustix::fs::lsetxattr(to, name, &value[..length], XattrFlags::empty())?;
    }
    let time = Timespec { tv_sec: found.mtime(), tv_nsec: found.mtime_nsec() };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn layer(root: &Path, name: &str, files: &[(&str, &str)]) -> PathBuf {
        let layer = root.join(name);
        for (path, text) in files {
            let path = layer.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        layer
    }

    fn shown(root: &Path) -> Vec<String> {
        let mut found = vec![];
        let mut left = vec![root.to_owned()];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(&directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    left.push(path);
                } else {
                    let text = fs::read_to_string(&path).unwrap_or_default();
                    found.push(format!("{}={text}", path.strip_prefix(root).unwrap().display()));
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn later_layers_hide_former_ones() {
        let root = tempfile::tempdir().unwrap();
        let bottom = layer(
            root.path(),
            "bottom",
            &[("etc/a", "1"), ("etc/b", "2"), ("opt/old/x", "3"), ("file/x", "4")],
        );
        let top = layer(root.path(), "top", &[("etc/a", "changed"), ("opt/old/new", "5"), ("file", "6")]);
        // The kernel lets every user make whiteouts.
        let whiteout = top.join("etc/b");
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(CWD, &whiteout, kind, Mode::empty(), 0).unwrap();
        rustix::fs::lsetxattr(top.join("opt/old"), OPAQUE, b"y", XattrFlags::empty()).unwrap();
        fs::set_permissions(top.join("etc"), fs::Permissions::from_mode(0o711)).unwrap();
        let target = root.path().join("target");
        fs::create_dir(&target).unwrap();
        copy_layers(&[top, bottom], &target).unwrap();
        assert_eq!(shown(&target), ["etc/a=changed", "file=6", "opt/old/new=5"]);
        assert_eq!(fs::metadata(target.join("etc")).unwrap().mode() & 0o777, 0o711);
    }

    #[test]
    fn links_stay_links() {
        let root = tempfile::tempdir().unwrap();
        let only = layer(root.path(), "only", &[("bin/busybox", "program")]);
        fs::hard_link(only.join("bin/busybox"), only.join("bin/sh")).unwrap();
        symlink("/outside", only.join("link")).unwrap();
        let target = root.path().join("target");
        fs::create_dir(&target).unwrap();
        copy_layers(&[only], &target).unwrap();
        let inode = |name: &str| fs::metadata(target.join(name)).unwrap().ino();
        assert_eq!(inode("bin/busybox"), inode("bin/sh"));
        assert_eq!(fs::read_link(target.join("link")).unwrap(), Path::new("/outside"));
    }
}
