//! `/metrics/cadvisor`: what the node, pods and containers use, by cadvisor's names and labels.
//!
//! A row without a container is a pod's cgroup; the one with the id `/` is the node. What the runtime's figures lack is left out: the split
//! of processor time, and with other runtimes throttling, caches, packets and disks.
//!
//! Pure. Source: cadvisor's `metrics/prometheus.go`, and upstream's `containerPrometheusLabelsFunc`.

use super::super::usage::{PodUsage, Reading};
use super::resource::millis;
use crate::node::usage::FileSystem;
use kaji_containers::{
    CpuUsage, DeviceIo, InterfaceUsage, MemoryUsage, NetworkUsage, Pressure, PressureStall,
};
use kaji_exposition::{Family, Page, Sample, labels};
use std::collections::HashMap;

/// A family, and the value that a row has in it.
type Column = (Family, fn(&Row<'_>) -> Option<f64>);
/// A family, and the value that an interface has in it.
type Counter = (Family, fn(&InterfaceUsage) -> Option<u64>);
/// A family, and the value that a disk has in it.
type DiskCounter = (Family, fn(&DeviceIo) -> u64);
/// A family, and the value that a file system has in it.
type DiskGauge = (Family, fn(&Disk<'_>) -> u64);

const CPU: Family =
    Family::counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.");
const FAILURES: Family =
    Family::counter("container_memory_failures_total", "Cumulative count of memory allocation failures.");
const START: Family =
    Family::gauge("container_start_time_seconds", "Start time of the container since unix epoch in seconds.");

const COLUMNS: [Column; 21] = [
    (Family::gauge("container_last_seen", "Last time a container was seen by the exporter"), |r| {
        Some((r.cpu.at_nanos / 1_000_000_000) as f64)
    }),
    (
        Family::counter("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals."),
        |r| r.cpu.throttling.map(|t| t.periods as f64),
    ),
    (
        Family::counter("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals."),
        |r| r.cpu.throttling.map(|t| t.throttled_periods as f64),
    ),
    (
        Family::counter(
            "container_cpu_cfs_throttled_seconds_total",
            "Total time duration the container has been throttled.",
        ),
        |r| r.cpu.throttling.map(|t| t.throttled_nanos as f64 / 1e9),
    ),
    (Family::gauge("container_memory_cache", "Number of bytes of page cache memory."), |r| {
        r.memory.cache.map(|bytes| bytes as f64)
    }),
    (Family::counter("container_memory_failcnt", "Number of memory usage hits limits"), |r| {
        r.memory.limit_hits.map(|hits| hits as f64)
    }),
    (Family::gauge("container_memory_mapped_file", "Size of memory mapped files in bytes."), |r| {
        r.memory.mapped_file.map(|bytes| bytes as f64)
    }),
    (Family::gauge("container_memory_rss", "Size of RSS in bytes."), |r| Some(r.memory.rss as f64)),
    (Family::gauge("container_memory_swap", "Container swap usage in bytes."), |r| r.swap.map(|s| s as f64)),
    (
        Family::gauge(
            "container_memory_usage_bytes",
            "Current memory usage in bytes, including all memory regardless of when it was accessed",
        ),
        |r| Some(r.memory.usage as f64),
    ),
    (Family::gauge("container_memory_working_set_bytes", "Current working set in bytes."), |r| {
        Some(r.memory.working_set as f64)
    }),
    (Family::gauge("container_spec_memory_limit_bytes", "Memory limit for the container."), |r| {
        Some(r.memory.available.map_or(0.0, |left| (left + r.memory.working_set) as f64))
    }),
    (
        Family::counter(
            "container_oom_events_total",
            "Count of out of memory events observed for the container",
        ),
        |r| r.oom_events.map(|n| n as f64),
    ),
    (
        Family::counter(
            "container_pressure_cpu_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to CPU congestion.",
        ),
        |r| stalled(r.cpu.pressure, |p| p.full),
    ),
    (
        Family::counter(
            "container_pressure_cpu_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to CPU congestion.",
        ),
        |r| stalled(r.cpu.pressure, |p| p.some),
    ),
    (
        Family::counter(
            "container_pressure_io_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to IO congestion.",
        ),
        |r| stalled(r.io, |p| p.full),
    ),
    (
        Family::counter(
            "container_pressure_io_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to IO congestion.",
        ),
        |r| stalled(r.io, |p| p.some),
    ),
    (
        Family::counter(
            "container_pressure_memory_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to memory congestion.",
        ),
        |r| stalled(r.memory.pressure, |p| p.full),
    ),
    (
        Family::counter(
            "container_pressure_memory_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to memory congestion.",
        ),
        |r| stalled(r.memory.pressure, |p| p.some),
    ),
    (Family::gauge("container_processes", "Number of processes running inside the container."), |r| {
        r.processes.map(|n| n as f64)
    }),
    (START, |r| Some(r.started_at as f64)),
];

const COUNTERS: [Counter; 8] = [
    (Family::counter("container_network_receive_bytes_total", "Cumulative count of bytes received"), |i| {
        Some(i.rx_bytes)
    }),
    (
        Family::counter(
            "container_network_receive_errors_total",
            "Cumulative count of errors encountered while receiving",
        ),
        |i| Some(i.rx_errors),
    ),
    (
        Family::counter(
            "container_network_receive_packets_dropped_total",
            "Cumulative count of packets dropped while receiving",
        ),
        |i| i.packets.map(|p| p.rx_dropped),
    ),
    (
        Family::counter("container_network_receive_packets_total", "Cumulative count of packets received"),
        |i| i.packets.map(|p| p.rx),
    ),
    (
        Family::counter("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted"),
        |i| Some(i.tx_bytes),
    ),
    (
        Family::counter(
            "container_network_transmit_errors_total",
            "Cumulative count of errors encountered while transmitting",
        ),
        |i| Some(i.tx_errors),
    ),
    (
        Family::counter(
            "container_network_transmit_packets_dropped_total",
            "Cumulative count of packets dropped while transmitting",
        ),
        |i| i.packets.map(|p| p.tx_dropped),
    ),
    (
        Family::counter(
            "container_network_transmit_packets_total",
            "Cumulative count of packets transmitted",
        ),
        |i| i.packets.map(|p| p.tx),
    ),
];

const DISK_COUNTERS: [DiskCounter; 4] = [
    (Family::counter("container_fs_reads_bytes_total", "Cumulative count of bytes read"), |d| d.read_bytes),
    (Family::counter("container_fs_reads_total", "Cumulative count of reads completed"), |d| d.reads),
    (Family::counter("container_fs_writes_bytes_total", "Cumulative count of bytes written"), |d| {
        d.written_bytes
    }),
    (Family::counter("container_fs_writes_total", "Cumulative count of writes completed"), |d| d.writes),
];

const DISK_GAUGES: [DiskGauge; 4] = [
    (Family::gauge("container_fs_inodes_free", "Number of available Inodes"), |d| d.disk.inodes_free),
    (Family::gauge("container_fs_inodes_total", "Number of Inodes"), |d| d.disk.inodes),
    (
        Family::gauge(
            "container_fs_limit_bytes",
            "Number of bytes that can be consumed by the container on this filesystem.",
        ),
        |d| d.disk.capacity,
    ),
    (
        Family::gauge(
            "container_fs_usage_bytes",
            "Number of bytes that are consumed by the container on this filesystem.",
        ),
        |d| d.used,
    ),
];

/// A file system, and what a row uses of it.
struct Disk<'a> {
    device: &'a str,
    disk: FileSystem,
    used: u64,
}

/// What the reading does not have.
#[derive(Debug, Default)]
pub(in crate::server) struct Names {
    /// Images of containers, by the containers' ids.
    pub images: HashMap<String, String>,
    /// Cgroups of pods, by the pods' uids.
    pub cgroups: HashMap<String, String>,
    /// Processors and bytes of memory of the machine.
    pub machine: (usize, i64),
}

/// A cgroup.
#[derive(Default)]
struct Row<'a> {
    id: String,
    name: &'a str,
    image: &'a str,
    container: &'a str,
    pod: &'a str,
    namespace: &'a str,
    /// Seconds since the epoch.
    started_at: i64,
    cpu: CpuUsage,
    memory: MemoryUsage,
    swap: Option<u64>,
    io: Option<Pressure>,
    network: Option<&'a NetworkUsage>,
    disk_io: &'a [DeviceIo],
    disks: Vec<Disk<'a>>,
    oom_events: Option<u64>,
    processes: Option<u64>,
}

fn stalled(pressure: Option<Pressure>, which: fn(&Pressure) -> PressureStall) -> Option<f64> {
    pressure.map(|p| which(&p).total_nanos as f64 / 1e9)
}

impl Row<'_> {
    fn labels(&self, more: &[(&str, &str)]) -> String {
        let own = [
            ("container", self.container),
            ("id", self.id.as_str()),
            ("image", self.image),
            ("name", self.name),
            ("namespace", self.namespace),
            ("pod", self.pod),
        ];
        let mut all: Vec<(&str, &str)> = own.into_iter().chain(more.iter().copied()).collect();
        all.sort_unstable();
        labels(&all)
    }

    fn sample(&self, more: &[(&str, &str)], value: f64) -> Sample {
        Sample { labels: self.labels(more), value, at: Some(millis(self.cpu.at_nanos)) }
    }
}

fn rows<'a>(reading: &'a Reading, names: &'a Names) -> Vec<Row<'a>> {
    let node = &reading.node;
    let mut all = vec![Row {
        id: "/".to_owned(),
        started_at: node.booted_at,
        cpu: node.cpu,
        memory: node.memory,
        swap: Some(node.swap.usage),
        io: node.io_pressure,
        network: Some(&node.network),
        disks: node_disks(reading),
        ..Row::default()
    }];
    for usage in &reading.pods {
        all.extend(pod_rows(usage, reading, names));
    }
    all
}

/// The node's file systems: that of volumes and logs, and those of images and layers where these are others.
fn node_disks(reading: &Reading) -> Vec<Disk<'_>> {
    let [volumes, images, layers] = &reading.devices;
    let others = [(&reading.images, images), (&reading.layers, layers)];
    let others = others.into_iter().filter_map(|(found, device)| Some((found.as_ref()?.1, device)));
    let mut disks: Vec<Disk<'_>> = vec![];
    for (disk, device) in std::iter::once((reading.disk, volumes)).chain(others) {
        if !device.is_empty() && !disks.iter().any(|known| known.device == device) {
            disks.push(Disk { device, disk, used: disk.used });
        }
    }
    disks
}

