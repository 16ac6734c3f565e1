//! The families of a kubelet's metrics that are counted or timed as things happen: upstream's names, texts, labels and buckets.
//!
//! Source: upstream's `pkg/kubelet/metrics/metrics.go`, `pkg/kubelet/prober` and `pkg/credentialprovider/plugin/metrics.go`.

use kaji_exposition::Family;

/// A counter.
#[derive(Debug)]
pub(crate) struct Counted(pub Family);

/// A histogram of seconds.
#[derive(Debug)]
pub(crate) struct Timed {
    pub family: Family,
    /// Upper bounds, ascending.
    pub buckets: &'static [f64],
}

const fn counted(name: &'static str, help: &'static str) -> Counted {
    Counted(Family::counter(name, help))
}

const fn timed(name: &'static str, help: &'static str, buckets: &'static [f64]) -> Timed {
    Timed { family: Family::histogram(name, help), buckets }
}

/// The Go client library's.
pub(crate) const USUAL: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// 5 ms, and each 2.5 times the one before.
const OPERATIONS: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078_125,
    0.195_312_5,
    0.488_281_25,
    1.220_703_125,
    3.051_757_812_5,
    7.629_394_531_25,
    19.073_486_328_125,
    47.683_715_820_312_5,
    119.209_289_550_781_25,
    298.023_223_876_953_1,
    745.058_059_692_382_8,
];
const STARTS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0,
    480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const PULLS: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0,
    2700.0, 3600.0,
];
const STATUSES: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// 15 from 100 ms to 40 s, each the same factor larger.
const DRA: &[f64] = &[
    0.1,
    0.153_412_740_463_439_1,
    0.235_354_689_365_025_24,
    0.361_064_078_764_099_46,
    0.553_918_298_061_075_2,
    0.849_781_240_983_936_5,
    1.303_672_689_737_678_2,
    2.0,
    3.068_254_809_268_781_4,
    4.707_093_787_300_507,
    7.221_281_575_281_991,
    11.078_365_961_221_504,
    16.995_624_819_678_72,
    26.073_453_794_753_576,
    40.0,
];

pub(crate) static POD_RESOURCES_REQUESTS: Counted = counted(
    "kubelet_pod_resources_endpoint_requests_total",
    "[ALPHA] Cumulative number of requests to the PodResource endpoint. Broken down by server api version.",
);
pub(crate) static POD_RESOURCES_LISTS: Counted = counted(
    "kubelet_pod_resources_endpoint_requests_list",
    "[ALPHA] Number of requests to the PodResource List endpoint. Broken down by server api version.",
);
pub(crate) static POD_RESOURCES_ALLOCATABLE: Counted = counted(
    "kubelet_pod_resources_endpoint_requests_get_allocatable",
    "[ALPHA] Number of requests to the PodResource GetAllocatableResources endpoint. Broken down by server api version.",
);
pub(crate) static PODS_REQUESTS: Counted = counted(
    "kubelet_pod_requests_total",
    "[ALPHA] Cumulative number of requests to the PodsAPI endpoint. Broken down by server api version and status code.",
);
pub(crate) static PODS_LISTS: Counted = counted(
    "kubelet_pod_requests_list_total",
    "[ALPHA] Number of requests to the PodsAPI List endpoint. Broken down by server api version and status code.",
);
pub(crate) static PODS_GETS: Counted = counted(
    "kubelet_pod_requests_get_total",
    "[ALPHA] Number of requests to the PodsAPI Get endpoint. Broken down by server api version and status code.",
);
pub(crate) static PODS_WATCHES: Counted = counted(
    "kubelet_pod_requests_watch_total",
    "[ALPHA] Number of requests to the PodsAPI Watch endpoint. Broken down by server api version and status code.",
);
pub(crate) static POD_EVENTS_DROPPED: Counted = counted(
    "kubelet_pod_watch_events_dropped_total",
    "[ALPHA] Cumulative number of pod watch events dropped.",
);
pub(crate) static POD_RESOURCES_GETS: Counted = counted(
    "kubelet_pod_resources_endpoint_requests_get",
    "[ALPHA] Number of requests to the PodResource Get endpoint. Broken down by server api version.",
);
pub(crate) static POD_RESOURCES_GET_ERRORS: Counted = counted(
    "kubelet_pod_resources_endpoint_errors_get",
    "[ALPHA] Number of requests to the PodResource Get endpoint which returned error. Broken down by server api version.",
);
pub(crate) static DRA_OPERATIONS: Timed = timed(
    "dra_operations_duration_seconds",
    "[ALPHA] Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod when the pod starts or stops. Identified by the name of the operation (PrepareResources or UnprepareResources) and separated by the success of the operation. The number of failed operations is provided through the histogram's overall count.",
    DRA,
);
pub(crate) static DRA_CALLS: Timed = timed(
    "dra_grpc_operations_duration_seconds",
    "[ALPHA] Duration in seconds of the DRA gRPC operations",
    DRA,
);
pub(crate) static RUNTIME_OPERATIONS: Counted = counted(
    "kubelet_runtime_operations_total",
    "[ALPHA] Cumulative number of runtime operations by operation type.",
);
pub(crate) static RUNTIME_ERRORS: Counted = counted(
    "kubelet_runtime_operations_errors_total",
    "[ALPHA] Cumulative number of runtime operation errors by operation type.",
);
pub(crate) static RUNTIME_TIMES: Timed = timed(
    "kubelet_runtime_operations_duration_seconds",
    "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.",
    OPERATIONS,
);
pub(crate) static SANDBOX_TIMES: Timed = timed(
    "kubelet_run_podsandbox_duration_seconds",
    "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
    USUAL,
);
pub(crate) static SANDBOX_ERRORS: Counted = counted(
    "kubelet_run_podsandbox_errors_total",
    "[ALPHA] Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
);
pub(crate) static STARTED_PODS: Counted =
    counted("kubelet_started_pods_total", "[ALPHA] Cumulative number of pods started");
