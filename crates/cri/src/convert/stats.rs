//! What containers and pods use.

use super::sandbox;
use crate::messages as cri;
use kaji_containers::{
    ContainerStats, CpuUsage, InterfaceUsage, MemoryUsage, NetworkUsage, PodSandboxStats, Pressure,
    PressureStall, SwapUsage,
};

fn number(value: Option<cri::Uint64Value>) -> u64 {
    value.map_or(0, |value| value.value)
}

fn pressure(psi: Option<cri::PsiStats>) -> Option<Pressure> {
    let line = |data: Option<cri::PsiData>| {
        let data = data.unwrap_or_default();
        PressureStall { total_nanos: data.total, avg10: data.avg10, avg60: data.avg60, avg300: data.avg300 }
    };
    psi.map(|psi| Pressure { full: line(psi.full), some: line(psi.some) })
}

fn cpu(usage: Option<cri::CpuUsage>) -> CpuUsage {
    let usage = usage.unwrap_or_default();
    CpuUsage {
        at_nanos: usage.timestamp,
        core_nanos: number(usage.usage_core_nano_seconds),
        nano_cores: usage.usage_nano_cores.map(|value| value.value),
        pressure: pressure(usage.psi),
        throttling: None,
    }
}

fn memory(usage: Option<cri::MemoryUsage>) -> MemoryUsage {
    let usage = usage.unwrap_or_default();
    MemoryUsage {
        at_nanos: usage.timestamp,
        working_set: number(usage.working_set_bytes),
        // Runtimes say 0 without a limit.
        available: usage.available_bytes.map(|value| value.value).filter(|bytes| *bytes > 0),
        usage: number(usage.usage_bytes),
        rss: number(usage.rss_bytes),
        page_faults: number(usage.page_faults),
        major_page_faults: number(usage.major_page_faults),
        pressure: pressure(usage.psi),
        ..MemoryUsage::default()
    }
}

/// Of a container.
#[must_use]
pub fn container(stats: cri::ContainerStats) -> ContainerStats {
    let attributes = stats.attributes.unwrap_or_default();
    let metadata = attributes.metadata.unwrap_or_default();
    let layer = stats.writable_layer.unwrap_or_default();
    ContainerStats {
        id: attributes.id,
        name: metadata.name,
        attempt: metadata.attempt,
        labels: attributes.labels,
        // The status has it, the figures do not.
        started_at_nanos: 0,
        cpu: cpu(stats.cpu),
        memory: memory(stats.memory),
        swap: stats.swap.map(|swap| SwapUsage {
            at_nanos: swap.timestamp,
            available: number(swap.swap_available_bytes),
            usage: number(swap.swap_usage_bytes),
        }),
        writable_layer_bytes: number(layer.used_bytes),
        writable_layer_inodes: number(layer.inodes_used),
        io_pressure: stats.io.and_then(|io| pressure(io.psi)),
        oom_events: 0,
        disk_io: vec![],
    }
}

fn interface(usage: cri::NetworkInterfaceUsage) -> InterfaceUsage {
    InterfaceUsage {
        name: usage.name,
        rx_bytes: number(usage.rx_bytes),
        rx_errors: number(usage.rx_errors),
        tx_bytes: number(usage.tx_bytes),
        tx_errors: number(usage.tx_errors),
        packets: None,
    }
}

fn network(usage: cri::NetworkUsage) -> NetworkUsage {
    let first = usage.default_interface.map(interface);
    let others = usage.interfaces.into_iter().map(interface);
    let others: Vec<_> =
        others.filter(|other| first.as_ref().is_none_or(|first| first.name != other.name)).collect();
    NetworkUsage { at_nanos: usage.timestamp, interfaces: first.into_iter().chain(others).collect() }
}

/// Of a sandbox and its containers.
#[must_use]
pub fn pod(stats: cri::PodSandboxStats) -> PodSandboxStats {
    let attributes = stats.attributes.unwrap_or_default();
    let linux = stats.linux.unwrap_or_default();
    PodSandboxStats {
        id: attributes.id,
        pod_uid: sandbox::metadata_of(attributes.metadata.as_ref()).uid,
        cpu: cpu(linux.cpu),
        memory: memory(linux.memory),
        swap: None,
        network: linux.network.map(network),
        processes: linux.process.and_then(|process| process.process_count).map_or(0, |count| count.value),
        containers: linux.containers.into_iter().map(container).collect(),
        disk_io: vec![],
    }
}
