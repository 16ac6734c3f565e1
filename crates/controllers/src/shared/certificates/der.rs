//! Just enough DER to write a certificate. Every function gives a whole element.
//!
//! Source: ITU-T X.690; tags as X.509 uses them.

pub const SEQUENCE: u8 = 0x30;
pub const SET: u8 = 0x31;
pub const BIT_STRING: u8 = 0x03;
pub const OCTET_STRING: u8 = 0x04;
pub const OID: u8 = 0x06;
const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// An element with a content of several parts.
pub fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|p| p.len()).sum();
    let mut out = Vec::with_capacity(length + 6);
    out.push(tag);
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let bytes = &bytes[bytes.iter().take_while(|b| **b == 0).count()..];
        out.push(0x80 | bytes.len() as u8);
        out.extend_from_slice(bytes);
    }
    parts.iter().for_each(|p| out.extend_from_slice(p));
    out
}

/// An element that contains a list of elements.
pub fn list(tag: u8, items: &[Vec<u8>]) -> Vec<u8> {
    element(tag, &items.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// A set in the order that DER demands.
pub fn set_of(mut items: Vec<Vec<u8>>) -> Vec<u8> {
    items.sort();
    list(SET, &items)
}

/// A number that is not negative, from its bytes.
pub fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let bytes = &bytes[bytes.iter().take_while(|b| **b == 0).count()..];
    match bytes.first() {
        None => element(INTEGER, &[&[0]]),
        Some(first) if *first >= 0x80 => element(INTEGER, &[&[0], bytes]),
        Some(_) => element(INTEGER, &[bytes]),
    }
}

/// TRUE.
pub fn yes() -> Vec<u8> {
    element(BOOLEAN, &[&[0xff]])
}

/// A string of the narrowest of the two types that names use.
pub fn text(text: &str) -> Vec<u8> {
    let printable = |b: u8| b.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&b);
    let tag = if text.bytes().all(printable) { PRINTABLE_STRING } else { UTF8_STRING };
    element(tag, &[text.as_bytes()])
}

/// Bits, the first one highest; trailing zeros are left out, as named bit lists demand.
pub fn named_bits(bits: &[usize]) -> Vec<u8> {
    let Some(last) = bits.iter().max() else { return element(BIT_STRING, &[&[0]]) };
    let mut bytes = vec![0u8; last / 8 + 1];
    bits.iter().for_each(|b| bytes[b / 8] |= 0x80 >> (b % 8));
    // Below eight.
    let unused = (7 - last % 8) as u8;
    element(BIT_STRING, &[&[unused], &bytes])
}

/// A time in whole seconds: two-digit years until 2049 (RFC 5280, 4.1.2.5).
pub fn time(time: jiff::Timestamp) -> Vec<u8> {
    let utc = time.to_zoned(jiff::tz::TimeZone::UTC);
    let (tag, format) = match utc.year() {
        1950..2050 => (UTC_TIME, "%y%m%d%H%M%SZ"),
        _ => (GENERALIZED_TIME, "%Y%m%d%H%M%SZ"),
    };
    element(tag, &[utc.strftime(format).to_string().as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_as_published() {
        assert_eq!(unsigned(&[0, 0]), [2, 1, 0]);
        assert_eq!(unsigned(&[0, 127]), [2, 1, 127]);
        assert_eq!(unsigned(&[128]), [2, 2, 0, 128]);
        assert_eq!(element(OCTET_STRING, &[&[7; 200]])[..4], [4, 0x81, 200, 7]);
        assert_eq!(element(OCTET_STRING, &[&[7; 300]])[..5], [4, 0x82, 1, 44, 7]);
        // RFC 5280's digitalSignature and keyEncipherment; decipherOnly needs a second byte.
        assert_eq!(named_bits(&[0, 2]), [3, 2, 5, 0xa0]);
        assert_eq!(named_bits(&[8]), [3, 3, 7, 0, 0x80]);
        assert_eq!(text("a b"), [0x13, 3, b'a', b' ', b'b']);
        assert_eq!(text("a@b"), [0x0c, 3, b'a', b'@', b'b']);
        assert_eq!(&time("2049-12-31T23:59:59Z".parse().unwrap())[2..], b"491231235959Z");
        assert_eq!(&time("2050-01-01T00:00:00Z".parse().unwrap())[2..], b"20500101000000Z");
    }
}
