//! Amounts of resources: `100m`, `1.5Gi`, `2e3`.
//!
//! A quantity is an exact decimal and a suffix family (decimal, binary or exponent) that it prints in. Nothing finer
//! than a nano unit is kept: parsing rounds such values away from zero. The canonical form has no fraction, the
//! largest possible suffix, and is what the API stores and returns. Comparison is by value, whatever the family.

mod decimal;
mod parse;
#[cfg(test)]
mod tests;

use decimal::Decimal;
use serde_json::Value;
use std::cmp::Ordering;
use std::fmt;

/// The suffix family that a quantity prints in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// `12e6`
    DecimalExponent,
    /// `12Mi`
    BinarySi,
    /// `12M`
    #[default]
    DecimalSi,
}

/// Why a text is not a quantity. The texts are upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a number and a suffix.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// The number is none.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    /// The suffix is none.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// An exact amount.
#[derive(Clone, Debug, Default)]
pub struct Quantity {
    amount: Decimal,
    format: Format,
    /// What to print instead of the computed form: upstream keeps texts like `+1`, `1.500` and `1E3` as they came.
    text: Option<Box<str>>,
}

impl Quantity {
    /// `value` units.
    pub fn new(value: i64, format: Format) -> Self {
        Self::scaled(value, 0, format)
    }

    /// `value` thousandths.
    pub fn milli(value: i64, format: Format) -> Self {
        Self::scaled(value, -3, format)
    }

    /// `value` times ten to the power of `scale`.
    pub fn scaled(value: i64, scale: i32, format: Format) -> Self {
        Self { amount: Decimal::new(value.into(), scale), format, text: None }
    }

    /// Parses the textual form.
    ///
    /// # Errors
    /// See [`QuantityError`].
    pub fn parse(s: &str) -> Result<Self, QuantityError> {
        parse::parse(s)
    }

    /// Reads a JSON string or number; null is zero.
    ///
    /// # Errors
    /// A text that is no quantity, or another type.
    pub fn from_value(v: &Value) -> Result<Self, QuantityError> {
        match v {
            Value::Null => Ok(Self::default()),
            Value::String(s) => Self::parse(s.trim()),
            Value::Number(n) => Self::parse(&n.to_string()),
            _ => Err(QuantityError::Format),
        }
    }

    /// The family that the quantity prints in.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether this is zero.
    pub fn is_zero(&self) -> bool {
        self.amount.signum() == 0
    }

    /// -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        self.amount.signum()
    }

    /// In whole units, rounded away from zero; saturates.
    pub fn value(&self) -> i64 {
        self.scaled_value(0)
    }

    /// In thousandths, rounded away from zero; saturates.
    pub fn milli_value(&self) -> i64 {
        self.scaled_value(-3)
    }

    /// In units of ten to the power of `scale`, rounded away from zero; saturates.
    pub fn scaled_value(&self, scale: i32) -> i64 {
        self.amount.rounded(scale).0.saturating_i64(scale)
    }

    /// The value, if it is an integer that fits.
    pub fn as_i64(&self) -> Option<i64> {
        let (rounded, exact) = self.amount.rounded(0);
        if exact { rounded.exact_i64() } else { None }
    }

    /// The closest float.
    pub fn as_f64(&self) -> f64 {
        // Decimal text to float is correctly rounded, and the text always parses.
        self.amount.to_string().parse().unwrap_or(0.0)
    }

    /// The sum. Takes the family of `self`, unless that is zero.
    #[must_use]
    pub fn add(&self, other: &Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { amount: self.amount.add(&other.amount), format, text: None }
    }

    /// The difference. Takes the family of `self`, unless that is zero.
    #[must_use]
    pub fn sub(&self, other: &Self) -> Self {
        self.add(&other.neg())
    }

    /// The negation.
    #[must_use]
    pub fn neg(&self) -> Self {
        Self { amount: self.amount.neg(), format: self.format, text: None }
    }

    /// `self` times an integer.
    #[must_use]
    pub fn mul(&self, factor: i64) -> Self {
        Self { amount: self.amount.mul(factor.into()), format: self.format, text: None }
    }

    /// Rounded away from zero to a multiple of ten to the power of `scale`, and whether nothing was lost.
    #[must_use]
    pub fn round_up(&self, scale: i32) -> (Self, bool) {
        let (amount, exact) = self.amount.rounded(scale);
        let text = if exact { self.text.clone() } else { None };
        (Self { amount, format: self.format, text }, exact)
    }

    /// Comparison with an integer.
    pub fn cmp_i64(&self, other: i64) -> Ordering {
        self.amount.cmp(&Decimal::new(other.into(), 0))
    }

    /// The canonical form of a text, as the API stores it.
    ///
    /// # Errors
    /// See [`QuantityError`].
    pub fn canonical(s: &str) -> Result<String, QuantityError> {
        Self::parse(s).map(|q| q.to_string())
    }

    fn fmt_decimal(&self, f: &mut fmt::Formatter<'_>, format: Format) -> fmt::Result {
        let (digits, exponent) = self.amount.engineering();
        f.write_str(&digits)?;
        match (format, parse::decimal_suffix(exponent)) {
            (Format::DecimalSi, Some(suffix)) => f.write_str(suffix),
            _ if exponent == 0 => Ok(()),
            // Upstream drops the magnitude of a decimal quantity beyond `E`; an exponent keeps the value.
            _ => write!(f, "e{exponent}"),
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = &self.text {
            return f.write_str(text);
        }
        if self.is_zero() {
            return f.write_str("0");
        }
        if self.format != Format::BinarySi {
            return self.fmt_decimal(f, self.format);
        }
        // Small and fractional values have no binary form without rounding.
        let small = self.cmp_i64(-1024).is_gt() && self.cmp_i64(1024).is_lt();
        match self.amount.rounded(0) {
            (whole, true) if !small => match whole.factors_of_1024() {
                Some((digits, power)) => write!(f, "{digits}{}", parse::binary_suffix(power)),
                None => self.fmt_decimal(f, Format::DecimalSi),
            },
            _ => self.fmt_decimal(f, Format::DecimalSi),
        }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.amount.cmp(&other.amount)
    }
}

impl std::ops::AddAssign<&Quantity> for Quantity {
    fn add_assign(&mut self, other: &Quantity) {
        *self = Quantity::add(self, other);
    }
}

impl std::ops::SubAssign<&Quantity> for Quantity {
    fn sub_assign(&mut self, other: &Quantity) {
        *self = Quantity::sub(self, other);
    }
}

impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), |acc, q| acc.add(&q))
    }
}

impl std::str::FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(s: &str) -> Result<Self, QuantityError> {
        Self::parse(s)
    }
}

impl From<&Quantity> for Value {
    fn from(q: &Quantity) -> Self {
        q.to_string().into()
    }
}
