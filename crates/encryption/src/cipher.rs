//! The ciphers, from bytes to bytes. Layouts are upstream's: nonce or IV first, then the ciphertext (with its tag).
//!
//! Invariant: a nonce comes from the randomness that was passed in, which must be cryptographic, and is used once.

use crate::TransformError;
use aes_gcm::{
    AeadInOut, AesGcm, KeyInit,
    aes::{
        Aes128, Aes192, Aes256,
        cipher::{BlockModeDecrypt, BlockModeEncrypt, KeyIvInit, block_padding::NoPadding, consts::U12},
    },
};
use crypto_secretbox::{XSalsa20Poly1305, aead::AeadInPlace};
use kaji_meta::random::Random;

const GCM_NONCE: usize = 12;
const BLOCK: usize = 16;
const BOX_NONCE: usize = 24;
const BOX_TAG: usize = 16;

/// A key made ready for its cipher.
pub enum Cipher {
    /// AES-GCM by key size.
    Gcm128(Box<AesGcm<Aes128, U12>>),
    /// 24 bytes.
    Gcm192(Box<AesGcm<Aes192, U12>>),
    /// 32 bytes.
    Gcm256(Box<AesGcm<Aes256, U12>>),
    /// AES-CBC with PKCS#7 padding; the key schedule is cheap beside the encryption.
    Cbc(Vec<u8>),
    /// XSalsa20-Poly1305 as in NaCl.
    Secretbox(Box<XSalsa20Poly1305>),
}

fn failure(text: &str) -> TransformError {
    TransformError::new(text)
}

pub fn random_bytes<const N: usize>(random: &dyn Random) -> [u8; N] {
    let mut out = [0; N];
    for chunk in out.chunks_mut(8) {
        chunk.copy_from_slice(&random.u64().to_le_bytes()[..chunk.len()]);
    }
    out
}

/// Runs a body with the AES-GCM of whatever key size.
macro_rules! with_gcm {
    ($cipher:expr, $gcm:ident => $body:expr) => {
        match $cipher {
            Cipher::Gcm128($gcm) => Some($body),
            Cipher::Gcm192($gcm) => Some($body),
            Cipher::Gcm256($gcm) => Some($body),
            _ => None,
        }
    };
}

/// Runs a body with `Mode<Aes…>` as `$mode`, by key size.
macro_rules! by_key_size {
    ($key:expr, $kind:ident, $mode:ident => $body:expr) => {
        match $key.len() {
            16 => {
                type $mode = cbc::$kind<Aes128>;
                $body
            }
            24 => {
                type $mode = cbc::$kind<Aes192>;
                $body
            }
            _ => {
                type $mode = cbc::$kind<Aes256>;
                $body
            }
        }
    };
}

impl Cipher {
    /// AES-GCM. `None`: the key is not of 16, 24 or 32 bytes.
    pub fn gcm(key: &[u8]) -> Option<Cipher> {
        match key.len() {
            16 => AesGcm::new_from_slice(key).ok().map(|c| Cipher::Gcm128(Box::new(c))),
            24 => AesGcm::new_from_slice(key).ok().map(|c| Cipher::Gcm192(Box::new(c))),
            32 => AesGcm::new_from_slice(key).ok().map(|c| Cipher::Gcm256(Box::new(c))),
            _ => None,
        }
    }

    /// AES-CBC. `None`: the key is not of 16, 24 or 32 bytes.
    pub fn cbc(key: &[u8]) -> Option<Cipher> {
        matches!(key.len(), 16 | 24 | 32).then(|| Cipher::Cbc(key.to_vec()))
    }

    /// Secretbox. `None`: the key is not of 32 bytes.
    pub fn secretbox(key: &[u8]) -> Option<Cipher> {
        let made = <XSalsa20Poly1305 as crypto_secretbox::KeyInit>::new_from_slice(key).ok()?;
        Some(Cipher::Secretbox(Box::new(made)))
    }

