//! Files that are encrypted as a whole with a key of their user's, as snapshots are with `--key-file`: a stream that is written and
//! read in pieces.
//!
//! Layout: the line `kaji-sealed 1`; a salt (32 bytes); pieces of a tag (1 for the last piece, else 0), a length (4, little endian), and
//! that many bytes of AES-256-GCM with its authentication tag. Each file has a key of its own, HMAC-SHA-256 of the salt under the user's
//! key; the nonce of a piece is its number; a piece's tag and length are authenticated.
//!
//! Invariants: what was not authenticated is never handed out; pieces that were left out, exchanged, added or cut off are errors; memory
//! is bounded by a piece, whatever a file says.

use base64::Engine as _;
use kaji_meta::random::Random;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// What sealed files begin with.
pub const MAGIC: &[u8; 14] = b"kaji-sealed 1\n";
const SALT: usize = 32;
/// Bytes of a piece before it is encrypted.
const PIECE: usize = 64 << 10;
const LAST: u8 = 1;
/// Of a piece before its ciphertext.
const HEAD: usize = 5;
/// A key file is a line; what is longer is another file.
const MOST_KEY_FILE: u64 = 4096;

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Its content.
    #[error("{0}: expected 32 bytes in base64, as `head -c 32 /dev/urandom | base64` prints them")]
    Form(PathBuf),
}

/// A user's key, of 256 bits.
#[derive(Clone, PartialEq, Eq)]
pub struct SealingKey([u8; 32]);

impl std::fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealingKey")
    }
}

impl SealingKey {
    /// Reads a key from a file: 32 bytes in base64, as in an EncryptionConfiguration.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn read(path: &Path) -> Result<SealingKey, KeyFileError> {
        let failed = |source| KeyFileError::File { path: path.to_owned(), source };
        let mut text = vec![];
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MOST_KEY_FILE).read_to_end(&mut text).map_err(failed)?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(text.trim_ascii());
        let key = bytes.ok().and_then(|bytes| bytes.try_into().ok());
        key.map(SealingKey).ok_or_else(|| KeyFileError::Form(path.to_owned()))
    }

    /// The key of one file.
    fn of_file(&self, salt: &[u8; SALT]) -> io::Result<LessSafeKey> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let derived = hmac::sign(&key, &[&MAGIC[..], salt].concat());
        let key = UnboundKey::new(&AES_256_GCM, derived.as_ref());
        key.map(LessSafeKey::new).map_err(|_| io::Error::other("the key of a file cannot be derived"))
    }
}

/// Numbers never repeat under a key: a file has a key of its own.
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Writes a sealed file.
pub struct SealedWriter<W> {
    out: W,
    key: LessSafeKey,
    piece: Vec<u8>,
    number: u64,
}

impl<W: Write> SealedWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// The file's.
    pub fn begin(mut out: W, key: &SealingKey, random: &dyn Random) -> io::Result<SealedWriter<W>> {
        let mut salt = [0; SALT];
        salt.chunks_mut(8).for_each(|part| part.copy_from_slice(&random.u64().to_le_bytes()));
        out.write_all(MAGIC)?;
        out.write_all(&salt)?;
        Ok(SealedWriter { out, key: key.of_file(&salt)?, piece: Vec::with_capacity(PIECE), number: 0 })
    }

    fn put(&mut self, tag: u8) -> io::Result<()> {
        let mut piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        let length = u32::try_from(piece.len() + AES_256_GCM.tag_len()).map_err(io::Error::other)?;
        let mut head = [tag; HEAD];
        head[1..].copy_from_slice(&length.to_le_bytes());
        self.key
            .seal_in_place_append_tag(nonce(self.number), Aad::from(head), &mut piece)
            .map_err(|_| io::Error::other("a piece cannot be encrypted"))?;
        self.number += 1;
        self.out.write_all(&head)?;
        self.out.write_all(&piece)
    }

    /// Ends the file; without this it counts as cut off.
    ///
    /// # Errors
    /// The file's.
    pub fn finish(mut self) -> io::Result<W> {
        self.put(LAST)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

impl<W: Write> Write for SealedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        if self.piece.len() == PIECE {
            self.put(0)?;
        }
        Ok(taken)
    }

    /// Whole pieces are written as they are filled; the rest stays until the next one or the end.
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Reads a sealed file.
pub struct SealedReader<R> {
    input: R,
    key: LessSafeKey,
    piece: Vec<u8>,
    /// Of the piece that was handed out.
    at: usize,
    number: u64,
    ended: bool,
}

impl<R: Read> SealedReader<R> {
    /// Reads the head of a file, from its beginning.
    ///
    /// # Errors
    /// The file's; `InvalidData` for one that is not sealed.
    pub fn open(mut input: R, key: &SealingKey) -> io::Result<SealedReader<R>> {
        let (mut magic, mut salt) = ([0; MAGIC.len()], [0; SALT]);
        input.read_exact(&mut magic)?;
        if magic != *MAGIC {
            return Err(invalid("it is not encrypted"));
        }
        input.read_exact(&mut salt)?;
        Ok(SealedReader { input, key: key.of_file(&salt)?, piece: vec![], at: 0, number: 0, ended: false })
    }

