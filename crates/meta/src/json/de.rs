//! Decoding through serde, with unwanted fields passed over at the speed of [`Reader`].

use super::{Malformed, Reader};
use serde::de::{
    self, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
    value::{StrDeserializer, StringDeserializer},
};
use serde::{Deserialize, forward_to_deserialize_any};
use std::{borrow::Cow, fmt};

/// Values nested deeper are left to `serde_json`, which refuses them.
const MAX_DEPTH: u8 = 120;

/// Decodes a whole document. Whatever this reader cannot make sense of, `serde_json` judges.
///
/// # Errors
/// Those of `serde_json`.
pub fn from_slice<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, serde_json::Error> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let mut reader = Reader::new(text);
        if let Ok(value) = T::deserialize(Next { reader: &mut reader, depth: 0 })
            && reader.peek().is_none()
        {
            return Ok(value);
        }
    }
    serde_json::from_slice(bytes)
}

/// Something went wrong; `serde_json` will say what.
#[derive(Debug)]
struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed")
    }
}

impl std::error::Error for Failed {}

impl de::Error for Failed {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Failed
    }
}

impl From<Malformed> for Failed {
    fn from(_: Malformed) -> Self {
        Failed
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
            Err(Failed)
        } else {
            Ok(Inside { reader: self.reader, depth: self.depth + 1 })
        }
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
                _ => match serde_json::from_str::<serde_json::Number>(text) {
                    Ok(n) => n.deserialize_any(visitor).map_err(|_| Failed),
                    Err(_) => Err(Failed),
                },
            },
        }
    }
}

impl<'a> Deserializer<'a> for Next<'_, 'a> {
    type Error = Failed;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        match self.reader.peek() {
            Some(b'"') => self.string(visitor),
            Some(b'{') => {
                self.reader.take(b'{');
                let mut inside = self.deeper()?;
                let value = visitor.visit_map(&mut inside)?;
                // A visitor may stop early; what it left out is not its object's end.
                if inside.ended() { Ok(value) } else { Err(Failed) }
            }
            Some(b'[') => {
                self.reader.take(b'[');
                let mut inside = self.deeper()?;
                let value = visitor.visit_seq(&mut inside)?;
                if inside.ended() { Ok(value) } else { Err(Failed) }
            }
            _ => self.scalar(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Failed> {
        if self.reader.peek() == Some(b'n') {
            return if self.reader.value()? == "null" { visitor.visit_none() } else { Err(Failed) };
        }
        visitor.visit_some(self)
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
        // Only names; variants with contents are serde_json's.
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
        tuple_struct map struct identifier
    }
}

/// Inside an object or a list, after its opening bracket.
struct Inside<'r, 'a> {
    reader: &'r mut Reader<'a>,
    /// 0 once its end was read.
    depth: u8,
}

impl Inside<'_, '_> {
    fn ended(&self) -> bool {
        self.depth == 0
    }
}

impl<'a> MapAccess<'a> for &mut Inside<'_, 'a> {
    type Error = Failed;

    fn next_key_seed<K: DeserializeSeed<'a>>(&mut self, seed: K) -> Result<Option<K::Value>, Failed> {
        match self.reader.key()? {
            None => {
                self.depth = 0;
                Ok(None)
            }
            Some(Cow::Borrowed(key)) => {
                seed.deserialize(de::value::BorrowedStrDeserializer::new(key)).map(Some)
            }
            Some(Cow::Owned(key)) => {
                let key: StringDeserializer<Failed> = key.into_deserializer();
                seed.deserialize(key).map(Some)
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, Failed> {
        seed.deserialize(Next { reader: self.reader, depth: self.depth })
    }
}

impl<'a> SeqAccess<'a> for &mut Inside<'_, 'a> {
    type Error = Failed;

    fn next_element_seed<T: DeserializeSeed<'a>>(&mut self, seed: T) -> Result<Option<T::Value>, Failed> {
        if self.reader.element() {
            return seed.deserialize(Next { reader: self.reader, depth: self.depth }).map(Some);
        }
        self.depth = 0;
        Ok(None)
    }
}
