//! A certificate authority: makes certificates from requests, as upstream's permissive signing policy does.
//!
//! Invariants: a certificate is never one of an authority, never outlives its issuer, and carries the requested
//! subject (every value of every common attribute) and alternative names, and of extensions nothing else that was requested
//! for. The key is in no `Debug` output.

use crate::shared::certificates::{
    der::{self, BIT_STRING, OCTET_STRING, OID, SEQUENCE, element, list},
    request::{ATTRIBUTES, Request},
};
use jiff::{SignedDuration, Timestamp};
use kaji_meta::{random::Random, text::pem, time::saturating};
use rcgen::{KeyPair, SigningKey as _};
use std::fmt;
use x509_parser::{extensions::ParsedExtension, pem::Pem};

/// For clocks that are behind.
const BACKDATE: SignedDuration = SignedDuration::from_mins(5);
/// Lifetimes below this are not shortened by the backdating: it is 1 % of it.
const SHORT: SignedDuration = SignedDuration::from_hours(8);
/// The shortest lifetime.
const SHORTEST: SignedDuration = SignedDuration::from_mins(10);

const ECDSA_SHA256: &[u8] = &[0x30, 10, OID, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const ECDSA_SHA384: &[u8] = &[0x30, 10, OID, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3];
const RSA_SHA256: &[u8] = &[0x30, 13, OID, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11, 5, 0];
const ED25519: &[u8] = &[0x30, 5, OID, 3, 0x2b, 0x65, 0x70];

/// Usages with the bit of the key usage extension.
const KEY_USAGES: &[(&str, usize)] = &[
    ("signing", 0),
    ("digital signature", 0),
    ("content commitment", 1),
    ("key encipherment", 2),
    ("data encipherment", 3),
    ("key agreement", 4),
    ("cert sign", 5),
    ("crl sign", 6),
    ("encipher only", 7),
    ("decipher only", 8),
];

/// Usages with the OID of the extended key usage, in the order in which they are written.
const EXTENDED_USAGES: &[(&[&str], &[u8])] = &[
    (&["any"], &[0x55, 0x1d, 0x25, 0]),
    (&["server auth"], &[0x2b, 6, 1, 5, 5, 7, 3, 1]),
    (&["client auth"], &[0x2b, 6, 1, 5, 5, 7, 3, 2]),
    (&["code signing"], &[0x2b, 6, 1, 5, 5, 7, 3, 3]),
    (&["email protection", "s/mime"], &[0x2b, 6, 1, 5, 5, 7, 3, 4]),
    (&["ipsec end system"], &[0x2b, 6, 1, 5, 5, 7, 3, 5]),
    (&["ipsec tunnel"], &[0x2b, 6, 1, 5, 5, 7, 3, 6]),
    (&["ipsec user"], &[0x2b, 6, 1, 5, 5, 7, 3, 7]),
    (&["timestamping"], &[0x2b, 6, 1, 5, 5, 7, 3, 8]),
    (&["ocsp signing"], &[0x2b, 6, 1, 5, 5, 7, 3, 9]),
    (&["microsoft sgc"], &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 10, 3, 3]),
    (&["netscape sgc"], &[0x60, 0x86, 0x48, 1, 0x86, 0xf8, 0x42, 4, 1]),
];

/// What signs.
pub struct Authority {
    key: KeyPair,
    algorithm: &'static [u8],
    /// The DER of its own subject.
    name: Vec<u8>,
    key_id: Option<Vec<u8>>,
    not_after: Timestamp,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("not_after", &self.not_after).finish_non_exhaustive()
    }
}

/// The lifetime of a certificate: the requested one, bounded by ten minutes and the signer's `longest`.
pub fn lifetime(requested: Option<i64>, longest: SignedDuration) -> SignedDuration {
    match requested.map(SignedDuration::from_secs) {
        Some(requested) if requested <= longest => requested.max(SHORTEST),
        _ => longest,
    }
}

