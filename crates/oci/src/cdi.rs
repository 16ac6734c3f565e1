//! Devices of the Container Device Interface: what specifications on the node say that a container gets with a device.
//!
//! Specifications are files, JSON or YAML, in directories; what a later directory says of a device wins over an earlier one.
//!
//! Invariants: files, and their number, are bounded; a device that is not described, or twice by the same directory, fails the
//! container, and every edit is carried out or refused.
//!
//! Source: the CDI specification 1.1 (`cncf-tags/container-device-interface`, `SPEC.md`).

use kaji_containers::RuntimeError;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a specification.
const MOST_BYTES: u64 = 4 << 20;
/// Files of a directory that are read.
const MOST_FILES: usize = 1024;

/// Where specifications are by convention, the most important ones last.
#[must_use]
pub fn directories() -> Vec<PathBuf> {
    ["/etc/cdi", "/var/run/cdi"].map(PathBuf::from).to_vec()
}

/// A specification: the devices of one kind.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Specification {
    cdi_version: String,
    /// `vendor.com/class`
    kind: String,
    #[serde(default)]
    devices: Vec<NamedDevice>,
    /// For each of its devices.
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamedDevice {
    name: String,
    #[serde(default)]
    container_edits: Edits,
}

/// What is changed of a container's configuration.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Edits {
    /// `NAME=value`; replaces what the container has of that name.
    pub env: Vec<String>,
    /// Device nodes.
    pub device_nodes: Vec<DeviceNode>,
    /// Mounts; each replaces the container's own at the same path.
    pub mounts: Vec<EditedMount>,
    /// Programs that run as the container begins and ends.
    pub hooks: Vec<Hook>,
    /// Further groups of the first process.
    #[serde(rename = "additionalGids")]
    pub additional_gids: Vec<u32>,
    /// Resource director technology of the processor; as the OCI configuration has it.
    pub intel_rdt: Option<Value>,
    net_devices: Vec<Value>,
}

/// A device node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceNode {
    /// In the container.
    pub path: String,
    /// On the node; the same without it.
    pub host_path: String,
    /// `c`, `b`, `u` or `p`; of the node's own without it.
    #[serde(rename = "type")]
    pub kind: String,
    /// Of the node's own without it.
    pub major: i64,
    /// Of the node's own without it.
    pub minor: i64,
    /// Mode of the file.
    pub file_mode: Option<u32>,
    /// `r`, `w`, `m`; all of them without it.
    pub permissions: String,
    /// Owner; the first process's without it.
    pub uid: Option<u32>,
    /// Group; the first process's without it.
    pub gid: Option<u32>,
}

/// A mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EditedMount {
    /// On the node.
    pub host_path: String,
    /// In the container.
    pub container_path: String,
    /// Of the file system; a bind mount without it.
    #[serde(rename = "type")]
    pub kind: String,
    /// Options, as of `mount`.
    pub options: Vec<String>,
}

/// A program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hook {
    /// When: an OCI hook's name.
    pub hook_name: String,
    /// Its file.
    pub path: String,
    /// Its arguments, its own name first.
    pub args: Vec<String>,
    /// Its variables.
    pub env: Vec<String>,
    /// Seconds.
    pub timeout: Option<i64>,
}

const HOOKS: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

impl Edits {
    fn append(&mut self, more: &Edits) {
        let more = more.clone();
        self.env.extend(more.env);
        self.device_nodes.extend(more.device_nodes);
        self.mounts.extend(more.mounts);
        self.hooks.extend(more.hooks);
        self.additional_gids.extend(more.additional_gids);
        self.intel_rdt = more.intel_rdt.or(self.intel_rdt.take());
        self.net_devices.extend(more.net_devices);
    }

    /// `hooks` of the OCI configuration; `None` without any.
    #[must_use]
    pub fn oci_hooks(&self) -> Option<Value> {
        let mut hooks = serde_json::Map::new();
        for hook in &self.hooks {
            let mut one = json!({"path": hook.path, "args": hook.args, "env": hook.env});
            if let Some(timeout) = hook.timeout {
                one["timeout"] = json!(timeout);
            }
            let list = hooks.entry(hook.hook_name.clone()).or_insert_with(|| json!([]));
            if let Some(list) = list.as_array_mut() {
                list.push(one);
            }
        }
        (!hooks.is_empty()).then_some(Value::Object(hooks))
    }

