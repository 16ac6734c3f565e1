//! Decoding through serde, with unwanted fields passed over at the speed of [`Reader`].

use super::{Malformed, Reader};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
    value::{MapAccessDeserializer, StrDeserializer},
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
///
/// What depends on a visitor is compiled once for each type, hundreds of times: it holds calls of the visitor and nothing else, and only
/// those that the type asks for. A text is not offered to a struct, nor a list, which Go's decoder does not take for one either.
struct Next<'r, 'a> {
    reader: &'r mut Reader<'a>,
    depth: u8,
}

impl<'r, 'a> Next<'r, 'a> {
    fn begins_with(&mut self, bracket: u8) -> bool {
        self.reader.peek() == Some(bracket)
    }

    /// Into an object or a list, whichever begins with `bracket`.
    fn enter(
        mut self,
        bracket: u8,
        skips_nulls: bool,
        expected: &dyn de::Expected,
    ) -> Result<Inside<'r, 'a>, Failed> {
        if !self.begins_with(bracket) {
            return Err(self.mismatch(expected));
        }
        self.reader.take(bracket);
        if self.depth >= MAX_DEPTH {
            return Err(Failed("recursion limit exceeded".into()));
        }
        Ok(Inside { reader: self.reader, depth: self.depth + 1, skips_nulls })
    }

    /// A text, or the failure of what is none.
    fn text(mut self, expected: &dyn de::Expected) -> Result<Cow<'a, str>, Failed> {
        if self.begins_with(b'"') { Ok(self.reader.string()?) } else { Err(self.mismatch(expected)) }
    }

    /// A scalar that begins with one of these bytes, or the failure of what does not.
    fn scalar_of(self, first: &[u8], expected: &dyn de::Expected) -> Result<Scalar, Failed> {
        if !self.reader.peek().is_some_and(|byte| first.contains(&byte)) {
            return Err(self.mismatch(expected));
        }
        scalar(self.reader)
    }

    /// The failure of a value that is not what its type expects.
    #[cold]
    fn mismatch(self, expected: &dyn de::Expected) -> Failed {
        let unexpected = match self.reader.peek() {
            Some(b'{') => Unexpected::Map,
            Some(b'[') => Unexpected::Seq,
            Some(b'"') => {
                return match self.reader.string() {
                    Ok(text) => de::Error::invalid_type(Unexpected::Str(&text), expected),
                    Err(malformed) => malformed.into(),
                };
            }
            _ => match scalar(self.reader) {
                Ok(scalar) => scalar.unexpected(),
                Err(failed) => return failed,
            },
        };
        de::Error::invalid_type(unexpected, expected)
    }

    fn object<V: Visitor<'a>>(self, visitor: V, skips_nulls: bool) -> Result<V::Value, Failed> {
        let mut inside = self.enter(b'{', skips_nulls, &visitor)?;
        let value = visitor.visit_map(&mut inside)?;
        inside.end_object()?;
        Ok(value)
    }

    fn list<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        let mut inside = self.enter(b'[', false, &visitor)?;
        let value = visitor.visit_seq(&mut inside)?;
        inside.end_list()?;
        Ok(value)
    }

    fn string<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        match self.text(&visitor)? {
            Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
            Cow::Owned(text) => visitor.visit_string(text),
        }
    }

    fn number<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        match self.scalar_of(b"-0123456789", &visitor)? {
            Scalar::Unsigned(n) => visitor.visit_u64(n),
            Scalar::Signed(n) => visitor.visit_i64(n),
            Scalar::Float(n) => visitor.visit_f64(n),
            other => Err(de::Error::invalid_type(other.unexpected(), &visitor)),
        }
    }
}

/// A value that is no object, list or text; a number as `serde_json` shows it to visitors.
enum Scalar {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
}

impl Scalar {
    fn unexpected(&self) -> Unexpected<'static> {
        match *self {
            Scalar::Null => Unexpected::Unit,
            Scalar::Bool(value) => Unexpected::Bool(value),
            Scalar::Unsigned(n) => Unexpected::Unsigned(n),
            Scalar::Signed(n) => Unexpected::Signed(n),
            Scalar::Float(n) => Unexpected::Float(n),
        }
    }
}

fn scalar(reader: &mut Reader<'_>) -> Result<Scalar, Failed> {
    match reader.value()? {
        "null" => Ok(Scalar::Null),
        "true" => Ok(Scalar::Bool(true)),
        "false" => Ok(Scalar::Bool(false)),
        text => match text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>()) {
            // As in serde_json, a number that is no small integer may be anything.
            Some(Ok(n)) if !text.starts_with('0') || n == 0 && text.len() == 1 => Ok(Scalar::Unsigned(n)),
            _ => number(text),
        },
    }
}

