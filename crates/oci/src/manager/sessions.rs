//! Exec, attach and port-forward.
//!
//! Invariants: the process writes to pipes that the manager reads, or to a terminal of which the manager holds the other side; the
//! shim copies nothing for an exec. Closing the connection ends an exec's process.

use super::Inner;
use super::namespaces::{enter_network, on_thread};
use super::shims::Connection;
use crate::protocol::{Reply, Request};
use crate::records;
use kaji_containers::{
    AttachRequest, Duplex, ExecOutput, ExecRequest, Exit, Reader, RuntimeError, Session, TerminalSize, Writer,
};
use rustix::termios::{Winsize, tcsetwinsize};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

/// Bytes of each stream that a synchronous exec collects.
const MOST_OUTPUT: u64 = 16 << 20;

/// The manager's ends of a session's pipes, and the other ones.
#[derive(Default)]
struct Pipes {
    stdin: Option<Writer>,
    stdout: Option<Reader>,
    stderr: Option<Reader>,
    remote: Vec<OwnedFd>,
}

fn pipes(stdin: bool, stdout: bool, stderr: bool) -> Result<Pipes, RuntimeError> {
    let mut pipes = Pipes::default();
    let pair = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(io::Error::from);
    if stdin {
        let (read, write) = pair()?;
        rustix::io::ioctl_fionbio(&write, true).map_err(io::Error::from)?;
        pipes.stdin = Some(Box::new(pipe::Sender::from_owned_fd(write)?));
        pipes.remote.push(read);
    }
    let mut output = |wanted: bool| -> Result<Option<Reader>, RuntimeError> {
        if !wanted {
            return Ok(None);
        }
        let (read, write) = pair()?;
        rustix::io::ioctl_fionbio(&read, true).map_err(io::Error::from)?;
        pipes.remote.push(write);
        Ok(Some(Box::new(pipe::Receiver::from_owned_fd(read)?)))
    };
    let (out, err) = (output(stdout)?, output(stderr)?);
    (pipes.stdout, pipes.stderr) = (out, err);
    Ok(pipes)
}

impl Inner {
    /// Runs a command with its streams connected.
    pub(super) async fn exec(self: &Arc<Inner>, request: ExecRequest) -> Result<Session, RuntimeError> {
        if request.command.is_empty() {
            return Err(RuntimeError::InvalidArgument("no command was given".into()));
        }
        let bundle = self.running(&request.container_id)?;
        let mut spec: serde_json::Value = records::read(&bundle.join(records::SPEC))?
            .ok_or_else(|| RuntimeError::NotFound("the container has no configuration".into()))?;
        let mut process = spec["process"].take();
        process["args"] = serde_json::json!(request.command);
        process["terminal"] = serde_json::json!(request.tty);
        let Pipes { stdin, stdout, stderr, remote } = if request.tty {
            Pipes::default()
        } else {
            pipes(request.stdin, request.stdout, request.stderr)?
        };
        let message =
            Request::Exec { process, stdin: request.stdin, stdout: request.stdout, stderr: request.stderr };
        let borrowed: Vec<_> = remote.iter().map(AsFd::as_fd).collect();
        let mut connection = Connection::open(&bundle, &message, &borrowed).await?;
        drop(remote);
        let (_, mut descriptors) = connection.expect().await.map_err(|error| match error {
            RuntimeError::Internal(message) => RuntimeError::StartFailed(format!(
                "failed to exec in container: failed to start exec: OCI runtime exec failed: exec failed: \
                 unable to start container process: {message}: unknown"
            )),
            other => other,
        })?;
        let exit = Box::pin(async move { exit_of(connection).await });
        if !request.tty {
            return Ok(Session { stdin, stdout, stderr, resize: None, exit });
        }
        let none = || RuntimeError::Internal("the shim sent no terminal".into());
        let master = Terminal::new(descriptors.pop().ok_or_else(none)?)?;
        let resize = master.resizer();
        Ok(Session {
            stdin: request.stdin.then(|| Box::new(master.clone()) as Writer),
            stdout: Some(Box::new(master)),
            stderr: None,
            resize: Some(resize),
            exit,
        })
    }

