//! JSON for people: two spaces a level, as Go's `MarshalIndent`; and YAML.

use serde_json::{Map, Value};
use std::fmt::Write;

/// Indents JSON without decoding it.
pub(super) fn indent(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 3 / 2);
    let mut depth = 0_usize;
    let mut bytes = json.iter().copied().filter(|b| !b.is_ascii_whitespace() || *b == b' ').peekable();
    let line = |out: &mut Vec<u8>, depth: usize| {
        out.push(b'\n');
        out.resize(out.len() + depth * 2, b' ');
    };
    while let Some(b) = bytes.next() {
        match b {
            b'"' => {
                out.push(b);
                while let Some(c) = bytes.next() {
                    out.push(c);
                    match c {
                        b'\\' => out.extend(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            b'{' | b'[' => {
                out.push(b);
                match bytes.peek() {
                    Some(end @ (b'}' | b']')) => {
                        out.push(*end);
                        bytes.next();
                    }
                    _ => {
                        depth += 1;
                        line(&mut out, depth);
                    }
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(b);
            }
            b',' => {
                out.push(b);
                line(&mut out, depth);
            }
            b':' => out.extend_from_slice(b": "),
            b' ' => {}
            other => out.push(other),
        }
    }
    out
}

/// A value as a YAML document, keys in order.
pub(super) fn yaml(value: &Value) -> String {
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
        fn yaml_reads_back(v in value()) {
            let back: Value = serde_saphyr::from_str(&yaml(&v)).unwrap();
            prop_assert_eq!(back, v);
        }
    }
}
