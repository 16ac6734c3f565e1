//! Which credentials of a pod's image pull secrets, and of plug-ins, are for an image. Pure.
//!
//! Keys of a secret are hosts, with or without scheme, port and path; each part of a host's name may be a glob. A path is a
//! prefix of the image's. More specific keys (later ones in the order of bytes) are tried first, and several may fit: the
//! kubelet tries each. Each credential has its source, by which pods are found that may use what was pulled with it.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kaji_containers::RegistryAuth;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// Docker Hub, as credentials name it.
const DEFAULT_REGISTRY: &str = "index.docker.io";
/// Data of secrets of type `kubernetes.io/dockerconfigjson` and `kubernetes.io/dockercfg`.
const CONFIG_JSON_KEY: &str = ".dockerconfigjson";
const CONFIG_KEY: &str = ".dockercfg";

/// An image pull secret that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct MalformedSecret(String);

/// A secret or a service account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectName {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
}

/// Where a credential comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CredentialSource {
    /// The node: all of its pods have it.
    #[default]
    Node,
    /// An image pull secret.
    Secret(ObjectName),
    /// A plug-in that was asked with a token of this service account.
    ServiceAccount(ObjectName),
}

/// A credential and its source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credential {
    /// The credential.
    pub auth: RegistryAuth,
    /// Its source.
    pub source: CredentialSource,
}

/// Credentials by host and path.
#[derive(Clone, Default)]
pub struct Keyring {
    credentials: BTreeMap<String, Vec<Credential>>,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.credentials.keys()).finish()
    }
}

#[derive(Deserialize)]
struct ConfigJson {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
    registrytoken: String,
}

impl Keyring {
    /// Adds a secret's data (decoded from the secret's base64). Secrets with other keys have no credentials.
    ///
    /// # Errors
    /// Data that is malformed; the error never contains it.
    pub fn add_secret(
        &mut self,
        data: &BTreeMap<String, Vec<u8>>,
        source: &CredentialSource,
    ) -> Result<(), MalformedSecret> {
        // The parser's errors may quote the secret.
        let invalid = |key: &str| MalformedSecret(format!("{key} of the image pull secret is malformed"));
        if let Some(bytes) = data.get(CONFIG_JSON_KEY) {
            let config: ConfigJson = serde_json::from_slice(bytes).map_err(|_| invalid(CONFIG_JSON_KEY))?;
            return self.add(config.auths, CONFIG_JSON_KEY, source);
        }
        if let Some(bytes) = data.get(CONFIG_KEY) {
            let auths = serde_json::from_slice(bytes).map_err(|_| invalid(CONFIG_KEY))?;
            return self.add(auths, CONFIG_KEY, source);
        }
        Ok(())
    }

    /// Adds what is used at a location: host and path, with or without a scheme.
    pub fn add_credentials(&mut self, location: &str, credential: Credential) {
        self.credentials.entry(key(location)).or_default().push(credential);
    }

    fn add(
        &mut self,
        auths: BTreeMap<String, Entry>,
        part: &str,
        source: &CredentialSource,
    ) -> Result<(), MalformedSecret> {
        for (location, entry) in auths {
            let auth = entry.auth().ok_or_else(|| {
                MalformedSecret(format!("{part} of the image pull secret has an auth that is malformed"))
            })?;
            self.add_credentials(&location, Credential { auth, source: source.clone() });
        }
        Ok(())
    }

    /// The credentials for an image's repository (`docker.io/library/nginx`), the most specific first.
    #[must_use]
    pub fn lookup(&self, repository: &str) -> Vec<Credential> {
        let fitting = self.credentials.iter().rev().filter(|(key, _)| matches(key, repository));
        let found: Vec<Credential> = fitting.flat_map(|(_, credentials)| credentials.clone()).collect();
        if found.is_empty() && is_default_registry(repository) {
            return self.credentials.get(DEFAULT_REGISTRY).cloned().unwrap_or_default();
        }
        found
    }
}

impl Entry {
    /// `None` if `auth` is no base64 of `user:password`.
    fn auth(self) -> Option<RegistryAuth> {
        let (mut username, mut password) = (self.username, self.password);
        if !self.auth.is_empty() {
            let decoded = BASE64_STANDARD.decode(self.auth.trim()).ok()?;
            let decoded = String::from_utf8(decoded).ok()?;
            let (user, secret) = decoded.split_once(':')?;
            // Docker pads with NULs.
            (username, password) = (user.to_owned(), secret.trim_end_matches('\0').to_owned());
        }
        Some(RegistryAuth {
            username,
            password,
            auth: String::new(),
            identity_token: self.identitytoken,
            registry_token: self.registrytoken,
        })
    }
}

