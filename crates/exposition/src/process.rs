//! `process_*`: what the process uses, as Linux says in `/proc`. What cannot be read is left out. Nothing is asked of the auxiliary
//! vector: a server has to start under valgrind, which hides a part of it, too.
//!
//! Source: client_golang's `prometheus/process_collector.go`.

use crate::{Family, Page};
use std::fs;

const CPU: Family =
    Family::counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.");
const OPEN_FDS: Family = Family::gauge("process_open_fds", "Number of open file descriptors.");
const MAX_FDS: Family = Family::gauge("process_max_fds", "Maximum number of open file descriptors.");
const VIRTUAL: Family = Family::gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.");
const VIRTUAL_MAX: Family =
    Family::gauge("process_virtual_memory_max_bytes", "Maximum amount of virtual memory available in bytes.");
const RESIDENT: Family = Family::gauge("process_resident_memory_bytes", "Resident memory size in bytes.");
const START: Family =
    Family::gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.");
const RECEIVED: Family = Family::counter(
    "process_network_receive_bytes_total",
    "Number of bytes received by the process over the network.",
);
const SENT: Family = Family::counter(
    "process_network_transmit_bytes_total",
    "Number of bytes sent by the process over the network.",
);

/// Ticks of a second in `/proc` (USER_HZ): 100 on every architecture that Linux has a stable ABI for.
const TICKS: f64 = 100.0;

/// What a process uses.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Process {
    /// Seconds of processors.
    pub cpu: Option<f64>,
    /// Bytes.
    pub virtual_memory: Option<f64>,
    /// Bytes, or upstream's largest number for no limit.
    pub virtual_memory_limit: Option<f64>,
    /// Bytes.
    pub resident_memory: Option<f64>,
    /// Seconds since the epoch.
    pub start: Option<f64>,
    /// Descriptors.
    pub open_files: Option<f64>,
    /// Descriptors.
    pub open_files_limit: Option<f64>,
    /// Bytes of its network namespace: received and sent.
    pub network: Option<(f64, f64)>,
}

impl Process {
    /// Reads this process's figures.
    #[must_use]
    pub fn read() -> Process {
        let text = |name: &str| fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
        let (stat, limits, network) = (text("self/stat"), text("self/limits"), text("self/net/netstat"));
        let resident = resident(&text("self/status"));
        // The descriptor that lists the directory is one of them.
        let open = fs::read_dir("/proc/self/fd").ok().map(|all| all.count().saturating_sub(1) as f64);
        let parsed = Process::parse(&stat, &text("stat"), &limits, &network);
        Process { open_files: open, resident_memory: resident, ..parsed }
    }

    /// Of `stat` the fields after the name, which is in parentheses and may have any characters.
    fn parse(stat: &str, machine: &str, limits: &str, network: &str) -> Process {
        let fields: Vec<&str> =
            stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
        let field = |index: usize| fields.get(index - 3)?.parse::<f64>().ok();
        let booted = machine.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
        let limit = |name: &str| {
            let soft = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
            if soft == "unlimited" { Some(u64::MAX as f64) } else { soft.parse().ok() }
        };
        Process {
            cpu: field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS),
            virtual_memory: field(23),
            virtual_memory_limit: limit("Max address space"),
            resident_memory: None,
            start: booted.zip(field(22)).map(|(booted, after)| booted + after / TICKS),
            open_files: None,
            open_files_limit: limit("Max open files"),
            network: octets(network),
        }
    }
}

/// Bytes, by `status`.
fn resident(status: &str) -> Option<f64> {
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?;
    kilobytes.parse::<f64>().ok().map(|kilobytes| kilobytes * 1024.0)
}

/// The columns `InOctets` and `OutOctets` of `IpExt`.
fn octets(netstat: &str) -> Option<(f64, f64)> {
    let mut rows = netstat.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let names = rows.next()?.split_whitespace();
    let values: Vec<(&str, &str)> = names.zip(rows.next()?.split_whitespace()).collect();
    let of = |name: &str| values.iter().find(|(n, _)| *n == name)?.1.parse::<f64>().ok();
    of("InOctets").zip(of("OutOctets"))
}

impl Page {
    /// Adds a process.
    pub fn process(&mut self, process: &Process) {
        let all = [
            (CPU, process.cpu),
            (OPEN_FDS, process.open_files),
            (MAX_FDS, process.open_files_limit),
            (VIRTUAL, process.virtual_memory),
            (VIRTUAL_MAX, process.virtual_memory_limit),
            (RESIDENT, process.resident_memory),
            (RECEIVED, process.network.map(|n| n.0)),
            (SENT, process.network.map(|n| n.1)),
        ];
        for (family, value) in all {
            if let Some(value) = value {
                self.single(family, value);
            }
        }
        self.process_start(process);
    }

    /// Adds when a process began, alone.
    pub fn process_start(&mut self, process: &Process) {
        if let Some(start) = process.start {
            self.single(START, start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_usage_of_a_process() {
        let mut fields = vec!["0"; 50];
        (fields[11], fields[12], fields[19], fields[20], fields[21]) = ("150", "50", "1000", "8192", "3");
        let stat = format!("12 (a b) c) {}", fields.join(" "));
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 4096                 files\n\
                      Max address space         unlimited            unlimited            bytes\n";
        let netstat = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InOctets X OutOctets\nIpExt: 7 8 9\n";
        let wanted = Process {
            cpu: Some(2.0),
            virtual_memory: Some(8192.0),
            virtual_memory_limit: Some(u64::MAX as f64),
            resident_memory: None,
            start: Some(110.0),
            open_files: None,
            open_files_limit: Some(1024.0),
            network: Some((7.0, 9.0)),
        };
        assert_eq!(Process::parse(&stat, "cpu 1\nbtime 100\n", limits, netstat), wanted);
        assert_eq!(Process::parse("x", "", "", ""), Process::default());
        assert_eq!(resident("VmHWM:\t 9 kB\nVmRSS:\t    3 kB\n"), Some(3072.0));
        assert_eq!(resident("VmRSS"), None);
    }

    #[test]
    fn this_process_can_be_read() {
        let process = Process::read();
        let mut page = Page::default();
        page.process(&process);
        let page = page.finish();
        for family in [CPU, OPEN_FDS, MAX_FDS, VIRTUAL, RESIDENT, START] {
            assert!(page.contains(&format!("\n{} ", family.name)), "{} in {page}", family.name);
        }
    }
}
