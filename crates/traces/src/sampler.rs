//! Which spans are recorded. Source: `ParentBased` and `TraceIDRatioBased` of OpenTelemetry's Go SDK, as
//! `component-base/tracing` puts them together.
//!
//! Invariant: the decision about a root depends on its trace's id alone, so that processes with the same share agree on it.

use crate::context::SpanContext;

const MILLION: u64 = 1_000_000;

/// Takes a share of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sampler {
    /// The lower half of a trace's id, without its last bit, is below this.
    bound: u64,
}

impl Sampler {
    /// So many of a million; all of them from a million on.
    pub(crate) fn per_million(rate: u32) -> Sampler {
        let rate = u64::from(rate).min(MILLION);
        let bound = (u128::from(rate) << 63) / u128::from(MILLION);
        // At most 2^63.
        Sampler { bound: u64::try_from(bound).unwrap_or(1 << 63) }
    }

    /// Whether a span is recorded: as its parent, else by its trace's id.
    pub(crate) fn samples(self, parent: Option<&SpanContext>, trace: &[u8; 16]) -> bool {
        if let Some(parent) = parent {
            return parent.sampled();
        }
        let [.., a, b, c, d, e, f, g, h] = *trace;
        u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1 < self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::random::{Random, SeededRandom};

    fn trace(low: u64) -> [u8; 16] {
        (u128::from(low) | 1 << 100).to_be_bytes()
    }

    #[test]
    fn a_share_of_roots_is_taken() {
        let taken = |rate| {
            let (sampler, random) = (Sampler::per_million(rate), SeededRandom::new(7));
            (0..10_000).filter(|_| sampler.samples(None, &trace(random.u64()))).count()
        };
        assert_eq!((taken(0), taken(1_000_000), taken(u32::MAX)), (0, 10_000, 10_000));
        assert!((900..1100).contains(&taken(100_000)), "{}", taken(100_000));
        assert!(Sampler::per_million(1_000_000).samples(None, &[0xff; 16]));
        // The bound of Go's SDK for one in a million.
        let bound = (1_u64 << 63) / 1_000_000;
        assert!(Sampler::per_million(1).samples(None, &trace((bound - 1) << 1)));
        assert!(!Sampler::per_million(1).samples(None, &trace((bound + 1) << 1)));
    }

    #[test]
    fn samples_as_the_parent_decides() {
        let parent = |flags| SpanContext::from_parts([1; 16], [2; 8], flags);
        assert!(Sampler::per_million(0).samples(Some(&parent(1)), &[0xff; 16]));
        assert!(!Sampler::per_million(1_000_000).samples(Some(&parent(0)), &[0; 16]));
    }
}
