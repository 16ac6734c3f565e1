//! What is wrong with a certificate and its private key, PEM, in the words of Go's `crypto/tls`: the warnings of upstream.
//!
//! Invariants:
//! - Everything is looked at in Go's order, so that the first fault found is the same one.
//! - The work is linear in the size of the input, but for numbers, of which the size is bounded.

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig},
};
use kaji_auth::public_keys::{EcKey, PublicKey};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use x509_parser::{certificate::X509Certificate, num_bigint::BigUint, prelude::FromDer};

/// What is wrong with a chain of certificates and the key of its first.
pub fn problem(chain: &[u8], key: &[u8]) -> Option<String> {
    check(chain, key).err()
}

fn check(chain: &[u8], key: &[u8]) -> Result<(), String> {
    let (der, key) = (first_certificate(chain)?, private_block(key)?);
    let (rest, certificate) = X509Certificate::from_der(&der).map_err(|_| "x509: malformed certificate")?;
    if !rest.is_empty() {
        return Err("x509: trailing data".into());
    }
    let public = PublicKey::parse(certificate.public_key()).ok_or("x509: malformed public key")?;
    let matches = match (&public, private(&key)?) {
        (PublicKey::Rsa(public), Private::Rsa { n, e }) => public.is(n, e),
        (PublicKey::Ecdsa(point), Private::Ecdsa(Some(own))) => *point == own,
        (PublicKey::Ecdsa(point), Private::Ecdsa(None)) => matches!(point, EcKey::P224(_)),
        (PublicKey::Ed25519(point), Private::Ed25519(own)) => *point == own,
        (PublicKey::Other | PublicKey::Unknown, _) => return Err("tls: unknown public key algorithm".into()),
        _ => return Err("tls: private key type does not match public key type".into()),
    };
    if matches { Ok(()) } else { Err("tls: private key does not match public key".into()) }
}

/// A block of PEM.
struct Block {
    label: String,
    contents: Vec<u8>,
}

/// Go does not mind stray trailing bits.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// The blocks of a text, as Go's decoder finds them. Malformed ones are skipped, like text around blocks.
fn blocks(text: &[u8]) -> Vec<Block> {
    let mut found = vec![];
    let mut open: Option<(&[u8], Vec<&[u8]>)> = None;
    for line in text.split(|byte| *byte == b'\n') {
        let line = line.trim_ascii_end();
        if let Some(label) = line.strip_prefix(b"-----BEGIN ") {
            open = label.strip_suffix(b"-----").map(|label| (label, vec![]));
        } else if let Some(end) = line.strip_prefix(b"-----END ") {
            if let Some((label, body)) = open.take()
                && end.strip_suffix(b"-----") == Some(label)
                && let Some(contents) = decoded(&body)
            {
                found.push(Block { label: String::from_utf8_lossy(label).into_owned(), contents });
            }
        } else if let Some((_, body)) = &mut open {
            body.push(line);
        }
    }
    found
}

/// The lines of a block without their headers, which come first.
fn decoded(lines: &[&[u8]]) -> Option<Vec<u8>> {
    let lines = lines.iter().skip_while(|line| line.contains(&b':'));
    let text = lines.flat_map(|line| line.iter().copied());
    let text: Vec<u8> = text.filter(|byte| !matches!(byte, b' ' | b'\t' | b'\r')).collect();
    BASE64.decode(text).ok()
}

/// The contents of the first block with a label that is wanted; without one, all labels.
fn first(pem: &[u8], wanted: impl Fn(&str) -> bool) -> Result<Vec<u8>, Vec<String>> {
    let mut others = vec![];
    for block in blocks(pem) {
        if wanted(&block.label) {
            return Ok(block.contents);
        }
        others.push(block.label);
    }
    Err(others)
}

fn first_certificate(pem: &[u8]) -> Result<Vec<u8>, String> {
    first(pem, |label| label == "CERTIFICATE").map_err(|others| match others.as_slice() {
        [] => "tls: failed to find any PEM data in certificate input".into(),
        [one] if one.ends_with("PRIVATE KEY") => {
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched".into()
        }
        _ => format!(
            "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [{}]",
            others.join(" ")
        ),
    })
}

fn private_block(pem: &[u8]) -> Result<Vec<u8>, String> {
    let is_key = |label: &str| label == "PRIVATE KEY" || label.ends_with(" PRIVATE KEY");
    first(pem, is_key).map_err(|others| match others.as_slice() {
        [] => "tls: failed to find any PEM data in key input".into(),
        [one] if one == "CERTIFICATE" => {
            "tls: found a certificate rather than a key in the PEM for the private key".into()
        }
        _ => format!(
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [{}]",
            others.join(" ")
        ),
    })
}

