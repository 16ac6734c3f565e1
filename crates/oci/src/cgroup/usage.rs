//! What a cgroup uses, versions 1 and 2: processor time, memory, swap, disks.
//!
//! What the kernel does not show, since a controller is not there, is zero or absent.

use super::{Hierarchies, controller, hierarchies};
use crate::records::now_nanos;
use kaji_containers::{CpuUsage, DeviceIo, MemoryUsage, SwapUsage, Throttling};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The files of a cgroup.
pub struct CgroupFiles {
    unified: bool,
    /// The directory of each controller.
    directory: Box<dyn Fn(&str) -> PathBuf>,
    /// `/proc` and `/sys`, where disks and the machine's swap are.
    root: PathBuf,
}

/// What a cgroup uses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CgroupUsage {
    /// Processor time; its rate needs two readings and is left to the caller.
    pub cpu: CpuUsage,
    /// Memory.
    pub memory: MemoryUsage,
    /// Swap, where the kernel counts it.
    pub swap: Option<SwapUsage>,
    /// Disks.
    pub disk_io: Vec<DeviceIo>,
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(name)?.strip_prefix([' ', ':'])?.split_whitespace().next()?.parse().ok()
    })
}

impl CgroupFiles {
    /// Of a cgroup of this machine.
    pub fn of(cgroup: &str) -> CgroupFiles {
        let cgroup = cgroup.to_owned();
        CgroupFiles {
            unified: *hierarchies() == Hierarchies::Unified,
            directory: Box::new(move |name| controller(&cgroup, name)),
            root: "/".into(),
        }
    }

    /// Reads everything.
    pub fn read(&self) -> CgroupUsage {
        CgroupUsage { cpu: self.cpu(), memory: self.memory(), swap: self.swap(), disk_io: self.disk_io() }
    }

    fn text(&self, controller: &str, file: &str) -> String {
        fs::read_to_string((self.directory)(controller).join(file)).unwrap_or_default()
    }

    fn number(&self, controller: &str, file: &str) -> Option<u64> {
        number(&(self.directory)(controller).join(file))
    }

    fn cpu(&self) -> CpuUsage {
        let stat = self.text("cpu", "cpu.stat");
        let get = |name| field(&stat, name).unwrap_or_default();
        let (core_nanos, limited, throttled_nanos) = if self.unified {
            let limit = self.text("cpu", "cpu.max");
            let limited = !limit.is_empty() && !limit.starts_with("max");
            (get("usage_usec") * 1_000, limited, get("throttled_usec") * 1_000)
        } else {
            let used = self.number("cpuacct", "cpuacct.usage").unwrap_or_default();
            (used, self.number("cpu", "cpu.cfs_quota_us").is_some(), get("throttled_time"))
        };
        let (periods, throttled_periods) = (get("nr_periods"), get("nr_throttled"));
        let throttling = limited.then_some(Throttling { periods, throttled_periods, throttled_nanos });
        CpuUsage { at_nanos: now_nanos(), core_nanos, throttling, ..CpuUsage::default() }
    }

    fn memory(&self) -> MemoryUsage {
        let stat = self.text("memory", "memory.stat");
        let find = |names: [&str; 2]| field(&stat, names[0]).or_else(|| field(&stat, names[1]));
        let get = |names| find(names).unwrap_or_default();
        let either =
            |names: [&str; 2]| self.number("memory", names[0]).or_else(|| self.number("memory", names[1]));
        let usage = either(["memory.current", "memory.usage_in_bytes"]).unwrap_or_default();
        let working_set = usage.saturating_sub(get(["total_inactive_file", "inactive_file"]));
        // Version 1 shows no limit as the largest multiple of a page.
        let limit =
            either(["memory.max", "memory.limit_in_bytes"]).filter(|limit| *limit < i64::MAX as u64 / 2);
        MemoryUsage {
            at_nanos: now_nanos(),
            working_set,
            available: limit.map(|limit| limit.saturating_sub(working_set)),
            usage,
            rss: get(["total_rss", "anon"]),
            page_faults: get(["total_pgfault", "pgfault"]),
            major_page_faults: get(["total_pgmajfault", "pgmajfault"]),
            cache: find(["total_cache", "file"]),
            mapped_file: find(["total_mapped_file", "file_mapped"]),
            limit_hits: if self.unified {
                field(&self.text("memory", "memory.events"), "max")
            } else {
                self.number("memory", "memory.failcnt")
            },
            pressure: None,
        }
    }

