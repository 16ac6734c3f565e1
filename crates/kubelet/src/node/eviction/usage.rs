//! What pods use of a node's memory, disks and process ids.

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

/// Which disk's usage counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disks {
    /// Logs, volumes and writable layers: one file system has all.
    All,
    /// Logs and volumes: images have a file system of their own.
    Node,
    /// Writable layers, beside images.
    Image,
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
            Disks::Image => layers(),
        }
    }
}
