//! User namespaces of pods: mounts that show a pod's ids as those on disk, and how a container's mounts are put in reach of
//! processes that are not the node's root.
//!
//! A pod with a user namespace has its other namespaces in it. What its containers mount lies in directories for root alone, so
//! the process that builds a container clones each source, with the ids mapped, and attaches the clones below [`Staging::point`]
//! in a mount namespace of its own; the container's configuration names these places.
//!
//! Invariants: mounts of the node are never changed, clones of them are; the staging point is covered only in the builder's mount
//! namespace, which ends with it.

use kaji_containers::{IdMapping, RuntimeError, UserNamespace};
use kaji_files::NamespaceIds;
use libcontainer::syscall::linux::{AT_EMPTY_PATH, MOUNT_ATTR_RDONLY, MountAttr};
use libcontainer::syscall::syscall::create_syscall;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// `MOUNT_ATTR_IDMAP` of linux/mount.h.
const IDMAP: u64 = 0x0010_0000;
/// Where a staging point can be: directories that every machine may have, and any process may enter.
const POINTS: [&str; 6] = ["/mnt", "/media", "/srv", "/opt", "/run", "/tmp"];
/// The kernel from which memory file systems can be mounted with mapped ids, which pods' volumes need.
const NEEDED_KERNEL: (u32, u32) = (6, 3);

/// Whether pods can have user namespaces here. In one, there are no further ids for theirs.
pub fn supported() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let most = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    NamespaceIds::own().is_whole()
        && kernel_suffices(&release)
        && most.trim().parse::<u64>().is_ok_and(|most| most > 0)
}

fn kernel_suffices(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= NEEDED_KERNEL
}

/// Turns the ids of an OCI process's user into those that they are on the node: a further process of a container takes its ids on
/// before it enters the user namespace.
pub fn map_user(process: &mut serde_json::Value, range: &IdMapping) {
    let user = &mut process["user"];
    for id in ["uid", "gid"] {
        if let Some(inside) = user[id].as_u64() {
            user[id] = (u64::from(range.host_id) + inside).into();
        }
    }
    if let Some(groups) = user["additionalGids"].as_array_mut() {
        for group in groups {
            *group = (u64::from(range.host_id) + group.as_u64().unwrap_or_default()).into();
        }
    }
}

/// Refuses mappings that are not those of one range for users and groups, the first id of which is root.
///
/// # Errors
/// [`RuntimeError::InvalidArgument`].
pub fn check(user: &UserNamespace) -> Result<IdMapping, RuntimeError> {
    match (user.uids.as_slice(), user.gids.as_slice()) {
        ([uids], [gids])
            if uids == gids && uids.container_id == 0 && uids.host_id > 0 && uids.length > 0 =>
        {
            Ok(*uids)
        }
        _ => Err(RuntimeError::InvalidArgument(
            "a user namespace needs one mapping, the same for users and groups, from id 0 to a range that is not root's"
                .into(),
        )),
    }
}

/// The id on the node of one in a pod.
///
/// # Errors
/// [`RuntimeError::InvalidArgument`] for ids that the pod's range does not have.
pub fn host_id(mapping: Option<&IdMapping>, id: i64) -> Result<u32, RuntimeError> {
    let invalid = || RuntimeError::InvalidArgument(format!("id {id} is not in the pod's user namespace"));
    let id = u32::try_from(id).map_err(|_| invalid())?;
    match mapping {
        None => Ok(id),
        Some(range) => (id < range.length).then_some(range.host_id + id).ok_or_else(invalid),
    }
}

/// A clone of a mount and those below it, not attached anywhere.
///
/// # Errors
/// Those of the kernel, with the path.
pub fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags).map_err(|error| {
        io::Error::new(io::Error::from(error).kind(), format!("{}: {error}", path.display()))
    })
}

/// Maps the ids of a clone by a user namespace.
///
/// # Errors
/// Those of the kernel, in runc's words: not every file system can be mounted so.
pub fn map_ids(tree: BorrowedFd<'_>, user: BorrowedFd<'_>, shown: &Path) -> io::Result<()> {
    let descriptor = u64::try_from(user.as_raw_fd()).map_err(io::Error::other)?;
    let attributes = MountAttr { attr_set: IDMAP, attr_clr: 0, propagation: 0, userns_fd: descriptor };
    create_syscall()
        .mount_setattr(tree, Path::new(""), AT_EMPTY_PATH, &attributes, size_of::<MountAttr>())
        .map_err(|error| {
            io::Error::other(format!(
                "failed to set MOUNT_ATTR_IDMAP on {}: {error} (maybe the filesystem used doesn't support idmap mounts on this kernel?)",
                shown.display()
            ))
        })
}

