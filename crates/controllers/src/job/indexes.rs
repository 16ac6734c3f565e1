//! Sets of completion indexes as statuses carry them: `0,2-4`.
//! Invariant: intervals are in order and neither overlap nor touch.

use std::fmt;

/// A set of indexes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(Vec<(i64, i64)>);

impl Indexes {
    /// Reads a set; what is not a number is left out, and so is what is not below `completions`.
    pub fn parse(text: &str, completions: i64) -> Self {
        let interval = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (i64, i64) = (first.parse().ok()?, last.parse().ok()?);
            (first < completions).then(|| (first, last.min(completions - 1)))
        };
        let mut set = Indexes::default();
        text.split(',').filter_map(interval).for_each(|i| set.push(i));
        set
    }

    fn push(&mut self, (first, last): (i64, i64)) {
        match self.0.last_mut() {
            Some(end) if first <= end.1 + 1 => end.1 = end.1.max(last),
            _ => self.0.push((first, last)),
        }
    }

    /// The union with single indexes, in any order.
    pub fn with(&self, indexes: impl IntoIterator<Item = i64>) -> Self {
        self.union(&Indexes(indexes.into_iter().map(|i| (i, i)).collect()))
    }

    /// The union of two sets.
    pub fn union(&self, other: &Self) -> Self {
        let mut all: Vec<(i64, i64)> = self.0.iter().chain(&other.0).copied().collect();
        all.sort_unstable();
        let mut set = Indexes::default();
        all.into_iter().for_each(|i| set.push(i));
        set
    }

    /// How many.
    pub fn len(&self) -> i64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an index is in it.
    pub fn has(&self, index: i64) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= index);
        after > 0 && self.0[after - 1].1 >= index
    }

    /// How many are in both sets.
    pub fn common(&self, other: &Self) -> i64 {
        let overlap = |a: &(i64, i64), b: &(i64, i64)| (a.1.min(b.1) - a.0.max(b.0) + 1).max(0);
        let (mut i, mut j, mut sum) = (0, 0, 0);
        while let (Some(a), Some(b)) = (self.0.get(i), other.0.get(j)) {
            sum += overlap(a, b);
            if a.1 <= b.1 { i += 1 } else { j += 1 }
        }
        sum
    }

    /// The first `count` indexes below `completions` that are not in it.
    pub fn missing(&self, count: usize, completions: i64) -> Vec<i64> {
        let ends = self.0.iter().copied().chain([(completions, completions)]);
        let mut next = 0;
        let mut missing = vec![];
        for (first, last) in ends {
            let room = count - missing.len();
            missing.extend((next..first.min(completions)).take(room));
            next = last + 1;
        }
        missing
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_it_formats() {
        for (text, completions, canonical) in [
            ("", 5, ""),
            ("0,1,2,5", 9, "0-2,5"),
            ("0-3,5-7", 6, "0-3,5"),
            ("x,2,3-y,4,5", 9, "2,4,5"),
            ("3,4", 9, "3,4"),
            ("7,8", 5, ""),
        ] {
            assert_eq!(Indexes::parse(text, completions).to_string(), canonical);
        }
    }

    #[test]
    fn behaves_as_a_set() {
        let set = Indexes::parse("1-3,7", 10);
        assert_eq!(
            (set.len(), set.has(0), set.has(3), set.has(7), set.has(8)),
            (4, false, true, true, false)
        );
        assert_eq!(set.with([4, 0, 9]).to_string(), "0-4,7,9");
        assert_eq!(set.missing(3, 10), [0, 4, 5]);
        assert_eq!(set.missing(9, 10), [0, 4, 5, 6, 8, 9]);
        assert_eq!(Indexes::default().missing(2, 1), [0]);
        assert_eq!(set.common(&Indexes::parse("0-2,7-9", 10)), 3);
        assert_eq!(set.union(&Indexes::parse("4-6", 10)).to_string(), "1-7");
    }
}
