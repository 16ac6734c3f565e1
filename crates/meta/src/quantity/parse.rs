//! The textual form of quantities.
//!
//! Upstream reads more than its documentation says (`+`, `.5`, `Mi`, `1.G`), keeps some texts as they came, and
//! rounds and caps some values. All of that is visible in stored objects, so it is the same here.

use super::decimal::Decimal;
use super::{Format, Quantity, QuantityError};

const NANO: i32 = -9;
/// Digits that are always safe in an `i64`; above that upstream takes its slow path, which also rounds and caps.
const FAST_DIGITS: i32 = 18;

/// Longest number that is read; upstream has no limit, and work that grows with it.
const MAX_LENGTH: usize = 4096;

const DECIMAL_SUFFIXES: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The suffix of a power of ten, if it has one.
pub(super) fn decimal_suffix(exponent: i64) -> Option<&'static str> {
    DECIMAL_SUFFIXES.iter().find(|(_, e)| i64::from(*e) == exponent).map(|(s, _)| *s)
}

/// The suffix of a power of 1024, up to the sixth.
pub(super) fn binary_suffix(power: u32) -> &'static str {
    BINARY_SUFFIXES.get(power as usize).copied().unwrap_or("")
}

/// A suffix as its family and exponent, of two for the binary family, else of ten.
fn interpret(suffix: &str) -> Option<(Format, i32)> {
    if let Some((_, exponent)) = DECIMAL_SUFFIXES.iter().find(|(s, _)| *s == suffix) {
        return Some((Format::DecimalSi, *exponent));
    }
    if let Some(power) = BINARY_SUFFIXES.iter().position(|s| *s == suffix) {
        return Some((Format::BinarySi, i32::try_from(power).ok()? * 10));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?.parse::<i64>().ok()?;
    // Upstream narrows without a check, too.
    Some((Format::DecimalExponent, exponent as i32))
}

/// A text taken apart. `whole` and `fraction` are digits, `whole` without leading zeros.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    /// Whether the number, sign and zeros included, has any digit.
    has_digits: bool,
    suffix: &'a str,
}

fn split_digits(s: &str) -> (&str, &str) {
    s.split_at(s.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(s.len()))
}

fn split(s: &str) -> Result<Parts<'_>, QuantityError> {
    let negative = s.starts_with('-');
    let unsigned = s.strip_prefix(['+', '-']).unwrap_or(s);
    let (all_digits, mut rest) = split_digits(unsigned);
    let mut fraction = "";
    if let Some(after) = rest.strip_prefix('.') {
        (fraction, rest) = split_digits(after);
    }
    let letters = rest.bytes().position(|b| !b"eEinumkKMGTP".contains(&b)).unwrap_or(rest.len());
    let tail = &rest[letters..];
    let tail = if letters < rest.len() { tail.strip_prefix(['+', '-']).unwrap_or(tail) } else { tail };
    if !tail.bytes().all(|b| b.is_ascii_digit()) {
        return Err(QuantityError::Format);
    }
    Ok(Parts {
        negative,
        whole: all_digits.trim_start_matches('0'),
        fraction,
        has_digits: !all_digits.is_empty() || !fraction.is_empty(),
        suffix: rest,
    })
}

/// Whether upstream prints this text as it came although the computed form may differ.
fn keeps_text(s: &str, parts: &Parts<'_>, format: Format, mantissa: i64, scale: i32) -> bool {
    let canonical = match format {
        Format::BinarySi => mantissa & 7 != 0,
        _ => {
            let mut tail = parts.whole.bytes().chain(parts.fraction.bytes()).rev();
            let thousands = (0..3).all(|_| tail.next() == Some(b'0'));
            scale % 3 == 0 && !thousands && !parts.whole.is_empty()
        }
    };
    // Without these marks the computed form is the same text, and need not be kept.
    let plain = s.starts_with(|c: char| matches!(c, '1'..='9')) && !s.contains('.');
    canonical && (format == Format::DecimalExponent || !plain)
}

/// The fast path: at most 18 digits that need neither rounding nor capping.
fn parse_short(s: &str, parts: &Parts<'_>, format: Format, exponent: i32) -> Option<Quantity> {
    let digits = i32::try_from(parts.whole.len().max(1) + parts.fraction.len()).ok()?;
    let fraction = i32::try_from(parts.fraction.len()).ok()?;
    let (precision, factor, scale) = match format {
        Format::BinarySi if fraction == 0 => {
            let whole = digits;
            // 1Mi has about six digits.
            (FAST_DIGITS - 3 - whole - exponent * 3 / 10 - 1, 1_i64.checked_shl(exponent.unsigned_abs())?, 0)
        }
        Format::BinarySi => return None,
        _ => (FAST_DIGITS - digits, 1, exponent),
    };
    let scale = scale.checked_sub(fraction)?;
    if precision < 0 || scale < NANO {
        return None;
    }
    let mantissa = parts
        .whole
        .bytes()
        .chain(parts.fraction.bytes())
        .fold(0_i64, |n, b| n.wrapping_mul(10).wrapping_add(i64::from(b - b'0')));
    let value = i128::from(mantissa.checked_mul(factor)?);
    let text = keeps_text(s, parts, format, mantissa, scale).then(|| s.into());
    Some(Quantity { amount: Decimal::new(if parts.negative { -value } else { value }, scale), format, text })
}

/// Any number of digits; rounds to nano units and caps binary quantities at the largest `i64`.
fn parse_long(parts: &Parts<'_>, mut format: Format, exponent: i32) -> Result<Quantity, QuantityError> {
    if !parts.has_digits || parts.whole.len() + parts.fraction.len() > MAX_LENGTH {
        return Err(QuantityError::Numeric);
    }
    let digits = parts.whole.bytes().chain(parts.fraction.bytes());
    let fraction = i32::try_from(parts.fraction.len()).map_err(|_| QuantityError::Numeric)?;
    let mut amount = if format == Format::BinarySi {
        Decimal::from_ascii(false, digits, -fraction).mul(1_i128 << exponent)
    } else {
        Decimal::from_ascii(false, digits, exponent.saturating_sub(fraction))
    };
    amount = amount.rounded(NANO).0;
    if format == Format::BinarySi {
        let max = Decimal::new(i64::MAX.into(), 0);
        if amount.cmp(&max).is_gt() {
            amount = max;
        }
        if amount.signum() > 0 && amount.cmp(&Decimal::new(1, 0)).is_lt() {
            format = Format::DecimalSi;
        }
    }
    if parts.negative {
        amount = amount.neg();
    }
    Ok(Quantity { amount, format, text: None })
}

pub(super) fn parse(s: &str) -> Result<Quantity, QuantityError> {
    if s.is_empty() {
        return Err(QuantityError::Format);
    }
    let parts = split(s)?;
    let (format, exponent) = interpret(parts.suffix).ok_or(QuantityError::Suffix)?;
    match parse_short(s, &parts, format, exponent) {
        Some(quantity) => Ok(quantity),
        None => parse_long(&parts, format, exponent),
    }
}
