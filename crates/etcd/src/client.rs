//! Calls of etcd's API on one of several endpoints.
//!
//! Invariants: a call ends after [`DEADLINE`] at the latest; what cannot be repeated is sent once, unless etcd has certainly not begun
//! with it; an endpoint that refused, broke or did not answer is followed by the next one. Calls and watches have separate
//! connections, so that a watch that is not read delays no write.

use crate::endpoints::{Endpoint, EndpointError, Endpoints, TlsFiles};
use crate::error::Failure;
use crate::messages::{StatusRequest, StatusResponse};
use crate::version::reports_progress;
use futures_util::Stream;
use kaji_grpc::{CallError, Channel, ChannelOptions, Code, Messages};
use prost::Message;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

/// The longest that a call takes, with everything that is tried.
pub const DEADLINE: Duration = Duration::from_secs(20);
/// The longest that one endpoint may take to answer. etcd itself gives up after seven seconds.
const ATTEMPT: Duration = Duration::from_secs(8);
/// For how long a call that failed is repeated, where it can be: long enough for the election of a leader.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that connecting to an endpoint takes.
const CONNECT: Duration = Duration::from_secs(3);
/// Waits between attempts: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// Bytes of an answer. Ranges that are larger are read in smaller pages.
const MESSAGE_LIMIT: usize = 64 << 20;
/// Bytes of one watch, and of all, that may be on their way without having been read.
const WATCH_WINDOWS: (u32, u32) = (256 << 10, 160 << 20);
/// Bytes of one call, and of all, that may be on their way.
const CALL_WINDOWS: (u32, u32) = (8 << 20, 64 << 20);
/// How often a peer is asked for a sign of life, and how long it may take. etcd refuses to be asked every five seconds.
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
/// A watch of a member that has no leader any more would be silent; with this it ends.
const REQUIRE_LEADER: [(&str, &str); 1] = [("hasleader", "true")];

/// Whether a call may be sent a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It changes nothing, or the same a second time.
    Safe,
    /// It expects what it changes: of two that arrive, one has an effect at most, and the second is answered with a failed
    /// comparison.
    OnceAtMost,
    /// A second time it could have another effect.
    Never,
}

/// An answer.
pub struct Answer<R> {
    /// The message.
    pub message: R,
    /// An attempt before this one was not answered: it may have had its effect.
    pub after_loss: bool,
}

/// Why a call was not answered.
pub struct Unanswered {
    /// The last attempt's failure.
    pub error: CallError,
    /// Some attempt may have had its effect, or may still have it.
    pub uncertain: bool,
}

/// A connection in use.
#[derive(Clone)]
struct Open {
    channel: Channel,
    /// Counts connections, so that one that failed is not confused with its successor.
    number: u64,
    /// Of the etcd at the other end, where that was looked at.
    reports_progress: bool,
}

/// What connections are made for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Calls,
    Watches,
}

#[derive(Default)]
struct State {
    open: Option<Open>,
    /// The endpoint that is tried first.
    next: usize,
    made: u64,
}

/// A connection that is made when it is needed.
struct Slot {
    state: Mutex<State>,
    purpose: Use,
}

impl Slot {
    fn new(purpose: Use) -> Slot {
        Slot { state: Mutex::default(), purpose }
    }

    /// The connection in use, or one to the first endpoint that can be reached.
    async fn open(&self, endpoints: &Endpoints) -> Result<Open, CallError> {
        let mut state = self.state.lock().await;
        if let Some(open) = state.open.as_ref().filter(|open| !open.channel.is_closed()) {
            return Ok(open.clone());
        }
        state.open = None;
        let all = endpoints.list();
        let mut reasons = vec![];
        for _ in 0..all.len() {
            let endpoint = &all[state.next % all.len()];
            match timeout(CONNECT, connect(endpoint, endpoints.files(), self.purpose)).await {
                Ok(Ok((channel, reports_progress))) => {
                    state.made += 1;
                    let open = Open { channel, number: state.made, reports_progress };
                    state.open = Some(open.clone());
                    return Ok(open);
                }
                Ok(Err(error)) => reasons
                    .push(format!("{}: {error}", endpoint.origin().authority().map_or("", |a| a.as_str()))),
                Err(_) => reasons.push(format!("{}: timeout", endpoint.host)),
            }
            state.next = (state.next + 1) % all.len();
        }
        Err(unavailable(format!("no endpoint can be reached: {}", reasons.join("; "))))
    }

    /// The connection is not used for further calls, and the next endpoint is tried first.
    async fn failed(&self, number: u64) {
        let mut state = self.state.lock().await;
        if state.open.as_ref().is_some_and(|open| open.number == number) {
            state.open = None;
            state.next = state.next.wrapping_add(1);
        }
    }
}

