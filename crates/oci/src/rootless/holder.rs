//! The process that makes the namespaces of containers without root, and stays in them as long as others do.
//!
//! Invariants: it is single-threaded and does nothing once the namespaces are prepared; it ends when it is the only process in them, and
//! with it go all mounts, network namespaces and rules that were made there. It decides to end under the lock under which the
//! namespaces are entered, and removes its record then.

use super::probe::{self, FileSystems};
use super::{Facts, Mapped, Prepared, Record, cgroups, lock};
use crate::records;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What it says when it is in a user namespace of its own: its ids can be mapped.
pub const ENTERED: &str = "entered";

/// Makes the namespaces for a data directory. Standard input: [`Mapped`] once ids are mapped, and its end once another process has
/// entered, or has given up.
///
/// # Errors
/// Those of the pipes.
pub fn run(data_dir: &Path) -> io::Result<()> {
    // An interrupt for the server's terminal is not for the holder. It fails for one that leads its group already.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    if let Err(error) = unshare(CloneFlags::CLONE_NEWUSER) {
        return say(&format!("the kernel refuses user namespaces: {error}"));
    }
    say(ENTERED)?;
    let mut input = io::stdin().lock();
    let mut line = String::new();
    input.read_line(&mut line)?;
    let Ok(mapped) = serde_json::from_str::<Mapped>(&line) else { return Ok(()) };
    let prepared = match prepare(data_dir, mapped.ids) {
        Ok(facts) => Prepared::Ready(facts),
        Err(error) => Prepared::Refused(error.to_string()),
    };
    say(&serde_json::to_string(&prepared)?)?;
    input.read_to_end(&mut vec![])?;
    hold(&mapped.record)
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", line.replace('\n', " "))?;
    out.flush()
}

fn prepare(data_dir: &Path, ids: u32) -> io::Result<Facts> {
    let failed = |what: &str, error: &dyn std::fmt::Display| io::Error::other(format!("{what}: {error}"));
    unshare(CloneFlags::CLONE_NEWNS)
        .map_err(|error| failed("the kernel refuses a mount namespace", &error))?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .map_err(|error| failed("the kernel refuses to change mounts", &error))?;
    let cgroups = cgroups::prepare().map_err(|error| failed("mounting over /sys/fs/cgroup", &error))?;
    let FileSystems { overlays, sysfs } = probe::probe(data_dir)?;
    Ok(Facts { ids, cgroups, overlays, sysfs })
}

/// Waits until no other process is in the user namespace, and none can enter it any more.
fn hold(record: &Path) -> io::Result<()> {
    let own = fs::read_link("/proc/self/ns/user")?;
    loop {
        wait_for_others(&own)?;
        // Without it (the directory is gone with the user's session) no other process finds the record either.
        let _lock = lock(record);
        if other(&own)?.is_some() {
            continue;
        }
        let own_pid = rustix::process::getpid().as_raw_nonzero().get();
        let recorded = records::read::<Record>(record)?;
        return match recorded.is_some_and(|recorded| recorded.pid == own_pid) {
            true => fs::remove_file(record),
            false => Ok(()),
        };
    }
}

fn wait_for_others(own: &PathBuf) -> io::Result<()> {
    while let Some(process) = other(own)? {
        let mut polled = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A process in the namespace, or in one that was made in it: mounts of the latter's are copies, but its files are not.
fn other(own: &PathBuf) -> io::Result<Option<OwnedFd>> {
    let this = rustix::process::getpid();
    for entry in fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        // Those of other users cannot be looked at, and are not in it.
        if pid == this || fs::read_link(entry.path().join("ns/user")).ok().as_ref() != Some(own) {
            continue;
        }
        // It may have ended since.
        if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
            return Ok(Some(process));
        }
    }
    Ok(None)
}
