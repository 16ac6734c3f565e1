//! Protection and throttling of memory by cgroup v2 (KEP-2570): `memory.min`, `memory.low` and `memory.high` of containers, pods and
//! tiers of pods. Pure.
//!
//! Invariant: a container with resources is protected by its cgroup only as far as all cgroups above it are, so that the tiers have the
//! sum of what their pods request.
//!
//! Source: upstream's `kuberuntime_container_linux.go`, `cm/helpers_linux.go` and `cm/qos_container_manager_linux.go`.

use super::core::{Container, Pod};
use super::model::{self, Qos};
use super::resources;
use std::collections::BTreeMap;

const MIN: &str = "memory.min";
const LOW: &str = "memory.low";
const HIGH: &str = "memory.high";
/// No throttling.
const UNLIMITED: &str = "max";

/// Files of cgroup v2 and their contents.
pub type Files = BTreeMap<String, String>;

/// `memoryReservationPolicy`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MemoryReservation {
    /// `None`: no memory is protected.
    #[default]
    None,
    /// `TieredReservation`: the requests of guaranteed pods are never reclaimed, those of burstable ones only when nothing else is left.
    Tiered,
}

impl MemoryReservation {
    /// As configurations name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MemoryReservation::None => "None",
            MemoryReservation::Tiered => "TieredReservation",
        }
    }
}

/// What a node does with cgroup v2 for the memory of its pods.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MemoryQos {
    /// `memoryReservationPolicy`
    pub reservation: MemoryReservation,
    /// `memoryThrottlingFactor`: from which part on of what lies between request and limit a container is slowed down.
    pub throttling_factor: Option<f64>,
}

/// Bytes that are protected of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Protected {
    /// Of guaranteed pods.
    pub min: i64,
    /// Of burstable pods.
    pub low: i64,
}

impl MemoryQos {
    /// The files of a container that starts. `allocatable` is what pods may use of the node's memory, in bytes; 0 where that is unknown.
    #[must_use]
    pub fn of_container(&self, pod: &Pod, container: &Container, allocatable: i64) -> Files {
        let own = container.resources.as_ref();
        let request = model::whole(model::requests(own), "memory").unwrap_or(0);
        let limit = model::whole(model::limits(own), "memory").unwrap_or(0);
        let mut files = match self.protection(pod, request) {
            Some((file, text)) => Files::from([(file.to_owned(), text)]),
            None => [MIN, LOW].map(|file| (file.to_owned(), "0".to_owned())).into(),
        };
        // The pod's own limit throttles all of its containers.
        let by_pod = limit == 0 && pod_limit(pod) > 0;
        if let Some(factor) = self.throttling_factor.filter(|_| !by_pod) {
            let most = if limit == 0 { allocatable } else { limit };
            files.extend(throttle(request, most, factor).map(|high| (HIGH.to_owned(), high.to_string())));
        }
        files
    }

    /// The same of a container that runs: what throttled it before ends.
    #[must_use]
    pub fn of_running_container(&self, pod: &Pod, container: &Container, allocatable: i64) -> Files {
        self.unthrottled(self.of_container(pod, container, allocatable))
    }

    /// The files of a pod's own cgroup.
    #[must_use]
    pub fn of_pod(&self, pod: &Pod) -> Files {
        let request = memory_request(pod);
        let mut files = Files::new();
        files.extend(self.protection(pod, request).map(|(file, text)| (file.to_owned(), text)));
        if let Some(factor) = self.throttling_factor.filter(|_| model::has_own_resources(pod)) {
            let of = |c: &Container| model::whole(model::limits(c.resources.as_ref()), "memory").unwrap_or(0);
            let mut all = model::containers(pod).iter().chain(model::init_containers(pod));
            let limited = pod_limit(pod) > 0 || all.all(|c| of(c) > 0);
            let limit = model::whole(Some(&resources::limits_of_pod(pod)), "memory").filter(|_| limited);
            let high = throttle(request, limit.unwrap_or(0), factor);
            files.extend(high.map(|high| (HIGH.to_owned(), high.to_string())));
        }
        self.unthrottled(files)
    }

    /// What is protected of a node for these pods. Those that have ended do not count.
    pub fn protected<'a>(&self, pods: impl Iterator<Item = &'a Pod>) -> Protected {
        let mut sum = Protected::default();
        if self.reservation == MemoryReservation::None {
            return sum;
        }
        for pod in pods.filter(|pod| !model::is_terminal(pod)) {
            let of_tier = match model::qos(pod) {
                Qos::Guaranteed => &mut sum.min,
                Qos::Burstable => &mut sum.low,
                Qos::BestEffort => continue,
            };
            *of_tier = of_tier.saturating_add(memory_request(pod));
        }
        sum
    }

    fn protection(&self, pod: &Pod, request: i64) -> Option<(&'static str, String)> {
        let protects = self.reservation == MemoryReservation::Tiered && request > 0;
        let file = if model::qos(pod) == Qos::Guaranteed { MIN } else { LOW };
        protects.then(|| (file, request.to_string()))
    }

    fn unthrottled(&self, mut files: Files) -> Files {
        if self.throttling_factor.is_some() {
            files.entry(HIGH.to_owned()).or_insert_with(|| UNLIMITED.to_owned());
        }
        files
    }
}

/// What a pod requests in all, in bytes.
fn memory_request(pod: &Pod) -> i64 {
    model::whole(Some(&resources::requests_of_pod(pod)), "memory").unwrap_or(0)
}

/// A pod's own limit, in bytes; 0 for none.
fn pod_limit(pod: &Pod) -> i64 {
    model::whole(model::limits(model::spec(pod).resources.as_ref()), "memory").unwrap_or(0)
}

