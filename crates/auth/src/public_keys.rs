//! The public keys that certificates are requested for (SubjectPublicKeyInfo, RFC 5280), and signatures of their private halves.
//!
//! Invariants:
//! - What parses here is what Go's `crypto/x509` parses: points of the elliptic curves are uncompressed, RSA has its NULL.
//! - A key verifies with algorithms of its own family only, and with those that `crypto/x509` verifies requests with.

use ring::{
    digest::{Algorithm, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA384, SHA512, digest},
    signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey},
};
use rsa::{BoxedUint, pss, sha2::Sha256, signature::Verifier as _, signature::hazmat::PrehashVerifier as _};
use x509_parser::{
    asn1_rs::{Any, Tag},
    certification_request::X509CertificationRequest,
    prelude::FromDer,
    public_key::RSAPublicKey,
    signature_algorithm::RsaSsaPssParams,
    x509::{AlgorithmIdentifier, SubjectPublicKeyInfo},
};

const RSA: &str = "1.2.840.113549.1.1.1";
const EC: &str = "1.2.840.10045.2.1";
const ED25519: &str = "1.3.101.112";
const DSA: &str = "1.2.840.10040.4.1";
const X25519: &str = "1.3.101.110";
const UNIMPLEMENTED: &str = "x509: cannot verify signature: algorithm unimplemented";

/// A public key.
#[derive(Debug, PartialEq)]
pub enum PublicKey {
    /// The 32 bytes of a point.
    Ed25519(Vec<u8>),
    /// Of an elliptic curve.
    Ecdsa(EcKey),
    /// Of RSA.
    Rsa(RsaKey),
    /// A kind of which Go reads the keys, and that signs nothing here.
    Other,
    /// A kind of which Go reads no keys.
    Unknown,
}

impl PublicKey {
    /// From DER, without anything behind it. `None`: it is malformed, or its kind is unknown.
    pub fn from_der(der: &[u8]) -> Option<PublicKey> {
        let (rest, info) = SubjectPublicKeyInfo::from_der(der).ok()?;
        PublicKey::parse(&info).filter(|key| rest.is_empty() && *key != PublicKey::Unknown)
    }

    /// `None`: it is malformed.
    pub fn parse(info: &SubjectPublicKeyInfo<'_>) -> Option<PublicKey> {
        let (bits, parameters) = (&info.subject_public_key, info.algorithm.parameters.as_ref());
        if bits.unused_bits != 0 {
            return None;
        }
        let bytes = &bits.data;
        match info.algorithm.algorithm.to_id_string().as_str() {
            ED25519 => {
                (parameters.is_none() && bytes.len() == 32).then(|| PublicKey::Ed25519(bytes.to_vec()))
            }
            EC => {
                let curve = parameters?.as_oid().ok()?.to_id_string();
                EcKey::parse(&curve, bytes).map(PublicKey::Ecdsa)
            }
            RSA => parameters
                .is_some_and(|any| any.tag() == Tag::Null)
                .then(|| RsaKey::parse(bytes))?
                .map(PublicKey::Rsa),
            DSA | X25519 => Some(PublicKey::Other),
            _ => Some(PublicKey::Unknown),
        }
    }

