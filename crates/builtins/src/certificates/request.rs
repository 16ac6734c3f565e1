//! What is wrong with a certificate signing request (PKCS#10), in the words of Go's `encoding/asn1` and `crypto/x509`: they
//! reach clients as they are.
//!
//! Invariant: everything is read from the outside in and in order, as Go does, so that the first fault found is the same one.

use super::pem::blocks;
use kaji_auth::public_keys::PublicKey;
use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer};

/// Go's `asn1.SyntaxError` and `asn1.StructuralError`.
fn syntax(what: &str) -> String {
    format!("asn1: syntax error: {what}")
}

fn structure(what: &str) -> String {
    format!("asn1: structure error: {what}")
}

const INTEGER: u32 = 2;
const BIT_STRING: u32 = 3;
const OID: u32 = 6;
const SEQUENCE: u32 = 16;

/// Why a request (PEM) is refused.
pub(super) fn problem(pem: &[u8]) -> Option<String> {
    let all = blocks(pem);
    let block = all.first().filter(|b| b.label == "CERTIFICATE REQUEST");
    let Some(block) = block else { return Some("PEM block type must be CERTIFICATE REQUEST".into()) };
    let parsed = match parse(&block.contents) {
        Ok(parsed) => parsed,
        Err(error) => return Some(error),
    };
    let Some(key) = PublicKey::parse(&parsed.certification_request_info.subject_pki) else {
        return Some("x509: malformed public key".into());
    };
    key.check_signature(&parsed).err()
}

/// A request, DER.
///
/// # Errors
/// Why it is refused.
pub(super) fn parse(der: &[u8]) -> Result<X509CertificationRequest<'_>, String> {
    if request(der)? != der.len() {
        return Err(syntax("trailing data"));
    }
    let parsed = X509CertificationRequest::from_der(der);
    parsed.map(|(_, request)| request).map_err(|_| structure("the certificate request is malformed"))
}

/// The tag and length of an element.
#[derive(Clone, Copy)]
struct Head {
    class: u8,
    compound: bool,
    tag: u32,
    length: usize,
}

/// What a field has to be.
struct ExpectedField<'a> {
    class: u8,
    tag: u32,
    compound: bool,
    /// The name of its type in Go, for errors.
    kind: &'a str,
}

const fn universal(tag: u32, compound: bool, kind: &str) -> ExpectedField<'_> {
    ExpectedField { class: 0, tag, compound, kind }
}

/// Reads the outermost structure. Where it ends.
fn request(der: &[u8]) -> Result<usize, String> {
    let (content, end) = field(der, 0, &universal(SEQUENCE, true, "certificateRequest"))?;
    let (info, at) = field(content, 0, &universal(SEQUENCE, true, "tbsCertificateRequest"))?;
    let (version, next) = field(info, 0, &universal(INTEGER, false, "int"))?;
    integer(version)?;
    let next = any(info, next)?;
    let (key, next) = field(info, next, &universal(SEQUENCE, true, "publicKeyInfo"))?;
    let key_at = algorithm(key, 0)?;
    let (bits, _) = field(key, key_at, &universal(BIT_STRING, false, "BitString"))?;
    bit_string(bits)?;
    let (attributes, _) = field(info, next, &ExpectedField { class: 2, tag: 0, compound: true, kind: "" })?;
    let mut each = 0;
    while each < attributes.len() {
        each = any(attributes, each)?;
    }
    let at = algorithm(content, at)?;
    let (bits, _) = field(content, at, &universal(BIT_STRING, false, "BitString"))?;
    bit_string(bits)?;
    Ok(end)
}

/// An `AlgorithmIdentifier`: where it ends.
fn algorithm(der: &[u8], at: usize) -> Result<usize, String> {
    let (content, end) = field(der, at, &universal(SEQUENCE, true, "AlgorithmIdentifier"))?;
    let (oid, next) = field(content, 0, &universal(OID, false, "ObjectIdentifier"))?;
    object_identifier(oid)?;
    if next < content.len() {
        any(content, next)?;
    }
    Ok(end)
}

