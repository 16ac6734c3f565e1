//! Keys that sign and verify tokens: RSA and the NIST curves, read from the PEM files that Kubernetes' tools write, and
//! from JSON Web Keys.
//!
//! Invariants:
//! - A key verifies only with algorithms of its own family: the header of a token picks among those and nothing else.
//! - Private keys never show up in `Debug` output or in errors.

mod forms;
mod p521;

pub use forms::{pkcs8_from_pem, traditional_pem};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    digest, rand,
    rsa::{self, PublicKeyComponents},
    signature::{self, EcdsaKeyPair, KeyPair as _},
};
use serde_json::{Value, json};

/// Why a key is none.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KeyError {
    /// The text holds no key at all.
    #[error("data does not contain any valid RSA or ECDSA public keys")]
    Empty,
    /// A key that is damaged or of a kind that is not supported.
    #[error("unusable key: {0}")]
    Unusable(String),
    /// Signing failed.
    #[error("the key did not sign")]
    Sign,
}

fn unusable(why: impl Into<String>) -> KeyError {
    KeyError::Unusable(why.into())
}

/// One of the curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// NIST P-256, `ES256`.
    P256,
    /// NIST P-384, `ES384`.
    P384,
    /// NIST P-521, `ES512`.
    P521,
}

impl Curve {
    const ALL: [Curve; 3] = [Curve::P256, Curve::P384, Curve::P521];

    /// The content of the curve's object identifier.
    fn oid(self) -> &'static [u8] {
        match self {
            Curve::P256 => &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
            Curve::P384 => &[0x2b, 0x81, 0x04, 0x00, 0x22],
            Curve::P521 => &[0x2b, 0x81, 0x04, 0x00, 0x23],
        }
    }

    fn from_oid(oid: &[u8]) -> Result<Curve, KeyError> {
        Curve::ALL
            .into_iter()
            .find(|c| c.oid() == oid)
            .ok_or_else(|| unusable("only the curves P-256, P-384 and P-521 are supported"))
    }

    /// Bytes of a coordinate.
    fn size(self) -> usize {
        match self {
            Curve::P256 => 32,
            Curve::P384 => 48,
            Curve::P521 => 66,
        }
    }

    fn jwk_name(self) -> &'static str {
        match self {
            Curve::P256 => "P-256",
            Curve::P384 => "P-384",
            Curve::P521 => "P-521",
        }
    }

    fn algorithm(self) -> &'static str {
        match self {
            Curve::P256 => "ES256",
            Curve::P384 => "ES384",
            Curve::P521 => "ES512",
        }
    }
}

/// A key that verifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicKey {
    /// Modulus and exponent, big-endian, without leading zeros.
    Rsa {
        /// Modulus.
        n: Vec<u8>,
        /// Exponent.
        e: Vec<u8>,
    },
    /// A point of a curve, uncompressed.
    Ec(Curve, Vec<u8>),
}

const RSA_OID: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const EC_OID: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];

impl PublicKey {
    /// All keys of a PEM text: public keys, certificates and private keys (their public half counts).
    pub fn all_from_pem(text: &str) -> Result<Vec<PublicKey>, KeyError> {
        let mut keys = vec![];
        for block in blocks(text)? {
            match block.label.as_str() {
                "PUBLIC KEY" => keys.push(PublicKey::from_spki(&block.contents)?),
                "RSA PUBLIC KEY" => keys.push(PublicKey::from_pkcs1(&block.contents)?),
                "CERTIFICATE" => {
                    let (_, certificate) = x509_parser::parse_x509_certificate(&block.contents)
                        .map_err(|e| unusable(e.to_string()))?;
                    keys.push(PublicKey::from_spki(certificate.public_key().raw)?);
                }
                label if label.ends_with("PRIVATE KEY") => {
                    keys.push(SigningKey::from_block(&block)?.public);
                }
                _ => {}
            }
        }
        if keys.is_empty() { Err(KeyError::Empty) } else { Ok(keys) }
    }

