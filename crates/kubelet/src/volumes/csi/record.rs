//! What is kept on disk of a CSI volume, as upstream keeps it: `vol_data.json` beside where it is staged or published.

use kaji_meta::text::hex;
use kaji_runtime::objects::csi_volume_name;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const FILE: &str = "vol_data.json";
/// Bytes of a record.
const MOST: u64 = 1 << 16;

/// One volume, on the node or in a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Record {
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub(super) spec_name: String,
    #[serde(rename = "volumeHandle")]
    pub(super) handle: String,
    #[serde(rename = "driverName")]
    pub(super) driver: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) node_name: String,
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub(super) attachment: String,
    #[serde(rename = "volumeLifecycleMode", skip_serializing_if = "String::is_empty")]
    pub(super) lifecycle: String,
    /// The control plane attaches it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) attachable: bool,
    /// It is a device.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) block: bool,
    /// It was set up to the end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) complete: bool,
}

impl Record {
    /// As the node's status names it.
    pub(super) fn unique_name(&self) -> String {
        csi_volume_name(&self.driver, &self.handle)
    }

    /// Reads the record in a directory; `None` where there is none.
    pub(super) fn read(dir: &Path) -> Result<Option<Record>, String> {
        let path = dir.join(FILE);
        let shown =
            |e: &dyn std::fmt::Display| format!("failed to load volume data file [{}]: {e}", path.display());
        let file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(shown(&error)),
        };
        serde_json::from_reader(std::io::Read::take(file, MOST)).map(Some).map_err(|e| shown(&e))
    }

    /// Writes the record into a directory, which is made.
    pub(super) fn write(&self, dir: &Path) -> Result<(), String> {
        let shown = |e: &dyn std::fmt::Display| {
            format!("failed to save volume data file {}: {e}", dir.join(FILE).display())
        };
        std::fs::create_dir_all(dir).map_err(|e| shown(&e))?;
        let text = serde_json::to_vec(self).map_err(|e| shown(&e))?;
        // Whole or not at all.
        let new = dir.join(format!("{FILE}.new"));
        std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, dir.join(FILE))).map_err(|e| shown(&e))
    }

    /// Removes the record and its directory, once `mount` in it is gone. What else is in there stays.
    pub(super) fn remove(dir: &Path, mount: &Path) -> Result<(), String> {
        let absent = |done: std::io::Result<()>, path: &Path| match done {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("failed to remove dir [{}]: {error}", path.display()))
            }
            _ => Ok(()),
        };
        let kind = std::fs::symlink_metadata(mount).map(|m| m.is_dir());
        match kind {
            Ok(true) => absent(std::fs::remove_dir(mount), mount)?,
            Ok(false) => absent(std::fs::remove_file(mount), mount)?,
            Err(_) => {}
        }
        absent(std::fs::remove_file(dir.join(FILE)), &dir.join(FILE))?;
        absent(std::fs::remove_dir(dir), dir)
    }
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

/// The handle of a volume that a driver makes for a pod.
pub(super) fn ephemeral_handle(pod_uid: &str, volume: &str) -> String {
    format!("csi-{}", digest(&format!("{pod_uid}{volume}")))
}

/// Where a volume is staged, below the plug-in's directory: its record is there, and `globalmount`.
pub(super) fn global(plugin: &Path, driver: &str, handle: &str) -> PathBuf {
    plugin.join(driver).join(digest(handle))
}

fn directories(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return vec![] };
    entries.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect()
}

fn records(dirs: Vec<PathBuf>) -> Vec<(PathBuf, Record)> {
    let read = |dir: PathBuf| match Record::read(&dir) {
        Ok(found) => found.map(|record| (dir, record)),
        Err(error) => {
            tracing::warn!(error, "the record of a CSI volume cannot be read");
            None
        }
    };
    dirs.into_iter().filter_map(read).collect()
}

/// What is staged, by directory.
pub(super) fn staged(plugin: &Path) -> BTreeMap<PathBuf, Record> {
    let dirs = directories(plugin).iter().flat_map(|driver| directories(driver)).collect();
    records(dirs).into_iter().collect()
}

/// What is published to a pod, by directory: as directories and as devices.
pub(super) fn of_pod(pod_dir: &Path) -> Vec<(PathBuf, Record)> {
    let plugin = format!("kubernetes.io~{}", super::DIRECTORY);
    let parts = ["volumes", "volumeDevices"].map(|part| pod_dir.join(part).join(&plugin));
    records(parts.iter().flat_map(|part| directories(part)).collect())
}

/// Whether any pod has a volume, or is about to.
pub(super) fn is_published(root: &Path, driver: &str, handle: &str) -> bool {
    let pods = directories(&root.join("pods"));
    pods.iter().any(|pod| of_pod(pod).iter().any(|(_, r)| r.driver == driver && r.handle == handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_as_upstreams() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("pods/u");
        let at = pod.join("volumes/kubernetes.io~csi/pv");
        let text = r#"{"attachmentID":"csi-1","driverName":"d","nodeName":"n","specVolID":"pv","volumeHandle":"h","volumeLifecycleMode":"Persistent"}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        record.write(&at).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), std::fs::read_to_string(at.join(FILE)).unwrap());
        assert_eq!(of_pod(&pod), [(at.clone(), record.clone())]);
        assert_eq!(record.unique_name(), "kubernetes.io/csi/d^h");
        assert!(is_published(dir.path(), "d", "h") && !is_published(dir.path(), "d", "i"));
        std::fs::write(at.join("kept"), "").unwrap();
        assert!(Record::remove(&at, &at.join("mount")).is_err(), "files that are not the kubelet's");
        std::fs::remove_file(at.join("kept")).unwrap();
        Record::remove(&at, &at.join("mount")).unwrap();
        assert!(!at.exists());
    }
}
