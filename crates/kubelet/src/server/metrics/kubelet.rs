//! `/metrics`: what the kubelet counts of itself and of its pods. `/metrics/probes` shows the process alone.
//!
//! Invariant: labels come from small sets, whatever clients send.
//!
//! Source: upstream's `pkg/kubelet/metrics` and `pkg/kubelet/server/metrics`.

use crate::exposition::{Family, Page, Sample, labels};
use http::Method;
use kaji_containers::{ContainerInfo, ContainerState, PodSandboxInfo, PodSandboxState};
use std::collections::BTreeMap;
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
const REQUESTS: Family = Family::counter(
    "kubelet_http_requests_total",
    "[ALPHA] Number of the http requests received since the server started",
);
const VERSION: Family = Family::gauge(
    "kubernetes_build_info",
    "[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
);
const PROCESS_CPU: Family =
    Family::counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.");
const PROCESS_MEMORY: Family =
    Family::gauge("process_resident_memory_bytes", "Resident memory size in bytes.");
const PROCESS_START: Family =
    Family::gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.");

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

/// The process, from `/proc/self/stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(in crate::server) struct Process {
    /// Seconds.
    pub cpu: f64,
    /// Bytes.
    pub memory: f64,
    /// Seconds since the epoch.
    pub start: f64,
}

impl Process {
    /// Reads this process's figures; zeros where there is no `/proc`.
    pub fn read(booted_at: i64) -> Process {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Process::parse(&stat, booted_at).unwrap_or_default()
    }

    /// The fields after the name, which is in parentheses and may have any characters.
    fn parse(stat: &str, booted_at: i64) -> Option<Process> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index - 3)?.parse::<f64>().ok();
        let page = rustix::param::page_size() as f64;
        Some(Process {
            cpu: (number(14)? + number(15)?) / 100.0,
            start: booted_at as f64 + number(22)? / 100.0,
            memory: number(24)? * page,
        })
    }

    fn add(self, page: &mut Page) {
        page.single(PROCESS_CPU, self.cpu);
        page.single(PROCESS_MEMORY, self.memory);
        page.single(PROCESS_START, self.start);
    }
}

/// What the page shows.
pub(in crate::server) struct Counted<'a> {
    /// Of the Node object.
    pub node: &'a str,
    /// Pods that are bound to it.
    pub desired: usize,
    /// All of the runtime's.
    pub sandboxes: &'a [PodSandboxInfo],
    /// All of the runtime's.
    pub containers: &'a [ContainerInfo],
    /// Of the server.
    pub requests: &'a Requests,
    /// Of this process.
    pub process: Process,
}

/// The page.
pub(in crate::server) fn page(counted: &Counted<'_>) -> String {
    let one = |labels: String, value: f64| Sample { labels, value, at: None };
    let mut page = Page::default();
    page.family(DESIRED, [one(labels(&[("static", "")]), counted.desired as f64)]);
    page.family(REQUESTS, counted.requests.samples());
    page.family(NODE, [one(labels(&[("node", counted.node)]), 1.0)]);
    let states = [
        ("created", ContainerState::Created),
        ("exited", ContainerState::Exited),
        ("running", ContainerState::Running),
        ("unknown", ContainerState::Unknown),
    ];
    let in_state = states.into_iter().map(|(name, state)| {
        let count = counted.containers.iter().filter(|c| c.state == state).count();
        one(labels(&[("container_state", name)]), count as f64)
    });
    page.family(CONTAINERS, in_state.filter(|s| s.value > 0.0));
    let ready = counted.sandboxes.iter().filter(|s| s.state == PodSandboxState::Ready).count();
    page.single(PODS, ready as f64);
    let version = [("git_version", "v1.37.0"), ("major", "1"), ("minor", "37"), ("platform", platform())];
    page.family(VERSION, [one(labels(&version), 1.0)]);
    counted.process.add(&mut page);
    page.0
}

/// The page of the process alone.
pub(in crate::server) fn process_page(process: Process) -> String {
    let mut page = Page::default();
    page.single(PROCESS_START, process.start);
    page.0
}

fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "linux/amd64",
        "aarch64" => "linux/arm64",
        _ => "linux",
    }
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

    #[test]
    fn a_process() {
        let mut fields = vec!["0"; 50];
        (fields[11], fields[12], fields[19], fields[21]) = ("150", "50", "1000", "3");
        let stat = format!("12 (a b) c) {}", fields.join(" "));
        let process = Process::parse(&stat, 1000).unwrap();
        assert_eq!((process.cpu, process.start), (2.0, 1010.0));
        assert_eq!(process.memory, 3.0 * rustix::param::page_size() as f64);
        assert_eq!(Process::parse("x", 0), None);
    }
}