    /// Runs a command and collects its output.
    pub(super) async fn exec_sync(
        self: &Arc<Inner>,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<ExecOutput, RuntimeError> {
        let run = async {
            let container_id = id.to_owned();
            let request = ExecRequest {
                container_id,
                command: command.clone(),
                stdout: true,
                stderr: true,
                ..Default::default()
            };
            let session = self.exec(request).await?;
            let (stdout, stderr) = (collect(session.stdout), collect(session.stderr));
            let (stdout, stderr, exit) = tokio::join!(stdout, stderr, session.exit);
            Ok(ExecOutput { stdout: stdout?, stderr: stderr?, exit_code: exit?.code })
        };
        if timeout.is_zero() {
            return run.await;
        }
        // Dropping the session kills the process.
        tokio::time::timeout(timeout, run).await.unwrap_or_else(|_| {
            Err(RuntimeError::DeadlineExceeded(format!(
                "failed to exec in container: timeout {timeout:?} exceeded: context deadline exceeded"
            )))
        })
    }

    /// Connects to a container's own process.
    pub(super) async fn attach(self: &Arc<Inner>, request: AttachRequest) -> Result<Session, RuntimeError> {
        let bundle = self.running(&request.container_id)?;
        let stderr = request.stderr && !request.tty;
        let Pipes { stdin, stdout, stderr: errors, remote } = pipes(request.stdin, request.stdout, stderr)?;
        let message = Request::Attach { stdin: request.stdin, stdout: request.stdout, stderr };
        let borrowed: Vec<_> = remote.iter().map(AsFd::as_fd).collect();
        let mut connection = Connection::open(&bundle, &message, &borrowed).await?;
        drop(remote);
        connection.expect().await?;
        let resize = request.tty.then(|| {
            let (send, mut receive) = mpsc::channel::<TerminalSize>(4);
            tokio::spawn(async move {
                while let Some(TerminalSize { width, height }) = receive.recv().await {
                    if let Err(error) = super::shims::call(&bundle, &Request::Resize { width, height }).await
                    {
                        tracing::debug!("the terminal was not resized: {error}");
                    }
                }
            });
            send
        });
        let exit = Box::pin(async move { exit_of(connection).await });
        Ok(Session { stdin, stdout, stderr: errors, resize, exit })
    }

    /// Connects to a port on a sandbox's loopback interface.
    pub(super) async fn port_forward(&self, sandbox: &str, port: u16) -> Result<Duplex, RuntimeError> {
        let namespace = self.ready_sandbox(sandbox)?.1;
        let connect = move || {
            if let Some(namespace) = &namespace {
                enter_network(namespace)?;
            }
            let timeout = Duration::from_secs(10);
            let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
            let stream = TcpStream::connect_timeout(&v4, timeout)
                .or_else(|error| TcpStream::connect_timeout(&v6, timeout).map_err(|_| error))
                .map_err(|error| {
                    RuntimeError::Unavailable(format!(
                        "failed to connect to localhost:{port} inside namespace: {error}"
                    ))
                })?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let stream = on_thread(connect).await?;
        Ok(Box::new(tokio::net::TcpStream::from_std(stream)?))
    }
}

async fn exit_of(mut connection: Connection) -> Result<Exit, RuntimeError> {
    loop {
        if let (Reply::Exited { code }, _) = connection.expect().await? {
            return Ok(Exit { code });
        }
    }
}

async fn collect(reader: Option<Reader>) -> Result<Vec<u8>, RuntimeError> {
    let Some(mut reader) = reader else { return Ok(vec![]) };
    let mut bytes = vec![];
    (&mut reader).take(MOST_OUTPUT).read_to_end(&mut bytes).await?;
    // The process goes on while there is more; that is thrown away.
    tokio::io::copy(&mut reader, &mut tokio::io::sink()).await?;
    Ok(bytes)
}

/// The manager's side of a terminal.
#[derive(Clone)]
struct Terminal(Arc<AsyncFd<std::fs::File>>);

impl Terminal {
    fn new(master: OwnedFd) -> Result<Terminal, RuntimeError> {
        rustix::io::ioctl_fionbio(&master, true).map_err(io::Error::from)?;
        // Its successor is unsafe for the sake of types that do not own their descriptor; a file does.
        #[allow(deprecated)]
        let master = AsyncFd::new(std::fs::File::from(master))?;
        Ok(Terminal(Arc::new(master)))
    }

    fn resizer(&self) -> mpsc::Sender<TerminalSize> {
        let (send, mut receive) = mpsc::channel::<TerminalSize>(4);
        // Weak, so that the terminal closes when the session's streams are dropped.
        let terminal = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            while let Some(TerminalSize { width, height }) = receive.recv().await {
                let Some(terminal) = terminal.upgrade() else { return };
                let size = Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
                if let Err(error) = tcsetwinsize(terminal.get_ref(), size) {
                    tracing::debug!("the terminal was not resized: {error}");
                }
            }
        });
        send
    }
}

impl AsyncRead for Terminal {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            let space = buffer.initialize_unfilled();
            match guard.try_io(|file| file.get_ref().read(space)) {
                Ok(Ok(length)) => {
                    buffer.advance(length);
                    return Poll::Ready(Ok(()));
                }
                // The last process that had the terminal open has ended.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => return Poll::Ready(Ok(())),
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_) => {}
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(cx))?;
            if let Ok(result) = guard.try_io(|file| file.get_ref().write(bytes)) {
                return Poll::Ready(result);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// A terminal's input ends by a character, which is the client's to send.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
