//! Static pods: those that files of a directory describe, which the kubelet runs without the API. Upstream's `config/file.go`.
//!
//! Invariants: a pod's uid follows from its content, its file's path and the node's name, so that a changed file is another
//! pod, and an unchanged one the same pod after a restart; a file that cannot be used describes no pod, and the others do all the same.

mod references;

use crate::pods::core::Pod;
use crate::pods::model;
use jiff::Timestamp;
use kaji_meta::{Clock, text::hex};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Bytes of a manifest.
const LONGEST: u64 = 10 << 20;
/// Files of the directory that are read.
const MOST: usize = 500;
/// How often the directory is scanned. Its files are read when their times or sizes have changed.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// Annotation: where a pod comes from, `file` or `api`.
pub const SOURCE: &str = "kubernetes.io/config.source";
/// Annotation of a static pod: its uid.
pub const HASH: &str = "kubernetes.io/config.hash";
/// Annotation of a static pod: when its file was read.
pub const SEEN: &str = "kubernetes.io/config.seen";
/// Annotation of the object that shows a static pod in the API: the pod's hash.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// Sets a pod's defaults and validates it, as the API server does when it is created. Errors are texts.
pub type Complete = Arc<dyn Fn(&mut Value) -> Result<(), String> + Send + Sync>;

/// Where static pods are described.
#[derive(Clone)]
pub struct Manifests {
    /// Read by the kubelet only; it need not exist.
    pub directory: PathBuf,
    /// Defaults and validation.
    pub complete: Complete,
}

/// All static pods of a node.
pub type StaticPods = Arc<Vec<Arc<Pod>>>;

/// Whether a pod of the API stands for a static one; the static pod's uid then.
#[must_use]
pub fn mirrored(pod: &Pod) -> Option<&str> {
    annotation(pod, MIRROR)
}

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// What tells whether a directory's files have changed.
type Signature = BTreeMap<PathBuf, (i64, i64, u64, u64)>;

/// The files of a directory that may be manifests.
fn signature(directory: &Path) -> Signature {
    let of = |entry: std::fs::DirEntry| {
        let path = entry.path();
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        // Links are followed: a directory may be one of a configuration map's volume.
        let found = std::fs::metadata(&path).ok().filter(|m| m.is_file() && !hidden)?;
        Some((path, (found.mtime(), found.mtime_nsec(), found.size(), found.ino())))
    };
    std::fs::read_dir(directory).into_iter().flatten().flatten().filter_map(of).take(MOST).collect()
}

/// Follows the manifests, for ever.
pub(super) async fn follow(
    manifests: Manifests,
    node: String,
    clock: Arc<dyn Clock>,
    pods: watch::Sender<StaticPods>,
) {
    let mut known = Signature::new();
    loop {
        let directory = manifests.directory.clone();
        let found = tokio::task::spawn_blocking(move || signature(&directory)).await.unwrap_or_default();
        if found != known {
            let (manifests, node, now) = (manifests.clone(), node.clone(), clock.now());
            let paths: Vec<PathBuf> = found.keys().cloned().collect();
            let read = tokio::task::spawn_blocking(move || read_all(&paths, &manifests, &node, now)).await;
            if let Ok(read) = read {
                pods.send_replace(Arc::new(read));
                known = found;
            }
        }
        kaji_runtime::time::sleep(&*clock, SCAN_INTERVAL).await;
    }
}

/// The pods that the manifests describe now.
#[must_use]
pub fn read(manifests: &Manifests, node: &str, now: Timestamp) -> Vec<Arc<Pod>> {
    let paths: Vec<PathBuf> = signature(&manifests.directory).into_keys().collect();
    read_all(&paths, manifests, node, now)
}

fn read_all(paths: &[PathBuf], manifests: &Manifests, node: &str, now: Timestamp) -> Vec<Arc<Pod>> {
    let mut pods: Vec<Arc<Pod>> = vec![];
    for path in paths {
        match read_file(path, manifests, node, now) {
            Ok(pod) => {
                let same = |other: &Arc<Pod>| {
                    model::name(other) == model::name(&pod)
                        && model::namespace(other) == model::namespace(&pod)
                };
                if pods.iter().any(same) {
                    tracing::error!(path = %path.display(), "another manifest describes a pod of this name");
                } else {
                    pods.push(Arc::new(pod));
                }
            }
            Err(error) => tracing::error!(path = %path.display(), error, "the manifest cannot be used"),
        }
    }
    pods
}

fn read_file(path: &Path, manifests: &Manifests, node: &str, now: Timestamp) -> Result<Pod, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    file.take(LONGEST + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > LONGEST {
        return Err(format!("the manifest has more than {LONGEST} bytes"));
    }
    let value: Value = serde_saphyr::from_str(&text).map_err(|e| e.to_string())?;
    parse(value, &path.display().to_string(), node, manifests, now)
}

