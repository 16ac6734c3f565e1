//! Kubeconfig files: the administrator's context is merged into the user's file or written to a separate one, and the
//! kubeconfig of the public `cluster-info` ConfigMap is written and read.
//!
//! Invariants: nothing in a user's file but the entries of the cluster's name and `current-context` changes; a file that cannot be
//! parsed is left unchanged; the result is readable by its owner, and by its group if the group could read it before, and is
//! replaced atomically. Symbolic links stay links.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Map, Value, json};
use std::{
    io,
    path::{Path, PathBuf},
};

/// The name of cluster, user and context, of a cluster that has no other.
pub const NAME: &str = "kaji";

/// A client certificate and its private key, PEM.
#[derive(Clone, Copy, Debug)]
pub struct ClientCertificate<'a> {
    /// The certificate.
    pub certificate: &'a str,
    /// The private key.
    pub key: &'a str,
}

/// Why a kubeconfig could not be written.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// Reading failed.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Not a kubeconfig.
    #[error("{path} is not a kubeconfig ({reason}); it was left unchanged")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Writing failed.
    #[error("{path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}

/// Where a user's kubeconfig is: the first entry of `$KUBECONFIG`, else `~/.kube/config`.
pub fn default_path(kubeconfig: Option<&str>, home: Option<&str>) -> PathBuf {
    match kubeconfig.and_then(|k| k.split(':').find(|p| !p.is_empty())) {
        Some(path) => path.into(),
        None => Path::new(home.unwrap_or("/root")).join(".kube/config"),
    }
}

/// A kubeconfig of one server with its user; its context is the current one. `name` is that of cluster, user and context.
pub fn single<'a>(
    name: &str,
    server: &str,
    ca: &str,
    user: impl Into<ClientCertificate<'a>>,
) -> Map<String, Value> {
    let head = [("apiVersion", "v1".into()), ("kind", "Config".into())];
    let lists = entries(name, server, ca, user)
        .map(|(list, field, value)| (list, json!([{"name": name, field: value}])));
    let members = head.into_iter().chain(lists).chain([("current-context", name.into())]);
    members.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A kubeconfig's three entries for a server.
fn entries<'a>(
    name: &str,
    server: &str,
    ca: &str,
    user: impl Into<ClientCertificate<'a>>,
) -> [(&'static str, &'static str, Value); 3] {
    let user = user.into();
    let encoded = |pem: &str| BASE64.encode(pem);
    [
        ("clusters", "cluster", json!({"server": server, "certificate-authority-data": encoded(ca)})),
        (
            "users",
            "user",
            json!({
                "client-certificate-data": encoded(user.certificate),
                "client-key-data": encoded(user.key),
            }),
        ),
        ("contexts", "context", json!({"cluster": name, "user": name})),
    ]
}

/// The kubeconfig of `cluster-info`: the server's URL and its certificate authority, without users.
///
/// # Errors
/// When it cannot be serialized.
pub fn cluster_info(server: &str, ca: &str) -> Result<String, String> {
    let config = json!({
        "apiVersion": "v1",
        "clusters": [{
            "cluster": {"certificate-authority-data": BASE64.encode(ca), "server": server},
            "name": "",
        }],
        "contexts": null,
        "current-context": "",
        "kind": "Config",
        "preferences": {},
        "users": null,
    });
    yaml(&config)
}

/// The certificate authority in a kubeconfig that has exactly one cluster, PEM.
///
/// # Errors
/// When the text is no such kubeconfig.
pub fn certificate_authority(kubeconfig: &str) -> Result<String, String> {
    let config: Value = serde_saphyr::from_str(kubeconfig)
        .map_err(|e| e.to_string().lines().next().unwrap_or_default().to_owned())?;
    let clusters = config["clusters"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [cluster] = clusters else { return Err(format!("{} clusters instead of one", clusters.len())) };
    let data = cluster["cluster"]["certificate-authority-data"].as_str().unwrap_or_default();
    let pem = BASE64.decode(data).ok().and_then(|pem| String::from_utf8(pem).ok());
    pem.filter(|p| !p.is_empty()).ok_or_else(|| "no certificate authority".to_owned())
}

/// As client-go writes it: a value is on the line of its key, however long, because scripts read it from there.
fn yaml(config: &Value) -> Result<String, String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(config, options).map_err(|e| e.to_string())
}

/// Puts the entries of a cluster into a kubeconfig value.
///
/// # Errors
/// When a list in it is none.
fn merge(
    config: &mut Map<String, Value>,
    name: &str,
    entries: impl IntoIterator<Item = (&'static str, &'static str, Value)>,
) -> Result<(), String> {
    config.entry("apiVersion").or_insert_with(|| "v1".into());
    config.entry("kind").or_insert_with(|| "Config".into());
    for (list, field, value) in entries {
        let slot = config.entry(list).or_insert(Value::Null);
        if slot.is_null() {
            *slot = json!([]);
        }
        let items = slot.as_array_mut().ok_or_else(|| format!("{list} is not a list"))?;
        items.retain(|item| item["name"] != name);
        items.push(json!({"name": name, field: value}));
    }
    Ok(())
}

