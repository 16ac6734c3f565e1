//! From values to stored bytes and back: prefixes, providers in order, keys in order.
//!
//! Invariants: the first key of the first provider writes. Reading tries every provider and key whose prefix matches, in
//! order, because two providers may share a prefix while one is rotated to the other. A value that the writing key did
//! not make is stale.

use crate::{
    cipher::Cipher,
    config::{Config, ConfigError, Key, Provider},
    rules::Rules,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use kaji_meta::random::Random;
use std::sync::Arc;

/// Begins everything that is encrypted; reserved, so nothing else begins so.
const ENCRYPTED: &[u8] = b"k8s:enc:";

/// Why a value cannot be read or written. Says nothing about the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TransformError(String);

impl TransformError {
    pub(crate) fn new(text: &str) -> Self {
        TransformError(text.to_owned())
    }

    /// Several as one, as upstream's aggregates print: without repetitions, in brackets.
    fn all(mut errors: Vec<TransformError>) -> Option<TransformError> {
        errors.dedup();
        let texts: Vec<String> = errors.into_iter().map(|e| e.0).collect();
        match texts.len() {
            0 => None,
            1 => texts.into_iter().next().map(TransformError),
            _ => Some(TransformError(format!("[{}]", texts.join(", ")))),
        }
    }
}

/// A clear value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The value.
    pub value: Bytes,
    /// Whether the next write would store it differently: with another key, or encrypted at all.
    pub stale: bool,
}

/// One item of a `providers` list, ready for use.
enum Method {
    /// As it is.
    Identity,
    /// `k8s:enc:<kind>:v1:<key>:`
    Keyed { prefix: &'static str, family: &'static str, keys: Vec<(Vec<u8>, Cipher)> },
}

/// How the values of some resources are kept.
pub(crate) struct Methods(Vec<Method>);

impl Methods {
    fn seal(
        &self,
        random: &dyn Random,
        context: &[u8],
        value: &Bytes,
    ) -> Result<Option<Bytes>, TransformError> {
        // A valid configuration has a provider in each list and a key in each provider.
        let Some(Method::Keyed { prefix, keys, .. }) = self.0.first() else { return Ok(None) };
        let Some((name, cipher)) = keys.first() else { return Ok(None) };
        let mut out = Vec::with_capacity(prefix.len() + name.len() + value.len() + 48);
        out.extend_from_slice(prefix.as_bytes());
        out.extend_from_slice(name);
        cipher.seal(random, context, value, &mut out)?;
        Ok(Some(out.into()))
    }

    fn open(&self, context: &[u8], stored: &Bytes) -> Result<Opened, TransformError> {
        let mut errors = vec![];
        for (i, method) in self.0.iter().enumerate() {
            match method {
                Method::Identity if stored.starts_with(ENCRYPTED) => {}
                Method::Identity => return Ok(Opened { value: stored.clone(), stale: i != 0 }),
                Method::Keyed { prefix, family, keys } => {
                    let Some(rest) = stored.strip_prefix(prefix.as_bytes()) else { continue };
                    match open_keyed(family, keys, context, rest) {
                        Ok((value, first)) => {
                            return Ok(Opened { value: value.into(), stale: i != 0 || !first });
                        }
                        Err(error) => errors.push(error),
                    }
                }
            }
        }
        Err(TransformError::all(errors).unwrap_or_else(|| TransformError::new("no matching prefix found")))
    }
}

/// The value, and whether the first key opened it.
fn open_keyed(
    family: &str,
    keys: &[(Vec<u8>, Cipher)],
    context: &[u8],
    rest: &[u8],
) -> Result<(Vec<u8>, bool), TransformError> {
    let mut errors = vec![];
    for (i, (name, cipher)) in keys.iter().enumerate() {
        let Some(sealed) = rest.strip_prefix(name.as_slice()) else { continue };
        match cipher.open(context, sealed) {
            Ok(value) => return Ok((value, i == 0)),
            Err(error) => errors.push(error),
        }
    }
    let none = || TransformError(format!("no matching key was found for the provided {family} transformer"));
    Err(TransformError::all(errors).unwrap_or_else(none))
}

/// What a configuration does to values.
pub struct Transformers {
    rules: Rules<Methods>,
    random: Arc<dyn Random>,
}

