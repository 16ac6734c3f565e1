//! Messages of D-Bus as bytes. Source: the D-Bus specification, "Message Protocol" and "Marshaling".
//!
//! Pure. Values that this client does not need, arrays and structures in bodies, are an error where they come before ones that it
//! needs, and are left out behind them.
//!
//! Invariant: no text of a peer makes this panic, or makes it allocate more than the message is long.

use super::dbus::Endpoint;
use std::os::fd::OwnedFd;
use thiserror::Error;

/// A reply.
pub const RETURN: u8 = 2;
/// A reply of a call that failed.
pub const ERROR: u8 = 3;
/// A signal.
pub const SIGNAL: u8 = 4;

const CALL: u8 = 1;
/// Bytes of the part of a header that all messages have.
const FIXED: usize = 16;
/// Bytes of a message. The specification allows more; logind sends nothing near it.
const MOST: usize = 64 * 1024;

/// Variants in variants.
const MOST_DEPTH: u8 = 4;

// Header fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SENDER: u8 = 7;
const SIGNATURE: u8 = 8;
const UNIX_FDS: u8 = 9;

/// What is wrong with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// A value of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `b`
    Bool(bool),
    /// `i`
    Int(i32),
    /// `u`
    Unsigned(u32),
    /// `t`
    Long(u64),
    /// `s`, `o`, `g`
    Text(String),
    /// `h`: a number of the descriptors that come with the message.
    Descriptor(u32),
    /// `v`
    Variant(Box<Value>),
}

impl Value {
    fn signature(&self) -> char {
        match self {
            Value::Bool(_) => 'b',
            Value::Int(_) => 'i',
            Value::Unsigned(_) => 'u',
            Value::Long(_) => 't',
            Value::Text(_) => 's',
            Value::Descriptor(_) => 'h',
            Value::Variant(_) => 'v',
        }
    }
}

/// A message.
#[derive(Debug, Default)]
pub struct Message {
    /// One of the constants of this module.
    pub kind: u8,
    /// Of the sender's messages.
    pub serial: u32,
    /// The object.
    pub path: Option<String>,
    /// The interface.
    pub interface: Option<String>,
    /// The method or signal.
    pub member: Option<String>,
    /// The name of an error.
    pub error: Option<String>,
    /// The call that this replies to.
    pub reply_serial: Option<u32>,
    /// The receiver.
    pub destination: Option<String>,
    /// The sender's unique name, which the bus sets.
    pub sender: Option<String>,
    /// The values.
    pub body: Vec<Value>,
    /// How many descriptors come with it.
    pub descriptor_count: u32,
    /// They.
    pub descriptors: Vec<OwnedFd>,
}

impl Message {
    /// A call.
    #[must_use]
    pub fn call(serial: u32, endpoint: Endpoint, member: &str, arguments: &[Value]) -> Message {
        Message {
            kind: CALL,
            serial,
            path: Some(endpoint.path.to_owned()),
            interface: Some(endpoint.interface.to_owned()),
            member: Some(member.to_owned()),
            destination: Some(endpoint.name.to_owned()),
            body: arguments.to_vec(),
            ..Message::default()
        }
    }

