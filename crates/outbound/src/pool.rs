//! Connections that are there for the next request.
//!
//! Invariants: a connection of HTTP/1.1 carries one request at a time and is used again only after its answer was read to
//! the end. One of HTTP/2 carries no more than `STREAMS` at a time, and its window has room for all of them: a client
//! that does not read its answer holds up nobody else's. Requests of different lanes share none: a server that allows fewer
//! requests at a time holds up those of one lane only.

use crate::{RequestBody, lanes::Lane};
use hyper::client::conn::{http1, http2};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Connections of HTTP/2 that are kept, more than requests to one stranger ever need.
const MOST_SHARED: usize = 128;
/// Requests on one connection of HTTP/2: fewer than servers allow.
pub(crate) const STREAMS: usize = 64;
/// Bytes of one answer that may be on their way.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
/// Bytes of all answers on a connection that may be on their way.
pub(crate) const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS as u32;

/// Connections that wait for the next request. As client-go's `MaxIdleConnsPerHost`.
const MOST_IDLE: usize = 25;
/// They wait no longer than this.
const IDLE: Duration = Duration::from_secs(90);
/// How long a connection that was just used may take until it is ready.
const SETTLE: Duration = Duration::from_millis(50);

pub(crate) type Single = http1::SendRequest<RequestBody>;
pub(crate) type Sender = http2::SendRequest<RequestBody>;

/// Connections of HTTP/1.1 that carry nothing.
#[derive(Default)]
pub(crate) struct Idle(Mutex<Vec<(Single, Instant)>>);

impl Idle {
    /// The connection that was used last, if any is left that can be used.
    pub async fn take(&self) -> Option<Single> {
        loop {
            let (mut sender, since) = {
                let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                all.retain(|(sender, since)| !sender.is_closed() && since.elapsed() < IDLE);
                all.pop()?
            };
            // One whose request is still being sent, though its answer is there, is of no use to anybody else.
            if since.elapsed() < IDLE
                && matches!(tokio::time::timeout(SETTLE, sender.ready()).await, Ok(Ok(())))
            {
                return Some(sender);
            }
        }
    }

    pub fn put(&self, sender: Single) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MOST_IDLE && !sender.is_closed() {
            all.push((sender, Instant::now()));
        }
    }
}

/// Whether a request is on a connection.
struct Busy(Arc<AtomicUsize>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place on a connection of HTTP/2, until it is dropped.
pub(crate) struct Stream {
    pub sender: Sender,
    busy: Busy,
}

struct Connection {
    lane: Lane,
    sender: Sender,
    busy: Arc<AtomicUsize>,
    used: Instant,
}

impl Connection {
    fn stream(&mut self) -> Stream {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.used = Instant::now();
        Stream { sender: self.sender.clone(), busy: Busy(self.busy.clone()) }
    }
}

/// Connections of HTTP/2.
#[derive(Default)]
pub(crate) struct Shared(Mutex<Vec<Connection>>);

impl Shared {
    /// A place on the first connection that has one: so those that are not needed become idle, and go.
    pub fn take(&self, lane: Lane) -> Option<Stream> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = |c: &Connection| c.busy.load(Ordering::Relaxed);
        all.retain(|c| !c.sender.is_closed() && (busy(c) > 0 || c.used.elapsed() < IDLE));
        all.iter_mut().find(|c| c.lane == lane && busy(c) < STREAMS).map(Connection::stream)
    }

    /// A place on a new connection.
    pub fn put(&self, lane: Lane, sender: Sender) -> Stream {
        let mut connection = Connection { lane, sender, busy: Arc::default(), used: Instant::now() };
        let stream = connection.stream();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MOST_SHARED {
            all.push(connection);
        }
        stream
    }

    /// Puts nothing more on a connection that has failed a request.
    pub fn forget(&self, stream: &Stream) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|c| !Arc::ptr_eq(&c.busy, &stream.busy.0));
    }
}