impl std::fmt::Debug for Transformers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transformers")
    }
}

impl Transformers {
    /// Puts a configuration into force. `random` makes nonces and so must be cryptographic.
    ///
    /// # Errors
    /// When a rule is masked by an earlier one, or a provider cannot be used here.
    pub fn new(config: &Config, random: Arc<dyn Random>) -> Result<Self, ConfigError> {
        let mut rules = Rules::default();
        for entry in &config.resources {
            let methods = || entry.providers.iter().map(method).collect::<Result<Vec<_>, _>>();
            for name in &entry.resources {
                rules.add(name, Methods(methods()?), |former, more| former.0.extend(more.0))?;
            }
        }
        Ok(Transformers { rules, random })
    }

    /// Encrypts nothing, and says so when it meets what was encrypted.
    pub fn none(random: Arc<dyn Random>) -> Self {
        Transformers { rules: Rules::default(), random }
    }

    /// What to store for a value. `None`: the value itself.
    ///
    /// # Errors
    /// When the value is too long for the cipher.
    pub fn seal(&self, key: &str, value: &Bytes) -> Result<Option<Bytes>, TransformError> {
        match self.rules.of(key) {
            Some(methods) => methods.seal(&*self.random, key.as_bytes(), value),
            None => Ok(None),
        }
    }

    /// The value of what is stored.
    ///
    /// # Errors
    /// When no configured key reads it.
    pub fn open(&self, key: &str, stored: &Bytes) -> Result<Opened, TransformError> {
        match self.rules.of(key) {
            Some(methods) => methods.open(key.as_bytes(), stored),
            None if stored.starts_with(ENCRYPTED) => {
                Err(TransformError::new("identity transformer tried to read encrypted data"))
            }
            None => Ok(Opened { value: stored.clone(), stale: false }),
        }
    }

    /// Whether values under this key are transformed at all.
    pub fn covers(&self, key: &str) -> bool {
        self.rules.of(key).is_some()
    }
}

fn method(provider: &Provider) -> Result<Method, ConfigError> {
    let build = |text: String| Err(ConfigError::Build(text));
    if let Some(kms) = &provider.kms {
        return build(match kms.api_version.as_str() {
            "v1" => "KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead.  Set \
                     --feature-gates=KMSv1=true to use the deprecated KMSv1 feature."
                .into(),
            _ => format!("could not configure KMSv2-Plugin's probe {:?}, error: KMS plugins are not supported by this server yet", kms.name),
        });
    }
    let keyed = [
        ("k8s:enc:aesgcm:v1:", "AES", &provider.aesgcm, Cipher::gcm as fn(&[u8]) -> Option<Cipher>),
        ("k8s:enc:aescbc:v1:", "AES", &provider.aescbc, Cipher::cbc),
        ("k8s:enc:secretbox:v1:", "Secretbox", &provider.secretbox, Cipher::secretbox),
    ];
    for (prefix, family, keys, make) in keyed {
        let Some(keys) = keys else { continue };
        let keys: Result<Vec<_>, _> = keys.iter().map(|key| cipher(key, make)).collect();
        return Ok(Method::Keyed { prefix, family, keys: keys? });
    }
    Ok(Method::Identity)
}