    /// The bytes of a message, without its descriptors.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        self.body.iter().for_each(|value| body.value(value));
        let mut fields = Writer::default();
        let texts = [
            (PATH, 'o', &self.path),
            (INTERFACE, 's', &self.interface),
            (MEMBER, 's', &self.member),
            (ERROR_NAME, 's', &self.error),
            (DESTINATION, 's', &self.destination),
            (SENDER, 's', &self.sender),
        ];
        for (field, kind, text) in texts {
            if let Some(text) = text {
                fields.field(field, kind);
                fields.text(text);
            }
        }
        if let Some(serial) = self.reply_serial {
            fields.field(REPLY_SERIAL, 'u');
            fields.number(serial);
        }
        if !self.body.is_empty() {
            fields.field(SIGNATURE, 'g');
            fields.signature(&self.body.iter().map(Value::signature).collect::<String>());
        }
        if self.descriptor_count > 0 {
            fields.field(UNIX_FDS, 'u');
            fields.number(self.descriptor_count);
        }
        let mut whole = Writer(vec![b'l', self.kind, 0, 1]);
        whole.number(length(body.0.len()));
        whole.number(self.serial);
        whole.number(length(fields.0.len()));
        // The fields begin at a multiple of eight, so that their own alignment holds.
        whole.0.extend(fields.0);
        whole.align(8);
        whole.0.extend(body.0);
        whole.0
    }

    /// The first message of some bytes, and how many they are; `None` while more have to come.
    ///
    /// # Errors
    /// They are none.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Message, usize)>, Malformed> {
        let Some(fixed) = bytes.get(..FIXED) else { return Ok(None) };
        let little = match fixed[0] {
            b'l' => true,
            b'B' => false,
            _ => return Err(Malformed("the byte order is unknown")),
        };
        if fixed[3] != 1 {
            return Err(Malformed("the protocol has another version"));
        }
        let mut reader = Reader { bytes, at: 4, little };
        let body = reader.length()?;
        let serial = reader.number()?;
        let fields = reader.length()?;
        if fields > MOST || body > MOST {
            return Err(Malformed("the message is too long"));
        }
        let start = (FIXED + fields).next_multiple_of(8);
        let whole = start + body;
        if bytes.len() < whole {
            return Ok(None);
        }
        let mut message = Message { kind: fixed[1], serial, ..Message::default() };
        let mut reader = Reader { bytes: &bytes[..FIXED + fields], at: FIXED, little };
        let mut signature = String::new();
        while reader.at < FIXED + fields {
            message.read_field(&mut reader, &mut signature)?;
        }
        let mut reader = Reader { bytes: &bytes[start..whole], at: 0, little };
        message.body = reader.values(&signature)?;
        Ok(Some((message, whole)))
    }

    fn read_field(&mut self, reader: &mut Reader<'_>, signature: &mut String) -> Result<(), Malformed> {
        reader.align(8)?;
        let field = reader.byte()?;
        let value = reader.variant(0)?;
        match (field, value) {
            (PATH, Value::Text(text)) => self.path = Some(text),
            (INTERFACE, Value::Text(text)) => self.interface = Some(text),
            (MEMBER, Value::Text(text)) => self.member = Some(text),
            (ERROR_NAME, Value::Text(text)) => self.error = Some(text),
            (DESTINATION, Value::Text(text)) => self.destination = Some(text),
            (SENDER, Value::Text(text)) => self.sender = Some(text),
            (SIGNATURE, Value::Text(text)) => *signature = text,
            (REPLY_SERIAL, Value::Unsigned(serial)) => self.reply_serial = Some(serial),
            (UNIX_FDS, Value::Unsigned(count)) => self.descriptor_count = count,
            (PATH..=UNIX_FDS, _) => return Err(Malformed("a header field has another type")),
            // Fields that are unknown are to be ignored.
            _ => {}
        }
        Ok(())
    }
}

