//! Random numbers from a seed: the same ones on every machine.

/// A generator (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed, for one of several users of it.
    pub fn new(seed: u64, user: u64) -> Random {
        Random(seed ^ user.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// One of an interval.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }
}
