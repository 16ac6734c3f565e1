//! Channels in a WebSocket: the first byte of a message is its channel's number. In subprotocols with base64 it is a digit, and
//! base64 follows it in a text message. In version 5 the messages of channel 255 close the channel that their second byte names.
//!
//! Source: upstream's `wsstream`.

use crate::{
    handshake::V5,
    transport::{
        Activity, Budget, Incoming, IncomingSender, Message, Outgoing, OutgoingQueue, incoming, outgoing,
    },
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::{
    FutureExt, SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Error,
        protocol::{CloseFrame, frame::coding::CloseCode},
    },
};

/// The channel that closes others.
const CLOSE: u8 = 255;

/// How messages are written in a subprotocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChannelProtocol {
    base64: bool,
    closes: bool,
}

impl ChannelProtocol {
    /// Of a subprotocol by its name; of none, for the empty one.
    pub(crate) fn of(name: &str) -> ChannelProtocol {
        ChannelProtocol { base64: name.contains("base64."), closes: name == V5 }
    }

    /// What a message of a client says; `None` if it is ignored.
    pub(crate) fn decode(self, message: Bytes) -> Option<FromClient> {
        let mut message = message;
        let first = message.try_get_u8().ok()?;
        if self.closes && first == CLOSE {
            return Some(match message[..] {
                [channel] => FromClient::Close(channel),
                _ => FromClient::Invalid,
            });
        }
        if !self.base64 {
            return Some(FromClient::Data(first, message));
        }
        let data = STANDARD.decode(&message).ok()?;
        Some(FromClient::Data(first.wrapping_sub(b'0'), data.into()))
    }

    /// The message for bytes of a channel.
    pub(crate) fn encode(self, channel: u8, data: &[u8]) -> tungstenite::Message {
        if self.base64 {
            let mut text = String::with_capacity(1 + data.len().div_ceil(3) * 4);
            text.push(char::from(b'0'.wrapping_add(channel)));
            STANDARD.encode_string(data, &mut text);
            return tungstenite::Message::text(text);
        }
        let mut message = BytesMut::with_capacity(1 + data.len());
        message.put_u8(channel);
        message.put_slice(data);
        tungstenite::Message::binary(message.freeze())
    }
}

/// A message of a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FromClient {
    /// Bytes of a channel.
    Data(u8, Bytes),
    /// The client's direction of a channel ends.
    Close(u8),
    /// A violation of the protocol, which ends the connection.
    Invalid,
}

/// Whether what a client sends on a channel is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    /// It is.
    Read,
    /// It is dropped.
    Ignore,
}

/// The channels of a connection and the futures that drive it.
pub(crate) struct Channels<R, W> {
    /// To all channels; a channel's number is its stream.
    pub(crate) outgoing: Outgoing,
    /// From the channels that are read, by their number.
    pub(crate) incoming: Vec<Option<Incoming>>,
    pub(crate) reader: R,
    pub(crate) writer: W,
}

/// Serves channels over a socket.
pub(crate) fn channels<S: AsyncRead + AsyncWrite + Unpin + Send>(
    socket: WebSocketStream<S>,
    protocol: ChannelProtocol,
    layout: &[Channel],
    activity: &Activity,
) -> Channels<impl Future<Output = ()> + Send + use<S>, impl Future<Output = ()> + Send + use<S>> {
    let (outgoing, queue) = outgoing();
    let (senders, incoming) = layout
        .iter()
        .map(|channel| match channel {
            Channel::Read => {
                let (sender, incoming) = incoming();
                (Some(sender), Some(incoming))
            }
            Channel::Ignore => (None, None),
        })
        .unzip();
    let (sink, stream) = socket.split();
    let reader = read(stream, protocol, senders, activity.clone());
    let writer = write(sink, protocol, queue, activity.clone());
    let writer = writer.map(|result| match result {
        Ok(()) | Err(Error::ConnectionClosed | Error::AlreadyClosed) => {}
        Err(error) => tracing::debug!(%error, "streaming: a WebSocket cannot be written"),
    });
    Channels { outgoing, incoming, reader, writer }
}

