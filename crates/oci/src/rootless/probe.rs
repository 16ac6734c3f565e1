//! Finds out what the kernel allows in the namespaces, by trying: file systems that containers mount are refused where the machine's
//! own are covered in part, as in other containers, and overlays need a kernel and a file system that have them for users.
//!
//! Invariant: trials happen in a child with namespaces of its own, and leave nothing but an empty directory, which is removed.

use crate::shim::system::fork_child;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

/// The kernel's switch without which packets between pods of a node are not translated.
const BRIDGES: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

/// What containers do without if need be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystems {
    /// In the data directory.
    pub overlays: bool,
    /// A new `/sys`.
    pub sysfs: bool,
}

/// Tries everything that containers need.
///
/// # Errors
/// The first thing that is missing, for one line.
pub fn probe(data_dir: &Path) -> io::Result<FileSystems> {
    let directory = data_dir.join("probe");
    let made = ["lower", "upper", "work", "merged"]
        .iter()
        .try_for_each(|name| fs::create_dir_all(directory.join(name)));
    let outcome = made.and_then(|()| in_child(&directory));
    if let Err(error) = fs::remove_dir_all(&directory)
        && outcome.is_ok()
    {
        return Err(io::Error::new(error.kind(), format!("{}: {error}", directory.display())));
    }
    outcome
}

fn in_child(directory: &Path) -> io::Result<FileSystems> {
    let (mut answers, answer) = io::pipe()?;
    let child = {
        let mut answer = answer.try_clone()?;
        let directory = directory.to_owned();
        fork_child(move || {
            let found = trials(&directory).map_err(|error| error.to_string());
            let line = serde_json::to_vec(&found).unwrap_or_default();
            // The parent has ended if this fails.
            let _ = answer.write_all(&line);
        })?
    };
    drop(answer);
    let mut text = vec![];
    answers.read_to_end(&mut text)?;
    waitpid(Pid::from_raw(child), None)?;
    let found: Result<FileSystems, String> = serde_json::from_slice(&text)?;
    found.map_err(io::Error::other)
}

fn trials(directory: &Path) -> io::Result<FileSystems> {
    let namespaces = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    unshare(namespaces)
        .map_err(|error| io::Error::other(format!("the kernel refuses namespaces: {error}")))?;
    if !Path::new(BRIDGES).exists() {
        return Err(io::Error::other(
            "the kernel does not filter packets of bridges (modprobe br_netfilter)",
        ));
    }
    let merged = directory.join("merged");
    let path = |name: &str| directory.join(name).display().to_string();
    let options =
        format!("userxattr,lowerdir={},upperdir={},workdir={}", path("lower"), path("upper"), path("work"));
    let mounted = mount(Some("overlay"), &merged, Some("overlay"), MsFlags::empty(), Some(options.as_str()));
    if !mounts_proc(&merged)? {
        return Err(io::Error::other(
            "the kernel refuses a new /proc (in a container, where parts of /proc are covered)",
        ));
    }
    let sysfs = mount(Some("sysfs"), &merged, Some("sysfs"), MsFlags::empty(), None::<&str>).is_ok();
    Ok(FileSystems { overlays: mounted.is_ok(), sysfs })
}

/// A new `/proc` is mounted by a process of the new pid namespace.
fn mounts_proc(target: &Path) -> io::Result<bool> {
    let target = target.to_owned();
    let child = fork_child(move || {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let mounted = mount(Some("proc"), &target, Some("proc"), flags, None::<&str>);
        std::process::exit(i32::from(mounted.is_err()));
    })?;
    Ok(matches!(waitpid(Pid::from_raw(child), None)?, WaitStatus::Exited(_, 0)))
}
