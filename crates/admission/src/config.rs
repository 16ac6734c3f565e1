//! Flags and configuration files of admission: which plugins run, and with which configuration.
//!
//! Sources: `--enable-admission-plugins`, `--disable-admission-plugins` and `--admission-control-config-file` of
//! kube-apiserver; `apiserver.config.k8s.io/v1 AdmissionConfiguration`.
//!
//! Invariant: a name that is no plugin's is refused, and so is a configuration for a plugin that takes none.

use crate::{
    DefaultTolerations, Deps,
    measured::Measured,
    plugins::{Constructor, PLUGINS, Plugin, plugin},
};
use kaji_engine::Admission;
use kaji_meta::{TypeMeta, object};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

/// What the command line says about admission.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Plugins besides those that are on by default.
    pub enable: Vec<String>,
    /// Plugins that are on by default and shall not be.
    pub disable: Vec<String>,
    /// An `AdmissionConfiguration`.
    pub config_file: Option<PathBuf>,
    /// How long pods stay on nodes that are not ready.
    pub tolerations: DefaultTolerations,
}

/// Why flags or files are no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No such plugin.
    #[error("{flag} plugin {name:?} is unknown")]
    Unknown {
        /// The flag, without dashes.
        flag: &'static str,
        /// The name.
        name: String,
    },
    /// Asked for and forbidden.
    #[error("[{0}] in enable-admission-plugins and disable-admission-plugins overlapped")]
    Overlap(String),
    /// Nothing works without it.
    #[error("admission plugin {0:?} cannot be disabled")]
    Fixed(&'static str),
    /// A file that cannot be read.
    #[error("unable to read admission control configuration from {path:?} [{source}]")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file that is not what it should be.
    #[error("admission control configuration {path:?}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A plugin's own part.
    #[error("configuration of admission plugin {plugin}: {reason}")]
    Plugin {
        /// The plugin.
        plugin: &'static str,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    plugins: Vec<FilePlugin>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FilePlugin {
    name: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    configuration: Value,
}

/// The versions of `AdmissionConfiguration`.
const VERSIONS: &[&str] = &["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];

/// What a file without kind is recognized by.
const LEGACY: [&str; 2] = ["imagePolicy", "podNodeSelectorPluginConfig"];

/// Gives the text of a file.
pub(crate) type Read<'a> = &'a dyn Fn(&Path) -> std::io::Result<String>;

/// What the `AdmissionConfiguration` has for one plugin.
pub(crate) struct Configuration<'a> {
    value: Value,
    /// For files that it names.
    pub read: Read<'a>,
}

#[cfg(test)]
impl<'a> Configuration<'a> {
    /// One that names no files.
    pub(crate) fn of(value: Value) -> Self {
        Configuration { value, read: &|_| Err(std::io::ErrorKind::NotFound.into()) }
    }

    /// One with these files.
    pub(crate) fn reading(value: Value, read: Read<'a>) -> Self {
        Configuration { value, read }
    }
}

impl Configuration<'_> {
    /// Its fields without `apiVersion` and `kind`, which have to be those of a kind: group, versions and name.
    ///
    /// # Errors
    /// It is of another kind.
    pub(crate) fn of_kind(self, kind: (&str, &[&str], &str)) -> Result<Value, String> {
        fields_of_kind(self.value, kind)
    }

    /// The group of its `apiVersion`.
    pub(crate) fn group(&self) -> &str {
        object::api_version(&self.value).split_once('/').map_or("", |(group, _)| group)
    }

    /// Its fields, where upstream has no kind for them.
    pub(crate) fn without_kind(self) -> Value {
        self.value
    }
}

/// Makes the plugins that run, in order, from flags and the files that these name.
///
/// # Errors
/// A name that is unknown, and files that cannot be read or are not valid.
pub fn load(flags: &Flags, deps: &Deps) -> Result<Vec<Arc<dyn Admission>>, ConfigError> {
    load_with(flags, deps, &|path| std::fs::read_to_string(path))
}