impl Authority {
    /// Takes a certificate and its key, PEM.
    ///
    /// # Errors
    /// When one of them cannot be read, there are several certificates, or the key is of a kind that cannot sign here.
    pub fn new(certificate: &str, key: &str) -> Result<Authority, String> {
        let blocks: Vec<Pem> = Pem::iter_from_buffer(certificate.as_bytes()).filter_map(Result::ok).collect();
        let [block] = blocks.as_slice() else {
            return Err(format!("expected 1 certificate, found {}", blocks.len()));
        };
        let parsed = block.parse_x509().map_err(|e| format!("CA certificate: {e}"))?;
        let key = kaji_auth::authn::pkcs8_from_pem(key).map_err(|e| format!("CA key: {e}"))?;
        let key = KeyPair::try_from(key).map_err(|e| format!("CA key: {e}"))?;
        let algorithm = key.algorithm();
        let algorithm = if *algorithm == rcgen::PKCS_ECDSA_P256_SHA256 {
            ECDSA_SHA256
        } else if *algorithm == rcgen::PKCS_ECDSA_P384_SHA384 {
            ECDSA_SHA384
        } else if *algorithm == rcgen::PKCS_RSA_SHA256 {
            RSA_SHA256
        } else if *algorithm == rcgen::PKCS_ED25519 {
            ED25519
        } else {
            return Err(format!("CA key: {algorithm:?} is not supported"));
        };
        let key_id = parsed.iter_extensions().find_map(|e| match e.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
        let not_after = saturating(parsed.validity().not_after.timestamp());
        Ok(Authority { algorithm, name: parsed.subject().as_raw().to_vec(), key_id, not_after, key })
    }

    /// Makes a certificate, PEM. `random` makes the serial number and so must be cryptographic.
    ///
    /// # Errors
    /// When the request's own signature does not hold, a usage is unknown, or the authority has expired.
    pub fn sign(
        &self,
        request: &Request,
        usages: &[String],
        lifetime: SignedDuration,
        now: Timestamp,
        random: &dyn Random,
    ) -> Result<String, String> {
        if let Some(reason) = &request.forged {
            return Err(format!("unable to verify certificate request signature: {reason}"));
        }
        let (not_before, not_after) = self.validity(lifetime, now)?;
        let validity = element(SEQUENCE, &[&der::time(not_before), &der::time(not_after)]);
        let mut serial = random.u64().to_be_bytes().to_vec();
        serial.extend_from_slice(&random.u64().to_be_bytes());
        let subject = subject(request);
        let extensions = element(0xa3, &[&list(SEQUENCE, &self.extensions(request, usages)?)]);
        let version = element(0xa0, &[&der::unsigned(&[2])]);
        let certificate = element(
            SEQUENCE,
            &[
                &version,
                &der::unsigned(&serial),
                self.algorithm,
                &self.name,
                &validity,
                &subject,
                &request.public_key,
                &extensions,
            ],
        );
        let signature =
            self.key.sign(&certificate).map_err(|e| format!("failed to sign certificate: {e}"))?;
        let signature = element(BIT_STRING, &[&[0], &signature]);
        Ok(pem("CERTIFICATE", &element(SEQUENCE, &[&certificate, self.algorithm, &signature])))
    }

    fn validity(&self, lifetime: SignedDuration, now: Timestamp) -> Result<(Timestamp, Timestamp), String> {
        let end = if lifetime < SHORT { lifetime } else { lifetime - BACKDATE };
        if now >= self.not_after {
            return Err(format!(
                "refusing to sign a certificate that expired in the past: NotAfter={}",
                self.not_after
            ));
        }
        Ok((now - BACKDATE, (now + end).min(self.not_after)))
    }

    fn extensions(&self, request: &Request, usages: &[String]) -> Result<Vec<Vec<u8>>, String> {
        let mut bits = vec![];
        let mut unknown = vec![];
        for usage in usages {
            match KEY_USAGES.iter().find(|(name, _)| name == usage) {
                Some((_, bit)) => bits.push(*bit),
                None if EXTENDED_USAGES.iter().any(|(names, _)| names.contains(&usage.as_str())) => {}
                None => unknown.push(format!("{usage:?}")),
            }
        }
        if !unknown.is_empty() {
            return Err(format!("unrecognized usage values: [{}]", unknown.join(" ")));
        }
        let requested = |names: &[&str]| usages.iter().any(|u| names.contains(&u.as_str()));
        let extended: Vec<Vec<u8>> = EXTENDED_USAGES
            .iter()
            .filter(|(names, _)| requested(names))
            .map(|(_, oid)| element(OID, &[oid]))
            .collect();
        let mut all = vec![];
        if !bits.is_empty() {
            all.push(extension(15, true, &der::named_bits(&bits)));
        }
        if !extended.is_empty() {
            all.push(extension(37, false, &list(SEQUENCE, &extended)));
        }
        // No authority.
        all.push(extension(19, true, &element(SEQUENCE, &[])));
        if let Some(id) = &self.key_id {
            all.push(extension(35, false, &element(SEQUENCE, &[&element(0x80, &[id])])));
        }
        let names = alternative_names(request);
        if !names.is_empty() {
            let anonymous = request.subject.iter().all(Vec::is_empty);
            all.push(extension(17, anonymous, &list(SEQUENCE, &names)));
        }
        Ok(all)
    }
}

/// An extension below 2.5.29.
fn extension(id: u8, critical: bool, value: &[u8]) -> Vec<u8> {
    let (oid, value) = (element(OID, &[&[0x55, 0x1d, id]]), element(OCTET_STRING, &[value]));
    if critical {
        element(SEQUENCE, &[&oid, &der::yes(), &value])
    } else {
        element(SEQUENCE, &[&oid, &value])
    }
}

fn subject(request: &Request) -> Vec<u8> {
    let sets = ATTRIBUTES.iter().zip(&request.subject).filter(|(_, values)| !values.is_empty());
    let sets: Vec<Vec<u8>> = sets
        .map(|(id, values)| {
            let oid = element(OID, &[&[0x55, 0x04, *id]]);
            der::set_of(values.iter().map(|v| element(SEQUENCE, &[&oid, &der::text(v)])).collect())
        })
        .collect();
    list(SEQUENCE, &sets)
}

fn alternative_names(request: &Request) -> Vec<Vec<u8>> {
    let text = |tag: u8| move |name: &String| element(tag, &[name.as_bytes()]);
    let mut names: Vec<Vec<u8>> = request.dns.iter().map(text(0x82)).collect();
    names.extend(request.emails.iter().map(text(0x81)));
    names.extend(request.addresses.iter().map(|address| match address {
        std::net::IpAddr::V4(v4) => element(0x87, &[&v4.octets()]),
        std::net::IpAddr::V6(v6) => element(0x87, &[&v6.octets()]),
    }));
    names.extend(request.uris.iter().map(text(0x86)));
    names
}