    fn swap(&self) -> Option<SwapUsage> {
        let (usage, limit) = if self.unified {
            (self.number("memory", "memory.swap.current")?, self.number("memory", "memory.swap.max"))
        } else {
            // Version 1 limits memory and swap together.
            (field(&self.text("memory", "memory.stat"), "total_swap")?, None)
        };
        let machine = || {
            let meminfo = fs::read_to_string(self.root.join("proc/meminfo")).unwrap_or_default();
            field(&meminfo, "SwapTotal").unwrap_or_default().saturating_mul(1024)
        };
        let available = limit.unwrap_or_else(machine).saturating_sub(usage);
        Some(SwapUsage { at_nanos: now_nanos(), available, usage })
    }

    fn disk_io(&self) -> Vec<DeviceIo> {
        let by_number = if self.unified {
            io_stat(&self.text("io", "io.stat"))
        } else {
            let text = |kind: &str| {
                let all = self.text("blkio", &format!("blkio.throttle.{kind}_recursive"));
                if all.is_empty() { self.text("blkio", &format!("blkio.throttle.{kind}")) } else { all }
            };
            throttle_stat(&text("io_service_bytes"), &text("io_serviced"))
        };
        let named = by_number.into_iter().map(|(device, io)| DeviceIo { device: self.device(&device), ..io });
        named.collect()
    }

    /// The name of a device, of its numbers; they themselves where the kernel has none.
    fn device(&self, numbers: &str) -> String {
        let about = self.root.join("sys/dev/block").join(numbers).join("uevent");
        let about = fs::read_to_string(about).unwrap_or_default();
        let name = about.lines().find_map(|line| line.strip_prefix("DEVNAME="));
        name.map_or_else(|| numbers.to_owned(), |name| format!("/dev/{name}"))
    }
}

/// By the numbers of devices: `8:0 rbytes=1 wbytes=2 rios=3 wios=4 …`.
fn io_stat(text: &str) -> BTreeMap<String, DeviceIo> {
    let of = |line: &str| {
        let (numbers, counters) = device_of(line)?;
        let get = |name: &str| {
            let found = counters.split_whitespace().find_map(|c| c.strip_prefix(name)?.strip_prefix('='));
            found.and_then(|text| text.parse().ok()).unwrap_or_default()
        };
        let io = DeviceIo {
            device: String::new(),
            reads: get("rios"),
            writes: get("wios"),
            read_bytes: get("rbytes"),
            written_bytes: get("wbytes"),
        };
        // Devices that did nothing have no counters.
        (!counters.trim().is_empty()).then(|| (numbers.to_owned(), io))
    };
    text.lines().filter_map(of).collect()
}

/// The same of two files of lines `8:0 Read 1`.
fn throttle_stat(bytes: &str, operations: &str) -> BTreeMap<String, DeviceIo> {
    let mut all: BTreeMap<String, DeviceIo> = BTreeMap::new();
    for (text, counts_bytes) in [(bytes, true), (operations, false)] {
        for line in text.lines() {
            let Some((numbers, rest)) = device_of(line) else { continue };
            let Some((kind, count)) = rest.split_once(' ') else { continue };
            let Ok(count) = count.trim().parse() else { continue };
            let io = all.entry(numbers.to_owned()).or_default();
            match (kind, counts_bytes) {
                ("Read", true) => io.read_bytes = count,
                ("Write", true) => io.written_bytes = count,
                ("Read", false) => io.reads = count,
                ("Write", false) => io.writes = count,
                _ => {}
            }
        }
    }
    all
}

