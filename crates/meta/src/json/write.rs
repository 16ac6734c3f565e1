//! JSON text of values.

use serde_json::Value;

/// Whether a string is written as it is.
fn plain(text: &[u8]) -> bool {
    let special = |b: &u8| (*b < b' ') | (*b == b'"') | (*b == b'\\');
    let mut chunks = text.chunks_exact(16);
    // Without a branch for each byte, so that it compiles to vector instructions.
    chunks.all(|chunk| !chunk.iter().fold(false, |found, b| found | special(b)))
        && !chunks.remainder().iter().any(special)
}

/// Appends a string in quotes.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    if plain(text.as_bytes()) {
        out.reserve(text.len() + 2);
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        escaped(out, text);
    }
}

/// Writing text into memory does not fail.
fn escaped(out: &mut Vec<u8>, value: impl serde::Serialize) {
    let done = serde_json::to_writer(out, &value);
    debug_assert!(done.is_ok(), "{done:?}");
}

/// Appends a value, compact and with keys in their order.
pub fn write(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(n) => escaped(out, n),
        Value::String(text) => write_string(out, text),
        Value::Array(list) => {
            out.push(b'[');
            for (i, item) in list.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write(out, item);
            }
            out.push(b']');
        }
        Value::Object(map) => {
            out.push(b'{');
            for (i, (key, item)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_string(out, key);
                out.push(b':');
                write(out, item);
            }
            out.push(b'}');
        }
    }
}