    /// From a SubjectPublicKeyInfo (RFC 5280), DER.
    pub fn from_spki(der: &[u8]) -> Result<PublicKey, KeyError> {
        let bad = || unusable("malformed public key");
        let (body, _) = der::expect(der, der::SEQUENCE).ok_or_else(bad)?;
        let (algorithm, rest) = der::expect(body, der::SEQUENCE).ok_or_else(bad)?;
        let (bits, _) = der::expect(rest, der::BIT_STRING).ok_or_else(bad)?;
        let key = bits.strip_prefix(&[0]).ok_or_else(bad)?;
        let (oid, parameters) = der::expect(algorithm, der::OID).ok_or_else(bad)?;
        match oid {
            RSA_OID => PublicKey::from_pkcs1(key),
            EC_OID => {
                let (curve, _) = der::expect(parameters, der::OID).ok_or_else(bad)?;
                PublicKey::from_point(Curve::from_oid(curve)?, key)
            }
            _ => Err(unusable("neither an RSA nor an ECDSA key")),
        }
    }

    fn from_point(curve: Curve, point: &[u8]) -> Result<PublicKey, KeyError> {
        if point.len() != 1 + 2 * curve.size() || point.first() != Some(&4) {
            return Err(unusable("not an uncompressed point of its curve"));
        }
        Ok(PublicKey::Ec(curve, point.to_vec()))
    }

    /// From an RSAPublicKey (RFC 8017), DER.
    fn from_pkcs1(der: &[u8]) -> Result<PublicKey, KeyError> {
        let bad = || unusable("malformed RSA public key");
        let (body, _) = der::expect(der, der::SEQUENCE).ok_or_else(bad)?;
        let (n, rest) = der::expect(body, der::INTEGER).ok_or_else(bad)?;
        let (e, _) = der::expect(rest, der::INTEGER).ok_or_else(bad)?;
        PublicKey::from_numbers(n, e)
    }

    /// From modulus and exponent; only lengths that signatures can be verified with are taken.
    fn from_numbers(n: &[u8], e: &[u8]) -> Result<PublicKey, KeyError> {
        let (n, e) = (trimmed(n), trimmed(e));
        if !(256..=1024).contains(&n.len()) || !(1..=4).contains(&e.len()) {
            return Err(unusable("RSA keys must have 2048 to 8192 bits and an exponent of at most 32"));
        }
        Ok(PublicKey::Rsa { n, e })
    }

    /// From a JSON Web Key (RFC 7517); `None` for keys that are not for signatures or of another kind.
    pub fn from_jwk(jwk: &Value) -> Option<PublicKey> {
        let text = |key: &str| jwk.get(key).and_then(Value::as_str);
        if text("use").is_some_and(|u| u != "sig") {
            return None;
        }
        let bytes = |key: &str| URL_SAFE_NO_PAD.decode(text(key)?).ok();
        match text("kty")? {
            "RSA" => PublicKey::from_numbers(&bytes("n")?, &bytes("e")?).ok(),
            "EC" => {
                let curve = Curve::ALL.into_iter().find(|c| Some(c.jwk_name()) == text("crv"))?;
                let (x, y) = (bytes("x")?, bytes("y")?);
                PublicKey::from_point(curve, &[&[4], x.as_slice(), y.as_slice()].concat()).ok()
            }
            _ => None,
        }
    }