fn cipher(key: &Key, make: fn(&[u8]) -> Option<Cipher>) -> Result<(Vec<u8>, Cipher), ConfigError> {
    let made = STANDARD.decode(&key.secret).ok().and_then(|secret| make(&secret));
    match made {
        Some(cipher) => Ok((format!("{}:", key.name).into_bytes(), cipher)),
        None => Err(ConfigError::Build(format!("error while creating cipher for named key {}", key.name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use kaji_meta::random::SeededRandom;

    fn transformers(resources: &str) -> Result<Transformers, ConfigError> {
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n";
        let config = Config::parse(&format!("{head}resources:\n{resources}")).unwrap();
        Transformers::new(&config, Arc::new(SeededRandom::new(1)))
    }

    fn secrets(providers: &[&str]) -> Transformers {
        transformers(&format!("- {{resources: [secrets], providers: [{}]}}", providers.join(", "))).unwrap()
    }

    fn keyed(kind: &str, keys: &[(&str, u8)]) -> String {
        let keys: Vec<String> = keys
            .iter()
            .map(|(name, byte)| format!("{{name: {name}, secret: {}}}", STANDARD.encode([*byte; 32])))
            .collect();
        format!("{{{kind}: {{keys: [{}]}}}}", keys.join(", "))
    }

    const KEY: &str = "/registry/core/secrets/ns/a";

    fn sealed(t: &Transformers) -> Bytes {
        t.seal(KEY, &Bytes::from_static(b"{clear}")).unwrap().unwrap_or(Bytes::from_static(b"{clear}"))
    }

    fn opened(t: &Transformers, stored: &Bytes) -> String {
        match t.open(KEY, stored) {
            Ok(opened) => {
                format!(
                    "{}{}",
                    String::from_utf8_lossy(&opened.value),
                    if opened.stale { " stale" } else { "" }
                )
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn prefixes_are_upstreams() {
        for kind in ["aesgcm", "aescbc", "secretbox"] {
            let t = secrets(&[&keyed(kind, &[("key1", 1)])]);
            let stored = sealed(&t);
            assert!(stored.starts_with(format!("k8s:enc:{kind}:v1:key1:").as_bytes()));
            assert!(!stored.windows(7).any(|w| w == b"{clear}"));
            assert_ne!(sealed(&t), stored, "a nonce is used once");
            assert_eq!(opened(&t, &stored), "{clear}");
        }
    }

    #[test]
    fn rotation() {
        let one = secrets(&[&keyed("aesgcm", &[("k1", 1)])]);
        let two = secrets(&[&keyed("aesgcm", &[("k2", 2), ("k1", 1)])]);
        let apart = secrets(&[&keyed("aesgcm", &[("k2", 2)]), &keyed("aesgcm", &[("k1", 1)])]);
        let other = secrets(&[&keyed("secretbox", &[("k1", 1)]), &keyed("aesgcm", &[("k1", 1)])]);
        let leaving = secrets(&["{identity: {}}", &keyed("aesgcm", &[("k1", 1)])]);
        let entering = secrets(&[&keyed("aesgcm", &[("k1", 1)]), "{identity: {}}"]);
        let stored = sealed(&one);
        for t in [&two, &apart, &other, &leaving] {
            assert_eq!(opened(t, &stored), "{clear} stale");
            assert_eq!(opened(t, &sealed(t)), "{clear}");
        }
        assert_eq!(opened(&entering, &stored), "{clear}");
        assert_eq!(opened(&entering, &Bytes::from_static(b"{clear}")), "{clear} stale");
    }

    #[test]
    fn what_cannot_be_read() {
        let stored = sealed(&secrets(&[&keyed("aesgcm", &[("k1", 1)])]));
        let seen = |providers: &[&str]| opened(&secrets(providers), &stored);
        expect!["cipher: message authentication failed"].assert_eq(&seen(&[&keyed("aesgcm", &[("k1", 2)])]));
        expect!["no matching key was found for the provided AES transformer"]
            .assert_eq(&seen(&[&keyed("aesgcm", &[("k2", 1)])]));
        expect!["no matching prefix found"].assert_eq(&seen(&[&keyed("aescbc", &[("k1", 1)])]));
        expect!["no matching prefix found"].assert_eq(&seen(&["{identity: {}}"]));
        let none = Transformers::none(Arc::new(SeededRandom::new(1)));
        expect!["identity transformer tried to read encrypted data"].assert_eq(&opened(&none, &stored));
        // Without identity, what was never encrypted is not readable either.
        expect!["no matching prefix found"]
            .assert_eq(&opened(&secrets(&[&keyed("aesgcm", &[("k1", 1)])]), &Bytes::from_static(b"{clear}")));
    }

    #[test]
    fn plugins_are_refused() {
        let error = |v: &str| {
            transformers(&format!("- {{resources: [secrets], providers: [{{kms: {{apiVersion: {v}, name: k, endpoint: 'unix:///x'}}}}]}}"))
                .unwrap_err()
                .to_string()
        };
        expect![[r#"error while building transformers: could not configure KMSv2-Plugin's probe "k", error: KMS plugins are not supported by this server yet"#]].assert_eq(&error("v2"));
        assert!(error("v1").contains("KMSv1 is deprecated"), "{}", error("v1"));
    }
}
