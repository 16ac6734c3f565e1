//! Plain YAML scalars as `sigs.k8s.io/yaml` (go-yaml v2) reads them: YAML 1.1 booleans, base prefixes, underscores; no
//! base-60 numbers, and timestamps stay text.

use serde_json::{Number, Value};

/// The JSON value of a plain (unquoted, untagged) scalar.
///
/// # Errors
/// Infinities and NaN, which JSON does not have.
pub(super) fn resolve(text: &str) -> Result<Value, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Ok(Value::Bool(true));
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Ok(Value::Bool(false));
        }
        ".nan" | ".NaN" | ".NAN" => return Err("json: unsupported value: NaN".into()),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Err("json: unsupported value: +Inf".into());
        }
        "-.inf" | "-.Inf" | "-.INF" => return Err("json: unsupported value: -Inf".into()),
        _ => {}
    }
    let first = text.as_bytes().first().copied().unwrap_or_default();
    if !(first.is_ascii_digit() || matches!(first, b'+' | b'-' | b'.')) || is_timestamp(text) {
        return Ok(Value::String(text.to_owned()));
    }
    let plain = text.replace('_', "");
    if first != b'.'
        && let Some(n) = integer(&plain)
    {
        return Ok(Value::Number(n));
    }
    if is_float(&plain)
        && let Ok(f) = plain.parse::<f64>()
    {
        return float(f);
    }
    Ok(Value::String(text.to_owned()))
}

/// JSON has one kind of number: a float without fraction becomes an integer, as Go writes it.
pub(super) fn float(f: f64) -> Result<Value, String> {
    if f.is_infinite() || f.is_nan() {
        return Err(format!("json: unsupported value: {f}"));
    }
    if f.fract() == 0.0 && f.abs() < 9.0e18 {
        return Ok(Value::from(f as i64));
    }
    Ok(Number::from_f64(f).map_or(Value::Null, Value::Number))
}

/// Go's `strconv.ParseInt(s, 0, 64)`, then `ParseUint`.
pub(super) fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if body.is_empty() || body.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = u64::from_str_radix(body, radix).ok()?;
    if negative {
        let value = 0i64.checked_sub_unsigned(magnitude)?;
        return Some(value.into());
    }
    Some(magnitude.into())
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_float(text: &str) -> bool {
    let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match rest.find(['e', 'E']) {
        Some(i) => (&rest[..i], Some(&rest[i + 1..])),
        None => (rest, None),
    };
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|c| c.is_ascii_digit());
    let mantissa_ok = match mantissa.split_once('.') {
        None => digits(mantissa),
        Some(("", frac)) => digits(frac),
        Some((int, frac)) => digits(int) && (frac.is_empty() || digits(frac)),
    };
    mantissa_ok && exponent.is_none_or(|e| digits(e.strip_prefix(['-', '+']).unwrap_or(e)))
}

/// `2006-1-2` with or without a time. Only told apart so that it is not taken for a number; the text stays as it is.
fn is_timestamp(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() > 5 && bytes[..4].iter().all(u8::is_ascii_digit) && bytes[4] == b'-'
}

#[cfg(test)]
mod tests {
    use super::resolve;
    use serde_json::json;

    #[test]
    fn resolves_scalars_as_go_yaml() {
        let cases = [
            ("", json!(null)),
            ("~", json!(null)),
            ("yes", json!(true)),
            ("Off", json!(false)),
            ("y", json!(true)),
            ("0", json!(0)),
            ("-12", json!(-12)),
            ("+7", json!(7)),
            ("0777", json!(511)),
            ("0o17", json!(15)),
            ("0x1F", json!(31)),
            ("0b101", json!(5)),
            ("1_000", json!(1000)),
            ("08", json!(8)),
            ("18446744073709551615", json!(18446744073709551615u64)),
            ("1.5", json!(1.5)),
            ("1e3", json!(1000)),
            (".5", json!(0.5)),
            ("1.", json!(1)),
            ("1:30", json!("1:30")),
            ("2001-12-14", json!("2001-12-14")),
            ("1.2.3", json!("1.2.3")),
            ("-", json!("-")),
            ("100m", json!("100m")),
            ("on-call", json!("on-call")),
        ];
        for (text, want) in cases {
            assert_eq!(resolve(text).unwrap(), want, "{text}");
        }
        assert_eq!(resolve(".inf").unwrap_err(), "json: unsupported value: +Inf");
    }
}
