//! Amounts of resources: requests of pods, allocatable of nodes.
//!
//! Invariant: sums saturate; they never wrap.
//!
//! Source: Kubernetes, "Resource management for pods and containers"; KEP-753 for sidecar containers, KEP-1287 for resizes in
//! place, KEP-2837 for requests of a pod as a whole.

use kaji_meta::quantity::Quantity;
use kaji_runtime::objects::{Container, ContainerStatus, Pod};
use std::collections::BTreeMap;

/// What a container without a request of CPU counts with where pods are to be spread, in thousandths.
pub const DEFAULT_CPU: i64 = 100;
/// The same of memory, in bytes.
pub const DEFAULT_MEMORY: i64 = 200 << 20;

/// Amounts: CPU in thousandths, everything else in whole units.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    /// Thousandths of a CPU.
    pub cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes of ephemeral storage.
    pub storage: i64,
    /// Number of pods.
    pub pods: i64,
    /// Extended resources and huge pages.
    pub other: BTreeMap<String, i64>,
}

impl Resources {
    /// From quantities by name. A malformed quantity counts as zero: validation has rejected it before.
    pub fn parse<'a>(quantities: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut all = Resources::default();
        for (name, text) in quantities {
            let Ok(quantity) = Quantity::parse(text) else { continue };
            let amount = if name == "cpu" { quantity.milli_value() } else { quantity.value() };
            all.set(name, amount);
        }
        all
    }

    /// The requests of a pod: the sum of its containers and sidecars, or the largest sum during initialization, replaced by
    /// what the pod requests as a whole, plus overhead. What a node has granted to a resized container counts if it is more.
    pub fn of_pod(pod: &Pod) -> Self {
        Self::of_pod_with(pod, false)
    }

    /// The same, where containers without a request of CPU or memory count with a small one.
    pub fn of_pod_with_defaults(pod: &Pod) -> Self {
        Self::of_pod_with(pod, true)
    }

    fn of_pod_with(pod: &Pod, defaults: bool) -> Self {
        let infeasible =
            pod.condition("PodResizePending").is_some_and(|c| c.status == "True" && c.reason == "Infeasible");
        let requests = |c: &Container, statuses: &[ContainerStatus]| {
            let mut request = container_request(c, statuses, infeasible);
            if defaults {
                let has = |name: &str| c.resources.requests.iter().any(|(n, _)| n == name);
                if request.cpu == 0 && !has("cpu") {
                    request.cpu = DEFAULT_CPU;
                }
                if request.memory == 0 && !has("memory") {
                    request.memory = DEFAULT_MEMORY;
                }
            }
            request
        };
        let mut sum = Resources::default();
        for container in &pod.spec.containers {
            sum.add(&requests(container, &pod.status.container_statuses));
        }
        let (mut sidecars, mut start) = (Resources::default(), Resources::default());
        for container in &pod.spec.init_containers {
            let mut request = requests(container, &pod.status.init_container_statuses);
            if container.sidecar() {
                sum.add(&request);
                sidecars.add(&request);
                start.raise(&sidecars);
            } else {
                request.add(&sidecars);
                start.raise(&request);
            }
        }
        sum.raise(&start);
        sum.replace_by_pod(pod, infeasible);
        sum.add(&Resources::parse(pod.spec.overhead.iter()));
        sum.pods = 1;
        sum
    }

    /// What a pod requests as a whole replaces the sum over its containers; while it is resized, the most of what it asks for, was
    /// granted and runs with.
    fn replace_by_pod(&mut self, pod: &Pod, infeasible: bool) {
        let requests = &pod.spec.resources.requests;
        if requests.iter().next().is_none() {
            return;
        }
        let whole = |name: &str| matches!(name, "cpu" | "memory") || name.starts_with("hugepages-");
        let mut counted = Resources::parse(requests.iter());
        if let Some(running) = &pod.status.resources {
            let mut granted = Resources::parse(pod.status.allocated_resources.iter());
            granted.raise(&Resources::parse(running.requests.iter()));
            if infeasible {
                counted = granted;
            } else {
                counted.raise(&granted);
            }
        }
        for (name, _) in requests.iter().filter(|(name, _)| whole(name)) {
            self.set(name, counted.get(name));
        }
    }

    /// The amount of a resource by its name.
    pub fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.storage,
            "pods" => self.pods,
            other => self.other.get(other).copied().unwrap_or_default(),
        }
    }

    fn set(&mut self, name: &str, amount: i64) {
        match name {
            "cpu" => self.cpu = amount,
            "memory" => self.memory = amount,
            "ephemeral-storage" => self.storage = amount,
            "pods" => self.pods = amount,
            other => {
                self.other.insert(other.to_owned(), amount);
            }
        }
    }

    /// Adds.
    pub fn add(&mut self, more: &Resources) {
        self.combine(more, |a, b| a.saturating_add(b));
    }

    /// Subtracts. What becomes nothing is no longer named.
    pub fn subtract(&mut self, less: &Resources) {
        self.combine(less, |a, b| a.saturating_sub(b));
        if !self.other.is_empty() {
            self.other.retain(|_, amount| *amount != 0);
        }
    }

    /// The larger of each.
    pub fn raise(&mut self, to: &Resources) {
        self.combine(to, i64::max);
    }

    fn combine(&mut self, with: &Resources, f: impl Fn(i64, i64) -> i64) {
        self.cpu = f(self.cpu, with.cpu);
        self.memory = f(self.memory, with.memory);
        self.storage = f(self.storage, with.storage);
        self.pods = f(self.pods, with.pods);
        for (name, amount) in &with.other {
            match self.other.get_mut(name) {
                Some(slot) => *slot = f(*slot, *amount),
                None => {
                    self.other.insert(name.clone(), f(0, *amount));
                }
            }
        }
    }
}

