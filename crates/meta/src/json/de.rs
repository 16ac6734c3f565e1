//! Decoding through serde, with unwanted fields passed over at the speed of [`Reader`].

use super::{Malformed, Reader};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
    value::{MapAccessDeserializer, StrDeserializer, StringDeserializer},
};
use serde::{Deserialize, forward_to_deserialize_any};
use std::{borrow::Cow, fmt};

/// Values nested deeper are refused, as `serde_json` refuses them.
const MAX_DEPTH: u8 = 127;

/// Decodes a whole document as `serde_json` does, but for the members of structs that are `null`: they are absent, as to Go's
/// decoder (Go's encoder writes `null` for an empty list or map that is not omitted). A type is compiled for this reader alone: `serde_json` reads a failed
/// document once more for the place of a syntax error only.
///
/// # Errors
/// A syntax error with its place, or the mismatch of a value with its type.
pub fn from_slice<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, serde_json::Error> {
    let text = std::str::from_utf8(bytes).map_err(de::Error::custom)?;
    let mut reader = Reader::new(text);
    let value =
        T::deserialize(Next { reader: &mut reader, depth: 0 }).map_err(|failed| failed.explain(text))?;
    if reader.peek().is_some() { Err(trailing(&reader).explain(text)) } else { Ok(value) }
}

/// The same of a document that was read already; for what is rare, for it is written and read again.
///
/// # Errors
/// As [`from_slice`].
pub fn from_value<T: DeserializeOwned>(value: &serde_json::Value) -> Result<T, serde_json::Error> {
    let mut text = vec![];
    super::write(&mut text, value);
    from_slice(&text)
}

fn trailing(reader: &Reader<'_>) -> Failed {
    Failed(format!("trailing characters at byte {}", reader.position()).into())
}

/// A value that does not fit, or text that is no JSON.
#[derive(Debug)]
struct Failed(Box<str>);

impl Failed {
    fn explain(self, text: &str) -> serde_json::Error {
        match serde_json::from_str::<de::IgnoredAny>(text) {
            Err(syntax) => syntax,
            Ok(_) => de::Error::custom(self.0),
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

impl de::Error for Failed {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Failed(message.to_string().into())
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        match unexpected {
            Unexpected::Unit => Failed(format!("invalid type: null, expected {expected}").into()),
            Unexpected::Float(number) => {
                let number = serde_json::Value::from(number);
                Failed(format!("invalid type: floating point `{number}`, expected {expected}").into())
            }
            _ => Failed(format!("invalid type: {unexpected}, expected {expected}").into()),
        }
    }
}

impl From<Malformed> for Failed {
    fn from(malformed: Malformed) -> Self {
        Failed(malformed.to_string().into())
    }
}

/// The next value.
struct Next<'r, 'a> {
    reader: &'r mut Reader<'a>,
    depth: u8,
}

impl<'r, 'a> Next<'r, 'a> {
    fn deeper(self) -> Result<Inside<'r, 'a>, Failed> {
        if self.depth >= MAX_DEPTH {
            Err(Failed("recursion limit exceeded".into()))
        } else {
            Ok(Inside { reader: self.reader, depth: self.depth + 1, skips_nulls: false })
        }
    }

    fn object<V: Visitor<'a>>(self, visitor: V, skips_nulls: bool) -> Result<V::Value, Failed> {
        self.reader.take(b'{');
        let mut inside = Inside { skips_nulls, ..self.deeper()? };
        let value = visitor.visit_map(&mut inside)?;
        inside.end_object()?;
        Ok(value)
    }

    fn string<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        match self.reader.string()? {
            Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
            Cow::Owned(text) => visitor.visit_string(text),
        }
    }

    fn scalar<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        match self.reader.value()? {
            "null" => visitor.visit_unit(),
            "true" => visitor.visit_bool(true),
            "false" => visitor.visit_bool(false),
            text => match text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>()) {
                // As in serde_json, a number that is no small integer may be anything.
                Some(Ok(n)) if !text.starts_with('0') || n == 0 && text.len() == 1 => visitor.visit_u64(n),
                _ => match number(text)? {
                    Number::Unsigned(n) => visitor.visit_u64(n),
                    Number::Signed(n) => visitor.visit_i64(n),
                    Number::Float(n) => visitor.visit_f64(n),
                },
            },
        }
    }
}

