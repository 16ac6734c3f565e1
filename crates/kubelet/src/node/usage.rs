//! What a node uses: processors, memory, swap, network, processes and file systems, from `/proc` and the file systems themselves.
//!
//! The figures are those that upstream's kubelet gets of the root cgroup. Parsing is pure; [`NodeUsageReader`] reads.
//!
//! Invariant: a figure that the kernel does not show is absent or zero, never an error.

use kaji_containers::{
    CpuUsage, InterfaceUsage, MemoryUsage, NetworkUsage, Pressure, PressureStall, SwapUsage,
};
use kaji_files::{DirectoryUsage, MountTable};
use kaji_meta::Clock;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The kernel counts processor time in hundredths of a second towards programs, on every architecture that matters here.
const NANOS_PER_TICK: u64 = 10_000_000;
/// Nanoseconds over which a rate is taken at least: ticks are coarse.
const RATE_WINDOW: i64 = 1_000_000_000;
/// Interfaces of pods and of other runtimes are no part of the node's own traffic.
const NOT_THE_NODES: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];
/// Entries of a directory tree that are counted.
const MOST_ENTRIES: u64 = 1_000_000;

/// What a node uses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeUsage {
    /// When the machine was booted, in seconds since the epoch.
    pub booted_at: i64,
    /// Processor time of the whole machine.
    pub cpu: CpuUsage,
    /// Memory; `available` is what pods may still use: all memory but huge pages, less the working set.
    pub memory: MemoryUsage,
    /// Swap; zero without any.
    pub swap: SwapUsage,
    /// Where the kernel has it.
    pub io_pressure: Option<Pressure>,
    /// Counters of the node's own interfaces.
    pub network: NetworkUsage,
    /// The most processes that there may be at a time, threads counted.
    pub most_processes: Option<i64>,
    /// How many there are.
    pub processes: Option<i64>,
}

/// A file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileSystem {
    /// Bytes.
    pub capacity: u64,
    /// Bytes that programs without privileges may still use.
    pub available: u64,
    /// Bytes.
    pub used: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes.
    pub inodes_free: u64,
}

impl FileSystem {
    /// The one that holds a path; `None` when that is absent.
    #[must_use]
    pub fn of(path: &Path) -> Option<FileSystem> {
        FileSystem::read(path).ok()
    }

    /// The one that holds a path.
    ///
    /// # Errors
    /// Those of statvfs(3).
    pub fn read(path: &Path) -> std::io::Result<FileSystem> {
        let found = rustix::fs::statvfs(path)?;
        Ok(FileSystem {
            capacity: found.f_blocks.saturating_mul(found.f_frsize),
            available: found.f_bavail.saturating_mul(found.f_frsize),
            used: found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_frsize),
            inodes: found.f_files,
            inodes_free: found.f_ffree,
        })
    }
}

/// The device of a path by the table of mounts, `/dev/sda1`; empty when that does not show it.
pub(crate) fn device(mounts: &MountTable, path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    mounts.containing(&path).map(|mount| mount.source.clone()).unwrap_or_default()
}

/// A directory tree on one file system. Blocks for as long as the tree is large.
#[must_use]
pub fn directory_usage(root: &Path) -> DirectoryUsage {
    DirectoryUsage::of(root, MOST_ENTRIES)
}

/// Reads what a node uses.
pub struct NodeUsageReader {
    proc: PathBuf,
    clock: Arc<dyn Clock>,
    /// The reading that rates are taken from, and the rate at that time.
    before: Mutex<Option<CpuUsage>>,
}

impl NodeUsageReader {
    /// Of this machine, in the process's network namespace.
    pub fn new(clock: Arc<dyn Clock>) -> NodeUsageReader {
        NodeUsageReader::at(Path::new("/proc"), clock)
    }

    /// Of files as those in `/proc`.
    pub fn at(proc: &Path, clock: Arc<dyn Clock>) -> NodeUsageReader {
        NodeUsageReader { proc: proc.to_owned(), clock, before: Mutex::default() }
    }

