//! `/metrics`: what the kubelet counts of itself and of its pods. `/metrics/probes` shows the probes of its pods.
//!
//! Invariant: labels come from small sets, whatever clients send.
//!
//! Source: upstream's `pkg/kubelet/metrics` and `pkg/kubelet/server/metrics`.

use super::super::usage::Reading;
use crate::metrics::KubeletMetrics;
use crate::node::static_pods;
use crate::pods::context::NodeContext;
use crate::pods::core::Pod;
use crate::pods::model;
use http::Method;
use kaji_containers::{ContainerInfo, ContainerState, PodSandboxInfo, PodSandboxState};
use kaji_exposition::{Family, Page, Process, Sample, labels};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

/// Paths that requests are counted by; others are `other`.
const PATHS: [&str; 16] = [
    "attach",
    "checkpoint",
    "configz",
    "containerLogs",
    "exec",
    "healthz",
    "logs",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "pods",
    "portForward",
    "run",
    "runningpods",
    "stats",
];
/// Paths with answers that take as long as their clients like.
const LONG_RUNNING: [&str; 4] = ["attach", "exec", "portForward", "containerLogs"];

const NODE: Family = Family::gauge("kubelet_node_name", "[ALPHA] The node's name. The count is always 1.");
const PODS: Family =
    Family::gauge("kubelet_running_pods", "[BETA] Number of pods that have a running pod sandbox");
const CONTAINERS: Family =
    Family::gauge("kubelet_running_containers", "[BETA] Number of containers currently running");
const DESIRED: Family = Family::gauge(
    "kubelet_desired_pods",
    "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.",
);
const ACTIVE: Family = Family::gauge(
    "kubelet_active_pods",
    "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.",
);
const MIRRORS: Family = Family::gauge(
    "kubelet_mirror_pods",
    "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted static pod)",
);
const EPHEMERAL: Family = Family::gauge(
    "kubelet_managed_ephemeral_containers",
    "[ALPHA] Current number of ephemeral containers in pods managed by this kubelet.",
);
const CGROUPS: Family = Family::gauge("kubelet_cgroup_version", "[ALPHA] cgroup version on the hosts.");
const SHARED_CPUS: Family = Family::gauge(
    "kubelet_cpu_manager_shared_pool_size_millicores",
    "[ALPHA] The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
);
const EXCLUSIVE_CPUS: Family = Family::gauge(
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    "[ALPHA] The total number of CPUs exclusively allocated to containers running on this node",
);
const CLAIMS: Family = Family::gauge(
    "dra_resource_claims_in_use",
    "[ALPHA] The number of ResourceClaims that are currently in use on the node, by driver name (driver_name label value) and across all drivers (special value <any> for driver_name). Note that the sum of all by-driver counts is not the total number of in-use ResourceClaims because the same ResourceClaim might use devices from different drivers. Instead, use the count for the <any> driver_name.",
);
const CREDENTIAL_ERRORS: Family = Family::counter(
    "kubelet_credential_provider_plugin_errors_total",
    "[ALPHA] Number of errors from credential provider plugin",
);
const CREDENTIAL_CONFIG: Family = Family::gauge(
    "kubelet_credential_provider_config_info",
    "[ALPHA] Information about the last applied credential provider configuration with hash as label",
);
/// In the order of what [`volumes`] collects.
const VOLUMES: [Family; 6] = [
    Family::gauge("kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume"),
    Family::gauge("kubelet_volume_stats_available_bytes", "[ALPHA] Number of available bytes in the volume"),
    Family::gauge("kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume"),
    Family::gauge("kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume"),
    Family::gauge("kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume"),
    Family::gauge("kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume"),
];
const REQUESTS: Family = Family::counter(
    "kubelet_http_requests_total",
    "[ALPHA] Number of the http requests received since the server started",
);
/// Method, path and whether it runs long.
type Key = (&'static str, &'static str, bool);

