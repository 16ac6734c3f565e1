//! What a runtime leaves on the machine, for tests that end with nothing left.

use crate::cgroup;
use crate::manager::mounts_below;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Something that should be gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leftover {
    /// A mount point; pinned namespaces are among them.
    Mount(PathBuf),
    /// A directory of a cgroup hierarchy.
    Cgroup(PathBuf),
    /// A process with a command line that names the state directory.
    Process(i32),
    /// A sandbox's directory or a container's bundle.
    Directory(PathBuf),
}

/// What is left of a manager's sandboxes: mounts, processes and directories of its state directory, and cgroups below the one
/// that its pods had as their parent.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn leftovers(state_directory: &Path, cgroup_parent: &str) -> io::Result<Vec<Leftover>> {
    let mut found: Vec<Leftover> = mounts_below(state_directory)?.into_iter().map(Leftover::Mount).collect();
    for directory in cgroup::directories(cgroup_parent) {
        let below = fs::read_dir(directory).into_iter().flatten().flatten();
        found.extend(
            below.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| Leftover::Cgroup(e.path())),
        );
    }
    let name = state_directory.to_string_lossy();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end while it is looked at.
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let ours = pid == i32::try_from(std::process::id()).unwrap_or_default();
        if !ours && String::from_utf8_lossy(&command).contains(name.as_ref()) {
            found.push(Leftover::Process(pid));
        }
    }
    for part in ["sandboxes", "containers"] {
        let entries = fs::read_dir(state_directory.join(part)).into_iter().flatten().flatten();
        found.extend(entries.map(|entry| Leftover::Directory(entry.path())));
    }
    Ok(found)
}