    /// As a JSON Web Key for signatures, with its [`PublicKey::id`].
    pub fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = match self {
            PublicKey::Rsa { n, e } => json!({"kty": "RSA", "n": text(n), "e": text(e)}),
            PublicKey::Ec(curve, point) => {
                let (x, y) = point[1..].split_at(curve.size());
                json!({"kty": "EC", "crv": curve.jwk_name(), "x": text(x), "y": text(y)})
            }
        };
        jwk["use"] = "sig".into();
        jwk["alg"] = self.algorithm().into();
        jwk["kid"] = self.id().into();
        jwk
    }

    /// The algorithm that the server signs with when this is its key.
    pub fn algorithm(&self) -> &'static str {
        match self {
            PublicKey::Rsa { .. } => "RS256",
            PublicKey::Ec(curve, _) => curve.algorithm(),
        }
    }

    /// SubjectPublicKeyInfo, DER.
    pub fn spki(&self) -> Vec<u8> {
        let (algorithm, key) = match self {
            PublicKey::Rsa { n, e } => {
                let numbers = [der::unsigned(n), der::unsigned(e)].concat();
                let algorithm = [der::tlv(der::OID, RSA_OID), der::tlv(der::NULL, &[])].concat();
                (algorithm, der::tlv(der::SEQUENCE, &numbers))
            }
            PublicKey::Ec(curve, point) => {
                ([der::tlv(der::OID, EC_OID), der::tlv(der::OID, curve.oid())].concat(), point.clone())
            }
        };
        let bits = der::tlv(der::BIT_STRING, &[&[0], key.as_slice()].concat());
        der::tlv(der::SEQUENCE, &[der::tlv(der::SEQUENCE, &algorithm), bits].concat())
    }

    /// The `kid`, as upstream derives it: SHA-256 of the SubjectPublicKeyInfo, base64url.
    pub fn id(&self) -> String {
        URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, &self.spki()))
    }

    /// Whether the signature is this key's. An algorithm of another family never is.
    pub fn verifies(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        match self {
            PublicKey::Rsa { n, e } => {
                let parameters = match algorithm {
                    "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
                    "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
                    "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                PublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
            }
            PublicKey::Ec(curve, _) if curve.algorithm() != algorithm => false,
            PublicKey::Ec(curve, point) => {
                let parameters = match curve {
                    Curve::P256 => &signature::ECDSA_P256_SHA256_FIXED,
                    Curve::P384 => &signature::ECDSA_P384_SHA384_FIXED,
                    Curve::P521 => return p521::verifies(point, message, signature),
                };
                signature::UnparsedPublicKey::new(parameters, point).verify(message, signature).is_ok()
            }
        }
    }
}

enum Pair {
    Rsa(rsa::KeyPair),
    Ec(EcdsaKeyPair),
    P521(p521::Pair),
}

/// A key that signs.
pub struct SigningKey {
    pair: Pair,
    /// Its public half.
    pub public: PublicKey,
    /// Its `kid`.
    pub id: String,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// The first private key of a PEM text: PKCS#8, PKCS#1 (RSA) or SEC 1 (EC).
    pub fn from_pem(text: &str) -> Result<SigningKey, KeyError> {
        let blocks = blocks(text)?;
        let block = blocks.iter().find(|b| b.label.ends_with("PRIVATE KEY"));
        SigningKey::from_block(block.ok_or_else(|| unusable("no private key"))?)
    }

    fn from_block(block: &x509_parser::pem::Pem) -> Result<SigningKey, KeyError> {
        let der = &block.contents;
        let refused = |e: ring::error::KeyRejected| unusable(e.to_string());
        match block.label.as_str() {
            "RSA PRIVATE KEY" => SigningKey::rsa(rsa::KeyPair::from_der(der).map_err(refused)?),
            "EC PRIVATE KEY" => SigningKey::ec(&forms::wrapped_ec(der)?),
            "PRIVATE KEY" => match rsa::KeyPair::from_pkcs8(der) {
                Ok(pair) => SigningKey::rsa(pair),
                Err(_) => SigningKey::ec(der),
            },
            label => Err(unusable(format!("{label:?} is not supported"))),
        }
    }

    fn rsa(pair: rsa::KeyPair) -> Result<SigningKey, KeyError> {
        let public = PublicKey::from_pkcs1(pair.public().as_ref())?;
        Ok(SigningKey { pair: Pair::Rsa(pair), id: public.id(), public })
    }

    /// From PKCS#8.
    fn ec(der: &[u8]) -> Result<SigningKey, KeyError> {
        for curve in Curve::ALL {
            let parameters = match curve {
                Curve::P256 => &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
                Curve::P384 => &signature::ECDSA_P384_SHA384_FIXED_SIGNING,
                Curve::P521 => match p521::Pair::from_pkcs8(der, curve.oid()) {
                    Ok(pair) => {
                        let public = PublicKey::from_point(curve, &pair.point())?;
                        return Ok(SigningKey { pair: Pair::P521(pair), id: public.id(), public });
                    }
                    Err(_) => continue,
                },
            };
            if let Ok(pair) = EcdsaKeyPair::from_pkcs8(parameters, der, &rand::SystemRandom::new()) {
                let public = PublicKey::from_point(curve, pair.public_key().as_ref())?;
                return Ok(SigningKey { pair: Pair::Ec(pair), id: public.id(), public });
            }
        }
        Err(unusable("neither an RSA key of 2048 to 8192 bits nor an ECDSA key on P-256, P-384 or P-521"))
    }

