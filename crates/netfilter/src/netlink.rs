//! The codec of netlink: messages with headers, attributes, nesting and padding.
//!
//! Invariants: messages and attributes are aligned to four bytes; a reader never goes beyond the length that a header states,
//! nor beyond the buffer.

/// Length of `struct nlmsghdr`.
pub const HEADER: usize = 16;
/// The message is a request.
pub const REQUEST: u16 = 1;
/// The kernel acknowledges the message.
pub const ACK: u16 = 4;
/// All objects are asked for.
pub const DUMP: u16 = 0x300;
/// An existing object is replaced.
pub const REPLACE: u16 = 0x100;
/// An existing object is an error.
pub const EXCL: u16 = 0x200;
/// An absent object is made.
pub const CREATE: u16 = 0x400;
/// The object is added after those that exist.
pub const APPEND: u16 = 0x800;

/// `NLMSG_ERROR`, also of acknowledgements.
pub const TYPE_ERROR: u16 = 2;
/// `NLMSG_DONE`
pub const TYPE_DONE: u16 = 3;

const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;

/// Writes messages into one buffer.
#[derive(Debug, Default, Clone)]
pub struct Writer {
    bytes: Vec<u8>,
    message: usize,
}

/// The beginning of a nested attribute that is not closed yet.
#[must_use]
pub struct Nest(usize);

impl Writer {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Begins a message. Its header is followed by `fixed`, the structure of its protocol.
    pub fn begin(&mut self, kind: u16, flags: u16, sequence: u32, fixed: &[u8]) {
        self.message = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.raw(fixed);
    }

    /// Ends the message that was begun last.
    pub fn end(&mut self) {
        let length = (self.bytes.len() - self.message) as u32;
        self.bytes[self.message..self.message + 4].copy_from_slice(&length.to_ne_bytes());
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// An attribute. Its value has less than 64 KiB, which callers see to by splitting lists.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        debug_assert!(value.len() + 4 <= usize::from(u16::MAX), "an attribute of {} bytes", value.len());
        self.bytes.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.raw(value);
    }

    /// A text that ends with a zero byte.
    pub fn text(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes);
    }

    /// A byte.
    pub fn byte(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    /// A number of 32 bits in the order of the machine, as routing messages have them.
    pub fn native32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// A number of 32 bits in the order of the network, as netfilter's messages have them.
    pub fn big32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// A number of 64 bits in the order of the network.
    pub fn big64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Begins an attribute that holds attributes.
    pub fn nest(&mut self, kind: u16) -> Nest {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        Nest(at)
    }

    /// Begins an attribute that holds a structure and attributes, without the flag of nesting.
    pub fn nest_plain(&mut self, kind: u16, fixed: &[u8]) -> Nest {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.raw(fixed);
        Nest(at)
    }

    /// Ends it.
    pub fn close(&mut self, nest: Nest) {
        let length = (self.bytes.len() - nest.0) as u16;
        self.bytes[nest.0..nest.0 + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What was written.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A message, as received.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// `nlmsg_type`
    pub kind: u16,
    /// `nlmsg_seq`
    pub sequence: u32,
    /// What follows the header.
    pub payload: &'a [u8],
}

/// The messages of a datagram. It ends before the first that is malformed.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let whole = bytes.get(..length).filter(|whole| whole.len() >= HEADER)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind: u16_at(whole, 4)?, sequence: u32_at(whole, 8)?, payload: &whole[HEADER..] })
    })
}

/// The attributes in a buffer: kinds without flags, and values. It ends before the first that is malformed.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The attribute of a kind.
#[must_use]
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(k, _)| *k == kind).map(|(_, value)| value)
}

/// A number of 16 bits in the order of the machine.
#[must_use]
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// A number of 32 bits in the order of the machine.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A number of 32 bits in the order of the network that fills an attribute.
#[must_use]
pub fn big32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// A number of 64 bits in the order of the network that fills an attribute.
#[must_use]
pub fn big64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// A text, without the zero byte at its end.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}
