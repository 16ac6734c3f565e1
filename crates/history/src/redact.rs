//! What is not kept in the clear: the data of Secrets, and everything but the identity of kinds that the store encrypts.
//!
//! A value is replaced by a keyed hash of it, of its field and of its object's key: a change is visible, and equal values of two objects
//! are not. The key is a file of the archive's directory; without it hashes cannot be compared with guesses.
//!
//! Invariant: an object that cannot be read is replaced as a whole.

use kaji_meta::text::hex;
use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use serde_json::{Map, Value, json};
use std::{fs, io, path::Path};

/// The file of the key.
const KEY: &str = "key";
const KEY_BYTES: usize = 32;
/// What a kept annotation may repeat of an object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// What a hash begins with.
pub(crate) const MARK: &str = "redacted:";

/// How much of an object is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redaction {
    /// Nothing.
    None,
    /// `data`, `stringData` and what kubectl has applied.
    Secret,
    /// Everything but kind and metadata, and the values of annotations.
    Everything,
}

/// Replaces values by hashes with one key.
#[derive(Clone, Debug)]
pub struct Redactor(hmac::Key);

impl Redactor {
    /// With the key of a directory, which is made if it is not there.
    ///
    /// # Errors
    /// When the key cannot be read or made.
    pub fn open(dir: &Path) -> io::Result<Redactor> {
        let path = dir.join(KEY);
        let key = match fs::read(&path) {
            Ok(key) if key.len() == KEY_BYTES => key,
            // One of another length was cut off while it was made: nothing was hashed with it.
            Ok(_) => make_key(&path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_key(&path)?,
            Err(error) => return Err(error),
        };
        Ok(Redactor(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    /// The stored object of a key as the archive has it.
    pub fn redacted(&self, redaction: Redaction, key: &str, stored: &[u8]) -> Vec<u8> {
        if redaction == Redaction::None {
            return stored.to_vec();
        }
        let object = serde_json::from_slice(stored).unwrap_or_default();
        let Value::Object(mut object) = object else { return json!({}).to_string().into_bytes() };
        match redaction {
            Redaction::None => {}
            Redaction::Secret => {
                for field in ["data", "stringData"] {
                    if let Some(Value::Object(values)) = object.get_mut(field) {
                        self.replace(values, key, field, |_| true);
                    }
                }
                self.annotations(&mut object, key, |name| name == LAST_APPLIED);
            }
            Redaction::Everything => {
                self.annotations(&mut object, key, |_| true);
                let kept = ["apiVersion", "kind", "metadata"];
                self.replace(&mut object, key, "", |name| !kept.contains(&name));
            }
        }
        Value::Object(object).to_string().into_bytes()
    }

    fn annotations(&self, object: &mut Map<String, Value>, key: &str, which: impl Fn(&str) -> bool) {
        let metadata = object.get_mut("metadata").and_then(|meta| meta.get_mut("annotations"));
        if let Some(Value::Object(annotations)) = metadata {
            self.replace(annotations, key, "metadata.annotations", which);
        }
    }

    fn replace(&self, values: &mut Map<String, Value>, key: &str, field: &str, which: impl Fn(&str) -> bool) {
        for (name, value) in values.iter_mut().filter(|(name, _)| which(name)) {
            let hashed = format!("{key}\0{field}\0{name}\0{value}");
            let tag = hmac::sign(&self.0, hashed.as_bytes());
            *value = format!("{MARK}{}", hex(&tag.as_ref()[..16])).into();
        }
    }
}

fn make_key(path: &Path) -> io::Result<Vec<u8>> {
    let mut key = vec![0; KEY_BYTES];
    SystemRandom::new().fill(&mut key).map_err(|_| io::Error::other("the system has no random bytes"))?;
    kaji_files::replace(path, &key, 0o600)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_replaced_and_changes_are_visible() {
        let dir = tempfile::tempdir().unwrap();
        let redactor = Redactor::open(dir.path()).unwrap();
        let redacted = |redaction, key: &str, value: &str| {
            let object = json!({"kind": "Secret", "metadata": {"name": "s", "annotations": {LAST_APPLIED: "hunter2", "a": "b"}},
                "data": {"p": value}, "type": "Opaque"});
            let bytes = redactor.redacted(redaction, key, object.to_string().as_bytes());
            serde_json::from_slice::<Value>(&bytes).unwrap()
        };
        let (one, two) = (redacted(Redaction::Secret, "/s", "x"), redacted(Redaction::Secret, "/s", "y"));
        assert!(!one.to_string().contains("hunter2"));
        assert!(one["data"]["p"].as_str().unwrap().starts_with(MARK));
        assert_ne!(one["data"], two["data"]);
        assert_eq!(one, redacted(Redaction::Secret, "/s", "x"));
        assert_ne!(one["data"], redacted(Redaction::Secret, "/other", "x")["data"]);
        assert_eq!((&one["type"], &one["metadata"]["annotations"]["a"]), (&json!("Opaque"), &json!("b")));
        let all = redacted(Redaction::Everything, "/s", "x");
        assert!(all["type"].as_str().unwrap().starts_with(MARK));
        assert!(all["metadata"]["annotations"]["a"].as_str().unwrap().starts_with(MARK));
        assert_eq!(all["metadata"]["name"], "s");
        // The key stays.
        let again = Redactor::open(dir.path()).unwrap();
        assert_eq!(
            again.redacted(Redaction::Secret, "/s", b"{\"data\":{\"p\":1}}"),
            redactor.redacted(Redaction::Secret, "/s", b"{\"data\":{\"p\":1}}")
        );
        assert_eq!(redactor.redacted(Redaction::Everything, "/s", b"no JSON"), b"{}");
    }
}