fn unavailable(message: String) -> CallError {
    CallError::unconnected(message)
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Files(#[from] EndpointError),
    #[error("{0}")]
    Status(#[from] CallError),
}

async fn connect(
    endpoint: &Endpoint,
    files: &TlsFiles,
    purpose: Use,
) -> Result<(Channel, bool), ConnectError> {
    let (stream_window, connection_window) = match purpose {
        Use::Calls => CALL_WINDOWS,
        Use::Watches => WATCH_WINDOWS,
    };
    let options = ChannelOptions {
        message_limit: MESSAGE_LIMIT,
        stream_window,
        connection_window,
        ping_interval: PING.0,
        ping_timeout: PING.1,
        ..ChannelOptions::new(endpoint.origin())
    };
    let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
    stream.set_nodelay(true)?;
    let channel = match &endpoint.tls {
        None => Channel::over(stream, &options).await?,
        Some(name) => {
            let stream = files.connector()?.connect(name.clone(), stream).await?;
            Channel::over(stream, &options).await?
        }
    };
    let mut reports = false;
    if purpose == Use::Watches {
        let status =
            channel.unary::<_, StatusResponse>("/etcdserverpb.Maintenance/Status", StatusRequest {}, CONNECT);
        match status.await {
            Ok(status) => reports = reports_progress(&status.version),
            // A user without the right to ask: nothing is relied on.
            Err(e) if matches!(e.code, Code::PermissionDenied | Code::Unauthenticated) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok((channel, reports))
}

/// A stream of answers, with what is known of the connection below.
pub struct Streamed<R> {
    /// The answers.
    pub messages: Messages<R>,
    /// Whether this etcd reports the progress of watches correctly. Known for watches.
    pub reports_progress: bool,
    number: u64,
}

/// The client. Nothing is connected before the first call.
pub struct Client {
    endpoints: Endpoints,
    calls: Slot,
    watches: Slot,
}

impl Client {
    /// A client of an etcd cluster.
    #[must_use]
    pub fn new(endpoints: Endpoints) -> Client {
        Client { endpoints, calls: Slot::new(Use::Calls), watches: Slot::new(Use::Watches) }
    }

    /// The endpoint that calls go to.
    pub async fn endpoint(&self) -> String {
        let state = self.calls.state.lock().await;
        let all = self.endpoints.list();
        all[state.next % all.len()].origin().to_string().trim_end_matches('/').to_owned()
    }

    /// Sends one message and waits for one.
    ///
    /// # Errors
    /// `Unavailable` or `DeadlineExceeded` when no endpoint has answered: then the call may have had its effect. Else etcd's.
    pub async fn call<M, R>(&self, method: &'static str, message: M, repeat: Repeat) -> Result<R, CallError>
    where
        M: Message + Clone + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        let answer = self.attempts(method, message, repeat).await;
        answer.map(|answer| answer.message).map_err(|unanswered| unanswered.error)
    }

    /// As [`Client::call`], with what is known of attempts that were not answered.
    ///
    /// # Errors
    /// As [`Client::call`]'s.
    pub async fn attempts<M, R>(
        &self,
        method: &'static str,
        message: M,
        repeat: Repeat,
    ) -> Result<Answer<R>, Unanswered>
    where
        M: Message + Clone + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        let started = Instant::now();
        let (mut pause, mut uncertain) = (PAUSES.0, false);
        loop {
            let left = DEADLINE.saturating_sub(started.elapsed());
            let error = match self.attempt(method, message.clone(), left).await {
                Ok(message) => return Ok(Answer { message, after_loss: uncertain }),
                Err(error) => error,
            };
            let (transient, refused) = (Failure::is_transient(&error), Failure::is_refused(&error));
            uncertain |= !refused;
            let again = transient && (refused || repeat != Repeat::Never);
            if !again || started.elapsed() + pause > RETRY_TIMEOUT {
                return Err(Unanswered { error, uncertain });
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Sends a message once, over the connection in use.
    async fn attempt<M, R>(&self, method: &'static str, message: M, left: Duration) -> Result<R, CallError>
    where
        M: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        let opened = timeout(left, self.calls.open(&self.endpoints)).await;
        let open = opened.unwrap_or_else(|_| Err(unavailable("timeout".into())))?;
        let answer = open.channel.unary(method, message, ATTEMPT.min(left)).await;
        if answer.as_ref().is_err_and(Failure::is_transient) {
            self.calls.failed(open.number).await;
        }
        answer
    }

    /// Sends messages as they come; answers come until the stream is dropped.
    ///
    /// # Errors
    /// As [`Client::call`]'s.
    pub async fn watch<S, M, R>(&self, method: &'static str, messages: S) -> Result<Streamed<R>, CallError>
    where
        S: Stream<Item = M> + Send + 'static,
        M: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        self.stream(&self.watches, method, messages).await
    }

    /// As [`Client::watch`], beside the calls: for streams that are short.
    ///
    /// # Errors
    /// As [`Client::call`]'s.
    pub async fn exchange<S, M, R>(&self, method: &'static str, messages: S) -> Result<Streamed<R>, CallError>
    where
        S: Stream<Item = M> + Send + 'static,
        M: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        self.stream(&self.calls, method, messages).await
    }

    async fn stream<S, M, R>(
        &self,
        slot: &Slot,
        method: &'static str,
        messages: S,
    ) -> Result<Streamed<R>, CallError>
    where
        S: Stream<Item = M> + Send + 'static,
        M: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        let opened = timeout(DEADLINE, slot.open(&self.endpoints)).await;
        let open = opened.unwrap_or_else(|_| Err(unavailable("timeout".into())))?;
        match open.channel.streaming(method, messages, &REQUIRE_LEADER, ATTEMPT).await {
            Ok(messages) => {
                Ok(Streamed { messages, reports_progress: open.reports_progress, number: open.number })
            }
            Err(error) => {
                if Failure::is_transient(&error) {
                    slot.failed(open.number).await;
                }
                Err(error)
            }
        }
    }

    /// A watch ended with an error of its connection or its member: the next one begins at another endpoint.
    pub async fn watch_failed<R>(&self, of: &Streamed<R>) {
        self.watches.failed(of.number).await;
    }
}
