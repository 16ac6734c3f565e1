//! What a node, its pods and their containers use: read once for all the pages that show it.
//!
//! Invariants:
//! - Requests that come within [`FRESH`] share one reading, so that the number of clients does not matter; so do those that come
//!   while it is made.
//! - Volumes are counted once in [`VOLUMES_FRESH`]: a tree may be large.

use super::lookup::NodePods;
use crate::node::usage::{FileSystem, NodeUsage, NodeUsageReader, device, directory_usage};
use crate::pods::context::{NodeContext, PodRef};
use crate::pods::core::Pod;
use crate::pods::model;
use crate::volumes::claims_of;
use jiff::{SignedDuration, Timestamp};
use kaji_containers::{
    FilesystemUsage, PodSandboxFilter, PodSandboxInfo, PodSandboxState, PodSandboxStats, RuntimeError,
};
use kaji_files::{DirectoryUsage, MountTable};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Mutex;

/// How long a reading is shown.
const FRESH: SignedDuration = SignedDuration::from_secs(1);
/// How long the sizes of volumes are shown. Upstream's `volumeStatsAggPeriod`.
const VOLUMES_FRESH: SignedDuration = SignedDuration::from_secs(60);

/// A volume of a pod, in a directory of the kubelet's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolumeUsage {
    /// As in the pod's spec.
    pub name: String,
    /// What is in it.
    pub used: DirectoryUsage,
    /// The file system that it is on.
    pub disk: FileSystem,
    /// It counts as ephemeral storage of the pod.
    pub ephemeral: bool,
    /// The name of its claim.
    pub claim: Option<String>,
}

/// Paths of volumes by name, and the claims by the names of the volumes.
type Claimed = (Vec<(String, PathBuf)>, BTreeMap<String, String>);

/// What a pod uses.
#[derive(Debug, Clone)]
pub(super) struct PodUsage {
    /// Its name.
    pub pod: PodRef,
    /// Nanoseconds since the epoch.
    pub created_at_nanos: i64,
    /// What the runtime shows.
    pub stats: PodSandboxStats,
    /// The logs of containers, by the containers' names.
    pub logs: BTreeMap<String, DirectoryUsage>,
    /// Its volumes, by name.
    pub volumes: Arc<Vec<VolumeUsage>>,
}

/// A reading.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    /// When it was made.
    pub at: Timestamp,
    /// The node.
    pub node: NodeUsage,
    /// The file system of pods' volumes and logs.
    pub disk: FileSystem,
    /// Images, and the file system that they are on.
    pub images: Option<(FilesystemUsage, FileSystem)>,
    /// Containers' writable layers, and the file system that they are on.
    pub layers: Option<(FilesystemUsage, FileSystem)>,
    /// The devices of these three, as the table of mounts names them; empty where it does not.
    pub devices: [String; 3],
    /// Those that run, by namespace and name.
    pub pods: Vec<PodUsage>,
}

#[derive(Default)]
struct Recent {
    reading: Option<Arc<Reading>>,
    /// By the pod's uid.
    volumes: HashMap<String, (Timestamp, Arc<Vec<VolumeUsage>>)>,
}

/// Reads what a node uses.
pub(super) struct UsageReader {
    cx: Arc<NodeContext>,
    pods: Arc<dyn NodePods>,
    node: NodeUsageReader,
    recent: Mutex<Recent>,
}

impl UsageReader {
    pub(super) fn new(cx: Arc<NodeContext>, pods: Arc<dyn NodePods>) -> UsageReader {
        let node = NodeUsageReader::new(cx.clock.clone());
        // The first reading is what the first rate is taken from.
        let _first = node.read();
        UsageReader { cx, pods, node, recent: Mutex::default() }
    }

    /// A reading of this moment, or of shortly before.
    ///
    /// # Errors
    /// When the runtime cannot tell.
    pub(super) async fn read(&self) -> Result<Arc<Reading>, RuntimeError> {
        let mut recent = self.recent.lock().await;
        let now = self.cx.clock.now();
        if let Some(reading) = recent.reading.as_ref().filter(|r| now.duration_since(r.at).abs() < FRESH) {
            return Ok(reading.clone());
        }
        let reading = Arc::new(self.measure(now, &mut recent.volumes).await?);
        recent.reading = Some(reading.clone());
        Ok(reading)
    }

    /// The paths of the volumes of claims and drivers, and the claims, of each pod.
    fn claimed(&self) -> HashMap<String, Claimed> {
        let of = |pod: &Arc<Pod>| {
            let uid = model::uid(pod);
            (uid.to_owned(), (self.cx.volumes.set_up_paths(uid), claims_of(pod)))
        };
        self.pods.all().iter().map(of).collect()
    }

