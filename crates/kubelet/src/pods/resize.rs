//! Changing resources of containers that run. Pure. Upstream's `computePodResizeAction`.
//!
//! Invariants: memory goes before processors; of each, what becomes less goes before what becomes more; a container that has to be
//! restarted for a resource is not changed besides.

use super::compute::{Actions, Kill, KillReason};
use super::core::{Container, Pod, ResourceRequirements};
use super::memory_qos::Files;
use super::model;
use super::observed::Observed;
use super::resources;
use kaji_containers::{ContainerState, LinuxResources};
use kaji_meta::quantity::{Format, Quantity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a container runs with: thousandths of processors and bytes; 0 for what is not set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Actual {
    /// Thousandths.
    pub cpu_request: i64,
    /// Thousandths.
    pub cpu_limit: i64,
    /// Bytes.
    pub memory_request: i64,
    /// Bytes.
    pub memory_limit: i64,
}

impl Actual {
    /// What a container of a pod is granted. Limits of the pod hold for containers without their own.
    #[must_use]
    pub fn of(pod: &Pod, container: &Container) -> Actual {
        let own = container.resources.as_ref();
        let of_pod = model::limits(model::spec(pod).resources.as_ref());
        let (requests, limits) = (model::requests(own), model::limits(own));
        Actual {
            cpu_request: model::milli(requests, "cpu").unwrap_or(0),
            cpu_limit: model::milli(limits, "cpu").or(model::milli(of_pod, "cpu")).unwrap_or(0),
            memory_request: model::whole(requests, "memory").unwrap_or(0),
            memory_limit: model::whole(limits, "memory").or(model::whole(of_pod, "memory")).unwrap_or(0),
        }
    }

    /// What a pod is granted as a whole; `None` for one that leaves it to its containers.
    #[must_use]
    pub fn of_pod(pod: &Pod) -> Option<Actual> {
        let own = model::spec(pod).resources.as_ref();
        let (requests, limits) = (model::requests(own), model::limits(own));
        model::has_own_resources(pod).then(|| Actual {
            cpu_request: model::milli(requests, "cpu").unwrap_or(0),
            cpu_limit: model::milli(limits, "cpu").unwrap_or(0),
            memory_request: model::whole(requests, "memory").unwrap_or(0),
            memory_limit: model::whole(limits, "memory").unwrap_or(0),
        })
    }

    /// Resources as the status shows them: those that are granted, with what the container runs with.
    #[must_use]
    pub fn show(&self, granted: &ResourceRequirements) -> ResourceRequirements {
        let mut shown = granted.clone();
        let put = |amounts: &mut Option<model::Amounts>, name: &str, actual: i64| {
            let Some(amount) = amounts.as_mut().and_then(|a| a.get_mut(name)).filter(|_| actual > 0) else {
                return;
            };
            let (granted, quantity) = if name == "cpu" {
                (model::quantity(amount).milli_value(), Quantity::milli(actual, Format::DecimalSi))
            } else {
                (model::quantity(amount).value(), Quantity::new(actual, Format::BinarySi))
            };
            if granted != actual {
                amount.0 = quantity.to_string();
            }
        };
        put(&mut shown.requests, "cpu", self.cpu_request);
        put(&mut shown.requests, "memory", self.memory_request);
        put(&mut shown.limits, "cpu", self.cpu_limit);
        put(&mut shown.limits, "memory", self.memory_limit);
        shown
    }
}

/// What containers run with, by name.
pub type Actuals = BTreeMap<String, Actual>;

/// What a pod's status shows of a resize.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resizing {
    /// What containers run with.
    pub actuals: Actuals,
    /// What the pod as a whole runs with, if it has resources of its own.
    pub pod: Option<Actual>,
    /// The limits of the pod's cgroup, where it has one.
    pub cgroup: Option<LinuxResources>,
    /// Reason and message of a resize that is not granted.
    pub pending: Option<(String, String)>,
    /// Some container does not have what it was granted.
    pub in_progress: bool,
    /// Why not.
    pub error: Option<String>,
}

/// A change of a running container.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Of the container.
    pub id: String,
    /// Of the container.
    pub name: String,
    /// What is set.
    pub resources: LinuxResources,
    /// What the container runs with then.
    pub then: Actual,
}

