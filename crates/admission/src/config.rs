//! Which plugins run, in which order, and what their configuration files say.
//!
//! Sources: `--enable-admission-plugins`, `--disable-admission-plugins` and `--admission-control-config-file` of
//! kube-apiserver; `apiserver.config.k8s.io/v1 AdmissionConfiguration`.
//!
//! Invariant: a name that upstream knows and this server lacks is refused when it is asked for, never ignored.

use crate::{events, security, webhooks};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Whether upstream runs a plugin unless told otherwise, and whether this server has it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    On,
    Off,
    /// On by default upstream; nothing here.
    AbsentOn,
    Absent,
}

use Standing::{Absent, AbsentOn, Off, On};

/// Upstream's plugins in its order, on and off as upstream has them, and NodeRestriction on as kubeadm has it.
const ORDER: [(&str, Standing); 41] = [
    ("AlwaysAdmit", Off),
    ("NamespaceAutoProvision", Absent),
    ("NamespaceLifecycle", On),
    ("NamespaceExists", Absent),
    ("LimitPodHardAntiAffinityTopology", Absent),
    ("LimitRanger", On),
    ("ServiceAccount", On),
    ("NodeRestriction", On),
    ("TaintNodesByCondition", On),
    ("AlwaysPullImages", Off),
    ("ImagePolicyWebhook", Absent),
    ("PodSecurity", On),
    ("PodNodeSelector", Absent),
    ("Priority", On),
    ("DefaultTolerationSeconds", On),
    ("PodTolerationRestriction", Absent),
    ("EventRateLimit", Off),
    ("ExtendedResourceToleration", Off),
    ("DefaultStorageClass", On),
    ("StorageObjectInUseProtection", On),
    ("PodGroupProtection", AbsentOn),
    ("OwnerReferencesPermissionEnforcement", Off),
    ("PersistentVolumeClaimResize", On),
    ("RuntimeClass", On),
    ("CertificateApproval", On),
    ("CertificateSigning", On),
    ("ClusterTrustBundleAttest", On),
    ("CertificateSubjectRestriction", On),
    ("DefaultIngressClass", On),
    ("DenyServiceExternalIPs", Absent),
    ("PodTopologyLabels", On),
    ("PodGroupWorkloadExists", AbsentOn),
    ("NodeDeclaredFeatureValidator", AbsentOn),
    ("JobValidation", AbsentOn),
    ("PodResizeValidator", AbsentOn),
    ("MutatingAdmissionPolicy", On),
    ("MutatingAdmissionWebhook", On),
    ("ValidatingAdmissionPolicy", On),
    ("ValidatingAdmissionWebhook", On),
    ("ResourceQuota", On),
    ("AlwaysDeny", Off),
];

/// What the command line says about admission.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Plugins besides those that are on by default.
    pub enable: Vec<String>,
    /// Plugins that are on by default and shall not be.
    pub disable: Vec<String>,
    /// An `AdmissionConfiguration`.
    pub config_file: Option<PathBuf>,
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
    /// Upstream has it.
    #[error("admission plugin {0:?} is not available in this server")]
    Missing(String),
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

/// What runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names in order.
    pub(crate) plugins: Vec<&'static str>,
    pub(crate) security: security::Config,
    pub(crate) events: events::Config,
    pub(crate) mutating: webhooks::Auth,
    pub(crate) validating: webhooks::Auth,
}

impl Default for Config {
    fn default() -> Self {
        let on = ORDER.iter().filter(|(_, standing)| *standing == On);
        Config {
            plugins: on.map(|(name, _)| *name).collect(),
            security: security::Config::default(),
            events: events::Config::default(),
            mutating: webhooks::Auth::default(),
            validating: webhooks::Auth::default(),
        }
    }
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

/// Gives the text of a file.
type Read<'a> = &'a dyn Fn(&Path) -> std::io::Result<String>;

impl Config {
    /// Reads the files that the flags name.
    ///
    /// # Errors
    /// A name that is unknown or missing here, and files that cannot be read or understood.
    pub fn load(flags: &Flags) -> Result<Config, ConfigError> {
        Config::read(flags, &|path| std::fs::read_to_string(path))
    }

    fn read(flags: &Flags, read: Read<'_>) -> Result<Config, ConfigError> {
        let mut config = Config { plugins: names(flags)?, ..Config::default() };
        if let Some(path) = &flags.config_file {
            config.read_file(path, read)?;
        }
        if config.plugins.contains(&"EventRateLimit") {
            config
                .events
                .check()
                .map_err(|reason| ConfigError::Plugin { plugin: "EventRateLimit", reason })?;
        }
        Ok(config)
    }