    /// Signs with [`PublicKey::algorithm`].
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let random = rand::SystemRandom::new();
        match &self.pair {
            Pair::Ec(pair) => {
                pair.sign(&random, message).map(|s| s.as_ref().to_vec()).map_err(|_| KeyError::Sign)
            }
            Pair::P521(pair) => pair.sign(message),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .map_err(|_| KeyError::Sign)?;
                Ok(signature)
            }
        }
    }
}

/// The blocks of a PEM text.
fn blocks(text: &str) -> Result<Vec<x509_parser::pem::Pem>, KeyError> {
    x509_parser::pem::Pem::iter_from_buffer(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| unusable("malformed PEM"))
}

fn trimmed(number: &[u8]) -> Vec<u8> {
    let zeros = number.iter().take_while(|b| **b == 0).count();
    number[zeros..].to_vec()
}

/// As much of DER (X.690) as keys need.
mod der {
    pub const INTEGER: u8 = 0x02;
    pub const BIT_STRING: u8 = 0x03;
    pub const OCTET_STRING: u8 = 0x04;
    pub const NULL: u8 = 0x05;
    pub const OID: u8 = 0x06;
    pub const SEQUENCE: u8 = 0x30;
    pub const CONTEXT_0: u8 = 0xa0;

    /// Content and rest of an element with this tag.
    pub fn expect(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
        let (first, rest) = input.split_first()?;
        let (length, mut rest) = rest.split_first()?;
        let mut length = usize::from(*length);
        if length >= 0x80 {
            let count = length & 0x7f;
            if count == 0 || count > 4 || rest.len() < count {
                return None;
            }
            let (digits, after) = rest.split_at(count);
            length = digits.iter().fold(0, |n, d| n << 8 | usize::from(*d));
            rest = after;
        }
        (*first == tag && rest.len() >= length).then(|| rest.split_at(length))
    }

    /// An element.
    pub fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![tag];
        match content.len() {
            n @ 0..0x80 => out.push(n as u8),
            n @ 0x80..0x100 => out.extend([0x81, n as u8]),
            n => out.extend([0x82, (n >> 8) as u8, n as u8]),
        }
        out.extend_from_slice(content);
        out
    }

    /// A number that is not negative.
    pub fn unsigned(bytes: &[u8]) -> Vec<u8> {
        match bytes.first() {
            Some(first) if *first < 0x80 => tlv(INTEGER, bytes),
            _ => tlv(INTEGER, &[&[0], bytes].concat()),
        }
    }
}

/// Keys that verify, and their ids.
#[derive(Clone, Debug, Default)]
pub struct KeySet(Vec<(String, PublicKey)>);

impl KeySet {
    /// A set with upstream's ids; a key that comes twice is kept once.
    pub fn new(keys: impl IntoIterator<Item = PublicKey>) -> Self {
        let mut set = KeySet::default();
        for key in keys {
            let id = key.id();
            if !set.0.iter().any(|(known, _)| *known == id) {
                set.0.push((id, key));
            }
        }
        set
    }

    /// The keys of a JSON Web Key Set under the ids it gives; those of other kinds are left out.
    pub fn from_jwks(jwks: &Value) -> Self {
        let id = |jwk: &Value| jwk.get("kid").and_then(Value::as_str).unwrap_or_default().to_owned();
        let keys = jwks.get("keys").and_then(Value::as_array).into_iter().flatten();
        KeySet(keys.filter_map(|jwk| Some((id(jwk), PublicKey::from_jwk(jwk)?))).collect())
    }

    /// The keys of an id; all of them when a token names none.
    pub fn candidates<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a PublicKey> {
        self.0.iter().filter(move |(known, _)| id.is_empty() || known == id).map(|(_, key)| key)
    }

    /// All keys.
    pub fn all(&self) -> impl Iterator<Item = &PublicKey> {
        self.0.iter().map(|(_, key)| key)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
