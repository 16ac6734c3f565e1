//! JSON for people: two spaces a level, as Go's `MarshalIndent`; and YAML.

use serde_json::{Map, Value};
use std::fmt::Write;

/// Indents JSON without decoding it.
pub fn indent(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 3 / 2);
    Indenter::default().push(json, &mut out);
    out
}

/// Indents JSON that comes in pieces, cut anywhere.
#[derive(Default)]
pub(super) struct Indenter {
    depth: usize,
    /// A map or a list was opened, and what is in it, if anything, is still to come.
    opened: bool,
    in_text: bool,
    escaped: bool,
}

impl Indenter {
    /// Indents the next piece.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        for &b in piece {
            if self.in_text {
                out.push(b);
                self.in_text = self.escaped || b != b'"';
                self.escaped = !self.escaped && b == b'\\';
            } else if !b.is_ascii_whitespace() {
                self.outside(b, out);
            }
        }
    }

    fn outside(&mut self, b: u8, out: &mut Vec<u8>) {
        let closes = matches!(b, b'}' | b']');
        match std::mem::take(&mut self.opened) {
            true if closes => return out.push(b),
            true => {
                self.depth += 1;
                self.line(out);
            }
            false if closes => {
                self.depth = self.depth.saturating_sub(1);
                self.line(out);
            }
            false => {}
        }
        out.push(b);
        match b {
            b'"' => self.in_text = true,
            b'{' | b'[' => self.opened = true,
            b',' => self.line(out),
            b':' => out.push(b' '),
            _ => {}
        }
    }

    fn line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.resize(out.len() + self.depth * 2, b' ');
    }
}

/// The entries of a map as YAML, and the beginning of the list that its elements are written to by [`yaml_element`].
/// `(before, after)`: what surrounds the elements. `None`: the map has no such list.
pub(super) fn yaml_around(map: &Map<String, Value>, list: &str) -> Option<(String, String)> {
    map.get(list)?;
    let part = |keep: &dyn Fn(&str) -> bool| {
        let some = map.iter().filter(|(k, _)| keep(k)).map(|(k, v)| (k.clone(), v.clone()));
        let mut out = String::new();
        yaml_map(&mut out, &some.collect(), 0, false);
        out
    };
    Some((part(&|key| key < list) + list + ":\n", part(&|key| key > list)))
}

/// An element of a list at the top of a document.
pub(super) fn yaml_element(value: Value) -> String {
    let mut out = String::new();
    yaml_list(&mut out, &[value], 0);
    out
}

/// A value as a YAML document, keys in order.
pub fn yaml(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => yaml_map(&mut out, map, 0, false),
        Value::Array(list) if !list.is_empty() => yaml_list(&mut out, list, 0),
        other => {
            yaml_scalar(&mut out, other);
            out.push('\n');
        }
    }
    out
}

fn spaces(out: &mut String, n: usize) {
    out.extend(std::iter::repeat_n(' ', n));
}

/// Writes the entries of a map; `inline` when the cursor is already where the first key goes.
fn yaml_map(out: &mut String, map: &Map<String, Value>, depth: usize, mut inline: bool) {
    for (key, value) in map {
        if !std::mem::take(&mut inline) {
            spaces(out, depth);
        }
        yaml_string(out, key);
        out.push(':');
        yaml_value(out, value, depth);
    }
}

fn yaml_value(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            yaml_map(out, map, depth + 2, false);
        }
        // As Go's encoder does, lists are not indented under their key.
        Value::Array(list) if !list.is_empty() => {
            out.push('\n');
            yaml_list(out, list, depth);
        }
        other => {
            out.push(' ');
            yaml_scalar(out, other);
            out.push('\n');
        }
    }
}

fn yaml_list(out: &mut String, list: &[Value], depth: usize) {
    for item in list {
        spaces(out, depth);
        out.push('-');
        match item {
            Value::Object(map) if !map.is_empty() => {
                out.push(' ');
                yaml_map(out, map, depth + 2, true);
            }
            other => yaml_value(out, other, depth + 2),
        }
    }
}

fn yaml_scalar(out: &mut String, value: &Value) {
    match value {
        Value::String(s) => yaml_string(out, s),
        // Empty lists and maps, numbers, booleans and null are JSON.
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

/// A string, quoted (as JSON, which YAML's double quotes include) unless nothing could take it for anything else.
fn yaml_string(out: &mut String, s: &str) {
    let plain_first = |b: u8| b.is_ascii_alphabetic() || matches!(b, b'/' | b'_');
    let plain_rest = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'_' | b'-' | b'.');
    let word = matches!(
        s.to_ascii_lowercase().as_str(),
        "y" | "n" | "yes" | "no" | "on" | "off" | "true" | "false" | "null"
    );
    let plain = s.bytes().next().is_some_and(plain_first) && s.bytes().all(plain_rest) && !word;
    if plain {
        out.push_str(s);
    } else {
        let _ = write!(out, "{}", Value::from(s));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn indented() {
        let json = br#"{"a":[1,{"b":"x, \"y\": {"}],"c":{},"d":[],"e":null}"#;
        expect![[r#"
            {
              "a": [
                1,
                {
                  "b": "x, \"y\": {"
                }
              ],
              "c": {},
              "d": [],
              "e": null
            }"#]]
        .assert_eq(std::str::from_utf8(&indent(json)).unwrap());
    }

    #[test]
    fn yaml_text() {
        let v = json!({"a": {"b": [1, "yes", {"c": "d", "e": []}, ["x"]]}, "k": "two\nlines", "n": null, "v": "1.20"});
        expect![[r#"
            a:
              b:
              - 1
              - "yes"
              - c: d
                e: []
              -
                - x
            k: "two\nlines"
            "n": null
            v: "1.20"
        "#]]
        .assert_eq(&yaml(&v));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z0-9 :#\"'\\-\\n{}\\[\\],]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z:\" ]{0,4}", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn indenting_keeps_the_value(v in value()) {
            let out = indent(v.to_string().as_bytes());
            prop_assert_eq!(&out, &serde_json::to_vec_pretty(&v).unwrap());
        }

        #[test]
        fn pieces_are_indented_as_the_whole_is(v in value(), size in 1..7_usize) {
            let (mut indenter, mut out) = (Indenter::default(), vec![]);
            v.to_string().as_bytes().chunks(size).for_each(|piece| indenter.push(piece, &mut out));
            prop_assert_eq!(&out, &serde_json::to_vec_pretty(&v).unwrap());
        }

        #[test]
        fn yaml_reads_back(v in value()) {
            let back: Value = serde_saphyr::from_str(&yaml(&v)).unwrap();
            prop_assert_eq!(back, v);
        }
    }
}
