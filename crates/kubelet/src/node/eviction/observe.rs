//! What a node has left, from the kernel; and what its pods use, from the runtime and their directories.

use super::assess::{Observation, Observations};
use super::thresholds::Signal;
use super::usage::{ContainerUsage, DiskLayout, PodUsage};
use crate::node::machine::{MOST_PROCESSES, most_processes};
use crate::node::usage::{FileSystem, counter, running_processes, without_huge_pages};
use crate::pods::context::NodeContext;
use crate::pods::core::Pod;
use crate::pods::start::pod_ref;
use crate::pods::{labels, model};
use kaji_containers::{PodSandboxFilter, PodSandboxStats, RuntimeError};
use kaji_files::DirectoryUsage;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files of a tree that are counted: a pod that makes more is past any limit of files.
const MOST_FILES: u64 = 4_000_000;

/// Where a node's files are.
#[derive(Debug, Clone)]
pub struct NodeDisks {
    /// A directory on the file system of volumes and logs.
    pub node: PathBuf,
    /// A directory on the file system of images.
    pub images: PathBuf,
    /// A directory on that of writable layers.
    pub layers: PathBuf,
}

impl NodeDisks {
    /// Which of them have a file system of their own. Layers that are neither with images nor with volumes count as if they were with
    /// images, as upstream.
    #[must_use]
    pub fn layout(&self) -> DiskLayout {
        let device = |path: &Path| std::fs::metadata(path).map(|m| m.dev()).ok();
        let (node, images, layers) = (device(&self.node), device(&self.images), device(&self.layers));
        match (node, images) {
            (Some(node), Some(images)) if node != images && layers == Some(node) => DiskLayout::Images,
            (Some(node), Some(images)) if node != images => DiskLayout::ImagesAndLayers,
            _ => DiskLayout::Shared,
        }
    }
}

/// Reads what a node has left.
pub trait Sensors: Send + Sync + 'static {
    /// What can be observed now.
    fn observe(&self) -> Observations;
}

/// The kernel's figures.
pub struct KernelSensors {
    /// The node.
    pub cx: Arc<NodeContext>,
    /// Its disks.
    pub disks: NodeDisks,
}

impl Sensors for KernelSensors {
    fn observe(&self) -> Observations {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let mut found = Observations::new();
        found.extend(memory(&read("/proc/meminfo")).map(|o| (Signal::MemoryAvailable, o)));
        let used = self.cx.cgroups.as_ref().and_then(|c| c.pods_memory());
        // What pods may use as a whole, where that is enforced.
        let limit =
            self.cx.cgroups.as_ref().and_then(|c| c.limits("/kubepods")).map(|l| l.memory_limit_bytes);
        let capacity = limit
            .filter(|limit| *limit > 0)
            .map_or(self.cx.config.memory, |limit| limit.min(self.cx.config.memory));
        found.extend(used.filter(|_| capacity > 0).map(|used| {
            let available = capacity.saturating_sub(i64::try_from(used).unwrap_or(i64::MAX));
            (Signal::AllocatableMemoryAvailable, Observation { available, capacity })
        }));
        disk(&self.disks.node, (Signal::NodeFsAvailable, Signal::NodeFsInodesFree), &mut found);
        disk(&self.disks.images, (Signal::ImageFsAvailable, Signal::ImageFsInodesFree), &mut found);
        disk(&self.disks.layers, (Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree), &mut found);
        let most = MOST_PROCESSES.map(read);
        found.extend(processes(&read("/proc/loadavg"), &most).map(|o| (Signal::PidAvailable, o)));
        found
    }
}

/// What the kernel can hand out at once: what is free, and files in memory that were not used for long. Thresholds in percent are of the
/// memory that is not kept for huge pages.
fn memory(meminfo: &str) -> Option<Observation> {
    let of = |key: &str| i64::try_from(counter(meminfo, key)?).ok()?.checked_mul(1024);
    let (capacity, free) = (i64::try_from(without_huge_pages(meminfo)?).ok()?, of("MemFree")?);
    Some(Observation { available: free + of("Inactive(file)").unwrap_or(0), capacity })
}

fn processes(loadavg: &str, most: &[String]) -> Option<Observation> {
    let running = running_processes(loadavg)?;
    let capacity = most_processes(most)?;
    Some(Observation { available: capacity - running, capacity })
}

fn disk(directory: &Path, (bytes, inodes): (Signal, Signal), found: &mut Observations) {
    // The directory is made by the first pod; thresholds are set before.
    let Some(disk) = directory.ancestors().find_map(FileSystem::of) else { return };
    let units = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let of = |available: u64, capacity: u64| Observation {
        available: units(available),
        capacity: units(capacity),
    };
    if disk.capacity > 0 {
        found.insert(bytes, of(disk.available, disk.capacity));
    }
    // Some file systems make inodes as they need them.
    if disk.inodes > 0 {
        found.insert(inodes, of(disk.inodes_free, disk.inodes));
    }
}