pub(crate) static FAILED_PODS: Counted =
    counted("kubelet_started_pods_errors_total", "[ALPHA] Cumulative number of errors when starting pods");
pub(crate) static STARTED_CONTAINERS: Counted =
    counted("kubelet_started_containers_total", "[ALPHA] Cumulative number of containers started");
pub(crate) static FAILED_CONTAINERS: Counted = counted(
    "kubelet_started_containers_errors_total",
    "[ALPHA] Cumulative number of errors when starting containers",
);
pub(crate) static POD_SYNCS: Timed = timed(
    "kubelet_pod_worker_duration_seconds",
    "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
    USUAL,
);
pub(crate) static POD_STARTS: Timed = timed(
    "kubelet_pod_start_duration_seconds",
    "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
    STARTS,
);
pub(crate) static POD_TOTAL_STARTS: Timed = timed(
    "kubelet_pod_start_total_duration_seconds",
    "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
    STARTS,
);
pub(crate) static STATUS_WRITES: Timed = timed(
    "kubelet_pod_status_sync_duration_seconds",
    "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.",
    STATUSES,
);
pub(crate) static RELISTS: Timed = timed(
    "kubelet_pleg_relist_duration_seconds",
    "[ALPHA] Duration in seconds for relisting pods in PLEG.",
    USUAL,
);
pub(crate) static RELIST_INTERVALS: Timed = timed(
    "kubelet_pleg_relist_interval_seconds",
    "[ALPHA] Interval in seconds between relisting in PLEG.",
    USUAL,
);
/// When the runtime was listed last.
pub(crate) const LISTED_AT: Family = Family::gauge(
    "kubelet_pleg_last_seen_seconds",
    "[ALPHA] Timestamp in seconds when PLEG was last seen active.",
);
/// When the last graceful shutdown began.
pub(crate) const SHUTDOWN_BEGAN: Family = Family::gauge(
    "kubelet_graceful_shutdown_start_time_seconds",
    "[ALPHA] Last graceful shutdown start time since unix epoch in seconds",
);
/// When it ended; 0 while it goes on. Its text is upstream's.
pub(crate) const SHUTDOWN_ENDED: Family = Family::gauge(
    "kubelet_graceful_shutdown_end_time_seconds",
    "[ALPHA] Last graceful shutdown start time since unix epoch in seconds",
);
/// What is protected of guaranteed pods.
pub(crate) const MEMORY_MIN: Family = Family::gauge(
    "kubelet_memory_qos_node_memory_min_bytes",
    "[ALPHA] Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved and never reclaimed by the kernel.",
);
/// The same of burstable ones.
pub(crate) const MEMORY_LOW: Family = Family::gauge(
    "kubelet_memory_qos_node_memory_low_bytes",
    "[ALPHA] Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved and may be reclaimed under extreme pressure.",
);
pub(crate) static ORPHANS: Counted = counted(
    "kubelet_orphaned_runtime_pods_total",
    "[ALPHA] Number of pods that have been detected in the container runtime without being already known to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual.",
);
pub(crate) static EVICTIONS: Counted =
    counted("kubelet_evictions", "[ALPHA] Cumulative number of pod evictions by eviction signal");
pub(crate) static PREEMPTIONS: Counted =
    counted("kubelet_preemptions", "[ALPHA] Cumulative number of pod preemptions by preemption resource");
pub(crate) static REJECTIONS: Counted = counted(
    "kubelet_admission_rejections_total",
    "[ALPHA] Cumulative number pod admission rejections by the Kubelet.",
);
pub(crate) static PULL_TIMES: Timed =
    timed("kubelet_image_pull_duration_seconds", "[ALPHA] Duration in seconds to pull an image.", PULLS);
pub(crate) static CREDENTIAL_TIMES: Timed = timed(
    "kubelet_credential_provider_plugin_duration",
    "[ALPHA] Duration of execution in seconds for credential provider plugin",
    USUAL,
);
pub(crate) static PROBES: Counted = counted(
    "prober_probe_total",
    "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
);
pub(crate) static PROBE_TIMES: Timed =
    timed("prober_probe_duration_seconds", "[ALPHA] Duration in seconds for a probe response.", USUAL);

/// The label of an image's size.
pub(crate) fn image_size(bytes: u64) -> &'static str {
    const MB: u64 = 1 << 20;
    const GB: u64 = 1 << 30;
    const SIZES: [(u64, &str); 12] = [
        (100 * GB, "GT100GB"),
        (60 * GB, "60GB-100GB"),
        (40 * GB, "40GB-60GB"),
        (30 * GB, "30GB-40GB"),
        (20 * GB, "20GB-30GB"),
        (10 * GB, "10GB-20GB"),
        (5 * GB, "5GB-10GB"),
        (GB, "1GB-5GB"),
        (500 * MB, "500MB-1GB"),
        (100 * MB, "100MB-500MB"),
        (10 * MB, "10MB-100MB"),
        (0, "0-10MB"),
    ];
    SIZES.into_iter().find(|(least, _)| bytes >= *least).map_or("0-10MB", |(_, label)| label)
}
