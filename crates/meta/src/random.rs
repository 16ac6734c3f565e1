//! Randomness as a value that is passed in, and the names and uids made from it.

use std::sync::atomic::{AtomicU64, Ordering};

/// A source of random bits.
pub trait Random: Send + Sync {
    /// The next 64 bits.
    fn u64(&self) -> u64;
}

/// The operating system's randomness (through a per-thread generator).
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn u64(&self) -> u64 {
        rand::random()
    }
}

/// The same sequence for the same seed (SplitMix64), for tests and simulation.
#[derive(Debug)]
pub struct SeededRandom {
    state: AtomicU64,
}

impl SeededRandom {
    /// Starts the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: AtomicU64::new(seed) }
    }
}

impl Random for SeededRandom {
    fn u64(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A number from 0 to below 1, each equally likely.
pub fn fraction(random: &dyn Random) -> f64 {
    // 53 bits are what fits a float's fraction.
    (random.u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Letters and digits of generated names: no vowels, and none of 0, 1, 3, so that no words appear.
pub const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Longest base of a generated name, in bytes; longer ones are cut.
pub const MAX_GENERATED_NAME_BASE: usize = 63 - SUFFIX_LENGTH;
const SUFFIX_LENGTH: usize = 5;

/// `n` random characters of [`ALPHABET`], each equally likely.
pub fn suffix(random: &dyn Random, n: usize) -> String {
    let mut out = String::with_capacity(n);
    while out.len() < n {
        let mut bits = random.u64();
        for _ in 0..12 {
            // Five bits pick one of 32; the five beyond the alphabet are thrown away to stay uniform.
            if let Some(c) = ALPHABET.get((bits & 31) as usize)
                && out.len() < n
            {
                out.push(char::from(*c));
            }
            bits >>= 5;
        }
    }
    out
}

/// A name from a base (`metadata.generateName`) and five random characters, at most 63 bytes.
pub fn generate_name(base: &str, random: &dyn Random) -> String {
    let mut end = base.len().min(MAX_GENERATED_NAME_BASE);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{}", &base[..end], suffix(random, SUFFIX_LENGTH))
}

/// A random (version 4) UUID in its usual form.
pub fn uid(random: &dyn Random) -> String {
    let high = (random.u64() & !0xf000) | 0x4000;
    let low = (random.u64() & !(0b11 << 62)) | (0b10 << 62);
    let mut text = String::with_capacity(36);
    for (part, digits) in [(high >> 32, 8), (high >> 16, 4), (high, 4), (low >> 48, 4), (low, 12)] {
        if !text.is_empty() {
            text.push('-');
        }
        push_hex(&mut text, part, digits);
    }
    text
}

/// Appends the last `digits` hexadecimal digits of a number. Each request and each object gets a uid: this takes a tenth of
/// what formatting takes.
fn push_hex(text: &mut String, number: u64, digits: u32) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for place in (0..digits).rev() {
        text.push(char::from(HEX[((number >> (4 * place)) & 0xf) as usize]));
    }
}

/// Maps bytes that are not safe in a name to [`ALPHABET`], one for one (used for hashes in names).
pub fn safe_encode(s: &str) -> String {
    s.chars().map(|c| char::from(ALPHABET[(c as usize) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn uid_is_v4() {
        let r = SeededRandom::new(1);
        for _ in 0..100 {
            let id = uid(&r);
            assert_eq!(id.len(), 36);
            let b = id.as_bytes();
            assert!(b[14] == b'4' && b"89ab".contains(&b[19]), "{id}");
            assert!([8, 13, 18, 23].iter().all(|i| b[*i] == b'-'));
        }
        assert_ne!(uid(&r), uid(&r));
        assert_ne!(uid(&SystemRandom), uid(&SystemRandom));
    }

    #[test]
    fn hexadecimal_digits_are_the_last_ones() {
        let mut text = String::new();
        push_hex(&mut text, 0x12_0abc, 4);
        push_hex(&mut text, 0xf, 2);
        assert_eq!(text, "0abc0f");
    }

    #[test]
    fn seeded_is_reproducible() {
        assert_eq!(suffix(&SeededRandom::new(7), 40), suffix(&SeededRandom::new(7), 40));
        assert_ne!(suffix(&SeededRandom::new(7), 40), suffix(&SeededRandom::new(8), 40));
    }

    #[test]
    fn safe_encode_is_upstreams() {
        assert_eq!(safe_encode("05c"), "49x");
    }

    proptest! {
        #[test]
        fn generates_names_within_63_characters(base in "[a-zé.-]{0,80}", seed in any::<u64>()) {
            let name = generate_name(&base, &SeededRandom::new(seed));
            prop_assert!(name.len() <= 63);
            let (head, tail) = name.split_at(name.len() - 5);
            prop_assert!(base.starts_with(head));
            prop_assert!(head.len() == base.len() || head.len() > 56);
            prop_assert!(tail.bytes().all(|b| ALPHABET.contains(&b)));
        }
    }
}
