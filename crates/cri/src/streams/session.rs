//! Sessions over a SPDY connection: exec and attach, and one forwarded connection.
//!
//! Invariant: a session's connection lasts until its exit is known or it is dropped.
//!
//! Source: upstream's `client-go/tools/remotecommand` (v4) and `tools/portforward`.

use super::spdy::{Connection, Stream, StreamWriter};
use super::{PORT_FORWARD, REMOTE_COMMAND, connect};
use kaji_containers::{Duplex, Exit, Reader, RuntimeError, Session, TerminalSize, Writer};
use serde_json::{Value, json};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::mpsc;

/// Bytes of an error's text.
const ERROR: u64 = 64 << 10;
/// Bytes that wait to be sent.
const BUFFER: usize = 64 << 10;
/// Sizes of a terminal that wait to be sent.
const SIZES: usize = 4;
/// What the streaming server is given to refuse a connection to a port: it says nothing when it has one.
const REFUSAL: Duration = Duration::from_millis(50);

/// Which streams a session has.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
    /// A terminal, with sizes.
    pub tty: bool,
}

fn lost(error: &io::Error) -> RuntimeError {
    RuntimeError::Unavailable(error.to_string())
}

/// Follows the URL of an exec or attach.
///
/// # Errors
/// Those of [`connect`].
pub async fn remote_command(url: &str, wanted: Wanted) -> Result<Session, RuntimeError> {
    let mut connection = connect(url, REMOTE_COMMAND).await?;
    let mut open = async |kind: &str, wanted: bool| -> Result<Option<Stream>, RuntimeError> {
        if !wanted {
            return Ok(None);
        }
        connection.open(&[("streamType", kind)]).await.map(Some).map_err(|error| lost(&error))
    };
    // The error stream first, as upstream's client does it.
    let error = open("error", true).await?;
    let stdin = open("stdin", wanted.stdin).await?;
    let stdout = open("stdout", wanted.stdout).await?;
    let stderr = open("stderr", wanted.stderr && !wanted.tty).await?;
    let resize = open("resize", wanted.tty).await?;
    let Some(error) = error else { return Err(RuntimeError::Internal("no error stream".into())) };
    let exit = async move {
        let outcome = exit(error.reader).await;
        // Everything that was printed before is in the readers.
        drop(connection);
        outcome
    };
    Ok(Session {
        stdin: stdin.map(|stream| input(stream.writer)),
        stdout: stdout.map(|stream| Box::new(stream.reader) as Reader),
        stderr: stderr.map(|stream| Box::new(stream.reader) as Reader),
        resize: resize.map(|stream| sizes(stream.writer)),
        exit: Box::pin(exit),
    })
}

/// A process's standard input; it ends when the writer is closed or dropped.
fn input(to: StreamWriter) -> Writer {
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    tokio::spawn(async move {
        if let Err(error) = to.copy(theirs).await {
            tracing::debug!(%error, "a process's input was closed");
        }
    });
    Box::new(ours)
}

fn sizes(to: StreamWriter) -> mpsc::Sender<TerminalSize> {
    let (sender, mut receiver) = mpsc::channel::<TerminalSize>(SIZES);
    tokio::spawn(async move {
        while let Some(size) = receiver.recv().await {
            let text = json!({"Width": size.width, "Height": size.height}).to_string();
            if to.write(text.into_bytes().into()).await.is_err() {
                return;
            }
        }
    });
    sender
}

/// How a process ended: the Status that the error stream has.
async fn exit(error: DuplexStream) -> Result<Exit, RuntimeError> {
    let mut text = vec![];
    error.take(ERROR).read_to_end(&mut text).await.map_err(|error| lost(&error))?;
    if text.is_empty() {
        return Err(RuntimeError::Unavailable(
            "the container runtime's streaming server ended the connection without a status".into(),
        ));
    }
    outcome(&text)
}

/// What a Status means.
fn outcome(text: &[u8]) -> Result<Exit, RuntimeError> {
    let Ok(status) = serde_json::from_slice::<Value>(text) else {
        return Err(RuntimeError::Internal(String::from_utf8_lossy(text).into_owned()));
    };
    if status["status"] == "Success" {
        return Ok(Exit { code: 0 });
    }
    let causes = status["details"]["causes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let code = causes
        .iter()
        .find(|cause| cause["reason"] == "ExitCode")
        .and_then(|cause| cause["message"].as_str()?.parse().ok());
    match code {
        Some(code) if status["reason"] == "NonZeroExitCode" => Ok(Exit { code }),
        _ => Err(RuntimeError::Internal(match status["message"].as_str() {
            Some(message) => message.to_owned(),
            None => String::from_utf8_lossy(text).into_owned(),
        })),
    }
}

/// A connection to a port, with the connection that carries it.
struct Forwarded {
    io: DuplexStream,
    _connection: Connection,
}

impl AsyncRead for Forwarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Forwarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Follows the URL of a port-forward: one connection to a port.
///
/// # Errors
/// Those of [`connect`], and the server's about the port.
pub async fn port_forward(url: &str, port: u16) -> Result<Duplex, RuntimeError> {
    let mut connection = connect(url, PORT_FORWARD).await?;
    let port = port.to_string();
    let headers = |kind| [("streamType", kind), ("port", port.as_str()), ("requestID", "0")];
    let error = connection.open(&headers("error")).await.map_err(|e| lost(&e))?;
    let data = connection.open(&headers("data")).await.map_err(|e| lost(&e))?;
    // No byte goes this way.
    error.writer.finish().await.map_err(|e| lost(&e))?;
    let mut refused = error.reader.take(ERROR);
    let mut text = vec![];
    // The end of the stream without a text is the end of the connection to the port.
    let refusal = tokio::time::timeout(REFUSAL, refused.read_to_end(&mut text)).await;
    if refusal.is_ok() && !text.is_empty() {
        return Err(RuntimeError::Internal(String::from_utf8_lossy(&text).into_owned()));
    }
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let (from, mut to) = tokio::io::split(ours);
    let mut reader = data.reader;
    tokio::spawn(async move {
        if let Err(error) = data.writer.copy(from).await {
            tracing::debug!(%error, "a forwarded connection ended");
        }
    });
    tokio::spawn(async move {
        let mut text = text;
        let copied = async {
            tokio::io::copy(&mut reader, &mut to).await?;
            tokio::io::AsyncWriteExt::shutdown(&mut to).await
        };
        let (copied, said) = tokio::join!(copied, refused.read_to_end(&mut text));
        if let Err(error) = copied.and(said.map(drop)) {
            tracing::debug!(%error, "a forwarded connection ended");
        }
        if !text.is_empty() {
            let text = String::from_utf8_lossy(&text);
            tracing::debug!(%text, "a forwarded connection failed");
        }
    });
    Ok(Box::new(Forwarded { io: theirs, _connection: connection }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_how_a_process_ended() {
        let texts = [
            r#"{"metadata":{},"status":"Success"}"#,
            r#"{"status":"Failure","message":"m","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#,
            r#"{"status":"Failure","message":"container not running (a)","reason":"InternalError"}"#,
            "plain text",
        ];
        let shown: Vec<String> = texts.iter().map(|text| format!("{:?}", outcome(text.as_bytes()))).collect();
        expect_test::expect![[r#"
            Ok(Exit { code: 0 })
            Ok(Exit { code: 3 })
            Err(Internal("container not running (a)"))
            Err(Internal("plain text"))"#]]
        .assert_eq(&shown.join("\n"));
    }
}
