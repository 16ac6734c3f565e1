//! What can be measured: labels, units, the reference that a figure is compared with, and the aim. Data only.
//!
//! The reference figures are of kube-apiserver 1.36 with etcd 3.6 on a machine like the one that Kaji is developed on;
//! the aims are Kaji's own.

use super::stats::Unit;

/// Which way a figure should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Up.
    More,
    /// Down.
    Less,
    /// It says what the load was.
    Neither,
}

/// One figure: what it is and what it is held against.
pub struct Measure {
    /// Its name in JSON.
    pub id: &'static str,
    /// What it is, with counts in braces.
    pub label: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// What it is compared with.
    pub reference: Option<f64>,
    /// Where this project aims to be.
    pub aim: Option<f64>,
    /// Which way is better.
    pub better: Better,
    /// Whether the value depends on a count that `--scale` changes.
    pub sized: bool,
}

const fn less(id: &'static str, label: &'static str, unit: Unit, against: [f64; 2], sized: bool) -> Measure {
    Measure {
        id,
        label,
        unit,
        reference: known(against[0]),
        aim: known(against[1]),
        better: Better::Less,
        sized,
    }
}

const fn instructions(id: &'static str, label: &'static str) -> Measure {
    less(id, label, Unit::Count, [NONE, NONE], false)
}

const fn more(id: &'static str, label: &'static str, against: [f64; 2]) -> Measure {
    let [reference, aim] = against;
    Measure {
        id,
        label,
        unit: Unit::PerSecond,
        reference: known(reference),
        aim: known(aim),
        better: Better::More,
        sized: false,
    }
}

const fn ratio(id: &'static str, label: &'static str, aim: f64) -> Measure {
    Measure { unit: Unit::Ratio, ..more(id, label, [NONE, aim]) }
}

const fn known(value: f64) -> Option<f64> {
    if value.is_nan() { None } else { Some(value) }
}

/// Neither reference nor aim.
const NONE: f64 = f64::NAN;

