//! Values that are an integer or a string, most often a percentage: `maxUnavailable: 25%`.

use crate::text::quote;
use serde_json::Value;
use std::fmt;

/// An integer or a string.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IntOrString {
    /// A number.
    Int(i32),
    /// Text, e.g. `25%` or the name of a port.
    String(String),
}

/// Parses a decimal integer; the error is Go's.
fn atoi(s: &str) -> Result<i64, String> {
    let digits = s.strip_prefix(['+', '-']).unwrap_or(s);
    let well_formed = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    s.parse().map_err(|_| {
        let what = if well_formed { "value out of range" } else { "invalid syntax" };
        format!("strconv.Atoi: parsing {}: {what}", quote(s))
    })
}

impl IntOrString {
    /// Reads a JSON number (an integer of 32 bits) or string.
    pub fn from_value(v: &Value) -> Option<Self> {
        match v {
            Value::String(s) => Some(Self::String(s.clone())),
            Value::Number(n) => n.as_i64().and_then(|i| i32::try_from(i).ok()).map(Self::Int),
            _ => None,
        }
    }

    /// A string that is an integer becomes one; any other stays a string.
    pub fn parse(s: &str) -> Self {
        s.parse().map_or_else(|_| Self::String(s.to_owned()), Self::Int)
    }

    /// As JSON.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Int(i) => (*i).into(),
            Self::String(s) => s.as_str().into(),
        }
    }

    /// The integer; for a string its numeric value, or 0.
    pub fn int_value(&self) -> i64 {
        match self {
            Self::Int(i) => (*i).into(),
            Self::String(s) => s.parse().unwrap_or(0),
        }
    }

    /// The integer, or the percentage of `total`, rounded up or down.
    ///
    /// # Errors
    /// A string that is not a percentage.
    pub fn scaled_value(&self, total: i64, round_up: bool) -> Result<i64, String> {
        let s = match self {
            Self::Int(i) => return Ok((*i).into()),
            Self::String(s) => s,
        };
        let number = s.strip_suffix('%').ok_or_else(|| {
            "invalid value for IntOrString: invalid type: string is not a percentage".to_owned()
        })?;
        let percent = atoi(number)
            .map_err(|e| format!("invalid value for IntOrString: invalid value {}: {e}", quote(s)))?;
        let product = i128::from(percent) * i128::from(total);
        let floor = product.div_euclid(100);
        let scaled = if round_up && product.rem_euclid(100) != 0 { floor + 1 } else { floor };
        Ok(i64::try_from(scaled).unwrap_or(if scaled > 0 { i64::MAX } else { i64::MIN }))
    }
}

impl fmt::Display for IntOrString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(i) => i.fmt(f),
            Self::String(s) => f.write_str(s),
        }
    }
}

impl From<i32> for IntOrString {
    fn from(i: i32) -> Self {
        Self::Int(i)
    }
}

impl From<&str> for IntOrString {
    fn from(s: &str) -> Self {
        Self::String(s.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scales_percentages() {
        let of = |v: Value, total, up| IntOrString::from_value(&v).unwrap().scaled_value(total, up);
        assert_eq!(of(json!(3), 10, true), Ok(3));
        assert_eq!(of(json!("25%"), 10, true), Ok(3));
        assert_eq!(of(json!("25%"), 10, false), Ok(2));
        assert_eq!(of(json!("100%"), 7, false), Ok(7));
        assert_eq!(
            of(json!("http"), 7, false),
            Err("invalid value for IntOrString: invalid type: string is not a percentage".into())
        );
        assert_eq!(
            of(json!("x%"), 7, false),
            Err(r#"invalid value for IntOrString: invalid value "x%": strconv.Atoi: parsing "x": invalid syntax"#
                .into())
        );
        assert_eq!(IntOrString::from_value(&json!(1.5)), None);
        assert_eq!(IntOrString::from_value(&json!(3_000_000_000_i64)), None);
        assert_eq!(IntOrString::parse("80"), IntOrString::Int(80));
        assert_eq!(IntOrString::parse("http").to_string(), "http");
        assert_eq!(IntOrString::from("8").int_value(), 8);
    }
}
