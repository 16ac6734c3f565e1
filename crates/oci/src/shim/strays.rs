//! Processes that a container leaves when its first one ends, and that neither the kernel nor its cgroup ends.
//!
//! - Where it has no cgroup, those in a pid namespace that it shares. They are found by the container's mount namespace, which no other
//!   container has.
//! - Those that are being built for an exec. They have not entered the container yet, and would make its cgroup anew after it was
//!   removed; and they hold the shim's socket and lock. They are children of the shim, or become such.

use crate::records;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// New processes are looked for so often at most.
const ROUNDS: u32 = 100;
/// As long as a killed process may take to end on a busy machine, in milliseconds.
const CHILDREN_ROUNDS: u32 = 2000;

/// What names the mount namespace of a process.
pub fn mount_namespace(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

/// The processes of this process's pid namespace.
fn processes() -> impl Iterator<Item = i32> {
    let named = fs::read_dir("/proc").into_iter().flatten().flatten();
    named.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
}

/// The processes in a mount namespace.
pub fn processes_in(namespace: &Path) -> Vec<i32> {
    processes().filter(|pid| mount_namespace(*pid).as_deref() == Some(namespace)).collect()
}

/// Kills the processes in a mount namespace that is not this process's own.
pub fn kill_in(namespace: &Path) {
    let own = rustix::process::getpid();
    if mount_namespace(own.as_raw_nonzero().get()).as_deref() == Some(namespace) {
        return;
    }
    for round in 0..ROUNDS {
        let found = processes_in(namespace);
        if found.is_empty() {
            return;
        }
        for pid in found.into_iter().filter_map(Pid::from_raw) {
            // It may have ended since.
            let _ = kill_process(pid, Signal::KILL);
        }
        if round > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Kills this process's children, and what is orphaned to it by that, and collects them. Nothing tells how they have ended.
pub fn kill_children() {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    for _ in 0..CHILDREN_ROUNDS {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return,
            }
        }
        for pid in processes().filter(|pid| records::parent(*pid) == Some(own)).filter_map(Pid::from_raw) {
            // It may have ended since.
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_processes_by_their_mount_namespace() {
        let own = i32::try_from(std::process::id()).unwrap();
        let namespace = mount_namespace(own).unwrap();
        assert!(processes_in(&namespace).contains(&own));
        assert_eq!(mount_namespace(0), None);
    }

    #[test]
    fn the_own_namespace_is_left_alone() {
        let own = i32::try_from(std::process::id()).unwrap();
        kill_in(&mount_namespace(own).unwrap());
        assert!(mount_namespace(own).is_some());
    }
}
