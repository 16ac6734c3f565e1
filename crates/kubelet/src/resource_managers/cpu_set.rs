//! Sets of processors, in the form that the kernel and checkpoints have: `0-3,8`.

use std::collections::BTreeSet;
use std::fmt;

/// Numbers of processors, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuSet(pub BTreeSet<u32>);

/// More processors than the kernel can have.
const MOST: u32 = 1 << 16;

impl CpuSet {
    /// Reads a list of numbers and ranges; empty text is the empty set.
    ///
    /// # Errors
    /// What is no such list.
    pub fn parse(text: &str) -> Result<CpuSet, String> {
        let mut set = BTreeSet::new();
        let number = |part: &str| {
            let found = part.parse::<u32>().ok().filter(|n| *n < MOST);
            found.ok_or_else(|| format!("{part:?} is no number of a processor"))
        };
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(format!("invalid range {part:?} ({first} > {last})"));
            }
            set.extend(first..=last);
        }
        Ok(CpuSet(set))
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of either.
    #[must_use]
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.union(&other.0).copied().collect())
    }

    /// Those that the other has not.
    #[must_use]
    pub fn without(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.difference(&other.0).copied().collect())
    }

    /// Those of both.
    #[must_use]
    pub fn common(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.intersection(&other.0).copied().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if_eq(&(last + 1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_lists_of_the_kernel() {
        for text in ["", "0", "0-1", "0-3,8,10-11"] {
            assert_eq!(CpuSet::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(CpuSet::parse("3,1-2,2\n").unwrap().to_string(), "1-3");
        for wrong in ["a", "1-", "3-1", "-1", "99999999", "1;2"] {
            assert!(CpuSet::parse(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(set: BTreeSet<u8>) {
            let set = CpuSet(set.into_iter().map(u32::from).collect());
            prop_assert_eq!(CpuSet::parse(&set.to_string()).unwrap(), set);
        }
    }
}
