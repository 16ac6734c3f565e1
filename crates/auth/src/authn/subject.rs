//! The subject of a client certificate as Go's `crypto/x509` parses it, for upstream's authenticators use nothing else.
//!
//! Invariants: of several common names the last counts; every organization is a group, in the order of the encoding, also
//! those that share a relative name with another attribute. A subject with any value that is no string of its type names no
//! user at all: Go refuses the whole certificate.

use x509_parser::{
    asn1_rs::Tag,
    x509::{AttributeTypeAndValue, X509Name},
};

/// The attribute of a certificate's subject that holds a uid. Source: Kubernetes, `AllowParsingUserUIDFromCertAuth`.
const UID: &str = "1.3.6.1.4.1.57683.2";
const COMMON_NAME: &str = "2.5.4.3";
const ORGANIZATION: &str = "2.5.4.10";

/// The attributes that count.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The last one; empty without any.
    pub common_name: String,
    /// All of them.
    pub organizations: Vec<String>,
    /// All of them.
    pub uids: Vec<String>,
}

/// Reads a name.
///
/// # Errors
/// What is wrong with its first malformed value.
pub fn read(name: &X509Name<'_>) -> Result<Subject, &'static str> {
    let mut subject = Subject::default();
    for attribute in name.iter_attributes() {
        let text = text(attribute)?;
        match attribute.attr_type().to_id_string().as_str() {
            COMMON_NAME => subject.common_name = text,
            ORGANIZATION => subject.organizations.push(text),
            UID => subject.uids.push(text),
            _ => {}
        }
    }
    Ok(subject)
}

/// The text of an attribute's value. Source: Go's `crypto/x509`, which strings it takes.
///
/// # Errors
/// When the value is no string, or not one of its type.
pub fn text(attribute: &AttributeTypeAndValue<'_>) -> Result<String, &'static str> {
    let (tag, bytes) = (attribute.attr_value().tag(), attribute.attr_value().data);
    let ascii = |allowed: fn(&u8) -> bool, error| {
        if bytes.iter().all(allowed) {
            Ok(bytes.iter().map(|b| char::from(*b)).collect())
        } else {
            Err(error)
        }
    };
    match tag {
        Tag::Utf8String => String::from_utf8(bytes.to_vec()).map_err(|_| "invalid UTF-8 string"),
        Tag::PrintableString => ascii(printable, "invalid PrintableString"),
        Tag::Ia5String => ascii(u8::is_ascii, "invalid IA5String"),
        Tag::NumericString => ascii(|b| b.is_ascii_digit() || *b == b' ', "invalid NumericString"),
        // Taken for Latin-1, of which it is nearly a part.
        Tag::TeletexString => Ok(bytes.iter().map(|b| char::from(*b)).collect()),
        Tag::BmpString => two_bytes(bytes).ok_or("invalid BMPString"),
        _ => Err("unsupported string type"),
    }
}

fn printable(b: &u8) -> bool {
    b.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(b)
}

/// UCS-2, big-endian; a zero at the end is no part of it.
fn two_bytes(bytes: &[u8]) -> Option<String> {
    let (units, rest) = bytes.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let units = units.strip_suffix(&[[0, 0]]).unwrap_or(units);
    let assigned = |point: u16| !matches!(point, 0xfffe | 0xffff | 0xfdd0..=0xfdef);
    // Surrogates are no characters of their own.
    let char_of = |unit: &[u8; 2]| {
        let point = u16::from_be_bytes(*unit);
        char::from_u32(u32::from(point)).filter(|_| assigned(point))
    };
    units.iter().map(char_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::FromDer;

    fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(content.len()).unwrap()], content].concat()
    }

    /// An attribute: the last number of its type below 2.5.4, the tag of its value, the value.
    type Attribute<'a> = (u8, u8, &'a [u8]);

    fn subject(rdns: &[&[Attribute<'_>]]) -> Result<Subject, &'static str> {
        let attribute = |(kind, tag, value): &Attribute<'_>| {
            tlv(0x30, &[tlv(0x06, &[0x55, 0x04, *kind]), tlv(*tag, value)].concat())
        };
        let sets = rdns.iter().map(|rdn| tlv(0x31, &rdn.iter().flat_map(attribute).collect::<Vec<_>>()));
        let der = tlv(0x30, &sets.flatten().collect::<Vec<_>>());
        read(&X509Name::from_der(&der).unwrap().1)
    }

    const UTF8: u8 = 0x0c;
    const CN: u8 = 3;
    const O: u8 = 10;

    #[test]
    fn the_last_common_name_counts() {
        let two = subject(&[&[(CN, UTF8, b"admin")], &[(O, UTF8, b"a")], &[(CN, UTF8, b"jane")]]).unwrap();
        assert_eq!((two.common_name.as_str(), two.organizations), ("jane", vec!["a".to_owned()]));
        // An empty last one leaves no name, whatever came before.
        assert_eq!(subject(&[&[(CN, UTF8, b"admin")], &[(CN, UTF8, b"")]]).unwrap().common_name, "");
    }

    #[test]
    fn relative_names_of_several_values_are_read_in_order() {
        let both = subject(&[
            &[(O, UTF8, b"b"), (CN, UTF8, b"first"), (O, UTF8, b"a")],
            &[(CN, 0x13, b"x"), (O, 0x16, b"c")],
        ]);
        let both = both.unwrap();
        assert_eq!(both.common_name, "x");
        assert_eq!(both.organizations, ["b", "a", "c"]);
    }

    #[test]
    fn values_are_read_by_their_types() {
        let name = |tag, value: &[u8]| subject(&[&[(CN, tag, value)]]).map(|s| s.common_name);
        assert_eq!(name(0x14, b"J\xfcrg").unwrap(), "J\u{fc}rg");
        assert_eq!(name(0x1e, b"\0j\x01\x61\0\0").unwrap(), "j\u{161}");
        assert_eq!(name(0x12, b"12 3").unwrap(), "12 3");
        assert_eq!(name(0x13, b"a*&").unwrap(), "a*&");
        assert_eq!(name(UTF8, b"\xff"), Err("invalid UTF-8 string"));
        assert_eq!(name(0x13, b"a@b"), Err("invalid PrintableString"));
        assert_eq!(name(0x12, b"1a"), Err("invalid NumericString"));
        assert_eq!(name(0x16, b"\x80"), Err("invalid IA5String"));
        for wrong in [&b"\0"[..], b"\xd8\0", b"\xff\xfe", b"\xfd\xd0"] {
            assert_eq!(name(0x1e, wrong), Err("invalid BMPString"), "{wrong:?}");
        }
        assert_eq!(name(0x04, b"a"), Err("unsupported string type"));
        // Also where the value would not count.
        let other_attribute = subject(&[&[(CN, UTF8, b"jane")], &[(11, 0x04, b"a")]]);
        assert_eq!(other_attribute, Err("unsupported string type"));
    }
}
