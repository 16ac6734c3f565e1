//! Exec and attach: one process's streams, over a WebSocket with channels or over SPDY/3.1.
//!
//! A WebSocket's channels are 0 (standard input), 1 and 2 (output and error output), 3 (the status at the end) and 4 (sizes of the
//! terminal). Over SPDY each is a stream that the client creates and names by the header `streamType`.
//!
//! Source: upstream's `cri-streaming/pkg/streaming/remotecommand` and `apiserver/pkg/util/proxy/streamtranslator.go`, which
//! makes version 5 of the WebSocket protocol from version 4 of SPDY's.

mod resize;
mod session;
mod status;
mod streams;

use crate::{
    Timeouts, Upgrade, UpgradeRejection, UpgradeRequest,
    handshake::{self, V5},
    transport::{self, Activity, Message, WithoutClient},
    websocket::{self, Channel, ChannelProtocol},
};
use futures_util::FutureExt;
use http::StatusCode;
use hyper::upgrade::OnUpgrade;
use kaji_containers::{RuntimeError, Session};
use kaji_meta::Query;
use session::Streams;
use status::StatusFormat;

const STDIN: u32 = 0;
const STDOUT: u32 = 1;
const STDERR: u32 = 2;
const ERROR: u32 = 3;
const RESIZE: u32 = 4;

/// Versions 4 to 1 of the protocol over SPDY.
const SPDY_PROTOCOLS: [&str; 4] =
    ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
/// Subprotocols of WebSockets; a client that offers none gets `channel.k8s.io`.
const WEBSOCKET_PROTOCOLS: [&str; 4] =
    ["channel.k8s.io", "base64.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io"];

/// What is done in the container; decides the texts at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A command is run; its exit code is the outcome.
    Exec {
        /// Program and arguments.
        command: Vec<String>,
    },
    /// The streams are those of the container's own process; its exit code is not the outcome.
    Attach,
}

/// Which streams a client asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// `input=1`.
    pub stdin: bool,
    /// `output=1`.
    pub stdout: bool,
    /// `error=1`; a terminal has no error output of its own.
    pub stderr: bool,
    /// `tty=1`.
    pub tty: bool,
}

impl StreamOptions {
    /// Of the query of a request to a kubelet.
    ///
    /// # Errors
    /// 400 if it asks for no stream.
    pub fn of(query: &Query) -> Result<StreamOptions, UpgradeRejection> {
        let flag = |name| query.first(name) == Some("1");
        let tty = flag("tty");
        let (stdin, stdout, stderr) = (flag("input"), flag("output"), flag("error") && !tty);
        if !stdin && !stdout && !stderr {
            let text = "you must specify at least 1 of stdin, stdout, stderr";
            return Err(UpgradeRejection::new(StatusCode::BAD_REQUEST, text));
        }
        Ok(StreamOptions { stdin, stdout, stderr, tty })
    }
}

/// Connects the client of a request to a process. `open` is polled when the client has created its streams; its error, and how
/// the process ended, are sent to the client.
///
/// # Errors
/// When the request is not an upgrade to a protocol of exec and attach.
pub fn remote_command(
    request: UpgradeRequest<'_>,
    options: StreamOptions,
    action: Action,
    open: impl Future<Output = Result<Session, RuntimeError>> + Send + 'static,
    timeouts: Timeouts,
) -> Result<Upgrade, UpgradeRejection> {
    let headers = request.headers;
    let outlives_client = matches!(action, Action::Exec { .. }) && !options.tty;
    if !handshake::is_upgrade(headers) {
        return Err(UpgradeRejection::new(StatusCode::INTERNAL_SERVER_ERROR, "Upgrade request required"));
    }
    if handshake::is_websocket(headers) {
        let protocol = if handshake::subprotocols(headers).contains(&V5) {
            V5
        } else {
            handshake::channel_protocol(headers, &WEBSOCKET_PROTOCOLS)?
        };
        let (response, upgrade) = handshake::websocket(request, protocol)?;
        let format = StatusFormat::of(protocol, action);
        let protocol = ChannelProtocol::of(protocol);
        let session = over_websocket(upgrade, protocol, (options, outlives_client), format, open, timeouts);
        return Ok(Upgrade { response, session: session.boxed() });
    }
    let (protocol, response, upgrade) = handshake::spdy(request, &SPDY_PROTOCOLS)?;
    let format = StatusFormat::of(protocol, action);
    let resizes = matches!(protocol, "v4.channel.k8s.io" | "v3.channel.k8s.io");
    let expected = streams::expected(options, resizes);
    let session = streams::over_spdy(upgrade, (expected, outlives_client), format, open, timeouts);
    Ok(Upgrade { response, session: session.boxed() })
}

/// A command that outlives its client gets all that it had written.
fn without_client(outlives_client: bool) -> WithoutClient {
    if outlives_client { WithoutClient::ReadsOn } else { WithoutClient::Ends }
}

async fn over_websocket(
    upgrade: OnUpgrade,
    protocol: ChannelProtocol,
    (options, outlives_client): (StreamOptions, bool),
    format: StatusFormat,
    open: impl Future<Output = Result<Session, RuntimeError>> + Send + 'static,
    timeouts: Timeouts,
) {
    let socket = match upgrade.await {
        Ok(connection) => websocket::socket(connection).await,
        Err(error) => return tracing::debug!(%error, "streaming: a connection was not upgraded"),
    };
    let stdin = if options.stdin { Channel::Read } else { Channel::Ignore };
    let layout = [stdin, Channel::Ignore, Channel::Ignore, Channel::Ignore, Channel::Read];
    let activity = Activity::new();
    let channels = websocket::channels(socket, protocol, &layout, &activity);
    let (outgoing, mut incoming) = (channels.outgoing, channels.incoming);
    let work = async move {
        let mut take = |channel: u32| incoming.get_mut(channel as usize).and_then(Option::take);
        let streams = Streams {
            stdin: take(STDIN),
            resize: take(RESIZE),
            stdout: options.stdout.then_some(STDOUT),
            stderr: options.stderr.then_some(STDERR),
            error: Some(ERROR),
            outgoing: outgoing.clone(),
            outlives_client,
        };
        // An empty message on the first channel to the client says that the connection is there.
        let first = streams.stdout.or(streams.stderr).unwrap_or(ERROR);
        let greeted = outgoing.data(first, "").await;
        if greeted.is_ok() && session::serve(streams, open, format).await.is_ok() {
            // When the queue is closed, so is the connection.
            let _ = outgoing.send(Message::Close { status: 0 }).await;
        }
    };
    let times = (activity, timeouts.idle);
    transport::run(work, channels.reader, channels.writer, times, without_client(outlives_client)).await;
}
