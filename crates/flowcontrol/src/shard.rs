//! Shuffle sharding: each flow has a small hand of queues, dealt from its hash, so that two flows rarely share all of
//! theirs. Source: KEP-1040, "Assignment to queues".

use sha2::{Digest, Sha256};

/// The largest hand that 60 bits of entropy can be dealt into (two queues at least, so 15 fits any).
pub const MAX_HAND: usize = 15;
/// Bits of a hash that dealing may use up.
const HASH_BITS: f64 = 60.0;

/// Deals hands of a deck of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dealer {
    deck: u64,
    hand: usize,
}

impl Dealer {
    /// `None` when the sizes make no sense or need more entropy than a hash has.
    pub fn new(deck: u32, hand: u32) -> Option<Dealer> {
        let bits = (f64::from(deck).log2() * f64::from(hand)).ceil();
        let fits = deck > 0 && hand > 0 && hand <= deck && hand as usize <= MAX_HAND && deck <= 1 << 26;
        (fits && bits <= HASH_BITS).then_some(Dealer { deck: u64::from(deck), hand: hand as usize })
    }

    /// How many queues there are to deal.
    pub fn deck(&self) -> usize {
        self.deck as usize
    }

    /// The hand of a hash: distinct cards below the deck's size.
    pub fn deal(&self, mut hash: u64, cards: &mut [usize; MAX_HAND]) -> usize {
        for (i, card) in cards[..self.hand].iter_mut().enumerate() {
            let left = self.deck - i as u64;
            *card = (hash % left) as usize;
            hash /= left;
        }
        // Each remainder counts among the cards that are still in the deck; count past those that were dealt before.
        let remainders = *cards;
        for (i, card) in cards[..self.hand].iter_mut().enumerate() {
            for before in remainders[..i].iter().rev() {
                *card += usize::from(*card >= *before);
            }
        }
        self.hand
    }
}

/// The hash of a flow: its FlowSchema and what distinguishes it.
pub fn hash(schema: &str, distinguisher: &str) -> u64 {
    let mut sha = Sha256::new();
    sha.update(schema.as_bytes());
    sha.update([0]);
    sha.update(distinguisher.as_bytes());
    let sum = sha.finalize();
    u64::from_le_bytes(std::array::from_fn(|i| sum[i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hands_are_distinct_cards_of_the_deck(deck in 1_u32..200, hand in 1_u32..8, hash: u64) {
            prop_assume!(hand <= deck);
            let Some(dealer) = Dealer::new(deck, hand) else { return Ok(()) };
            let mut cards = [0; MAX_HAND];
            let n = dealer.deal(hash, &mut cards);
            let mut seen = cards[..n].to_vec();
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len(), hand as usize);
            prop_assert!(seen.iter().all(|c| *c < deck as usize));
        }
    }

    #[test]
    fn every_hand_is_equally_likely() {
        // 5 * 4 * 3 ordered hands; consecutive hashes walk through all of them.
        let dealer = Dealer::new(5, 3).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for hash in 0..60 {
            let mut cards = [0; MAX_HAND];
            dealer.deal(hash, &mut cards);
            seen.insert([cards[0], cards[1], cards[2]]);
        }
        assert_eq!(seen.len(), 60);
    }

    #[test]
    fn impossible_hands_are_refused() {
        assert_eq!(Dealer::new(0, 1), None);
        assert_eq!(Dealer::new(4, 5), None);
        assert_eq!(Dealer::new(1 << 20, 4), None, "80 bits");
        assert!(Dealer::new(128, 6).is_some());
    }
}
