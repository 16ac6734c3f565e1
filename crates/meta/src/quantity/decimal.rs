//! Exact decimals: an integer times a power of ten.
//!
//! Almost every value fits `i128`; the rest falls back to decimal digits. Two values of very different magnitude are
//! not expanded beyond [`MAX_DIGITS`] digits: there the smaller one cannot matter, and a hostile exponent must not
//! cost memory.

use std::cmp::Ordering;
use std::fmt;

/// Most digits that an operation expands a value to.
const MAX_DIGITS: i64 = 4096;

/// `mantissa` times ten to the power of `scale`.
#[derive(Clone, Debug, Default)]
pub(super) struct Decimal {
    mantissa: Int,
    scale: i32,
}

/// An integer of any size.
#[derive(Clone, Debug)]
enum Int {
    Small(i128),
    /// Sign and digits 0..=9, most significant first, without leading zeros. Only for what does not fit `i128`.
    Wide(bool, Vec<u8>),
}

impl Default for Int {
    fn default() -> Self {
        Self::Small(0)
    }
}

fn digits_of(mut n: u128) -> Vec<u8> {
    let mut digits = Vec::with_capacity(39);
    while n > 0 {
        digits.push((n % 10) as u8);
        n /= 10;
    }
    digits.reverse();
    digits
}

fn add_digits(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(a.len().max(b.len()) + 1);
    let (mut a, mut b, mut carry) = (a.iter().rev(), b.iter().rev(), 0);
    loop {
        let (x, y) = (a.next(), b.next());
        if x.is_none() && y.is_none() && carry == 0 {
            break;
        }
        let sum = x.copied().unwrap_or(0) + y.copied().unwrap_or(0) + carry;
        out.push(sum % 10);
        carry = sum / 10;
    }
    out.reverse();
    out
}

/// `a - b` for `a >= b`, both without leading zeros.
fn sub_digits(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(a.len());
    let (mut b, mut borrow) = (b.iter().rev(), 0);
    for x in a.iter().rev() {
        let y = b.next().copied().unwrap_or(0) + borrow;
        borrow = u8::from(*x < y);
        out.push(x + borrow * 10 - y);
    }
    out.reverse();
    out
}

fn cmp_digits(a: &[u8], b: &[u8]) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

impl Int {
    /// From sign and digits; leading zeros are fine.
    fn from_digits(negative: bool, digits: &[u8]) -> Self {
        let start = digits.iter().position(|d| *d != 0).unwrap_or(digits.len());
        let digits = &digits[start..];
        let small = digits.iter().try_fold(0_i128, |n, d| n.checked_mul(10)?.checked_add(i128::from(*d)));
        match small {
            Some(n) => Self::Small(if negative { -n } else { n }),
            None => Self::Wide(negative, digits.to_vec()),
        }
    }

    fn parts(&self) -> (bool, Vec<u8>) {
        match self {
            Self::Small(n) => (*n < 0, digits_of(n.unsigned_abs())),
            Self::Wide(negative, digits) => (*negative, digits.clone()),
        }
    }

    fn signum(&self) -> i32 {
        match self {
            Self::Small(n) => n.signum() as i32,
            Self::Wide(negative, _) => 1 - 2 * i32::from(*negative),
        }
    }

    fn digit_count(&self) -> i64 {
        match self {
            Self::Small(0) => 0,
            Self::Small(n) => i64::from(n.unsigned_abs().ilog10()) + 1,
            Self::Wide(_, digits) => digits.len() as i64,
        }
    }

    fn neg(&self) -> Self {
        match self {
            Self::Small(n) => {
                n.checked_neg().map_or_else(|| Self::Wide(false, digits_of(n.unsigned_abs())), Self::Small)
            }
            Self::Wide(negative, digits) => Self::from_digits(!negative, digits),
        }
    }

    fn add(&self, other: &Self) -> Self {
        if let (Self::Small(a), Self::Small(b)) = (self, other)
            && let Some(sum) = a.checked_add(*b)
        {
            return Self::Small(sum);
        }
        let ((na, a), (nb, b)) = (self.parts(), other.parts());
        if na == nb {
            Self::from_digits(na, &add_digits(&a, &b))
        } else if cmp_digits(&a, &b).is_ge() {
            Self::from_digits(na, &sub_digits(&a, &b))
        } else {
            Self::from_digits(nb, &sub_digits(&b, &a))
        }
    }

