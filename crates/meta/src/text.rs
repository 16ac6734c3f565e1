//! Values rendered as upstream's messages render them: quoted strings (`%q`), floats, whole values (`%v`), types (`%T`) and
//! compact JSON with the three HTML characters escaped; and PEM.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;
use std::fmt::Write as _;

/// Whether a character shows itself: letters, marks, numbers, punctuation, symbols and the ASCII space.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    // Behind another character, str::escape_debug leaves combining marks alone and escapes exactly what is unprintable.
    let mut buf = [b'a'; 5];
    let len = c.encode_utf8(&mut buf[1..]).len();
    std::str::from_utf8(&buf[..=len]).is_ok_and(|s| s.escape_debug().count() == 2)
}

/// Go's `%T` of a decoded JSON value.
pub fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// The bytes of a hexadecimal text, in either case; `None` for anything but pairs of digits.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

/// A PEM block: `CERTIFICATE` and its like, in lines of 64 characters.
pub fn pem(label: &str, der: &[u8]) -> String {
    let encoded = BASE64_STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = more;
    }
    out + &format!("-----END {label}-----\n")
}

/// The path of a URL without `.`, `..` and empty steps, as Go's `path.Join` leaves it, but with the slash at its end. It never leads
/// out of what it is appended to.
pub fn clean_path(path: &str) -> String {
    let mut steps: Vec<&str> = vec![];
    for step in path.split('/') {
        match step {
            "" | "." => {}
            ".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    let end = if path.ends_with('/') && !steps.is_empty() { "/" } else { "" };
    format!("/{}{end}", steps.join("/"))
}

/// A string in double quotes with Go's escapes, as `%q` prints it.
pub fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if is_printable(c) => out.push(c),
            c if c.is_ascii() => drop(write!(out, "\\x{:02x}", c as u32)),
            c if (c as u32) < 0x10000 => drop(write!(out, "\\u{:04x}", c as u32)),
            c => drop(write!(out, "\\U{:08x}", c as u32)),
        }
    }
    out.push('"');
    out
}

/// A list of strings as `%#v` prints a string slice: `[]string{"a", "b"}`.
pub fn string_slice<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = items.into_iter().map(quote).collect();
    format!("[]string{{{}}}", quoted.join(", "))
}

/// Go's `%v` of a decoded JSON value; maps are sorted by key.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => match n.as_f64().filter(|_| n.is_f64()) {
            // `%g`: the exponent form begins at a million.
            Some(f) if f.abs() >= 1e6 => exponent(f),
            Some(f) => float(f),
            None => n.to_string(),
        },
        Value::String(s) => s.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(plain).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let mut members: Vec<_> = map.iter().collect();
            members.sort_by_key(|(key, _)| *key);
            let members: Vec<_> = members.iter().map(|(k, v)| format!("{k}:{}", plain(v))).collect();
            format!("map[{}]", members.join(" "))
        }
    }
}

/// A finite float as `%e` prints it with the fewest digits.
fn exponent(f: f64) -> String {
    let s = format!("{f:e}");
    let (mantissa, exponent) = s.split_once('e').unwrap_or((&s, "0"));
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |d| ('-', d));
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// A float with the fewest digits, in exponent form below 1e-4 and from 1e21 on.
pub fn float(f: f64) -> String {
    if f.is_nan() {
        return "NaN".to_owned();
    }
    if f.is_infinite() {
        return if f > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let abs = f.abs();
    if abs != 0.0 && !(1e-4..1e21).contains(&abs) {
        return exponent(f);
    }
    format!("{f}")
}

/// Compact JSON with `<`, `>`, `&` and the two Unicode line separators escaped, as Go's encoder writes it.
pub fn json(value: &Value) -> String {
    let plain = value.to_string();
    if !plain.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return plain;
    }
    // These characters can only be inside strings, so escaping them in the whole text is safe.
    let mut out = String::with_capacity(plain.len() + 16);
    for c in plain.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => drop(write!(out, "\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn prints_types_and_pem() {
        let all = serde_json::json!([null, true, 1, 1.5, "", [], {}]);
        let types: Vec<_> = all.as_array().unwrap().iter().map(go_type).collect();
        let wanted =
            ["<nil>", "bool", "int64", "float64", "string", "[]interface {}", "map[string]interface {}"];
        assert_eq!(types, wanted);
        assert_eq!(pem("X", b""), "-----BEGIN X-----\n-----END X-----\n");
        let full = "A".repeat(64);
        assert_eq!(pem("X", &[0; 49]), format!("-----BEGIN X-----\n{full}\nAA==\n-----END X-----\n"));
    }

    #[test]
    fn reads_the_hexadecimal_text_that_it_writes() {
        let bytes = [0x00, 0x0f, 0xa9, 0xff];
        assert_eq!(hex(&bytes), "000fa9ff");
        assert_eq!(from_hex("000fA9ff").as_deref(), Some(&bytes[..]));
        assert_eq!(from_hex("").as_deref(), Some(&[][..]));
        for wrong in ["0", "000", "0g", "+1", "0 ", "ä0"] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn cleaned_paths_do_not_lead_out() {
        let paths = ["", "/", "a", "/a/b/", "//a/./b//", "/a/../..//b", "/..", "/a/../", "/.../x"];
        assert_eq!(paths.map(clean_path), ["/", "/", "/a", "/a/b/", "/a/b/", "/b", "/", "/", "/.../x"]);
        proptest::proptest!(|(path in "[a./]{0,12}")| {
            let made = clean_path(&path);
            proptest::prop_assert!(made.starts_with('/') && !made.contains("//"));
            proptest::prop_assert!(made.split('/').all(|step| step != ".." && step != "."));
            proptest::prop_assert_eq!(clean_path(&made), made);
        });
    }

    #[test]
    fn quotes_like_go() {
        assert_eq!(quote("a\"b\\\n\u{1}\u{7f}"), r#""a\"b\\\n\x01\x7f""#);
        assert_eq!(quote("é\u{a0}\u{200b}😀e\u{301}"), "\"é\\u00a0\\u200b😀e\u{301}\"");
        assert_eq!(quote("\u{e0001}"), "\"\\U000e0001\"");
        assert_eq!(string_slice(["a", "b"]), r#"[]string{"a", "b"}"#);
    }

    #[test]
    fn floats_like_go() {
        for (f, want) in [(1.5, "1.5"), (100.0, "100"), (1e21, "1e+21"), (1e20, "100000000000000000000")] {
            assert_eq!(float(f), want);
        }
        assert_eq!(float(0.00001), "1e-05");
        assert_eq!(float(-0.0001), "-0.0001");
        assert_eq!(float(0.0), "0");
    }

    #[test]
    fn whole_values_like_go() {
        let value = json!({"b": [1, 1.5, "x", null, true], "a": {"c": 123456789.0, "d": 1e5, "e": -1e6}});
        assert_eq!(plain(&value), "map[a:map[c:1.23456789e+08 d:100000 e:-1e+06] b:[1 1.5 x <nil> true]]");
    }

    #[test]
    fn json_escapes_html() {
        assert_eq!(super::json(&json!({"a": ["<b>&", 1]})), r#"{"a":["\u003cb\u003e\u0026",1]}"#);
    }
}