fn load_with(flags: &Flags, deps: &Deps, read: Read<'_>) -> Result<Vec<Arc<dyn Admission>>, ConfigError> {
    let deps = &Deps { tolerations: flags.tolerations, ..deps.clone() };
    let enabled = enabled(flags)?;
    let mut values = match &flags.config_file {
        Some(path) => read_file(path, &enabled, read)?,
        None => BTreeMap::new(),
    };
    let mut chain = vec![];
    for plugin in enabled {
        let value = values.remove(plugin.name);
        let invalid = |reason| ConfigError::Plugin { plugin: plugin.name, reason };
        match plugin.constructor {
            Constructor::Plain(_) if value.is_some() => {
                return Err(invalid("it takes no configuration".into()));
            }
            Constructor::Plain(new) => chain.push(new(deps)),
            Constructor::Configured(new) | Constructor::Unversioned(new) => {
                let configuration = value.map(|value| Configuration { value, read });
                chain.push(new(configuration, deps).map_err(invalid)?);
            }
        }
    }
    Ok(chain.into_iter().map(|plugin| Measured::wrap(plugin, &deps.metrics.plugins)).collect())
}

/// The parts of an `AdmissionConfiguration` by the plugins that they are for.
fn read_file(
    path: &Path,
    enabled: &[&'static Plugin],
    read: Read<'_>,
) -> Result<BTreeMap<&'static str, Value>, ConfigError> {
    let value = yaml(path, read)?;
    if is_legacy(&value) {
        let unversioned = |plugin: &&&Plugin| matches!(plugin.constructor, Constructor::Unversioned(_));
        return Ok(enabled.iter().filter(unversioned).map(|plugin| (plugin.name, value.clone())).collect());
    }
    let file: File = parse(path, value)?;
    let meta = TypeMeta { api_version: &file.api_version, kind: &file.kind };
    meta.expect("AdmissionConfiguration", VERSIONS)
        .map_err(|error| ConfigError::Malformed { path: path.into(), reason: error.to_string() })?;
    let base = path.parent().unwrap_or(Path::new(""));
    let mut seen = BTreeSet::new();
    let mut values = BTreeMap::new();
    for entry in file.plugins {
        // The first entry of a name counts; one for a plugin that is off has no effect.
        let Some(plugin) = enabled.iter().find(|plugin| plugin.name == entry.name) else { continue };
        if !seen.insert(plugin.name) {
            continue;
        }
        let value = match (entry.configuration, entry.path.as_str()) {
            (Value::Null, "") => continue,
            (Value::Null, path) => yaml(&base.join(path), read)?,
            (value, _) => value,
        };
        values.insert(plugin.name, value);
    }
    Ok(values)
}

/// Whether a file is what upstream took before there was an `AdmissionConfiguration`, and still takes: the fields of plugins
/// that have a configuration without kind.
fn is_legacy(value: &Value) -> bool {
    value["kind"].is_null() && LEGACY.iter().any(|field| value.get(field).is_some())
}

fn fields_of_kind(mut value: Value, (group, versions, kind): (&str, &[&str], &str)) -> Result<Value, String> {
    let versions: Vec<String> = versions.iter().map(|version| format!("{group}/{version}")).collect();
    let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
    TypeMeta::of(&value).expect(kind, &versions).map_err(|error| error.to_string())?;
    if let Some(fields) = value.as_object_mut() {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    Ok(value)
}

fn yaml(path: &Path, read: Read<'_>) -> Result<Value, ConfigError> {
    let text = read(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    serde_saphyr::from_str(&text)
        .map_err(|e| ConfigError::Malformed { path: path.into(), reason: e.to_string() })
}

fn parse<T: for<'a> Deserialize<'a>>(path: &Path, value: Value) -> Result<T, ConfigError> {
    serde_json::from_value(value)
        .map_err(|e| ConfigError::Malformed { path: path.into(), reason: e.to_string() })
}

/// The plugins that run, in order.
fn enabled(flags: &Flags) -> Result<Vec<&'static Plugin>, ConfigError> {
    for (flag, list) in
        [("enable-admission-plugins", &flags.enable), ("disable-admission-plugins", &flags.disable)]
    {
        if let Some(name) = list.iter().find(|name| plugin(name).is_none()) {
            return Err(ConfigError::Unknown { flag, name: name.clone() });
        }
    }
    let both: Vec<&str> =
        flags.enable.iter().filter(|n| flags.disable.contains(n)).map(String::as_str).collect();
    if !both.is_empty() {
        return Err(ConfigError::Overlap(both.join(" ")));
    }
    if flags.disable.iter().any(|n| n == "NamespaceLifecycle") {
        return Err(ConfigError::Fixed("NamespaceLifecycle"));
    }
    let listed = |list: &[String], plugin: &Plugin| list.iter().any(|name| name == plugin.name);
    let runs = |plugin: &&Plugin| match plugin.default {
        true => !listed(&flags.disable, plugin),
        false => listed(&flags.enable, plugin),
    };
    Ok(PLUGINS.iter().filter(runs).collect())
}

#[cfg(test)]
mod tests;