/// The static pod of a manifest.
fn parse(
    mut value: Value,
    path: &str,
    node: &str,
    manifests: &Manifests,
    now: Timestamp,
) -> Result<Pod, String> {
    if value["kind"] != "Pod" || value["apiVersion"] != "v1" {
        return Err("invalid pod: it is not a Pod of v1".to_owned());
    }
    let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if name.is_empty() {
        return Err("invalid pod: name is needed for the pod".to_owned());
    }
    let uid = match value["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
        Some(uid) => uid.to_owned(),
        None => hash(&value, path, node),
    };
    let metadata = &mut value["metadata"];
    metadata["uid"] = uid.clone().into();
    metadata["name"] = format!("{name}-{}", node.to_lowercase()).into();
    if metadata["namespace"].as_str().unwrap_or_default().is_empty() {
        metadata["namespace"] = "default".into();
    }
    if !metadata["annotations"].is_object() {
        metadata["annotations"] = json!({});
    }
    for (name, text) in [(SOURCE, "file".to_owned()), (HASH, uid), (SEEN, now.to_string())] {
        metadata["annotations"][name] = text.into();
    }
    if let Some(annotations) = metadata["annotations"].as_object_mut() {
        annotations.remove(MIRROR);
    }
    value["spec"]["nodeName"] = node.into();
    tolerate_all(&mut value["spec"]);
    (manifests.complete)(&mut value).map_err(|error| format!("invalid pod: {error}"))?;
    value["status"] = json!({"phase": "Pending"});
    let pod: Pod = kaji_meta::json::from_value(&value).map_err(|e| e.to_string())?;
    match references::first(&pod) {
        Some(what) => Err(format!("static pods may not reference {what}")),
        None => Ok(pod),
    }
}

/// Static pods stay when the node has problems.
fn tolerate_all(spec: &mut Value) {
    let toleration = json!({"operator": "Exists", "effect": "NoExecute"});
    match spec["tolerations"].as_array_mut() {
        Some(tolerations) if tolerations.contains(&toleration) => {}
        Some(tolerations) => tolerations.push(toleration),
        None => spec["tolerations"] = json!([toleration]),
    }
}

fn hash(value: &Value, path: &str, node: &str) -> String {
    let mut hasher = Sha256::new();
    hasher.update(value.to_string());
    hasher.update(format!("host:{node}file:{path}"));
    hex(&hasher.finalize()[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifests(directory: &Path) -> Manifests {
        let complete: Complete = Arc::new(|pod: &mut Value| {
            pod["spec"]["restartPolicy"] = "Always".into();
            if pod["spec"]["containers"].is_array() {
                Ok(())
            } else {
                Err("spec.containers: Required value".into())
            }
        });
        Manifests { directory: directory.to_owned(), complete }
    }

    #[test]
    fn files_become_pods_and_wrong_ones_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let web = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, annotations: {a: b}}\nspec:\n  containers: [{name: c, image: i}]\n";
        write("web.yaml", web);
        write("json", &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "j", "namespace": "n", "uid": "u"}, "spec": {"containers": []}}).to_string());
        write("same.yaml", web);
        write(".hidden.yaml", web);
        write("other.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n");
        write("broken.yaml", "{");
        write("invalid.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {}\n");
        write(
            "secret.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: y}\nspec: {containers: [], volumes: [{name: v, secret: {secretName: s}}]}\n",
        );
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let read = || read(&manifests(dir.path()), "Node-1", now);
        let pods = read();
        let shown: Vec<_> = pods
            .iter()
            .map(|p| format!("{}/{} {}", model::namespace(p), model::name(p), model::uid(p).len()))
            .collect();
        assert_eq!(shown, ["n/j-node-1 1", "default/web-node-1 32"]);
        let pod = &pods[1];
        let annotations = pod.metadata.annotations.as_ref().unwrap();
        assert_eq!(
            (annotations[SOURCE].as_str(), &annotations[HASH]),
            ("file", pod.metadata.uid.as_ref().unwrap())
        );
        assert!(model::is_static(pod) && mirrored(pod).is_none());
        assert_eq!(model::spec(pod).tolerations.as_ref().unwrap()[0].effect.as_deref(), Some("NoExecute"));
        assert_eq!(read()[1].metadata.uid, pod.metadata.uid, "the same content");
        write("same.yaml", &web.replace("image: i", "image: j"));
        assert_ne!(read()[1].metadata.uid, pod.metadata.uid);
        assert!(super::read(&manifests(&dir.path().join("absent")), "n", now).is_empty());
    }
}
