//! Where a machine's processors are: cores, sockets and NUMA nodes.
//!
//! Invariant: a core is named by its first processor, for the kernel's own numbers repeat in each socket.

use super::cpu_set::CpuSet;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// The position of a processor: upstream's `CPUInfo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuInfo {
    /// The first processor of its core.
    pub core: u32,
    /// The socket.
    pub socket: u32,
    /// The NUMA node.
    pub numa: u32,
    /// The cache of the last level that it shares with a part of its NUMA node; its socket where there is none such.
    pub cache: u32,
}

/// The processors of a machine that are online.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology(pub BTreeMap<u32, CpuInfo>);

impl Topology {
    /// Reads it below `/sys/devices/system`.
    ///
    /// # Errors
    /// Files that are absent or have no numbers.
    pub fn read(system: &Path) -> io::Result<Topology> {
        let text = |path: &str| std::fs::read_to_string(system.join(path));
        let list = |path: &str| CpuSet::parse(&text(path)?).map_err(io::Error::other);
        let mut nodes: BTreeMap<u32, u32> = BTreeMap::new();
        if let Ok(online) = list("node/online") {
            for node in online.0 {
                nodes.extend(list(&format!("node/node{node}/cpulist"))?.0.into_iter().map(|cpu| (cpu, node)));
            }
        }
        let mut found = BTreeMap::new();
        for cpu in list("cpu/online")?.0 {
            let socket = text(&format!("cpu/cpu{cpu}/topology/physical_package_id"))?;
            let threads = list(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"))?;
            // The kernel says -1 where it does not know.
            let socket = socket.trim().parse().unwrap_or(0);
            let numa = nodes.get(&cpu).copied().unwrap_or(0);
            let of_node = nodes.values().filter(|node| **node == numa).count();
            let cache = cache(&system.join(format!("cpu/cpu{cpu}/cache")), of_node).unwrap_or(socket);
            let core = threads.0.first().copied().unwrap_or(cpu);
            found.insert(cpu, CpuInfo { core, socket, numa, cache });
        }
        Ok(Topology(found))
    }

    /// All processors.
    #[must_use]
    pub fn all(&self) -> CpuSet {
        CpuSet(self.0.keys().copied().collect())
    }

    /// Those processors that are accepted.
    #[must_use]
    pub fn at(&self, accept: impl Fn(&CpuInfo) -> bool) -> CpuSet {
        CpuSet(self.0.iter().filter(|(_, info)| accept(info)).map(|(cpu, _)| *cpu).collect())
    }

    /// Those processors of a set that are accepted.
    #[must_use]
    pub fn of(&self, set: &CpuSet, accept: impl Fn(&CpuInfo) -> bool) -> CpuSet {
        CpuSet(set.0.iter().copied().filter(|cpu| self.0.get(cpu).is_some_and(&accept)).collect())
    }

    /// An attribute of the processors of a set: its cores, sockets, NUMA nodes.
    #[must_use]
    pub fn groups(&self, set: &CpuSet, group: impl Fn(&CpuInfo) -> u32) -> BTreeSet<u32> {
        set.0.iter().filter_map(|cpu| self.0.get(cpu)).map(group).collect()
    }

    /// The NUMA nodes with processors.
    #[must_use]
    pub fn numa_nodes(&self) -> BTreeSet<u32> {
        self.0.values().map(|info| info.numa).collect()
    }

    /// The sockets.
    #[must_use]
    pub fn sockets(&self) -> BTreeSet<u32> {
        self.0.values().map(|info| info.socket).collect()
    }

    /// Threads of a core.
    #[must_use]
    pub fn threads_per_core(&self) -> usize {
        let cores: BTreeSet<u32> = self.0.values().map(|info| info.core).collect();
        if cores.is_empty() { 1 } else { self.0.len() / cores.len() }
    }
}

/// Levels of caches that a core has for itself.
const OWN_LEVELS: u32 = 2;
/// Caches of a processor, at most.
const MOST_CACHES: u32 = 16;

/// The number of the cache beyond a core's own that some processors of a NUMA node share; `None` when all of them do, or where the kernel
/// does not tell, as in virtual machines.
fn cache(directory: &Path, of_node: usize) -> Option<u32> {
    (0..MOST_CACHES).find_map(|index| {
        let text = |file: &str| {
            let text = std::fs::read_to_string(directory.join(format!("index{index}/{file}"))).ok()?;
            Some(text.trim().to_owned())
        };
        let level: u32 = text("level")?.parse().ok()?;
        let shared = CpuSet::parse(&text("shared_cpu_list")?).ok()?;
        let id = text("id")?.parse().ok()?;
        (level > OWN_LEVELS && shared.len() != of_node).then_some(id)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Threads of a core follow half a machine apart, as Linux numbers them.
    pub(crate) fn machine(
        sockets: u32,
        nodes_per_socket: u32,
        cores_per_node: u32,
        threads: u32,
    ) -> Topology {
        let cores = sockets * nodes_per_socket * cores_per_node;
        let info = |core: u32| CpuInfo {
            core,
            socket: core / (nodes_per_socket * cores_per_node),
            numa: core / cores_per_node,
            cache: core / (nodes_per_socket * cores_per_node),
        };
        Topology((0..threads).flat_map(|t| (0..cores).map(move |c| (t * cores + c, info(c)))).collect())
    }

    #[test]
    fn a_machine_of_two_sockets_with_threads() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("cpu/online", "0-3\n");
        write("node/online", "0-1\n");
        write("node/node0/cpulist", "0,2\n");
        write("node/node1/cpulist", "1,3\n");
        for (cpu, socket, threads) in [(0, "0", "0,2"), (1, "1", "1,3"), (2, "0", "0,2"), (3, "1", "1,3")] {
            write(&format!("cpu/cpu{cpu}/topology/physical_package_id"), socket);
            write(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"), threads);
        }
        let read = Topology::read(dir.path()).unwrap();
        assert_eq!(read, machine(2, 1, 1, 2));
        assert_eq!((read.threads_per_core(), read.numa_nodes().len(), read.sockets().len()), (2, 2, 2));
        assert!(Topology::read(&dir.path().join("absent")).is_err());
        // One of each NUMA node's processors has a cache with another number; those that a whole node shares have none.
        for (cpu, shared) in [(0, "0"), (1, "1,3"), (2, "2")] {
            write(&format!("cpu/cpu{cpu}/cache/index0/level"), "3\n");
            write(&format!("cpu/cpu{cpu}/cache/index0/shared_cpu_list"), shared);
            write(&format!("cpu/cpu{cpu}/cache/index0/id"), &format!("{}\n", cpu + 7));
        }
        let caches: Vec<u32> =
            Topology::read(dir.path()).unwrap().0.values().map(|info| info.cache).collect();
        assert_eq!(caches, [7, 1, 9, 1]);
    }
}
