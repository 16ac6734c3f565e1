//! The private keys of pods, of each type that the API names, and empty certificate requests (PKCS#10) that they signed.
//!
//! Invariants:
//! - A key is PKCS#8 (RFC 5958), as `crypto/x509` writes it.
//! - Its randomness is the system's.
//! - A request is signed with the algorithm that `crypto/x509` takes by default for the key.

use p521::ecdsa::signature::Signer;
use rand::rngs::SysRng;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SignatureAlgorithm};
use rsa::{
    Generate,
    pkcs8::{EncodePrivateKey, EncodePublicKey, LineEnding},
};
use yasna::{Tag, models::ObjectIdentifier};

/// `ecdsa-with-SHA512` (RFC 5758).
const ECDSA_WITH_SHA512: &[u64] = &[1, 2, 840, 10045, 4, 3, 4];

/// A private key, PEM, and an empty certificate request that it signed, DER. RSA keys take their time.
///
/// # Errors
/// When the type is unknown, or the system has no randomness.
pub(super) fn generate(key_type: &str) -> Result<(String, Vec<u8>), String> {
    match key_type {
        "RSA3072" => rsa(3072),
        "RSA4096" => rsa(4096),
        "ECDSAP256" => rcgen_key(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(named("ECDSA P256")),
        "ECDSAP384" => rcgen_key(&rcgen::PKCS_ECDSA_P384_SHA384).map_err(named("ECDSA P384")),
        "ECDSAP521" => p521(),
        "ED25519" => rcgen_key(&rcgen::PKCS_ED25519).map_err(named("Ed25519")),
        _ => Err(format!("while generating keypair: unknown key type {key_type:?}")),
    }
}

/// The text of an error, with upstream's name of the key.
fn named<E: std::fmt::Display>(kind: &str) -> impl Fn(E) -> String {
    move |error| format!("while generating keypair: while generating {kind} key: {error}")
}

fn unsigned(error: impl std::fmt::Display) -> String {
    format!("while generating keypair: while generating stub PKCS#10 request: {error}")
}

fn rcgen_key(algorithm: &'static SignatureAlgorithm) -> Result<(String, Vec<u8>), rcgen::Error> {
    let key = KeyPair::generate_for(algorithm)?;
    Ok((key.serialize_pem(), request(&key)?))
}

/// An empty request.
fn request(key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(key)?.der().to_vec())
}

/// ring makes no keys of RSA, but signs with them.
fn rsa(bits: usize) -> Result<(String, Vec<u8>), String> {
    let kind = format!("RSA {bits}");
    let key = rsa::PrivateKey::new(&mut SysRng, bits).map_err(named(&kind))?;
    let pem = key.to_pkcs8_pem(LineEnding::LF).map_err(named(&kind))?;
    let key = KeyPair::from_pkcs8_pem_and_sign_algo(&pem, &rcgen::PKCS_RSA_SHA256).map_err(unsigned)?;
    Ok((pem.to_string(), request(&key).map_err(unsigned)?))
}

/// ring has no P-521, so that rcgen does not sign with it.
fn p521() -> Result<(String, Vec<u8>), String> {
    let kind = "ECDSA P521";
    let key = p521::SecretKey::try_generate_from_rng(&mut SysRng).map_err(named(kind))?;
    let pem = key.to_pkcs8_pem(LineEnding::LF).map_err(named(kind))?;
    let public = key.public_key().to_public_key_der().map_err(unsigned)?;
    let content = yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_u8(0);
            writer.next().write_sequence(|_| ());
            writer.next().write_der(public.as_bytes());
            writer.next().write_tagged_implicit(Tag::context(0), |writer| writer.write_set(|_| ()));
        });
    });
    let signature: p521::ecdsa::DerSignature =
        p521::ecdsa::SigningKey::from(key).try_sign(&content).map_err(unsigned)?;
    let request = yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_der(&content);
            writer.next().write_sequence(|writer| {
                writer.next().write_oid(&ObjectIdentifier::from_slice(ECDSA_WITH_SHA512));
            });
            writer.next().write_bitvec_bytes(signature.as_bytes(), signature.as_bytes().len() * 8);
        });
    });
    Ok((pem.to_string(), request))
}
