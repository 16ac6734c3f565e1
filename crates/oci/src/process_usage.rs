//! What a container's processes use, for a node without cgroups: the sum over those in its mount namespace.
//!
//! What processes used that have ended counts if their parents are in the container and have collected them. Memory that processes
//! share counts for each.

use crate::records::{fields_after_name, now_nanos};
use crate::shim::strays;
use kaji_containers::{CpuUsage, MemoryUsage};
use std::fs;
use std::path::Path;

/// Ticks a second in `/proc`, on every architecture of today.
const TICKS: u64 = 100;

/// Processor time, memory, and how many processes.
#[derive(Debug, Clone, Default)]
pub struct ProcessUsage {
    /// Without a rate.
    pub cpu: CpuUsage,
    /// Without what is available.
    pub memory: MemoryUsage,
    /// Running.
    pub processes: u64,
}

/// What the processes use that are in the mount namespace of this one.
pub fn of(pid: i32) -> ProcessUsage {
    let at_nanos = now_nanos();
    let mut usage = ProcessUsage {
        cpu: CpuUsage { at_nanos, ..CpuUsage::default() },
        memory: MemoryUsage { at_nanos, ..MemoryUsage::default() },
        processes: 0,
    };
    let Some(namespace) = strays::mount_namespace(pid) else { return usage };
    for pid in strays::processes_in(&namespace) {
        let read = |name: &str| fs::read_to_string(Path::new("/proc").join(pid.to_string()).join(name));
        let Some(found) = read("stat").ok().as_deref().and_then(parse) else { continue };
        usage.processes += 1;
        usage.cpu.core_nanos += found.ticks * (1_000_000_000 / TICKS);
        let bytes = found.pages * rustix::param::page_size() as u64;
        usage.memory.usage += bytes;
        usage.memory.page_faults += found.minor + found.major;
        usage.memory.major_page_faults += found.major;
    }
    usage.memory.working_set = usage.memory.usage;
    usage.memory.rss = usage.memory.usage;
    usage
}

#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// Of the process and the children that it has collected.
    ticks: u64,
    pages: u64,
    minor: u64,
    major: u64,
}

/// A line of `/proc/PID/stat`.
fn parse(stat: &str) -> Option<Found> {
    // The first is the third of proc(5).
    let fields: Vec<&str> = fields_after_name(stat)?.collect();
    let number = |of_manual: usize| fields.get(of_manual - 3)?.parse::<u64>().ok();
    let ticks = [14, 15, 16, 17].into_iter().map(number).sum::<Option<u64>>()?;
    Some(Found { ticks, pages: number(24)?, minor: number(10)?, major: number(12)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line() {
        let stat = "12 (a b) c) S 1 12 12 0 -1 4194560 100 7 3 2 50 20 5 1 20 0 1 0 900 1000000 321 18446744073709551615 1 1";
        assert_eq!(parse(stat), Some(Found { ticks: 76, pages: 321, minor: 100, major: 3 }));
        assert_eq!(parse("12 (x) S 1"), None);
    }

    #[test]
    fn counts_this_process() {
        let usage = of(i32::try_from(std::process::id()).unwrap());
        assert!(usage.processes >= 1 && usage.memory.working_set > 0);
        assert_eq!(of(0).processes, 0);
    }
}
