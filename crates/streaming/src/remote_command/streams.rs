//! The streams that a client of SPDY creates for exec and attach.

use super::{
    StreamOptions,
    session::{self, Streams},
    status::StatusFormat,
    without_client,
};
use crate::{
    Timeouts,
    spdy::{
        Headers,
        connection::{Accept, Connection, Handle, Stream},
        go_away, reset,
    },
    transport::{self, Activity, Message},
};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kaji_containers::{RuntimeError, Session};
use std::time::Duration;

/// Streams of a connection; a client needs five.
const STREAMS: usize = 16;

/// How many streams the client has to create.
pub(super) fn expected(options: StreamOptions, resizes: bool) -> usize {
    let StreamOptions { stdin, stdout, stderr, tty } = options;
    1 + [stdin, stdout, stderr, tty && resizes].into_iter().filter(|wanted| *wanted).count()
}

/// Upstream accepts streams of any type, and does not count those that it does not know.
fn accept(_: &Headers) -> Result<(), String> {
    Ok(())
}

pub(super) async fn over_spdy(
    upgrade: OnUpgrade,
    (expected, outlives_client): (usize, bool),
    format: StatusFormat,
    open: impl Future<Output = Result<Session, RuntimeError>> + Send + 'static,
    timeouts: Timeouts,
) {
    let connection = match upgrade.await {
        Ok(connection) => TokioIo::new(connection),
        Err(error) => return tracing::debug!(%error, "streaming: a connection was not upgraded"),
    };
    let activity = Activity::new();
    let accept = Accept { streams: STREAMS, check: accept };
    let (connection, handle) = match Connection::new(connection, accept, &activity) {
        Ok(made) => made,
        Err(error) => return tracing::warn!(%error, "streaming: cannot serve SPDY"),
    };
    let (reader, writer) = connection.drive();
    let work = serve(handle, (expected, outlives_client), format, open, timeouts.stream_creation);
    let times = (activity, timeouts.idle);
    transport::run(work, reader, writer, times, without_client(outlives_client)).await;
}

/// The client's streams by their types.
#[derive(Default)]
struct Created {
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    error: Option<Stream>,
    resize: Option<Stream>,
}

impl Created {
    /// Takes `expected` streams of known types.
    async fn receive(&mut self, handle: &mut Handle, expected: usize) {
        let mut received = 0;
        while received < expected {
            let Some(stream) = handle.new_streams.recv().await else { return };
            let place = match stream.headers.first("streamType") {
                "stdin" => &mut self.stdin,
                "stdout" => &mut self.stdout,
                "stderr" => &mut self.stderr,
                "error" => &mut self.error,
                "resize" => &mut self.resize,
                other => {
                    tracing::debug!(kind = other, "streaming: unexpected stream type");
                    continue;
                }
            };
            *place = Some(stream);
            received += 1;
        }
    }
}

async fn serve(
    mut handle: Handle,
    (expected, outlives_client): (usize, bool),
    format: StatusFormat,
    open: impl Future<Output = Result<Session, RuntimeError>> + Send + 'static,
    patience: Duration,
) {
    let mut created = Created::default();
    if tokio::time::timeout(patience, created.receive(&mut handle, expected)).await.is_err() {
        tracing::debug!("streaming: timed out waiting for client to create streams");
        // Upstream has no way to say more. A closed queue is a closed connection, here and below.
        let _ = handle.outgoing.send(Message::Close { status: go_away::OK }).await;
        return;
    }
    let Handle { outgoing, new_streams, .. } = handle;
    // Further streams are refused.
    drop(new_streams);
    let id = |stream: &Option<Stream>| stream.as_ref().map(|stream| stream.id);
    let inputs = [id(&created.stdin), id(&created.resize)];
    let streams = Streams {
        stdout: id(&created.stdout),
        stderr: id(&created.stderr),
        error: id(&created.error),
        stdin: created.stdin.map(|stream| stream.incoming),
        resize: created.resize.map(|stream| stream.incoming),
        outgoing: outgoing.clone(),
        outlives_client,
    };
    if session::serve(streams, open, format).await.is_err() {
        return;
    }
    for stream in inputs.into_iter().flatten() {
        let _ = outgoing.send(Message::Reset { stream, status: reset::CANCEL }).await;
    }
    let _ = outgoing.send(Message::Close { status: go_away::OK }).await;
}