/// The public half of a private key.
enum Private<'a> {
    /// Modulus and exponent, without leading zeros.
    Rsa { n: &'a [u8], e: &'a [u8] },
    /// `None`: of P-224, with which nothing here computes.
    Ecdsa(Option<EcKey>),
    /// The 32 bytes of a point.
    Ed25519(Vec<u8>),
    /// Of a kind that certificates are not for.
    Other,
}

/// A private key in any of its forms; the block's label does not say which.
fn private(der: &[u8]) -> Result<Private<'_>, String> {
    match pkcs1(der).or_else(|| pkcs8(der)).or_else(|| sec1(der, None)) {
        None => Err("tls: failed to parse private key".into()),
        Some(Private::Other) => Err("tls: found unknown private key type in PKCS#8 wrapping".into()),
        Some(key) => Ok(key),
    }
}

const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const CONTEXT_0: u8 = 0xa0;

const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const X25519: &[u8] = &[0x2b, 0x65, 0x6e];

const P224: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x21];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
const P521: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x23];

/// Elements of DER that are not read yet.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The content of the next element, if it has this tag.
    fn element(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, rest) = self.0.split_first()?;
        let (length, mut rest) = rest.split_first()?;
        let mut length = usize::from(*length);
        if length >= 0x80 {
            let (digits, after) = rest.split_at_checked(length & 0x7f)?;
            if !(1..=4).contains(&digits.len()) {
                return None;
            }
            length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
            rest = after;
        }
        let (content, after) = rest.split_at_checked(length)?;
        self.0 = after;
        (*found == tag).then_some(content)
    }

    /// The next element, a number above zero, without leading zeros.
    fn number(&mut self) -> Option<&'a [u8]> {
        let content = self.element(INTEGER)?;
        (*content.first()? < 0x80).then(|| stripped(content)).filter(|number| !number.is_empty())
    }
}

fn stripped(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

/// An RSAPrivateKey (RFC 8017).
fn pkcs1(der: &[u8]) -> Option<Private<'_>> {
    let mut outer = Der(der);
    let mut key = Der(outer.element(SEQUENCE)?);
    let version = key.element(INTEGER)?;
    let (n, e, d) = (key.number()?, key.number()?, key.number()?);
    let (p, q) = (key.number()?, key.number()?);
    let sound = match version {
        [0] => fit([n, e, d, p, q]),
        // Of more than two primes.
        [1] => true,
        _ => false,
    };
    (sound && outer.0.is_empty()).then_some(Private::Rsa { n, e })
}

/// 16384 bits: longer numbers are of no key in use, and are not computed with.
const LARGEST_NUMBER: usize = 2048;

/// Whether modulus, exponents and primes are of one key.
fn fit(numbers: [&[u8]; 5]) -> bool {
    if numbers.iter().any(|number| number.len() > LARGEST_NUMBER) {
        return true;
    }
    let [n, e, d, p, q] = numbers.map(BigUint::from_bytes_be);
    let (product, one) = (e * d, BigUint::from(1_u8));
    let inverse = |prime: &BigUint| *prime > one && &product % (prime - &one) == one;
    &p * &q == n && inverse(&p) && inverse(&q)
}

/// A PrivateKeyInfo (RFC 5208).
fn pkcs8(der: &[u8]) -> Option<Private<'_>> {
    let mut info = Der(Der(der).element(SEQUENCE)?);
    info.element(INTEGER)?;
    let mut algorithm = Der(info.element(SEQUENCE)?);
    let kind = algorithm.element(OID)?;
    let mut parameters = algorithm;
    let key = info.element(OCTET_STRING)?;
    match kind {
        RSA => pkcs1(key),
        EC => sec1(key, parameters.element(OID)),
        ED25519 if parameters.0.is_empty() => {
            let pair = Ed25519KeyPair::from_seed_unchecked(Der(key).element(OCTET_STRING)?).ok()?;
            Some(Private::Ed25519(pair.public_key().as_ref().to_vec()))
        }
        X25519 if parameters.0.is_empty() => Some(Private::Other),
        _ => None,
    }
}

