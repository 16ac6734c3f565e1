//! Network configurations on disk: lists of plug-ins, or single ones.
//!
//! Invariants: the first file by name that can be used counts; a file that cannot is skipped with a warning, as a network may be writing it; the
//! name of a plug-in is no path.

use crate::NetworkError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io;
use std::path::{Path, PathBuf};

/// Versions of the specification that are understood, the newest last.
const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The most bytes of a file.
const MOST: u64 = 1 << 20;

/// A plug-in, with what its configuration says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plugin {
    /// Name of its program.
    pub kind: String,
    /// All fields, also those that only it understands.
    pub config: Map<String, Value>,
}

/// A network: plug-ins that are run one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NetworkList {
    /// Of the network.
    pub name: String,
    /// Of the specification.
    pub version: String,
    /// In the order of `ADD`.
    pub plugins: Vec<Plugin>,
    /// `disableCheck`
    #[serde(default)]
    pub disable_check: bool,
    /// `disableGC`
    #[serde(default)]
    pub disable_collection: bool,
}

impl NetworkList {
    fn is_at_least(&self, version: &str) -> bool {
        let place = |version: &str| VERSIONS.iter().position(|known| *known == version);
        place(&self.version) >= place(version)
    }

    /// Whether plug-ins can be asked if they are ready.
    pub fn has_status(&self) -> bool {
        self.is_at_least("1.1.0")
    }

    /// Whether plug-ins can be told which attachments there are.
    pub fn has_collection(&self) -> bool {
        self.is_at_least("1.1.0") && !self.disable_collection
    }

    /// Whether attachments can be checked.
    pub fn has_check(&self) -> bool {
        self.passes_result() && !self.disable_check
    }

    /// Whether a removal gets the result of the attachment.
    pub fn passes_result(&self) -> bool {
        self.is_at_least("0.4.0")
    }

    /// The request to a plug-in about the network, without anything about a pod.
    pub fn request(&self, plugin: &Plugin) -> Map<String, Value> {
        let mut request = plugin.config.clone();
        // It is for the runtime alone.
        request.remove("capabilities");
        request.insert("name".to_owned(), self.name.clone().into());
        request.insert("cniVersion".to_owned(), self.version.clone().into());
        request
    }
}

/// The configuration of a directory; `None` where there is none.
///
/// # Errors
/// A directory that cannot be read.
pub fn load(directory: &Path) -> Result<Option<NetworkList>, NetworkError> {
    for path in files(directory, &["conf", "conflist", "json"])? {
        match read(&path) {
            Ok(list) => return Ok(Some(list)),
            Err(error) => tracing::warn!(file = %path.display(), error, "a CNI configuration cannot be used"),
        }
    }
    Ok(None)
}