    /// Appends the encrypted form of `data` to `out`. `context` is authenticated where the cipher can (AES-GCM).
    pub fn seal(
        &self,
        random: &dyn Random,
        context: &[u8],
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), TransformError> {
        match self {
            Cipher::Gcm128(_) | Cipher::Gcm192(_) | Cipher::Gcm256(_) => {
                let nonce: [u8; GCM_NONCE] = random_bytes(random);
                out.extend_from_slice(&nonce);
                let start = out.len();
                out.extend_from_slice(data);
                let sealed = with_gcm!(self, gcm => gcm.encrypt_inout_detached(&nonce.into(), context, out[start..].as_mut().into()));
                let tag =
                    sealed.and_then(Result::ok).ok_or_else(|| failure("the data is too long for AES-GCM"))?;
                out.extend_from_slice(&tag);
            }
            Cipher::Cbc(key) => {
                let iv: [u8; BLOCK] = random_bytes(random);
                out.extend_from_slice(&iv);
                let start = out.len();
                out.extend_from_slice(data);
                let padding = BLOCK - data.len() % BLOCK;
                // At most a block.
                out.resize(out.len() + padding, padding as u8);
                let whole = out.len() - start;
                by_key_size!(key, Encryptor, Mode => {
                    let mode = Mode::new_from_slices(key, &iv).map_err(|_| failure("invalid key"))?;
                    mode.encrypt_padded::<NoPadding>(&mut out[start..], whole)
                        .map_err(|_| failure("the padding is wrong"))?;
                });
            }
            Cipher::Secretbox(cipher) => {
                let nonce: [u8; BOX_NONCE] = random_bytes(random);
                out.extend_from_slice(&nonce);
                // NaCl puts the tag before the ciphertext.
                let start = out.len();
                out.resize(start + BOX_TAG, 0);
                out.extend_from_slice(data);
                let tag = cipher
                    .encrypt_in_place_detached(&nonce.into(), &[], &mut out[start + BOX_TAG..])
                    .map_err(|_| failure("the data is too long for secretbox"))?;
                out[start..start + BOX_TAG].copy_from_slice(&tag);
            }
        }
        Ok(())
    }

    /// The clear data of what [`Cipher::seal`] made. Error texts are upstream's.
    pub fn open(&self, context: &[u8], data: &[u8]) -> Result<Vec<u8>, TransformError> {
        let short = || failure("the stored data was shorter than the required size");
        match self {
            Cipher::Gcm128(_) | Cipher::Gcm192(_) | Cipher::Gcm256(_) => {
                let (nonce, sealed) = data.split_first_chunk::<GCM_NONCE>().ok_or_else(short)?;
                let mut out = sealed.to_vec();
                let opened =
                    with_gcm!(self, gcm => gcm.decrypt_in_place(&(*nonce).into(), context, &mut out));
                opened
                    .and_then(Result::ok)
                    .ok_or_else(|| failure("cipher: message authentication failed"))?;
                Ok(out)
            }
            Cipher::Cbc(key) => open_cbc(key, data),
            Cipher::Secretbox(cipher) => {
                let (nonce, rest) = data.split_first_chunk::<BOX_NONCE>().ok_or_else(short)?;
                let (tag, sealed) = rest.split_first_chunk::<BOX_TAG>().ok_or_else(short)?;
                let mut out = sealed.to_vec();
                cipher
                    .decrypt_in_place_detached(&(*nonce).into(), &[], &mut out, &(*tag).into())
                    .map_err(|_| failure("output array was not large enough for encryption"))?;
                Ok(out)
            }
        }
    }
}

