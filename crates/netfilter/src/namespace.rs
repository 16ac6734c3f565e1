//! Work inside a network namespace, on a thread made for it.
//!
//! Invariant: no thread that does other work ever changes its namespace.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{fs::File, io, os::fd::AsFd, path::Path};

/// Runs `work` on a new thread inside the namespace at `path`, and waits for it. Sockets that it opens stay in the namespace.
///
/// # Errors
/// When the namespace cannot be entered, and those of `work`.
pub fn inside<T: Send>(path: &Path, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let namespace = File::open(path)?;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".into()).spawn_scoped(scope, || {
            enter(&namespace)?;
            work()
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread in a network namespace panicked")))
    })
}

/// Moves the calling thread, which must be one of its own, into a network namespace.
///
/// # Errors
/// Those of the system.
pub fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}