/// Bytes from which on memory is reclaimed: whole pages, more than what is requested and less than what there may be.
fn throttle(request: i64, most: i64, factor: f64) -> Option<i64> {
    if most == 0 || request == most {
        return None;
    }
    let page = rustix::param::page_size() as f64;
    let high = ((request as f64 + (most as f64 - request as f64) * factor) / page).floor() * page;
    Some(high as i64).filter(|high| *high > request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(own: Value, containers: &[Value]) -> Pod {
        let containers: Vec<Value> = containers
            .iter()
            .enumerate()
            .map(|(i, r)| json!({"name": format!("c{i}"), "image": "i", "resources": r}))
            .collect();
        let pod = json!({"metadata": {"uid": "u"}, "spec": {"containers": containers, "resources": own}});
        serde_json::from_value(pod).unwrap()
    }

    fn shown(files: &Files) -> String {
        files.iter().map(|(file, text)| format!("{file}={text}")).collect::<Vec<_>>().join(" ")
    }

    fn amounts(request: &str, limit: &str) -> Value {
        json!({"requests": {"memory": request}, "limits": {"memory": limit}})
    }

    const TIERED: MemoryQos =
        MemoryQos { reservation: MemoryReservation::Tiered, throttling_factor: Some(0.9) };

    #[test]
    fn containers_are_protected_and_throttled_by_their_requests_and_limits() {
        let all = json!({"cpu": "1", "memory": "1000Ki"});
        let unlimited = json!({"requests": {"memory": "1000Ki"}});
        let by_pod = json!({"limits": {"memory": "4000Ki"}});
        let mut lines = vec![];
        for (own, container) in [
            (json!({}), json!({"requests": all, "limits": all})),
            (json!({}), amounts("1000Ki", "2000Ki")),
            (json!({}), amounts("1000Ki", "1000Ki")),
            (json!({}), unlimited.clone()),
            (json!({}), json!({})),
            (by_pod, unlimited),
            (json!({}), amounts("1000Ki", "1001Ki")),
        ] {
            let pod = pod(own, &[container]);
            let container = &model::containers(&pod)[0];
            let of = |qos: MemoryQos| shown(&qos.of_container(&pod, container, 10_000 << 10));
            lines.push(format!("{} | {}", of(MemoryQos::default()), of(TIERED)));
        }
        // Pages of 4 KiB, or of 16 or 64 where those are the kernel's.
        if rustix::param::page_size() == 4096 {
            expect_test::expect![[r"
                memory.low=0 memory.min=0 | memory.min=1024000
                memory.low=0 memory.min=0 | memory.high=1945600 memory.low=1024000
                memory.low=0 memory.min=0 | memory.low=1024000
                memory.low=0 memory.min=0 | memory.high=9318400 memory.low=1024000
                memory.low=0 memory.min=0 | memory.high=9216000 memory.low=0 memory.min=0
                memory.low=0 memory.min=0 | memory.low=1024000
                memory.low=0 memory.min=0 | memory.low=1024000"]]
            .assert_eq(&lines.join("\n"));
        }
    }

    #[test]
    fn a_container_that_is_not_throttled_any_more_is_set_free() {
        let pod = pod(json!({}), &[amounts("1000Ki", "1000Ki")]);
        let of = |qos: MemoryQos| shown(&qos.of_running_container(&pod, &model::containers(&pod)[0], 0));
        assert_eq!(of(TIERED), "memory.high=max memory.low=1024000");
        assert_eq!(of(MemoryQos::default()), "memory.low=0 memory.min=0");
    }

    #[test]
    fn pods_are_protected_by_the_sum_of_their_requests_and_throttled_by_their_own_limit() {
        let all = json!({"cpu": "1", "memory": "1000Ki"});
        let mut lines = vec![];
        for pod in [
            pod(json!({}), &[json!({"requests": all, "limits": all})]),
            pod(json!({}), &[amounts("1000Ki", "2000Ki"), amounts("500Ki", "2000Ki")]),
            pod(json!({}), &[json!({})]),
            pod(amounts("1000Ki", "2000Ki"), &[json!({})]),
            pod(json!({"requests": {"memory": "3000Ki"}}), &[json!({}), amounts("1000Ki", "2000Ki")]),
        ] {
            lines.push(format!(
                "{}| {}",
                shown(&MemoryQos::default().of_pod(&pod)),
                shown(&TIERED.of_pod(&pod))
            ));
        }
        if rustix::param::page_size() == 4096 {
            expect_test::expect![[r"
                | memory.high=max memory.min=1024000
                | memory.high=max memory.low=1536000
                | memory.high=max
                | memory.high=1945600 memory.low=1024000
                | memory.high=max memory.low=3072000"]]
            .assert_eq(&lines.join("\n"));
        }
    }

    #[test]
    fn tiers_are_protected_by_what_their_pods_request() {
        let all = json!({"cpu": "1", "memory": "1000Ki"});
        let guaranteed = pod(json!({}), &[json!({"requests": all, "limits": all})]);
        let burstable = pod(json!({}), &[amounts("100Ki", "200Ki")]);
        let mut over = burstable.clone();
        over.status.get_or_insert_default().phase = Some("Failed".into());
        let pods = [guaranteed, burstable, over, pod(json!({}), &[json!({})])];
        assert_eq!(TIERED.protected(pods.iter()), Protected { min: 1000 << 10, low: 100 << 10 });
        assert_eq!(MemoryQos::default().protected(pods.iter()), Protected::default());
    }
}
