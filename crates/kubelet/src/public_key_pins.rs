//! Pinned public keys: a node that joins verifies its cluster by the hash of a certificate authority's public key.
//!
//! Invariant: only authorities with a pinned key are trusted. (kubeadm trusts a whole bundle for one of its
//! members; an attacker with a token could then add another authority to the right one.)
//!
//! Source: kubeadm join, "Token-based discovery with CA pinning".

use sha2::{Digest, Sha256};
use x509_parser::{parse_x509_certificate, pem::Pem};

const FORMAT: &str = "sha256";

/// Hashes of public keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins(Vec<String>);

impl Pins {
    /// Reads `sha256:<hex>`.
    ///
    /// # Errors
    /// What is wrong with one of them, and that there is none.
    pub fn parse(hashes: &[String]) -> Result<Pins, String> {
        let pins = hashes.iter().map(|hash| {
            let (format, value) = hash.split_once(':').ok_or_else(|| {
                "invalid hash, expected \"format:hex-value\". Known format(s) are: sha256".to_owned()
            })?;
            if !format.eq_ignore_ascii_case(FORMAT) {
                return Err(format!("unknown hash format {format:?}. Known format(s) are: {FORMAT}"));
            }
            let hex = value.len() == 64 && value.bytes().all(|b| b.is_ascii_hexdigit());
            if hex {
                Ok(format!("{FORMAT}:{}", value.to_ascii_lowercase()))
            } else {
                Err(format!("invalid hash {hash:?}, expected 32 bytes in hexadecimal"))
            }
        });
        let pins = pins.collect::<Result<Vec<_>, _>>()?;
        if pins.is_empty() {
            Err("no hash of the cluster's authority is given".into())
        } else {
            Ok(Pins(pins))
        }
    }

    /// Of the certificates in a PEM text, those with a pinned key, DER.
    ///
    /// # Errors
    /// When the text is malformed, and when none is pinned.
    pub fn choose(&self, pem: &str) -> Result<Vec<Vec<u8>>, String> {
        let mut others = vec![];
        let mut chosen = vec![];
        for der in certificates(pem)? {
            let hash = hash(&der)?;
            if self.0.contains(&hash) { chosen.push(der) } else { others.push(hash) }
        }
        if chosen.is_empty() {
            return Err(format!("none of the public keys {:?} are pinned", others.join(" ")));
        }
        Ok(chosen)
    }
}

/// The certificates of a PEM text, DER.
fn certificates(pem: &str) -> Result<Vec<Vec<u8>>, String> {
    Pem::iter_from_buffer(pem.as_bytes())
        .filter(|block| block.as_ref().map_or(true, |b| b.label == "CERTIFICATE"))
        .map(|block| block.map(|b| b.contents).map_err(|e| e.to_string()))
        .collect()
}

/// What a certificate (DER) is pinned by: `sha256:` and the hash of its SubjectPublicKeyInfo.
///
/// # Errors
/// When it is none.
pub fn hash(der: &[u8]) -> Result<String, String> {
    let (_, certificate) = parse_x509_certificate(der).map_err(|e| format!("malformed certificate: {e}"))?;
    let digest = Sha256::digest(certificate.public_key().raw);
    Ok(format!("{FORMAT}:{}", kaji_meta::text::hex(&digest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap().pem()
    }

    #[test]
    fn parses_hashes() {
        let parse = |text: &str| Pins::parse(&[text.to_owned()]).map(|p| p.0.concat());
        let hex = "0123456789ABCDEF".repeat(4);
        assert_eq!(parse(&format!("SHA256:{hex}")), Ok(format!("sha256:{}", hex.to_lowercase())));
        let all = [
            parse("abc").unwrap_err(),
            parse("md5:00").unwrap_err(),
            parse("sha256:00").unwrap_err(),
            parse(&format!("sha256:{}", "g".repeat(64))).unwrap_err().replace('g', ""),
            Pins::parse(&[]).unwrap_err(),
        ];
        expect_test::expect![[r#"
            invalid hash, expected "format:hex-value". Known format(s) are: sha256
            unknown hash format "md5". Known format(s) are: sha256
            invalid hash "sha256:00", expected 32 bytes in hexadecimal
            invalid hash "sha256:", expected 32 bytes in hexadecimal
            no hash of the cluster's authority is given"#]]
        .assert_eq(&all.join("\n"));
    }

    #[test]
    fn chooses_only_pinned_authorities() {
        let (right, wrong) = (authority(), authority());
        let der = certificates(&right).unwrap();
        let pins = Pins::parse(&[hash(&der[0]).unwrap()]).unwrap();
        assert_eq!(pins.choose(&right).unwrap(), der);
        assert_eq!(pins.choose(&format!("{wrong}{right}")).unwrap(), der);
        assert!(pins.choose(&wrong).unwrap_err().starts_with("none of the public keys \"sha256:"));
        assert_eq!(pins.choose("").unwrap_err(), "none of the public keys \"\" are pinned");
        assert!(pins.choose("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").is_err());
    }
}
