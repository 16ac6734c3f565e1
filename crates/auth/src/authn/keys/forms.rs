//! The forms in which private keys are written: PKCS#8, and the older ones of each algorithm, SEC 1 (RFC 5915) and PKCS#1
//! (RFC 8017).
//!
//! kubeadm writes the older ones, and clients exist that read nothing else. Invariant: a conversion changes the wrapping
//! only; the key's own encoding is copied.

use super::{Curve, EC_OID, KeyError, RSA_OID, blocks, der, unusable};
use kaji_meta::text;

const PKCS8: &str = "PRIVATE KEY";
const SEC1: &str = "EC PRIVATE KEY";
const PKCS1: &str = "RSA PRIVATE KEY";

/// The first private key of a PEM text, as PKCS#8 DER.
///
/// # Errors
/// When there is none, or it is malformed.
pub fn pkcs8_from_pem(pem: &str) -> Result<Vec<u8>, KeyError> {
    let block = private_block(pem)?;
    match block.label.as_str() {
        PKCS8 => Ok(block.contents),
        SEC1 => wrapped_ec(&block.contents),
        PKCS1 => {
            let algorithm = [der::tlv(der::OID, RSA_OID), der::tlv(der::NULL, &[])].concat();
            Ok(wrapped(&algorithm, &block.contents))
        }
        label => Err(unusable(format!("{label:?} is not supported"))),
    }
}

/// The first private key of a PEM text, in the older form of its algorithm as PEM; one that has none stays PKCS#8.
///
/// # Errors
/// When there is none, or it is malformed.
pub fn traditional_pem(pem: &str) -> Result<String, KeyError> {
    let block = private_block(pem)?;
    if block.label != PKCS8 {
        return Ok(text::pem(&block.label, &block.contents));
    }
    let bad = || unusable("malformed private key");
    let (body, _) = der::expect(&block.contents, der::SEQUENCE).ok_or_else(bad)?;
    let (_, rest) = der::expect(body, der::INTEGER).ok_or_else(bad)?;
    let (algorithm, rest) = der::expect(rest, der::SEQUENCE).ok_or_else(bad)?;
    let (key, _) = der::expect(rest, der::OCTET_STRING).ok_or_else(bad)?;
    let (oid, parameters) = der::expect(algorithm, der::OID).ok_or_else(bad)?;
    match oid {
        RSA_OID => Ok(text::pem(PKCS1, key)),
        EC_OID => {
            let (curve, _) = der::expect(parameters, der::OID).ok_or_else(bad)?;
            Ok(text::pem(SEC1, &with_curve(key, Curve::from_oid(curve)?)?))
        }
        _ => Ok(text::pem(PKCS8, &block.contents)),
    }
}

fn private_block(pem: &str) -> Result<x509_parser::pem::Pem, KeyError> {
    let block = blocks(pem)?.into_iter().find(|b| b.label.ends_with(PKCS8));
    block.ok_or_else(|| unusable("no private key"))
}

/// An ECPrivateKey that names its curve, which inside PKCS#8 it need not.
fn with_curve(key: &[u8], curve: Curve) -> Result<Vec<u8>, KeyError> {
    let bad = || unusable("malformed EC private key");
    let (body, _) = der::expect(key, der::SEQUENCE).ok_or_else(bad)?;
    let (version, rest) = der::expect(body, der::INTEGER).ok_or_else(bad)?;
    let (secret, rest) = der::expect(rest, der::OCTET_STRING).ok_or_else(bad)?;
    let rest = der::expect(rest, der::CONTEXT_0).map_or(rest, |(_, rest)| rest);
    let parts = [
        der::tlv(der::INTEGER, version),
        der::tlv(der::OCTET_STRING, secret),
        der::tlv(der::CONTEXT_0, &der::tlv(der::OID, curve.oid())),
        rest.to_vec(),
    ];
    Ok(der::tlv(der::SEQUENCE, &parts.concat()))
}