    async fn measure(
        &self,
        now: Timestamp,
        known: &mut HashMap<String, (Timestamp, Arc<Vec<VolumeUsage>>)>,
    ) -> Result<Reading, RuntimeError> {
        let runtime = &self.cx.runtime;
        let all = runtime.list_pod_sandbox_stats(PodSandboxFilter::default()).await?;
        let sandboxes = runtime.list_pod_sandboxes(PodSandboxFilter::default()).await?;
        let ready = sandboxes.into_iter().filter(|s| s.state == PodSandboxState::Ready);
        let mut ready: HashMap<String, PodSandboxInfo> = ready.map(|s| (s.id.clone(), s)).collect();
        let of = |stats: PodSandboxStats| Some((ready.remove(&stats.id)?, stats));
        let found: Vec<_> = all.into_iter().filter_map(of).collect();
        let filesystems = self.cx.images.filesystems().await.unwrap_or_else(|error| {
            tracing::debug!(%error, "the disk usage of images cannot be read");
            kaji_containers::ImageFilesystems::default()
        });
        known.retain(|uid, (at, _)| {
            now.duration_since(*at).abs() < VOLUMES_FRESH && found.iter().any(|(s, _)| s.metadata.uid == *uid)
        });
        let claimed = self.claimed();
        let (node, volumes) = (self.node.read(), known.clone());
        let (config, root) = (self.cx.config.clone(), self.cx.config.root_dir.clone());
        let files = tokio::task::spawn_blocking(move || {
            let measured: Vec<PodUsage> = found
                .into_iter()
                .map(|(sandbox, stats)| {
                    let meta = sandbox.metadata;
                    let pod = PodRef { namespace: meta.namespace, name: meta.name, uid: meta.uid };
                    let kept = volumes.get(&pod.uid).map(|(_, kept)| kept.clone());
                    PodUsage {
                        logs: subdirectories(&config.log_dir(&pod)),
                        volumes: kept.unwrap_or_else(|| {
                            let (set_up, claims) = claimed.get(&pod.uid).cloned().unwrap_or_default();
                            Arc::new(volumes_of(&config.pod_dir(&pod.uid), &set_up, &claims))
                        }),
                        created_at_nanos: sandbox.created_at_nanos,
                        stats,
                        pod,
                    }
                })
                .collect();
            let on_disk = |all: Vec<FilesystemUsage>| {
                let first = all.into_iter().next()?;
                let disk = FileSystem::of(Path::new(&first.mountpoint))?;
                Some((first, disk))
            };
            let existing = root.ancestors().find_map(FileSystem::of).unwrap_or_default();
            let (images, layers) = (on_disk(filesystems.images), on_disk(filesystems.containers));
            let mounts = MountTable::read().unwrap_or_default();
            let of = |found: &Option<(FilesystemUsage, FileSystem)>| {
                found
                    .as_ref()
                    .map(|(usage, _)| device(&mounts, Path::new(&usage.mountpoint)))
                    .unwrap_or_default()
            };
            let devices = [device(&mounts, &root), of(&images), of(&layers)];
            (measured, existing, images, layers, devices)
        });
        let (mut pods, disk, images, layers, devices) =
            files.await.map_err(|error| RuntimeError::Internal(error.to_string()))?;
        for pod in &pods {
            known.entry(pod.pod.uid.clone()).or_insert_with(|| (now, pod.volumes.clone()));
        }
        pods.sort_by(|a, b| a.pod.cmp(&b.pod));
        Ok(Reading { at: now, node, disk, images, layers, devices, pods })
    }
}

fn directories(path: &Path) -> Vec<(String, PathBuf)> {
    let all = std::fs::read_dir(path).into_iter().flatten().flatten();
    let directories = all.filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()));
    directories.map(|e| (e.file_name().to_string_lossy().into_owned(), e.path())).collect()
}

/// What the directories in a directory take.
fn subdirectories(path: &Path) -> BTreeMap<String, DirectoryUsage> {
    directories(path).into_iter().map(|(name, path)| (name, directory_usage(&path))).collect()
}

/// The volumes below a pod's directory, and those of its claims that are in other places. `set_up` are the paths of its claims and
/// drivers by name: their directories have other names.
fn volumes_of(
    pod_dir: &Path,
    set_up: &[(String, PathBuf)],
    claims: &BTreeMap<String, String>,
) -> Vec<VolumeUsage> {
    let own = pod_dir.symlink_metadata().map(|m| m.dev()).ok();
    let mut all = vec![];
    for (plugin, path) in directories(&pod_dir.join("volumes")) {
        for (name, path) in directories(&path) {
            let on_disk = path.symlink_metadata().map(|m| m.dev()).ok() == own;
            let known = set_up.iter().find(|(_, mounted)| mounted.starts_with(&path));
            let name = known.map_or(name, |(name, _)| name.clone());
            let kind = matches!(plugin.as_str(), "kubernetes.io~empty-dir" | "kubernetes.io~configmap");
            all.push(VolumeUsage {
                used: directory_usage(&path),
                disk: FileSystem::of(&path).unwrap_or_default(),
                ephemeral: kind && on_disk,
                claim: claims.get(&name).cloned(),
                name,
            });
        }
    }
    for (name, path) in set_up.iter().filter(|(_, path)| !path.starts_with(pod_dir)) {
        // As upstream: of a directory of the node the whole file system is shown.
        let (Some(claim), Some(disk)) = (claims.get(name), FileSystem::of(path)) else { continue };
        let used = DirectoryUsage { bytes: disk.used, inodes: disk.inodes.saturating_sub(disk.inodes_free) };
        all.push(VolumeUsage {
            name: name.clone(),
            used,
            disk,
            ephemeral: false,
            claim: Some(claim.clone()),
        });
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}
