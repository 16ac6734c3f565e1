//! Moves bytes between a client's streams and a process, and says at the end how it ended.

use super::{resize, status::StatusFormat};
use crate::transport::{Gone, Incoming, Message, Outgoing};
use futures_util::future;
use kaji_containers::{Exit, Reader, RuntimeError, Session, Writer};

/// The client's streams, whatever carries them.
pub(super) struct Streams {
    pub(super) stdin: Option<Incoming>,
    pub(super) resize: Option<Incoming>,
    pub(super) stdout: Option<u32>,
    pub(super) stderr: Option<u32>,
    /// Takes the status.
    pub(super) error: Option<u32>,
    pub(super) outgoing: Outgoing,
}

/// Runs a session to its end, and sends its status.
pub(super) async fn serve(
    streams: Streams,
    open: impl Future<Output = Result<Session, RuntimeError>> + Send,
    format: &StatusFormat,
) -> Result<(), Gone> {
    let (error, outgoing) = (streams.error, streams.outgoing.clone());
    let outcome = match open.await {
        Ok(session) => transfer(streams, session).await?,
        Err(error) => Err(error),
    };
    let Some(error) = error else { return Ok(()) };
    if let Some(text) = format.text(&outcome) {
        outgoing.data(error, text).await?;
    }
    outgoing.send(Message::Finish { stream: error }).await
}

async fn transfer(streams: Streams, session: Session) -> Result<Result<Exit, RuntimeError>, Gone> {
    let Streams { stdin, resize, stdout, stderr, outgoing, .. } = streams;
    let inputs = future::join(input(stdin, session.stdin), resize::forward(resize, session.resize));
    let done = async {
        let (stdout, stderr, exit) = tokio::join!(
            output(&outgoing, session.stdout, stdout),
            output(&outgoing, session.stderr, stderr),
            session.exit
        );
        stdout.and(stderr).map(|()| exit)
    };
    let mut done = std::pin::pin!(done);
    tokio::select! {
        outcome = &mut done => outcome,
        _ = inputs => done.await,
    }
}

/// Copies what a process prints, to the end.
async fn output(outgoing: &Outgoing, from: Option<Reader>, stream: Option<u32>) -> Result<(), Gone> {
    let Some(stream) = stream else { return Ok(()) };
    if let Some(from) = from {
        outgoing.copy(stream, from).await?;
    }
    outgoing.send(Message::Finish { stream }).await
}

/// Copies what a client writes. When the process does not read any more, the rest is dropped.
async fn input(from: Option<Incoming>, to: Option<Writer>) {
    let Some(mut from) = from else { return };
    if let Some(to) = to
        && let Err(error) = from.copy(to).await
    {
        tracing::debug!(%error, "streaming: a process's input was closed");
    }
    from.drain().await;
}