/// Counts requests.
#[derive(Debug, Default)]
pub(in crate::server) struct Requests(Mutex<BTreeMap<Key, u64>>);

impl Requests {
    /// Counts a request.
    pub fn count(&self, method: &Method, path: &str) {
        let known = ["OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"];
        let method = known.into_iter().find(|m| *m == method.as_str()).unwrap_or("other");
        let path = path.trim_matches('/');
        let root = path.split('/').next().unwrap_or_default();
        let named = |name: &str| PATHS.into_iter().find(|p| *p == name);
        let path = named(path).or_else(|| named(root)).unwrap_or("other");
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry((method, path, LONG_RUNNING.contains(&path))).or_default() += 1;
    }

    fn samples(&self) -> Vec<Sample> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |((method, path, long), count): (&Key, &u64)| {
            let long = long.to_string();
            let labels = [
                ("long_running", long.as_str()),
                ("method", method),
                ("path", path),
                ("server_type", "readwrite"),
            ];
            Sample { labels: self::labels(&labels), value: *count as f64, at: None }
        };
        all.iter().map(of).collect()
    }
}

/// What the page shows.
pub(in crate::server) struct Counted<'a> {
    /// The node.
    pub cx: &'a NodeContext,
    /// Pods that are bound to it.
    pub pods: &'a [Arc<Pod>],
    /// What they use, where that can be read.
    pub usage: Option<&'a Reading>,
    /// All of the runtime's.
    pub sandboxes: &'a [PodSandboxInfo],
    /// All of the runtime's.
    pub containers: &'a [ContainerInfo],
    /// Of the server.
    pub requests: &'a Requests,
}

/// The page.
pub(in crate::server) fn page(counted: &Counted<'_>) -> String {
    let mut page = Page::default();
    page.family(REQUESTS, counted.requests.samples());
    let states = [
        ("created", ContainerState::Created),
        ("exited", ContainerState::Exited),
        ("running", ContainerState::Running),
        ("unknown", ContainerState::Unknown),
    ];
    let in_state =
        states.map(|(name, state)| (name, counted.containers.iter().filter(|c| c.state == state).count()));
    let active = |pod: &&Arc<Pod>| !model::is_terminal(pod);
    let is_static = |pod: &&Arc<Pod>| static_pods::mirrored(pod).is_some();
    let pods = counted.pods.iter();
    let counts = Counts {
        desired: pods.len(),
        desired_static: pods.clone().filter(is_static).count(),
        active: pods.clone().filter(active).count(),
        active_static: pods.clone().filter(active).filter(is_static).count(),
        sandboxes: counted.sandboxes.iter().filter(|s| s.state == PodSandboxState::Ready).count(),
        containers: in_state.into(),
    };
    self::counts(&mut page, &counted.cx.config.node_name, &counts);
    let ephemeral: usize = pods.map(|pod| model::ephemeral_containers(pod).len()).sum();
    page.single(EPHEMERAL, ephemeral as f64);
    page.build_info();
    let version = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { 2.0 } else { 1.0 };
    page.single(CGROUPS, version);
    if let Some((shared, own)) = counted.cx.managers.cpu_counts() {
        page.single(SHARED_CPUS, shared as f64);
        page.single(EXCLUSIVE_CPUS, own as f64);
    }
    let (by_driver, all) = counted.cx.dra.claims_in_use();
    let by_driver = by_driver.iter().map(|(driver, count)| (driver.as_str(), *count));
    let claims = [("<any>", all)].into_iter().chain(by_driver);
    page.family(CLAIMS, claims.map(|(driver, n)| one(labels(&[("driver_name", driver)]), n as f64)));
    credentials(&mut page, counted.cx);
    if let Some(usage) = counted.usage {
        volumes(&mut page, usage);
    }
    counted.cx.metrics.add(&mut page);
    page.process(&Process::read());
    page.finish()
}

fn one(labels: String, value: f64) -> Sample {
    Sample { labels, value, at: None }
}