/// What a container requests; while it is resized, the most of what it asks for, was granted and runs with.
fn container_request(container: &Container, statuses: &[ContainerStatus], infeasible: bool) -> Resources {
    let asked = Resources::parse(container.resources.requests.iter());
    let Some(status) = statuses.iter().find(|s| s.name == *container.name) else { return asked };
    let mut granted = Resources::parse(status.allocated_resources.iter());
    if let Some(running) = &status.resources {
        granted.raise(&Resources::parse(running.requests.iter()));
    }
    if infeasible && granted != Resources::default() {
        return granted;
    }
    granted.raise(&asked);
    granted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(pod: Value) -> Pod {
        serde_json::from_value(pod).unwrap()
    }

    fn requests(cpu: &str) -> Value {
        json!({"requests": {"cpu": cpu}})
    }

    #[test]
    fn init_containers_count_by_the_largest_sum() {
        let p = pod(json!({"spec": {
            "containers": [{"resources": requests("100m")}, {"resources": requests("200m")}],
            "initContainers": [{"resources": requests("1")}, {"resources": requests("50m")}],
        }}));
        assert_eq!(Resources::of_pod(&p).cpu, 1000);
        let p = pod(json!({"spec": {
            "containers": [{"resources": requests("100m")}],
            "initContainers": [{"resources": requests("300m"), "restartPolicy": "Always"}, {"resources": requests("200m")}],
            "overhead": {"cpu": "5m"},
        }}));
        assert_eq!(Resources::of_pod(&p).cpu, 505);
    }

    #[test]
    fn containers_without_requests_count_with_small_ones() {
        let p = pod(
            json!({"spec": {"containers": [{}, {"resources": {"requests": {"cpu": "0", "memory": "1"}}}]}}),
        );
        let (none, some) = (Resources::of_pod(&p), Resources::of_pod_with_defaults(&p));
        assert_eq!((none.cpu, none.memory), (0, 1));
        assert_eq!((some.cpu, some.memory), (DEFAULT_CPU, DEFAULT_MEMORY + 1));
    }

    #[test]
    fn the_requests_of_a_pod_as_a_whole_replace_those_of_its_containers() {
        let p = pod(json!({"spec": {
            "resources": {"requests": {"cpu": "2"}},
            "containers": [{"resources": {"requests": {"cpu": "100m", "memory": "7"}}}],
            "overhead": {"cpu": "1m"},
        }}));
        let request = Resources::of_pod(&p);
        assert_eq!((request.cpu, request.memory), (2001, 7));
    }

    #[test]
    fn a_resize_of_a_pod_as_a_whole_counts_with_the_most_of_its_sizes() {
        let of = |conditions: Value| {
            let p = pod(json!({
                "spec": {"resources": requests("1"), "containers": [{}], "overhead": {"cpu": "1m"}},
                "status": {
                    "conditions": conditions,
                    "allocatedResources": {"cpu": "1500m"},
                    "resources": {"requests": {"cpu": "2", "memory": "7"}},
                },
            }));
            let request = Resources::of_pod(&p);
            (request.cpu, request.memory)
        };
        assert_eq!(of(json!([])), (2001, 0));
        assert_eq!(
            of(json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}])),
            (2001, 0)
        );
    }

    #[test]
    fn a_resize_counts_with_the_most_of_its_sizes_unless_it_is_infeasible() {
        let of = |conditions: Value| {
            Resources::of_pod(&pod(json!({
                "spec": {"containers": [{"name": "c", "resources": requests("900m")}]},
                "status": {"conditions": conditions, "containerStatuses": [
                    {"name": "c", "allocatedResources": {"cpu": "300m"}, "resources": requests("400m")}]},
            })))
            .cpu
        };
        assert_eq!(of(json!([])), 900);
        assert_eq!(of(json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}])), 400);
    }
}
