//! The directories of node-local volumes that the built-in provisioner makes: this node's part of what
//! [`kaji_runtime::local_path`] describes.
//!
//! Invariants:
//! - A volume is listed in the Node's annotation before its directory is made, and until it is removed.
//! - A directory with data is removed only if its volume is there and says that it is to be deleted. Without a volume, an empty
//!   directory is removed; one with data is kept, since its volume may have been retained.
//! - Nothing outside of a volume's own directory is removed: links are not followed, and a directory with a mount in it stays
//!   until the mount is gone.

use crate::node::FullNode;
use kaji_files::MountTable;
use kaji_runtime::{
    Client, EventRecord, Informer, Informers, PatchKind, Projection, Recorder, Shared, Target,
    local_path::{self, ROOT, VOLUMES},
    objects::{Node, PersistentVolume},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;

/// What every user may do in a volume's directory: pods run as any user. Its parent is closed to other users of the machine.
const MODE: u32 = 0o777;
/// Before what failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The node, and where its directories are.
#[derive(Clone, Debug)]
pub struct LocalPathConfig {
    /// The Node's name.
    pub node: String,
    /// The directory of volumes.
    pub root: PathBuf,
}

/// What has to be done, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Actions {
    /// To be listed before anything is made.
    list: BTreeSet<String>,
    /// Directories of volumes that are in use or will be.
    make: BTreeMap<String, PathBuf>,
    /// Directories that are to be removed with their data.
    remove: BTreeMap<String, PathBuf>,
    /// Listed before, and without a volume now.
    leave: BTreeSet<String>,
}

fn decide<'a>(
    config: &LocalPathConfig,
    volumes: impl Iterator<Item = &'a Arc<PersistentVolume>>,
    listed: &BTreeSet<String>,
) -> Actions {
    let mut actions = Actions { list: listed.clone(), ..Actions::default() };
    let mut known = BTreeSet::new();
    for volume in volumes.filter(|volume| local_path::node(volume) == Some(&config.node)) {
        let name = volume.metadata.name.clone();
        let Some(directory) = local_path::directory(&config.root, volume) else { continue };
        known.insert(name.clone());
        if !local_path::is_deleted(volume) {
            actions.list.insert(name.clone());
            actions.make.insert(name, directory);
        } else if listed.contains(&name) {
            actions.remove.insert(name, directory);
        }
    }
    actions.leave = listed.difference(&known).cloned().collect();
    actions
}

/// Keeps the directories of this node's volumes. `informers` read the one Node, and volumes with its label. It returns when they end.
///
/// # Errors
/// When the directory of volumes cannot be made, or is not this user's.
pub async fn run(
    config: LocalPathConfig,
    informers: Arc<Informers>,
    client: Client,
    shared: Shared,
) -> io::Result<()> {
    let root = config.root.clone();
    blocking(move || kaji_files::private_dir(&root)).await?;
    let (volumes, nodes) = (informers.get::<PersistentVolume>(), informers.get::<FullNode>());
    let (sender, mut changes) = mpsc::channel(1);
    // A full queue leads to the same reconciliation with the newest state.
    let wake = sender.clone();
    volumes.handle(move |change| {
        if local_path::node(change.any()).is_some() {
            let _ = wake.try_send(());
        }
    });
    nodes.handle(move |_| {
        let _ = sender.try_send(());
    });
    volumes.synced().await;
    let events = Recorder::start(client.clone(), "kubelet", shared.clock.clone(), shared.random.clone());
    let reconciler = VolumeReconciler { config, volumes, nodes, client, events };
    while changes.recv().await.is_some() {
        while let Err(error) = reconciler.reconcile().await {
            tracing::warn!(%error, "the local volumes could not be reconciled; retrying");
            kaji_runtime::time::sleep(&*shared.clock, RETRY).await;
        }
    }
    Ok(())
}

/// Why the directories are not as they should be.
#[derive(Debug, thiserror::Error)]
enum LocalPathError {
    #[error("the Node's list of volumes cannot be written: {0}")]
    List(#[from] kaji_runtime::Error),
    #[error("the directory of volume {0} cannot be made: {1}")]
    Make(String, io::Error),
    #[error("the directory of volume {0} cannot be removed: {1}")]
    Remove(String, io::Error),
}

struct VolumeReconciler {
    config: LocalPathConfig,
    volumes: Arc<Informer<PersistentVolume>>,
    nodes: Arc<Informer<FullNode>>,
    client: Client,
    events: Recorder,
}

impl VolumeReconciler {
    /// Does everything that has to be done. What fails for one volume holds up no other.
    async fn reconcile(&self) -> Result<(), LocalPathError> {
        let snapshot = self.nodes.snapshot();
        let Some(node) = snapshot.get("", &self.config.node) else { return Ok(()) };
        let annotation = |key: &str| node.node.metadata.annotations.as_ref()?.get(key).cloned();
        let written = annotation(VOLUMES).unwrap_or_default();
        let listed: BTreeSet<String> =
            written.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let volumes = self.volumes.snapshot();
        let actions = decide(&self.config, volumes.iter(), &listed);
        let root = self.config.root.to_string_lossy().into_owned();
        if actions.list != listed || annotation(ROOT) != Some(root) {
            self.write_list(&actions.list).await?;
        }
        let (mut list, mut outcome) = (actions.list, Ok(()));
        for (name, directory) in actions.make {
            let made = blocking(move || make(&directory)).await;
            outcome = outcome.and(made.map_err(|error| LocalPathError::Make(name, error)));
        }
        for (name, directory) in actions.remove {
            match blocking(move || remove(&directory, &MountTable::read()?)).await {
                Ok(()) => drop(list.remove(&name)),
                Err(error) => {
                    self.report(&volumes, &name, &error);
                    outcome = outcome.and(Err(LocalPathError::Remove(name, error)));
                }
            }
        }
        for name in actions.leave {
            let directory = self.config.root.join(&name);
            if plain(&name) {
                blocking(move || remove_empty(&directory)).await.unwrap_or_else(
                    |error| tracing::warn!(%error, name, "the directory of a deleted volume could not be removed"),
                );
            }
            list.remove(&name);
        }
        if list != listed {
            self.write_list(&list).await?;
        }
        outcome
    }

