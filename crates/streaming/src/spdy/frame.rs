//! Frames: the decoder takes bytes in any pieces, the encoder appends a frame's bytes.
//!
//! Invariants:
//! - The decoder keeps at most one control frame of [`MAX_CONTROL`] bytes. DATA frames, which may have 16 MiB, come out in the
//!   pieces in which their bytes come in; the last one has the frame's FIN flag.
//! - After an error the decoder is not used again.

use super::{
    SpdyError,
    headers::{Deflater, Headers, Inflater},
};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The largest control frame, without its eight bytes of header.
const MAX_CONTROL: usize = 64 << 10;
/// The version in control frames.
const VERSION: u16 = 3;
/// Bytes before a frame's payload.
const HEAD: usize = 8;
/// The largest payload that a frame's length can say.
const MAX_LENGTH: usize = (1 << 24) - 1;
const STREAM_MASK: u32 = 0x7fff_ffff;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;

const FIN: u8 = 1;
const UNIDIRECTIONAL: u8 = 2;

/// A frame. Stream ids have 31 bits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Frame {
    /// Opens a stream; `unidirectional` ones take nothing back.
    SynStream {
        stream: u32,
        associated: u32,
        priority: u8,
        fin: bool,
        unidirectional: bool,
        headers: Headers,
    },
    /// Accepts a stream.
    SynReply { stream: u32, fin: bool, headers: Headers },
    /// Ends a stream in both directions.
    RstStream { stream: u32, status: u32 },
    /// Flags, id and value of each setting; flags are the upper eight bits of the first number.
    Settings(Vec<(u32, u32)>),
    /// Is answered with the same id when the other side made the id.
    Ping(u32),
    /// No more streams are accepted after the last one.
    GoAway { last: u32, status: u32 },
    /// More headers of a stream.
    Headers { stream: u32, fin: bool, headers: Headers },
    /// Upstream's clients and servers ignore it, and send without windows.
    WindowUpdate { stream: u32, delta: u32 },
    /// Bytes of a stream; `fin` says that none follow.
    Data { stream: u32, fin: bool, data: Bytes },
}

/// Turns the bytes of a connection into frames.
pub struct Decoder {
    buffer: BytesMut,
    inflater: Inflater,
    data: Option<Remainder>,
}

/// What is still to come of a DATA frame.
struct Remainder {
    stream: u32,
    fin: bool,
    length: usize,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder { buffer: BytesMut::new(), inflater: Inflater::new(), data: None }
    }
}

impl Decoder {
    /// Where bytes are appended.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next frame, or piece of a DATA frame; `None` when more bytes are needed.
    ///
    /// # Errors
    /// When the bytes are not SPDY/3.1 within the bounds.
    pub fn decode(&mut self) -> Result<Option<Frame>, SpdyError> {
        if let Some(remainder) = self.data.take() {
            return Ok(self.piece(remainder));
        }
        let Some((head, _)) = self.buffer.split_first_chunk::<HEAD>() else { return Ok(None) };
        let mut head = &head[..];
        let (word, flags_length) = (head.get_u32(), head.get_u32());
        let (flags, length) = ((flags_length >> 24) as u8, (flags_length & 0x00ff_ffff) as usize);
        if word & !STREAM_MASK == 0 {
            if word == 0 {
                return Err(SpdyError::ZeroStream);
            }
            self.buffer.advance(HEAD);
            return Ok(self.piece(Remainder { stream: word, fin: flags & FIN != 0, length }));
        }
        let (version, kind) = ((word >> 16 & 0x7fff) as u16, word as u16);
        if version != VERSION {
            return Err(SpdyError::Version(version));
        }
        if length > MAX_CONTROL {
            return Err(SpdyError::FrameTooLarge(length));
        }
        if self.buffer.len() < HEAD + length {
            return Ok(None);
        }
        let mut payload = self.buffer.split_to(HEAD + length);
        payload.advance(HEAD);
        self.control(kind, flags, &payload).map(Some)
    }

    fn piece(&mut self, remainder: Remainder) -> Option<Frame> {
        let Remainder { stream, fin, length } = remainder;
        let data = self.buffer.split_to(length.min(self.buffer.len())).freeze();
        let missing = length - data.len();
        if missing > 0 {
            self.data = Some(Remainder { stream, fin, length: missing });
            if data.is_empty() {
                return None;
            }
        }
        Some(Frame::Data { stream, fin: fin && missing == 0, data })
    }

    fn control(&mut self, kind: u16, flags: u8, mut payload: &[u8]) -> Result<Frame, SpdyError> {
        let invalid = SpdyError::ControlFrame(kind);
        let fin = flags & FIN != 0;
        let payload = &mut payload;
        Ok(match kind {
            SYN_STREAM => {
                let (stream, associated) =
                    (stream(payload, invalid)?, number(payload, invalid)? & STREAM_MASK);
                let priority = payload.try_get_u16().map_err(|_| invalid)?;
                Frame::SynStream {
                    stream,
                    associated,
                    priority: (priority >> 13) as u8,
                    fin,
                    unidirectional: flags & UNIDIRECTIONAL != 0,
                    headers: self.inflater.headers(payload)?,
                }
            }
            SYN_REPLY => {
                let stream = stream(payload, invalid)?;
                Frame::SynReply { stream, fin, headers: self.inflater.headers(payload)? }
            }
            HEADERS => {
                let stream = stream(payload, invalid)?;
                Frame::Headers { stream, fin, headers: self.inflater.headers(payload)? }
            }
            SETTINGS => {
                let count = number(payload, invalid)? as usize;
                if payload.len() != count.saturating_mul(8) {
                    return Err(invalid);
                }
                let (pairs, _) = payload.as_chunks::<8>();
                let pair = |mut p: &[u8]| (p.get_u32(), p.get_u32());
                Frame::Settings(pairs.iter().map(|p| pair(p)).collect())
            }
            RST_STREAM | PING | GOAWAY | WINDOW_UPDATE => fixed(kind, payload)?,
            other => return Err(SpdyError::FrameType(other)),
        })
    }
}

