//! SPDY/3.1: frames, compressed header blocks, and the server's side of a connection.
//!
//! Frames and header blocks are pure: bytes in, frames out.

pub(crate) mod connection;
mod dictionary;
mod frame;
mod headers;

pub use frame::{Decoder, Encoder, Frame};
pub use headers::Headers;

/// Statuses of a RST_STREAM frame.
pub mod reset {
    /// A stream's id is not one that may come.
    pub const PROTOCOL_ERROR: u32 = 1;
    /// The stream is not accepted.
    pub const REFUSED_STREAM: u32 = 3;
    /// The stream is not needed any more.
    pub const CANCEL: u32 = 5;
}

/// Statuses of a GOAWAY frame.
pub mod go_away {
    /// An end in order.
    pub const OK: u32 = 0;
    /// The other side violated the protocol.
    pub const PROTOCOL_ERROR: u32 = 1;
}

/// Why bytes are not SPDY/3.1, or more of it than is accepted. The connection cannot go on: its compression state is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpdyError {
    /// A control frame of another version.
    #[error("unsupported version {0}")]
    Version(u16),
    /// A control frame of a type that SPDY/3.1 does not have.
    #[error("unknown frame type {0}")]
    FrameType(u16),
    /// A control frame with a length or a field that its type does not have.
    #[error("invalid control frame of type {0}")]
    ControlFrame(u16),
    /// A control frame is longer than accepted.
    #[error("control frame of {0} bytes is too large")]
    FrameTooLarge(usize),
    /// A frame for stream 0.
    #[error("stream id zero is disallowed")]
    ZeroStream,
    /// A header block that does not decompress, or not to what its lengths say.
    #[error("invalid header block")]
    HeaderBlock,
    /// A header block decompresses to more than accepted.
    #[error("header block is too large")]
    HeaderBlockTooLarge,
}