/// The numbers of a device at the start of a line, and what follows.
fn device_of(line: &str) -> Option<(&str, &str)> {
    let (numbers, rest) = line.split_once(' ')?;
    let (major, minor) = numbers.split_once(':')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(major) && is_number(minor)).then_some((numbers, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(unified: bool, root: &Path, of: &[(&str, &str)]) -> CgroupFiles {
        for (path, text) in of {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let base = root.to_owned();
        let directory =
            Box::new(move |name: &str| if unified { base.join("cgroup") } else { base.join(name) });
        CgroupFiles { unified, directory, root: root.to_owned() }
    }

    fn shown(usage: &CgroupUsage) -> String {
        let (cpu, memory) = (&usage.cpu, &usage.memory);
        let swap = usage.swap.map(|swap| (swap.usage, swap.available));
        format!(
            "{} {:?}\n{} {} {:?} {:?} {:?} {:?} {:?}\n{:?}",
            cpu.core_nanos,
            cpu.throttling,
            memory.usage,
            memory.rss,
            memory.available,
            memory.cache,
            memory.mapped_file,
            memory.limit_hits,
            swap,
            usage.disk_io
        )
    }

    #[test]
    fn figures_of_both_versions_are_read() {
        let (v2, v1) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let unified = files(
            true,
            v2.path(),
            &[
                ("cgroup/cpu.stat", "usage_usec 5\nnr_periods 10\nnr_throttled 3\nthrottled_usec 7\n"),
                ("cgroup/cpu.max", "50000 100000\n"),
                ("cgroup/memory.current", "1000\n"),
                ("cgroup/memory.max", "4000\n"),
                ("cgroup/memory.stat", "anon 100\nfile 300\nfile_mapped 200\ninactive_file 250\n"),
                ("cgroup/memory.events", "low 1\nmax 9\noom 0\n"),
                ("cgroup/memory.swap.current", "64\n"),
                ("cgroup/memory.swap.max", "max\n"),
                ("proc/meminfo", "SwapTotal:    1 kB\n"),
                ("cgroup/io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n254:1 \ngarbage\n"),
                ("sys/dev/block/8:0/uevent", "MAJOR=8\nDEVNAME=sda\n"),
            ],
        );
        let legacy = files(
            false,
            v1.path(),
            &[
                ("cpuacct/cpuacct.usage", "5000\n"),
                ("cpu/cpu.stat", "nr_periods 10\nnr_throttled 3\nthrottled_time 7000\n"),
                ("cpu/cpu.cfs_quota_us", "50000\n"),
                ("memory/memory.usage_in_bytes", "1000\n"),
                ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
                (
                    "memory/memory.stat",
                    "cache 1\ntotal_cache 300\ntotal_rss 100\ntotal_mapped_file 200\ntotal_swap 64\n",
                ),
                ("memory/memory.failcnt", "9\n"),
                (
                    "blkio/blkio.throttle.io_service_bytes_recursive",
                    "8:0 Read 1\n8:0 Write 2\n8:0 Sync 9\nTotal 3\n",
                ),
                ("blkio/blkio.throttle.io_serviced_recursive", "8:0 Read 3\n8:0 Write 4\n8:0 Write x\n"),
            ],
        );
        expect_test::expect![[r#"
            5000 Some(Throttling { periods: 10, throttled_periods: 3, throttled_nanos: 7000 })
            1000 100 Some(3250) Some(300) Some(200) Some(9) Some((64, 960))
            [DeviceIo { device: "/dev/sda", reads: 3, writes: 4, read_bytes: 1, written_bytes: 2 }]
            --
            5000 Some(Throttling { periods: 10, throttled_periods: 3, throttled_nanos: 7000 })
            1000 100 None Some(300) Some(200) Some(9) Some((64, 0))
            [DeviceIo { device: "8:0", reads: 3, writes: 4, read_bytes: 1, written_bytes: 2 }]"#]]
        .assert_eq(&format!("{}\n--\n{}", shown(&unified.read()), shown(&legacy.read())));
        // Without a limit nothing is throttled, and without files there is nothing.
        fs::write(v2.path().join("cgroup/cpu.max"), "max 100000\n").unwrap();
        fs::write(v1.path().join("cpu/cpu.cfs_quota_us"), "-1\n").unwrap();
        assert_eq!((unified.cpu().throttling, legacy.cpu().throttling), (None, None));
        let none = tempfile::tempdir().unwrap();
        let usage = files(true, none.path(), &[]).read();
        assert_eq!((usage.swap, usage.disk_io.len(), usage.memory.usage), (None, 0, 0));
    }
}
