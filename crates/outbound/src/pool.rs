//! The connection pool of one client.
//!
//! Invariants: a connection of HTTP/1.1 carries one request at a time and is reused only after its response was read to the
//! end. One of HTTP/2 carries no more than `STREAMS` at a time, and its window has room for all of them: a response that is
//! not read blocks no other, and all that are not read hold no more than the window. Requests of different classes share no
//! connection: a server that allows fewer concurrent requests delays those of one class only.
//!
//! Requests that find no connection of HTTP/2 wait for one dial together and share its outcome, also an error. A dial that
//! takes long is joined by another, no more than `MOST_DIALS` in a class; a request that is cancelled cancels no dial.

use crate::{CallError, RequestBody, concurrency::RequestClass};
use hyper::client::conn::{http1, http2};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Pooled connections of HTTP/2, more than the requests to one server need.
const MOST_SHARED: usize = 128;
/// Requests on one connection of HTTP/2: fewer than servers allow.
pub(crate) const STREAMS: u32 = 64;
/// Dials of one class at a time.
const MOST_DIALS: usize = 4;
/// After so long another dial may begin: it may reach another endpoint of the service.
const NEXT_DIAL_DELAY: Duration = Duration::from_secs(1);

/// The flow-control window of one response: smaller for watches, which send little at a time and may not be read for hours.
/// That of a connection is `STREAMS` times as large.
pub(crate) fn window(class: RequestClass) -> u32 {
    match class {
        RequestClass::LongRunning => 64 << 10,
        RequestClass::Regular | RequestClass::Internal => 256 << 10,
    }
}

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
            // A connection cannot be reused while its request is still being sent after the response.
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
    /// The connection has had others.
    pub reused: bool,
    busy: Busy,
}

struct Connection {
    class: RequestClass,
    /// Counts connections.
    number: u64,
    sender: Sender,
    busy: Arc<AtomicUsize>,
    reused: bool,
    used: Instant,
}

impl Connection {
    fn stream(&mut self) -> Stream {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.used = Instant::now();
        let reused = std::mem::replace(&mut self.reused, true);
        Stream { sender: self.sender.clone(), reused, busy: Busy(self.busy.clone()) }
    }

    fn busy(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }
}

/// What became of a dial.
type Outcome = Option<Result<(), CallError>>;

/// A dial that is under way.
struct Dial {
    class: RequestClass,
    number: u64,
    since: Instant,
    outcome: watch::Receiver<Outcome>,
}

/// A dial in progress.
pub(crate) struct Coming(watch::Receiver<Outcome>);

impl Coming {
    /// Waits until there may be a place.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn wait(mut self) -> Result<(), CallError> {
        match tokio::time::timeout(NEXT_DIAL_DELAY, self.0.wait_for(Option::is_some)).await {
            Err(_late) => Ok(()),
            Ok(Ok(outcome)) => outcome.clone().unwrap_or(Ok(())),
            Ok(Err(_)) => Err(CallError::Transport("the dial was given up".into())),
        }
    }
}

/// What the pool gives to a request: a stream of a connection, or a connection that is being made.
pub(crate) enum Lease {
    Open(Stream),
    Dialing(Coming),
}

#[derive(Default)]
struct State {
    connections: Vec<Connection>,
    dials: Vec<Dial>,
    /// Connections and dials so far.
    count: u64,
}

impl State {
    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn take(&mut self, class: RequestClass, after: Option<u64>) -> Option<Stream> {
        self.connections.retain(|c| !c.sender.is_closed() && (c.busy() > 0 || c.used.elapsed() < IDLE));
        let young = |c: &Connection| after.is_none_or(|after| c.number > after);
        let mut all = self.connections.iter_mut();
        all.find(|c| c.class == class && young(c) && c.busy() < STREAMS as usize).map(Connection::stream)
    }

    fn put(&mut self, class: RequestClass, sender: Sender) {
        if self.connections.len() >= MOST_SHARED {
            // What is on it stays there.
            let idle = self.connections.iter().position(|c| c.busy() == 0);
            self.connections.remove(idle.unwrap_or(0));
        }
        let number = self.next();
        let (busy, used) = (Arc::default(), Instant::now());
        self.connections.push(Connection { class, number, sender, busy, reused: false, used });
    }
}

/// Connections of HTTP/2.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// The other side chose HTTP/2 the last time, or was never asked.
    spoken: AtomicBool,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared { state: Mutex::default(), spoken: AtomicBool::new(true) }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the other side speaks HTTP/2, as far as is known.
    pub fn spoken(&self) -> bool {
        self.spoken.load(Ordering::Relaxed)
    }

    /// Connections that come later have greater numbers.
    pub fn count(&self) -> u64 {
        self.lock().count
    }

    /// A place on the first connection that has one: so those that are not needed become idle, and go. Only connections
    /// after a number count, if there is one. Without a place there is a dial to wait for; `dial` makes one, which finds
    /// out as well whether there is HTTP/2 at all.
    pub fn place<F>(
        self: &Arc<Self>,
        class: RequestClass,
        after: Option<u64>,
        dial: impl FnOnce() -> F,
    ) -> Lease
    where
        F: Future<Output = Result<Option<Sender>, CallError>> + Send + 'static,
    {
        let mut state = self.lock();
        if let Some(stream) = state.take(class, after) {
            return Lease::Open(stream);
        }
        let mut going = state.dials.iter().filter(|d| d.class == class);
        if let (many, Some(last)) = (going.clone().count() >= MOST_DIALS, going.next_back())
            && (many || last.since.elapsed() < NEXT_DIAL_DELAY)
        {
            return Lease::Dialing(Coming(last.outcome.clone()));
        }
        let (said, outcome) = watch::channel(None);
        let number = state.next();
        state.dials.push(Dial { class, number, since: Instant::now(), outcome: outcome.clone() });
        drop(state);
        let (going, work) = (Going(self.clone(), number), dial());
        tokio::spawn(async move {
            let found = work.await;
            let outcome = going.0.dialled(class, found);
            drop(going);
            said.send_replace(Some(outcome));
        });
        Lease::Dialing(Coming(outcome))
    }

    fn dialled(
        &self,
        class: RequestClass,
        found: Result<Option<Sender>, CallError>,
    ) -> Result<(), CallError> {
        let sender = found?;
        self.spoken.store(sender.is_some(), Ordering::Relaxed);
        sender.into_iter().for_each(|sender| self.lock().put(class, sender));
        Ok(())
    }

    /// A place on a new connection, or on one that others have got meanwhile.
    pub fn put(&self, class: RequestClass, sender: Sender) -> Option<Stream> {
        self.spoken.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        state.take(class, None).or_else(|| {
            state.put(class, sender);
            state.take(class, None)
        })
    }

    /// Puts nothing more on a connection that has failed a request.
    pub fn forget(&self, stream: &Stream) {
        self.lock().connections.retain(|c| !Arc::ptr_eq(&c.busy, &stream.busy.0));
    }
}

/// A dial is under way until this is dropped.
struct Going(Arc<Shared>, u64);

impl Drop for Going {
    fn drop(&mut self) {
        self.0.lock().dials.retain(|d| d.number != self.1);
    }
}
