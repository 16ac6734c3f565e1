//! `/metrics/resource`: what nodes, pods and containers use. Also the page of simulated nodes.
//!
//! Source: upstream's `pkg/kubelet/metrics/collectors/resource_metrics.go`.

use super::super::usage::Reading;
use kaji_containers::{CpuUsage, MemoryUsage, SwapUsage};
use kaji_exposition::{Family, Page, Sample, labels};

const CONTAINER_CPU: Family = Family::counter(
    "container_cpu_usage_seconds_total",
    "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
);
const CONTAINER_MEMORY: Family = Family::gauge(
    "container_memory_working_set_bytes",
    "[STABLE] Current working set of the container in bytes",
);
const CONTAINER_START: Family = Family::gauge(
    "container_start_time_seconds",
    "[STABLE] Start time of the container since unix epoch in seconds",
);
const CONTAINER_SWAP_LIMIT: Family = Family::gauge(
    "container_swap_limit_bytes",
    "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
);
const CONTAINER_SWAP: Family = Family::gauge(
    "container_swap_usage_bytes",
    "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
);
const NODE_CPU: Family = Family::counter(
    "node_cpu_usage_seconds_total",
    "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
);
const NODE_MEMORY: Family =
    Family::gauge("node_memory_working_set_bytes", "[STABLE] Current working set of the node in bytes");
const NODE_SWAP: Family = Family::gauge(
    "node_swap_usage_bytes",
    "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
);
const POD_CPU: Family = Family::counter(
    "pod_cpu_usage_seconds_total",
    "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
);
const POD_MEMORY: Family =
    Family::gauge("pod_memory_working_set_bytes", "[STABLE] Current working set of the pod in bytes");
const POD_SWAP: Family = Family::gauge(
    "pod_swap_usage_bytes",
    "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
);
const SCRAPE: Family = Family::gauge(
    "resource_scrape_error",
    "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
);

/// What one thing uses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    /// Of a container, else empty.
    pub container: String,
    /// Of a container or pod, else empty.
    pub namespace: String,
    /// Of a container or pod, else empty.
    pub pod: String,
    /// Seconds since the epoch, of a container.
    pub start: f64,
    /// Core-seconds, and when they were read, in milliseconds since the epoch.
    pub cpu: (f64, i64),
    /// Bytes, and when they were read, in milliseconds since the epoch.
    pub memory: (f64, i64),
    /// Where there is swap: bytes used and available, and when they were read, in milliseconds since the epoch.
    pub swap: Option<(f64, f64, i64)>,
}

impl Figures {
    fn labels(&self) -> String {
        let all = [("container", &self.container), ("namespace", &self.namespace), ("pod", &self.pod)];
        let set = all.into_iter().filter(|(_, value)| !value.is_empty());
        let set: Vec<(&str, &str)> = set.map(|(name, value)| (name, value.as_str())).collect();
        labels(&set)
    }

    fn sample(&self, (value, at): (f64, i64)) -> Sample {
        Sample { labels: self.labels(), value, at: Some(at) }
    }

    fn swap_used(&self) -> Option<Sample> {
        self.swap.map(|(used, _, at)| self.sample((used, at)))
    }

    fn swap_limit(&self) -> Option<Sample> {
        self.swap.map(|(used, available, at)| self.sample((used + available, at)))
    }
}

/// The page of a node with these pods and containers.
pub(crate) fn page(node: &Figures, pods: &[Figures], containers: &[Figures]) -> String {
    let mut page = Page::default();
    page.family(CONTAINER_CPU, containers.iter().map(|c| c.sample(c.cpu)));
    page.family(CONTAINER_MEMORY, containers.iter().map(|c| c.sample(c.memory)));
    let started = containers.iter().filter(|c| c.start > 0.0);
    page.family(CONTAINER_START, started.map(|c| Sample { at: None, ..c.sample((c.start, 0)) }));
    page.family(CONTAINER_SWAP_LIMIT, containers.iter().filter_map(Figures::swap_limit));
    page.family(CONTAINER_SWAP, containers.iter().filter_map(Figures::swap_used));
    page.family(NODE_CPU, [node.sample(node.cpu)]);
    page.family(NODE_MEMORY, [node.sample(node.memory)]);
    page.family(NODE_SWAP, node.swap_used());
    page.family(POD_CPU, pods.iter().map(|p| p.sample(p.cpu)));
    page.family(POD_MEMORY, pods.iter().map(|p| p.sample(p.memory)));
    page.family(POD_SWAP, pods.iter().filter_map(Figures::swap_used));
    page.single(SCRAPE, 0.0);
    page.finish()
}

/// The page when nothing could be read.
pub(crate) fn failed() -> String {
    let mut page = Page::default();
    page.single(SCRAPE, 1.0);
    page.finish()
}

/// Milliseconds of nanoseconds.
pub(super) fn millis(nanos: i64) -> i64 {
    nanos.div_euclid(1_000_000)
}

fn figures(cpu: &CpuUsage, memory: &MemoryUsage, swap: Option<&SwapUsage>) -> Figures {
    Figures {
        cpu: (cpu.core_nanos as f64 / 1e9, millis(cpu.at_nanos)),
        memory: (memory.working_set as f64, millis(memory.at_nanos)),
        swap: swap.map(|s| (s.usage as f64, s.available as f64, millis(s.at_nanos))),
        ..Figures::default()
    }
}

/// The page of a reading.
pub(in crate::server) fn of(reading: &Reading) -> String {
    let usage = &reading.node;
    let node = figures(&usage.cpu, &usage.memory, Some(&usage.swap));
    let (mut pods, mut containers) = (vec![], vec![]);
    for pod in &reading.pods {
        let named = |figures: Figures| Figures {
            namespace: pod.pod.namespace.clone(),
            pod: pod.pod.name.clone(),
            ..figures
        };
        for c in &pod.stats.containers {
            let own = named(figures(&c.cpu, &c.memory, c.swap.as_ref()));
            containers.push(Figures {
                container: c.name.clone(),
                start: c.started_at_nanos as f64 / 1e9,
                ..own
            });
        }
        pods.push(named(figures(&pod.stats.cpu, &pod.stats.memory, pod.stats.swap.as_ref())));
    }
    containers
        .sort_by(|a, b| (&a.container, &a.namespace, &a.pod).cmp(&(&b.container, &b.namespace, &b.pod)));
    page(&node, &pods, &containers)
}
