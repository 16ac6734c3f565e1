//! JSON bodies: one pass into a `Value`, noting duplicate keys with their paths.
//!
//! Invariants: of duplicate keys the last wins, as in Go; nesting is bounded; bytes that are no UTF-8 become U+FFFD, as in
//! Go; error texts are Go's.

use super::gojson;
use kaji_meta::text;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value, map::Entry};
use std::{borrow::Cow, cell::RefCell, fmt};

/// At most so many strictness errors are kept for one body.
pub(crate) const MAX_STRICT_ERRORS: usize = 100;

/// A parsed body.
#[derive(Debug, PartialEq)]
pub(crate) struct Parsed {
    /// The document.
    pub value: Value,
    /// One text for each duplicate key: `duplicate field "metadata.name"`.
    pub duplicates: Vec<String>,
}

/// Parses a whole JSON document.
///
/// # Errors
/// Go's text for what is wrong with it.
pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed, String> {
    // Checked as a whole: of bytes, each string would be checked by itself.
    let text = std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
    parse_valid(&text).map_err(|e| explain(text.as_bytes(), &e))
}

/// Go's text for what is wrong with a document.
pub(super) fn explain(bytes: &[u8], error: &serde_json::Error) -> String {
    if error.to_string().starts_with("recursion limit exceeded") {
        return "exceeded max depth".into();
    }
    gojson::explain(bytes).unwrap_or_else(|| error.to_string())
}

fn parse_valid(text: &str) -> Result<Parsed, serde_json::Error> {
    let duplicates = RefCell::new(vec![]);
    let mut de = serde_json::Deserializer::from_str(text);
    let value = Node { at: None, duplicates: &duplicates }.deserialize(&mut de)?;
    de.end()?;
    Ok(Parsed { value, duplicates: duplicates.into_inner() })
}

/// Where a value is: a list on the stack, only turned into text when a duplicate is found.
#[derive(Clone, Copy)]
pub(super) enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

pub(super) struct Link<'a> {
    pub parent: Option<&'a Link<'a>>,
    pub step: Step<'a>,
}

impl Link<'_> {
    pub fn write(&self, out: &mut String) {
        if let Some(parent) = self.parent {
            parent.write(out);
        }
        match self.step {
            Step::Key(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(key);
            }
            Step::Index(i) => {
                out.push('[');
                out.push_str(itoa::Buffer::new().format(i));
                out.push(']');
            }
        }
    }
}

struct Node<'a> {
    at: Option<&'a Link<'a>>,
    duplicates: &'a RefCell<Vec<String>>,
}

impl Node<'_> {
    /// Notes that an object has a key twice.
    fn duplicate(&self, key: &str) {
        let mut path = String::new();
        Link { parent: self.at, step: Step::Key(key) }.write(&mut path);
        let text = format!("duplicate field {}", text::quote(&path));
        let mut list = self.duplicates.borrow_mut();
        if list.len() < MAX_STRICT_ERRORS && !list.contains(&text) {
            list.push(text);
        }
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<Value, D::Error> {
        de.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = vec![];
        loop {
            let link = Link { parent: self.at, step: Step::Index(list.len()) };
            match seq.next_element_seed(Node { at: Some(&link), duplicates: self.duplicates })? {
                Some(v) => list.push(v),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let link = Link { parent: self.at, step: Step::Key(&key) };
            let value = access.next_value_seed(Node { at: Some(&link), duplicates: self.duplicates })?;
            match map.entry(key) {
                Entry::Vacant(free) => drop(free.insert(value)),
                Entry::Occupied(mut known) => {
                    self.duplicate(known.key());
                    known.insert(value);
                }
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn duplicates_have_paths() {
        let parsed = parse(br#"{"a":1,"m":{"n":1,"n":2},"l":[{"x":1},{"x":1,"x":2,"x":3}],"a":2}"#).unwrap();
        assert_eq!(parsed.value, json!({"a":2,"m":{"n":2},"l":[{"x":1},{"x":3}]}));
        assert_eq!(
            parsed.duplicates,
            [r#"duplicate field "m.n""#, r#"duplicate field "l[1].x""#, r#"duplicate field "a""#]
        );
    }

    #[test]
    fn errors_are_gos() {
        assert_eq!(parse(b"{").unwrap_err(), "unexpected end of JSON input");
        assert_eq!(parse(b"{}x").unwrap_err(), "invalid character 'x' after top-level value");
        assert_eq!(parse("[".repeat(5000).as_bytes()).unwrap_err(), "exceeded max depth");
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        assert_eq!(parse(b"{\"a\":\"x\xff\"}").unwrap().value, json!({"a": "x\u{fffd}"}));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<i32>().prop_map(|n| Value::from(f64::from(n) / 4.0)),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("[a-d]{1,2}", inner, 0..5)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn reads_what_serde_writes(value in any_json()) {
            let parsed = parse(value.to_string().as_bytes()).unwrap();
            prop_assert_eq!(parsed.value, value);
            prop_assert!(parsed.duplicates.is_empty());
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
        }
    }
}