    /// Reads the present figures. The processors' rate is there from the second reading on that is a second after the first.
    #[must_use]
    pub fn read(&self) -> NodeUsage {
        let text = |path: &str| std::fs::read_to_string(self.proc.join(path)).unwrap_or_default();
        let at_nanos = i64::try_from(self.clock.now().as_nanosecond()).unwrap_or_default();
        let (stat, meminfo) = (text("stat"), text("meminfo"));
        let pressure = |what: &str| parse_pressure(&text(&format!("pressure/{what}")));
        let cpu = CpuUsage {
            at_nanos,
            core_nanos: core_nanos(&stat),
            pressure: pressure("cpu"),
            ..Default::default()
        };
        let limit = |path: &str| text(path).trim().parse::<i64>().ok();
        NodeUsage {
            booted_at: counter(&stat, "btime").and_then(|t| i64::try_from(t).ok()).unwrap_or_default(),
            cpu: self.with_rate(cpu),
            memory: MemoryUsage {
                at_nanos,
                pressure: pressure("memory"),
                ..memory(&meminfo, &text("vmstat"))
            },
            swap: swap(&meminfo, at_nanos),
            io_pressure: pressure("io"),
            network: NetworkUsage { at_nanos, interfaces: interfaces(&text("net/dev")) },
            most_processes: [limit("sys/kernel/pid_max"), limit("sys/kernel/threads-max")]
                .into_iter()
                .flatten()
                .min(),
            processes: running_processes(&text("loadavg")),
        }
    }

    fn with_rate(&self, mut now: CpuUsage) -> CpuUsage {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(base) = *before else {
            *before = Some(now);
            return now;
        };
        let passed = now.at_nanos - base.at_nanos;
        if passed < RATE_WINDOW {
            now.nano_cores = base.nano_cores;
            return now;
        }
        let used = u128::from(now.core_nanos.saturating_sub(base.core_nanos));
        let rate = used * 1_000_000_000 / u128::try_from(passed).unwrap_or(1);
        now.nano_cores = u64::try_from(rate).ok();
        *before = Some(now);
        now
    }
}

/// The first number after a name at the start of a line.
pub(crate) fn counter(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix([' ', ':']))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Processor time without what is idle. `stat`'s first line: user, nice, system, idle, iowait, irq, softirq, steal, of which guest time
/// is a part.
fn core_nanos(stat: &str) -> u64 {
    let all = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks = all.split_whitespace().take(8).filter_map(|ticks| ticks.parse::<u64>().ok());
    let busy: u64 = ticks.enumerate().filter(|(i, _)| !matches!(i, 3 | 4)).map(|(_, ticks)| ticks).sum();
    busy.saturating_mul(NANOS_PER_TICK)
}

/// Bytes of memory less those that are kept for huge pages: they are neither used nor available as other memory is
/// (`HugepageAwareEviction`).
pub(crate) fn without_huge_pages(meminfo: &str) -> Option<u64> {
    let bytes = |name: &str| Some(counter(meminfo, name)?.saturating_mul(1024));
    Some(bytes("MemTotal")?.saturating_sub(bytes("Hugetlb").unwrap_or_default()))
}

fn memory(meminfo: &str, vmstat: &str) -> MemoryUsage {
    let bytes = |name: &str| counter(meminfo, name).unwrap_or_default().saturating_mul(1024);
    let total = without_huge_pages(meminfo).unwrap_or_default();
    let usage = total.saturating_sub(bytes("MemFree"));
    let working_set = usage.saturating_sub(bytes("Inactive(file)"));
    MemoryUsage {
        working_set,
        available: Some(total.saturating_sub(working_set)),
        usage,
        rss: bytes("AnonPages"),
        page_faults: counter(vmstat, "pgfault").unwrap_or_default(),
        major_page_faults: counter(vmstat, "pgmajfault").unwrap_or_default(),
        cache: Some(bytes("Cached")),
        mapped_file: Some(bytes("Mapped")),
        ..Default::default()
    }
}