fn open_cbc(key: &[u8], data: &[u8]) -> Result<Vec<u8>, TransformError> {
    let (iv, sealed) = data
        .split_first_chunk::<BLOCK>()
        .ok_or_else(|| failure("the stored data was shorter than the required size"))?;
    if !sealed.len().is_multiple_of(BLOCK) {
        return Err(failure("the stored data is not a multiple of the block size"));
    }
    let mut out = sealed.to_vec();
    by_key_size!(key, Decryptor, Mode => {
        let mode = Mode::new_from_slices(key, iv).map_err(|_| failure("invalid key"))?;
        mode.decrypt_padded::<NoPadding>(&mut out).map_err(|_| failure("the padding is wrong"))?;
    });
    let padding = out.last().copied().map_or(0, usize::from);
    let Some(size) = out.len().checked_sub(padding).filter(|_| padding > 0) else {
        return Err(failure("invalid PKCS7 data (empty or not padded)"));
    };
    if out[size..].iter().any(|b| usize::from(*b) != padding) {
        return Err(failure("invalid padding on input"));
    }
    out.truncate(size);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::random::SeededRandom;
    use proptest::prelude::*;

    fn hex(text: &str) -> Vec<u8> {
        kaji_meta::text::from_hex(text).unwrap()
    }

    fn all(key: u8) -> Vec<Cipher> {
        let mut all = vec![Cipher::secretbox(&[key; 32]).unwrap()];
        for size in [16, 24, 32] {
            all.push(Cipher::gcm(&vec![key; size]).unwrap());
            all.push(Cipher::cbc(&vec![key; size]).unwrap());
        }
        all
    }

    /// NIST's test case 16 of the GCM specification (256 bit key, additional data).
    #[test]
    fn gcm_opens_a_published_vector() {
        let key = hex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308");
        let sealed = hex(concat!(
            "cafebabefacedbaddecaf888",
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa",
            "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
            "76fc6ece0f4e1768cddf8853bb2d551b"
        ));
        let context = hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
        let clear = Cipher::gcm(&key).unwrap().open(&context, &sealed).unwrap();
        assert_eq!(clear[..4], hex("d9313225"));
        assert_eq!(clear.len(), 60);
    }

    /// NIST SP 800-38A, F.2.1, with a block of padding behind it made by the same key.
    #[test]
    fn cbc_opens_a_published_vector() {
        let key = hex("2b7e151628aed2a6abf7158809cf4f3c");
        let sealed = hex(concat!(
            "000102030405060708090a0b0c0d0e0f",
            "7649abac8119b246cee98e9b12e9197d",
            "8964e0b149c10b7b682e6e39aaeb731c"
        ));
        assert_eq!(
            Cipher::cbc(&key).unwrap().open(b"", &sealed).unwrap(),
            hex("6bc1bee22e409f96e93d7e117393172a")
        );
    }

    /// The vector of NaCl's own `secretbox` test.
    #[test]
    fn secretbox_opens_a_published_vector() {
        let key = hex("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389");
        let sealed = hex(concat!(
            "69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37",
            "f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce48332ea7164d96a4476fb8c531a1186a",
            "c0dfc17c98dce87b4da7f011ec48c97271d2c20f9b928fe2270d6fb863d51738b48eeee314a7cc8ab932164548e526ae",
            "90224368517acfeabd6bb3732bc0e9da99832b61ca01b6de56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74e355a5"
        ));
        let clear = Cipher::secretbox(&key).unwrap().open(b"", &sealed).unwrap();
        assert_eq!(clear.len(), 131);
        assert_eq!(clear[..8], hex("be075fc53c81f2d5"));
    }

    proptest! {
        #[test]
        fn decrypts_what_it_encrypted(data in proptest::collection::vec(any::<u8>(), 0..70), seed: u64) {
            let random = SeededRandom::new(seed);
            for (cipher, other) in all(7).iter().zip(all(8)) {
                let mut sealed = b"prefix:".to_vec();
                cipher.seal(&random, b"/key", &data, &mut sealed).unwrap();
                prop_assert_eq!(&cipher.open(b"/key", &sealed[7..]).unwrap(), &data);
                // CBC does not authenticate: a wrong key shows as wrong padding, mostly.
                if !matches!(cipher, Cipher::Cbc(_)) {
                    prop_assert!(other.open(b"/key", &sealed[7..]).is_err());
                }
            }
        }

        #[test]
        fn random_values_do_not_panic(data in proptest::collection::vec(any::<u8>(), 0..70)) {
            for cipher in all(7) {
                let _ = cipher.open(b"/key", &data);
            }
        }
    }

    #[test]
    fn a_value_moved_to_another_key_does_not_open() {
        let cipher = Cipher::gcm(&[1; 32]).unwrap();
        let mut sealed = vec![];
        cipher.seal(&SeededRandom::new(1), b"/a", b"data", &mut sealed).unwrap();
        assert_eq!(
            cipher.open(b"/b", &sealed).unwrap_err().to_string(),
            "cipher: message authentication failed"
        );
    }
}
