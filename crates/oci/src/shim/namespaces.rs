//! Makes the namespaces of a pod that has a user namespace, and pins them.
//!
//! Only a single-threaded process can enter a new user namespace, and the one that does so loses its rights on the node: a child
//! makes the namespaces and waits, and this process maps the ids and pins them from outside.

use super::system::fork_child;
use crate::manager::namespaces::{Wanted, configure, pin, unshare_flags};
use crate::records;
use kaji_containers::IdMapping;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// What to make; a file that the process is started with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// Ids of users and groups.
    pub mapping: IdMapping,
    /// `user` and others, and where each is pinned.
    pub pins: Vec<(String, PathBuf)>,
    /// Set in the new uts namespace.
    pub hostname: String,
    /// Of the new namespaces.
    pub sysctls: std::collections::BTreeMap<String, String>,
}

/// Makes them.
///
/// # Errors
/// Those of the kernel, naming what failed.
pub fn create(path: &Path) -> io::Result<()> {
    let request: Request = records::read(path)?.ok_or(io::ErrorKind::NotFound)?;
    let wanted = Wanted {
        pins: request.pins.iter().map(|(name, path)| (name.clone(), path.clone())).collect(),
        hostname: request.hostname,
        sysctls: request.sysctls,
    };
    let flags = unshare_flags(&wanted.pins) | CloneFlags::CLONE_NEWUSER;
    let (ready, tell_ready) = std::io::pipe()?;
    let (release, tell_release) = std::io::pipe()?;
    let child = {
        let mut ready_writer = tell_ready.try_clone()?;
        let mut release_reader = release.try_clone()?;
        let keeps = (&ready, &tell_release);
        let parent = rustix::process::getpid();
        fork_child(move || {
            let _ = keeps;
            // A change of credentials, as entering the namespace is one, would clear what was set before.
            let entered = unshare(flags);
            let signal = Some(rustix::process::Signal::KILL);
            let bound = rustix::process::set_parent_process_death_signal(signal);
            if bound.is_err() || rustix::process::getppid() != Some(parent) {
                return;
            }
            let answer = match entered {
                Ok(()) => "done".to_owned(),
                Err(error) => format!("creating namespaces: {error}"),
            };
            // The parent has ended if this fails, and there is nothing to wait for.
            if ready_writer.write_all(answer.as_bytes()).is_ok() {
                drop(ready_writer);
                let _ = release_reader.read(&mut [0; 1]);
            }
        })?
    };
    drop((tell_ready, release));
    let made = finish(ready, child, &request.mapping, &wanted);
    let mut tell_release = tell_release;
    // It has ended already if the namespaces could not be made.
    let _ = tell_release.write_all(b"x");
    drop(tell_release);
    waitpid(Pid::from_raw(child), None)?;
    made
}

fn finish(mut ready: impl Read, child: i32, mapping: &IdMapping, wanted: &Wanted) -> io::Result<()> {
    let mut answer = [0; 256];
    let length = ready.read(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer[..length]);
    if answer != "done" {
        return Err(io::Error::other(if answer.is_empty() { "creating namespaces" } else { &answer }));
    }
    let line = format!("{} {} {}", mapping.container_id, mapping.host_id, mapping.length);
    for file in ["uid_map", "gid_map"] {
        std::fs::write(format!("/proc/{child}/{file}"), &line)
            .map_err(|error| io::Error::other(format!("writing {file} {line:?}: {error}")))?;
    }
    for (name, path) in &wanted.pins {
        pin(Path::new(&format!("/proc/{child}/ns/{name}")), path)
            .map_err(|error| io::Error::other(format!("pinning the {name} namespace: {error}")))?;
    }
    // Entered without the user namespace: kernel parameters may be the node's root's alone to set.
    for (name, path) in wanted.pins.iter().filter(|(name, _)| name != "user") {
        setns(File::open(path)?, CloneFlags::empty())
            .map_err(|error| io::Error::other(format!("entering the {name} namespace: {error}")))?;
    }
    configure(wanted).map_err(|error| io::Error::other(error.to_string()))
}