/// What pods use. A pod of which the runtime shows nothing is absent.
///
/// # Errors
/// When the runtime cannot be asked.
pub async fn pods_usage(
    cx: &NodeContext,
    pods: &[Arc<Pod>],
) -> Result<HashMap<String, PodUsage>, RuntimeError> {
    let mut all = HashMap::new();
    // One at a time: each is a walk through the pod's files.
    for pod in pods {
        let uid = model::uid(pod);
        let of_pod = BTreeMap::from([(labels::POD_UID.to_owned(), uid.to_owned())]);
        let filter = PodSandboxFilter { labels: of_pod, ..PodSandboxFilter::default() };
        let Some(stats) = cx.runtime.list_pod_sandbox_stats(filter).await?.into_iter().next() else {
            continue;
        };
        let (logs, volumes) = (cx.config.log_dir(&pod_ref(pod)), cx.config.pod_dir(uid).join("volumes"));
        let pod = pod.clone();
        let measured = tokio::task::spawn_blocking(move || usage(&pod, &stats, &logs, &volumes)).await;
        all.insert(uid.to_owned(), measured.map_err(|error| RuntimeError::Internal(error.to_string()))?);
    }
    Ok(all)
}

fn usage(pod: &Pod, stats: &PodSandboxStats, logs: &Path, volumes: &Path) -> PodUsage {
    let container = |stats: &kaji_containers::ContainerStats| {
        let name = stats.labels.get(labels::CONTAINER_NAME).unwrap_or(&stats.name);
        ContainerUsage {
            name: name.clone(),
            memory: stats.memory.working_set,
            layer: DirectoryUsage { bytes: stats.writable_layer_bytes, inodes: stats.writable_layer_inodes },
            logs: disk_usage(&logs.join(name)),
        }
    };
    // What is in memory takes no disk: secrets, tokens, volumes of medium Memory.
    let on_disk = model::spec(pod).volumes.iter().flatten().filter_map(|v| {
        let plugin = match (&v.empty_dir, &v.config_map, &v.downward_api) {
            (Some(e), ..) if e.medium.as_deref().unwrap_or_default().is_empty() => "empty-dir",
            (None, Some(_), _) => "configmap",
            (None, None, Some(_)) => "downward-api",
            _ => return None,
        };
        Some((v.name.clone(), disk_usage(&volumes.join(format!("kubernetes.io~{plugin}")).join(&v.name))))
    });
    PodUsage {
        memory: stats.memory.working_set,
        processes: stats.processes,
        containers: stats.containers.iter().map(container).collect(),
        volumes: on_disk.collect(),
    }
}

/// What is in a directory, on whatever file systems.
#[must_use]
pub fn disk_usage(directory: &Path) -> DirectoryUsage {
    DirectoryUsage::below(directory, false, MOST_FILES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_observed_before_their_directory_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let mut found = Observations::new();
        disk(&dir.path().join("a/b"), (Signal::NodeFsAvailable, Signal::NodeFsInodesFree), &mut found);
        assert!(found[&Signal::NodeFsAvailable].capacity > 0);
    }

    #[test]
    fn what_is_on_one_disk_is_no_layout_of_several() {
        let dir = tempfile::tempdir().unwrap();
        let layout = |images: &Path, layers: &Path| {
            let (node, images, layers) = (dir.path().to_owned(), images.to_owned(), layers.to_owned());
            NodeDisks { node, images, layers }.layout()
        };
        // A file system that every Linux has, and that is not the disk.
        let other = Path::new("/proc");
        assert_eq!(layout(dir.path(), dir.path()), DiskLayout::Shared);
        assert_eq!(layout(other, other), DiskLayout::ImagesAndLayers);
        assert_eq!(layout(other, dir.path()), DiskLayout::Images);
        assert_eq!(layout(Path::new("/absent"), other), DiskLayout::Shared);
    }

    #[test]
    fn figures_of_the_kernel_are_read() {
        let meminfo = "MemTotal:        1000 kB\nMemFree:          300 kB\nInactive(file):   200 kB\n";
        assert_eq!(memory(meminfo), Some(Observation { available: 500 << 10, capacity: 1000 << 10 }));
        let with_pages = memory(&format!("{meminfo}Hugetlb:         400 kB\n"));
        assert_eq!(with_pages, Some(Observation { available: 500 << 10, capacity: 600 << 10 }));
        assert_eq!(memory("MemTotal: 1 kB"), None);
        let most = ["32768\n".to_owned(), "1000\n".to_owned()];
        let found = processes("0.1 0.2 0.3 2/345 6789\n", &most);
        assert_eq!(found, Some(Observation { available: 655, capacity: 1000 }));
        assert_eq!(processes("", &most), None);
    }

    #[test]
    fn a_tree_s_files_count_once_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("file"), vec![1; 100_000]).unwrap();
        std::fs::hard_link(deep.join("file"), dir.path().join("again")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
        let used = disk_usage(dir.path());
        assert_eq!(used.inodes, 4);
        assert!((100_000..200_000).contains(&used.bytes), "{used:?}");
        assert_eq!(disk_usage(&dir.path().join("absent")), DirectoryUsage::default());
    }
}
