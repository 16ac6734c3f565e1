//! JSON text of values, as Go's encoder writes it.

use serde_json::{Number, Value};

/// Bytes that are not written as they are. 0xE2 begins the line and paragraph separators.
fn special(b: u8) -> bool {
    (b < b' ') | (b == b'"') | (b == b'\\') | (b == b'<') | (b == b'>') | (b == b'&') | (b == 0xe2)
}

/// Without a branch for each byte, so that it compiles to vector instructions.
fn plain_block(block: &[u8; 16]) -> bool {
    !block.iter().fold(false, |found, b| found | special(*b))
}

/// Whether a string is written as it is. The last bytes are looked at in a block that overlaps the one before it.
fn plain(text: &[u8]) -> bool {
    if let Some(last) = text.last_chunk::<16>() {
        let (blocks, _) = text.as_chunks::<16>();
        return blocks.iter().all(plain_block) && plain_block(last);
    }
    let mut block = [b'a'; 16];
    if let (Some(first), Some(last)) = (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        block[..8].copy_from_slice(first);
        block[8..].copy_from_slice(last);
    } else if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        block[..4].copy_from_slice(first);
        block[4..8].copy_from_slice(last);
    } else {
        return !text.iter().any(|b| special(*b));
    }
    plain_block(&block)
}

/// Appends a string of letters and digits, or other text without bytes that JSON or HTML escape, in quotes.
pub fn write_plain(out: &mut Vec<u8>, text: &str) {
    debug_assert!(plain(text.as_bytes()), "{text} has bytes to escape");
    out.reserve(text.len() + 2);
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// Appends a string in quotes, with the escapes that Go's encoder makes: of what HTML or JavaScript would take for its
/// own, too.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    if plain(text.as_bytes()) {
        out.extend_from_slice(text.as_bytes());
    } else {
        escaped(out, text);
    }
    out.push(b'"');
}

fn escaped(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bytes = text.as_bytes();
    let mut from = 0;
    for (at, byte) in bytes.iter().enumerate() {
        let separator = |last| bytes.get(at..at + 3) == Some(&[0xe2, 0x80, last]);
        let mut unicode = *b"\\u0000";
        let (escape, length): (&[u8], usize) = match byte {
            b'"' => (b"\\\"", 1),
            b'\\' => (b"\\\\", 1),
            b'\n' => (b"\\n", 1),
            b'\r' => (b"\\r", 1),
            b'\t' => (b"\\t", 1),
            0x08 => (b"\\b", 1),
            0x0c => (b"\\f", 1),
            0..0x20 | b'<' | b'>' | b'&' => {
                unicode[4] = HEX[usize::from(byte >> 4)];
                unicode[5] = HEX[usize::from(byte & 15)];
                (&unicode, 1)
            }
            0xe2 if separator(0xa8) => (b"\\u2028", 3),
            0xe2 if separator(0xa9) => (b"\\u2029", 3),
            _ => continue,
        };
        out.extend_from_slice(&bytes[from..at]);
        out.extend_from_slice(escape);
        from = at + length;
    }
    out.extend_from_slice(&bytes[from..]);
}

/// Appends a number as Go's encoder does: without a fraction where there is none, with an exponent only below 1e-6 and
/// from 1e21 on.
fn write_number(out: &mut Vec<u8>, number: &Number) {
    let mut buffer = itoa::Buffer::new();
    if let Some(n) = number.as_i64() {
        return out.extend_from_slice(buffer.format(n).as_bytes());
    }
    if let Some(n) = number.as_u64() {
        return out.extend_from_slice(buffer.format(n).as_bytes());
    }
    // JSON has no numbers that are not finite.
    let n = number.as_f64().unwrap_or_default();
    let size = n.abs();
    let text = if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{n:e}");
        if size < 1.0 { text } else { text.replacen('e', "e+", 1) }
    } else {
        n.to_string()
    };
    out.extend_from_slice(text.as_bytes());
}

/// Appends a value, compact and with keys in their order.
pub fn write(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(n) => write_number(out, n),
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
