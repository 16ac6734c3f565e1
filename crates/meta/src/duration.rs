//! Durations in Go's notation (`1h30m`), as `time.ParseDuration` reads them and `Duration.String` prints them.
//!
//! Invariant: what is refused is refused with Go's text.

use crate::text::quote;
use std::time::Duration;

const SECOND: u128 = 1_000_000_000;

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

/// A duration that is not negative.
///
/// # Errors
/// Those of [`parse`], and that it is negative.
pub fn parse_non_negative(text: &str) -> Result<Duration, String> {
    let nanoseconds = u64::try_from(parse(text)?).map_err(|_| "it must not be negative".to_owned())?;
    Ok(Duration::from_nanos(nanoseconds))
}

/// A duration as Go prints it: `1h30m0s`, `15.002s`, `950ms`.
pub fn format(duration: Duration) -> String {
    unsigned(duration.as_nanos())
}

/// Nanoseconds, which may be negative, as Go prints them.
pub fn format_nanoseconds(nanoseconds: i128) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    format!("{sign}{}", unsigned(nanoseconds.unsigned_abs()))
}

fn unsigned(nanoseconds: u128) -> String {
    let fraction = |whole: u128, rest: u128, digits: usize, unit: &str| {
        let rest = format!("{rest:0digits$}");
        match rest.trim_end_matches('0') {
            "" => format!("{whole}{unit}"),
            rest => format!("{whole}.{rest}{unit}"),
        }
    };
    match nanoseconds {
        0 => "0s".to_owned(),
        n if n < 1_000 => format!("{n}ns"),
        n if n < 1_000_000 => fraction(n / 1_000, n % 1_000, 3, "µs"),
        n if n < SECOND => fraction(n / 1_000_000, n % 1_000_000, 6, "ms"),
        n => {
            let (hours, minutes) = (n / SECOND / 3600, n / SECOND / 60 % 60);
            let seconds = fraction(n / SECOND % 60, n % SECOND, 9, "s");
            match (hours, minutes) {
                (0, 0) => seconds,
                (0, _) => format!("{minutes}m{seconds}"),
                _ => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    }
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
    fn prints_as_go_does() {
        let all =
            [0, 5, 1_500, 950_000_000, 15_002_000_000, 60_000_000_000, 3_661_500_000_000, -2_000_000_000];
        assert_eq!(
            all.map(format_nanoseconds),
            ["0s", "5ns", "1.5µs", "950ms", "15.002s", "1m0s", "1h1m1.5s", "-2s"]
        );
        assert_eq!(format(Duration::from_secs(7 * 3600)), "7h0m0s");
    }

    #[test]
    fn rejects_negative_durations_where_none_may_be() {
        assert_eq!(parse_non_negative("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_non_negative("-1m"), Err("it must not be negative".into()));
        assert_eq!(parse_non_negative("1"), Err("time: missing unit in duration \"1\"".into()));
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