fn swap(meminfo: &str, at_nanos: i64) -> SwapUsage {
    let bytes = |name: &str| counter(meminfo, name).unwrap_or_default().saturating_mul(1024);
    let available = bytes("SwapFree");
    SwapUsage { at_nanos, available, usage: bytes("SwapTotal").saturating_sub(available) }
}

/// Pressure stall information as `/proc/pressure` and cgroups of version 2 show it.
fn parse_pressure(text: &str) -> Option<Pressure> {
    let line = |kind: &str| -> Option<PressureStall> {
        let line = text.lines().find_map(|l| l.strip_prefix(kind))?;
        let value =
            |name: &str| line.split_whitespace().find_map(|f| f.strip_prefix(name)?.strip_prefix('='));
        let average = |name: &str| value(name)?.parse::<f64>().ok();
        Some(PressureStall {
            total_nanos: value("total")?.parse::<u64>().ok()?.saturating_mul(1000),
            avg10: average("avg10")?,
            avg60: average("avg60")?,
            avg300: average("avg300")?,
        })
    };
    Some(Pressure { some: line("some ")?, full: line("full ").unwrap_or_default() })
}

/// The interfaces of `net/dev` that are the node's, `eth0` first.
fn interfaces(table: &str) -> Vec<InterfaceUsage> {
    let of = |line: &str| {
        let found = InterfaceUsage::of_line(line)?;
        let own = !NOT_THE_NODES.iter().any(|prefix| found.name.starts_with(prefix));
        own.then_some(found)
    };
    let mut all: Vec<InterfaceUsage> = table.lines().filter_map(of).collect();
    all.sort_by(|a, b| (a.name != "eth0", &a.name).cmp(&(b.name != "eth0", &b.name)));
    all
}