/// Makes a clone read-only.
///
/// # Errors
/// Those of the kernel.
pub fn protect(tree: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = MountAttr { attr_set: MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    create_syscall()
        .mount_setattr(tree, Path::new(""), AT_EMPTY_PATH, &attributes, size_of::<MountAttr>())
        .map_err(|error| io::Error::other(error.to_string()))
}

/// Attaches a clone to a file or directory.
///
/// # Errors
/// Those of the kernel.
pub fn attach(tree: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    Ok(move_mount(tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// A mount that a container is built with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tree {
    /// On the node.
    pub source: PathBuf,
    /// Its ids are mapped.
    pub mapped: bool,
    /// A directory that is made if it is not there yet: a cgroup.
    pub made: bool,
}

/// What is put in reach of a container that is being built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Staging {
    /// A directory that is covered.
    pub point: PathBuf,
    /// The pinned user namespace.
    pub user: PathBuf,
    /// Its ids.
    pub range: IdMapping,
    /// Mounts by their numbers, which name their places; the first is the root file system.
    pub trees: Vec<Tree>,
    /// Namespaces to join, by their numbers after the mounts.
    pub namespaces: Vec<PathBuf>,
}

impl Staging {
    /// For a container of which the bundle is in this directory.
    ///
    /// # Errors
    /// [`RuntimeError::FailedPrecondition`] when the machine has no directory to cover.
    pub fn new(bundle: &Path, user: &Path, range: IdMapping) -> Result<Staging, RuntimeError> {
        let usable = |point: &&&str| Path::new(point).is_dir() && !bundle.starts_with(point);
        let point = POINTS.iter().find(usable).ok_or_else(|| {
            RuntimeError::FailedPrecondition(format!("none of {POINTS:?} is a directory without containers"))
        })?;
        let (point, user) = (point.into(), user.to_owned());
        Ok(Staging { point, user, range, trees: vec![], namespaces: vec![] })
    }

    /// Adds a mount. Answers where it will be.
    pub fn mount(&mut self, source: &Path, mapped: bool) -> PathBuf {
        self.add(Tree { source: source.to_owned(), mapped, made: false })
    }

    /// Adds a cgroup. Answers where it will be.
    pub fn cgroup(&mut self, source: &Path) -> PathBuf {
        self.add(Tree { source: source.to_owned(), mapped: false, made: true })
    }

    fn add(&mut self, tree: Tree) -> PathBuf {
        self.trees.push(tree);
        self.place("mount", self.trees.len() - 1)
    }

    /// Adds a namespace. Answers where it will be.
    pub fn namespace(&mut self, path: &Path) -> PathBuf {
        self.namespaces.push(path.to_owned());
        self.place("namespace", self.namespaces.len() - 1)
    }

    fn place(&self, kind: &str, number: usize) -> PathBuf {
        self.point.join(format!("{kind}-{number}"))
    }

    /// Enters a mount namespace of this process's own and prepares it. Without `whole` there are only the places, for a process
    /// that joins the container's mount namespace.
    ///
    /// # Errors
    /// Those of the kernel, with the path.
    pub fn prepare(&self, whole: bool) -> io::Result<()> {
        let mut clones = vec![];
        if whole {
            let user = File::open(&self.user)?;
            for tree in &self.trees {
                if tree.made {
                    fs::create_dir_all(&tree.source)?;
                }
                let clone = clone_tree(&tree.source)?;
                if tree.mapped {
                    map_ids(clone.as_fd(), user.as_fd(), &tree.source)?;
                }
                clones.push((clone, tree.source.is_dir()));
            }
        }
        unshare(CloneFlags::CLONE_NEWNS)?;
        // Mounts of the node go on to appear in volumes that ask for it; none made here appears on the node.
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("staging"), &self.point, Some("tmpfs"), flags, Some("mode=755,size=1m"))?;
        if !whole {
            return DirBuilder::new().mode(0o755).create(self.place("mount", 0));
        }
        for (number, (clone, directory)) in clones.iter().enumerate() {
            let place = self.place("mount", number);
            if *directory {
                DirBuilder::new().mode(0o755).create(&place)?;
            } else {
                File::create(&place)?;
            }
            attach(clone.as_fd(), &place)?;
        }
        for (number, namespace) in self.namespaces.iter().enumerate() {
            let place = self.place("namespace", number);
            File::create(&place)?;
            mount(Some(namespace), &place, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(host_id: u32, container_id: u32) -> IdMapping {
        IdMapping { host_id, container_id, length: 65_536 }
    }

    #[test]
    fn ids_of_the_node_are_of_the_pods_range() {
        let mapping = range(131_072, 0);
        assert_eq!(host_id(Some(&mapping), 0), Ok(131_072));
        assert_eq!(host_id(Some(&mapping), 65_535), Ok(196_607));
        assert!(host_id(Some(&mapping), 65_536).is_err() && host_id(Some(&mapping), -1).is_err());
        assert_eq!(host_id(None, 7), Ok(7));
    }

    #[test]
    fn only_one_range_that_leaves_root_out_is_a_user_namespace() {
        let with = |uids: &[IdMapping], gids: &[IdMapping]| {
            check(&UserNamespace { uids: uids.to_vec(), gids: gids.to_vec() }).is_ok()
        };
        let good = range(65_536, 0);
        assert!(with(&[good], &[good]));
        assert!(!with(&[good], &[range(131_072, 0)]) && !with(&[], &[]) && !with(&[good, good], &[good]));
        assert!(!with(&[range(0, 0)], &[range(0, 0)]) && !with(&[range(65_536, 1)], &[range(65_536, 1)]));
    }

    #[test]
    fn old_kernels_are_told_by_their_release() {
        let found =
            ["6.18.44-fc", "6.3.0", "6.2.16-1", "6.1.0-56-cloud-amd64", "7.0-rc1", ""].map(kernel_suffices);
        assert_eq!(found, [true, true, false, false, true, false]);
    }

    #[test]
    fn a_point_does_not_cover_the_bundle() {
        let staging =
            Staging::new(Path::new("/mnt/disk/kaji/containers/1"), Path::new("/pin"), range(65_536, 0))
                .unwrap();
        assert_ne!(staging.point, Path::new("/mnt"));
    }
}
