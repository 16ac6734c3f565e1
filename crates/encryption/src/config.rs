//! The configuration file: `EncryptionConfiguration` of `apiserver.config.k8s.io/v1`, read strictly.
//!
//! Invariants: a field that is not known is an error; a secret is in no error text and in no `Debug` output.
//! Source: Kubernetes, kube-apiserver Encryption Configuration (v1).

use crate::validation;
use kaji_meta::{
    TypeMeta, duration,
    field::{self, ErrorList},
};
use serde_json::{Map, Value};
use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

const VERSION: &str = "apiserver.config.k8s.io/v1";

/// Why a configuration cannot be used. Texts are upstream's where it has one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("error reading encryption provider configuration file {path:?}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// The file holds nothing.
    #[error("encryption provider configuration file {0:?} is empty")]
    Empty(PathBuf),
    /// The file is not what it should be.
    #[error("error decoding encryption provider configuration: {0}")]
    Decode(String),
    /// Fields with values that are not allowed.
    #[error("{}", field::aggregate(.0))]
    Invalid(ErrorList),
    /// The rules cannot be put into force.
    #[error("error while building transformers: {0}")]
    Build(String),
}

/// A named key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// Part of what is stored; so it is not secret.
    pub name: String,
    /// Base64.
    pub secret: String,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("name", &self.name).field("secret", &"REDACTED").finish()
    }
}

/// A KMS plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kms {
    /// `v1` (the default) or `v2`.
    pub api_version: String,
    /// Part of what is stored.
    pub name: String,
    /// `unix:///…`
    pub endpoint: String,
    /// Go's notation, `3s` by default.
    pub timeout: String,
    /// Entries; version 1 only.
    pub cache_size: Option<i64>,
}

impl Kms {
    /// How long a call may take. `None`: the text is no duration, or none that is positive.
    pub fn timeout(&self) -> Option<Duration> {
        duration::parse_non_negative(&self.timeout).ok().filter(|t| !t.is_zero())
    }
}

/// One item of a `providers` list: exactly one field is given in a valid file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provider {
    /// AES-GCM keys.
    pub aesgcm: Option<Vec<Key>>,
    /// AES-CBC keys.
    pub aescbc: Option<Vec<Key>>,
    /// Secretbox keys.
    pub secretbox: Option<Vec<Key>>,
    /// No encryption.
    pub identity: bool,
    /// A KMS plugin.
    pub kms: Option<Kms>,
}

/// Resources and how they are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// `secrets`, `deployments.apps`, `*.`, `*.apps`, `*.*`
    pub resources: Vec<String>,
    /// The first writes, all read.
    pub providers: Vec<Provider>,
}

/// A configuration with validated fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// In the order of the file.
    pub resources: Vec<Resources>,
}

impl Config {
    /// Reads and validates a file.
    ///
    /// # Errors
    /// When it cannot be read, is no strict `EncryptionConfiguration`, or is not valid.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let bad = |reason: String| ConfigError::Read { path: path.into(), reason };
        Config::of_file(path, &std::fs::read(path).map_err(|e| bad(e.to_string()))?)
    }

    /// Reads and validates what a file holds.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn of_file(path: &Path, data: &[u8]) -> Result<Config, ConfigError> {
        let text = std::str::from_utf8(data)
            .map_err(|e| ConfigError::Read { path: path.into(), reason: e.to_string() })?;
        if text.is_empty() {
            return Err(ConfigError::Empty(path.into()));
        }
        Config::parse(text)
    }

    /// Reads and validates YAML or JSON.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        // The parser's message may quote the file, with its keys.
        let value: Value = serde_saphyr::from_str(text).map_err(|_| {
            ConfigError::Decode("couldn't get version/kind; the file is not valid YAML".into())
        })?;
        let meta = TypeMeta::of(&value);
        if let Err(error) = meta.expect("EncryptionConfiguration", &[VERSION]) {
            return Err(ConfigError::Decode(match (meta.api_version, meta.kind) {
                (_, "") => "Object 'Kind' is missing".into(),
                ("", _) => "Object 'apiVersion' is missing".into(),
                _ => error.to_string(),
            }));
        }
        let mut reader = Reader::default();
        let config = reader.config(&value)?;
        if !reader.unknown.is_empty() {
            return Err(ConfigError::Decode(format!("strict decoding error: {}", reader.unknown.join(", "))));
        }
        let errors = validation::validate(&config);
        if errors.is_empty() { Ok(config) } else { Err(ConfigError::Invalid(errors)) }
    }
}