    fn mul(&self, factor: i128) -> Self {
        if let Self::Small(a) = self
            && let Some(product) = a.checked_mul(factor)
        {
            return Self::Small(product);
        }
        let (negative, digits) = self.parts();
        let mut sum = Vec::new();
        for (power, d) in digits_of(factor.unsigned_abs()).into_iter().rev().enumerate() {
            for _ in 0..d {
                let mut shifted = digits.clone();
                shifted.resize(digits.len() + power, 0);
                sum = add_digits(&sum, &shifted);
            }
        }
        Self::from_digits(negative != (factor < 0), &sum)
    }

    /// Times ten to the power of `n`.
    fn shift(&self, n: u32) -> Self {
        if let Self::Small(a) = self
            && let Some(product) = 10_i128.checked_pow(n).and_then(|p| a.checked_mul(p))
        {
            return Self::Small(product);
        }
        if self.signum() == 0 {
            return Self::default();
        }
        let (negative, mut digits) = self.parts();
        digits.resize(digits.len() + n as usize, 0);
        Self::from_digits(negative, &digits)
    }

    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Small(a), Self::Small(b)) => a.cmp(b),
            _ => {
                let ((na, a), (nb, b)) = (self.parts(), other.parts());
                match (na, nb) {
                    (false, true) => Ordering::Greater,
                    (true, false) => Ordering::Less,
                    (false, false) => cmp_digits(&a, &b),
                    (true, true) => cmp_digits(&b, &a),
                }
            }
        }
    }

    /// Divided by ten to the power of `n`, away from zero, and whether that was exact.
    fn unshift(&self, n: u64) -> (Self, bool) {
        if let Self::Small(a) = self {
            let divisor = u32::try_from(n).ok().and_then(|n| 10_i128.checked_pow(n));
            let (quotient, rest) = divisor.map_or((0, *a), |d| (a / d, a % d));
            return (Self::Small(quotient + rest.signum()), rest == 0);
        }
        let (negative, digits) = self.parts();
        let keep = digits.len().saturating_sub(usize::try_from(n).unwrap_or(usize::MAX));
        let exact = digits[keep..].iter().all(|d| *d == 0);
        let quotient = if exact { digits[..keep].to_vec() } else { add_digits(&digits[..keep], &[1]) };
        (Self::from_digits(negative, &quotient), exact)
    }

    /// The quotient, if 1024 divides this.
    fn div_1024(&self) -> Option<Self> {
        match self {
            Self::Small(n) => (*n != 0 && n % 1024 == 0).then_some(Self::Small(n / 1024)),
            Self::Wide(negative, digits) => {
                let mut rest = 0_u32;
                let quotient: Vec<u8> = digits
                    .iter()
                    .map(|d| {
                        rest = rest * 10 + u32::from(*d);
                        let digit = (rest / 1024) as u8;
                        rest %= 1024;
                        digit
                    })
                    .collect();
                (rest == 0).then(|| Self::from_digits(*negative, &quotient))
            }
        }
    }

    fn trailing_zeros(&self) -> u32 {
        match self {
            Self::Small(0) => 0,
            Self::Small(n) => {
                let (mut n, mut zeros) = (*n, 0);
                while n % 10 == 0 {
                    n /= 10;
                    zeros += 1;
                }
                zeros
            }
            Self::Wide(_, digits) => {
                let zeros = digits.iter().rev().take_while(|d| **d == 0).count();
                u32::try_from(zeros).unwrap_or(u32::MAX)
            }
        }
    }
}

impl fmt::Display for Int {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Small(n) => n.fmt(f),
            Self::Wide(negative, digits) => {
                let digits: String = digits.iter().map(|d| char::from(b'0' + d)).collect();
                write!(f, "{}{digits}", if *negative { "-" } else { "" })
            }
        }
    }
}

impl Decimal {
    pub(super) fn new(mantissa: i128, scale: i32) -> Self {
        Self { mantissa: Int::Small(mantissa), scale }
    }

    /// From ASCII digits (none at all are zero).
    pub(super) fn from_ascii(negative: bool, digits: impl Iterator<Item = u8>, scale: i32) -> Self {
        let digits: Vec<u8> = digits.map(|b| b.wrapping_sub(b'0')).collect();
        Self { mantissa: Int::from_digits(negative, &digits), scale }
    }

    pub(super) fn signum(&self) -> i32 {
        self.mantissa.signum()
    }

    pub(super) fn neg(&self) -> Self {
        Self { mantissa: self.mantissa.neg(), scale: self.scale }
    }

