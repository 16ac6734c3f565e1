//! The configuration of plug-ins: `CredentialProviderConfig` of `kubelet.config.k8s.io`, in a file or in the files of a directory.
//!
//! Invariant: a configuration with a violation is refused as a whole, in upstream's words.
//!
//! Source: upstream's `pkg/credentialprovider/plugin/config.go`.

use kaji_meta::{TypeMeta, duration, text::hex};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

const KIND: &str = "CredentialProviderConfig";
const FILE_VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1alpha1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1"];
const V1: &str = "credentialprovider.kubelet.k8s.io/v1";
const VERSIONS: [&str; 3] =
    [V1, "credentialprovider.kubelet.k8s.io/v1alpha1", "credentialprovider.kubelet.k8s.io/v1beta1"];
/// Bytes of a file.
const LONGEST: u64 = 4 << 20;

/// Why plug-ins cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The path of the configuration.
    #[error("unable to access path {path:?}: {error}")]
    Path {
        /// The path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A directory without files.
    #[error("no configuration files found in directory {0:?}")]
    Empty(PathBuf),
    /// A file.
    #[error("error decoding config {path:?}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// Two plug-ins of a name.
    #[error("duplicate provider name {0:?} found in configuration file(s)")]
    Duplicate(String),
    /// What it says.
    #[error("failed to validate credential provider config: {0}")]
    Invalid(String),
    /// The directory of programs.
    #[error("plugin binary directory {0} did not exist")]
    Directory(PathBuf),
    /// A program.
    #[error("plugin binary executable {0} did not exist")]
    Program(PathBuf),
}

/// A plug-in.
#[derive(Debug, Clone, PartialEq)]
pub struct Provider {
    /// Of its program.
    pub name: String,
    /// Globs of the images that it is asked about.
    pub match_images: Vec<String>,
    /// How long an answer is kept that does not say it.
    pub default_cache_duration: Duration,
    /// Of requests and responses.
    pub api_version: String,
    /// Arguments.
    pub args: Vec<String>,
    /// Environment beside the kubelet's own.
    pub env: Vec<(String, String)>,
    /// Whether it gets tokens of service accounts, and which.
    pub token_attributes: Option<TokenAttributes>,
}

/// What a plug-in gets of service accounts.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenAttributes {
    /// Of tokens.
    pub audience: String,
    /// Answers are kept for one token, not for the account.
    pub token_is_key: bool,
    /// Pods without an account are left out.
    pub require_service_account: bool,
    /// Accounts without these are left out.
    pub required_annotations: Vec<String>,
    /// Handed over where they are there.
    pub optional_annotations: Vec<String>,
}

