//! The configuration of `PodSecurity`: defaults for namespaces without labels, and exemptions.
//! Source: `pod-security.admission.config.k8s.io/v1 PodSecurityConfiguration`.

use super::policy::{LEVELS, Level, LevelVersion, Policy, VERSIONS, Version};
use kaji_meta::{ErrorList, Path, field, validation};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashSet;

/// What is the same for all namespaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(super) defaults: Policy,
    users: HashSet<String>,
    namespaces: HashSet<String>,
    classes: HashSet<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default)]
    defaults: Defaults,
    #[serde(default)]
    exemptions: Exemptions,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct Defaults {
    enforce: String,
    enforce_version: String,
    audit: String,
    audit_version: String,
    warn: String,
    warn_version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Exemptions {
    usernames: Vec<String>,
    namespaces: Vec<String>,
    runtime_classes: Vec<String>,
}

impl Config {
    /// Group, versions and kind of the file.
    pub(crate) const KIND: (&str, &[&str], &str) =
        ("pod-security.admission.config.k8s.io", &["v1", "v1beta1", "v1alpha1"], "PodSecurityConfiguration");

    /// Reads it.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn parse(value: Value) -> Result<Config, String> {
        let file: File = serde_json::from_value(value).map_err(|e| e.to_string())?;
        let mut errors = vec![];
        let d = &file.defaults;
        let enforce = mode("enforce", &d.enforce, &d.enforce_version, &mut errors);
        let warn = mode("warn", &d.warn, &d.warn_version, &mut errors);
        let audit = mode("audit", &d.audit, &d.audit_version, &mut errors);
        let e = file.exemptions;
        let config = Config {
            defaults: Policy { enforce, audit, warn },
            namespaces: names("namespaces", e.namespaces, &label, &mut errors),
            classes: names("runtimeClasses", e.runtime_classes, &subdomain, &mut errors),
            users: names("usernames", e.usernames, &user, &mut errors),
        };
        match errors.is_empty() {
            true => Ok(config),
            false => Err(field::aggregate(&errors)),
        }
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> String {
        format!("{:?}", self.defaults)
    }

    pub(super) fn exempts_namespace(&self, namespace: &str) -> bool {
        self.namespaces.contains(namespace)
    }

    pub(super) fn exempts_user(&self, user: &str) -> bool {
        self.users.contains(user)
    }

    /// Whether a pod (or a template) runs in a class that is exempt.
    pub(super) fn exempts_class_of(&self, pod: &Value) -> bool {
        pod["spec"]["runtimeClassName"].as_str().is_some_and(|class| self.classes.contains(class))
    }
}

fn mode(name: &str, level: &str, version: &str, errors: &mut ErrorList) -> LevelVersion {
    let path = Path::new("defaults");
    let mut own = Policy::default().enforce;
    match Level::parse(level) {
        Some(level) => own.level = level,
        None if level.is_empty() => {}
        None => errors.push(field::Error::invalid(&path.child(name), level, LEVELS)),
    }
    match Version::parse(version) {
        Some(version) => own.version = version,
        None if version.is_empty() => {}
        None => {
            errors.push(field::Error::invalid(&path.child(&format!("{name}-version")), version, VERSIONS));
        }
    }
    own
}

fn label(name: &str) -> Vec<String> {
    validation::name_is_dns_label(name, false)
}

fn subdomain(name: &str) -> Vec<String> {
    validation::name_is_dns_subdomain(name, false)
}

fn user(name: &str) -> Vec<String> {
    if name.is_empty() { vec!["username must not be empty".into()] } else { vec![] }
}

fn names(
    field: &str,
    list: Vec<String>,
    wrong: &dyn Fn(&str) -> Vec<String>,
    errors: &mut ErrorList,
) -> HashSet<String> {
    let path = Path::new("exemptions").child(field);
    let mut all = HashSet::new();
    for (i, name) in list.into_iter().enumerate() {
        let texts = wrong(&name);
        if !texts.is_empty() {
            errors.push(field::Error::invalid(&path.index(i), name, texts.join(", ")));
        } else if let Some(name) = all.replace(name) {
            errors.push(field::Error::duplicate(&path.index(i), name));
        }
    }
    all
}