/// A number as `serde_json` shows it to visitors.
enum Number {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
}

fn number(text: &str) -> Result<Number, Failed> {
    let number: serde_json::Number = serde_json::from_str(text).map_err(|e| Failed(e.to_string().into()))?;
    let integer = number.as_u64().map(Number::Unsigned).or_else(|| number.as_i64().map(Number::Signed));
    let number = integer.or_else(|| number.as_f64().map(Number::Float));
    number.ok_or_else(|| Failed(format!("number out of range: {text}").into()))
}

impl<'a> Deserializer<'a> for Next<'_, 'a> {
    type Error = Failed;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        match self.reader.peek() {
            Some(b'"') => self.string(visitor),
            Some(b'{') => self.object(visitor, false),
            Some(b'[') => {
                self.reader.take(b'[');
                let mut inside = self.deeper()?;
                let value = visitor.visit_seq(&mut inside)?;
                inside.end_list()?;
                Ok(value)
            }
            _ => self.scalar(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        if self.reader.peek() == Some(b'n') {
            return match self.reader.value()? {
                "null" => visitor.visit_none(),
                _ => Err(self.reader.malformed().into()),
            };
        }
        visitor.visit_some(self)
    }

    fn deserialize_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failed> {
        match self.reader.peek() {
            Some(b'{') => self.object(visitor, true),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failed> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'a>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failed> {
        if self.reader.take(b'{') {
            let mut inside = self.deeper()?;
            let value = visitor.visit_enum(MapAccessDeserializer::new(&mut inside))?;
            inside.end_object()?;
            return Ok(value);
        }
        let name = self.reader.string()?;
        let name: StrDeserializer<'_, Failed> = (*name).into_deserializer();
        visitor.visit_enum(name)
    }

    fn deserialize_ignored_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        self.reader.value()?;
        visitor.visit_unit()
    }

    fn is_human_readable(&self) -> bool {
        true
    }

    forward_to_deserialize_any! {
        <V: Visitor<'a>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier
    }
}

/// Inside an object or a list, after its opening bracket.
struct Inside<'r, 'a> {
    reader: &'r mut Reader<'a>,
    /// 0 once its end was read.
    depth: u8,
    /// Whether members that are `null` are passed over.
    skips_nulls: bool,
}

impl Inside<'_, '_> {
    /// A visitor may stop before the end: of an object nothing may be left, of a list neither.
    fn end_object(&mut self) -> Result<(), Failed> {
        if self.depth == 0 || self.reader.key()?.is_none() {
            return Ok(());
        }
        Err(trailing(self.reader))
    }

    fn end_list(&mut self) -> Result<(), Failed> {
        if self.depth == 0 || !self.reader.element() {
            return Ok(());
        }
        Err(trailing(self.reader))
    }
}

impl<'a> MapAccess<'a> for &mut Inside<'_, 'a> {
    type Error = Failed;

    fn next_key_seed<K: DeserializeSeed<'a>>(&mut self, seed: K) -> Result<Option<K::Value>, Failed> {
        if self.depth == 0 {
            return Ok(None);
        }
        loop {
            let Some(key) = self.reader.key()? else {
                self.depth = 0;
                return Ok(None);
            };
            if self.skips_nulls && self.reader.peek() == Some(b'n') {
                match self.reader.value()? {
                    "null" => continue,
                    _ => return Err(self.reader.malformed().into()),
                }
            }
            return match key {
                Cow::Borrowed(key) => {
                    seed.deserialize(de::value::BorrowedStrDeserializer::new(key)).map(Some)
                }
                Cow::Owned(key) => {
                    let key: StringDeserializer<Failed> = key.into_deserializer();
                    seed.deserialize(key).map(Some)
                }
            };
        }
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, Failed> {
        seed.deserialize(Next { reader: self.reader, depth: self.depth })
    }
}

impl<'a> SeqAccess<'a> for &mut Inside<'_, 'a> {
    type Error = Failed;

    fn next_element_seed<T: DeserializeSeed<'a>>(&mut self, seed: T) -> Result<Option<T::Value>, Failed> {
        if self.depth > 0 && self.reader.element() {
            return seed.deserialize(Next { reader: self.reader, depth: self.depth }).map(Some);
        }
        self.depth = 0;
        Ok(None)
    }
}