/// Reads until the client closes the socket. Its close frame is answered by the socket.
async fn read<S: AsyncRead + AsyncWrite + Unpin>(
    mut socket: SplitStream<WebSocketStream<S>>,
    protocol: ChannelProtocol,
    mut senders: Vec<Option<IncomingSender>>,
    activity: Activity,
) {
    let budget = Budget::new();
    loop {
        let message = match socket.next().await {
            Some(Ok(message)) => message,
            Some(Err(error)) => {
                tracing::debug!(%error, "streaming: a WebSocket ended");
                return;
            }
            None => return,
        };
        let data = match message {
            tungstenite::Message::Binary(data) => data,
            tungstenite::Message::Text(text) => text.into(),
            // Pings are answered by the socket; upstream does not count them either.
            _ => continue,
        };
        activity.note();
        match protocol.decode(data) {
            None => {}
            Some(FromClient::Data(channel, data)) => {
                if let Some(Some(sender)) = senders.get(usize::from(channel)) {
                    budget.deliver(sender, data).await;
                }
            }
            Some(FromClient::Close(channel)) => match senders.get_mut(usize::from(channel)) {
                Some(sender) => *sender = None,
                None => return,
            },
            Some(FromClient::Invalid) => return,
        }
    }
}

/// Sends what is queued until the connection is closed, or no message can come any more.
async fn write<S: AsyncRead + AsyncWrite + Unpin>(
    mut socket: SplitSink<WebSocketStream<S>, tungstenite::Message>,
    protocol: ChannelProtocol,
    mut queue: OutgoingQueue,
    activity: Activity,
) -> Result<(), Error> {
    while let Some(message) = queue.recv().await {
        let mut next = Some(message);
        while let Some(message) = next.take() {
            match message {
                Message::Data { stream, data } => {
                    let channel = u8::try_from(stream).unwrap_or(CLOSE);
                    socket.feed(protocol.encode(channel, &data)).await?;
                }
                Message::Close { .. } => {
                    let last = CloseFrame { code: CloseCode::Normal, reason: Default::default() };
                    return socket.send(tungstenite::Message::Close(Some(last))).await;
                }
                // A channel of a WebSocket has no end of its own from the server.
                Message::Finish { .. } | Message::Reset { .. } | Message::Reply { .. } | Message::Pong(_) => {
                }
            }
            next = queue.try_recv().ok();
        }
        socket.flush().await?;
        activity.note();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data(channel: u8, data: &'static [u8]) -> Option<FromClient> {
        Some(FromClient::Data(channel, Bytes::from_static(data)))
    }

    #[test]
    fn encodes_messages_of_each_subprotocol() {
        let decode = |name: &str, message: &'static [u8]| {
            ChannelProtocol::of(name).decode(Bytes::from_static(message))
        };
        assert_eq!(decode("v4.channel.k8s.io", b"\0foo\n"), data(0, b"foo\n"));
        assert_eq!(decode("", b"\x04{}"), data(4, b"{}"));
        assert_eq!(decode("v4.base64.channel.k8s.io", b"0Zm9vCg=="), data(0, b"foo\n"));
        assert_eq!(decode("base64.channel.k8s.io", b"0%"), None);
        assert_eq!(decode("v4.channel.k8s.io", b""), None);
        assert_eq!(decode("v4.channel.k8s.io", b"\xff\0"), data(255, b"\0"));
        assert_eq!(decode(V5, b"\xff\0"), Some(FromClient::Close(0)));
        assert_eq!(decode(V5, b"\xff"), Some(FromClient::Invalid));
        assert_eq!(decode(V5, b"\xff\0\0"), Some(FromClient::Invalid));
        assert_eq!(decode(V5, b"\0"), data(0, b""));
    }

    proptest! {
        #[test]
        fn decodes_what_was_encoded(channel in 0u8..10, bytes in prop::collection::vec(any::<u8>(), 0..100), base64: bool) {
            let protocol = ChannelProtocol { base64, closes: false };
            let message = protocol.encode(channel, &bytes);
            prop_assert_eq!(message.is_text(), base64);
            prop_assert_eq!(protocol.decode(message.into_data()), Some(FromClient::Data(channel, bytes.into())));
        }
    }
}