/// An ECPrivateKey (RFC 5915), of the curve that is given, or else the one that it names. The point in it does not count.
fn sec1<'a>(der: &'a [u8], curve: Option<&'a [u8]>) -> Option<Private<'a>> {
    let mut key = Der(Der(der).element(SEQUENCE)?);
    if key.element(INTEGER)? != [1] {
        return None;
    }
    // Some writers leave zeros out, some have too many.
    let scalar = stripped(key.element(OCTET_STRING)?);
    let curve = match curve {
        Some(curve) => curve,
        None => Der(key.element(CONTEXT_0)?).element(OID)?,
    };
    let size: usize = match curve {
        P224 => 28,
        P256 => 32,
        P384 => 48,
        P521 => 66,
        _ => return None,
    };
    let mut bytes = vec![0_u8; size.checked_sub(scalar.len())?];
    bytes.extend(scalar);
    let point = match curve {
        P256 => Some(EcKey::P256(p256::SecretKey::from_slice(&bytes).ok()?.public_key().into())),
        P384 => Some(EcKey::P384(p384::SecretKey::from_slice(&bytes).ok()?.public_key().into())),
        P521 => Some(EcKey::P521(p521::SecretKey::from_slice(&bytes).ok()?.public_key().into())),
        _ => None,
    };
    Some(Private::Ecdsa(point))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose;
    use expect_test::{Expect, expect};
    use kaji_meta::text;

    /// A certificate or key of `pairs.txt`, which openssl has made: the certificate `rsa`, the keys `rsa pkcs1`, `rsa pkcs8`, ….
    fn der(name: &str) -> Vec<u8> {
        let line =
            include_str!("pairs.txt").lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        general_purpose::STANDARD.decode(line.unwrap()).unwrap()
    }

    fn certificate(name: &str) -> String {
        text::pem("CERTIFICATE", &der(&format!("{name} certificate")))
    }

    fn key(name: &str) -> String {
        let label = match name.rsplit_once(' ').unwrap().1 {
            "pkcs1" => "RSA PRIVATE KEY",
            "sec1" => "EC PRIVATE KEY",
            _ => "PRIVATE KEY",
        };
        text::pem(label, &der(name))
    }

    fn found(cases: &[(&str, String, String)], expected: &Expect) {
        let verdict = |(what, chain, key): &(&str, String, String)| {
            let problem = problem(chain.as_bytes(), key.as_bytes());
            format!("{what}: {}\n", problem.unwrap_or_else(|| "fine".into()))
        };
        expected.assert_eq(&cases.iter().map(verdict).collect::<String>());
    }

    // What is expected here are the answers of Go 1.26.

    #[test]
    fn keys_of_each_kind_match_their_certificates() {
        let pairs = [
            ("rsa", "rsa pkcs1"),
            ("rsa", "rsa pkcs8"),
            ("p224", "p224 sec1"),
            ("p256", "p256 sec1"),
            ("p256", "p256-without-point sec1"),
            ("p384", "p384 sec1"),
            ("p521", "p521 sec1"),
            ("p521", "p521 pkcs8"),
            ("ed25519", "ed25519 pkcs8"),
            ("rsa", "other-rsa pkcs1"),
            ("p256", "p384 sec1"),
            ("p224", "p256 sec1"),
            ("p256", "rsa pkcs8"),
            ("rsa", "ed25519 pkcs8"),
            ("ed25519", "p256 sec1"),
            ("rsa", "x25519 pkcs8"),
        ];
        let names = pairs.map(|(of, name)| format!("{of}, {name}"));
        let cases: Vec<_> = (names.iter().zip(pairs))
            .map(|(what, (of, name))| (what.as_str(), certificate(of), key(name)))
            .collect();
        found(
            &cases,
            &expect![[r#"
                rsa, rsa pkcs1: fine
                rsa, rsa pkcs8: fine
                p224, p224 sec1: fine
                p256, p256 sec1: fine
                p256, p256-without-point sec1: fine
                p384, p384 sec1: fine
                p521, p521 sec1: fine
                p521, p521 pkcs8: fine
                ed25519, ed25519 pkcs8: fine
                rsa, other-rsa pkcs1: tls: private key does not match public key
                p256, p384 sec1: tls: private key does not match public key
                p224, p256 sec1: tls: private key does not match public key
                p256, rsa pkcs8: tls: private key type does not match public key type
                rsa, ed25519 pkcs8: tls: private key type does not match public key type
                ed25519, p256 sec1: tls: private key type does not match public key type
                rsa, x25519 pkcs8: tls: found unknown private key type in PKCS#8 wrapping
            "#]],
        );
    }

    #[test]
    fn blocks_are_found_as_go_finds_them() {
        let (crt, key) = (certificate("p256"), key("p256 sec1"));
        let other = text::pem("X", b"x");
        let with = |label: &str| (crt.clone(), text::pem(label, &der("p256 sec1")));
        let changed = |from: &str, to: &str| key.replacen(from, to, 1);
        let headed = |pem: &str, headers: &str| pem.replacen("-----\n", &format!("-----\n{headers}\n\n"), 1);
        let case = |what, (crt, key): (String, String)| (what, crt, key);
        let cases = [
            case("empty", (String::new(), String::new())),
            case("no block", ("-----BEGIN CERTIFICATE-----\n".into(), key.clone())),
            case("switched", (key.clone(), crt.clone())),
            case("other blocks", (other.clone() + &key, key.clone())),
            case("another block", (other.clone(), key.clone())),
            case("no key", (crt.clone(), "x".into())),
            case("a certificate", (crt.clone(), crt.clone())),
            case("certificates", (crt.clone(), crt.clone() + &crt)),
            case("another label", with("MY PRIVATE KEY")),
            case("an end of a word", with("MYPRIVATE KEY")),
            case("text around", (format!("a: b\n{crt}more\n"), format!("\n x\n{other}{key}rest"))),
            case("line ends", (crt.replace('\n', "\r\n"), key.replace('\n', " \t\n"))),
            case("headers", (headed(&crt, "A: b\nC: d"), headed(&key, "Proc-Type: 4,ENCRYPTED"))),
            case("another end", (crt.clone(), changed("END EC", "END RSA"))),
            case("indented", (crt.clone(), changed("-----BEGIN", " -----BEGIN"))),
            case("no base64", (crt.clone(), changed("MH", "*H"))),
            case("begun twice", (format!("-----BEGIN CERTIFICATE-----\n{crt}"), key.clone())),
            case("a chain", (crt.clone() + &certificate("p384"), key.clone())),
            case("a chain from its end", (certificate("p384") + &crt, key.clone())),
        ];
        found(
            &cases,
            &expect![[r#"
                empty: tls: failed to find any PEM data in certificate input
                no block: tls: failed to find any PEM data in certificate input
                switched: tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched
                other blocks: tls: failed to find "CERTIFICATE" PEM block in certificate input after skipping PEM blocks of the following types: [X EC PRIVATE KEY]
                another block: tls: failed to find "CERTIFICATE" PEM block in certificate input after skipping PEM blocks of the following types: [X]
                no key: tls: failed to find any PEM data in key input
                a certificate: tls: found a certificate rather than a key in the PEM for the private key
                certificates: tls: failed to find PEM block with type ending in "PRIVATE KEY" in key input after skipping PEM blocks of the following types: [CERTIFICATE CERTIFICATE]
                another label: fine
                an end of a word: tls: failed to find PEM block with type ending in "PRIVATE KEY" in key input after skipping PEM blocks of the following types: [MYPRIVATE KEY]
                text around: fine
                line ends: fine
                headers: fine
                another end: tls: failed to find any PEM data in key input
                indented: tls: failed to find any PEM data in key input
                no base64: tls: failed to find any PEM data in key input
                begun twice: fine
                a chain: fine
                a chain from its end: tls: private key does not match public key
            "#]],
        );
    }

    #[test]
    fn damaged_certificates_and_keys_are_not_parsed() {
        let (crt, key) = (der("p256 certificate"), der("p256 sec1"));
        let longer = [crt.as_slice(), &[0]].concat();
        let mut exponent = der("rsa pkcs1");
        let middle = exponent.len() / 2 - 60;
        exponent[middle] ^= 1;
        let mut zero = key.clone();
        zero[7..39].fill(0);
        let pem = |der: &[u8]| text::pem("CERTIFICATE", der);
        let private = |der: &[u8]| text::pem("PRIVATE KEY", der);
        found(
            &[
                ("certificate", pem(&crt[..crt.len() - 1]), private(&key)),
                ("more than a certificate", pem(&longer), private(&key)),
                ("key", pem(&crt), private(&key[..key.len() - 1])),
                ("exponent", certificate("rsa"), private(&exponent)),
                ("zero", pem(&crt), private(&zero)),
                ("nothing", pem(&crt), private(&[])),
                ("label", pem(&crt), private(&key)),
            ],
            &expect![[r#"
                certificate: x509: malformed certificate
                more than a certificate: x509: trailing data
                key: tls: failed to parse private key
                exponent: tls: failed to parse private key
                zero: tls: failed to parse private key
                nothing: tls: failed to parse private key
                label: fine
            "#]],
        );
    }

    #[test]
    fn large_numbers_are_not_computed_with() {
        let number = vec![0x7f; 100_000];
        assert!(fit([&number, &number, &number, &number, &number]));
        assert!(!fit([&[15], &[3], &[3], &[3], &[1]]));
        assert!(fit([&[33], &[3], &[7], &[3], &[11]]));
    }
}