/// An ECPrivateKey inside PKCS#8.
pub(super) fn wrapped_ec(sec1: &[u8]) -> Result<Vec<u8>, KeyError> {
    let bad = || unusable("malformed EC private key");
    let (body, _) = der::expect(sec1, der::SEQUENCE).ok_or_else(bad)?;
    let (_, rest) = der::expect(body, der::INTEGER).ok_or_else(bad)?;
    let (_, rest) = der::expect(rest, der::OCTET_STRING).ok_or_else(bad)?;
    let (parameters, _) = der::expect(rest, der::CONTEXT_0).ok_or_else(bad)?;
    let (oid, _) = der::expect(parameters, der::OID).ok_or_else(bad)?;
    let curve = Curve::from_oid(oid)?;
    let algorithm = [der::tlv(der::OID, EC_OID), der::tlv(der::OID, curve.oid())].concat();
    Ok(wrapped(&algorithm, sec1))
}

fn wrapped(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let parts =
        [der::tlv(der::INTEGER, &[0]), der::tlv(der::SEQUENCE, algorithm), der::tlv(der::OCTET_STRING, key)];
    der::tlv(der::SEQUENCE, &parts.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::{SigningKey, testing::ec_pem};
    use std::{
        io::Write,
        process::{Command, Stdio},
    };

    /// What openssl says to a key; `None` on a machine without it.
    fn openssl(args: &[&str], input: &str) -> Option<(bool, String)> {
        let mut command = Command::new("openssl");
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().ok()?;
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        Some((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    #[test]
    fn a_made_key_is_written_as_sec1() {
        let pkcs8 = ec_pem();
        let sec1 = traditional_pem(&pkcs8).unwrap();
        assert!(sec1.starts_with("-----BEGIN EC PRIVATE KEY-----\n"), "{sec1}");
        let (before, after) = (SigningKey::from_pem(&pkcs8).unwrap(), SigningKey::from_pem(&sec1).unwrap());
        assert_eq!(before.public, after.public);
        assert!(after.public.verifies("ES256", b"m", &before.sign(b"m").unwrap()));
        assert_eq!(traditional_pem(&sec1).unwrap(), sec1);
        // Back in PKCS#8 it is the same key, to every reader of those.
        let again = text::pem(PKCS8, &pkcs8_from_pem(&sec1).unwrap());
        assert_eq!(SigningKey::from_pem(&again).unwrap().public, before.public);
        let Some((ok, read)) = openssl(&["ec", "-noout", "-text"], &sec1) else { return };
        assert!(ok && read.contains("prime256v1"), "{read}");
    }

    #[test]
    fn other_keys_of_openssl_are_read_and_written() {
        for (make, older) in [
            (&["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"][..], PKCS1),
            (&["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"], SEC1),
            (&["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"], SEC1),
        ] {
            let Some((true, pkcs8)) = openssl(make, "") else { return };
            let written = traditional_pem(&pkcs8).unwrap();
            assert!(written.starts_with(&format!("-----BEGIN {older}-----\n")), "{written}");
            let public = SigningKey::from_pem(&pkcs8).unwrap().public;
            assert_eq!(SigningKey::from_pem(&written).unwrap().public, public);
            let (ok, again) = openssl(&["pkey"], &written).unwrap();
            assert!(ok, "{written}");
            assert_eq!(SigningKey::from_pem(&again).unwrap().public, public);
            let wrapped = text::pem(PKCS8, &pkcs8_from_pem(&written).unwrap());
            assert_eq!(SigningKey::from_pem(&wrapped).unwrap().public, public);
        }
        let Some((true, ed25519)) = openssl(&["genpkey", "-algorithm", "ED25519"], "") else { return };
        assert_eq!(traditional_pem(&ed25519).unwrap(), ed25519);
    }

    #[test]
    fn rejects_invalid_keys() {
        for text in ["", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            assert!(traditional_pem(text).is_err(), "{text}");
        }
        assert!(
            pkcs8_from_pem("-----BEGIN EC PRIVATE KEY-----\nMAA=\n-----END EC PRIVATE KEY-----\n").is_err()
        );
    }
}
