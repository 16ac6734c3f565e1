//! One pass over a layer: digest of the compressed bytes, decompression, digest of the archive, unpacking.
//!
//! Invariant: success means that both digests are as they have to be.

use crate::digest::{Digest, HashingReader};
use crate::error::ImageError;
use crate::tar::TarReader;
use crate::unpack::{Limits, Unpacked, read_error, unpack};
use flate2::bufread::MultiGzDecoder;
use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

const BUFFER: usize = 64 << 10;
/// Window of zstd, as its own program takes it by default (2^27 bytes).
const ZSTD_WINDOW_LOG: u32 = 27;

/// The digests that a layer must have.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Of the bytes as they come.
    pub blob: Option<Digest>,
    /// Of the uncompressed archive.
    pub diff_id: Option<Digest>,
}

/// A layer that is unpacked.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Digest of the bytes as they came.
    pub blob: Digest,
    /// Digest of the uncompressed archive.
    pub diff_id: Digest,
    /// What it holds.
    pub unpacked: Unpacked,
}

/// Unpacks a layer into an empty directory. Its compression is found out from its first bytes.
///
/// # Errors
/// See [`unpack`]; [`ImageError::Digest`].
pub fn unpack_layer(
    source: impl Read,
    expected: &Expected,
    directory: &Path,
    limits: &Limits,
) -> Result<Layer, ImageError> {
    let read = Rc::new(Cell::new(0));
    let counted = Counted { inner: HashingReader::new(source), read: read.clone() };
    let mut compressed = BufReader::with_capacity(BUFFER, counted);
    let archive = Bounded { inner: decoder(&mut compressed)?, written: 0, compressed: read, limits: *limits };
    let mut archive = TarReader::new(HashingReader::new(archive));
    let unpacked = unpack(&mut archive, directory, limits)?;
    let (diff_id, _) = archive.into_inner().finish();
    // A decoder may end before its source does.
    io::copy(&mut compressed, &mut io::sink()).map_err(read_error)?;
    let (blob, _) = compressed.into_inner().inner.finish();
    check("layer", expected.blob.as_ref(), &blob)?;
    check("uncompressed layer", expected.diff_id.as_ref(), &diff_id)?;
    Ok(Layer { blob, diff_id, unpacked })
}

fn check(what: &str, expected: Option<&Digest>, found: &Digest) -> Result<(), ImageError> {
    match expected {
        Some(expected) if expected != found => Err(ImageError::Digest(format!(
            "{what} has digest {found}, expected {expected}: failed precondition"
        ))),
        _ => Ok(()),
    }
}

/// Decompresses whatever the first bytes say.
pub(crate) fn decoder<'a, R: BufRead + 'a>(mut source: R) -> Result<Box<dyn Read + 'a>, ImageError> {
    let first = source.fill_buf().map_err(read_error)?;
    if first.starts_with(&[0x1f, 0x8b]) {
        return Ok(Box::new(MultiGzDecoder::new(source)));
    }
    let skippable = matches!(first, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
    if skippable || first.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(source).map_err(read_error)?;
        decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(read_error)?;
        return Ok(Box::new(decoder));
    }
    if first.starts_with(b"BZh") || first.starts_with(b"\xfd7zXZ") {
        return Err(ImageError::Invalid("layers compressed by bzip2 or xz are not supported".into()));
    }
    Ok(Box::new(source))
}

/// Counts compressed bytes where [`Bounded`] sees it.
struct Counted<R> {
    inner: HashingReader<R>,
    read: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.read.set(self.inner.count());
        Ok(read)
    }
}

/// Ends with an error when more comes out than the limits allow.
struct Bounded<R> {
    inner: R,
    written: u64,
    compressed: Rc<Cell<u64>>,
    limits: Limits,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.written += read as u64;
        let limit = |text| Err(io::Error::other(ImageError::Limit(text)));
        if self.written > self.limits.bytes {
            return limit(format!("layer unpacks to more than {} bytes", self.limits.bytes));
        }
        let most = self.compressed.get().saturating_mul(self.limits.ratio);
        if self.written > self.limits.ratio_from && self.written > most {
            return limit(format!("layer unpacks to more than {} times its size", self.limits.ratio));
        }
        Ok(read)
    }
}