    fn read_file(&mut self, path: &Path, read: Read<'_>) -> Result<(), ConfigError> {
        let file: File = parse(path, yaml(path, read)?)?;
        let known =
            matches!(file.api_version.as_str(), "apiserver.config.k8s.io/v1" | "apiserver.k8s.io/v1alpha1");
        if !known || file.kind != "AdmissionConfiguration" {
            let reason = format!("no kind {:?} is registered for version {:?}", file.kind, file.api_version);
            return Err(ConfigError::Malformed { path: path.into(), reason });
        }
        let base = path.parent().unwrap_or(Path::new(""));
        let mut seen = BTreeSet::new();
        for plugin in file.plugins {
            let Some(name) = self.plugins.iter().find(|n| **n == plugin.name).copied() else { continue };
            // The first entry counts, and one for a plugin that is off says nothing.
            if !seen.insert(name) {
                continue;
            }
            let value = match (plugin.configuration, plugin.path.as_str()) {
                (Value::Null, "") => continue,
                (Value::Null, path) => yaml(&base.join(path), read)?,
                (value, _) => value,
            };
            self.set(name, value, read)?;
        }
        Ok(())
    }

    fn set(&mut self, plugin: &'static str, value: Value, read: Read<'_>) -> Result<(), ConfigError> {
        let wrong = |reason: String| ConfigError::Plugin { plugin, reason };
        match plugin {
            "PodSecurity" => {
                of_kind(&value, security::Config::KIND).map_err(wrong)?;
                self.security = security::Config::parse(value).map_err(wrong)?;
                Ok(())
            }
            "EventRateLimit" => {
                of_kind(&value, events::Config::KIND).map_err(wrong)?;
                self.events = events::Config::parse(value).map_err(wrong)?;
                Ok(())
            }
            webhooks::Webhooks::MUTATING | webhooks::Webhooks::VALIDATING => {
                of_kind(&value, webhooks::KIND).map_err(wrong)?;
                let auth = webhooks::Auth::parse(value, read).map_err(wrong)?;
                match plugin {
                    webhooks::Webhooks::MUTATING => self.mutating = auth,
                    _ => self.validating = auth,
                }
                Ok(())
            }
            _ => Err(wrong("it takes no configuration".into())),
        }
    }
}

fn of_kind(value: &Value, (group, versions, kind): (&str, &[&str], &str)) -> Result<(), String> {
    let own = value["apiVersion"].as_str().unwrap_or_default();
    let known =
        versions.iter().any(|v| own.strip_prefix(group).and_then(|r| r.strip_prefix('/')) == Some(*v));
    if known && value["kind"] == kind {
        return Ok(());
    }
    let named = value["kind"].as_str().unwrap_or_default();
    Err(format!("no kind {named:?} is registered for version {own:?}"))
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

/// The plugins that run.
fn names(flags: &Flags) -> Result<Vec<&'static str>, ConfigError> {
    let standing = |name: &str| ORDER.iter().find(|(known, _)| *known == name).map(|(_, s)| *s);
    for (flag, list) in
        [("enable-admission-plugins", &flags.enable), ("disable-admission-plugins", &flags.disable)]
    {
        if let Some(name) = list.iter().find(|name| standing(name).is_none()) {
            return Err(ConfigError::Unknown { flag, name: name.clone() });
        }
    }
    let both: Vec<&str> =
        flags.enable.iter().filter(|n| flags.disable.contains(n)).map(String::as_str).collect();
    if !both.is_empty() {
        return Err(ConfigError::Overlap(both.join(" ")));
    }
    if let Some(name) = flags.enable.iter().find(|n| matches!(standing(n), Some(Absent | AbsentOn))) {
        return Err(ConfigError::Missing(name.clone()));
    }
    if flags.disable.iter().any(|n| n == "NamespaceLifecycle") {
        return Err(ConfigError::Fixed("NamespaceLifecycle"));
    }
    let runs = |name: &str, standing: Standing| match standing {
        On => !flags.disable.iter().any(|n| n == name),
        Off => flags.enable.iter().any(|n| n == name),
        Absent | AbsentOn => false,
    };
    Ok(ORDER.iter().filter(|(name, standing)| runs(name, *standing)).map(|(name, _)| *name).collect())
}

/// Every plugin that this server has.
#[cfg(test)]
pub(crate) fn all() -> Vec<&'static str> {
    ORDER.iter().filter(|(_, standing)| matches!(standing, On | Off)).map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests;
