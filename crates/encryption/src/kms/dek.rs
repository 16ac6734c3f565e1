//! The keys that encrypt values, and a bounded store of those that are known in the clear.
//!
//! A seed is a pseudo-random key of HKDF (RFC 5869): each write expands it with 32 random bytes to a separate key for
//! AES-256-GCM. What is stored is `random bytes | nonce | ciphertext | tag`, so no key is ever used twice.

use super::api;
use crate::{
    TransformError,
    cipher::{Cipher, random_bytes},
    metrics::Used,
};
use kaji_meta::random::Random;
use ring::hkdf;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// The random bytes before a value, also the length of derived keys and the least of a seed.
const SIZE: usize = 32;
/// What a seed adds to a value: random bytes, nonce, tag.
pub const OVERHEAD: usize = SIZE + 12 + 16;
/// Keys known at once. There is one for each start of a server and each change of the plugin's key, until values are
/// written again; each is some hundred bytes.
const KNOWN: usize = 4096;

/// A key or a seed, in the clear.
pub enum Dek {
    Seed(hkdf::Prk),
    Key(Cipher),
}

impl Dek {
    /// From what a plugin decrypted.
    pub fn new(source_type: i32, clear: &[u8]) -> Result<Dek, TransformError> {
        if source_type == api::SOURCE_KEY {
            let bad = || TransformError::new(&format!("crypto/aes: invalid key size {}", clear.len()));
            return Ok(Dek::Key(Cipher::gcm(clear).ok_or_else(bad)?));
        }
        if clear.len() < SIZE {
            let text = format!("invalid seed length {} used for key generation", clear.len());
            return Err(TransformError::new(&text));
        }
        Ok(Dek::Seed(hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, clear)))
    }

    /// A new seed, and its bytes for the plugin to encrypt.
    pub fn generate(random: &dyn Random) -> (Dek, [u8; SIZE]) {
        let seed: [u8; SIZE] = random_bytes(random);
        (Dek::Seed(hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &seed)), seed)
    }

    /// Appends the encrypted form of a value, [`OVERHEAD`] bytes longer.
    pub fn seal(
        &self,
        random: &dyn Random,
        context: &[u8],
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), TransformError> {
        let Dek::Seed(seed) = self else {
            return Err(TransformError::new("a key that was read is not for writing"));
        };
        let info: [u8; SIZE] = random_bytes(random);
        out.extend_from_slice(&info);
        derived(seed, &info)?.seal(random, context, data, out)
    }

    /// The value that [`Dek::seal`] was given.
    pub fn open(&self, context: &[u8], data: &[u8]) -> Result<Vec<u8>, TransformError> {
        match self {
            Dek::Key(cipher) => cipher.open(context, data),
            Dek::Seed(seed) => {
                let (info, sealed) = data.split_first_chunk::<SIZE>().ok_or_else(|| {
                    TransformError::new("the stored data was shorter than the required size")
                })?;
                derived(seed, info)?.open(context, sealed)
            }
        }
    }
}

fn derived(seed: &hkdf::Prk, info: &[u8; SIZE]) -> Result<Cipher, TransformError> {
    let mut key = [0; SIZE];
    let info = [info.as_slice()];
    let filled = seed.expand(&info, hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut key));
    let failed = || TransformError::new("failed to derive read key from KDF");
    filled.ok().and_then(|()| Cipher::gcm(&key)).ok_or_else(failed)
}

/// A key that was read in encrypted form.
pub struct Known {
    pub dek: Arc<Dek>,
    /// Counts the values that it opened.
    pub used: Used,
}

#[derive(Default)]
struct Table {
    known: HashMap<[u8; 32], (Arc<Known>, u64)>,
    /// Grows with each use.
    now: u64,
}

/// Keys by the fingerprint of their encrypted form. They stay, so that what was read once can be read while the plugin is
/// down; the one unused for longest makes room.
#[derive(Default)]
pub struct Keys(Mutex<Table>);