    /// Whether a signature is this key's, as pods' certificates are requested with: with SHA-256, and for RSA with PSS and a
    /// salt of any length.
    pub fn proves(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            PublicKey::Ed25519(key) => ed25519(key, message, signature),
            PublicKey::Ecdsa(key) => key.verifies(&SHA256, message, signature),
            PublicKey::Rsa(key) => key.verifies_pss(message, signature),
            PublicKey::Other | PublicKey::Unknown => false,
        }
    }

    /// Whether this key signed a certificate request.
    ///
    /// # Errors
    /// Why not, in the words of Go's `crypto/x509`.
    pub fn check_signature(&self, request: &X509CertificationRequest<'_>) -> Result<(), String> {
        let message = request.certification_request_info.raw;
        let signature = &request.signature_value.data;
        let scheme = Scheme::of(&request.signature_algorithm).ok_or(UNIMPLEMENTED)?;
        let (verified, failure) = match (self, &scheme) {
            (PublicKey::Ed25519(key), Scheme::Ed25519) => {
                (ed25519(key, message, signature), "x509: Ed25519 verification failure")
            }
            (PublicKey::Ecdsa(EcKey::P224(_)), Scheme::Ecdsa(_)) => return Err(UNIMPLEMENTED.into()),
            (PublicKey::Ecdsa(key), Scheme::Ecdsa(hash)) => {
                (key.verifies(hash, message, signature), "x509: ECDSA verification failure")
            }
            (PublicKey::Rsa(key), Scheme::Rsa(parameters)) => {
                (key.verifies(parameters, message, signature), "crypto/rsa: verification error")
            }
            (key, scheme) => return Err(key.mismatch(scheme)),
        };
        if verified { Ok(()) } else { Err(failure.into()) }
    }

    /// The error for a signature of another family than the key.
    fn mismatch(&self, scheme: &Scheme) -> String {
        let actual = match self {
            PublicKey::Ed25519(_) => "ed25519.PublicKey",
            PublicKey::Ecdsa(_) => "*ecdsa.PublicKey",
            PublicKey::Rsa(_) => "*rsa.PublicKey",
            PublicKey::Other | PublicKey::Unknown => return UNIMPLEMENTED.into(),
        };
        let expected = match scheme {
            Scheme::Ed25519 => "Ed25519",
            Scheme::Ecdsa(_) => "ECDSA",
            Scheme::Rsa(_) => "RSA",
        };
        format!(
            "x509: signature algorithm specifies an {expected} public key, but have public key of type {actual}"
        )
    }
}

fn ed25519(key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&signature::ED25519, key).verify(message, signature).is_ok()
}

/// A point of one of NIST's curves.
#[derive(Debug, PartialEq)]
pub enum EcKey {
    /// No pod's certificate may have it, and it is not verified with: nothing looks whether the point is one of the curve.
    P224(Vec<u8>),
    /// NIST P-256.
    P256(p256::ecdsa::VerifyingKey),
    /// NIST P-384.
    P384(p384::ecdsa::VerifyingKey),
    /// NIST P-521.
    P521(p521::ecdsa::VerifyingKey),
}

impl EcKey {
    fn parse(curve: &str, point: &[u8]) -> Option<EcKey> {
        if point.first() != Some(&4) {
            return None;
        }
        match curve {
            "1.3.132.0.33" => (point.len() == 57).then(|| EcKey::P224(point.to_vec())),
            "1.2.840.10045.3.1.7" => p256::ecdsa::VerifyingKey::from_sec1_bytes(point).ok().map(EcKey::P256),
            "1.3.132.0.34" => p384::ecdsa::VerifyingKey::from_sec1_bytes(point).ok().map(EcKey::P384),
            "1.3.132.0.35" => p521::ecdsa::VerifyingKey::from_sec1_bytes(point).ok().map(EcKey::P521),
            _ => None,
        }
    }

    /// Whether a signature (ASN.1) is of this key and a message's hash.
    fn verifies(&self, hash: &'static Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let hash = digest(hash, message);
        let verified = match self {
            EcKey::P224(_) => return false,
            EcKey::P256(key) => p256::ecdsa::Signature::from_der(signature)
                .and_then(|signature| key.verify_prehash(hash.as_ref(), &signature)),
            EcKey::P384(key) => p384::ecdsa::Signature::from_der(signature)
                .and_then(|signature| key.verify_prehash(hash.as_ref(), &signature)),
            EcKey::P521(key) => p521::ecdsa::Signature::from_der(signature)
                .and_then(|signature| key.verify_prehash(hash.as_ref(), &signature)),
        };
        verified.is_ok()
    }
}

/// Modulus and exponent, big-endian, without leading zeros.
#[derive(Debug, PartialEq)]
pub struct RsaKey {
    n: Vec<u8>,
    e: Vec<u8>,
}

impl RsaKey {
    fn parse(der: &[u8]) -> Option<RsaKey> {
        let (_, key) = RSAPublicKey::from_der(der).ok()?;
        let (n, e) = (positive(key.modulus)?, positive(key.exponent)?);
        // Go's exponents are of type `int`.
        (e.len() < 8 || e.len() == 8 && e[0] < 0x80).then_some(RsaKey { n, e })
    }