/// Merges into a file, which need not exist, and makes the context the current one. `name` is that of cluster, user and context.
///
/// # Errors
/// When the file cannot be read, parsed or written.
pub fn write<'a>(
    path: &Path,
    name: &str,
    server: &str,
    ca: &str,
    user: impl Into<ClientCertificate<'a>>,
) -> Result<(), KubeconfigError> {
    merge_file(path, name, entries(name, server, ca, user), true)
}

/// Merges into a file after the user's certificate was renewed: whichever context is current stays so.
///
/// # Errors
/// When the file cannot be read, parsed or written.
pub fn renew<'a>(
    path: &Path,
    name: &str,
    server: &str,
    ca: &str,
    user: impl Into<ClientCertificate<'a>>,
) -> Result<(), KubeconfigError> {
    merge_file(path, name, entries(name, server, ca, user), false)
}

fn merge_file(
    path: &Path,
    name: &str,
    entries: [(&'static str, &'static str, Value); 3],
    current: bool,
) -> Result<(), KubeconfigError> {
    change(path, |config| {
        merge(config, name, entries)?;
        if current {
            config.insert("current-context".into(), name.into());
        }
        Ok(true)
    })
}

/// Removes the entries of a cluster from a file. If its context is the current one, none is any more. A file that is not there, or has
/// nothing of the cluster, is left as it is.
///
/// # Errors
/// When the file cannot be read, parsed or written.
pub fn remove(path: &Path, name: &str) -> Result<(), KubeconfigError> {
    change(path, |config| {
        let mut is_changed = false;
        for list in ["clusters", "users", "contexts"] {
            let Some(items) = config.get_mut(list).and_then(Value::as_array_mut) else { continue };
            let before = items.len();
            items.retain(|item| item["name"] != name);
            is_changed |= items.len() != before;
        }
        if is_changed && config.get("current-context").is_some_and(|current| current == name) {
            config.insert("current-context".into(), "".into());
        }
        Ok(is_changed)
    })
}

/// A kubeconfig with the entries of one cluster, and nothing else of the file; `server` replaces the server's URL.
///
/// # Errors
/// When the file cannot be read or parsed, or has nothing of the cluster.
pub fn extract(path: &Path, name: &str, server: Option<&str>) -> Result<String, KubeconfigError> {
    let malformed = |reason: String| KubeconfigError::Malformed { path: path.into(), reason };
    let text = std::fs::read_to_string(path)
        .map_err(|source| KubeconfigError::Read { path: path.into(), source })?;
    let config = parse(&text).map_err(malformed)?;
    let mut extract = Map::new();
    extract.insert("current-context".into(), name.into());
    for (list, field) in [("clusters", "cluster"), ("users", "user"), ("contexts", "context")] {
        let items = config.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let entry = items.iter().find(|item| item["name"] == name).and_then(|item| item.get(field));
        let mut entry = entry.cloned().ok_or_else(|| malformed(format!("{list} has no {name}")))?;
        if let (Some(server), "clusters") = (server, list) {
            entry["server"] = server.into();
        }
        merge(&mut extract, name, [(list, field, entry)]).map_err(malformed)?;
    }
    yaml(&Value::Object(extract)).map_err(malformed)
}