/// The content of a field, and where it ends.
fn field<'a>(der: &'a [u8], at: usize, want: &ExpectedField<'_>) -> Result<(&'a [u8], usize), String> {
    if at == der.len() {
        return Err(syntax("sequence truncated"));
    }
    let (head, start) = head(der, at)?;
    if (head.class, head.tag, head.compound) != (want.class, want.tag, want.compound) {
        let Head { class, compound, tag, length } = head;
        let parameters = "{optional:false explicit:false application:false private:false defaultValue:<nil> tag:<nil> \
                          stringType:0 timeType:0 set:false omitEmpty:false}";
        return Err(structure(&format!(
            "tags don't match ({} vs {{class:{class} tag:{tag} length:{length} isCompound:{compound}}}) {parameters} {} @{start}",
            want.tag, want.kind
        )));
    }
    let content = der.get(start..).and_then(|rest| rest.get(..head.length));
    content.map(|content| (content, start + head.length)).ok_or_else(|| syntax("data truncated"))
}

/// Skips an element of any kind: where it ends.
fn any(der: &[u8], at: usize) -> Result<usize, String> {
    if at == der.len() {
        return Err(syntax("sequence truncated"));
    }
    let (head, start) = head(der, at)?;
    if der.len() - start < head.length { Err(syntax("data truncated")) } else { Ok(start + head.length) }
}

/// Tag and length, and where the content begins. `at` is inside of `der`.
fn head(der: &[u8], mut at: usize) -> Result<(Head, usize), String> {
    let truncated = || syntax("truncated tag or length");
    let mut next = || {
        let byte = der.get(at).copied();
        at += 1;
        byte
    };
    let first = next().ok_or_else(truncated)?;
    let (class, compound) = (first >> 6, first & 0x20 != 0);
    let mut tag = u32::from(first & 0x1f);
    if tag == 0x1f {
        tag = base128(&mut next)?;
        if tag < 0x1f {
            return Err(syntax("non-minimal tag"));
        }
    }
    let byte = next().ok_or_else(truncated)?;
    let mut length = usize::from(byte & 0x7f);
    if byte & 0x80 != 0 {
        let count = length;
        if count == 0 {
            return Err(syntax("indefinite length found (not DER)"));
        }
        length = 0;
        for _ in 0..count {
            let byte = next().ok_or_else(truncated)?;
            if length >= 1 << 23 {
                return Err(structure("length too large"));
            }
            length = length << 8 | usize::from(byte);
            if length == 0 {
                return Err(structure("superfluous leading zeros in length"));
            }
        }
        if length < 0x80 {
            return Err(structure("non-minimal length"));
        }
    }
    Ok((Head { class, compound, tag, length }, at))
}

/// A number in groups of seven bits.
fn base128(next: &mut impl FnMut() -> Option<u8>) -> Result<u32, String> {
    let mut number: u64 = 0;
    for group in 0.. {
        let byte = next().ok_or_else(|| syntax("truncated base 128 integer"))?;
        if group == 5 {
            break;
        }
        if group == 0 && byte == 0x80 {
            return Err(syntax("integer is not minimally encoded"));
        }
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return u32::try_from(number)
                .ok()
                .filter(|n| *n <= i32::MAX as u32)
                .ok_or_else(|| structure("base 128 integer too large"));
        }
    }
    Err(structure("base 128 integer too large"))
}

fn integer(bytes: &[u8]) -> Result<(), String> {
    match bytes {
        [] => Err(structure("empty integer")),
        [0, second, ..] if second & 0x80 == 0 => Err(structure("integer not minimally-encoded")),
        [0xff, second, ..] if second & 0x80 != 0 => Err(structure("integer not minimally-encoded")),
        _ if bytes.len() > 8 => Err(structure("integer too large")),
        _ => Ok(()),
    }
}

