//! Device nodes of containers and the rules of the device cgroup.

use super::Parts;
use crate::cdi::DeviceNode;
use kaji_containers::{ContainerUser, Mount, RuntimeError};
use rustix::fs::{FileType, major, minor, stat};
use serde_json::{Value, json};
use std::path::Path;

/// Devices that every container has: type, major, minor. `libcontainer` makes their nodes.
const DEFAULT: [(&str, Option<i64>, Option<i64>); 9] = [
    ("c", Some(1), Some(3)),
    ("c", Some(1), Some(5)),
    ("c", Some(1), Some(7)),
    ("c", Some(1), Some(8)),
    ("c", Some(1), Some(9)),
    ("c", Some(5), Some(0)),
    ("c", Some(5), Some(1)),
    ("c", Some(5), Some(2)),
    ("c", Some(136), None),
];

/// Nodes to make, and rules. All devices are admitted to privileged containers; otherwise making nodes is admitted, opening
/// others than those listed is not.
pub fn of(parts: &Parts<'_>, user: &ContainerUser) -> Result<(Vec<Value>, Vec<Value>), RuntimeError> {
    let mut nodes = vec![];
    let privileged = parts.config.security.privileged;
    let mut rules = vec![json!({"allow": privileged, "access": "rwm"})];
    if privileged {
        for path in host_devices(Path::new("/dev")) {
            nodes.extend(node(&path, &path)?.map(|(node, _)| node));
        }
    } else {
        rules.extend(default_rules());
    }
    for device in &parts.config.devices {
        let (path, seen) = (&device.host_path, &device.container_path);
        let invalid = || RuntimeError::InvalidArgument(format!("{path:?} is not a device"));
        let (node, mut rule) = node(path, seen)?.ok_or_else(invalid)?;
        rule["access"] = json!(if device.permissions.is_empty() { "rwm" } else { &device.permissions });
        if is_below_dev(seen) {
            nodes.retain(|other| other["path"] != node["path"]);
            nodes.push(node);
        }
        if !privileged {
            rules.push(rule);
        }
    }
    for device in &parts.cdi.device_nodes {
        let (node, rule) = of_cdi(device, user)?;
        if is_below_dev(&device.path) {
            nodes.retain(|other| other["path"] != node["path"]);
            nodes.push(node);
        }
        rules.extend(rule.filter(|_| !privileged));
    }
    Ok((nodes, rules))
}

/// A node of a CDI device and its rule. What is not said of it is as on the node; it is the first process's own.
fn of_cdi(device: &DeviceNode, user: &ContainerUser) -> Result<(Value, Option<Value>), RuntimeError> {
    let host = if device.host_path.is_empty() { &device.path } else { &device.host_path };
    let mut found = json!({"type": device.kind, "major": device.major, "minor": device.minor});
    if device.kind.is_empty() || device.major == 0 && device.kind != "p" {
        let invalid = || RuntimeError::InvalidArgument(format!("{host:?} is not a device"));
        let (of_host, _) = node(host, &device.path)?.ok_or_else(invalid)?;
        if !device.kind.is_empty() && of_host["type"] != device.kind {
            let text = format!(
                "CDI device ({:?}, {host:?}), host type mismatch ({}, {})",
                device.path, device.kind, of_host["type"]
            );
            return Err(RuntimeError::InvalidArgument(text));
        }
        found = of_host;
    }
    found["path"] = json!(device.path);
    let mode = device.file_mode.map(u64::from).or_else(|| found["fileMode"].as_u64());
    found["fileMode"] = json!(mode.unwrap_or(0o666));
    found["uid"] = json!(device.uid.map_or(user.uid, i64::from));
    found["gid"] = json!(device.gid.map_or(user.gid, i64::from));
    let access = if device.permissions.is_empty() { "rwm" } else { &device.permissions };
    let rule = matches!(found["type"].as_str(), Some("b" | "c")).then(|| {
        json!({
            "allow": true, "type": found["type"], "major": found["major"], "minor": found["minor"], "access": access,
        })
    });
    Ok((found, rule))
}

fn default_rules() -> Vec<Value> {
    let made = ["c", "b"].map(|kind| json!({"allow": true, "type": kind, "access": "m"}));
    let opened = DEFAULT.iter().map(|(kind, major, minor)| {
        let mut rule = json!({"allow": true, "type": kind, "major": major, "access": "rwm"});
        if let Some(minor) = minor {
            rule["minor"] = json!(minor);
        }
        rule
    });
    made.into_iter().chain(opened).collect()
}

/// Where `libcontainer` makes nodes. It refuses other paths, as those of raw block volumes.
fn is_below_dev(path: &str) -> bool {
    path.starts_with("/dev/") && !path.split('/').any(|part| part == "..")
}

/// Devices that are seen outside of `/dev`: the node's own nodes are mounted there.
pub fn mounted(parts: &Parts<'_>) -> Vec<Mount> {
    let outside = parts.config.devices.iter().filter(|device| !is_below_dev(&device.container_path));
    let mounts = outside.map(|device| Mount {
        container_path: device.container_path.clone(),
        host_path: device.host_path.clone(),
        ..Mount::default()
    });
    let of_cdi = parts.cdi.device_nodes.iter().filter(|device| !is_below_dev(&device.path)).map(|device| {
        let host = if device.host_path.is_empty() { &device.path } else { &device.host_path };
        Mount { container_path: device.path.clone(), host_path: host.clone(), ..Mount::default() }
    });
    mounts.chain(of_cdi).collect()
}

fn node(host: &str, container: &str) -> Result<Option<(Value, Value)>, RuntimeError> {
    let failed = |error| RuntimeError::InvalidArgument(format!("device {host:?}: {error}"));
    let found = stat(host).map_err(failed)?;
    let kind = match FileType::from_raw_mode(found.st_mode) {
        FileType::CharacterDevice => "c",
        FileType::BlockDevice => "b",
        _ => return Ok(None),
    };
    let (major, minor) = (major(found.st_rdev), minor(found.st_rdev));
    let node = json!({
        "path": container, "type": kind, "major": major, "minor": minor,
        "fileMode": found.st_mode & 0o777, "uid": found.st_uid, "gid": found.st_gid,
    });
    Ok(Some((node, json!({"allow": true, "type": kind, "major": major, "minor": minor}))))
}

/// The node's devices, but for terminals and what the container has of its own.
fn host_devices(directory: &Path) -> Vec<String> {
    let own =
        ["pts", "shm", "fd", "mqueue", "console", "ptmx", "null", "zero", "full", "random", "urandom", "tty"];
    let mut found = vec![];
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let Ok(kind) = entry.file_type() else { continue };
        if own.contains(&name) || kind.is_symlink() {
            continue;
        }
        if kind.is_dir() {
            found.extend(host_devices(&entry.path()));
        } else if let Some(path) = entry.path().to_str() {
            found.push(path.to_owned());
        }
    }
    found
}
