//! What directory trees take of a disk.
//!
//! Invariants: a file with several links counts once; symbolic links are not followed; what cannot be read, or was removed
//! meanwhile, is left out.

use std::{collections::HashSet, fs, iter::Sum, ops::Add, os::unix::fs::MetadataExt, path::Path};

/// The unit of `st_blocks`, in bytes.
const BLOCK: u64 = 512;

/// Bytes and inodes of a directory tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectoryUsage {
    /// Bytes on the disk.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

impl DirectoryUsage {
    /// What is below a directory, which is not counted itself. Counting ends at `most_inodes`; it blocks for as long as the tree is
    /// large. With `one_file_system`, what is mounted below it is left out.
    #[must_use]
    pub fn below(directory: &Path, one_file_system: bool, most_inodes: u64) -> DirectoryUsage {
        let device = directory.symlink_metadata().map(|own| own.dev()).ok();
        let (mut used, mut linked) = (DirectoryUsage::default(), HashSet::new());
        let mut pending = vec![directory.to_owned()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let Ok(found) = entry.metadata() else { continue };
                let mounted = one_file_system && device != Some(found.dev());
                let counted =
                    !found.is_dir() && found.nlink() > 1 && !linked.insert((found.dev(), found.ino()));
                if mounted || counted {
                    continue;
                }
                used = used + DirectoryUsage { bytes: found.blocks().saturating_mul(BLOCK), inodes: 1 };
                if used.inodes >= most_inodes {
                    return used;
                }
                if found.is_dir() {
                    pending.push(entry.path());
                }
            }
        }
        used
    }

    /// A directory and what is below it on its file system; nothing for one that is absent. Counting ends as in
    /// [`DirectoryUsage::below`].
    #[must_use]
    pub fn of(directory: &Path, most_inodes: u64) -> DirectoryUsage {
        let Ok(own) = directory.symlink_metadata() else { return DirectoryUsage::default() };
        let own = DirectoryUsage { bytes: own.blocks().saturating_mul(BLOCK), inodes: 1 };
        own + DirectoryUsage::below(directory, true, most_inodes)
    }
}

impl Add for DirectoryUsage {
    type Output = DirectoryUsage;

    fn add(self, other: DirectoryUsage) -> DirectoryUsage {
        DirectoryUsage {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

impl Sum for DirectoryUsage {
    fn sum<I: Iterator<Item = DirectoryUsage>>(all: I) -> DirectoryUsage {
        all.fold(DirectoryUsage::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_ends_at_the_bound() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c", "d"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        assert_eq!(DirectoryUsage::below(dir.path(), false, 3).inodes, 3);
        assert_eq!(DirectoryUsage::below(dir.path(), true, u64::MAX).inodes, 4);
        assert_eq!(DirectoryUsage::of(dir.path(), u64::MAX).inodes, 5);
    }
}
