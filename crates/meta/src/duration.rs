//! Durations in Go's notation (`1h30m`), as `time.ParseDuration` reads them.
//!
//! Invariant: what is refused is refused with Go's text.

use crate::text::quote;

/// The nanoseconds of a duration.
///
/// # Errors
/// Go's text, without the function's name.
pub fn parse(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quote(text));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0_u64;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (whole, tail) = rest.split_at(end);
        let (fraction, tail) = match tail.strip_prefix('.') {
            Some(tail) => tail.split_at(tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len())),
            None => ("", tail),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (name, tail) = tail.split_at(end);
        if name.is_empty() {
            return Err(format!("time: missing unit in duration {}", quote(text)));
        }
        let Some(unit) = unit(name) else {
            return Err(format!("time: unknown unit {} in duration {}", quote(name), quote(text)));
        };
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        let nanos = whole.checked_mul(unit).and_then(|n| n.checked_add(part(fraction, unit)));
        total = nanos.and_then(|n| total.checked_add(n)).filter(|n| *n <= 1 << 63).ok_or_else(invalid)?;
        rest = tail;
    }
    let signed = if negative { -i128::from(total) } else { i128::from(total) };
    i64::try_from(signed).map_err(|_| invalid())
}

/// The nanoseconds of a unit.
fn unit(name: &str) -> Option<u64> {
    Some(match name {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// The nanoseconds of what follows the point. Digits beyond nanoseconds are cut off.
fn part(digits: &str, unit: u64) -> u64 {
    let (mut value, mut scale) = (0_u128, 1_u128);
    for digit in digits.bytes().take(18) {
        value = value * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    u64::try_from(value * u128::from(unit) / scale).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, nanos) in [
            ("0", 0),
            ("1h30m", 5_400_000_000_000),
            ("-1.5s", -1_500_000_000),
            (".5ms", 500_000),
            ("1.s", 1_000_000_000),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
        ] {
            assert_eq!(parse(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn refuses_with_the_texts_of_go() {
        for (text, error) in [
            ("", "time: invalid duration \"\""),
            ("x", "time: invalid duration \"x\""),
            (".s", "time: invalid duration \".s\""),
            ("5", "time: missing unit in duration \"5\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("3000000h", "time: invalid duration \"3000000h\""),
            ("9223372036854775808ns", "time: invalid duration \"9223372036854775808ns\""),
        ] {
            assert_eq!(parse(text), Err(error.into()), "{text}");
        }
    }
}
