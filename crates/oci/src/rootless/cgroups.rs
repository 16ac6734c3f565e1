//! The cgroups that an unprivileged caller has: a subtree of version 2 that was delegated to it, as systemd does for a scope or a
//! service with `Delegate=yes`.
//!
//! The subtree is mounted over `/sys/fs/cgroup` in the mount namespace of the containers: for everything there it is the whole
//! hierarchy. Without one, an empty directory is mounted there, so that nothing takes the machine's cgroups for usable.

use kaji_files::MountTable;
use nix::mount::{MsFlags, mount};
use rustix::fs::Access;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";
/// Controllers without which there is no point in cgroups.
const NEEDED: [&str; 2] = ["memory", "pids"];
/// Where the server's own processes are: a cgroup with controllers for its children has no processes itself.
const OWN: &str = "kaji";

/// Mounts what there is. Answers whether there is a delegated subtree.
///
/// # Errors
/// Those of mounting.
pub fn prepare() -> io::Result<bool> {
    let delegated =
        fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| delegated(Path::new(ROOT), &text));
    if let Some(directory) = delegated {
        match take(&directory) {
            Ok(()) => {
                mount(Some(&directory), ROOT, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
                return Ok(true);
            }
            Err(error) => tracing::debug!(%error, "the cgroup is not delegated"),
        }
    }
    let mounts = MountTable::read()?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), ROOT, Some("tmpfs"), flags, Some("mode=755,size=1m"))?;
    for name in hierarchies(&mounts) {
        crate::cgroup::cover(&Path::new(ROOT).join(name))?;
    }
    Ok(false)
}

/// The directory of this process's cgroup, if its owner may make others in it.
fn delegated(root: &Path, own: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let directory = root.join(path);
    if path.is_empty() || !directory.join("cgroup.subtree_control").exists() {
        return None;
    }
    let writable = |path: &Path| rustix::fs::access(path, Access::WRITE_OK).is_ok();
    let files = ["cgroup.procs", "cgroup.subtree_control"];
    (writable(&directory) && files.iter().all(|file| writable(&directory.join(file)))).then_some(directory)
}

/// Moves the processes of a cgroup to one of its own below, and hands its controllers down.
fn take(directory: &Path) -> io::Result<()> {
    let own = directory.join(OWN);
    fs::create_dir_all(&own)?;
    for pid in fs::read_to_string(directory.join("cgroup.procs"))?.lines() {
        fs::write(own.join("cgroup.procs"), pid)?;
    }
    let available = fs::read_to_string(directory.join("cgroup.controllers"))?;
    let has = |name: &str| available.split_whitespace().any(|controller| controller == name);
    if let Some(missing) = NEEDED.iter().find(|name| !has(name)) {
        return Err(io::Error::other(format!("the controller {missing} is not delegated")));
    }
    for name in available.split_whitespace() {
        fs::write(directory.join("cgroup.subtree_control"), format!("+{name}"))?;
    }
    Ok(())
}

/// Names of hierarchies of version 1: `libcontainer` finds them in the table of mounts, covered or not.
fn hierarchies(mounts: &MountTable) -> Vec<String> {
    let mut names = crate::cgroup::mounted_hierarchies(mounts);
    names.retain(|name| !name.contains('/'));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_those_that_are_mounted() {
        let mounts = "30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
            31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
            32 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(hierarchies(&MountTable::parse(mounts)), ["cpu,cpuacct"]);
    }

    #[test]
    fn a_subtree_is_delegated_if_it_can_be_written() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("user.slice/kaji.scope");
        fs::create_dir_all(&own).unwrap();
        let find = |text: &str| delegated(root.path(), text);
        assert_eq!(find("0::/user.slice/kaji.scope\n"), None);
        for file in ["cgroup.procs", "cgroup.subtree_control"] {
            fs::write(own.join(file), "").unwrap();
        }
        assert_eq!(find("1:memory:/x\n0::/user.slice/kaji.scope\n"), Some(own));
        assert_eq!(find("0::/\n"), None);
    }
}
