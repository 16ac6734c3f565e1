//! The launcher: a small single-threaded process of the manager's that forks shims.
//!
//! A program that is started anew is loaded and relocated anew: milliseconds of each start, and more than a megabyte of private
//! memory in each shim. Shims that are forked share these pages with the launcher, which was relocated once.
//!
//! Invariants: it ends when its socket closes, that is with the manager, and shims go on; it keeps no descriptor of a request; a shim has
//! a command line of its own, by which administrators find the shim of a container.

use super::system::fork_child;
use crate::protocol::{Incoming, Received};
use crate::records;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// What the launcher's own command line shows, in the place of that of a shim.
pub const TITLE: &str = "kaji-shim-launcher";

/// Asks for a shim. The descriptor that comes with it becomes the shim's standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Launch {
    /// As the first argument of a shim.
    pub mode: String,
    /// Bundle or file.
    pub path: PathBuf,
    /// The words of the command line that it would have if it were started as a program.
    pub command_line: Vec<String>,
}

/// Forks shims for the manager at the other end of standard input, until that closes.
///
/// # Errors
/// Those of the socket; requests that are none.
pub fn run() -> io::Result<()> {
    // An interrupt for the manager's terminal is not for the launcher.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    show_command_line(&[TITLE.to_owned()]);
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_block()?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let mut incoming = Incoming::default();
    loop {
        let mut polled =
            [PollFd::new(socket.as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        while signals.read_signal()?.is_some() {}
        collect();
        match incoming.receive::<Launch>(&socket) {
            Ok(Received::Message(launch, descriptors)) => fork(launch, descriptors, mask),
            Ok(Received::Partial) => {}
            Ok(Received::Closed) => return Ok(()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Collects shims that have ended. What became of their containers is in their records.
fn collect() {
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            return;
        }
    }
}

/// A shim that cannot be forked closes its output without a line; the manager takes that for one that was killed.
fn fork(launch: Launch, descriptors: Vec<OwnedFd>, blocked: SigSet) {
    let forked = fork_child(move || {
        if let Err(error) = become_shim(&launch, descriptors, blocked) {
            super::announce(&format!("shim: {error}"));
            return;
        }
        super::run(&launch.mode, &launch.path);
    });
    if let Err(error) = forked {
        tracing::error!("a shim could not be forked: {error}");
    }
}

/// Makes this process what a shim is when it has just been started as a program.
fn become_shim(launch: &Launch, descriptors: Vec<OwnedFd>, blocked: SigSet) -> io::Result<()> {
    let null = File::options().read(true).open("/dev/null")?;
    for output in &descriptors {
        nix::unistd::dup2(output.as_raw_fd(), 1)?;
    }
    nix::unistd::dup2(null.as_raw_fd(), 0)?;
    // What is dropped closes itself; the launcher's own descriptors are closed by their numbers.
    drop((descriptors, null));
    super::close_inherited()?;
    blocked.thread_unblock()?;
    show_command_line(&launch.command_line);
    Ok(())
}

/// Shows a command line in `/proc` in the place of this process's own; what does not fit is cut off. The space is that of the
/// arguments which the process was started with, so that the launcher gets one that is only long.
fn show_command_line(words: &[String]) {
    let show = || -> io::Result<()> {
        let (start, end) = arguments().ok_or(io::ErrorKind::InvalidData)?;
        let length = usize::try_from(end.saturating_sub(start)).map_err(io::Error::other)?;
        let mut text: Vec<u8> = words.iter().flat_map(|word| word.bytes().chain([0])).collect();
        text.resize(length.max(1), 0);
        // It ends with a zero, so that each argument goes on to be a string that ends.
        *text.last_mut().ok_or(io::ErrorKind::InvalidData)? = 0;
        let mut memory = File::options().write(true).open("/proc/self/mem")?;
        memory.seek(SeekFrom::Start(start))?;
        memory.write_all(&text)
    };
    // It is for people only.
    if let Err(error) = show() {
        tracing::debug!("the command line cannot be shown: {error}");
    }
}

/// Where the arguments of this process begin and end.
fn arguments() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = records::fields_after_name(&stat)?.skip(45);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}