/// Files with one of these extensions, by name.
fn files(directory: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, NetworkError> {
    let shown = directory.display().to_string();
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(NetworkError::Io(shown, error)),
    };
    let mut found = vec![];
    for entry in entries {
        let path = entry.map_err(NetworkError::io(&shown))?.path();
        if path.extension().and_then(|e| e.to_str()).is_some_and(|e| extensions.contains(&e)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn object(path: &Path) -> Result<Map<String, Value>, String> {
    use std::io::Read;
    let mut text = vec![];
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(MOST + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > MOST {
        return Err(format!("it has more than {MOST} bytes"));
    }
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

fn read(path: &Path) -> Result<NetworkList, String> {
    let mut file = object(path)?;
    let text =
        |file: &Map<String, Value>, field: &str| file.get(field).and_then(Value::as_str).map(str::to_owned);
    let flag = |file: &Map<String, Value>, field: &str| match file.get(field) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        // Written by templates.
        Some(Value::String(text)) if text == "true" || text == "false" => Ok(text == "true"),
        Some(other) => Err(format!("{field}: {other} is neither true nor false")),
    };
    let name = text(&file, "name").ok_or("it has no name")?;
    let (first, plain) =
        (|c: char| c.is_ascii_alphanumeric(), |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c));
    if !name.starts_with(first) || !name.chars().all(plain) {
        return Err(format!("invalid characters found in network name {name:?}"));
    }
    let version = version(&file)?;
    let (disable_check, disable_collection) = (flag(&file, "disableCheck")?, flag(&file, "disableGC")?);
    let plugins = match file.remove("plugins") {
        None if file.contains_key("type") => vec![Value::Object(file)],
        None => return Err("it has no plugins".to_owned()),
        Some(Value::Array(inlined)) => {
            let mut all = inlined;
            if !flag(&file, "loadOnlyInlinedPlugins")? {
                let beside = path.parent().unwrap_or(Path::new("")).join(&name);
                for path in files(&beside, &["conf"]).map_err(|error| error.to_string())? {
                    all.push(object(&path).map_err(|error| format!("{}: {error}", path.display()))?.into());
                }
            }
            all
        }
        Some(_) => return Err("plugins is no list".to_owned()),
    };
    let plugins = plugins.into_iter().map(plugin).collect::<Result<Vec<_>, _>>()?;
    if plugins.is_empty() {
        return Err("no plugins in list".to_owned());
    }
    Ok(NetworkList { name, version, plugins, disable_check, disable_collection })
}

fn plugin(value: Value) -> Result<Plugin, String> {
    let Value::Object(config) = value else { return Err("a plugin is no object".to_owned()) };
    let kind = config.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    if kind.is_empty() {
        return Err("missing 'type' in a plugin".to_owned());
    }
    if kind.contains('/') || kind == ".." {
        return Err(format!("invalid plugin name: {kind}"));
    }
    Ok(Plugin { kind, config })
}

/// The newest version that both sides know.
fn version(file: &Map<String, Value>) -> Result<String, String> {
    let one = file.get("cniVersion").and_then(Value::as_str);
    let many =
        file.get("cniVersions").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let named: Vec<&str> = one.into_iter().chain(many).filter(|version| !version.is_empty()).collect();
    if named.is_empty() {
        // What there was before configurations had a version.
        return Ok(VERSIONS[0].to_owned());
    }
    let known = VERSIONS.iter().rev().find(|known| named.contains(known));
    known.map(|known| (*known).to_owned()).ok_or_else(|| format!("unsupported CNI versions {named:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(files: &[(&str, &str)]) -> String {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        match load(dir.path()).unwrap() {
            None => "none".to_owned(),
            Some(list) => {
                let kinds: Vec<&str> = list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect();
                let can = [list.passes_result(), list.has_check(), list.has_status(), list.has_collection()];
                format!("{} {} {kinds:?} {can:?}", list.name, list.version)
            }
        }
    }

    #[test]
    fn the_first_file_that_can_be_used_counts() {
        let list = r#"{"cniVersion": "1.0.0", "name": "list", "plugins": [{"type": "a"}, {"type": "b"}]}"#;
        let single = r#"{"cniVersion": "0.3.1", "name": "single", "type": "c"}"#;
        let cases = [
            shown(&[]),
            shown(&[("20.conf", single), ("10.conflist", list), ("00.txt", single)]),
            shown(&[
                ("05.conf", "{"),
                ("06.conflist", r#"{"name": "x", "plugins": []}"#),
                ("10.conf", single),
            ]),
            shown(&[
                ("1.conf", r#"{"name": "../x", "type": "a"}"#),
                ("2.conf", r#"{"name": "x", "type": "../a"}"#),
            ]),
            shown(&[("1.conflist", list), ("list/1.conf", r#"{"type": "d"}"#)]),
            shown(&[
                ("1.conflist", &list.replace("\"plugins\"", "\"loadOnlyInlinedPlugins\": true, \"plugins\"")),
                ("list/1.conf", r#"{"type": "d"}"#),
            ]),
            shown(&[(
                "1.conflist",
                &list.replace("\"name\"", "\"cniVersions\": [\"1.1.0\", \"9.0.0\"], \"name\""),
            )]),
            shown(&[(
                "1.conflist",
                &list
                    .replace("1.0.0", "1.1.0")
                    .replace("\"name\"", "\"disableGC\": true, \"disableCheck\": \"true\", \"name\""),
            )]),
            shown(&[("1.conf", &single.replace("0.3.1", "2.0.0"))]),
            shown(&[("1.conf", r#"{"name": "old", "type": "a"}"#)]),
        ];
        expect_test::expect![[r#"
            none
            list 1.0.0 ["a", "b"] [true, true, false, false]
            single 0.3.1 ["c"] [false, false, false, false]
            none
            list 1.0.0 ["a", "b", "d"] [true, true, false, false]
            list 1.0.0 ["a", "b"] [true, true, false, false]
            list 1.1.0 ["a", "b"] [true, true, true, true]
            list 1.1.0 ["a", "b"] [true, false, true, false]
            none
            old 0.1.0 ["a"] [false, false, false, false]"#]]
        .assert_eq(&cases.join("\n"));
    }
}
