//! An interval of sizes or costs. Sums and products saturate.

/// Both ends are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub min: u64,
    pub max: u64,
}

impl Range {
    pub(crate) const ZERO: Range = Range::exactly(0);
    pub(crate) const ONE: Range = Range::exactly(1);
    /// Nothing is known.
    pub(crate) const ANY: Range = Range { min: 0, max: u64::MAX };
    /// The empty union.
    pub(crate) const NONE: Range = Range { min: u64::MAX, max: 0 };

    pub(crate) const fn exactly(n: u64) -> Range {
        Range { min: n, max: n }
    }

    pub(crate) const fn at_most(max: u64) -> Range {
        Range { min: 0, max }
    }

    pub(crate) fn plus(self, other: Range) -> Range {
        Range { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub(crate) fn times(self, other: Range) -> Range {
        Range { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// Times a factor, rounded up.
    pub(crate) fn scaled(self, factor: f64) -> Range {
        Range { min: crate::cost::scaled(self.min, factor), max: crate::cost::scaled(self.max, factor) }
    }

    /// Whatever is in one or the other.
    pub(crate) fn or(self, other: Range) -> Range {
        Range { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}