fn pod_rows<'a>(usage: &'a PodUsage, reading: &'a Reading, names: &'a Names) -> Vec<Row<'a>> {
    let [.., device] = &reading.devices;
    let layers = reading.layers.as_ref().map(|(_, disk)| *disk).filter(|_| !device.is_empty());
    let (pod, stats) = (&usage.pod, &usage.stats);
    let cgroup = names.cgroups.get(&pod.uid).cloned().unwrap_or_else(|| format!("/kubepods/pod{}", pod.uid));
    let mut all: Vec<Row<'a>> = stats
        .containers
        .iter()
        .map(|c| Row {
            id: format!("{cgroup}/{}", c.id),
            name: &c.id,
            image: names.images.get(&c.id).map(String::as_str).unwrap_or_default(),
            container: &c.name,
            pod: &pod.name,
            namespace: &pod.namespace,
            started_at: c.started_at_nanos / 1_000_000_000,
            cpu: c.cpu,
            memory: c.memory,
            swap: Some(c.swap.map_or(0, |s| s.usage)),
            io: c.io_pressure,
            disk_io: &c.disk_io,
            disks: layers
                .iter()
                .map(|disk| Disk { device, disk: *disk, used: c.writable_layer_bytes })
                .collect(),
            oom_events: Some(c.oom_events),
            ..Row::default()
        })
        .collect();
    all.push(Row {
        id: cgroup,
        name: "",
        pod: &pod.name,
        namespace: &pod.namespace,
        started_at: usage.created_at_nanos / 1_000_000_000,
        cpu: stats.cpu,
        memory: stats.memory,
        swap: Some(stats.swap.map_or(0, |s| s.usage)),
        network: stats.network.as_ref(),
        disk_io: &stats.disk_io,
        processes: Some(stats.processes),
        ..Row::default()
    });
    all
}