/// What was read.
#[derive(Debug)]
pub struct Read {
    /// In the order of the files.
    pub providers: Vec<Provider>,
    /// `sha256:...` of the files.
    pub hash: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    providers: Option<Vec<Entry>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Entry {
    name: String,
    match_images: Option<Vec<String>>,
    default_cache_duration: Option<String>,
    api_version: String,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    token_attributes: Option<Attributes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Attributes {
    service_account_token_audience: String,
    cache_type: String,
    require_service_account: Option<bool>,
    required_service_account_annotation_keys: Option<Vec<String>>,
    optional_service_account_annotation_keys: Option<Vec<String>>,
}

/// Reads a file, or the `.json`, `.yaml` and `.yml` files of a directory in the order of their names.
///
/// # Errors
/// [`ConfigError`].
pub fn read(path: &Path) -> Result<Read, ConfigError> {
    let failed = |path: &Path, error: io::Error| ConfigError::Path { path: path.to_owned(), error };
    let mut files = vec![path.to_owned()];
    if std::fs::metadata(path).map_err(|e| failed(path, e))?.is_dir() {
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let found = entries.map_err(|e| failed(path, e))?.into_iter().map(|entry| entry.path());
        let named = |file: &PathBuf| {
            file.extension().is_some_and(|e| e == "json" || e == "yaml" || e == "yml") && !file.is_dir()
        };
        files = found.filter(named).collect();
        files.sort();
        if files.is_empty() {
            return Err(ConfigError::Empty(path.to_owned()));
        }
    }
    let (mut entries, mut names, mut hasher) = (vec![], BTreeSet::new(), Sha256::new());
    for file in files {
        let length = std::fs::metadata(&file).map_err(|e| failed(&file, e))?.len();
        let wrong = |error: String| ConfigError::File { path: file.clone(), error };
        if length > LONGEST {
            return Err(wrong(format!("it has more than {LONGEST} bytes")));
        }
        let text = std::fs::read_to_string(&file).map_err(|e| failed(&file, e))?;
        // The lengths keep the files apart.
        hasher.update((text.len() as u64).to_be_bytes());
        hasher.update(text.as_bytes());
        for entry in decode(&text).map_err(wrong)? {
            if !names.insert(entry.name.clone()) {
                return Err(ConfigError::Duplicate(entry.name));
            }
            entries.push(entry);
        }
    }
    let providers = checked(entries).map_err(ConfigError::Invalid)?;
    Ok(Read { providers, hash: format!("sha256:{}", hex(&hasher.finalize())) })
}

fn decode(text: &str) -> Result<Vec<Entry>, String> {
    let file: File = kaji_files::yaml::decode(text).map_err(|error| error.to_string())?;
    if file.kind != KIND {
        return Err(format!("failed to decode {:?} (wrong Kind)", file.kind));
    }
    let meta = TypeMeta { api_version: &file.api_version, kind: &file.kind };
    meta.expect(KIND, &FILE_VERSIONS).map_err(|error| error.to_string())?;
    Ok(file.providers.unwrap_or_default())
}

/// Every program has to be there and may be run.
///
/// # Errors
/// The first that is not.
pub fn check_programs(directory: &Path, providers: &[Provider]) -> Result<(), ConfigError> {
    if !directory.is_dir() {
        return Err(ConfigError::Directory(directory.to_owned()));
    }
    for provider in providers {
        let program = directory.join(&provider.name);
        let found = std::fs::metadata(&program);
        if !found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0) {
            return Err(ConfigError::Program(program));
        }
    }
    Ok(())
}

/// The violations as upstream joins them.
fn checked(entries: Vec<Entry>) -> Result<Vec<Provider>, String> {
    let mut violations = vec![];
    if entries.is_empty() {
        violations.push("providers: Required value: at least 1 item in plugins is required".to_owned());
    }
    let providers = entries.into_iter().map(|entry| provider(entry, &mut violations)).collect();
    match violations.as_slice() {
        [] => Ok(providers),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

fn provider(entry: Entry, violations: &mut Vec<String>) -> Provider {
    let name = &entry.name;
    let mut invalid = |field: &str, value: &str, why: &str| {
        violations.push(format!("providers.{field}: Invalid value: {value:?}: {why}"));
    };
    for (wrong, why) in [
        (name.contains('/'), "provider name cannot contain '/'"),
        (name.contains(' '), "provider name cannot contain spaces"),
        (name == ".", "provider name cannot be '.'"),
        (name == "..", "provider name cannot be '..'"),
    ] {
        if wrong {
            invalid("name", name, why);
        }
    }
    let match_images = entry.match_images.unwrap_or_default();
    for image in
        match_images.iter().filter(|image| image.contains(|c: char| c.is_whitespace() || c.is_control()))
    {
        invalid("matchImages", image, "match image is invalid: invalid character in host name");
    }
    let mut default_cache_duration = Duration::ZERO;
    match &entry.default_cache_duration {
        None => violations.push("providers.defaultCacheDuration: Required value".to_owned()),
        Some(text) => match duration::parse(text).map(u64::try_from) {
            Err(_) => invalid("defaultCacheDuration", text, "invalid duration"),
            Ok(Err(_)) => invalid("defaultCacheDuration", text, "must be greater than or equal to 0"),
            Ok(Ok(nanoseconds)) => default_cache_duration = Duration::from_nanos(nanoseconds),
        },
    }
    if entry.api_version.is_empty() {
        violations.push("providers.apiVersion: Required value".to_owned());
    } else if !VERSIONS.contains(&entry.api_version.as_str()) {
        violations.push(unsupported("apiVersion", &entry.api_version, &VERSIONS));
    }
    if match_images.is_empty() {
        violations.push(
            "providers.matchImages: Required value: at least 1 item in matchImages is required".to_owned(),
        );
    }
    let is_v1 = entry.api_version == V1;
    Provider {
        token_attributes: entry.token_attributes.map(|found| token_attributes(found, is_v1, violations)),
        name: entry.name,
        match_images,
        default_cache_duration,
        api_version: entry.api_version,
        args: entry.args.unwrap_or_default(),
        env: entry.env.unwrap_or_default().into_iter().map(|v| (v.name, v.value)).collect(),
    }
}

fn unsupported(field: &str, value: &str, supported: &[&str]) -> String {
    let supported: Vec<String> = supported.iter().map(|text| format!("{text:?}")).collect();
    format!("providers.{field}: Unsupported value: {value:?}: supported values: {}", supported.join(", "))
}

fn token_attributes(found: Attributes, is_v1: bool, violations: &mut Vec<String>) -> TokenAttributes {
    const AT: &str = "providers.tokenAttributes";
    if found.service_account_token_audience.is_empty() {
        violations.push(format!("{AT}.serviceAccountTokenAudience: Required value"));
    }
    if found.require_service_account.is_none() {
        violations.push(format!("{AT}.requireServiceAccount: Required value"));
    }
    if !is_v1 {
        violations.push(format!("{AT}: Forbidden: tokenAttributes is only supported for {V1} API version"));
    }
    let required = found.required_service_account_annotation_keys.unwrap_or_default();
    let optional = found.optional_service_account_annotation_keys.unwrap_or_default();
    if found.require_service_account == Some(false) && !required.is_empty() {
        violations.push(format!(
            "{AT}.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set"
        ));
    }
    for (keys, field) in [
        (&required, "requiredServiceAccountAnnotationKeys"),
        (&optional, "optionalServiceAccountAnnotationKeys"),
    ] {
        let mut seen = BTreeSet::new();
        for key in keys {
            let messages = kaji_meta::validation::is_qualified_name(&key.to_lowercase());
            violations
                .extend(messages.iter().map(|why| format!("{AT}.{field}: Invalid value: {key:?}: {why}")));
            if !seen.insert(key) {
                violations.push(format!("{AT}.{field}: Duplicate value: {key:?}"));
            }
        }
    }
    if let Some(both) = required.iter().find(|key| optional.contains(key)) {
        violations.push(format!(
            "{AT}: Invalid value: [{both:?}]: annotation keys cannot be both required and optional"
        ));
    }
    match found.cache_type.as_str() {
        "ServiceAccount" | "Token" => {}
        "" => violations.push(format!(
            "{AT}.cacheType: Required value: cacheType is required to be set when tokenAttributes is specified. Supported values are: ServiceAccount, Token"
        )),
        other => violations.push(unsupported("tokenAttributes.cacheType", other, &["ServiceAccount", "Token"])),
    }
    TokenAttributes {
        audience: found.service_account_token_audience,
        token_is_key: found.cache_type == "Token",
        require_service_account: found.require_service_account.unwrap_or(true),
        required_annotations: required,
        optional_annotations: optional,
    }
}
