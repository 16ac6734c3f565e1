//! Transformation of values to stored bytes and back: prefixes, providers in order, keys in order.
//!
//! Invariants: the first key of the first provider writes. Reading tries every provider and key with a matching prefix, in
//! order, because two providers may share a prefix while one is rotated to the other. A value that the writing key did
//! not make is stale.

use crate::{
    cipher::Cipher,
    config::{Config, ConfigError, Key, Provider},
    kms::{Deps, NotOpened, Plugin, StoredKeys},
    metrics::Metrics,
    rules::{self, Rules},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::future::join_all;
use kaji_meta::{SystemClock, random::Random};
use std::{
    borrow::Cow,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// How long a start waits for unhealthy plugins; the timeout of one call.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Begins everything that is encrypted; reserved, so nothing else begins so.
const ENCRYPTED: &[u8] = b"k8s:enc:";

/// Why a value cannot be read or written. Says nothing about the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct TransformError {
    text: String,
    /// As metrics have it.
    code: &'static str,
}

impl TransformError {
    pub(crate) fn new(text: &str) -> Self {
        TransformError { text: text.to_owned(), code: "unknown-non-grpc" }
    }

    /// That of a call to a plugin, which ended with this code.
    pub(crate) fn of_call(text: &str, code: &'static str) -> Self {
        TransformError { text: text.to_owned(), code }
    }

    /// Several as one, as upstream's aggregates print: without repetitions, in brackets.
    fn all(mut errors: Vec<TransformError>) -> Option<TransformError> {
        errors.dedup();
        if errors.len() < 2 {
            return errors.pop();
        }
        let texts: Vec<String> = errors.into_iter().map(|e| e.text).collect();
        Some(TransformError::new(&format!("[{}]", texts.join(", "))))
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
    /// `k8s:enc:kms:v2:<plugin>:`
    Plugin(Arc<Plugin>),
}

/// How the values of some resources are kept.
#[derive(Clone)]
pub(crate) struct Methods(Vec<Arc<Method>>);

impl Methods {
    fn seal(
        &self,
        random: &dyn Random,
        context: &[u8],
        value: &Bytes,
    ) -> Result<Option<Bytes>, TransformError> {
        // A valid configuration has a provider in each list and a key in each provider.
        let (prefix, keys) = match self.0.first().map(|method| &**method) {
            Some(Method::Plugin(plugin)) => return plugin.seal(context, value).map(Some),
            Some(Method::Keyed { prefix, keys, .. }) => (prefix, keys),
            Some(Method::Identity) | None => return Ok(None),
        };
        let Some((name, cipher)) = keys.first() else { return Ok(None) };
        let mut out = Vec::with_capacity(prefix.len() + name.len() + value.len() + 48);
        out.extend_from_slice(prefix.as_bytes());
        out.extend_from_slice(name);
        cipher.seal(random, context, value, &mut out)?;
        Ok(Some(out.into()))
    }

    /// What writing counts under: the beginning of what it stores.
    fn prefix(&self) -> &str {
        match self.0.first().map(|method| &**method) {
            Some(Method::Plugin(plugin)) => plugin.prefix(),
            Some(Method::Keyed { prefix, .. }) => prefix,
            Some(Method::Identity) | None => "",
        }
    }

    /// The value of what is stored. Each transformer that is tried is reported to `count`, with its result.
    fn open(
        &self,
        context: &[u8],
        stored: &Bytes,
        count: impl Fn(&str, Result<(), &TransformError>),
    ) -> Result<Opened, NotOpened> {
        let mut errors = vec![];
        for (i, method) in self.0.iter().enumerate() {
            match &**method {
                Method::Plugin(plugin) if stored.starts_with(plugin.prefix().as_bytes()) => {
                    match plugin.open(context, stored.slice(plugin.prefix().len()..)) {
                        Ok(opened) => {
                            count(plugin.prefix(), Ok(()));
                            return Ok(Opened { stale: opened.stale || i != 0, ..opened });
                        }
                        Err(NotOpened::Failed(error)) => {
                            count(plugin.prefix(), Err(&error));
                            errors.push(error);
                        }
                        Err(locked) => return Err(locked),
                    }
                }
                Method::Plugin(_) => {}
                Method::Identity if stored.starts_with(ENCRYPTED) => {}
                Method::Identity => {
                    count("identity", Ok(()));
                    return Ok(Opened { value: stored.clone(), stale: i != 0 });
                }
                Method::Keyed { prefix, family, keys } => {
                    let Some(rest) = stored.strip_prefix(prefix.as_bytes()) else { continue };
                    match open_keyed(family, keys, context, rest) {
                        Ok((value, first)) => {
                            count(prefix, Ok(()));
                            return Ok(Opened { value: value.into(), stale: i != 0 || !first });
                        }
                        Err(error) => {
                            count(prefix, Err(&error));
                            errors.push(error);
                        }
                    }
                }
            }
        }
        if let Some(error) = TransformError::all(errors) {
            return Err(error.into());
        }
        let none = TransformError::new("no matching prefix found");
        count("unknown", Err(&none));
        Err(none.into())
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
    let none = || format!("no matching key was found for the provided {family} transformer");
    Err(TransformError::all(errors).unwrap_or_else(|| TransformError::new(&none())))
}

/// What a configuration does to values.
pub struct Transformers {
    rules: Rules<Methods>,
    random: Arc<dyn Random>,
    metrics: Arc<Metrics>,
    plugins: Vec<Arc<Plugin>>,
    /// They end with this.
    followers: Mutex<JoinSet<()>>,
    stored_keys: Option<StoredKeys>,
    unencrypted: fn(&str) -> bool,
}

impl Deps {
    /// The machine's clock, and metrics that are not registered.
    pub fn new(random: Arc<dyn Random>) -> Deps {
        Deps {
            random,
            clock: Arc::new(SystemClock),
            metrics: Arc::new(Metrics::default()),
            stored_keys: None,
            unencrypted: |_| false,
        }
    }
}

impl std::fmt::Debug for Transformers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transformers")
    }
}

impl Transformers {
    /// Puts a configuration into force. If it names KMS plugins, [`Transformers::begin`] comes before its first use.
    ///
    /// # Errors
    /// When a rule is masked by an earlier one, or a provider cannot be used here.
    pub fn new(config: &Config, deps: &Deps) -> Result<Self, ConfigError> {
        let (mut rules, mut plugins) = (Rules::default(), vec![]);
        for entry in &config.resources {
            let methods = entry.providers.iter().map(|p| method(p, deps).map(Arc::new));
            let methods = Methods(methods.collect::<Result<_, _>>()?);
            plugins.extend(methods.0.iter().filter_map(|method| match &**method {
                Method::Plugin(plugin) => Some(plugin.clone()),
                Method::Identity | Method::Keyed { .. } => None,
            }));
            for name in &entry.resources {
                rules.add(name, methods.clone(), |former, more| former.0.extend(more.0))?;
            }
        }
        let (random, metrics) = (deps.random.clone(), deps.metrics.clone());
        let (stored_keys, unencrypted) = (deps.stored_keys.clone(), deps.unencrypted);
        let followers = Mutex::default();
        Ok(Transformers { rules, random, metrics, plugins, followers, stored_keys, unencrypted })
    }

    /// Encrypts nothing, and says so when it meets what was encrypted.
    pub fn none(random: Arc<dyn Random>) -> Self {
        let (rules, metrics) = (Rules::default(), Arc::default());
        let (plugins, followers) = (vec![], Mutex::default());
        let unencrypted = |_: &str| false;
        Transformers { rules, random, metrics, plugins, followers, stored_keys: None, unencrypted }
    }

    /// The transformers of a configuration, after one call of each of its plugins.
    ///
    /// # Errors
    /// A configuration that cannot be used. An unavailable plugin is no error.
    pub async fn begun(config: &Config, deps: &Deps) -> Result<Arc<Self>, ConfigError> {
        let transformers = Self::new(config, deps)?;
        transformers.begin(PLUGIN_TIMEOUT).await;
        Ok(Arc::new(transformers))
    }

    /// Has each KMS plugin make ready what is needed to write, and looks after that from now on, until this is dropped.
    /// Waits `patience` (and as long as one more call may take) for plugins that are not well; what they are needed for
    /// fails until they are.
    pub async fn begin(&self, patience: Duration) {
        join_all(self.plugins.iter().map(|plugin| plugin.prime(patience))).await;
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        for plugin in &self.plugins {
            followers.spawn(plugin.clone().follow());
        }
    }

    /// Looks after the plugins no more.
    pub(crate) fn unfollow(&self) {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }

    /// Whether there are KMS plugins.
    pub fn has_plugins(&self) -> bool {
        !self.plugins.is_empty()
    }

    /// Whether the KMS plugins are well. The answer is up to 20 seconds old.
    ///
    /// # Errors
    /// What is wrong with which, in upstream's words.
    pub async fn check(&self) -> Result<(), String> {
        let mut errors = vec![];
        for (i, plugin) in self.plugins.iter().enumerate() {
            errors.extend(plugin.check().await.err().map(|e| format!("kms-provider-{i}: {e}")));
        }
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(format!("[{}]", errors.join(", "))),
        }
    }

    /// What to store for a value. `None`: the value itself.
    ///
    /// # Errors
    /// When the value is too long for the cipher, or a KMS plugin has been away for too long.
    pub fn seal(&self, key: &str, value: &Bytes) -> Result<Option<Bytes>, TransformError> {
        let Some(methods) = self.rule(key) else { return Ok(None) };
        let started = Instant::now();
        let sealed = methods.seal(&*self.random, self.context(key).as_bytes(), value);
        self.count("to_storage", key, methods.prefix(), started, sealed.as_ref().map(|_| ()));
        sealed
    }

    /// The value of what is stored.
    pub(crate) fn open(&self, key: &str, stored: &Bytes) -> Result<Opened, NotOpened> {
        let (encrypted, unencrypted) = (stored.starts_with(ENCRYPTED), (self.unencrypted)(key));
        match self.rules.of(key) {
            Some(methods) if encrypted || !unencrypted => {
                let started = Instant::now();
                let opened = methods.open(self.context(key).as_bytes(), stored, |prefix, outcome| {
                    self.count("from_storage", key, prefix, started, outcome);
                })?;
                Ok(Opened { stale: opened.stale || unencrypted, ..opened })
            }
            None if encrypted => {
                Err(TransformError::new("identity transformer tried to read encrypted data").into())
            }
            _ => Ok(Opened { value: stored.clone(), stale: false }),
        }
    }

    /// The rule by which values under a key are written.
    fn rule(&self, key: &str) -> Option<&Methods> {
        self.rules.of(key).filter(|_| !(self.unencrypted)(key))
    }

    /// What a value is bound to: the key that it is stored under.
    fn context<'a>(&self, key: &'a str) -> Cow<'a, str> {
        let stored = self.stored_keys.as_ref().and_then(|keys| keys(key));
        stored.map_or(Cow::Borrowed(key), Cow::Owned)
    }

    /// Counts a value that could not be read because a plugin did not decrypt its key.
    pub(crate) fn not_unlocked(&self, key: &str, prefix: &str, error: &TransformError) {
        self.count("from_storage", key, prefix, Instant::now(), Err(error));
    }

    fn count(
        &self,
        way: &'static str,
        key: &str,
        prefix: &str,
        started: Instant,
        outcome: Result<(), &TransformError>,
    ) {
        let status = outcome.map_or_else(|error| error.code, |()| "OK");
        self.metrics.transformed(rules::resource(key), way, prefix, status);
        if outcome.is_ok() {
            self.metrics.took(way, prefix, started.elapsed());
        }
    }

    /// Whether values under this key are written encrypted.
    pub fn encrypts(&self, key: &str) -> bool {
        let first = self.rule(key).and_then(|methods| methods.0.first());
        first.is_some_and(|method| !matches!(**method, Method::Identity))
    }

    /// Whether values under this key are transformed at all.
    pub fn covers(&self, key: &str) -> bool {
        self.rules.of(key).is_some()
    }
}