/// Everything that can be measured, in the order of the table: reference, then aim.
pub const MEASURES: &[Measure] = &[
    less("start", "start: exec to /readyz", Unit::Seconds, [3.2, 0.06], false),
    less("idle_memory", "memory, idle", Unit::Bytes, [520e6, 20e6], false),
    less("crds_served", "{crds} CRDs: created until all are served", Unit::Seconds, [35.0, 0.5], true),
    less("crds_memory", "{crds} CRDs: memory", Unit::Bytes, [2.2e9, NONE], true),
    less("crds_cost", "{crds} CRDs: memory on top of before", Unit::Bytes, [1.7e9, 30e6], true),
    less("crds_read_quiet_p50", "GET before the CRDs, p50", Unit::Seconds, [NONE, NONE], false),
    less("crds_read_p50", "GET while {crds} CRDs are created, p50", Unit::Seconds, [NONE, NONE], true),
    less("crds_read_quiet", "GET before the CRDs, p99", Unit::Seconds, [NONE, NONE], false),
    less("crds_read", "GET while {crds} CRDs are created, p99", Unit::Seconds, [NONE, NONE], true),
    less(
        "crds_read_most",
        "GET while {crds} CRDs are created, the slowest",
        Unit::Seconds,
        [NONE, NONE],
        true,
    ),
    more("pod_creates", "creates, 64 clients: pods of 4 kB", [705.0, 14e3]),
    less("pods_memory", "memory with {pods} pods (reference: 60,000)", Unit::Bytes, [2.16e9, NONE], true),
    more("gets", "GETs, 64 clients: pods", [1447.0, 43e3]),
    Measure {
        better: Better::Neither,
        ..less("list_bytes", "LIST of {pods} pods: length", Unit::Bytes, [196e6, NONE], true)
    },
    less("list", "LIST of {pods} pods: time", Unit::Seconds, [2.7, 0.18], true),
    less("list_memory", "LIST of {pods} pods: memory on top", Unit::Bytes, [NONE, NONE], true),
    less("lists", "eight such LISTs at once: time", Unit::Seconds, [43.0, 1.7], true),
    less("lists_memory", "eight such LISTs at once: memory on top", Unit::Bytes, [1.2e9, 8e6], true),
    less("serial_p50", "create, one client: ConfigMap, p50", Unit::Seconds, [3.0e-3, NONE], false),
    less("serial_p99", "create, one client: ConfigMap, p99", Unit::Seconds, [NONE, NONE], false),
    less("serial_pod_p50", "create, one client: pod of 4 kB, p50", Unit::Seconds, [3.0e-3, NONE], false),
    less("serial_pod_p99", "create, one client: pod of 4 kB, p99", Unit::Seconds, [NONE, NONE], false),
    more("creates", "creates, 64 clients: ConfigMaps of 1 kB", [705.0, 14e3]),
    more("watch_events", "watch: events to {watchers} watchers", [70e3, 700e3]),
    less("watch_lost", "watch: events lost", Unit::Count, [NONE, 0.0], false),
    more("bound", "{bound} pods: created and bound", [312.0, 6e3]),
    more("scheduled_1000", "spread {bound} pods on 1,000 nodes: created and bound", [NONE, 6e3]),
    more("bind_1000", "spread {bound} pods on 1,000 nodes: bound alone", [NONE, 6e3]),
    more("scheduled_5000", "spread {bound} pods on 5,000 nodes: created and bound", [NONE, NONE]),
    more("bind_5000", "spread {bound} pods on 5,000 nodes: bound alone", [NONE, 3e3]),
    less(
        "deployment_ready",
        "Deployment of {replicas} replicas: created to ready",
        Unit::Seconds,
        [NONE, NONE],
        true,
    ),
    less(
        "deployment_rolled",
        "Deployment of {replicas} replicas: rolled to another image",
        Unit::Seconds,
        [NONE, NONE],
        true,
    ),
    less("settled_cpu", "settled nodes: CPU a second of all loops", Unit::Seconds, [NONE, 0.03], false),
    less("flood_get_quiet", "GET of a user alone, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_get_beside", "GET, another server being flooded, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_get", "GET, this server being flooded, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_get_ratio", "GET: this server by another", Unit::Ratio, [NONE, 2.0], false),
    less("flood_list_quiet", "LIST of a user alone, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_list_beside", "LIST, another server being flooded, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_list", "LIST, this server being flooded, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_list_ratio", "LIST: this server by another", Unit::Ratio, [NONE, 2.0], false),
    less("flood_create_quiet", "create of a user alone, p99", Unit::Seconds, [NONE, NONE], false),
    less(
        "flood_create_beside",
        "create, another server being flooded, p99",
        Unit::Seconds,
        [NONE, NONE],
        false,
    ),
    less("flood_create", "create, this server being flooded, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_create_ratio", "create: this server by another", Unit::Ratio, [NONE, 2.0], false),
    Measure { better: Better::Neither, ..more("flood_rate", "the flood, answered", [NONE, NONE]) },
    less(
        "cost_bare",
        "server CPU for a GET without flow control and audit",
        Unit::Seconds,
        [NONE, NONE],
        false,
    ),
    less("cost_fair", "server CPU for a GET: with flow control by without", Unit::Ratio, [NONE, NONE], false),
    less("cost_audit", "server CPU for a GET: with audit by without", Unit::Ratio, [NONE, NONE], false),
    instructions("instructions_get", "instructions: GET of a ConfigMap"),
    instructions("instructions_config_map", "instructions: create, one client, ConfigMap of 1 kB"),
    instructions("instructions_pod", "instructions: create, one client, pod of 4 kB"),
    instructions("instructions_config_maps", "instructions: create, 16 clients, ConfigMap of 1 kB"),
    instructions("instructions_pods", "instructions: create, 16 clients, pod of 4 kB"),
    instructions("instructions_event", "instructions: event to one of 50 watchers"),
    more("etcd_creates", "etcd: creates: ConfigMaps of 1 kB", [NONE, NONE]),
    more("etcd_creates_bare", "etcd: the same writes without a server", [NONE, NONE]),
    ratio("etcd_creates_ratio", "etcd: creates by writes without a server", 0.9),
    more("etcd_pods", "etcd: creates: pods of 4 kB", [NONE, NONE]),
    more("etcd_pods_bare", "etcd: the same writes of pods without a server", [NONE, NONE]),
    ratio("etcd_pods_ratio", "etcd: creates of pods by writes without a server", 0.9),
    more("etcd_gets", "etcd: GETs: pods", [NONE, NONE]),
    more("etcd_gets_embedded", "etcd: GETs with the embedded store", [NONE, NONE]),
    ratio("etcd_gets_ratio", "etcd: GETs by those with the embedded store", 1.0),
    less("etcd_list", "etcd: LIST of the pods: time", Unit::Seconds, [NONE, NONE], true),
    less("etcd_list_embedded", "etcd: LIST with the embedded store: time", Unit::Seconds, [NONE, NONE], true),
    ratio("etcd_list_ratio", "etcd: speed of LIST by that with the embedded store", 1.0),
    less("restart", "restart with {restart} pods: exec to /readyz", Unit::Seconds, [NONE, NONE], true),
    less("restart_memory", "restart with {restart} pods: memory", Unit::Bytes, [2.16e9, NONE], true),
    less("node_run_p50", "node: pod created to Running, p50", Unit::Seconds, [NONE, 0.08], false),
    less("node_run_p99", "node: pod created to Running, p99", Unit::Seconds, [NONE, NONE], false),
    less("node_gone_p50", "node: pod deleted to gone, p50", Unit::Seconds, [NONE, NONE], false),
    less("node_life_cpu", "node: CPU of a pod's life", Unit::Seconds, [NONE, NONE], false),
    less("node_at_once", "node: {at_once} pods at once, all Running", Unit::Seconds, [NONE, 3.0], true),
    less("node_at_once_cpu", "node: CPU of one of them until then", Unit::Seconds, [NONE, NONE], true),
    less("node_idle_cpu", "node: CPU a second with {at_once} pods", Unit::Seconds, [NONE, 0.01], true),
    less("node_pod_memory", "node: memory a pod, proportional", Unit::Bytes, [NONE, 2e6], true),
    less(
        "node_service_p50",
        "node: request to a service, new connection, p50",
        Unit::Seconds,
        [NONE, NONE],
        false,
    ),
    less(
        "node_service_p99",
        "node: request to a service, new connection, p99",
        Unit::Seconds,
        [NONE, NONE],
        false,
    ),
    less(
        "node_exec_p50",
        "node: exec, from the connection to the status, p50",
        Unit::Seconds,
        [NONE, 0.015],
        false,
    ),
    less(
        "node_exec_p99",
        "node: exec, from the connection to the status, p99",
        Unit::Seconds,
        [NONE, NONE],
        false,
    ),
    more("node_dns_rate", "node: DNS queries, 16 clients", [NONE, NONE]),
    less("node_dns_p50", "node: DNS query, p50", Unit::Seconds, [NONE, NONE], false),
    less("node_dns_p99", "node: DNS query, p99", Unit::Seconds, [NONE, NONE], false),
    less("node_dns_new_p50", "node: a new service until DNS has it, p50", Unit::Seconds, [NONE, NONE], false),
    less("node_dns_new_p99", "node: a new service until DNS has it, p99", Unit::Seconds, [NONE, 0.1], false),
    less(
        "node_services",
        "node: {services} services created until they answer",
        Unit::Seconds,
        [NONE, NONE],
        true,
    ),
    less("node_service_added", "node: one more created until it answers", Unit::Seconds, [NONE, NONE], true),
];
