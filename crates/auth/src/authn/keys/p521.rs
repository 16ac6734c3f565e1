//! ECDSA on P-521 with SHA-512 (`ES512`, RFC 7518), which ring does not have.

use super::{EC_OID, KeyError, der, unusable};
use p521::ecdsa::{
    Signature, SigningKey, VerifyingKey,
    signature::{Signer, Verifier},
};

/// A private key.
pub struct Pair(SigningKey);

impl Pair {
    /// From PKCS#8 (RFC 5958) around an ECPrivateKey (RFC 5915), DER.
    pub fn from_pkcs8(der: &[u8], curve: &[u8]) -> Result<Pair, KeyError> {
        let bad = || unusable("malformed EC private key");
        let (body, _) = der::expect(der, der::SEQUENCE).ok_or_else(bad)?;
        let (_, rest) = der::expect(body, der::INTEGER).ok_or_else(bad)?;
        let (algorithm, rest) = der::expect(rest, der::SEQUENCE).ok_or_else(bad)?;
        let (oid, parameters) = der::expect(algorithm, der::OID).ok_or_else(bad)?;
        let (named, _) = der::expect(parameters, der::OID).ok_or_else(bad)?;
        if oid != EC_OID || named != curve {
            return Err(unusable("not a key on P-521"));
        }
        let (inner, _) = der::expect(rest, der::OCTET_STRING).ok_or_else(bad)?;
        let (body, _) = der::expect(inner, der::SEQUENCE).ok_or_else(bad)?;
        let (_, rest) = der::expect(body, der::INTEGER).ok_or_else(bad)?;
        let (secret, _) = der::expect(rest, der::OCTET_STRING).ok_or_else(bad)?;
        SigningKey::from_slice(secret).map(Pair).map_err(|_| bad())
    }

    /// The public half, an uncompressed point.
    pub fn point(&self) -> Vec<u8> {
        self.0.verifying_key().to_sec1_point(false).as_bytes().to_vec()
    }

    /// The signature, both numbers in full length.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signature: Signature = self.0.try_sign(message).map_err(|_| KeyError::Sign)?;
        Ok(signature.to_bytes().to_vec())
    }
}

/// Whether a key, an uncompressed point, signed a message.
pub fn verifies(point: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let (Ok(key), Ok(signature)) = (VerifyingKey::from_sec1_bytes(point), Signature::from_slice(signature))
    else {
        return false;
    };
    key.verify(message, &signature).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::keys::{PublicKey, SigningKey};

    // Made by OpenSSL: one key in three forms, and its signature of `message`.
    const SEC1: &str = "-----BEGIN EC PRIVATE KEY-----
MIHcAgEBBEIA4j3ibH/eMEY7kkSmvrdX67EtxEjbDnomYjXku+mVJzW43D3w3/Ro
jL9vS7bDRTHxpRKWApS5rlpu5JtrJubfqR6gBwYFK4EEACOhgYkDgYYABAFN9U5K
hEx0hYrCcVPb3V4UxLxvAfWbAghFq+b4ChlyDMHxHX2U1JUzopzHD96jyEWdfMSv
TS91BOe4iQUnmtow+AFsjjqAMYNSfFqy3gFIt+PDG8W+sQt1rweJPs9YMlqOnwm3
hFz6zaC+DabStsgnlc7shdLHeTZRbLmlmykEbWaFTQ==
-----END EC PRIVATE KEY-----";
    const PKCS8: &str = "-----BEGIN PRIVATE KEY-----
MIHuAgEAMBAGByqGSM49AgEGBSuBBAAjBIHWMIHTAgEBBEIA4j3ibH/eMEY7kkSm
vrdX67EtxEjbDnomYjXku+mVJzW43D3w3/RojL9vS7bDRTHxpRKWApS5rlpu5Jtr
JubfqR6hgYkDgYYABAFN9U5KhEx0hYrCcVPb3V4UxLxvAfWbAghFq+b4ChlyDMHx
HX2U1JUzopzHD96jyEWdfMSvTS91BOe4iQUnmtow+AFsjjqAMYNSfFqy3gFIt+PD
G8W+sQt1rweJPs9YMlqOnwm3hFz6zaC+DabStsgnlc7shdLHeTZRbLmlmykEbWaF
TQ==
-----END PRIVATE KEY-----";
    const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MIGbMBAGByqGSM49AgEGBSuBBAAjA4GGAAQBTfVOSoRMdIWKwnFT291eFMS8bwH1
mwIIRavm+AoZcgzB8R19lNSVM6Kcxw/eo8hFnXzEr00vdQTnuIkFJ5raMPgBbI46
gDGDUnxast4BSLfjwxvFvrELda8HiT7PWDJajp8Jt4Rc+s2gvg2m0rbIJ5XO7IXS
x3k2UWy5pZspBG1mhU0=
-----END PUBLIC KEY-----";
    const SIGNATURE: &str = "00aae032e5a6a18cb7acf710cb00444484866b858683995611fc242db4301e84b34a2e9fc1ebefb6a1323e13\
        d1cc0abb877f8249168caa0f3ede807f83a8381f90b50166433ede328368aefe6d440ea8a3ba3613f3c1e226\
        bcd4c7c3249f1b65b321217f8d235ccd631dd7515cef9fcd304ac0c01d0c5eb24e33048a370ea9e9e89d534e";

    #[test]
    fn verifies_keys_that_openssl_made() {
        let key = SigningKey::from_pem(PKCS8).unwrap();
        assert_eq!(key.public.algorithm(), "ES512");
        assert_eq!(SigningKey::from_pem(SEC1).unwrap().id, key.id);
        assert!(PublicKey::all_from_pem(PUBLIC).unwrap().iter().eq([&key.public]));
        assert_eq!(PublicKey::from_jwk(&key.public.jwk()), Some(key.public.clone()));
        let signature = kaji_meta::text::from_hex(SIGNATURE).unwrap();
        assert!(key.public.verifies("ES512", b"message", &signature));
        assert!(!key.public.verifies("ES512", b"massage", &signature));
        assert!(!key.public.verifies("ES384", b"message", &signature));
        assert!(!key.public.verifies("ES512", b"message", &signature[1..]));
    }

    #[test]
    fn verifies_its_own_signatures() {
        let key = SigningKey::from_pem(PKCS8).unwrap();
        let signature = key.sign(b"m").unwrap();
        assert_eq!(signature.len(), 132);
        assert!(key.public.verifies("ES512", b"m", &signature));
        assert!(!verifies(&[4; 133], b"m", &signature), "not a point of the curve");
    }
}