    pub(super) fn mul(&self, factor: i128) -> Self {
        Self { mantissa: self.mantissa.mul(factor), scale: self.scale }
    }

    /// The position of the digit in front of the first one: 0.1 has 0, 1 has 1, 10 has 2.
    fn magnitude(&self) -> i64 {
        self.mantissa.digit_count() + i64::from(self.scale)
    }

    /// The mantissa at a finer (or the same) scale.
    fn mantissa_at(&self, scale: i32) -> Int {
        let n = i64::from(self.scale) - i64::from(scale);
        self.mantissa.shift(u32::try_from(n).unwrap_or(0))
    }

    pub(super) fn add(&self, other: &Self) -> Self {
        if self.signum() == 0 {
            return other.clone();
        }
        if other.signum() == 0 {
            return self.clone();
        }
        let scale = self.scale.min(other.scale);
        let (a, b) = (self.magnitude(), other.magnitude());
        if a.max(b) - i64::from(scale) > MAX_DIGITS {
            return if a >= b { self.clone() } else { other.clone() };
        }
        Self { mantissa: self.mantissa_at(scale).add(&other.mantissa_at(scale)), scale }
    }

    pub(super) fn cmp(&self, other: &Self) -> Ordering {
        let (sa, sb) = (self.signum(), other.signum());
        if sa != sb || sa == 0 {
            return sa.cmp(&sb);
        }
        let by_magnitude = self.magnitude().cmp(&other.magnitude());
        if by_magnitude.is_ne() {
            return if sa > 0 { by_magnitude } else { by_magnitude.reverse() };
        }
        // Of equal magnitude, so the scales differ by no more than the digits given.
        let scale = self.scale.min(other.scale);
        self.mantissa_at(scale).cmp(&other.mantissa_at(scale))
    }

    /// Rounded away from zero to a multiple of ten to the power of `scale`, and whether that was exact.
    pub(super) fn rounded(&self, scale: i32) -> (Self, bool) {
        if self.scale >= scale {
            return (self.clone(), true);
        }
        let n = i64::from(scale) - i64::from(self.scale);
        let (mantissa, exact) = self.mantissa.unshift(n.unsigned_abs());
        (Self { mantissa, scale }, exact)
    }

    /// The value divided by ten to the power of `scale`, for a value that was rounded to it.
    pub(super) fn saturating_i64(&self, scale: i32) -> i64 {
        let limit = if self.signum() < 0 { i64::MIN } else { i64::MAX };
        if self.signum() != 0 && self.magnitude() - i64::from(scale) > 20 {
            return limit;
        }
        match self.mantissa_at(scale) {
            Int::Small(n) => i64::try_from(n).unwrap_or(limit),
            Int::Wide(..) => limit,
        }
    }

    /// The value of an integer, if it fits.
    pub(super) fn exact_i64(&self) -> Option<i64> {
        if self.signum() != 0 && self.magnitude() > 20 {
            return None;
        }
        match self.mantissa_at(0) {
            Int::Small(n) => i64::try_from(n).ok(),
            Int::Wide(..) => None,
        }
    }

    /// Digits and an exponent that is a multiple of three, with as few digits as possible.
    pub(super) fn engineering(&self) -> (String, i64) {
        let zeros = self.mantissa.trailing_zeros();
        let exponent = i64::from(self.scale) + i64::from(zeros);
        let pad = exponent.rem_euclid(3);
        let mut digits = self.mantissa.to_string();
        digits.truncate(digits.len() - zeros as usize);
        digits.extend(std::iter::repeat_n('0', pad as usize));
        (digits, exponent - pad)
    }

    /// An integer without its factors of 1024, and how many there were, at most six (beyond that there is no
    /// suffix); `None` if it is too large to expand.
    pub(super) fn factors_of_1024(&self) -> Option<(String, u32)> {
        if self.magnitude() > MAX_DIGITS {
            return None;
        }
        let mut n = self.mantissa_at(0);
        let mut power = 0;
        while power < 6
            && let Some(quotient) = n.div_1024()
        {
            n = quotient;
            power += 1;
        }
        Some((n.to_string(), power))
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}e{}", self.mantissa, self.scale)
    }
}

#[cfg(test)]
impl Decimal {
    /// The value in nano units; for tests, where it fits.
    pub(super) fn nanos(&self) -> i128 {
        match self.mantissa_at(-9) {
            Int::Small(n) => n,
            Int::Wide(..) => panic!("too wide: {self}"),
        }
    }
}
