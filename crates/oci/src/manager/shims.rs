//! Shims as the manager sees them: starting them, their sockets, their exits.
//!
//! Invariants: a shim lives as long as the lock in its bundle is held; process ids say nothing; a request is one connection.

use crate::protocol::{Incoming, Received, Reply, Request, encode, send_some};
use crate::records;
use crate::shim::short_path;
use crate::user_namespaces;
use kaji_containers::RuntimeError;
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;

/// A line that a shim prints is short; more is cut off.
const MOST_ANNOUNCED: u64 = 64 << 10;

/// How shims are started.
///
/// Processes in containers can reach the program by `/proc/<pid>/exe` of what enters them, and root among them could replace it.
/// So it is executed from a mount of its own that nothing can be written through.
pub struct ShimCommand {
    program: OsString,
    arguments: Vec<OsString>,
    /// The file in its read-only mount, and how it is named in this process.
    _program: OwnedFd,
    sealed: PathBuf,
}

impl ShimCommand {
    /// Opens the program.
    ///
    /// # Errors
    /// When there is none, or no such mount can be made.
    pub fn new(command: &[OsString]) -> io::Result<ShimCommand> {
        let [program, arguments @ ..] = command else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no shim program is configured"));
        };
        let file = user_namespaces::clone_tree(&std::fs::canonicalize(program)?)?;
        user_namespaces::protect(file.as_fd())?;
        let sealed = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(ShimCommand { program: program.clone(), arguments: arguments.to_vec(), _program: file, sealed })
    }
}

/// Starts a shim (`start` or `adopt`) and waits until it has said how that went.
///
/// # Errors
/// [`RuntimeError::StartFailed`] with what it said.
pub async fn spawn(command: &ShimCommand, mode: &str, bundle: &Path) -> Result<(), RuntimeError> {
    let mut child = tokio::process::Command::new(&command.sealed)
        .arg0(&command.program)
        .args(&command.arguments)
        .arg(mode)
        .arg(bundle)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| RuntimeError::Internal(format!("starting the shim: {error}")))?;
    let stdout =
        child.stdout.take().ok_or_else(|| RuntimeError::Internal("the shim has no output".into()))?;
    // Reads to the end: the shim lets go of the pipe right after its line.
    let mut line = String::new();
    stdout.take(MOST_ANNOUNCED).read_to_string(&mut line).await?;
    // The process is collected by the runtime when it ends, however long that takes.
    drop(child);
    match line.strip_suffix('\n') {
        Some("") => Ok(()),
        Some(message) => Err(RuntimeError::StartFailed(message.to_owned())),
        None => Err(RuntimeError::StartFailed("the shim was killed".into())),
    }
}

/// Whether a bundle has a shim that lives.
pub fn is_alive(bundle: &Path) -> bool {
    let Ok(lock) = File::open(bundle.join(records::LOCK)) else { return false };
    flock(&lock, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
}

/// A connection to a shim.
pub struct Connection {
    stream: UnixStream,
    incoming: Incoming,
}

impl Connection {
    /// Sends a request with descriptors.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] when there is no shim.
    pub async fn open(
        bundle: &Path,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Connection, RuntimeError> {
        let unavailable =
            |error: io::Error| RuntimeError::Unavailable(format!("the container's shim: {error}"));
        let directory = File::open(bundle).map_err(unavailable)?;
        let stream =
            UnixStream::connect(short_path(&directory, records::SOCKET)).await.map_err(unavailable)?;
        let frame = encode(request)?;
        let mut sent = 0;
        while sent < frame.len() {
            let descriptors = if sent == 0 { descriptors } else { &[] };
            let send = || send_some(stream.as_fd(), &frame[sent..], descriptors);
            sent += stream.async_io(Interest::WRITABLE, send).await.map_err(unavailable)?;
        }
        Ok(Connection { stream, incoming: Incoming::default() })
    }

    /// The next answer; `None` when the shim has ended.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`].
    pub async fn reply(&mut self) -> Result<Option<(Reply, Vec<OwnedFd>)>, RuntimeError> {
        let Connection { stream, incoming } = self;
        loop {
            let read =
                stream.async_io(Interest::READABLE, || incoming.receive::<Reply>(stream.as_fd())).await;
            match read {
                Ok(Received::Message(reply, descriptors)) => return Ok(Some((reply, descriptors))),
                Ok(Received::Partial) => {}
                Ok(Received::Closed) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => {
                    return Err(RuntimeError::Unavailable(format!("the container's shim: {error}")));
                }
            }
        }
    }

    /// An answer that has to come.
    ///
    /// # Errors
    /// What the shim says, or that it has ended.
    pub async fn expect(&mut self) -> Result<(Reply, Vec<OwnedFd>), RuntimeError> {
        match self.reply().await? {
            Some((Reply::Failed { message }, _)) => Err(RuntimeError::Internal(message)),
            Some(answer) => Ok(answer),
            None => Err(RuntimeError::Unavailable("the container's shim has ended".into())),
        }
    }
}

/// Sends a request that is answered with success or failure.
///
/// # Errors
/// Those of the connection, and what the shim says.
pub async fn call(bundle: &Path, request: &Request) -> Result<(), RuntimeError> {
    Connection::open(bundle, request, &[]).await?.expect().await.map(|_| ())
}
