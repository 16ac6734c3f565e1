//! Shims as the manager sees them: starting them, their sockets, their exits.
//!
//! Shims are forked by a launcher, a process that is started with the manager and anew when it is found to have ended.
//!
//! Invariants: a shim lives as long as the lock in its bundle is held; process ids say nothing; a request is one connection.

use crate::protocol::{Incoming, Received, Reply, Request, encode, send_some};
use crate::records;
use crate::shim::launcher::{self, Launch};
use crate::shim::short_path;
use crate::user_namespaces;
use kaji_containers::RuntimeError;
use rustix::fs::{FlockOperation, flock};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;

/// A line that a shim prints is short; more is cut off.
const MOST_ANNOUNCED: u64 = 64 << 10;
/// A shim's mode, and the path of its bundle or file below the state directory, have fewer characters.
const SHORT_OF_STATE: usize = 160;

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
    /// Characters that the command line of a shim may have.
    space: usize,
    /// The socket of the launcher. It is taken out while a request is sent: after half of one no other can follow.
    launcher: tokio::sync::Mutex<Option<UnixStream>>,
}

impl ShimCommand {
    /// Opens the program, for bundles below a directory.
    ///
    /// # Errors
    /// When there is none, or no such mount can be made.
    pub fn new(command: &[OsString], state_directory: &Path) -> io::Result<ShimCommand> {
        let [program, arguments @ ..] = command else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no shim program is configured"));
        };
        let file = user_namespaces::clone_tree(&std::fs::canonicalize(program)?)?;
        user_namespaces::protect(file.as_fd())?;
        let sealed = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let words = command.iter().map(|word| word.len() + 1).sum::<usize>();
        Ok(ShimCommand {
            program: program.clone(),
            arguments: arguments.to_vec(),
            _program: file,
            sealed,
            space: words + state_directory.as_os_str().len() + SHORT_OF_STATE,
            launcher: tokio::sync::Mutex::default(),
        })
    }

    /// Starts the launcher, unless it runs.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub async fn prepare(&self) -> io::Result<()> {
        let mut launcher = self.launcher.lock().await;
        if launcher.is_none() {
            *launcher = Some(self.start_launcher()?);
        }
        Ok(())
    }

    fn start_launcher(&self) -> io::Result<UnixStream> {
        let (ours, its) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let child = tokio::process::Command::new(&self.sealed)
            .arg0(launcher::TITLE)
            .args(&self.arguments)
            .arg("launch")
            .arg(".".repeat(self.space))
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(its)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // The process is collected by the async runtime when it ends, however long that takes.
        drop(child);
        UnixStream::from_std(ours)
    }

    /// Asks the launcher for a shim that prints to `output`.
    async fn launch(&self, mode: &str, path: &Path, output: BorrowedFd<'_>) -> io::Result<()> {
        let words =
            [self.program.as_os_str()].into_iter().chain(self.arguments.iter().map(OsString::as_os_str));
        let words = words.map(OsStr::to_string_lossy).chain([mode.into(), path.to_string_lossy()]);
        let command_line = words.map(Cow::into_owned).collect();
        let frame = encode(&Launch { mode: mode.to_owned(), path: path.to_owned(), command_line })?;
        let mut launcher = self.launcher.lock().await;
        if let Some(socket) = launcher.take()
            && send_all(&socket, &frame, &[output]).await.is_ok()
        {
            *launcher = Some(socket);
            return Ok(());
        }
        // It has ended, and with it what was not read.
        let socket = self.start_launcher()?;
        send_all(&socket, &frame, &[output]).await?;
        *launcher = Some(socket);
        Ok(())
    }
}

/// Sends a frame, with descriptors.
async fn send_all(stream: &UnixStream, frame: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut sent = 0;
    while sent < frame.len() {
        let descriptors = if sent == 0 { descriptors } else { &[] };
        let send = || send_some(stream.as_fd(), &frame[sent..], descriptors);
        sent += stream.async_io(Interest::WRITABLE, send).await?;
    }
    Ok(())
}

/// Starts a shim (`start` or `adopt`) and waits until it has said how that went.
///
/// # Errors
/// [`RuntimeError::StartFailed`] with what it said.
pub async fn spawn(command: &ShimCommand, mode: &str, bundle: &Path) -> Result<(), RuntimeError> {
    let mut line = announced(command, mode, bundle).await?;
    // The launcher may have been killed before it read the request. A start that has not claimed the bundle can be repeated.
    if line.is_empty() && mode == "start" && !bundle.join(records::CLAIM).exists() {
        line = announced(command, mode, bundle).await?;
    }
    match line.strip_suffix('\n') {
        Some("") => Ok(()),
        Some(message) => Err(RuntimeError::StartFailed(message.to_owned())),
        None => Err(RuntimeError::StartFailed("the shim was killed".into())),
    }
}

/// What a new shim prints.
async fn announced(command: &ShimCommand, mode: &str, bundle: &Path) -> Result<String, RuntimeError> {
    let failed = |error: io::Error| RuntimeError::Internal(format!("starting the shim: {error}"));
    let (read, write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    command.launch(mode, bundle, write.as_fd()).await.map_err(failed)?;
    drop(write);
    let output = tokio::net::unix::pipe::Receiver::from_owned_fd(read).map_err(failed)?;
    // Reads to the end: the shim lets go of the pipe right after its line.
    let mut line = String::new();
    output.take(MOST_ANNOUNCED).read_to_string(&mut line).await?;
    Ok(line)
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
        send_all(&stream, &frame, descriptors).await.map_err(unavailable)?;
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