/// A kubeconfig's mapping.
fn parse(text: &str) -> Result<Map<String, Value>, String> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_saphyr::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("not a mapping".into()),
        Err(error) => Err(error.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

/// Changes a file, which need not exist, unless `edit` says that nothing has changed.
fn change(
    path: &Path,
    edit: impl FnOnce(&mut Map<String, Value>) -> Result<bool, String>,
) -> Result<(), KubeconfigError> {
    let malformed = |reason: String| KubeconfigError::Malformed { path: path.into(), reason };
    let mut config = match read(path) {
        Ok(text) => parse(&text).map_err(malformed)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Map::new(),
        Err(source) => return Err(KubeconfigError::Read { path: path.into(), source }),
    };
    if !edit(&mut config).map_err(malformed)? {
        return Ok(());
    }
    let text = yaml(&Value::Object(config)).map_err(malformed)?;
    crate::replace_linked(path, text.as_bytes())
        .map_err(|source| KubeconfigError::Write { path: path.into(), source })
}

/// What a file holds. A pipe or a terminal is only written to.
fn read(path: &Path) -> io::Result<String> {
    match std::fs::metadata(path)?.file_type() {
        kind if kind.is_file() || kind.is_dir() => std::fs::read_to_string(path),
        _ => Ok(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: ClientCertificate<'static> = ClientCertificate { certificate: "C", key: "K" };

    #[test]
    fn the_kubeconfig_of_a_server_is_what_a_new_file_gets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        write(&path, "a", "https://a:1", "CA", USER).unwrap();
        let written = parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(single("a", "https://a:1", "CA", USER), written);
    }

    #[test]
    fn extracts_one_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        write(&path, "a", "https://a:1", "CA", USER).unwrap();
        write(&path, "b", "https://b:1", "CA", USER).unwrap();
        let extract = |server| {
            let text = extract(&path, "a", server).unwrap();
            assert!(!text.contains("https://b"), "{text}");
            serde_saphyr::from_str::<Value>(&text).unwrap()
        };
        let config = extract(None);
        assert_eq!(config["current-context"], "a");
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://a:1");
        assert_eq!(config["users"][0]["user"]["client-key-data"], BASE64.encode("K"));
        assert_eq!(extract(Some("https://c:1"))["clusters"][0]["cluster"]["server"], "https://c:1");
        let missing = super::extract(&path, "c", None).unwrap_err().to_string();
        assert!(missing.contains("clusters has no c"), "{missing}");
        assert!(super::extract(&dir.path().join("none"), "a", None).is_err());
    }

    #[test]
    fn reads_the_certificate_authority_of_one_cluster() {
        let config = cluster_info("https://a:1", "PEM").unwrap();
        assert_eq!(certificate_authority(&config).unwrap(), "PEM");
        for bad in ["", "a: [", "clusters: []", "clusters: [{}]", "clusters: [{}, {}]", "- 1"] {
            assert!(certificate_authority(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn writes_each_value_on_the_line_of_its_key() {
        let (certificate, key) = ("c".repeat(2000), "k".repeat(2000));
        let user = ClientCertificate { certificate: &certificate, key: &key };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        write(&path, NAME, "https://127.0.0.1:6443", &"a".repeat(2000), user).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for (key, letter) in
            [("certificate-authority-data", "a"), ("client-certificate-data", "c"), ("client-key-data", "k")]
        {
            let line = format!("{key}: {}\n", BASE64.encode(letter.repeat(2000)));
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn keeps_entries_of_other_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/config");
        write(&path, NAME, "https://127.0.0.1:1", "CA", USER).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let other = text
            .replace("kaji", "work")
            .replace("current-context: work", "current-context: work\npreferences: {a: 1}");
        std::fs::write(&path, other).unwrap();
        write(&path, NAME, "https://127.0.0.1:2", "CA", USER).unwrap();
        write(&path, NAME, "https://127.0.0.1:3", "CA", USER).unwrap();
        let merged: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        let names = |list: &str| -> Vec<String> {
            merged[list].as_array().unwrap().iter().map(|i| i["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names("clusters"), ["work", "kaji"]);
        assert_eq!(names("users"), ["work", "kaji"]);
        assert_eq!(names("contexts"), ["work", "kaji"]);
        assert_eq!(merged["clusters"][1]["cluster"]["server"], "https://127.0.0.1:3");
        assert_eq!(merged["preferences"]["a"], 1);
        assert_eq!(merged["current-context"], "kaji");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("current-context: kaji", "current-context: work")).unwrap();
        let renewed = ClientCertificate { certificate: "D", ..USER };
        renew(&path, NAME, "https://127.0.0.1:3", "CA", renewed).unwrap();
        let merged: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(merged["current-context"], "work");
        assert_eq!(merged["users"][1]["user"]["client-certificate-data"], BASE64.encode("D"));
    }

    #[test]
    fn removes_the_entries_of_one_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        remove(&path, "a").unwrap();
        assert!(!path.exists());
        for name in ["a", "b"] {
            write(&path, name, "https://127.0.0.1:1", "CA", USER).unwrap();
        }
        let read = || -> Value { serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap() };
        remove(&path, "a").unwrap();
        assert_eq!(read()["current-context"], "b");
        assert_eq!(read()["contexts"], json!([{"name": "b", "context": {"cluster": "b", "user": "b"}}]));
        remove(&path, "b").unwrap();
        let empty = json!({"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": [], "current-context": ""});
        assert_eq!(read(), empty);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("# kept\n{text}")).unwrap();
        remove(&path, "b").unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("# kept"));
    }

    #[test]
    fn writes_through_a_symbolic_link() {
        let dir = tempfile::tempdir().unwrap();
        let (link, target) = (dir.path().join("config"), dir.path().join("dotfiles"));
        std::fs::write(&target, "preferences: {a: 1}\n").unwrap();
        std::os::unix::fs::symlink("dotfiles", &link).unwrap();
        write(&link, NAME, "https://127.0.0.1:1", "CA", USER).unwrap();
        assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("dotfiles"));
        let merged: Value = serde_saphyr::from_str(&std::fs::read_to_string(&target).unwrap()).unwrap();
        assert_eq!((&merged["current-context"], &merged["preferences"]["a"]), (&json!("kaji"), &json!(1)));
    }

    #[test]
    fn leaves_a_file_that_is_no_kubeconfig_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        for text in ["- a\n", "clusters: 7\n", "a: [\n"] {
            std::fs::write(&path, text).unwrap();
            assert!(
                matches!(write(&path, NAME, "s", "c", USER), Err(KubeconfigError::Malformed { .. })),
                "{text}"
            );
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn default_path_is_the_first_entry_of_the_variable() {
        assert_eq!(default_path(Some(":/a:/b"), Some("/h")), Path::new("/a"));
        assert_eq!(default_path(None, Some("/h")), Path::new("/h/.kube/config"));
    }
}
