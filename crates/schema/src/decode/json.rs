//! JSON into values, with duplicate keys noticed. `serde_json` alone keeps the last of two equal keys in silence, where
//! the API must warn or refuse.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::at::At;

/// More duplicates than this are not reported.
const REPORT_LIMIT: usize = 100;

/// Floats beyond this may not be exact integers.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// A parsed document.
#[derive(Debug, PartialEq)]
pub struct Parsed {
    /// The value; of equal keys the last one counts.
    pub value: Value,
    /// Paths of keys that occurred more than once: "spec.replicas".
    pub duplicates: Vec<String>,
}

/// Parses one JSON document. Whole numbers become integers however they are written (`3.0`), as Go writes them back.
/// Nesting is limited to 128 levels.
pub fn parse(text: &[u8]) -> Result<Parsed, serde_json::Error> {
    let mut duplicates = Vec::new();
    let mut de = serde_json::Deserializer::from_slice(text);
    let value = Seed { at: &At::ROOT, duplicates: &mut duplicates }.deserialize(&mut de)?;
    de.end()?;
    Ok(Parsed { value, duplicates })
}

struct Seed<'a> {
    at: &'a At<'a>,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
        if v.fract() == 0.0 && v.abs() < EXACT {
            #[allow(clippy::cast_possible_truncation)]
            return Ok((v as i64).into());
        }
        Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let at = self.at.index(list.len());
            match seq.next_element_seed(Seed { at: &at, duplicates: self.duplicates })? {
                Some(v) => list.push(v),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let at = self.at.field(&key);
            let value = map.next_value_seed(Seed { at: &at, duplicates: self.duplicates })?;
            if out.contains_key(&key) && self.duplicates.len() < REPORT_LIMIT {
                let path = at.to_string();
                if !self.duplicates.contains(&path) {
                    self.duplicates.push(path);
                }
            }
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_duplicate_keys() {
        let p = parse(br#"{"a": 1, "b": [{"c": 1, "c": 2.0, "c": 1.5}], "a": null}"#).unwrap();
        assert_eq!(p.duplicates, ["b[0].c", "a"]);
        assert_eq!(p.value.to_string(), r#"{"a":null,"b":[{"c":1.5}]}"#);
        assert!(parse(b"{} x").is_err());
        assert!(parse(&b"[".repeat(100_000)).is_err());
        assert_eq!(
            parse(b"[1e2, 18446744073709551615, -3]").unwrap().value.to_string(),
            "[100,18446744073709551615,-3]"
        );
    }
}
