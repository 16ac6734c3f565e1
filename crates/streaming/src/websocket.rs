//! WebSockets: channels, one byte before each message, and tunnels of SPDY connections.
//!
//! Invariant: messages from clients are bounded as upstream's server bounds them.

mod channels;
mod tunnel;

pub(crate) use channels::{Channel, ChannelProtocol, channels};
pub(crate) use tunnel::Tunnel;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::protocol::{Role, WebSocketConfig},
};

/// The largest message that is taken from a client, upstream's bound.
const MAX_MESSAGE: usize = 32 << 20;
const READ_BUFFER: usize = 16 << 10;
/// Small frames are gathered up to this.
const WRITE_BUFFER: usize = 32 << 10;

/// The socket of a connection that has switched to WebSockets.
pub(crate) async fn socket(connection: Upgraded) -> WebSocketStream<TokioIo<Upgraded>> {
    WebSocketStream::from_raw_socket(TokioIo::new(connection), Role::Server, Some(limits())).await
}

fn limits() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(WRITE_BUFFER)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
}