fn number(text: &str) -> Result<Scalar, Failed> {
    let number: serde_json::Number = serde_json::from_str(text).map_err(|e| Failed(e.to_string().into()))?;
    let integer = number.as_u64().map(Scalar::Unsigned).or_else(|| number.as_i64().map(Scalar::Signed));
    let number = integer.or_else(|| number.as_f64().map(Scalar::Float));
    number.ok_or_else(|| Failed(format!("number out of range: {text}").into()))
}

/// Requests of types that take one sort of values, as `serde_json` does it.
macro_rules! forward_to {
    ($method:ident: $($request:ident)*) => {
        $(fn $request<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
            self.$method(visitor)
        })*
    };
}

impl<'a> Deserializer<'a> for Next<'_, 'a> {
    type Error = Failed;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        match self.reader.peek() {
            Some(b'"') => self.string(visitor),
            Some(b'{') => self.object(visitor, false),
            Some(b'[') => self.list(visitor),
            _ => match scalar(self.reader)? {
                Scalar::Null => visitor.visit_unit(),
                Scalar::Bool(value) => visitor.visit_bool(value),
                Scalar::Unsigned(n) => visitor.visit_u64(n),
                Scalar::Signed(n) => visitor.visit_i64(n),
                Scalar::Float(n) => visitor.visit_f64(n),
            },
        }
    }

    fn deserialize_bool<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        match self.scalar_of(b"tf", &visitor)? {
            Scalar::Bool(value) => visitor.visit_bool(value),
            other => Err(de::Error::invalid_type(other.unexpected(), &visitor)),
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
        self.object(visitor, true)
    }

    fn deserialize_map<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        self.object(visitor, false)
    }

    fn deserialize_seq<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        self.list(visitor)
    }

    fn deserialize_tuple<V: Visitor<'a>>(self, _: usize, visitor: V) -> Result<V::Value, Failed> {
        self.list(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failed> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'a>>(
        mut self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failed> {
        if self.begins_with(b'{') {
            let mut inside = self.enter(b'{', false, &visitor)?;
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

    forward_to! { string: deserialize_char deserialize_str deserialize_string deserialize_identifier }
    forward_to! {
        number: deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128 deserialize_u8 deserialize_u16
        deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64
    }
    forward_to_deserialize_any! {
        <V: Visitor<'a>>
        bytes byte_buf unit unit_struct tuple_struct
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

impl<'a> Inside<'_, 'a> {
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

    fn read_key(&mut self) -> Result<Option<Cow<'a, str>>, Failed> {
        while self.depth > 0 {
            let Some(key) = self.reader.key()? else {
                self.depth = 0;
                break;
            };
            if !self.skips_nulls || self.reader.peek() != Some(b'n') {
                return Ok(Some(key));
            }
            if self.reader.value()? != "null" {
                return Err(self.reader.malformed().into());
            }
        }
        Ok(None)
    }

    fn has_element(&mut self) -> bool {
        if self.depth > 0 && !self.reader.element() {
            self.depth = 0;
        }
        self.depth > 0
    }
}

/// The name of a member: a field of a struct, or the key of a map.
struct Name<'a>(Cow<'a, str>);

impl<'a> Deserializer<'a> for Name<'a> {
    type Error = Failed;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        match self.0 {
            Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
            Cow::Owned(text) => visitor.visit_string(text),
        }
    }

    fn deserialize_identifier<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        visitor.visit_str(&self.0)
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
        let name: StrDeserializer<'_, Failed> = (*self.0).into_deserializer();
        visitor.visit_enum(name)
    }

    forward_to_deserialize_any! {
        <V: Visitor<'a>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq tuple
        tuple_struct map struct ignored_any
    }
}

impl<'a> MapAccess<'a> for &mut Inside<'_, 'a> {
    type Error = Failed;

    fn next_key_seed<K: DeserializeSeed<'a>>(&mut self, seed: K) -> Result<Option<K::Value>, Failed> {
        let Some(key) = self.read_key()? else { return Ok(None) };
        seed.deserialize(Name(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, Failed> {
        seed.deserialize(Next { reader: self.reader, depth: self.depth })
    }
}

impl<'a> SeqAccess<'a> for &mut Inside<'_, 'a> {
    type Error = Failed;

    fn next_element_seed<T: DeserializeSeed<'a>>(&mut self, seed: T) -> Result<Option<T::Value>, Failed> {
        if !self.has_element() {
            return Ok(None);
        }
        seed.deserialize(Next { reader: self.reader, depth: self.depth }).map(Some)
    }
}
