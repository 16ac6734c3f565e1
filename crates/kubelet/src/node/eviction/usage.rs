//! What pods use of a node's memory, disks and process ids.

use super::thresholds::Signal;
use kaji_files::DirectoryUsage;
use std::collections::BTreeMap;

/// What a container uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// As in the pod's spec.
    pub name: String,
    /// Bytes of its working set.
    pub memory: u64,
    /// Its writable layer.
    pub layer: DirectoryUsage,
    /// Its logs.
    pub logs: DirectoryUsage,
}

/// What a pod uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// Bytes of its working set.
    pub memory: u64,
    /// Processes.
    pub processes: u64,
    /// Those that run.
    pub containers: Vec<ContainerUsage>,
    /// Its volumes on the node's disk, by name.
    pub volumes: BTreeMap<String, DirectoryUsage>,
}

/// Which file systems a node's files are on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DiskLayout {
    /// One has all.
    #[default]
    Shared,
    /// Images and writable layers have one of their own.
    ImagesAndLayers,
    /// Images have one of their own, writable layers are with volumes and logs.
    Images,
}

impl DiskLayout {
    /// What counts when there is too little of a signal.
    #[must_use]
    pub fn disks(self, signal: Signal) -> Disks {
        let image = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
        let container = matches!(signal, Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree);
        match self {
            DiskLayout::Shared => Disks::All,
            DiskLayout::ImagesAndLayers if image || container => Disks::Layers,
            DiskLayout::ImagesAndLayers => Disks::Node,
            DiskLayout::Images if image => Disks::None,
            DiskLayout::Images => Disks::All,
        }
    }

    /// Whether writable layers are on the disk of volumes and logs.
    #[must_use]
    pub fn layers_with_volumes(self) -> bool {
        self != DiskLayout::ImagesAndLayers
    }
}

/// Which disk's usage counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disks {
    /// Logs, volumes and writable layers are on it.
    All,
    /// Logs and volumes.
    Node,
    /// Writable layers.
    Layers,
    /// Nothing of pods.
    None,
}

impl PodUsage {
    /// What the pod uses of these disks.
    #[must_use]
    pub fn disk(&self, disks: Disks) -> DirectoryUsage {
        let layers = || self.containers.iter().map(|c| c.layer).sum();
        let node = || self.containers.iter().map(|c| c.logs).chain(self.volumes.values().copied()).sum();
        match disks {
            Disks::All => std::ops::Add::<DirectoryUsage>::add(layers(), node()),
            Disks::Node => node(),
            Disks::Layers => layers(),
            Disks::None => DirectoryUsage::default(),
        }
    }
}
