//! A watch over a WebSocket: one message an event, the same bytes as in the body of a plain response but for what separates
//! events there.
//!
//! Invariants:
//! - No event is taken from the watch before those taken before it are sent, so the watch's own queue is the only one.
//! - What the client sends is read, so that its leaving is noticed, and means nothing.

use super::{close, fault};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Buf, Bytes};
use futures_util::{SinkExt, StreamExt, stream::BoxStream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        protocol::frame::{
            Frame,
            coding::{CloseCode, Data, OpCode},
        },
    },
};

/// How the events in the pieces of a watch are delimited. A piece holds whole events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// JSON: each on a line, which ends with it.
    Lines,
    /// Protobuf: each after its length in four bytes.
    Lengths,
    /// No events: each piece is a binary message.
    Pieces,
    /// The same, each a text message in base64.
    Base64,
}

impl Framing {
    /// That of a watch's content type.
    pub fn of(content_type: &str) -> Framing {
        if content_type.starts_with("application/json") { Framing::Lines } else { Framing::Lengths }
    }

    /// Takes the next event from a piece.
    fn next(self, piece: &mut Bytes) -> Option<Message> {
        if piece.is_empty() {
            return None;
        }
        let (event, kind) = match self {
            Framing::Lines => {
                let end = memchr::memchr(b'\n', piece).map_or(piece.len(), |at| at + 1);
                (piece.split_to(end), Data::Text)
            }
            Framing::Lengths => {
                let length = piece.try_get_u32().unwrap_or_default() as usize;
                (piece.split_to(length.min(piece.len())), Data::Binary)
            }
            Framing::Pieces => (std::mem::take(piece), Data::Binary),
            Framing::Base64 => (STANDARD.encode(std::mem::take(piece)).into(), Data::Text),
        };
        Some(Message::Frame(Frame::message(event, OpCode::Data(kind), true)))
    }
}

/// Sends a watch's events until it ends or its client closes.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut socket: WebSocketStream<S>,
    mut events: BoxStream<'static, Bytes>,
    framing: Framing,
) {
    let ended = loop {
        tokio::select! {
            piece = events.next() => {
                let Some(piece) = piece else { break Ok(Some(CloseCode::Normal)) };
                if let Err(error) = send(&mut socket, piece, framing).await {
                    break Err(error);
                }
            }
            received = socket.next() => match received {
                Some(Ok(Message::Close(_))) | None => break Ok(None),
                Some(Ok(_)) => {}
                Some(Err(error)) => break Err(error),
            },
        }
    };
    // The watch has ended, and what it holds is released, before its client reads the close frame.
    drop(events);
    match ended {
        Ok(code) => close(socket, code).await,
        Err(error) => {
            tracing::debug!(%error, "a watch's WebSocket ended");
            if let Some(code) = fault(&error) {
                close(socket, Some(code)).await;
            }
        }
    }
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<S>,
    mut piece: Bytes,
    framing: Framing,
) -> Result<(), Error> {
    while let Some(event) = framing.next(&mut piece) {
        socket.feed(event).await?;
    }
    socket.flush().await
}
