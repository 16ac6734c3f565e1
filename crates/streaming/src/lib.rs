//! Exec, attach and port-forward as kubelets serve them: WebSockets and SPDY/3.1.
//!
//! [`remote_command`] and [`port_forward`] take the head of an upgrade request and answer an [`Upgrade`], the 101 response and
//! the session that runs after it, or a [`UpgradeRejection`]. Neither knows pods or containers: what is connected to the client is a
//! `kaji_containers::Session`, or a connection per forwarded port, that the caller opens.
//!
//! Invariants:
//! - Nothing of a session is opened before the client has finished its part of the handshake.
//! - Whatever a client sends is bounded: frames, header blocks before and after decompression, streams, and bytes that a
//!   process has not read yet. A client that does not read holds up its own processes only.
//! - A session's future owns all that belongs to it; dropped, it ends the processes and connections of the session.
//!
//! Sources: upstream's `k8s.io/cri-streaming`, `k8s.io/streaming/pkg/httpstream`, `moby/spdystream`; RFC 6455; SPDY protocol,
//! draft 3.1.

mod handshake;
pub mod port_forward;
pub mod remote_command;
pub mod spdy;
mod transport;
mod websocket;

pub use handshake::{Upgrade, UpgradeRejection, UpgradeRequest};
pub use port_forward::{Connect, PodName, PortForwardPorts, port_forward};
pub use remote_command::{Action, StreamOptions, remote_command};

use std::time::Duration;

/// How long a session waits for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Without a message in either direction the session ends.
    pub idle: Duration,
    /// For the streams that a client of SPDY has to create.
    pub stream_creation: Duration,
}

impl Default for Timeouts {
    /// Upstream's: four hours (`--streaming-connection-idle-timeout`) and 30 seconds.
    fn default() -> Timeouts {
        Timeouts { idle: Duration::from_secs(4 * 3600), stream_creation: Duration::from_secs(30) }
    }
}