    /// Reads and checks the next piece.
    fn fill(&mut self) -> io::Result<()> {
        self.at = 0;
        let taken = self.take_piece();
        if taken.is_err() {
            self.piece.clear();
        }
        taken
    }

    fn take_piece(&mut self) -> io::Result<()> {
        let mut head = [0; HEAD];
        self.input.read_exact(&mut head)?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let tag = AES_256_GCM.tag_len();
        if !(tag..=PIECE + tag).contains(&length) {
            return Err(invalid("it is damaged: a piece has an impossible length"));
        }
        self.piece.resize(length, 0);
        self.input.read_exact(&mut self.piece)?;
        let opened = self.key.open_in_place(nonce(self.number), Aad::from(head), &mut self.piece);
        let Ok(opened) = opened.map(|opened| opened.len()) else {
            return Err(invalid(match self.number {
                0 => "it is encrypted with another key, or damaged",
                _ => "it is damaged",
            }));
        };
        self.piece.truncate(opened);
        (self.number, self.ended) = (self.number + 1, head[0] == LAST);
        if self.ended && self.input.read(&mut [0])? != 0 {
            return Err(invalid("it is damaged: there is more after its end"));
        }
        Ok(())
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl<R: Read> Read for SealedReader<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() && !self.ended {
            self.fill()?;
        }
        let taken = bytes.len().min(self.piece.len() - self.at);
        bytes[..taken].copy_from_slice(&self.piece[self.at..self.at + taken]);
        self.at += taken;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::random::SeededRandom;
    use proptest::prelude::*;

    const KEY: SealingKey = SealingKey([7; 32]);

    fn seal(bytes: &[u8], seed: u64) -> Vec<u8> {
        let mut writer = SealedWriter::begin(vec![], &KEY, &SeededRandom::new(seed)).unwrap();
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    fn open(bytes: &[u8], key: &SealingKey) -> io::Result<Vec<u8>> {
        let mut all = vec![];
        SealedReader::open(bytes, key)?.read_to_end(&mut all)?;
        Ok(all)
    }

    #[test]
    fn files_of_every_length_are_read_back() {
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE] {
            let text: Vec<u8> = (0..length).map(|at| at as u8).collect();
            assert_eq!(open(&seal(&text, 1), &KEY).unwrap(), text, "{length}");
        }
    }

    #[test]
    fn equal_files_differ_when_sealed() {
        assert_ne!(seal(b"the same", 1)[MAGIC.len() + SALT..], seal(b"the same", 2)[MAGIC.len() + SALT..]);
    }

    #[test]
    fn refuses_another_key_and_other_files() {
        let text = |error: io::Error| error.to_string();
        assert_eq!(
            text(open(&seal(b"text", 1), &SealingKey([8; 32])).unwrap_err()),
            "it is encrypted with another key, or damaged"
        );
        assert_eq!(text(open(b"kaji-snapshot 1\nand so on", &KEY).unwrap_err()), "it is not encrypted");
        assert!(open(b"", &KEY).is_err());
    }

    #[test]
    fn refuses_pieces_that_were_left_out_exchanged_or_added() {
        let sealed = seal(&vec![3; 2 * PIECE], 1);
        let (head, piece) = (MAGIC.len() + SALT, HEAD + PIECE + AES_256_GCM.tag_len());
        let part = |number: usize| &sealed[head + number * piece..head + (number + 1) * piece];
        let end = &sealed[head + 2 * piece..];
        for pieces in
            [vec![part(1), end], vec![part(1), part(0), end], vec![part(0), part(1)], vec![part(0), end]]
        {
            let changed = [&[&sealed[..head]], &pieces[..]].concat().concat();
            assert!(open(&changed, &KEY).is_err(), "{}", pieces.len());
        }
        assert!(open(&[&sealed[..], end].concat(), &KEY).is_err());
    }

    #[test]
    fn key_files_hold_32_bytes_in_base64() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\n").unwrap();
        assert_eq!(SealingKey::read(&path).unwrap(), KEY);
        for text in ["", "BwcH", "a passphrase", "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc="] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(SealingKey::read(&path), Err(KeyFileError::Form(_))), "{text}");
        }
        assert!(matches!(SealingKey::read(&dir.path().join("none")), Err(KeyFileError::File { .. })));
    }

    proptest! {
        #[test]
        fn changed_and_cut_off_files_are_refused(
            length in 0..PIECE + 100,
            place in any::<prop::sample::Index>(),
            bit in 0..8_u8,
        ) {
            let sealed = seal(&vec![5; length], 1);
            let at = place.index(sealed.len());
            prop_assert!(open(&sealed[..at], &KEY).is_err());
            let mut changed = sealed.clone();
            changed[at] ^= 1 << bit;
            prop_assert!(open(&changed, &KEY).is_err());
        }
    }
}