impl Keys {
    pub fn get(&self, fingerprint: &[u8; 32]) -> Option<Arc<Known>> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.now += 1;
        let now = table.now;
        table.known.get_mut(fingerprint).map(|(known, at)| {
            *at = now;
            known.clone()
        })
    }

    /// Returns how many there are.
    pub fn insert(&self, fingerprint: [u8; 32], known: Known) -> usize {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.now += 1;
        let now = table.now;
        table.known.insert(fingerprint, (Arc::new(known), now));
        if table.known.len() > KNOWN
            && let Some(oldest) = table.known.iter().min_by_key(|(_, (_, at))| *at).map(|(key, _)| *key)
        {
            table.known.remove(&oldest);
        }
        table.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use kaji_meta::random::SeededRandom;

    fn hex(text: &str) -> Vec<u8> {
        kaji_meta::text::from_hex(text).unwrap()
    }

    /// RFC 5869, appendix A.1: the expand step; its first 32 bytes are our key.
    #[test]
    fn keys_are_derived_as_published() {
        let prk = hex("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
        let seed = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &prk);
        let info = hex("f0f1f2f3f4f5f6f7f8f9");
        let mut okm = [0; 32];
        seed.expand(&[&info], hkdf::HKDF_SHA256).unwrap().fill(&mut okm).unwrap();
        assert_eq!(okm.to_vec(), hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"));
    }

    #[test]
    fn decrypts_only_what_it_encrypted() {
        let random = SeededRandom::new(1);
        let (dek, seed) = Dek::generate(&random);
        let mut sealed = vec![];
        dek.seal(&random, b"/a", b"value", &mut sealed).unwrap();
        assert_eq!(sealed.len(), 5 + OVERHEAD);
        let again = Dek::new(api::SOURCE_SEED, &seed).unwrap();
        assert_eq!(again.open(b"/a", &sealed).unwrap(), b"value");
        let error = |dek: &Dek, at: &[u8], data: &[u8]| dek.open(at, data).unwrap_err().to_string();
        assert_eq!(error(&dek, b"/b", &sealed), "cipher: message authentication failed");
        sealed[0] ^= 1;
        assert_eq!(error(&dek, b"/a", &sealed), "cipher: message authentication failed");
        assert_eq!(error(&dek, b"/a", &sealed[..31]), "the stored data was shorter than the required size");
        let bad = |kind, clear: &[u8]| Dek::new(kind, clear).err().unwrap().to_string();
        assert_eq!(bad(api::SOURCE_SEED, &[1; 31]), "invalid seed length 31 used for key generation");
        assert_eq!(bad(api::SOURCE_KEY, &[1; 5]), "crypto/aes: invalid key size 5");
        // Kubernetes 1.27 wrote with the key itself.
        let cipher = Cipher::gcm(&[1; 32]).unwrap();
        let mut sealed = vec![];
        cipher.seal(&random, b"/a", b"old", &mut sealed).unwrap();
        assert_eq!(Dek::new(api::SOURCE_KEY, &[1; 32]).unwrap().open(b"/a", &sealed).unwrap(), b"old");
    }

    #[test]
    fn evicts_least_recently_used_seed() {
        let (keys, metrics) = (Keys::default(), Metrics::default());
        let key = |n: usize| {
            let mut fingerprint = [0; 32];
            fingerprint[..8].copy_from_slice(&n.to_be_bytes());
            fingerprint
        };
        let known = || Known {
            dek: Arc::new(Dek::generate(&SeededRandom::new(1)).0),
            used: metrics.used("from_storage", "p", "k"),
        };
        for n in 0..KNOWN {
            assert_eq!(keys.insert(key(n), known()), n + 1);
        }
        assert!(keys.get(&key(0)).is_some());
        assert_eq!(keys.insert(key(KNOWN), known()), KNOWN);
        assert!(keys.get(&key(0)).is_some() && keys.get(&key(1)).is_none());
    }
}
