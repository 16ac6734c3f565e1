//! Header blocks: names and values, compressed by one zlib stream a direction of a connection.
//!
//! Invariant: a block never makes more than [`MAX_BLOCK`] bytes and [`MAX_HEADERS`] headers, whatever it says.

use super::{
    SpdyError,
    dictionary::{DICTIONARY, DICTIONARY_ID},
};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The largest block, decompressed.
const MAX_BLOCK: usize = 64 << 10;
/// The most headers of a block.
const MAX_HEADERS: usize = 256;

/// Headers of a stream, in order; names are in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(String, String)>);

impl Headers {
    /// From names and values.
    #[must_use]
    pub fn of(pairs: &[(&str, &str)]) -> Headers {
        Headers(pairs.iter().map(|(name, value)| (name.to_ascii_lowercase(), (*value).to_owned())).collect())
    }

    /// The first value of a header, empty without one. `name` is compared without case.
    #[must_use]
    pub fn first(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        let values = found.map_or("", |(_, value)| value);
        values.split('\0').next().unwrap_or_default()
    }
}

/// Compresses the blocks of one direction.
pub(super) struct Deflater(Compress);

impl Deflater {
    pub(super) fn new() -> Result<Deflater, SpdyError> {
        let mut compress = Compress::new(Compression::best(), true);
        compress.set_dictionary(&DICTIONARY).map_err(|_| SpdyError::HeaderBlock)?;
        Ok(Deflater(compress))
    }

    /// Appends the compressed block to `out`.
    pub(super) fn append(&mut self, headers: &Headers, out: &mut Vec<u8>) -> Result<(), SpdyError> {
        let mut plain = Vec::new();
        let length = |n: usize| u32::try_from(n).map_err(|_| SpdyError::HeaderBlockTooLarge);
        plain.extend(length(headers.0.len())?.to_be_bytes());
        for (name, value) in &headers.0 {
            for text in [name, value] {
                plain.extend(length(text.len())?.to_be_bytes());
                plain.extend(text.as_bytes());
            }
        }
        if plain.len() > MAX_BLOCK {
            return Err(SpdyError::HeaderBlockTooLarge);
        }
        let mut rest = &plain[..];
        let mut chunk = [0; 1024];
        loop {
            let (read, written) = (self.0.total_in(), self.0.total_out());
            self.0.compress(rest, &mut chunk, FlushCompress::Sync).map_err(|_| SpdyError::HeaderBlock)?;
            let (read, written) = (self.0.total_in() - read, self.0.total_out() - written);
            rest = rest.get(read as usize..).unwrap_or_default();
            let written = usize::try_from(written).map_err(|_| SpdyError::HeaderBlock)?;
            out.extend(&chunk[..written]);
            if rest.is_empty() && written < chunk.len() {
                return Ok(());
            }
        }
    }
}

/// Decompresses the blocks of one direction.
pub(super) struct Inflater {
    decompress: Decompress,
    has_dictionary: bool,
}

impl Inflater {
    pub(super) fn new() -> Inflater {
        Inflater { decompress: Decompress::new(true), has_dictionary: false }
    }

    /// The headers of a compressed block.
    pub(super) fn headers(&mut self, block: &[u8]) -> Result<Headers, SpdyError> {
        parse(&self.inflate(block)?)
    }

    fn inflate(&mut self, mut block: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let mut plain = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let (read, written) = (self.decompress.total_in(), self.decompress.total_out());
            let result = self.decompress.decompress(block, &mut chunk, FlushDecompress::Sync);
            let (read, written) = (self.decompress.total_in() - read, self.decompress.total_out() - written);
            block = block.get(read as usize..).ok_or(SpdyError::HeaderBlock)?;
            let written = usize::try_from(written).map_err(|_| SpdyError::HeaderBlock)?;
            plain.extend(&chunk[..written]);
            if plain.len() > MAX_BLOCK {
                return Err(SpdyError::HeaderBlockTooLarge);
            }
            match result {
                Ok(Status::StreamEnd) => return Err(SpdyError::HeaderBlock),
                Ok(_) if block.is_empty() && written < chunk.len() => return Ok(plain),
                Ok(_) if read == 0 && written == 0 => return Err(SpdyError::HeaderBlock),
                Ok(_) => {}
                Err(error) if error.needs_dictionary() == Some(DICTIONARY_ID) && !self.has_dictionary => {
                    self.decompress.set_dictionary(&DICTIONARY).map_err(|_| SpdyError::HeaderBlock)?;
                    self.has_dictionary = true;
                }
                Err(_) => return Err(SpdyError::HeaderBlock),
            }
        }
    }
}

