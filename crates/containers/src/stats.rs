//! What containers and pods use, as the stats summary of the kubelet and its metrics show it.

use std::collections::BTreeMap;

/// Processor time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuUsage {
    /// Nanoseconds since the epoch.
    pub at_nanos: i64,
    /// Nanoseconds since the cgroup was created.
    pub core_nanos: u64,
    /// Nanoseconds a second, over the time since the last reading; `None` before there are two.
    pub nano_cores: Option<u64>,
    /// Where the kernel has it.
    pub pressure: Option<Pressure>,
    /// Of a cgroup with a limit of processor time, where the backend tells.
    pub throttling: Option<Throttling>,
}

/// How a limit of processor time was kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Periods of the scheduler in which the cgroup ran.
    pub periods: u64,
    /// Those in which it used up its quota.
    pub throttled_periods: u64,
    /// How long its tasks waited for the next one, in nanoseconds.
    pub throttled_nanos: u64,
}

/// What a cgroup read from a disk and wrote to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// `/dev/sda`
    pub device: String,
    /// Operations.
    pub reads: u64,
    /// Operations.
    pub writes: u64,
    /// Bytes.
    pub read_bytes: u64,
    /// Bytes.
    pub written_bytes: u64,
}

/// Pressure stall information.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// All tasks stalled.
    pub full: PressureStall,
    /// Some task stalled.
    pub some: PressureStall,
}

/// One line of pressure stall information.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PressureStall {
    /// Nanoseconds.
    pub total_nanos: u64,
    /// Percent of the last 10 seconds.
    pub avg10: f64,
    /// Percent of the last 60 seconds.
    pub avg60: f64,
    /// Percent of the last 300 seconds.
    pub avg300: f64,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MemoryUsage {
    /// Nanoseconds since the epoch.
    pub at_nanos: i64,
    /// All memory, less what can be reclaimed at once (inactive file pages).
    pub working_set: u64,
    /// The limit less the working set; `None` without a limit.
    pub available: Option<u64>,
    /// All memory.
    pub usage: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// Minor and major ones.
    pub page_faults: u64,
    /// Those that read a disk.
    pub major_page_faults: u64,
    /// Pages of files, where the backend tells; so are the next two.
    pub cache: Option<u64>,
    /// Files that are mapped into memory.
    pub mapped_file: Option<u64>,
    /// How often the limit was reached; not in bytes.
    pub limit_hits: Option<u64>,
    /// Where the kernel has it.
    pub pressure: Option<Pressure>,
}

/// Swap, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SwapUsage {
    /// Nanoseconds since the epoch.
    pub at_nanos: i64,
    /// What may still be used.
    pub available: u64,
    /// What is used.
    pub usage: u64,
}

/// What a container uses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContainerStats {
    /// Of the container.
    pub id: String,
    /// As in the pod's spec.
    pub name: String,
    /// How many containers of this name came before.
    pub attempt: u32,
    /// As configured.
    pub labels: BTreeMap<String, String>,
    /// Nanoseconds since the epoch.
    pub started_at_nanos: i64,
    /// Processor time.
    pub cpu: CpuUsage,
    /// Memory.
    pub memory: MemoryUsage,
    /// Swap.
    pub swap: Option<SwapUsage>,
    /// Bytes of its writable layer.
    pub writable_layer_bytes: u64,
    /// Inodes of its writable layer.
    pub writable_layer_inodes: u64,
    /// Blocks read and written, where the kernel counts them.
    pub io_pressure: Option<Pressure>,
    /// How often the kernel killed a process of it for want of memory.
    pub oom_events: u64,
    /// Its disks, where the backend tells.
    pub disk_io: Vec<DeviceIo>,
}

/// An interface's counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceUsage {
    /// `eth0`.
    pub name: String,
    /// Received.
    pub rx_bytes: u64,
    /// Received.
    pub rx_errors: u64,
    /// Sent.
    pub tx_bytes: u64,
    /// Sent.
    pub tx_errors: u64,
    /// Where the backend tells.
    pub packets: Option<PacketCounts>,
}

/// Packets of an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Received.
    pub rx: u64,
    /// Dropped while they were received.
    pub rx_dropped: u64,
    /// Sent.
    pub tx: u64,
    /// Dropped while they were to be sent.
    pub tx_dropped: u64,
}

impl InterfaceUsage {
    /// A line of `/proc/net/dev`: the name, and of both directions bytes, packets, errors, drops and four more.
    #[must_use]
    pub fn of_line(line: &str) -> Option<InterfaceUsage> {
        let (name, counters) = line.split_once(':')?;
        let counters: Vec<u64> =
            counters.split_whitespace().map_while(|counter| counter.parse().ok()).collect();
        let [rx_bytes, rx, rx_errors, rx_dropped, _, _, _, _, tx_bytes, tx, tx_errors, tx_dropped, ..] =
            counters[..]
        else {
            return None;
        };
        let packets = Some(PacketCounts { rx, rx_dropped, tx, tx_dropped });
        let name = name.trim().to_owned();
        Some(InterfaceUsage { name, rx_bytes, rx_errors, tx_bytes, tx_errors, packets })
    }
}

/// Counters of a pod's network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkUsage {
    /// Nanoseconds since the epoch.
    pub at_nanos: i64,
    /// `eth0` first.
    pub interfaces: Vec<InterfaceUsage>,
}

/// What a sandbox and its containers use.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodSandboxStats {
    /// Of the sandbox.
    pub id: String,
    /// Of the pod.
    pub pod_uid: String,
    /// Of the pod's cgroup.
    pub cpu: CpuUsage,
    /// Of the pod's cgroup.
    pub memory: MemoryUsage,
    /// Of the pod's cgroup.
    pub swap: Option<SwapUsage>,
    /// `None` in the node's network.
    pub network: Option<NetworkUsage>,
    /// Processes in the pod's cgroup.
    pub processes: u64,
    /// Those that run.
    pub containers: Vec<ContainerStats>,
    /// The disks of the pod's cgroup, where the backend tells.
    pub disk_io: Vec<DeviceIo>,
}
