//! Amounts of resources: requests of pods, allocatable of nodes.
//!
//! Invariant: sums saturate; they never wrap.
//!
//! Source: Kubernetes, "Resource management for pods and containers"; KEP-753 for sidecar containers.

use kaji_meta::quantity::Quantity;
use kaji_runtime::objects::{Container, Pod};
use std::collections::BTreeMap;

/// Amounts: CPU in thousandths, everything else in whole units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
            match name {
                "cpu" => all.cpu = quantity.milli_value(),
                "memory" => all.memory = quantity.value(),
                "ephemeral-storage" => all.storage = quantity.value(),
                "pods" => all.pods = quantity.value(),
                other => {
                    all.other.insert(other.to_owned(), quantity.value());
                }
            }
        }
        all
    }

    /// The requests of a pod: the sum of its containers and sidecars, or the largest sum during initialization, plus overhead.
    pub fn of_pod(pod: &Pod) -> Self {
        let mut sum = Resources::default();
        let requests = |c: &Container| Resources::parse(c.resources.requests.iter());
        pod.spec.containers.iter().for_each(|c| sum.add(&requests(c)));
        let (mut sidecars, mut start) = (Resources::default(), Resources::default());
        for container in &pod.spec.init_containers {
            let mut request = requests(container);
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
        sum.add(&Resources::parse(pod.spec.overhead.iter()));
        sum.pods = 1;
        sum
    }

    /// Adds.
    pub fn add(&mut self, more: &Resources) {
        self.combine(more, |a, b| a.saturating_add(b));
    }

    /// Subtracts.
    pub fn subtract(&mut self, less: &Resources) {
        self.combine(less, |a, b| a.saturating_sub(b));
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
            let slot = self.other.entry(name.clone()).or_default();
            *slot = f(*slot, *amount);
        }
    }

    /// What is missing for `request` when `used` of this is taken: upstream's reasons, in its order.
    pub fn missing(&self, used: &Resources, request: &Resources) -> Vec<String> {
        let mut missing = vec![];
        if used.pods + 1 > self.pods {
            missing.push("Too many pods".to_owned());
        }
        let mut check = |name: &str, has: i64, used: i64, wants: i64| {
            if wants > 0 && wants > has - used {
                missing.push(format!("Insufficient {name}"));
            }
        };
        check("cpu", self.cpu, used.cpu, request.cpu);
        check("memory", self.memory, used.memory, request.memory);
        check("ephemeral-storage", self.storage, used.storage, request.storage);
        for (name, wants) in &request.other {
            let of = |r: &Resources| r.other.get(name).copied().unwrap_or_default();
            check(name, of(self), of(used), *wants);
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn requests(cpu: &str) -> Value {
        json!({"requests": {"cpu": cpu}})
    }

    #[test]
    fn init_containers_count_by_the_largest_sum() {
        let p = pod(json!({
            "containers": [{"resources": requests("100m")}, {"resources": requests("200m")}],
            "initContainers": [{"resources": requests("1")}, {"resources": requests("50m")}],
        }));
        assert_eq!(Resources::of_pod(&p).cpu, 1000);
        let p = pod(json!({
            "containers": [{"resources": requests("100m")}],
            "initContainers": [{"resources": requests("300m"), "restartPolicy": "Always"}, {"resources": requests("200m")}],
            "overhead": {"cpu": "5m"},
        }));
        assert_eq!(Resources::of_pod(&p).cpu, 505);
    }

    #[test]
    fn reports_missing_resources_as_upstream() {
        let node = Resources::parse([("cpu", "1"), ("memory", "1Gi"), ("pods", "1")].into_iter());
        let used = Resources { cpu: 900, pods: 1, ..Resources::default() };
        let mut wants = Resources::parse([("cpu", "200m"), ("example.com/gpu", "1")].into_iter());
        wants.pods = 1;
        assert_eq!(
            node.missing(&used, &wants),
            ["Too many pods", "Insufficient cpu", "Insufficient example.com/gpu"]
        );
        assert!(
            node.missing(&Resources::default(), &Resources { cpu: 1000, ..Resources::default() }).is_empty()
        );
    }
}