/// What is written is shorter than a message can be.
fn length(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, number: u32) {
        self.align(4);
        self.0.extend(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(length(text.len()));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, text: &str) {
        self.0.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn field(&mut self, field: u8, kind: char) {
        self.align(8);
        self.0.push(field);
        self.signature(&kind.to_string());
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Bool(is) => self.number(u32::from(*is)),
            Value::Int(number) => self.number(number.cast_unsigned()),
            Value::Unsigned(number) | Value::Descriptor(number) => self.number(*number),
            Value::Long(number) => {
                self.align(8);
                self.0.extend(number.to_le_bytes());
            }
            Value::Text(text) => self.text(text),
            Value::Variant(value) => {
                self.signature(&value.signature().to_string());
                self.value(value);
            }
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    little: bool,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let found = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        let found = *found.ok_or(Malformed("the message ends early"))?;
        self.at += N;
        Ok(found)
    }

    fn align(&mut self, to: usize) -> Result<(), Malformed> {
        self.at = self.at.next_multiple_of(to);
        if self.at > self.bytes.len() { Err(Malformed("the message ends early")) } else { Ok(()) }
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn number(&mut self) -> Result<u32, Malformed> {
        self.align(4)?;
        let bytes = self.take()?;
        Ok(if self.little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }

    fn long(&mut self) -> Result<u64, Malformed> {
        self.align(8)?;
        let bytes = self.take()?;
        Ok(if self.little { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) })
    }

    fn length(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.number()?).map_err(|_| Malformed("a length is too large"))
    }

    /// A text of this length, and the zero behind it.
    fn text(&mut self, length: usize) -> Result<String, Malformed> {
        let end = self.at.checked_add(length).ok_or(Malformed("a length is too large"))?;
        let bytes = self.bytes.get(self.at..end).ok_or(Malformed("the message ends early"))?;
        let text = std::str::from_utf8(bytes).map_err(|_| Malformed("a text is no UTF-8"))?;
        let text = text.to_owned();
        self.at = end;
        if self.byte()? != 0 {
            return Err(Malformed("a text has no end"));
        }
        Ok(text)
    }

    fn variant(&mut self, depth: u8) -> Result<Value, Malformed> {
        let length = usize::from(self.byte()?);
        let signature = self.text(length)?;
        let mut kinds = signature.chars();
        match (kinds.next(), kinds.next()) {
            (Some(kind), None) => self.value(kind, depth)?.ok_or(Malformed("a variant has another type")),
            _ => Err(Malformed("a variant has another type")),
        }
    }

    /// `None` for a type that is not needed here.
    fn value(&mut self, kind: char, depth: u8) -> Result<Option<Value>, Malformed> {
        Ok(Some(match kind {
            'b' => match self.number()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                _ => return Err(Malformed("a boolean is neither")),
            },
            'i' => Value::Int(self.number()?.cast_signed()),
            'u' => Value::Unsigned(self.number()?),
            'h' => Value::Descriptor(self.number()?),
            't' => Value::Long(self.long()?),
            's' | 'o' => {
                let length = self.length()?;
                Value::Text(self.text(length)?)
            }
            'g' => {
                let length = usize::from(self.byte()?);
                Value::Text(self.text(length)?)
            }
            'v' if depth < MOST_DEPTH => Value::Variant(Box::new(self.variant(depth + 1)?)),
            _ => return Ok(None),
        }))
    }

    fn values(&mut self, signature: &str) -> Result<Vec<Value>, Malformed> {
        let mut all = vec![];
        for kind in signature.chars() {
            match self.value(kind, 0)? {
                Some(value) => all.push(value),
                None => break,
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::dbus::BUS;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_call_has_the_bytes_of_the_specification() {
        let bytes = Message::call(7, BUS, "Get", &[Value::Text("a".into()), Value::Int(-1)]).encode();
        let shown = |byte: &u8| match byte {
            b' '..=b'~' => char::from(*byte).to_string(),
            other => format!("<{other:x}>"),
        };
        expect_test::expect!["l<1><0><1><c><0><0><0><7><0><0><0>x<0><0><0><1><1>o<0><15><0><0><0>/org/freedesktop/DBus<0><0><0><2><1>s<0><14><0><0><0>org.freedesktop.DBus<0><0><0><0><3><1>s<0><3><0><0><0>Get<0><0><0><0><0><6><1>s<0><14><0><0><0>org.freedesktop.DBus<0><0><0><0><8><1>g<0><2>si<0><1><0><0><0>a<0><0><0><ff><ff><ff><ff>"].assert_eq(&bytes.iter().map(shown).collect::<String>());
    }

    fn decoded(bytes: &[u8]) -> Result<Option<(Message, usize)>, Malformed> {
        Message::decode(bytes)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(text in ".{0,20}", number: u32, long: u64, is: bool, serial in 1_u32..) {
            let variant = Value::Variant(Box::new(Value::Long(long)));
            let body = vec![Value::Bool(is), Value::Text(text), variant, Value::Descriptor(number)];
            let message = Message {
                kind: SIGNAL,
                serial,
                reply_serial: Some(number),
                sender: Some(":1.7".into()),
                path: Some("/a".into()),
                descriptor_count: 1,
                body,
                ..Message::default()
            };
            let bytes = message.encode();
            let (read, length) = decoded(&bytes).unwrap().unwrap();
            prop_assert_eq!(length, bytes.len());
            prop_assert_eq!(format!("{read:?}"), format!("{message:?}"));
            for end in 0..bytes.len() {
                prop_assert!(decoded(&bytes[..end]).unwrap().is_none());
            }
        }

        #[test]
        fn garbage_is_refused_and_nothing_panics(garbage: Vec<u8>, at in 0_usize..200, byte: u8) {
            let _ = decoded(&garbage);
            let mut bytes = Message::call(1, BUS, "Hello", &[Value::Text("text".into())]).encode();
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            // It is another message, needs more bytes, or is refused.
            if let Ok(Some((message, length))) = decoded(&bytes) {
                prop_assert!(length <= bytes.len() && message.body.len() <= 1);
            }
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let good = Message::call(1, BUS, "Hello", &[]).encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            decoded(&bytes).map(|found| found.is_some()).unwrap_err().to_string()
        };
        let shown = [with(0, b'x'), with(3, 2), with(7, 1), with(15, 9), with(18, b'y'), with(19, b'y')];
        expect_test::expect![[r#"
            the byte order is unknown
            the protocol has another version
            the message is too long
            the message is too long
            a variant has another type
            a text has no end"#]]
        .assert_eq(&shown.join("\n"));
    }
}
