//! The shim: a single-threaded process a container, which creates it, owns its first process, its log file, its exit record
//! and a socket.
//!
//! Invariants:
//! - It outlives the process that started it, and ends when the container has exited and its record is written.
//! - The claim in the bundle is created exclusively before anything is done, so that a container is started at most once.
//! - The lock in the bundle is held as long as the shim lives: what finds it free knows that there is no shim.

mod build;
mod executor;
pub(crate) mod launcher;
mod log;
pub(crate) mod namespaces;
mod peers;
mod serve;
pub(crate) mod strays;
mod streams;
pub(crate) mod system;

use crate::records::{self, ExitRecord, ShimConfig};
use crate::rootless::holder;
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs a shim: `start BUNDLE` starts the bundle's container, `adopt BUNDLE` takes over one that runs without a shim, and
/// `namespaces FILE` makes the namespaces of a pod with a user namespace. One line is printed once that is done, or has failed:
/// empty, or what is wrong. `launch SPACE` forks shims; the space is for their command lines. `hold DIRECTORY` makes the namespaces
/// of containers without root and stays in them.
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let [mode, bundle] = arguments.as_slice() else { return usage() };
    if let Err(error) = close_inherited() {
        announce(&format!("shim: closing inherited descriptors: {error}"));
        return ExitCode::FAILURE;
    }
    match mode.to_str() {
        Some("launch") => match launcher::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Some(mode) => run(mode, Path::new(bundle)),
        None => usage(),
    }
}

fn run(mode: &str, bundle: &Path) -> ExitCode {
    let outcome = match mode {
        "start" => start(bundle),
        "adopt" => adopt(bundle),
        "namespaces" => namespaces::create(bundle).map(|()| announce("")),
        "hold" => holder::run(bundle),
        _ => return usage(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            announce(&format!("shim: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// A shim outlives the process that started it, and with it would whatever that one had open and had not marked.
fn close_inherited() -> io::Result<()> {
    let mut inherited = vec![];
    for entry in std::fs::read_dir("/proc/self/fd")? {
        inherited.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    for descriptor in inherited.into_iter().filter(|number| *number > 2) {
        match nix::unistd::close(descriptor) {
            // That of the directory itself.
            Ok(()) | Err(nix::errno::Errno::EBADF) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn usage() -> ExitCode {
    announce("shim: expected start, adopt, namespaces or hold and a directory or file, or launch and space");
    ExitCode::from(2)
}

/// Answers the process that started the shim, once; the answer is a line, empty for success.
fn announce(line: &str) {
    let mut stdout = io::stdout().lock();
    // Nothing may read any more: the manager can end at any time.
    let _ = writeln!(stdout, "{}", line.replace('\n', " ")).and_then(|()| stdout.flush());
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2(null.as_raw_fd(), 1);
    }
}

fn start(bundle: &Path) -> io::Result<()> {
    let _lock = prepare(bundle)?;
    let config = config(bundle)?;
    File::options().write(true).create_new(true).mode(0o600).open(bundle.join(records::CLAIM))?;
    serve::Shim::start(bundle, config)?.run()
}

fn adopt(bundle: &Path) -> io::Result<()> {
    let _lock = prepare(bundle)?;
    if records::read::<ExitRecord>(&bundle.join(records::EXIT))?.is_some() {
        announce("");
        return Ok(());
    }
    let config = config(bundle)?;
    serve::Shim::adopt(bundle, config)?.run()
}

fn config(bundle: &Path) -> io::Result<ShimConfig> {
    records::read(&bundle.join(records::SHIM_CONFIG))?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Makes this process independent of its parent, and takes the bundle's lock.
fn prepare(bundle: &Path) -> io::Result<File> {
    // Fails for a process that leads its group already, which is as good.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    // The container inherits it, as do the directories that are made in it. Bundles lie in a directory for root alone.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let path = bundle.join(records::LOCK);
    let lock = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// A path to a file of a directory that fits into a socket address, however long the directory's name is.
pub(crate) fn short_path(directory: &File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}
