//! The numbers of faults that may come about, as a command says them: `1,7,1042`, or `none`.
//!
//! Invariant: what is printed is read as the same.

use std::{collections::BTreeSet, fmt, num::ParseIntError, str::FromStr};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers(pub BTreeSet<u64>);

impl FromStr for Numbers {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Numbers, ParseIntError> {
        match text {
            "" | "none" => Ok(Numbers::default()),
            list => list.split(',').map(str::parse).collect::<Result<_, _>>().map(Numbers),
        }
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u64::to_string).collect();
        out.write_str(if numbers.is_empty() { "none" } else { "" })?;
        out.write_str(&numbers.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_as_the_same() {
        for (text, printed) in [("", "none"), ("none", "none"), ("7", "7"), ("1042,7,7", "7,1042")] {
            let numbers: Numbers = text.parse().unwrap();
            assert_eq!(numbers.to_string(), printed);
            assert_eq!(printed.parse(), Ok(numbers));
        }
        for text in ["x", "1,", ",", "-1", "1 2", "99999999999999999999"] {
            assert!(text.parse::<Numbers>().is_err(), "{text}");
        }
    }
}