    /// Whether these are its modulus and exponent, without leading zeros.
    pub fn is(&self, modulus: &[u8], exponent: &[u8]) -> bool {
        self.n == modulus && self.e == exponent
    }

    /// The length of signatures, in bits.
    pub fn bits(&self) -> usize {
        self.n.len() * 8
    }

    /// Whether Go verifies with the exponent.
    fn has_usable_exponent(&self) -> bool {
        let e = self.e.iter().take(5).fold(0_u64, |e, byte| e << 8 | u64::from(*byte));
        e > 2 && e % 2 == 1 && e < 1 << 31
    }

    fn verifies(&self, parameters: &RsaParameters, message: &[u8], signature: &[u8]) -> bool {
        let key = RsaPublicKeyComponents { n: &self.n, e: &self.e };
        self.has_usable_exponent() && key.verify(parameters, message, signature).is_ok()
    }

    /// With SHA-256 and a salt of any length.
    fn verifies_pss(&self, message: &[u8], signature: &[u8]) -> bool {
        let number = |bytes: &[u8]| BoxedUint::from_be_slice_vartime(bytes);
        let key = rsa::PublicKey::new(number(&self.n), number(&self.e));
        let (Ok(key), Ok(signature)) = (key, pss::Signature::try_from(signature)) else { return false };
        let key = pss::VerifyingKey::<Sha256>::new_with_auto_salt_len(key);
        self.has_usable_exponent() && key.verify(message, &signature).is_ok()
    }
}

/// A number above zero without leading zeros, of an INTEGER's content.
fn positive(content: &[u8]) -> Option<Vec<u8>> {
    match content {
        [] | [0] | [0x80..=0xff, ..] | [0, 0..=0x7f, ..] => None,
        [0, number @ ..] | number => Some(number.to_vec()),
    }
}

/// How a certificate request is signed.
enum Scheme {
    Ed25519,
    Ecdsa(&'static Algorithm),
    Rsa(&'static RsaParameters),
}

impl Scheme {
    fn of(algorithm: &AlgorithmIdentifier<'_>) -> Option<Scheme> {
        let parameters = algorithm.parameters.as_ref();
        Some(match algorithm.algorithm.to_id_string().as_str() {
            ED25519 if parameters.is_none() => Scheme::Ed25519,
            "1.2.840.10045.4.1" => Scheme::Ecdsa(&SHA1_FOR_LEGACY_USE_ONLY),
            "1.2.840.10045.4.3.2" => Scheme::Ecdsa(&SHA256),
            "1.2.840.10045.4.3.3" => Scheme::Ecdsa(&SHA384),
            "1.2.840.10045.4.3.4" => Scheme::Ecdsa(&SHA512),
            "1.2.840.113549.1.1.5" | "1.3.14.3.2.29" => {
                Scheme::Rsa(&signature::RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY)
            }
            "1.2.840.113549.1.1.11" => {
                Scheme::Rsa(&signature::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY)
            }
            "1.2.840.113549.1.1.12" => Scheme::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            "1.2.840.113549.1.1.13" => {
                Scheme::Rsa(&signature::RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY)
            }
            "1.2.840.113549.1.1.10" => Scheme::Rsa(pss_parameters(parameters?)?),
            _ => return None,
        })
    }
}

/// PSS as Go takes it: one hash for message and mask, and a salt of its length.
fn pss_parameters(parameters: &Any<'_>) -> Option<&'static RsaParameters> {
    let parameters = RsaSsaPssParams::try_from(parameters).ok()?;
    let mask = parameters.mask_gen_algorithm().ok()?;
    let hash = parameters.hash_algorithm_oid();
    if mask.mgf.to_id_string() != "1.2.840.113549.1.1.8"
        || mask.hash != *hash
        || parameters.trailer_field() != 1
    {
        return None;
    }
    match (hash.to_id_string().as_str(), parameters.salt_length()) {
        ("2.16.840.1.101.3.4.2.1", 32) => Some(&signature::RSA_PSS_2048_8192_SHA256),
        ("2.16.840.1.101.3.4.2.2", 48) => Some(&signature::RSA_PSS_2048_8192_SHA384),
        ("2.16.840.1.101.3.4.2.3", 64) => Some(&signature::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}
