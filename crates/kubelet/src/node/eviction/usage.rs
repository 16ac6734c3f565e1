//! What pods use of a node's memory, disks and process ids.

use std::collections::BTreeMap;

/// Of a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

impl std::ops::Add for DiskUsage {
    type Output = DiskUsage;

    fn add(self, other: DiskUsage) -> DiskUsage {
        DiskUsage {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

impl std::iter::Sum for DiskUsage {
    fn sum<I: Iterator<Item = DiskUsage>>(all: I) -> DiskUsage {
        all.fold(DiskUsage::default(), std::ops::Add::add)
    }
}

/// What a container uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// As in the pod's spec.
    pub name: String,
    /// Bytes of its working set.
    pub memory: u64,
    /// Its writable layer.
    pub layer: DiskUsage,
    /// Its logs.
    pub logs: DiskUsage,
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
    pub volumes: BTreeMap<String, DiskUsage>,
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
    pub fn disk(&self, disks: Disks) -> DiskUsage {
        let layers = || self.containers.iter().map(|c| c.layer).sum();
        let node = || self.containers.iter().map(|c| c.logs).chain(self.volumes.values().copied()).sum();
        match disks {
            Disks::All => std::ops::Add::<DiskUsage>::add(layers(), node()),
            Disks::Node => node(),
            Disks::Image => layers(),
        }
    }
}