/// The second number of `loadavg`'s fourth field, `2/3518`.
pub(crate) fn running_processes(loadavg: &str) -> Option<i64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::time::ManualClock;
    use std::os::unix::fs::MetadataExt;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn reads_the_usage_of_a_node() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &[
                ("stat", "cpu  100 10 50 9000 800 5 5 30 7 0\ncpu0 1 2 3 4\nbtime 1700000000\n"),
                (
                    "meminfo",
                    "MemTotal: 1000 kB\nMemFree: 300 kB\nInactive(file): 100 kB\nAnonPages: 200 kB\nCached: 90 kB\nMapped: 30 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n",
                ),
                ("vmstat", "pgfault 77\npgmajfault 7\n"),
                ("loadavg", "1.36 3.49 4.53 2/3518 3715089\n"),
                ("sys/kernel/pid_max", "4194304\n"),
                ("sys/kernel/threads-max", "250000\n"),
                (
                    "pressure/memory",
                    "some avg10=0.10 avg60=0.20 avg300=0.30 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n",
                ),
                (
                    "net/dev",
                    "Inter-| Receive\n face |bytes\n    lo: 1 2 3 0 0 0 0 0 4 5 6 0 0 0 0 0\nveth1a: 1 2 3 0 0 0 0 0 4 5 6 0 0 0 0 0\n  ens3: 9 2 3 0 0 0 0 0 4 5 6 0 0 0 0 0\n  eth0: 7 2 3 0 0 0 0 0 4 5 6 0 0 0 0 0\n",
                ),
            ],
        );
        let clock = Arc::new(ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let reader = NodeUsageReader::at(dir.path(), clock.clone());
        let usage = reader.read();
        let node = format!("{} {:?} {:?}", usage.booted_at, usage.most_processes, usage.processes);
        let shown = [
            node,
            format!("{:?}", usage.cpu),
            format!("{:?}", usage.memory),
            format!("{:?} {:?}", usage.swap, usage.io_pressure),
            format!("{:?}", usage.network.interfaces),
        ];
        expect_test::expect![[r#"
            1700000000 Some(250000) Some(3518)
            CpuUsage { at_nanos: 1767225600000000000, core_nanos: 2000000000, nano_cores: None, pressure: None, throttling: None }
            MemoryUsage { at_nanos: 1767225600000000000, working_set: 614400, available: Some(409600), usage: 716800, rss: 204800, page_faults: 77, major_page_faults: 7, cache: Some(92160), mapped_file: Some(30720), limit_hits: None, pressure: Some(Pressure { full: PressureStall { total_nanos: 3000, avg10: 0.0, avg60: 0.0, avg300: 0.0 }, some: PressureStall { total_nanos: 12000, avg10: 0.1, avg60: 0.2, avg300: 0.3 } }) }
            SwapUsage { at_nanos: 1767225600000000000, available: 20480, usage: 30720 } None
            [InterfaceUsage { name: "eth0", rx_bytes: 7, rx_errors: 3, tx_bytes: 4, tx_errors: 6, packets: Some(PacketCounts { rx: 2, rx_dropped: 0, tx: 5, tx_dropped: 0 }) }, InterfaceUsage { name: "ens3", rx_bytes: 9, rx_errors: 3, tx_bytes: 4, tx_errors: 6, packets: Some(PacketCounts { rx: 2, rx_dropped: 0, tx: 5, tx_dropped: 0 }) }]"#]].assert_eq(&shown.join("\n"));
        write(dir.path(), &[("stat", "cpu  150 10 50 9000 800 5 5 30\n")]);
        clock.advance(jiff::SignedDuration::from_millis(10));
        assert_eq!(reader.read().cpu.nano_cores, None);
        clock.advance(jiff::SignedDuration::from_millis(990));
        assert_eq!(reader.read().cpu.nano_cores, Some(500_000_000));
        clock.advance(jiff::SignedDuration::from_millis(10));
        assert_eq!(reader.read().cpu.nano_cores, Some(500_000_000));
        assert_eq!(NodeUsageReader::at(&dir.path().join("none"), clock).read().memory.usage, 0);
    }

    #[test]
    fn huge_pages_are_neither_used_nor_available() {
        let meminfo = "MemTotal: 1000 kB\nMemFree: 300 kB\nInactive(file): 100 kB\nHugetlb: 200 kB\nHugepagesize: 2048 kB\n";
        let found = memory(meminfo, "");
        let kib = [found.usage, found.working_set, found.available.unwrap()].map(|bytes| bytes >> 10);
        assert_eq!(kib, [500, 400, 400]);
        assert_eq!(without_huge_pages("MemTotal: 1 kB\nHugetlb: 2 kB\n"), Some(0));
        assert_eq!(without_huge_pages("Hugetlb: 2 kB\n"), None);
    }

    #[test]
    fn devices_are_those_of_the_deepest_mount() {
        let mounts = MountTable::parse(
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / /var/lib rw shared:1 - xfs /dev/sdb rw\n\
             3 1 0:5 / /var/lib/kubelet rw - tmpfs tmpfs rw\n4 1 8:3 / /var/lib/kubelet rw - ext4 /dev/sdc rw\ngarbage\n",
        );
        let shown = ["/etc", "/var/lib/absent/a", "/var/lib/kubelet/pods", "/var/libs"]
            .map(|path| device(&mounts, Path::new(path)));
        assert_eq!(shown, ["/dev/sda1", "/dev/sdb", "/dev/sdc", "/dev/sda1"]);
        assert_eq!(device(&MountTable::default(), Path::new("/")), "");
    }

    #[test]
    fn a_tree_is_counted_once() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[("a/b", &"x".repeat(10_000)), ("c", "")]);
        std::fs::hard_link(dir.path().join("a/b"), dir.path().join("d")).unwrap();
        std::os::unix::fs::symlink("/usr", dir.path().join("e")).unwrap();
        let usage = directory_usage(dir.path());
        assert_eq!(usage.inodes, 5);
        let file = std::fs::metadata(dir.path().join("c")).unwrap().blocks();
        assert!(usage.bytes >= 10_000 && file == 0, "{usage:?}");
        assert_eq!(directory_usage(&dir.path().join("none")), DirectoryUsage::default());
        assert!(FileSystem::of(dir.path()).unwrap().capacity > 0);
    }
}
