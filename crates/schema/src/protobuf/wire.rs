//! The protobuf wire: reading with every length checked, and writing from the end to the beginning, so that lengths are
//! known when they are written.

use std::fmt;

/// Why something is no message of its type. Texts are those of Go's generated code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No bytes, or none after the magic number.
    #[error("empty {0}")]
    Empty(&'static str),
    /// Not the Kubernetes form.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Magic,
    /// A length or a value goes beyond the end.
    #[error("unexpected EOF")]
    Eof,
    /// A number of more than ten bytes.
    #[error("proto: integer overflow")]
    Overflow,
    /// A length that Go takes for a negative one.
    #[error("proto: negative length found during unmarshaling")]
    NegativeLength,
    /// A known field in the form of another type.
    #[error("proto: wrong wireType = {wire} for field {}", GoName(.field))]
    WireType {
        /// The wire type found.
        wire: u8,
        /// The JSON name of the field.
        field: String,
    },
    /// A field number that is none.
    #[error("proto: illegal tag {number} (wire type {wire})")]
    Tag {
        /// The number, as Go reads it.
        number: i32,
        /// The wire type.
        wire: u8,
    },
    /// A wire type that does not exist.
    #[error("proto: illegal wireType {0}")]
    IllegalWireType(u8),
    /// The end of a group that did not begin.
    #[error("proto: wiretype end group for non-group")]
    EndGroup,
    /// Nested deeper than [`super::MAX_DEPTH`].
    #[error("exceeded max depth")]
    Depth,
    /// A value without JSON form, or a JSON value that the field cannot hold.
    #[error("{0}")]
    Value(String),
    /// Its messages take more memory than a body may.
    #[error("{0}")]
    Large(kaji_meta::OverBudget),
    /// A type that the table does not have.
    #[error("proto: no such type")]
    NoSchema,
}

/// A JSON name as Go spells it.
struct GoName<'a>(&'a str);

impl fmt::Display for GoName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.0.chars();
        match chars.next() {
            Some(first) => write!(f, "{}{}", first.to_ascii_uppercase(), chars.as_str()),
            None => Ok(()),
        }
    }
}

/// What follows a tag.
pub(super) const VARINT: u8 = 0;
pub(super) const FIXED64: u8 = 1;
pub(super) const BYTES: u8 = 2;
const GROUP: u8 = 3;
const GROUP_END: u8 = 4;
pub(super) const FIXED32: u8 = 5;

/// Reads a message.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A field number and a wire type.
    pub fn tag(&mut self) -> Result<(u16, u8), Error> {
        let tag = self.varint()?;
        let wire = (tag & 7) as u8;
        // Go keeps 32 bits of it.
        let number = (tag >> 3) as i32;
        if wire == GROUP_END {
            return Err(Error::EndGroup);
        }
        if number <= 0 {
            return Err(Error::Tag { number, wire });
        }
        // No Kubernetes message has numbers beyond 16 bits.
        Ok((u16::try_from(number).unwrap_or(u16::MAX), wire))
    }

    pub fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0u64;
        for (i, byte) in self.0.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                self.0 = self.0.get(i + 1..).unwrap_or(&[]);
                return Ok(value);
            }
        }
        Err(if self.0.len() < 10 { Error::Eof } else { Error::Overflow })
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(Error::Eof)?;
        self.0 = rest;
        Ok(head)
    }

    /// Bytes with their length before them.
    pub fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let length = self.varint()?;
        if length > i64::MAX as u64 {
            return Err(Error::NegativeLength);
        }
        self.take(usize::try_from(length).map_err(|_| Error::Eof)?)
    }

    pub fn fixed64(&mut self) -> Result<u64, Error> {
        let bytes = self.take(8)?;
        Ok(bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
    }

    pub fn fixed32(&mut self) -> Result<u32, Error> {
        let bytes = self.take(4)?;
        Ok(bytes.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b)))
    }

    /// Skips an unknown field.
    pub fn skip(&mut self, wire: u8) -> Result<(), Error> {
        let mut wire = wire;
        let mut groups = 0usize;
        loop {
            match wire {
                VARINT => drop(self.varint()?),
                FIXED64 => drop(self.take(8)?),
                BYTES => drop(self.bytes()?),
                FIXED32 => drop(self.take(4)?),
                GROUP => groups += 1,
                GROUP_END => groups -= 1,
                other => return Err(Error::IllegalWireType(other)),
            }
            if groups == 0 {
                return Ok(());
            }
            wire = (self.varint()? & 7) as u8;
        }
    }
}

/// Writes a message from its end.
pub(super) struct Back {
    buf: Vec<u8>,
    /// Where the written part begins.
    at: usize,
}

impl Back {
    pub fn with_capacity(capacity: usize) -> Back {
        Back { buf: vec![0; capacity], at: capacity }
    }

    /// How many bytes were written.
    pub fn len(&self) -> usize {
        self.buf.len() - self.at
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        if self.at < bytes.len() {
            self.grow(bytes.len());
        }
        let start = self.at - bytes.len();
        if let Some(place) = self.buf.get_mut(start..self.at) {
            place.copy_from_slice(bytes);
        }
        self.at = start;
    }

    fn grow(&mut self, need: usize) {
        let written = self.len();
        let size = (self.buf.len() * 2).max(written + need + 64);
        let mut buf = vec![0; size];
        buf[size - written..].copy_from_slice(&self.buf[self.at..]);
        self.at = size - written;
        self.buf = buf;
    }

    pub fn varint(&mut self, mut value: u64) {
        let mut bytes = [0u8; 10];
        let mut n = 0;
        for byte in &mut bytes {
            *byte = (value & 0x7f) as u8 | if value > 0x7f { 0x80 } else { 0 };
            n += 1;
            value >>= 7;
            if value == 0 {
                break;
            }
        }
        self.bytes(&bytes[..n]);
    }

    pub fn tag(&mut self, number: u16, wire: u8) {
        self.varint(u64::from(number) << 3 | u64::from(wire));
    }

    /// Makes what was written since `mark` the content of field `number`.
    pub fn prefix(&mut self, mark: usize, number: u16) {
        self.varint((self.len() - mark) as u64);
        self.tag(number, BYTES);
    }

    /// A string or bytes as field `number`.
    pub fn text(&mut self, number: u16, bytes: &[u8]) {
        self.bytes(bytes);
        self.varint(bytes.len() as u64);
        self.tag(number, BYTES);
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.buf.drain(..self.at);
        self.buf
    }
}
