//! Digests of content: `sha256:` and 64 hexadecimal digits, the only algorithm that registries use.

use crate::error::ImageError;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::io::{self, Read};

const PREFIX: &str = "sha256:";
const HEX: &[u8; 16] = b"0123456789abcdef";

/// A SHA-256 digest, in lower case with its prefix.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// Parses `sha256:HEX`.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] for another algorithm or form.
    pub fn parse(text: &str) -> Result<Digest, ImageError> {
        let valid = text.strip_prefix(PREFIX).is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_hex));
        if valid {
            Ok(Digest(text.to_owned()))
        } else {
            Err(ImageError::Invalid(format!("invalid digest {text:?}: only sha256 digests are supported")))
        }
    }

    /// The digest of bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The 64 digits.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.0[PREFIX.len()..]
    }

    /// With its prefix.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Of a stack of layers: the chain below (if any) and the uncompressed digest of the layer on top of it.
    #[must_use]
    pub fn chain(below: Option<&Digest>, diff: &Digest) -> Digest {
        match below {
            None => diff.clone(),
            Some(below) => Digest::of(format!("{below} {diff}").as_bytes()),
        }
    }
}

fn is_hex(byte: u8) -> bool {
    HEX.contains(&byte)
}

impl TryFrom<String> for Digest {
    type Error = ImageError;

    fn try_from(text: String) -> Result<Digest, ImageError> {
        Digest::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Computes a digest.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Takes more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all of them.
    #[must_use]
    pub fn finish(self) -> Digest {
        let mut text = String::with_capacity(PREFIX.len() + 64);
        text.push_str(PREFIX);
        for byte in self.0.finalize() {
            text.push(char::from(HEX[usize::from(byte >> 4)]));
            text.push(char::from(HEX[usize::from(byte & 15)]));
        }
        Digest(text)
    }
}

/// A reader that computes the digest of what is read from it, and counts it.
pub struct HashingReader<R> {
    inner: R,
    hasher: Hasher,
    read: u64,
}

impl<R: Read> HashingReader<R> {
    /// Around another reader.
    pub fn new(inner: R) -> HashingReader<R> {
        HashingReader { inner, hasher: Hasher::default(), read: 0 }
    }

    /// Bytes so far.
    pub fn count(&self) -> u64 {
        self.read
    }

    /// Digest and number of all bytes that were read.
    pub fn finish(self) -> (Digest, u64) {
        (self.hasher.finish(), self.read)
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        self.read += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_parsed_strictly() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").as_str(), empty);
        assert_eq!(Digest::parse(empty).unwrap(), Digest::of(b""));
        for bad in
            ["", "sha256:", "sha512:00", &empty.to_uppercase(), &empty[..70], "sha256:../../../etc/passwd"]
        {
            assert!(Digest::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_chain_is_the_digest_of_the_chain_below_and_the_layer() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        assert_eq!(Digest::chain(None, &a), a);
        assert_eq!(Digest::chain(Some(&a), &b), Digest::of(format!("{a} {b}").as_bytes()));
    }
}