    fn report(
        &self,
        volumes: &kaji_runtime::ObjectSnapshot<PersistentVolume>,
        name: &str,
        error: &io::Error,
    ) {
        let Some(volume) = volumes.get("", name) else { return };
        let about = volume.metadata.reference("v1", PersistentVolume::KIND);
        self.events.record(EventRecord::warning(about, "VolumeFailedDelete", error.to_string()));
    }

    async fn write_list(&self, names: &BTreeSet<String>) -> Result<(), kaji_runtime::Error> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let list = if names.is_empty() { Value::Null } else { names.join(",").into() };
        let root = self.config.root.to_string_lossy();
        let patch = json!({"metadata": {"annotations": {ROOT: root, VOLUMES: list}}});
        let target = Target::of::<Node>("", &self.config.node);
        self.client.patch(&target, PatchKind::Merge.content_type(), "", &patch).await.map(drop)
    }
}

/// A name of the Node's annotation, which administrators may have written.
fn plain(name: &str) -> bool {
    name != "." && name != ".." && !name.contains('/')
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Makes a directory that every user may write to. One that is there stays as its pods left it.
fn make(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        // Whatever the process's umask is.
        Ok(()) => fs::set_permissions(directory, fs::Permissions::from_mode(MODE)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(directory)?;
            if found.is_dir() { Ok(()) } else { Err(io::Error::other("it is there, and is no directory")) }
        }
        Err(error) => Err(error),
    }
}

/// Removes a directory with all that is in it; links are removed, not followed.
fn remove(directory: &Path, mounts: &MountTable) -> io::Result<()> {
    if let Some(mount) = mounts.points_below(directory).first() {
        return Err(io::Error::other(format!("something is mounted on {}", mount.display())));
    }
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn remove_empty(directory: &Path) -> io::Result<()> {
    match fs::remove_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn volume(name: &str, path: &str, phase: &str, policy: &str) -> Arc<PersistentVolume> {
        let volume = json!({
            "metadata": {"name": name, "labels": {local_path::NODE: "n1"},
                "annotations": {"pv.kubernetes.io/provisioned-by": local_path::PROVISIONER}},
            "spec": {"local": {"path": path}, "persistentVolumeReclaimPolicy": policy},
            "status": {"phase": phase},
        });
        Arc::new(serde_json::from_value(volume).unwrap())
    }

    fn actions(node: &str, volumes: &[Arc<PersistentVolume>], listed: &[&str]) -> String {
        let config = LocalPathConfig { node: node.into(), root: "/v".into() };
        let listed = listed.iter().map(|name| (*name).to_owned()).collect();
        let Actions { list, make, remove, leave } = decide(&config, volumes.iter(), &listed);
        format!("list {list:?} make {:?} remove {:?} leave {leave:?}", make.keys(), remove.keys())
    }

    #[test]
    fn decides_by_volumes_and_by_what_was_listed() {
        let volumes = [
            volume("new", "/v/new", "Pending", "Delete"),
            volume("old", "/v/old", "Bound", "Delete"),
            volume("over", "/v/over", "Released", "Delete"),
            volume("never", "/v/never", "Released", "Delete"),
            volume("kept", "/v/kept", "Released", "Retain"),
            volume("false", "/v/old", "Released", "Delete"),
            volume("..", "/v/..", "Released", "Delete"),
        ];
        expect_test::expect![[r#"list {"gone", "kept", "new", "old", "over"} make ["kept", "new", "old"] remove ["over"] leave {"gone"}"#]]
            .assert_eq(&actions("n1", &volumes, &["old", "over", "gone", "kept"]));
        assert_eq!(actions("n2", &volumes, &[]), "list {} make [] remove [] leave {}");
    }

    #[test]
    fn removes_directories_and_follows_no_links() {
        let root = tempfile::tempdir().unwrap();
        let outside = root.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "data").unwrap();
        let (directory, mounts) = (root.path().join("pvc-1"), MountTable::default());
        make(&directory).unwrap();
        make(&directory).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o7777, MODE);
        fs::create_dir(directory.join("sub")).unwrap();
        symlink(&outside, directory.join("sub/link")).unwrap();
        assert!(remove_empty(&directory).is_err());
        remove(&directory, &mounts).unwrap();
        assert!(!directory.exists() && outside.join("precious").exists());
        remove(&directory, &mounts).unwrap();
        // The directory itself was exchanged for a link.
        symlink(&outside, &directory).unwrap();
        assert!(make(&directory).is_err());
        let _ = remove(&directory, &mounts);
        assert!(outside.join("precious").exists());
    }

    #[test]
    fn keeps_directories_with_mounts_in_them() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("pvc 1");
        make(&directory).unwrap();
        let path = directory.to_str().unwrap().replace(' ', "\\040");
        let mounts = MountTable::parse(&format!("36 35 98:0 / {path}/sub rw - ext3 /dev/root rw\n"));
        assert!(remove(&directory, &mounts).unwrap_err().to_string().contains("mounted"));
        assert!(directory.exists());
        let mounts = MountTable::parse(&format!("36 35 98:0 / {path}2 rw - ext3 /dev/root rw\n"));
        remove(&directory, &mounts).unwrap();
    }
}
