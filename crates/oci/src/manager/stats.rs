//! What containers and pods use.

use super::Inner;
use super::namespaces::{enter_network, on_thread};
use crate::cgroup::{self, CgroupFiles, CgroupUsage};
use crate::records::now_nanos;
use crate::{process_usage, spec};
use kaji_containers::{
    ContainerState, ContainerStats, CpuUsage, InterfaceUsage, MemoryUsage, NetworkUsage, PodSandboxFilter,
    PodSandboxState, PodSandboxStats, RuntimeError,
};
use kaji_files::DirectoryUsage;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How long a reading of a writable layer counts at the least and at the most, in nanoseconds. Upstream reads layers once a minute.
const LAYER_AGES: (i64, i64) = (10_000_000_000, 60_000_000_000);
/// The part of the time that may be spent with reading a layer.
const LAYER_SHARE: i64 = 100;

/// What a writable layer held when its files were counted.
#[derive(Debug, Clone, Copy)]
pub struct LayerReading {
    usage: DirectoryUsage,
    /// Nanoseconds since the epoch, by which it is to be counted anew.
    until_nanos: i64,
}

impl LayerReading {
    /// The one that is known, or a new one when that is old: the older, the longer counting took.
    fn newest(known: Option<LayerReading>, layer: &Path, now_nanos: impl Fn() -> i64) -> LayerReading {
        let began = now_nanos();
        if let Some(known) = known.filter(|known| began < known.until_nanos) {
            return known;
        }
        let usage = DirectoryUsage::below(layer, false, u64::MAX);
        let ended = now_nanos();
        let age = (ended - began).saturating_mul(LAYER_SHARE).clamp(LAYER_AGES.0, LAYER_AGES.1);
        LayerReading { usage, until_nanos: ended + age }
    }
}

impl Inner {
    /// What a container uses.
    pub(super) async fn container_stats(self: &Arc<Inner>, id: &str) -> Result<ContainerStats, RuntimeError> {
        let (record, run) =
            self.with_container(id, |container| (container.record.clone(), container.run.clone()))?;
        let (started, pid) = run.map_or((0, 0), |run| (run.started_at_nanos, run.pid));
        let sandbox = self.sandbox(&record.sandbox).ok_or_else(|| super::no_sandbox(&record.sandbox))?;
        let path = spec::container_cgroup(&sandbox.config, id);
        let upper = self.layout.bundle(id).join("upper");
        let known = self.state().layers.get(id).copied();
        let measured = tokio::task::spawn_blocking(move || {
            let reading = LayerReading::newest(known, &upper, now_nanos);
            if !cgroup::available() {
                let used = process_usage::of(pid);
                let used = CgroupUsage { cpu: used.cpu, memory: used.memory, ..CgroupUsage::default() };
                return (used, 0, reading);
            }
            let kills = cgroup::oom_kills(&cgroup::directories(&path));
            (CgroupFiles::of(&path).read(), kills, reading)
        });
        let (used, oom_events, reading) =
            measured.await.map_err(|error| RuntimeError::Internal(error.to_string()))?;
        let layer = reading.usage;
        if self.with_container(id, |_| ()).is_ok() {
            self.state().layers.insert(id.to_owned(), reading);
        }
        Ok(ContainerStats {
            id: id.to_owned(),
            name: record.config.metadata.name.clone(),
            attempt: record.config.metadata.attempt,
            labels: record.config.labels,
            started_at_nanos: started,
            cpu: self.with_rate(id, used.cpu),
            memory: used.memory,
            swap: used.swap,
            disk_io: used.disk_io,
            writable_layer_bytes: layer.bytes,
            writable_layer_inodes: layer.inodes,
            oom_events,
            ..Default::default()
        })
    }

    /// What ready sandboxes and their running containers use.
    pub(super) async fn sandbox_stats(
        self: &Arc<Inner>,
        filter: &PodSandboxFilter,
    ) -> Result<Vec<PodSandboxStats>, RuntimeError> {
        let records: Vec<_> = {
            let state = self.state();
            let ready = state.sandboxes.values().filter(|record| record.state == PodSandboxState::Ready);
            ready.filter(|record| super::selects(filter, &record.info())).cloned().collect()
        };
        let mut all = vec![];
        for record in records {
            let parent = record.config.cgroup_parent.clone();
            let running: Vec<String> = {
                let state = self.state();
                let own =
                    state.containers.values().filter(|c| c.record.sandbox == record.id && !c.record.hidden);
                own.filter(|c| c.state() == ContainerState::Running).map(|c| c.record.id.clone()).collect()
            };
            let mut containers = vec![];
            for id in running {
                match self.container_stats(&id).await {
                    Err(error) if error.is_not_found() => {}
                    stats => containers.push(stats?),
                }
            }
            let namespace = self.network_setup(&record).map(|setup| setup.namespace);
            let network = match namespace {
                Some(namespace) => Some(on_thread(move || network_usage(&namespace)).await?),
                None => None,
            };
            let (used, processes) = if cgroup::available() {
                (CgroupFiles::of(&parent).read(), processes_below(&cgroup::directories(&parent)))
            } else {
                let (cpu, memory) = sum(&containers);
                let used = CgroupUsage { cpu, memory, ..CgroupUsage::default() };
                (used, self.processes_of(&containers).await?)
            };
            all.push(PodSandboxStats {
                id: record.id.clone(),
                pod_uid: record.config.metadata.uid.clone(),
                cpu: self.with_rate(&record.id, used.cpu),
                memory: used.memory,
                swap: used.swap,
                disk_io: used.disk_io,
                network,
                processes,
                containers,
            });
        }
        Ok(all)
    }