/// The headers of a plain block. Duplicate names and names with capitals are violations of the protocol.
fn parse(plain: &[u8]) -> Result<Headers, SpdyError> {
    let mut rest = plain;
    let count = number(&mut rest)?;
    if count > MAX_HEADERS {
        return Err(SpdyError::HeaderBlockTooLarge);
    }
    let mut headers = Headers(Vec::with_capacity(count));
    for _ in 0..count {
        let (name, value) = (text(&mut rest)?, text(&mut rest)?);
        let duplicate = headers.0.iter().any(|(n, _)| *n == name);
        if duplicate || name.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(SpdyError::HeaderBlock);
        }
        headers.0.push((name, value));
    }
    if rest.is_empty() { Ok(headers) } else { Err(SpdyError::HeaderBlock) }
}

fn number(rest: &mut &[u8]) -> Result<usize, SpdyError> {
    let (number, after) = rest.split_first_chunk::<4>().ok_or(SpdyError::HeaderBlock)?;
    *rest = after;
    usize::try_from(u32::from_be_bytes(*number)).map_err(|_| SpdyError::HeaderBlock)
}

fn text(rest: &mut &[u8]) -> Result<String, SpdyError> {
    let length = number(rest)?;
    let (text, after) = rest.split_at_checked(length).ok_or(SpdyError::HeaderBlock)?;
    *rest = after;
    Ok(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bomb_is_refused_before_it_is_large() {
        let mut compress = Compress::new(Compression::best(), true);
        compress.set_dictionary(&DICTIONARY).unwrap();
        let mut bomb = Vec::with_capacity(1 << 20);
        let mut plain = vec![0, 0, 0, 1, 0, 0, 0, 1, b'x', 0x02, 0, 0, 0];
        plain.resize(32 << 20, b'a');
        compress.compress_vec(&plain, &mut bomb, FlushCompress::Sync).unwrap();
        assert!(bomb.len() < 64 << 10, "{}", bomb.len());
        assert_eq!(Inflater::new().headers(&bomb), Err(SpdyError::HeaderBlockTooLarge));
    }

    #[test]
    fn blocks_share_their_compression_state() {
        let (mut deflater, mut inflater) = (Deflater::new().unwrap(), Inflater::new());
        let headers = Headers::of(&[("streamType", "error"), ("port", "8080")]);
        let mut sizes = vec![];
        for _ in 0..3 {
            let mut block = vec![];
            deflater.append(&headers, &mut block).unwrap();
            assert_eq!(inflater.headers(&block), Ok(headers.clone()));
            sizes.push(block.len());
        }
        assert!(sizes[1] < sizes[0], "{sizes:?}");
    }

    #[test]
    fn counts_and_lengths_are_not_trusted() {
        for plain in [
            &b"\0\0"[..],
            b"\xff\xff\xff\xff",
            b"\0\0\0\x01\0\0\0\x05abc",
            b"\0\0\0\x01\0\0\0\x01a\xff\xff\xff\xff",
            b"\0\0\0\x01\0\0\0\x01A\0\0\0\0",
            b"\0\0\0\x02\0\0\0\x01a\0\0\0\0\0\0\0\x01a\0\0\0\0",
            b"\0\0\0\0x",
        ] {
            assert!(parse(plain).is_err(), "{plain:?}");
        }
    }

    #[test]
    fn the_first_of_several_values_counts() {
        let headers = Headers(vec![("port".into(), "80\x0081".into())]);
        assert_eq!((headers.first("Port"), headers.first("x")), ("80", ""));
    }
}