/// What a node counts, real or simulated.
#[derive(Default)]
pub(crate) struct Counts {
    /// Pods that are bound to it.
    pub desired: usize,
    /// Of these, those of files.
    pub desired_static: usize,
    /// Pods that are not over.
    pub active: usize,
    /// Of these, those of files.
    pub active_static: usize,
    /// Those that run.
    pub sandboxes: usize,
    /// By state; those of a state that none is in are not shown.
    pub containers: Vec<(&'static str, usize)>,
}

/// Adds these to a page.
pub(crate) fn counts(page: &mut Page, node: &str, counts: &Counts) {
    page.family(NODE, [one(labels(&[("node", node)]), 1.0)]);
    for (family, all, of_files) in
        [(DESIRED, counts.desired, counts.desired_static), (ACTIVE, counts.active, counts.active_static)]
    {
        let samples = [("", all - of_files), ("true", of_files)];
        page.family(family, samples.map(|(from, count)| one(labels(&[("static", from)]), count as f64)));
    }
    page.single(MIRRORS, counts.desired_static as f64);
    let in_state = counts.containers.iter().filter(|(_, count)| *count > 0);
    let in_state = in_state.map(|(state, count)| one(labels(&[("container_state", state)]), *count as f64));
    page.family(CONTAINERS, in_state);
    page.single(PODS, counts.sandboxes as f64);
}

/// Plug-ins for credentials.
fn credentials(page: &mut Page, cx: &NodeContext) {
    let runs = cx.credentials.runs();
    let failed = runs.iter().map(|(name, failed, ..)| one(labels(&[("plugin_name", name)]), *failed as f64));
    page.family(CREDENTIAL_ERRORS, failed);
    cx.credentials.times().add(page);
    if !cx.credentials.hash().is_empty() {
        page.family(CREDENTIAL_CONFIG, [one(labels(&[("hash", cx.credentials.hash())]), 1.0)]);
    }
}

/// Volumes of claims.
fn volumes(page: &mut Page, usage: &Reading) {
    // Pods that share a claim show the same.
    let mut all: BTreeMap<String, [u64; 6]> = BTreeMap::new();
    for pod in &usage.pods {
        for volume in pod.volumes.iter() {
            let Some(claim) = &volume.claim else { continue };
            let labels = labels(&[("namespace", &pod.pod.namespace), ("persistentvolumeclaim", claim)]);
            let (disk, used) = (&volume.disk, volume.used);
            all.insert(
                labels,
                [disk.capacity, disk.available, used.bytes, disk.inodes, disk.inodes_free, used.inodes],
            );
        }
    }
    for (index, family) in VOLUMES.into_iter().enumerate() {
        page.family(family, all.iter().map(|(labels, figures)| one(labels.clone(), figures[index] as f64)));
    }
}

/// The page of probes.
pub(in crate::server) fn probe_page(probes: &KubeletMetrics) -> String {
    let mut page = Page::default();
    probes.add(&mut page);
    page.process_start(&Process::read());
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_few_labels() {
        let requests = Requests::default();
        for path in ["/metrics/cadvisor", "/metrics", "/metrics/x", "/exec/n/p/c", "/exec/n/p/d", "/x", "/"] {
            requests.count(&Method::GET, path);
        }
        requests.count(&Method::from_bytes(b"FOO").unwrap(), "/pods");
        let lines: Vec<String> =
            requests.samples().iter().map(|s| format!("{} {}", s.labels, s.value)).collect();
        expect_test::expect![[r#"
            {long_running="true",method="GET",path="exec",server_type="readwrite"} 2
            {long_running="false",method="GET",path="metrics",server_type="readwrite"} 2
            {long_running="false",method="GET",path="metrics/cadvisor",server_type="readwrite"} 1
            {long_running="false",method="GET",path="other",server_type="readwrite"} 2
            {long_running="false",method="other",path="pods",server_type="readwrite"} 1"#]]
        .assert_eq(&lines.join("\n"));
    }
}
