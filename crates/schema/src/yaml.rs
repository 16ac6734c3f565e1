//! YAML documents: keys in order, lists not indented under theirs, as Go's encoder writes them.
//!
//! Invariants: what is written reads back as the same value; a list that is written element by element, between what
//! [`around`] gives, is the document that [`document`] writes of the whole.

use serde_json::{Map, Value};
use std::fmt::Write;

/// The entries of a map as YAML, and the beginning of the list that its elements are written to by [`element`].
/// `(before, after)`: what surrounds the elements. `None`: the map has no such list.
pub fn around(map: &Map<String, Value>, list: &str) -> Option<(String, String)> {
    map.get(list)?;
    let part = |keep: &dyn Fn(&str) -> bool| {
        let some = map.iter().filter(|(k, _)| keep(k)).map(|(k, v)| (k.clone(), v.clone()));
        let mut out = String::new();
        write_map(&mut out, &some.collect(), 0, false);
        out
    };
    Some((part(&|key| key < list) + list + ":\n", part(&|key| key > list)))
}

/// An element of a list at the top of a document.
pub fn element(value: Value) -> String {
    let mut out = String::new();
    write_list(&mut out, &[value], 0);
    out
}

/// A value as a YAML document.
pub fn document(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => write_map(&mut out, map, 0, false),
        Value::Array(list) if !list.is_empty() => write_list(&mut out, list, 0),
        other => {
            write_scalar(&mut out, other);
            out.push('\n');
        }
    }
    out
}

fn spaces(out: &mut String, n: usize) {
    out.extend(std::iter::repeat_n(' ', n));
}

/// Writes the entries of a map; `inline` when the cursor is already where the first key goes.
fn write_map(out: &mut String, map: &Map<String, Value>, depth: usize, mut inline: bool) {
    for (key, value) in map {
        if !std::mem::take(&mut inline) {
            spaces(out, depth);
        }
        write_string(out, key);
        out.push(':');
        write_value(out, value, depth);
    }
}

fn write_value(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            write_map(out, map, depth + 2, false);
        }
        // As Go's encoder does, lists are not indented under their key.
        Value::Array(list) if !list.is_empty() => {
            out.push('\n');
            write_list(out, list, depth);
        }
        other => {
            out.push(' ');
            write_scalar(out, other);
            out.push('\n');
        }
    }
}

fn write_list(out: &mut String, list: &[Value], depth: usize) {
    for item in list {
        spaces(out, depth);
        out.push('-');
        match item {
            Value::Object(map) if !map.is_empty() => {
                out.push(' ');
                write_map(out, map, depth + 2, true);
            }
            other => write_value(out, other, depth + 2),
        }
    }
}

fn write_scalar(out: &mut String, value: &Value) {
    match value {
        Value::String(s) => write_string(out, s),
        // Empty lists and maps, numbers, booleans and null are JSON.
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

/// A string, quoted (as JSON, which YAML's double quotes include) unless nothing could take it for anything else.
fn write_string(out: &mut String, s: &str) {
    let first = |b: u8| b.is_ascii_alphabetic() || matches!(b, b'/' | b'_');
    let word = matches!(
        s.to_ascii_lowercase().as_str(),
        "y" | "n" | "yes" | "no" | "on" | "off" | "true" | "false" | "null"
    );
    let printable = s.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
    let ends = s.ends_with([' ', ':']) || s.contains(": ") || s.contains(" #");
    if s.bytes().next().is_some_and(first) && printable && !ends && !word {
        out.push_str(s);
    } else {
        let _ = write!(out, "{}", Value::from(s));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use kaji_testing::json::values;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn writes_block_style() {
        let v = json!({"a": {"b": [1, "yes", {"c": "d", "e": []}, ["x"]]}, "k": "two\nlines", "n": null, "r": "self.a != 'x'", "s": "a: b", "v": "1.20"});
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
            r: self.a != 'x'
            s: "a: b"
            v: "1.20"
        "#]]
        .assert_eq(&document(&v));
    }

    proptest! {
        #[test]
        fn documents_read_back(v in values()) {
            let back: Value = serde_saphyr::from_str(&document(&v)).unwrap();
            prop_assert_eq!(back, v);
        }

        #[test]
        fn strings_read_back(s in "[a-zA-Z/_][ -~]{0,12}") {
            let back: Value = serde_saphyr::from_str(&document(&json!({s.as_str(): [s.as_str()]}))).unwrap();
            prop_assert_eq!(back, json!({s.as_str(): [s]}));
        }

        #[test]
        fn a_list_in_pieces_is_the_whole(items in prop::collection::vec(values(), 1..4)) {
            let list = |items: &[Value]| json!({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {}});
            let empty = list(&[]);
            let (before, after) = around(empty.as_object().unwrap(), "items").unwrap();
            let elements: String = items.iter().cloned().map(element).collect();
            prop_assert_eq!(before + &elements + &after, document(&list(&items)));
        }
    }
}