    fn check(&self) -> Result<(), String> {
        if !self.net_devices.is_empty() {
            return Err("network devices are not supported by the built-in runtime".to_owned());
        }
        for hook in &self.hooks {
            if !HOOKS.contains(&hook.hook_name.as_str()) {
                return Err(format!("invalid hook name {:?}", hook.hook_name));
            }
            if hook.path.is_empty() {
                return Err(format!("invalid hook {:?} with empty path", hook.hook_name));
            }
        }
        if let Some(bad) = self.env.iter().find(|variable| !variable.contains('=')) {
            return Err(format!("invalid environment variable {bad:?}"));
        }
        if self.device_nodes.iter().any(|node| !node.path.starts_with('/')) {
            return Err("invalid (empty) device path".to_owned());
        }
        let absolute =
            |mount: &EditedMount| mount.container_path.starts_with('/') && !mount.host_path.is_empty();
        if self.mounts.iter().any(|mount| !absolute(mount)) {
            return Err("invalid mount, empty host or container path".to_owned());
        }
        Ok(())
    }
}

/// What containers get with these devices, by their qualified names, `vendor.com/class=name`.
///
/// # Errors
/// [`RuntimeError::InvalidArgument`] for devices that are not described, or in a way that cannot be carried out.
pub fn edits(names: &[String], directories: &[PathBuf]) -> Result<Edits, RuntimeError> {
    let mut all = Edits::default();
    if names.is_empty() {
        return Ok(all);
    }
    let (specifications, problems) = read(directories);
    let mut known: BTreeMap<String, (usize, usize, usize)> = BTreeMap::new();
    let mut conflicts = vec![];
    for (index, (directory, specification)) in specifications.iter().enumerate() {
        for (place, device) in specification.devices.iter().enumerate() {
            let name = format!("{}={}", specification.kind, device.name);
            let before = known.insert(name.clone(), (*directory, index, place));
            match before {
                Some((same, ..)) if same == *directory => conflicts.push(name),
                _ => conflicts.retain(|conflict| *conflict != name),
            }
        }
    }
    let (mut missing, mut used) = (vec![], vec![]);
    for name in names {
        match known.get(name).filter(|_| !conflicts.contains(name)) {
            None => missing.push(name.as_str()),
            Some((_, index, place)) => {
                let specification = &specifications[*index].1;
                if !used.contains(index) {
                    used.push(*index);
                    all.append(&specification.container_edits);
                }
                all.append(&specification.devices[*place].container_edits);
            }
        }
    }
    let refused =
        |text: String| RuntimeError::InvalidArgument(format!("CDI device injection failed: {text}"));
    if !missing.is_empty() {
        let found = if problems.is_empty() { String::new() } else { format!(" ({})", problems.join("; ")) };
        return Err(refused(format!("unresolvable CDI devices {}{found}", missing.join(", "))));
    }
    all.check().map_err(refused)?;
    Ok(all)
}

/// The specifications of directories in order of their names, with the number of their directory, and what is wrong with the others.
fn read(directories: &[PathBuf]) -> (Vec<(usize, Specification)>, Vec<String>) {
    let (mut found, mut problems) = (vec![], vec![]);
    for (number, directory) in directories.iter().enumerate() {
        let Ok(entries) = std::fs::read_dir(directory) else { continue };
        let is_specification =
            |path: &PathBuf| matches!(path.extension().and_then(|e| e.to_str()), Some("json" | "yaml"));
        let mut files: Vec<PathBuf> =
            entries.flatten().map(|e| e.path()).filter(is_specification).take(MOST_FILES).collect();
        files.sort();
        for file in files {
            match parse(&file) {
                Ok(specification) => found.push((number, specification)),
                Err(error) => problems.push(format!("{}: {error}", file.display())),
            }
        }
    }
    (found, problems)
}

