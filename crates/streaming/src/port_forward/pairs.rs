//! Port-forward over SPDY: the client's streams in pairs, each pair a connection.
//!
//! Invariants:
//! - A pair is given up when its second stream does not come in time; streams, and so pairs, are bounded.
//! - A stream counts until its connection has ended, and not longer.

use super::{Forwarder, parse_port};
use crate::{
    Timeouts,
    spdy::{
        Headers,
        connection::{Accept, Connection, Handle, Stream, Streams},
        go_away, reset,
    },
    transport::{self, Activity, Gone, Message, Outgoing, WithoutClient},
};
use std::{collections::HashMap, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
    time::{Instant, sleep_until},
};

/// Streams of a connection that are open: two a forwarded connection.
const STREAMS: usize = 1024;

pub(super) async fn serve<S>(connection: S, forwarder: Forwarder, timeouts: Timeouts)
where
    S: AsyncRead + AsyncWrite + Send,
{
    let activity = Activity::new();
    let accept = Accept { streams: STREAMS, check };
    let (connection, handle) = match Connection::new(connection, accept, &activity) {
        Ok(made) => made,
        Err(error) => return tracing::warn!(%error, "streaming: cannot serve SPDY"),
    };
    let (reader, writer) = connection.drive();
    let work = Pairs::new(handle, forwarder, timeouts.stream_creation).run();
    transport::run(work, reader, writer, (activity, timeouts.idle), WithoutClient::Ends).await;
}

/// Whether headers name a port and a type of stream.
fn check(headers: &Headers) -> Result<(), String> {
    match headers.first("port") {
        "" => return Err("\"port\" header is required".to_owned()),
        port => parse_port(port, port)?,
    };
    match headers.first("streamType") {
        "data" | "error" => Ok(()),
        "" => Err("\"streamType\" header is required".to_owned()),
        other => Err(format!("invalid stream type {other:?}")),
    }
}

/// The name of a stream's pair. Old clients do not say it: theirs create the error stream first and the data stream next.
fn request_id(stream: &Stream) -> String {
    match (stream.headers.first("requestID"), stream.headers.first("streamType")) {
        ("", "data") => (i64::from(stream.id) - 2).to_string(),
        ("", _) => stream.id.to_string(),
        (id, _) => id.to_owned(),
    }
}

/// A pair of which a stream is missing.
struct Half {
    data: Option<Stream>,
    error: Option<Stream>,
    deadline: Instant,
}

struct Pairs {
    handle: Handle,
    forwarder: Forwarder,
    patience: Duration,
    halves: HashMap<String, Half>,
    connections: JoinSet<Result<(), Gone>>,
}

impl Pairs {
    fn new(handle: Handle, forwarder: Forwarder, patience: Duration) -> Pairs {
        Pairs { handle, forwarder, patience, halves: HashMap::new(), connections: JoinSet::new() }
    }

    /// Serves until the client's connection ends.
    async fn run(mut self) {
        loop {
            let deadline = self.halves.values().map(|half| half.deadline).min();
            let result = tokio::select! {
                stream = self.handle.new_streams.recv() => match stream {
                    Some(stream) => self.add(stream).await,
                    None => return,
                },
                Some(_) = self.connections.join_next() => Ok(()),
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    self.give_up().await
                }
            };
            if result.is_err() {
                return;
            }
        }
    }

    async fn add(&mut self, stream: Stream) -> Result<(), Gone> {
        let id = request_id(&stream);
        let is_data = stream.headers.first("streamType") == "data";
        let deadline = Instant::now() + self.patience;
        let half = self.halves.entry(id.clone()).or_insert(Half { data: None, error: None, deadline });
        let (place, kind) = if is_data { (&mut half.data, "data") } else { (&mut half.error, "error") };
        if place.is_some() {
            let text = format!("error processing stream for request {id}: {kind} stream already assigned");
            if let Some(error) = &half.error {
                self.handle.outgoing.data(error.id, text).await?;
            }
            return self.reset(stream.id).await;
        }
        *place = Some(stream);
        if let (Some(_), Some(_)) = (&half.data, &half.error)
            && let Some(Half { data: Some(data), error: Some(error), .. }) = self.halves.remove(&id)
        {
            let (forwarder, outgoing) = (self.forwarder.clone(), self.handle.outgoing.clone());
            let streams = self.handle.streams.clone();
            self.connections.spawn(connection(forwarder, outgoing, streams, data, error));
        }
        Ok(())
    }

    /// Drops the pairs that have waited for too long.
    async fn give_up(&mut self) -> Result<(), Gone> {
        let now = Instant::now();
        let late: Vec<(String, Half)> = self.halves.extract_if(|_, half| half.deadline <= now).collect();
        for (id, half) in late {
            tracing::debug!(request = id, "streaming: timed out waiting for streams");
            if let Some(error) = &half.error {
                let text = format!("(request={id}) timed out waiting for streams");
                self.handle.outgoing.data(error.id, text).await?;
                self.handle.outgoing.send(Message::Finish { stream: error.id }).await?;
            }
            for stream in [half.data, half.error].into_iter().flatten() {
                self.reset(stream.id).await?;
            }
        }
        Ok(())
    }

    async fn reset(&self, stream: u32) -> Result<(), Gone> {
        self.handle.streams.remove(stream);
        self.handle.outgoing.send(Message::Reset { stream, status: reset::CANCEL }).await
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        self.handle.outgoing.offer(Message::Close { status: go_away::OK });
    }
}

/// One connection to a port, until it ends or the client resets its data stream.
async fn connection(
    forwarder: Forwarder,
    outgoing: Outgoing,
    streams: Streams,
    data: Stream,
    error: Stream,
) -> Result<(), Gone> {
    let Stream { id, headers, mut incoming, gone } = data;
    let port = headers.first("port");
    let outcome = match parse_port(port, port) {
        Ok(port) => tokio::select! {
            outcome = forwarder.forward(port, &mut incoming, &outgoing, id) => outcome?,
            _ = gone => Ok(()),
        },
        Err(text) => Err(text),
    };
    streams.remove(id);
    streams.remove(error.id);
    match outcome {
        Ok(()) => {
            for stream in [id, error.id] {
                outgoing.send(Message::Finish { stream }).await?;
            }
        }
        Err(text) => {
            tracing::debug!(text, "streaming: a port was not forwarded");
            outgoing.data(error.id, text).await?;
            // The client may create the pair again.
            for stream in [id, error.id] {
                outgoing.send(Message::Reset { stream, status: reset::CANCEL }).await?;
            }
        }
    }
    Ok(())
}