/// The control frames of a fixed length.
fn fixed(kind: u16, payload: &mut &[u8]) -> Result<Frame, SpdyError> {
    let invalid = SpdyError::ControlFrame(kind);
    let first = number(payload, invalid)?;
    let frame = match kind {
        PING if first != 0 => Frame::Ping(first),
        GOAWAY => Frame::GoAway { last: first & STREAM_MASK, status: number(payload, invalid)? },
        RST_STREAM if first & STREAM_MASK != 0 => {
            Frame::RstStream { stream: first & STREAM_MASK, status: number(payload, invalid)? }
        }
        WINDOW_UPDATE => Frame::WindowUpdate {
            stream: first & STREAM_MASK,
            delta: number(payload, invalid)? & STREAM_MASK,
        },
        _ => return Err(invalid),
    };
    if payload.is_empty() { Ok(frame) } else { Err(invalid) }
}

fn number(payload: &mut &[u8], invalid: SpdyError) -> Result<u32, SpdyError> {
    payload.try_get_u32().map_err(|_| invalid)
}

fn stream(payload: &mut &[u8], invalid: SpdyError) -> Result<u32, SpdyError> {
    match number(payload, invalid)? & STREAM_MASK {
        0 => Err(SpdyError::ZeroStream),
        stream => Ok(stream),
    }
}

/// Turns frames into the bytes of a connection.
pub struct Encoder {
    deflater: Deflater,
    payload: Vec<u8>,
}

impl Encoder {
    /// For a connection's start.
    ///
    /// # Errors
    /// When the compression cannot be set up.
    pub fn new() -> Result<Encoder, SpdyError> {
        Ok(Encoder { deflater: Deflater::new()?, payload: vec![] })
    }

    /// Appends a frame.
    ///
    /// # Errors
    /// For frames that are larger than their length can say, or than the decoder accepts.
    pub fn encode(&mut self, frame: &Frame, out: &mut BytesMut) -> Result<(), SpdyError> {
        let payload = &mut self.payload;
        payload.clear();
        let flag = |fin: bool| u8::from(fin) * FIN;
        let (kind, flags) = match frame {
            Frame::Data { stream, fin, data } => {
                let length = length(data.len())?;
                out.reserve(HEAD + data.len());
                out.put_u32(stream & STREAM_MASK);
                out.put_u32(u32::from(flag(*fin)) << 24 | length);
                out.extend_from_slice(data);
                return Ok(());
            }
            Frame::SynStream { stream, associated, priority, fin, unidirectional, headers } => {
                payload.put_u32(stream & STREAM_MASK);
                payload.put_u32(associated & STREAM_MASK);
                payload.put_u16(u16::from(*priority) << 13);
                self.deflater.append(headers, payload)?;
                (SYN_STREAM, flag(*fin) | (u8::from(*unidirectional) * UNIDIRECTIONAL))
            }
            Frame::SynReply { stream, fin, headers } => {
                payload.put_u32(stream & STREAM_MASK);
                self.deflater.append(headers, payload)?;
                (SYN_REPLY, flag(*fin))
            }
            Frame::Headers { stream, fin, headers } => {
                payload.put_u32(stream & STREAM_MASK);
                self.deflater.append(headers, payload)?;
                (HEADERS, flag(*fin))
            }
            Frame::Settings(settings) => {
                payload.put_u32(length(settings.len())?);
                for (id, value) in settings {
                    payload.put_u32(*id);
                    payload.put_u32(*value);
                }
                (SETTINGS, 0)
            }
            Frame::Ping(id) => {
                payload.put_u32(*id);
                (PING, 0)
            }
            Frame::RstStream { stream: first, status: second } => two(payload, RST_STREAM, *first, *second),
            Frame::GoAway { last: first, status: second } => two(payload, GOAWAY, *first, *second),
            Frame::WindowUpdate { stream: first, delta: second } => {
                two(payload, WINDOW_UPDATE, *first, *second)
            }
        };
        if payload.len() > MAX_CONTROL {
            return Err(SpdyError::FrameTooLarge(payload.len()));
        }
        out.put_u32(1 << 31 | u32::from(VERSION) << 16 | u32::from(kind));
        out.put_u32(u32::from(flags) << 24 | length(payload.len())?);
        out.extend_from_slice(payload);
        Ok(())
    }
}

fn two(payload: &mut Vec<u8>, kind: u16, first: u32, second: u32) -> (u16, u8) {
    payload.put_u32(first & STREAM_MASK);
    payload.put_u32(second);
    (kind, 0)
}

fn length(length: usize) -> Result<u32, SpdyError> {
    match u32::try_from(length) {
        Ok(number) if length <= MAX_LENGTH => Ok(number),
        _ => Err(SpdyError::FrameTooLarge(length)),
    }
}

#[cfg(test)]
mod tests;
