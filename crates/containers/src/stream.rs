//! Streams of exec, attach and port-forward.
//!
//! Invariant: a reader that is not read holds up the process behind it and nothing else.

use crate::error::RuntimeError;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// One direction of a session.
pub type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// One direction of a session.
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A connection.
pub trait AsyncDuplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> AsyncDuplex for T {}
/// A connection.
pub type Duplex = Box<dyn AsyncDuplex>;

/// A command to run in a container. At least one of the streams is set; with a terminal, `stderr` is not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecRequest {
    /// Of the container.
    pub container_id: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The command gets a terminal.
    pub tty: bool,
    /// Connect standard input.
    pub stdin: bool,
    /// Connect standard output.
    pub stdout: bool,
    /// Connect standard error.
    pub stderr: bool,
}

/// Which streams of a container's own process to connect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttachRequest {
    /// Of the container.
    pub container_id: String,
    /// The container has a terminal.
    pub tty: bool,
    /// Connect standard input.
    pub stdin: bool,
    /// Connect standard output.
    pub stdout: bool,
    /// Connect standard error.
    pub stderr: bool,
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TerminalSize {
    #[allow(missing_docs)]
    pub width: u16,
    #[allow(missing_docs)]
    pub height: u16,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exit {
    /// 128 plus the number of the signal that ended it.
    pub code: i32,
}

/// The streams of a command or a container. Dropping `stdin` closes it; dropping all of it ends an exec's process with
/// SIGKILL, and leaves a container's own process alone.
pub struct Session {
    /// If it was asked for.
    pub stdin: Option<Writer>,
    /// If it was asked for.
    pub stdout: Option<Reader>,
    /// If it was asked for.
    pub stderr: Option<Reader>,
    /// Sizes of the terminal, if there is one; the newest counts.
    pub resize: Option<mpsc::Sender<TerminalSize>>,
    /// Resolves when the process has ended and its output is in the readers.
    pub exit: BoxFuture<'static, Result<Exit, RuntimeError>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// What a command printed, and how it ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOutput {
    #[allow(missing_docs)]
    pub stdout: Vec<u8>,
    #[allow(missing_docs)]
    pub stderr: Vec<u8>,
    /// 128 plus the number of the signal that ended it.
    pub exit_code: i32,
}
