//! The messages of KMS API v2, and of what is stored. Numbers are on the wire and on disk: they never change.
//!
//! Source: KEP-3299; `k8s.io/kms/apis/v2/api.proto`, `kmsv2/v2/api.proto` of k8s.io/apiserver.

use bytes::Bytes;
use kaji_meta::{Path, field, validation};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Versions that mean this API.
pub const VERSIONS: [&str; 2] = ["v2", "v2beta1"];
/// Longest key id, in bytes.
const KEY_ID_BYTES: usize = 1024;
/// Longest encrypted key or seed, in bytes.
const SOURCE_BYTES: usize = 1024;
/// Names and values of annotations together, in bytes.
const ANNOTATIONS_BYTES: usize = 32 * 1024;

/// What a plugin says along with a key; comes back when the key is to be decrypted.
pub type Annotations = BTreeMap<String, Bytes>;

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusResponse {
    #[prost(string, tag = "1")]
    pub version: String,
    #[prost(string, tag = "2")]
    pub healthz: String,
    #[prost(string, tag = "3")]
    pub key_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DecryptRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub ciphertext: Bytes,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub key_id: String,
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub annotations: Annotations,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DecryptResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pub plaintext: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub plaintext: Bytes,
    #[prost(string, tag = "2")]
    pub uid: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pub ciphertext: Bytes,
    #[prost(string, tag = "2")]
    pub key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    pub annotations: Annotations,
}

/// What is stored, after the prefix.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptedObject {
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
    #[prost(string, tag = "2")]
    pub key_id: String,
    /// The encrypted key or seed.
    #[prost(bytes = "bytes", tag = "3")]
    pub source: Bytes,
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub annotations: Annotations,
    /// [`SOURCE_KEY`] or [`SOURCE_SEED`].
    #[prost(int32, tag = "5")]
    pub source_type: i32,
}

/// The source is a key for AES-GCM. Read (Kubernetes 1.27 wrote it), not written.
pub const SOURCE_KEY: i32 = 0;
/// The source is a seed that keys are derived from.
pub const SOURCE_SEED: i32 = 1;

impl EncryptedObject {
    /// Upstream's validation, with its texts.
    pub fn validate(&self) -> Result<(), String> {
        if !matches!(self.source_type, SOURCE_KEY | SOURCE_SEED) {
            return Err(format!("unknown encryptedDEKSourceType: {}", self.source_type));
        }
        if self.data.is_empty() {
            return Err("encrypted data is empty".into());
        }
        self.validate_source()
    }

    /// Validates all but the data, for a response that is not complete yet.
    pub fn validate_source(&self) -> Result<(), String> {
        let source = match self.source.len() {
            0 => Err("encrypted DEK source is empty".into()),
            n if n > SOURCE_BYTES => Err(format!(
                "encrypted DEK source is {n} bytes, which exceeds the max size of {SOURCE_BYTES}"
            )),
            _ => Ok(()),
        };
        source.map_err(|e: String| format!("failed to validate encrypted DEK source: {e}"))?;
        validate_key_id(&self.key_id).map_err(|(_, e)| format!("failed to validate key id: {e}"))?;
        validate_annotations(&self.annotations).map_err(|e| format!("failed to validate annotations: {e}"))
    }

    /// Tells keys apart. Every part is preceded by its length, so that no two sources look alike.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.source_type.to_be_bytes());
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        part(&self.source);
        part(self.key_id.as_bytes());
        for (name, value) in &self.annotations {
            part(name.as_bytes());
            part(value);
        }
        hash.finalize().into()
    }
}

/// On failure the metric's word for it and the text.
pub fn validate_key_id(id: &str) -> Result<(), (&'static str, String)> {
    match id.len() {
        0 => Err(("empty", "keyID is empty".into())),
        n if n > KEY_ID_BYTES => {
            Err(("too_long", format!("keyID is {n} bytes, which exceeds the max size of {KEY_ID_BYTES}")))
        }
        _ => Ok(()),
    }
}

