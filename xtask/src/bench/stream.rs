//! Watch streams: read as bytes, resumed from the last event when the server ends them.
//!
//! Invariant: an event is seen once. A stream that ends is opened again at the revision of the last complete event, as
//! every client of the API does; what the server then refuses (410) is lost, and an error.

use super::{
    Error,
    client::{Call, Client, Target},
};
use hyper::body::{Bytes, Incoming};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};

/// How long the server may take to answer a watch.
const OPEN: Duration = Duration::from_secs(30);
/// How often a stream is resumed before that is called a failure.
const MOST_RESUMED: usize = 1_000;

/// One watch.
pub struct Stream {
    client: Client,
    path: String,
    body: Incoming,
    revision: String,
    tail: Tail,
    /// How often it was opened again.
    pub resumed: usize,
}

impl Stream {
    /// Opens a watch of a collection from a revision.
    pub async fn open(target: &Arc<Target>, path: &str, revision: &str) -> Result<Stream, Error> {
        let mut client = Client::new(target);
        let body = start(&mut client, path, revision).await?;
        let tail = Tail::default();
        Ok(Stream { client, path: path.to_owned(), body, revision: revision.to_owned(), tail, resumed: 0 })
    }

    /// The next bytes. Not to be dropped half-way.
    pub async fn next(&mut self) -> Result<Bytes, Error> {
        loop {
            match self.client.next(&mut self.body).await {
                Ok(Some(piece)) => {
                    self.tail.push(&piece);
                    return Ok(piece);
                }
                Ok(None) | Err(Error::Http(..) | Error::Closed(_)) => self.resume().await?,
                Err(error) => return Err(error),
            }
        }
    }

    async fn resume(&mut self) -> Result<(), Error> {
        if self.tail.last.starts_with(br#"{"type":"ERROR""#) {
            return Err(Error::Answer(format!("watch: {}", String::from_utf8_lossy(&self.tail.last))));
        }
        if let Some(revision) = self.tail.revision() {
            self.revision = revision;
        }
        if !self.tail.partial.is_empty() {
            return Err(Error::Answer(format!("the watch of {} broke off within an event", self.path)));
        }
        self.resumed += 1;
        if self.resumed > MOST_RESUMED {
            return Err(Error::Answer(format!("the watch of {} ended {MOST_RESUMED} times", self.path)));
        }
        self.client = Client::new(self.client.target());
        self.body = start(&mut self.client, &self.path, &self.revision).await?;
        Ok(())
    }
}

async fn start(client: &mut Client, path: &str, revision: &str) -> Result<Incoming, Error> {
    let call = Call::get(format!("{path}?watch=true&resourceVersion={revision}&timeoutSeconds=1800"));
    let what = || format!("the watch of {path}");
    let response = timeout(OPEN, client.open(&call)).await.map_err(|_| Error::Timeout(what(), OPEN))??;
    let code = response.status().as_u16();
    match code {
        200 => Ok(response.into_body()),
        _ => Err(Error::Status { call: what(), code, message: "not opened".into() }),
    }
}

/// The last complete line of a stream and what follows it. Copies at most a line for each piece.
#[derive(Default)]
struct Tail {
    last: Vec<u8>,
    partial: Vec<u8>,
}

impl Tail {
    fn push(&mut self, piece: &[u8]) {
        let newline = |bytes: &[u8]| bytes.iter().rposition(|b| *b == b'\n');
        let Some(end) = newline(piece) else {
            self.partial.extend_from_slice(piece);
            return;
        };
        self.last.clear();
        match newline(&piece[..end]) {
            Some(before) => self.last.extend_from_slice(&piece[before + 1..end]),
            None => {
                self.last.append(&mut self.partial);
                self.last.extend_from_slice(&piece[..end]);
            }
        }
        self.partial.clear();
        self.partial.extend_from_slice(&piece[end + 1..]);
    }

    fn revision(&self) -> Option<String> {
        const FIELD: &str = r#""resourceVersion":""#;
        let line = std::str::from_utf8(&self.last).ok()?;
        let rest = &line[line.find(FIELD)? + FIELD.len()..];
        Some(rest[..rest.find('"')?].to_owned())
    }
}

/// Waits until `progress` has reached `goal`; gives up, saying no, after `quiet` without progress or `most` in all.
pub async fn reaches(goal: u64, progress: impl Fn() -> u64, quiet: Duration, most: Duration) -> bool {
    let deadline = Instant::now() + most;
    let (mut before, mut moved) = (progress(), Instant::now());
    loop {
        let now = progress();
        if now >= goal {
            return true;
        }
        if now > before {
            (before, moved) = (now, Instant::now());
        }
        if moved.elapsed() >= quiet || Instant::now() >= deadline {
            return false;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn revisions_are_found() {
        let mut tail = Tail::default();
        tail.push(br#"{"object":{"metadata":{"resourceVersion":"7"}}}"#);
        assert_eq!(tail.revision(), None);
        tail.push(b"\n{}\n");
        assert_eq!(tail.revision(), None);
        tail.push(b"{\"resourceVersion\":\"8\",\"x\"");
        tail.push(b":1}\n{");
        assert_eq!(tail.revision().as_deref(), Some("8"));
        assert_eq!(tail.partial, b"{");
    }

    proptest! {
        #[test]
        fn the_tail_does_not_depend_on_the_cuts(text in "[ab\n]{0,40}", cuts in prop::collection::vec(0usize..40, 0..6)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(text.len())).collect();
            cuts.sort_unstable();
            cuts.push(text.len());
            let mut tail = Tail::default();
            let mut from = 0;
            for to in cuts {
                tail.push(&text.as_bytes()[from..to]);
                from = to;
            }
            let mut lines: Vec<&str> = text.split('\n').collect();
            prop_assert_eq!(&tail.partial, lines.pop().unwrap().as_bytes());
            prop_assert_eq!(&tail.last, lines.pop().unwrap_or_default().as_bytes());
        }
    }
}