    /// How many processes containers without cgroups have.
    async fn processes_of(self: &Arc<Inner>, containers: &[ContainerStats]) -> Result<u64, RuntimeError> {
        let first = |container: &ContainerStats| {
            let found = self.with_container(&container.id, |known| known.run.as_ref().map(|run| run.pid));
            found.ok().flatten()
        };
        let first: Vec<i32> = containers.iter().filter_map(first).collect();
        let counted = tokio::task::spawn_blocking(move || {
            first.into_iter().map(|pid| process_usage::of(pid).processes).sum::<u64>()
        });
        counted.await.map_err(|error| RuntimeError::Internal(error.to_string()))
    }

    /// Adds the rate since the last reading.
    fn with_rate(&self, id: &str, mut now: CpuUsage) -> CpuUsage {
        let mut state = self.state();
        if let Some(before) = state.readings.get(id) {
            let (time, used) =
                (now.at_nanos - before.at_nanos, now.core_nanos.saturating_sub(before.core_nanos));
            if let Ok(time @ 1..) = u64::try_from(time) {
                let rate = u128::from(used) * 1_000_000_000 / u128::from(time);
                now.nano_cores = u64::try_from(rate).ok();
            }
        }
        if state.sandboxes.contains_key(id) || state.containers.contains_key(id) {
            state.readings.insert(id.to_owned(), now);
        }
        now
    }
}

/// What a pod uses that has no cgroup of its own.
fn sum(containers: &[ContainerStats]) -> (CpuUsage, MemoryUsage) {
    let at_nanos = now_nanos();
    let mut cpu = CpuUsage { at_nanos, ..CpuUsage::default() };
    let mut memory = MemoryUsage { at_nanos, ..MemoryUsage::default() };
    for container in containers {
        cpu.core_nanos += container.cpu.core_nanos;
        memory.working_set += container.memory.working_set;
        memory.usage += container.memory.usage;
        memory.rss += container.memory.rss;
        memory.page_faults += container.memory.page_faults;
        memory.major_page_faults += container.memory.major_page_faults;
    }
    (cpu, memory)
}

fn processes_below(directories: &[PathBuf]) -> u64 {
    fn count(directory: &Path) -> u64 {
        let own = cgroup::processes(&[directory.to_owned()]).len() as u64;
        let below = fs::read_dir(directory).into_iter().flatten().flatten();
        own + below.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| count(&e.path())).sum::<u64>()
    }
    directories.iter().find(|directory| directory.exists()).map_or(0, |directory| count(directory))
}

/// The counters of a network namespace; in a thread of its own.
fn network_usage(namespace: &Path) -> Result<NetworkUsage, RuntimeError> {
    enter_network(namespace)?;
    let table = fs::read_to_string("/proc/thread-self/net/dev")?;
    let mut interfaces: Vec<InterfaceUsage> = table.lines().filter_map(interface).collect();
    interfaces.sort_by_key(|interface| (interface.name != "eth0", interface.name.clone()));
    Ok(NetworkUsage { at_nanos: now_nanos(), interfaces })
}

/// Those of a line of the table, unless they are of the loopback interface.
fn interface(line: &str) -> Option<InterfaceUsage> {
    InterfaceUsage::of_line(line).filter(|interface| interface.name != "lo")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_containers::PacketCounts;

    #[test]
    fn layers_are_counted_now_and_then() {
        let dir = tempfile::tempdir().unwrap();
        let read = |known, began: i64, took: i64| {
            let times = std::cell::Cell::new(began);
            LayerReading::newest(known, dir.path(), || times.replace(times.get() + took))
        };
        let second = 1_000_000_000;
        let first = read(None, 0, 1);
        std::fs::write(dir.path().join("new"), "text").unwrap();
        assert_eq!(read(Some(first), 9 * second, 1).usage, first.usage);
        let later = read(Some(first), 11 * second, second / 4);
        assert_eq!(later.usage.inodes, first.usage.inodes + 1);
        // Counting took a quarter of a second: it counts for 25.
        assert_eq!(later.until_nanos, 11 * second + second / 4 + 25 * second);
        assert_eq!(read(None, 0, 10 * second).until_nanos, 70 * second);
    }

    #[test]
    fn reads_counters() {
        let usage = interface("  eth0: 100 2 3 6 0 0 0 0 200 4 5 7 0 0 0 0").unwrap();
        let packets = PacketCounts { rx: 2, rx_dropped: 6, tx: 4, tx_dropped: 7 };
        assert_eq!(usage.packets, Some(packets));
        assert_eq!((usage.rx_bytes, usage.rx_errors, usage.tx_bytes, usage.tx_errors), (100, 3, 200, 5));
        assert!(interface("Inter-| Receive").is_none() && interface("eth0: 1 2 x").is_none());
        assert_eq!(interface("    lo: 1 2 3 0 0 0 0 0 4 5 6 0 0 0 0 0"), None);
    }
}
