//! Proof that a kubelet has the private key of a pod's certificate: an empty certificate request that the key signed, or the
//! public key and its signature of the pod's uid.
//!
//! Invariant: the first fault found is the only one reported.

use super::{super::request, path};
use crate::shared::{rules::base64_bytes, value::Fields};
use kaji_auth::public_keys::{EcKey, PublicKey};
use kaji_meta::field::{Error, Path};
use serde_json::Value;

/// The most bytes of each field.
const MAX_SIZE: usize = 10 * 1024;

const STUB: &str = "stubPKCS10Request";
const KEY: &str = "pkixPublicKey";
const PROOF: &str = "proofOfPossession";
const NO_REQUEST: &str = "must be a valid PKCS#10 CSR";
const NO_KEY: &str = "must be a valid PKIX-serialized public key";
const RSA_SIZES: &str = "RSA keys must have modulus size 3072 or 4096";
const KINDS: &str = "unknown public key type; supported types are Ed25519, ECDSA, and RSA";

/// An error that does not repeat the value.
fn omitted(path: &Path, text: &str) -> Error {
    Error::invalid(path, Value::Null, text).without_value()
}

/// What is wrong with the proof of a request.
pub(super) fn problem(spec: &Value) -> Option<Error> {
    let [has_stub, has_key, has_proof] = [STUB, KEY, PROOF].map(|field| !spec.text(field).is_empty());
    match (has_stub, has_key, has_proof) {
        (true, false, false) => stub(spec).err(),
        (false, true, true) => signature_of_uid(spec).err(),
        _ => {
            let text = "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set";
            Some(omitted(&Path::new("spec"), text))
        }
    }
}

/// The key that a certificate is requested for.
///
/// # Errors
/// When the field that has it is malformed.
pub(super) fn requested_key(spec: &Value) -> Result<PublicKey, Error> {
    if !spec.text(STUB).is_empty() {
        let stub = base64_bytes(spec.text(STUB));
        let parsed = request::parse(&stub).ok();
        let key =
            parsed.and_then(|request| PublicKey::parse(&request.certification_request_info.subject_pki));
        return key.ok_or_else(|| omitted(&path(STUB), NO_REQUEST));
    }
    PublicKey::from_der(&base64_bytes(spec.text(KEY))).ok_or_else(|| omitted(&path(KEY), NO_KEY))
}

fn bounded(spec: &Value, field: &str) -> Result<Vec<u8>, Error> {
    let bytes = base64_bytes(spec.text(field));
    if bytes.len() > MAX_SIZE { Err(Error::too_long(&path(field), "", MAX_SIZE)) } else { Ok(bytes) }
}

fn stub(spec: &Value) -> Result<(), Error> {
    let (der, at) = (bounded(spec, STUB)?, path(STUB));
    let malformed = || omitted(&at, NO_REQUEST);
    let request = request::parse(&der).map_err(|_| malformed())?;
    let key = PublicKey::parse(&request.certification_request_info.subject_pki).ok_or_else(malformed)?;
    let curves = "elliptic public keys must use curve P256, P384, or P521";
    permitted(&at, &key, curves, || omitted(&at, KINDS))?;
    key.check_signature(&request).map_err(|_| omitted(&at, "invalid signature"))
}

fn signature_of_uid(spec: &Value) -> Result<(), Error> {
    let (der, proof, at) = (bounded(spec, KEY)?, bounded(spec, PROOF)?, path(KEY));
    let bad = |text| Error::invalid(&at, spec.text(KEY), text);
    let key = PublicKey::from_der(&der).ok_or_else(|| bad(NO_KEY))?;
    // Upstream's text leaves out P521, which it takes.
    permitted(&at, &key, "elliptic public keys must use curve P256 or P384", || bad(KINDS))?;
    if key.proves(spec.text("podUID").as_bytes(), &proof) {
        return Ok(());
    }
    Err(omitted(&path(PROOF), "could not verify proof-of-possession signature"))
}

/// Refuses keys of other kinds and sizes than the API has.
fn permitted(
    at: &Path,
    key: &PublicKey,
    curves: &str,
    other_kind: impl FnOnce() -> Error,
) -> Result<(), Error> {
    match key {
        PublicKey::Ecdsa(EcKey::P224(_)) => Err(Error::invalid(at, "curve P-224", curves)),
        PublicKey::Rsa(key) if ![3072, 4096].contains(&key.bits()) => {
            Err(Error::invalid(at, format!("{}-bit modulus", key.bits()), RSA_SIZES))
        }
        PublicKey::Ed25519(_) | PublicKey::Ecdsa(_) | PublicKey::Rsa(_) => Ok(()),
        PublicKey::Other | PublicKey::Unknown => Err(other_kind()),
    }
}
