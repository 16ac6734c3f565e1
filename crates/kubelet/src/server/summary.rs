//! `/stats/summary`: a reading as upstream's `stats/v1alpha1` shows it.
//!
//! Pure. Source: upstream's `pkg/kubelet/apis/stats/v1alpha1` and `pkg/kubelet/stats`.

use super::usage::{PodUsage, Reading, VolumeUsage};
use crate::node::usage::FileSystem;
use jiff::Timestamp;
use kaji_containers::{
    ContainerStats, CpuUsage, FilesystemUsage, MemoryUsage, NetworkUsage, Pressure, PressureStall, SwapUsage,
};
use kaji_files::DirectoryUsage;
use kaji_meta::time::Time;
use serde_json::{Map, Value, json};

/// The summary of a reading; with `cores_and_memory`, only those.
pub(super) fn page(node: &str, reading: &Reading, cores_and_memory: bool) -> Value {
    let usage = &reading.node;
    let at = reading.at;
    let mut shown = json!({
        "nodeName": node,
        "startTime": time(Timestamp::from_second(usage.booted_at).unwrap_or(at)),
        "cpu": cpu(&usage.cpu),
        "memory": memory(&usage.memory),
        "swap": swap(&usage.swap),
    });
    if !cores_and_memory {
        let disk = &reading.disk;
        let used = DirectoryUsage { bytes: disk.used, inodes: disk.inodes.saturating_sub(disk.inodes_free) };
        shown["fs"] = disk_usage(at, disk, used);
        shown["network"] = network(&usage.network);
        let stored = |of: &Option<(FilesystemUsage, FileSystem)>| {
            let (used, disk) = of.as_ref()?;
            let usage = DirectoryUsage { bytes: used.used_bytes, inodes: used.inodes_used };
            Some(disk_usage(from_nanos(used.at_nanos), disk, usage))
        };
        let runtime = [("imageFs", stored(&reading.images)), ("containerFs", stored(&reading.layers))];
        shown["runtime"] = runtime.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?))).collect();
        shown["rlimit"] = fields(
            [("maxpid", usage.most_processes), ("curproc", usage.processes)],
            json!({"time": time(at)}),
        );
        if let Some(io) = &usage.io_pressure {
            shown["io"] = json!({"time": time(at), "psi": psi(io)});
        }
    }
    let pods: Vec<Value> = reading.pods.iter().map(|p| pod(p, reading, cores_and_memory)).collect();
    json!({"node": shown, "pods": pods})
}

fn pod(usage: &PodUsage, reading: &Reading, cores_and_memory: bool) -> Value {
    let stats = &usage.stats;
    let log = |name: &str| usage.logs.get(name).copied().unwrap_or_default();
    let of = |c: &ContainerStats| container(c, log(&c.name), reading, cores_and_memory);
    let mut shown = json!({
        "podRef": {"name": usage.pod.name, "namespace": usage.pod.namespace, "uid": usage.pod.uid},
        "startTime": time(from_nanos(usage.created_at_nanos)),
        "containers": stats.containers.iter().map(of).collect::<Vec<Value>>(),
        "cpu": cpu(&stats.cpu),
        "memory": memory(&stats.memory),
    });
    if let Some(usage) = &stats.swap {
        shown["swap"] = swap(usage);
    }
    if cores_and_memory {
        return shown;
    }
    if let Some(counters) = &stats.network {
        shown["network"] = network(counters);
    }
    if !usage.volumes.is_empty() {
        let of = |volume: &VolumeUsage| {
            let mut shown = disk_usage(reading.at, &volume.disk, volume.used);
            shown["name"] = json!(volume.name);
            if let Some(claim) = &volume.claim {
                shown["pvcRef"] = json!({"name": claim, "namespace": usage.pod.namespace});
            }
            shown
        };
        shown["volume"] = usage.volumes.iter().map(of).collect();
    }
    shown["ephemeral-storage"] = disk_usage(reading.at, &reading.disk, ephemeral(usage));
    shown["process_stats"] = json!({"process_count": stats.processes});
    shown
}

/// Writable layers, logs, and volumes that count.
fn ephemeral(usage: &PodUsage) -> DirectoryUsage {
    let layers = usage.stats.containers.iter().map(layer);
    let logs = usage.stats.containers.iter().filter_map(|c| usage.logs.get(&c.name).copied());
    let volumes = usage.volumes.iter().filter(|v| v.ephemeral).map(|v| v.used);
    layers.chain(logs).chain(volumes).sum()
}