fn method(provider: &Provider, deps: &Deps) -> Result<Method, ConfigError> {
    if let Some(kms) = &provider.kms {
        if kms.api_version == "v1" {
            let text = "KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead.  Set \
                        --feature-gates=KMSv1=true to use the deprecated KMSv1 feature.";
            return Err(ConfigError::Build(text.into()));
        }
        return Ok(Method::Plugin(Plugin::new(kms, deps)?));
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
        Transformers::new(&config, &Deps::new(Arc::new(SeededRandom::new(1))))
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
            Err(NotOpened::Failed(error)) => error.to_string(),
            Err(NotOpened::Locked(_)) => "locked".into(),
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
    fn reports_undecryptable_values() {
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
    fn keys_that_are_never_encrypted_are_read_if_they_were() {
        let resources = format!("- {{resources: ['*.*'], providers: [{}]}}", keyed("aesgcm", &[("k1", 1)]));
        let before = transformers(&resources).unwrap();
        let now = Transformers { unencrypted: |key| key == KEY, ..transformers(&resources).unwrap() };
        assert!(now.encrypts("/registry/core/secrets/ns/b") && !now.encrypts(KEY));
        assert_eq!(sealed(&now), "{clear}");
        assert_eq!(opened(&now, &sealed(&now)), "{clear}");
        assert_eq!(opened(&now, &sealed(&before)), "{clear} stale");
    }

    fn plugin(version: &str, endpoint: &str) -> String {
        format!("{{kms: {{apiVersion: {version}, name: k, endpoint: '{endpoint}'}}}}")
    }

    #[test]
    fn rejects_unusable_plugins() {
        let error = |v: &str, endpoint: &str| {
            let text = format!("- {{resources: [secrets], providers: [{}]}}", plugin(v, endpoint));
            transformers(&text).unwrap_err().to_string()
        };
        expect!["error while building transformers: KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead.  Set --feature-gates=KMSv1=true to use the deprecated KMSv1 feature."].assert_eq(&error("v1", "unix:///x"));
        expect![[r#"error while building transformers: could not configure KMSv2-Plugin's probe "k", error: invalid endpoint "unix:x" for remote KMS provider"#]].assert_eq(&error("v2", "unix:x"));
    }

    #[test]
    fn without_a_plugin_nothing_is_written_in_the_clear() {
        let t = secrets(&[&plugin("v2", "unix:///x"), "{identity: {}}"]);
        let error = t.seal(KEY, &Bytes::from_static(b"{clear}")).unwrap_err();
        assert_eq!(error.to_string(), "got unexpected nil transformer");
        assert_eq!(opened(&t, &Bytes::from_static(b"{clear}")), "{clear} stale");
        // A whole envelope, so only the plugin can say more; and parts of one.
        let whole = b"k8s:enc:kms:v2:k:\x0a\x04data\x12\x01k\x1a\x04seed\x28\x01";
        assert_eq!(opened(&t, &Bytes::from_static(whole)), "locked");
        assert_eq!(
            opened(&t, &Bytes::from_static(&whole[..23])),
            "failed to validate encrypted DEK source: encrypted DEK source is empty"
        );
        assert_eq!(opened(&t, &Bytes::from_static(b"k8s:enc:kms:v2:other:x")), "no matching prefix found");
    }

    proptest::proptest! {
        #[test]
        fn corrupted_values_do_not_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..60)) {
            let t = secrets(&[&plugin("v2", "unix:///x"), &keyed("aesgcm", &[("k1", 1)])]);
            for prefix in ["k8s:enc:kms:v2:k:", "k8s:enc:aesgcm:v1:k1:", "k8s:enc:", ""] {
                let _ = opened(&t, &Bytes::from([prefix.as_bytes(), &bytes].concat()));
            }
        }
    }
}