fn validate_annotations(annotations: &Annotations) -> Result<(), String> {
    let path = Path::new("annotations");
    let bad = annotations.keys().map(|k| validation::validate_fully_qualified_domain_name(&path, k));
    let mut errors: Vec<String> = bad.filter(|e| !e.is_empty()).map(|e| field::aggregate(&e)).collect();
    let size: usize = annotations.iter().map(|(name, value)| name.len() + value.len()).sum();
    if size > ANNOTATIONS_BYTES {
        errors.push(format!(
            "total size of annotations is {size}, which exceeds the max size of {ANNOTATIONS_BYTES}"
        ));
    }
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(format!("[{}]", errors.join(", "))),
    }
}

/// How key ids are shown: they may say more than a log should. Empty for an empty one.
pub fn hash(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let hex = kaji_meta::text::hex(&Sha256::digest(text.as_bytes()));
    format!("sha256:{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn object() -> EncryptedObject {
        EncryptedObject {
            data: Bytes::from_static(b"data"),
            key_id: "k".into(),
            source: Bytes::from_static(b"seed"),
            annotations: Annotations::from([("a.example.com".into(), Bytes::from_static(b"x"))]),
            source_type: SOURCE_SEED,
        }
    }

    /// Made with protoc from upstream's file.
    #[test]
    fn stored_as_upstream_stores() {
        let wire = b"\x0a\x04data\x12\x01k\x1a\x04seed\x22\x12\x0a\x0da.example.com\x12\x01x\x28\x01";
        assert_eq!(object().encode_to_vec(), wire);
        assert_eq!(EncryptedObject::decode(&wire[..]).unwrap(), object());
    }

    #[test]
    fn sends_upstream_requests() {
        let error = |change: fn(&mut EncryptedObject)| {
            let mut object = object();
            change(&mut object);
            object.validate().err().unwrap_or_default()
        };
        let seen = [
            error(|_| {}),
            error(|o| o.source_type = 7),
            error(|o| o.data = Bytes::new()),
            error(|o| o.source = Bytes::new()),
            error(|o| o.source = vec![1; 1025].into()),
            error(|o| o.key_id = String::new()),
            error(|o| o.key_id = "x".repeat(1025)),
            error(|o| drop(o.annotations.insert("plain".into(), Bytes::new()))),
            error(|o| drop(o.annotations.insert("b.example.com".into(), vec![1; 32 * 1024].into()))),
        ];
        expect_test::expect![[r#"

            unknown encryptedDEKSourceType: 7
            encrypted data is empty
            failed to validate encrypted DEK source: encrypted DEK source is empty
            failed to validate encrypted DEK source: encrypted DEK source is 1025 bytes, which exceeds the max size of 1024
            failed to validate key id: keyID is empty
            failed to validate key id: keyID is 1025 bytes, which exceeds the max size of 1024
            failed to validate annotations: annotations: Invalid value: "plain": should be a domain with at least two segments separated by dots
            failed to validate annotations: total size of annotations is 32795, which exceeds the max size of 32768"#]]
        .assert_eq(&seen.join("\n"));
    }

    #[test]
    fn fingerprints_differ() {
        let changes: [fn(&mut EncryptedObject); 5] = [
            |o| o.source_type = SOURCE_KEY,
            |o| o.key_id = "ks".into(),
            |o| o.source = Bytes::from_static(b"eed"),
            |o| o.annotations.clear(),
            |o| drop(o.annotations.insert("a.example.com".into(), Bytes::from_static(b"y"))),
        ];
        for change in changes {
            let mut other = object();
            change(&mut other);
            assert_ne!(other.fingerprint(), object().fingerprint(), "{other:?}");
        }
        // What is encrypted with a key is no part of it.
        assert_eq!(EncryptedObject { data: Bytes::new(), ..object() }.fingerprint(), object().fingerprint());
    }
}