fn layer(stats: &ContainerStats) -> DirectoryUsage {
    DirectoryUsage { bytes: stats.writable_layer_bytes, inodes: stats.writable_layer_inodes }
}

fn container(
    stats: &ContainerStats,
    log: DirectoryUsage,
    reading: &Reading,
    cores_and_memory: bool,
) -> Value {
    let mut shown = json!({
        "name": stats.name,
        "startTime": time(from_nanos(stats.started_at_nanos)),
        "cpu": cpu(&stats.cpu),
        "memory": memory(&stats.memory),
    });
    if let Some(usage) = &stats.swap {
        shown["swap"] = swap(usage);
    }
    if cores_and_memory {
        return shown;
    }
    if let Some(io) = &stats.io_pressure {
        shown["io"] = json!({"time": time(from_nanos(stats.cpu.at_nanos)), "psi": psi(io)});
    }
    let disk = reading.layers.as_ref().map_or(&reading.disk, |(_, disk)| disk);
    shown["rootfs"] = disk_usage(reading.at, disk, layer(stats));
    shown["logs"] = disk_usage(reading.at, &reading.disk, log);
    shown
}

fn from_nanos(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn time(at: Timestamp) -> String {
    Time::new(at).to_string()
}

/// Adds the fields that are there.
fn fields<T: Into<Value>, const N: usize>(all: [(&str, Option<T>); N], mut to: Value) -> Value {
    let there = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
    let there: Map<String, Value> = there.collect();
    if let Some(object) = to.as_object_mut() {
        object.extend(there);
    }
    to
}

fn cpu(usage: &CpuUsage) -> Value {
    let at = from_nanos(usage.at_nanos);
    let shown = json!({"time": time(at), "usageCoreNanoSeconds": usage.core_nanos});
    let shown = fields([("usageNanoCores", usage.nano_cores)], shown);
    fields([("psi", usage.pressure.as_ref().map(psi))], shown)
}

fn memory(usage: &MemoryUsage) -> Value {
    let shown = json!({
        "time": time(from_nanos(usage.at_nanos)),
        "usageBytes": usage.usage,
        "workingSetBytes": usage.working_set,
        "rssBytes": usage.rss,
        "pageFaults": usage.page_faults,
        "majorPageFaults": usage.major_page_faults,
    });
    let shown = fields([("availableBytes", usage.available)], shown);
    fields([("psi", usage.pressure.as_ref().map(psi))], shown)
}

fn swap(usage: &SwapUsage) -> Value {
    json!({
        "time": time(from_nanos(usage.at_nanos)),
        "swapAvailableBytes": usage.available,
        "swapUsageBytes": usage.usage,
    })
}

fn psi(pressure: &Pressure) -> Value {
    let stall = |stall: &PressureStall| json!({"total": stall.total_nanos, "avg10": stall.avg10, "avg60": stall.avg60, "avg300": stall.avg300});
    json!({"full": stall(&pressure.full), "some": stall(&pressure.some)})
}

/// All interfaces, and the one named `eth0` in front where there is one.
fn network(usage: &NetworkUsage) -> Value {
    let all: Vec<Value> = usage
        .interfaces
        .iter()
        .map(|i| {
            json!({
                "name": i.name,
                "rxBytes": i.rx_bytes,
                "rxErrors": i.rx_errors,
                "txBytes": i.tx_bytes,
                "txErrors": i.tx_errors,
            })
        })
        .collect();
    let mut shown = all.iter().find(|i| i["name"] == "eth0").cloned().unwrap_or_else(|| json!({"name": ""}));
    shown["time"] = json!(time(from_nanos(usage.at_nanos)));
    shown["interfaces"] = json!(all);
    shown
}

fn disk_usage(at: Timestamp, disk: &FileSystem, used: DirectoryUsage) -> Value {
    json!({
        "time": time(at),
        "availableBytes": disk.available,
        "capacityBytes": disk.capacity,
        "usedBytes": used.bytes,
        "inodesFree": disk.inodes_free,
        "inodes": disk.inodes,
        "inodesUsed": used.inodes,
    })
}
