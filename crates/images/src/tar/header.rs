//! The header block of an entry: fixed fields, numbers in octal or in GNU's base 256.

use super::{BLOCK, malformed};
use std::io;

/// The fields of a header block.
pub(super) struct Header {
    pub name: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: u8,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub mtime: i64,
    pub device: (u32, u32),
}

impl Header {
    pub fn parse(block: &[u8; BLOCK]) -> io::Result<Header> {
        check(block)?;
        let ustar = &block[257..263] == b"ustar\0";
        let gnu = &block[257..265] == b"ustar  \0";
        let mut name = text(&block[..100]).to_vec();
        let prefix = text(&block[345..500]);
        if ustar && !prefix.is_empty() {
            name = [prefix, b"/", &name].concat();
        }
        let device = match ustar || gnu {
            true => (small(&block[329..337], "device")?, small(&block[337..345], "device")?),
            false => (0, 0),
        };
        let size = number(&block[124..136]).and_then(|n| u64::try_from(n).ok());
        Ok(Header {
            name,
            link: text(&block[157..257]).to_vec(),
            kind: block[156],
            mode: small(&block[100..108], "mode")?,
            uid: small(&block[108..116], "uid")?,
            gid: small(&block[116..124], "gid")?,
            size: size.ok_or_else(|| malformed("size"))?,
            mtime: number(&block[136..148]).ok_or_else(|| malformed("mtime"))?,
            device,
        })
    }
}

/// The sum of all bytes, the checksum itself taken as blanks. Old programs summed signed bytes.
fn check(block: &[u8; BLOCK]) -> io::Result<()> {
    let stored = number(&block[148..156]);
    let (mut unsigned, mut signed) = (0_i64, 0_i64);
    for (at, byte) in block.iter().enumerate() {
        let byte = if (148..156).contains(&at) { b' ' } else { *byte };
        unsigned += i64::from(byte);
        signed += i64::from(byte.cast_signed());
    }
    if stored == Some(unsigned) || stored == Some(signed) { Ok(()) } else { Err(malformed("checksum")) }
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or_default()
}

fn small(field: &[u8], what: &str) -> io::Result<u32> {
    number(field).and_then(|n| u32::try_from(n).ok()).ok_or_else(|| malformed(what))
}

/// Octal digits between blanks and NULs, or a big-endian number in two's complement marked by the first bit.
fn number(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        let negative = first & 0x40 != 0;
        let mut value: i128 = if negative { -1 } else { 0 };
        for (at, byte) in field.iter().enumerate() {
            let byte = if at == 0 && !negative { byte & 0x7f } else { *byte };
            value = value << 8 | i128::from(byte);
        }
        return i64::try_from(value).ok();
    }
    let digits = field.trim_ascii_start();
    let digits = digits.split(|b| *b == 0 || *b == b' ').next().unwrap_or_default();
    let digits = std::str::from_utf8(digits).ok()?;
    if digits.is_empty() {
        return Some(0);
    }
    if digits.starts_with(['+', '-']) { None } else { i64::from_str_radix(digits, 8).ok() }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(b"\x80\0\0\0\0\0\x01\0"), Some(256));
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xfe"), Some(-2));
        assert_eq!(number(b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None);
        assert_eq!(number(b"-1\0"), None);
        assert_eq!(number(b"9\0"), None);
    }
}