/// Host and path. `/v1/` and `/v2/` are the host alone.
fn key(location: &str) -> String {
    let rest =
        location.strip_prefix("https://").or_else(|| location.strip_prefix("http://")).unwrap_or(location);
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = match path.strip_prefix("/v1/").or_else(|| path.strip_prefix("/v2/")) {
        Some(rest) => &path[path.len() - rest.len() - 1..],
        None => path,
    };
    if path == "/" { host.to_owned() } else { format!("{host}{path}") }
}

/// Whether a key is for a repository.
#[must_use]
pub fn matches(key: &str, repository: &str) -> bool {
    let parts = |text: &str| {
        let (host, path) = text.split_at(text.find('/').unwrap_or(text.len()));
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => (name, port),
            _ => (host, ""),
        };
        (name.to_owned(), port.to_owned(), path.to_owned())
    };
    let ((glob, glob_port, prefix), (name, port, path)) = (parts(key), parts(repository));
    let (globs, names) = (glob.split('.'), name.split('.'));
    glob_port == port
        && path.starts_with(&prefix)
        && globs.clone().count() == names.clone().count()
        && globs.zip(names).all(|(glob, name)| fits(glob.as_bytes(), name.as_bytes()))
}

/// `*` is any text, `?` any byte.
fn fits(glob: &[u8], name: &[u8]) -> bool {
    let (mut at, mut read, mut star) = (0, 0, None);
    while read < name.len() {
        match glob.get(at) {
            Some(b'*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[read] => (at, read) = (at + 1, read + 1),
            _ => match star {
                Some((begin, from)) => {
                    star = Some((begin, from + 1));
                    (at, read) = (begin + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    glob[at..].iter().all(|byte| *byte == b'*')
}

fn is_default_registry(repository: &str) -> bool {
    match repository.split_once('/') {
        None => !repository.is_empty(),
        Some((first, _)) => {
            matches!(first, "docker.io" | DEFAULT_REGISTRY)
                || (!first.is_empty() && !first.contains(['.', ':']))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(keyring: &Keyring, repository: &str) -> Vec<String> {
        keyring.lookup(repository).into_iter().map(|credential| credential.auth.username).collect()
    }

    #[test]
    fn credentials_are_found_by_host_and_path() {
        let mut keyring = Keyring::default();
        let encoded = BASE64_STANDARD.encode("hub:secret");
        let config = format!(
            r#"{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{encoded}"}},
            "quay.io": {{"username": "quay"}}, "quay.io/team": {{"username": "team"}},
            "*.example.com:5000": {{"username": "glob"}}, "http://plain.example/v2/": {{"username": "plain"}}}}}}"#
        );
        let secret = |name: &str| {
            CredentialSource::Secret(ObjectName { name: name.to_owned(), ..ObjectName::default() })
        };
        let data = [(CONFIG_JSON_KEY.to_owned(), config.into_bytes())].into();
        keyring.add_secret(&data, &secret("new")).unwrap();
        let old = br#"{"quay.io": {"username": "old", "password": "p", "email": "e"}}"#;
        keyring.add_secret(&[(CONFIG_KEY.to_owned(), old.to_vec())].into(), &secret("old")).unwrap();
        assert_eq!(users(&keyring, "docker.io/library/nginx"), ["hub"]);
        assert_eq!(keyring.lookup("docker.io/library/nginx")[0].auth.password, "secret");
        let sources = keyring.lookup("quay.io/other").into_iter().map(|credential| credential.source);
        assert_eq!(sources.collect::<Vec<_>>(), [secret("new"), secret("old")]);
        assert_eq!(users(&keyring, "quay.io/team/app"), ["team", "quay", "old"]);
        assert_eq!(users(&keyring, "quay.io/other"), ["quay", "old"]);
        assert_eq!(users(&keyring, "a.example.com:5000/x"), ["glob"]);
        assert_eq!(users(&keyring, "plain.example/x"), ["plain"]);
        for none in ["a.example.com/x", "a.b.example.com:5000/x", "registry.k8s.io/pause", "xquay.io/a"] {
            assert!(users(&keyring, none).is_empty(), "{none}");
        }
    }

    #[test]
    fn errors_do_not_show_the_secret() {
        let data =
            [(CONFIG_JSON_KEY.to_owned(), br#"{"auths": {"x": {"auth": "hunter2!"}}}"#.to_vec())].into();
        let source = CredentialSource::default();
        let error = Keyring::default().add_secret(&data, &source).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn matches_globs() {
        for (glob, name, fit) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abb", false),
            ("?", "a", true),
            ("?", "", false),
        ] {
            assert_eq!(fits(glob.as_bytes(), name.as_bytes()), fit, "{glob} {name}");
        }
    }
}