/// The changes of a pod's containers, in order; those that have to be restarted go into `actions`. The node has so much `memory` in all,
/// and `files` are those of cgroup v2 for a container's memory.
#[must_use]
pub fn steps(
    pod: &Pod,
    observed: &Observed,
    actuals: &Actuals,
    actions: &mut Actions,
    (memory, files): (i64, &dyn Fn(&Container) -> Files),
) -> Vec<Step> {
    let inits = model::init_containers(pod).iter().enumerate();
    let regular = model::containers(pod).iter().enumerate();
    let all = regular.map(|(index, c)| (false, index, c)).chain(inits.map(|(index, c)| (true, index, c)));
    let (mut of_memory, mut of_cpu) = (vec![], vec![]);
    for (init, index, container) in all {
        let Some(found) = observed.newest(&container.name).filter(|o| o.state() == ContainerState::Running)
        else {
            continue;
        };
        let (wanted, Some(now)) = (Actual::of(pod, container), actuals.get(&container.name).copied()) else {
            continue;
        };
        if wanted == now || actions.kill.iter().any(|kill| kill.id == found.id()) {
            continue;
        }
        let memory_differs =
            (wanted.memory_request, wanted.memory_limit) != (now.memory_request, now.memory_limit);
        let cpu_differs = (wanted.cpu_request, wanted.cpu_limit) != (now.cpu_request, now.cpu_limit);
        if memory_differs && restarts(container, "memory") || cpu_differs && restarts(container, "cpu") {
            actions.kill.push(Kill {
                id: found.id().to_owned(),
                name: container.name.clone(),
                message: format!("Container {} resize requires restart", container.name),
                reason: KillReason::Other,
            });
            if init { &mut actions.init } else { &mut actions.regular }.push(index);
            continue;
        }
        let limits = resources::of_container(pod, container, memory);
        let (id, name) = (found.id().to_owned(), container.name.clone());
        let mut then = now;
        if memory_differs {
            (then.memory_request, then.memory_limit) = (wanted.memory_request, wanted.memory_limit);
            let resources = LinuxResources {
                memory_limit_bytes: limits.memory_limit_bytes,
                unified: files(container),
                ..LinuxResources::default()
            };
            let more = (wanted.memory_limit, wanted.memory_request) > (now.memory_limit, now.memory_request);
            of_memory.push((more, Step { id: id.clone(), name: name.clone(), resources, then }));
        }
        if cpu_differs {
            (then.cpu_request, then.cpu_limit) = (wanted.cpu_request, wanted.cpu_limit);
            let resources = LinuxResources {
                cpu_period: limits.cpu_period,
                cpu_quota: if limits.cpu_quota == 0 { -1 } else { limits.cpu_quota },
                cpu_shares: limits.cpu_shares,
                ..LinuxResources::default()
            };
            let more = (wanted.cpu_limit, wanted.cpu_request) > (now.cpu_limit, now.cpu_request);
            of_cpu.push((more, Step { id, name, resources, then }));
        }
    }
    for list in [&mut actions.init, &mut actions.regular] {
        list.sort_unstable();
        list.dedup();
    }
    of_memory.sort_by_key(|(more, _)| *more);
    of_cpu.sort_by_key(|(more, _)| *more);
    of_memory.into_iter().chain(of_cpu).map(|(_, step)| step).collect()
}

/// Whether the pod as a whole does not run with what it was granted. What is not known does not count.
#[must_use]
pub fn pod_differs(pod: &Pod, now: Option<&Actual>) -> bool {
    Actual::of_pod(pod).is_some_and(|wanted| now.is_some_and(|now| *now != wanted))
}

/// Whether some container that runs, or the pod as a whole, does not have what it was granted.
#[must_use]
pub fn in_progress(pod: &Pod, observed: &Observed, actuals: &Actuals, of_pod: Option<&Actual>) -> bool {
    if pod_differs(pod, of_pod) {
        return true;
    }
    let all = model::containers(pod)
        .iter()
        .chain(model::init_containers(pod).iter().filter(|c| model::is_sidecar(c)));
    all.into_iter().any(|container| {
        let runs = observed.newest(&container.name).is_some_and(|o| o.state() == ContainerState::Running);
        runs && actuals.get(&container.name).is_some_and(|now| *now != Actual::of(pod, container))
    })
}

fn restarts(container: &Container, resource: &str) -> bool {
    let policies = container.resize_policy.as_deref().unwrap_or_default();
    policies.iter().any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
}

/// The limits of a pod's cgroup while its containers are changed: of each the larger of what was and what will be.
#[must_use]
pub fn larger(now: &LinuxResources, then: &LinuxResources) -> LinuxResources {
    // No limit is more than any.
    let limit = |a: i64, b: i64| if a <= 0 || b <= 0 { -1 } else { a.max(b) };
    LinuxResources {
        cpu_quota: limit(now.cpu_quota, then.cpu_quota),
        cpu_shares: now.cpu_shares.max(then.cpu_shares),
        memory_limit_bytes: limit(now.memory_limit_bytes, then.memory_limit_bytes),
        ..then.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_pod_has_room_for_its_containers_while_they_change() {
        let of = |memory_limit_bytes, cpu_quota, cpu_shares| LinuxResources {
            memory_limit_bytes,
            cpu_quota,
            cpu_shares,
            ..LinuxResources::default()
        };
        assert_eq!(larger(&of(100, -1, 2), &of(50, 5000, 51)), of(100, -1, 51));
        assert_eq!(larger(&of(-1, 7000, 99), &of(50, 5000, 51)), of(-1, 7000, 99));
    }

    #[test]
    fn a_status_shows_what_a_container_runs_with() {
        let granted = json!({"requests": {"cpu": "0.2", "memory": "2Gi"}, "limits": {"cpu": "1"}});
        let actual = Actual { cpu_request: 100, cpu_limit: 1000, memory_request: 1 << 30, memory_limit: 5 };
        let shown = actual.show(&serde_json::from_value(granted).unwrap());
        expect_test::expect![[r#"{"limits":{"cpu":"1"},"requests":{"cpu":"100m","memory":"1Gi"}}"#]]
            .assert_eq(&serde_json::to_value(shown).unwrap().to_string());
    }

    proptest! {
        #[test]
        fn what_is_shown_is_what_a_container_runs_with(
            granted in (1..4000_i64, 1..4000_i64), actual in (1..4000_i64, 1..4000_i64),
        ) {
            let requests = json!({"requests": {"cpu": format!("{}m", granted.0), "memory": granted.1.to_string()}});
            let actual = Actual { cpu_request: actual.0, memory_request: actual.1, ..Actual::default() };
            let resources = actual.show(&serde_json::from_value(requests).unwrap());
            let container = Container { resources: Some(resources), ..Container::default() };
            prop_assert_eq!(Actual::of(&Pod::default(), &container), actual);
        }
    }
}