/// The page of a reading.
pub(in crate::server) fn page(reading: &Reading, names: &Names) -> String {
    let rows = rows(reading, names);
    let mut page = Page::default();
    let cpu = |r: &Row<'_>| r.sample(&[("cpu", "total")], r.cpu.core_nanos as f64 / 1e9);
    page.family(CPU, rows.iter().map(cpu));
    let failures = |r: &Row<'_>| {
        let of = |kind: &str, count: u64| {
            r.sample(&[("failure_type", kind), ("scope", "container")], count as f64)
        };
        [of("pgfault", r.memory.page_faults), of("pgmajfault", r.memory.major_page_faults)]
    };
    page.family(FAILURES, rows.iter().flat_map(failures));
    for (family, value) in COLUMNS {
        let samples = rows.iter().filter_map(|r| Some(r.sample(&[], value(r)?)));
        // The start is a fact of the container, not a reading.
        let timed = family.name != START.name;
        page.family(family, samples.map(|s| Sample { at: s.at.filter(|_| timed), ..s }));
    }
    for (family, value) in COUNTERS {
        let of = |r: &Row<'_>| -> Vec<Sample> {
            let interfaces = r.network.map(|n| n.interfaces.as_slice()).unwrap_or_default();
            let of = |i: &InterfaceUsage| Some(r.sample(&[("interface", &i.name)], value(i)? as f64));
            interfaces.iter().filter_map(of).collect()
        };
        page.family(family, rows.iter().flat_map(of));
    }
    for (family, value) in DISK_COUNTERS {
        let of = |r: &Row<'_>| -> Vec<Sample> {
            r.disk_io.iter().map(|d| r.sample(&[("device", &d.device)], value(d) as f64)).collect()
        };
        page.family(family, rows.iter().flat_map(of));
    }
    for (family, value) in DISK_GAUGES {
        let of = |r: &Row<'_>| -> Vec<Sample> {
            r.disks.iter().map(|d| r.sample(&[("device", d.device)], value(d) as f64)).collect()
        };
        page.family(family, rows.iter().flat_map(of));
    }
    page.single(Family::gauge("machine_cpu_cores", "Number of logical CPU cores."), names.machine.0 as f64);
    page.single(
        Family::gauge("machine_memory_bytes", "Amount of memory installed on the machine."),
        names.machine.1 as f64,
    );
    page.single(SCRAPE, 0.0);
    page.finish()
}

const SCRAPE: Family = Family::gauge(
    "container_scrape_error",
    "1 if there was an error while getting container metrics, 0 otherwise",
);

/// The page when nothing could be read.
pub(in crate::server) fn failed() -> String {
    let mut page = Page::default();
    page.single(SCRAPE, 1.0);
    page.finish()
}