fn parse(path: &Path) -> Result<Specification, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > MOST_BYTES {
        return Err("the specification is too large".to_owned());
    }
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let specification: Specification = if is_json {
        serde_json::from_str(&text).map_err(|e| e.to_string())?
    } else {
        kaji_files::yaml::decode(&text).map_err(|e| e.to_string())?
    };
    let (vendor, class) = specification.kind.split_once('/').unwrap_or_default();
    if vendor.is_empty() || class.is_empty() || class.contains('/') {
        return Err(format!("invalid kind {:?}", specification.kind));
    }
    let major = specification.cdi_version.trim_start_matches('v').split('.').next();
    if !matches!(major, Some("0" | "1")) {
        return Err(format!("invalid version {:?}", specification.cdi_version));
    }
    Ok(specification)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(files: &[(&str, &str)]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let directories = ["first", "second"].map(|name| dir.path().join(name)).to_vec();
        (dir, directories)
    }

    fn shown(names: &[&str], directories: &[PathBuf]) -> Result<Vec<String>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        edits(&names, directories).map(|edits| edits.env).map_err(|error| error.to_string())
    }

    #[test]
    fn devices_bring_their_edits_and_those_of_their_specification_once() {
        let (dir, directories) = written(&[(
            "first/vendor.yaml",
            "cdiVersion: 0.6.0\nkind: vendor.com/gpu\ncontainerEdits:\n  env: [ALL=1]\ndevices:\n\
             - name: a\n  containerEdits:\n    env: [A=1]\n    deviceNodes:\n    - path: /dev/gpu0\n      fileMode: 432\n\
             - name: b\n  containerEdits:\n    env: [B=1]\n    hooks:\n    - {hookName: createContainer, path: /bin/x, timeout: 3}\n",
        )]);
        assert_eq!(
            shown(&["vendor.com/gpu=b", "vendor.com/gpu=a"], &directories),
            Ok(vec!["ALL=1".into(), "B=1".into(), "A=1".into()])
        );
        let edits = edits(&["vendor.com/gpu=a".into(), "vendor.com/gpu=b".into()], &directories).unwrap();
        assert_eq!(edits.device_nodes[0].file_mode, Some(0o660));
        let hooks = json!({"createContainer": [{"path": "/bin/x", "args": [], "env": [], "timeout": 3}]});
        assert_eq!(edits.oci_hooks(), Some(hooks));
        drop(dir);
    }

    #[test]
    fn later_directories_win_and_what_is_not_described_once_is_refused() {
        let one = |value: &str| {
            let edits = json!({"env": [format!("X={value}")]});
            json!({"cdiVersion": "1.0.0", "kind": "v/c", "devices": [{"name": "d", "containerEdits": edits}]})
                .to_string()
        };
        let (dir, directories) = written(&[("first/a.json", &one("1")), ("second/a.json", &one("2"))]);
        assert_eq!(shown(&["v/c=d"], &directories), Ok(vec!["X=2".into()]));
        std::fs::write(directories[1].join("b.json"), one("3")).unwrap();
        std::fs::write(directories[1].join("c.json"), "{").unwrap();
        let error = shown(&["v/c=d", "v/c=e"], &directories).unwrap_err();
        let error = error.replace(&directories[1].display().to_string(), "DIR");
        expect_test::expect![[r#"
            CDI device injection failed: unresolvable CDI devices v/c=d, v/c=e (DIR/c.json: EOF while parsing an object at line 1 column 1)"#]]
        .assert_eq(&error);
        assert_eq!(shown(&[], &directories), Ok(vec![]));
        drop(dir);
    }

    #[test]
    fn what_cannot_be_carried_out_is_refused() {
        let device = |edits: Value| {
            json!({"cdiVersion": "1.1.0", "kind": "v/c", "devices": [{"name": "d", "containerEdits": edits}]})
                .to_string()
        };
        for (edits, error) in [
            (json!({"netDevices": [{"hostInterfaceName": "eth1", "name": "net0"}]}), "network devices"),
            (json!({"hooks": [{"hookName": "never", "path": "/x"}]}), "invalid hook name"),
            (json!({"env": ["X"]}), "invalid environment variable"),
            (json!({"mounts": [{"hostPath": "/a", "containerPath": "b"}]}), "invalid mount"),
        ] {
            let (dir, directories) = written(&[("first/a.json", &device(edits))]);
            let found = shown(&["v/c=d"], &directories).unwrap_err();
            assert!(found.contains(error), "{found}");
            drop(dir);
        }
    }
}