fn bit_string(bytes: &[u8]) -> Result<(), String> {
    let Some((padding, bits)) = bytes.split_first() else { return Err(syntax("zero length BIT STRING")) };
    let unused = match bits.last() {
        _ if *padding > 7 => true,
        None => *padding > 0,
        Some(last) => last & ((1 << padding) - 1) != 0,
    };
    if unused { Err(syntax("invalid padding bits in BIT STRING")) } else { Ok(()) }
}

fn object_identifier(bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Err(syntax("zero length OBJECT IDENTIFIER"));
    }
    let mut rest = bytes.iter().copied();
    while rest.len() > 0 {
        base128(&mut || rest.next())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::{Engine, engine::general_purpose::STANDARD};
    use expect_test::expect;

    /// `O=a, CN=b`, signed by its P-256 key.
    const GOOD: &str = "MIHTMHoCAQAwGDEKMAgGA1UECgwBYTEKMAgGA1UEAwwBYjBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABE7S3W9O+6RhnkwH\
        ku3Jn7BFV7RKhFFmw0zbBJoJaVi0gUpL4AmpTAK9oO27B51CW1zpopnmsF7ZPtgbn/K+5LCgADAKBggqhkjOPQQDAgNJADBG\
        AiEAsK3qu4qlzrkyZugnHfJ6XXm7KUM7pZs5+CfEI015sLMCIQCdxTtTldEf1rEiN2wOeo77zIvnxmhWXOCpafCvmuxiRg==";

    fn pem(der: &[u8]) -> String {
        kaji_meta::text::pem("CERTIFICATE REQUEST", der)
    }

    #[test]
    fn reports_faults_with_the_texts_of_go() {
        let good = STANDARD.decode(GOOD).unwrap();
        let with = |at: usize, byte: u8| {
            let mut der = good.clone();
            der[at] = byte;
            der
        };
        let cases: Vec<(&str, Vec<u8>)> = vec![
            ("good", good.clone()),
            ("empty", vec![]),
            ("one byte", b"0".to_vec()),
            ("text", b"hello world, this is no DER".to_vec()),
            ("zeros", vec![0; 40]),
            ("null", vec![5, 0]),
            ("empty sequence", vec![0x30, 0]),
            ("a number in it", vec![0x30, 3, 2, 1, 0]),
            ("an empty one in it", vec![0x30, 2, 0x30, 0]),
            ("cut off", good[..good.len() - 10].to_vec()),
            ("half", good[..good.len() / 2].to_vec()),
            ("too long", [good.as_slice(), b"xx"].concat()),
            ("version", with(5, 4)),
            ("signature", with(good.len() - 1, good[good.len() - 1] ^ 1)),
            ("long length", vec![0x30, 0x85, 1, 1, 1, 1, 1]),
            ("indefinite length", vec![0x30, 0x80, 0, 0]),
            ("length in two bytes", vec![0x30, 0x81, 5, 2, 1, 0, 0x30, 0]),
            ("leading zero", vec![0x30, 0x82, 0, 5, 2, 1, 0, 0x30, 0]),
            ("large number", [&[0x30, 16, 0x30, 14, 2, 10], &[1; 10][..], &[0x30, 0]].concat()),
            ("empty number", vec![0x30, 4, 0x30, 2, 2, 0]),
            ("tags", vec![0xff; 20]),
            ("set", vec![0x31, 3, 2, 1, 0]),
            ("nothing after the subject", vec![0x30, 9, 0x30, 7, 2, 1, 0, 0x30, 0, 0x30, 0]),
        ];
        let mut out = String::new();
        for (name, der) in cases {
            let text = problem(pem(&der).as_bytes()).unwrap_or_else(|| "fine".into());
            // The parameters are always the same.
            let text = text.replace(
                "{optional:false explicit:false application:false private:false defaultValue:<nil> tag:<nil> \
                 stringType:0 timeType:0 set:false omitEmpty:false}",
                "{…}",
            );
            out += &format!("{name}: {text}\n");
        }
        expect![[r#"
            good: fine
            empty: asn1: syntax error: sequence truncated
            one byte: asn1: syntax error: truncated tag or length
            text: asn1: structure error: tags don't match (16 vs {class:1 tag:8 length:101 isCompound:true}) {…} certificateRequest @2
            zeros: asn1: structure error: tags don't match (16 vs {class:0 tag:0 length:0 isCompound:false}) {…} certificateRequest @2
            null: asn1: structure error: tags don't match (16 vs {class:0 tag:5 length:0 isCompound:false}) {…} certificateRequest @2
            empty sequence: asn1: syntax error: sequence truncated
            a number in it: asn1: structure error: tags don't match (16 vs {class:0 tag:2 length:1 isCompound:false}) {…} tbsCertificateRequest @2
            an empty one in it: asn1: syntax error: sequence truncated
            cut off: asn1: syntax error: data truncated
            half: asn1: syntax error: data truncated
            too long: asn1: syntax error: trailing data
            version: asn1: structure error: tags don't match (2 vs {class:0 tag:4 length:1 isCompound:false}) {…} int @2
            signature: x509: ECDSA verification failure
            long length: asn1: structure error: length too large
            indefinite length: asn1: syntax error: indefinite length found (not DER)
            length in two bytes: asn1: structure error: non-minimal length
            leading zero: asn1: structure error: superfluous leading zeros in length
            large number: asn1: structure error: integer too large
            empty number: asn1: structure error: empty integer
            tags: asn1: structure error: base 128 integer too large
            set: asn1: structure error: tags don't match (16 vs {class:0 tag:17 length:3 isCompound:true}) {…} certificateRequest @2
            nothing after the subject: asn1: syntax error: sequence truncated
        "#]]
        .assert_eq(&out);
    }

    #[test]
    fn refuses_what_is_no_certificate_request() {
        let text = "PEM block type must be CERTIFICATE REQUEST";
        assert_eq!(problem(b"hello").as_deref(), Some(text));
        let other = kaji_meta::text::pem("CERTIFICATE", &STANDARD.decode(GOOD).unwrap());
        assert_eq!(problem(other.as_bytes()).as_deref(), Some(text));
    }

    /// Requests that OpenSSL made, each as it is and with another last byte of the signature.
    #[test]
    fn verifies_signatures_of_every_kind_of_key() {
        let rows =
            include_str!("proofs.txt").lines().filter_map(|row| row.strip_prefix("csr ")?.split_once(' '));
        let mut out = String::new();
        for (name, der) in rows {
            let mut der = STANDARD.decode(der).unwrap();
            let [good, bad] = [0, 1].map(|change| {
                *der.last_mut().unwrap() ^= change;
                problem(pem(&der).as_bytes()).unwrap_or_else(|| "fine".into())
            });
            out += &format!("{name}: {good} / {bad}\n");
        }
        expect![[r#"
            rsa2048: fine / crypto/rsa: verification error
            rsa3072: fine / crypto/rsa: verification error
            rsa4096: fine / crypto/rsa: verification error
            rsa3072-sha1: fine / crypto/rsa: verification error
            rsa3072-pss: fine / crypto/rsa: verification error
            rsa3072-pss-salt-20: x509: cannot verify signature: algorithm unimplemented / x509: cannot verify signature: algorithm unimplemented
            p224: x509: cannot verify signature: algorithm unimplemented / x509: cannot verify signature: algorithm unimplemented
            p256: fine / x509: ECDSA verification failure
            p256-sha512: fine / x509: ECDSA verification failure
            p256-sha1: fine / x509: ECDSA verification failure
            p384: fine / x509: ECDSA verification failure
            p521: fine / x509: ECDSA verification failure
            ed25519: fine / x509: Ed25519 verification failure
            dsa: x509: cannot verify signature: algorithm unimplemented / x509: cannot verify signature: algorithm unimplemented
            k256: x509: malformed public key / x509: malformed public key
            rsa1024: fine / crypto/rsa: verification error
        "#]]
        .assert_eq(&out);
    }
}