/// Walks the document and notes fields that it does not know.
#[derive(Default)]
struct Reader {
    unknown: Vec<String>,
}

impl Reader {
    fn config(&mut self, value: &Value) -> Result<Config, ConfigError> {
        let map = self.object(value, "", &["apiVersion", "kind", "resources"])?;
        let mut resources = vec![];
        for (i, item) in list(map, "resources", "")?.iter().enumerate() {
            let at = format!("resources[{i}]");
            let map = self.object(item, &at, &["resources", "providers"])?;
            let names = list(map, "resources", &at)?;
            let names: Result<_, _> = names.iter().map(|n| text(n, &format!("{at}.resources"))).collect();
            let mut providers = vec![];
            for (j, item) in list(map, "providers", &at)?.iter().enumerate() {
                providers.push(self.provider(item, &format!("{at}.providers[{j}]"))?);
            }
            resources.push(Resources { resources: names?, providers });
        }
        Ok(Config { resources })
    }

    fn provider(&mut self, value: &Value, at: &str) -> Result<Provider, ConfigError> {
        let map = self.object(value, at, &["aesgcm", "aescbc", "secretbox", "identity", "kms"])?;
        let given = |field: &str| map.get(field).filter(|v| !v.is_null());
        let mut keys = |field: &str| given(field).map(|v| self.keys(v, &format!("{at}.{field}"))).transpose();
        let (aesgcm, aescbc, secretbox) = (keys("aesgcm")?, keys("aescbc")?, keys("secretbox")?);
        if let Some(value) = given("identity") {
            self.object(value, &format!("{at}.identity"), &[])?;
        }
        let kms = given("kms").map(|v| self.kms(v, &format!("{at}.kms"))).transpose()?;
        Ok(Provider { aesgcm, aescbc, secretbox, identity: given("identity").is_some(), kms })
    }

    fn keys(&mut self, value: &Value, at: &str) -> Result<Vec<Key>, ConfigError> {
        let map = self.object(value, at, &["keys"])?;
        let mut keys = vec![];
        for (i, item) in list(map, "keys", at)?.iter().enumerate() {
            let at = format!("{at}.keys[{i}]");
            let map = self.object(item, &at, &["name", "secret"])?;
            keys.push(Key { name: field(map, "name", &at)?, secret: field(map, "secret", &at)? });
        }
        Ok(keys)
    }

    fn kms(&mut self, value: &Value, at: &str) -> Result<Kms, ConfigError> {
        let known = ["apiVersion", "name", "endpoint", "timeout", "cachesize"];
        let map = self.object(value, at, &known)?;
        let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
        let api_version = or(field(map, "apiVersion", at)?, "v1");
        let cache_size = match map.get("cachesize").filter(|v| !v.is_null()) {
            Some(size) => Some(size.as_i64().ok_or_else(|| wrong(&format!("{at}.cachesize"), "a number"))?),
            None => (api_version == "v1").then_some(1000),
        };
        let timeout = or(field(map, "timeout", at)?, "3s");
        duration::parse(&timeout).map_err(|e| ConfigError::Decode(format!("{at}.timeout: {e}")))?;
        let (name, endpoint) = (field(map, "name", at)?, field(map, "endpoint", at)?);
        Ok(Kms { api_version, name, endpoint, timeout, cache_size })
    }

    fn object<'a>(
        &mut self,
        value: &'a Value,
        at: &str,
        known: &[&str],
    ) -> Result<&'a Map<String, Value>, ConfigError> {
        let map = value.as_object().ok_or_else(|| wrong(at, "an object"))?;
        let dot = if at.is_empty() { "" } else { "." };
        let unknown = map.keys().filter(|k| !known.contains(&k.as_str()));
        self.unknown.extend(unknown.map(|k| format!("unknown field \"{at}{dot}{k}\"")));
        Ok(map)
    }
}

fn wrong(at: &str, wanted: &str) -> ConfigError {
    ConfigError::Decode(format!("{at} is not {wanted}"))
}

fn text(value: &Value, at: &str) -> Result<String, ConfigError> {
    value.as_str().map(str::to_owned).ok_or_else(|| wrong(at, "a string"))
}

/// A string field; none at all is an empty one.
fn field(map: &Map<String, Value>, name: &str, at: &str) -> Result<String, ConfigError> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(value) => text(value, &format!("{at}.{name}")),
    }
}

fn list<'a>(map: &'a Map<String, Value>, name: &str, at: &str) -> Result<&'a [Value], ConfigError> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(wrong(&format!("{at}.{name}"), "a list")),
    }
}
