//! Node allocatable: what pods may use of a node, and the cgroups that hold them to it. Upstream's
//! `cm/node_container_manager_linux.go` and `cm/qos_container_manager_linux.go`.
//!
//! Invariants: the limit of `/kubepods` is the capacity less the reservations; the status shows less by the hard thresholds of
//! eviction, so that pods are evicted before the kernel ends their processes. A cgroup of the system is never made, only bounded.
//!
//! The computation is pure; [`keep`] and [`enforce_reserved`] write its results.

use super::eviction::thresholds::{Amount, EvictionSettings, Signal, Threshold};
use super::machine::Machine;
use super::static_pods::{self, StaticPods};
use super::{FullPod, reference};
use crate::pods::admission;
use crate::pods::context::{CgroupBounds, NodeContext, PodCgroups};
use crate::pods::core::Pod;
use crate::pods::memory_qos::Protected;
use crate::pods::model::{self, Qos};
use crate::pods::resources::{cpu_shares, page_size};
use kaji_containers::HugepageLimit;
use kaji_meta::quantity::{Format, Quantity};
use kaji_runtime::{EventRecord, Informer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The cgroup of all pods.
const PODS: &str = "/kubepods";
const BURSTABLE: &str = "/kubepods/burstable";
const BEST_EFFORT: &str = "/kubepods/besteffort";
/// The least shares that a cgroup can have: what pods without requests get as a whole.
const LEAST_SHARES: u64 = 2;
/// Upstream's `periodicQOSCgroupUpdateInterval`, and how long a limit that was refused waits.
const PERIOD: Duration = Duration::from_secs(60);
const ENFORCED: &str = "NodeAllocatableEnforced";
const FAILED: &str = "FailedNodeAllocatableEnforcement";

/// Amounts by resource: thousandths for `cpu`, else units.
pub type Amounts = BTreeMap<String, i64>;

/// A value of `enforceNodeAllocatable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Enforcement {
    /// `pods`
    Pods,
    /// `system-reserved`
    SystemReserved,
    /// `system-reserved-compressible`: processors only.
    SystemReservedCompressible,
    /// `kube-reserved`
    KubeReserved,
    /// `kube-reserved-compressible`: processors only.
    KubeReservedCompressible,
}

impl Enforcement {
    /// All of them.
    pub const ALL: [Enforcement; 5] = [
        Enforcement::Pods,
        Enforcement::SystemReserved,
        Enforcement::SystemReservedCompressible,
        Enforcement::KubeReserved,
        Enforcement::KubeReservedCompressible,
    ];

    /// As configurations name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Enforcement::Pods => "pods",
            Enforcement::SystemReserved => "system-reserved",
            Enforcement::SystemReservedCompressible => "system-reserved-compressible",
            Enforcement::KubeReserved => "kube-reserved",
            Enforcement::KubeReservedCompressible => "kube-reserved-compressible",
        }
    }
}

/// What is kept from pods.
#[derive(Debug, Clone, PartialEq)]
pub struct Reservations {
    /// `systemReserved`
    pub system: Amounts,
    /// `kubeReserved`
    pub kube: Amounts,
    /// `systemReservedCgroup`
    pub system_cgroup: String,
    /// `kubeReservedCgroup`
    pub kube_cgroup: String,
    /// `enforceNodeAllocatable`; empty for `none`.
    pub enforced: BTreeSet<Enforcement>,
    /// Hard thresholds of eviction, by the resource that they keep free.
    pub eviction: BTreeMap<&'static str, Amount>,
}

impl Default for Reservations {
    fn default() -> Reservations {
        Reservations {
            system: Amounts::new(),
            kube: Amounts::new(),
            system_cgroup: String::new(),
            kube_cgroup: String::new(),
            enforced: [Enforcement::Pods].into(),
            eviction: kept_free(&EvictionSettings::default().thresholds),
        }
    }
}

impl Reservations {
    /// What the system and the kubelet have of a resource.
    #[must_use]
    pub fn total(&self, resource: &str) -> i64 {
        let of = |amounts: &Amounts| amounts.get(resource).copied().unwrap_or(0);
        of(&self.system).saturating_add(of(&self.kube))
    }

    /// The same with what eviction keeps free.
    #[must_use]
    pub fn with_eviction(&self, resource: &str, capacity: i64) -> i64 {
        let free = self.eviction.get(resource).map_or(0, |amount| amount.of(capacity));
        self.total(resource).saturating_add(free)
    }
}

/// What hard thresholds keep free, by resource.
#[must_use]
pub fn kept_free(thresholds: &[Threshold]) -> BTreeMap<&'static str, Amount> {
    let of = |t: &Threshold| match t.signal {
        Signal::MemoryAvailable => Some(("memory", t.least)),
        Signal::NodeFsAvailable => Some(("ephemeral-storage", t.least)),
        _ => None,
    };
    thresholds.iter().filter(|t| t.is_hard()).filter_map(of).collect()
}

/// Whether the node has what is reserved of it.
///
/// # Errors
/// Upstream's text.
pub fn validate(machine: &Machine) -> Result<(), String> {
    let capacities = [
        ("cpu", i64::from(machine.processors) * 1000, Format::DecimalSi),
        ("ephemeral-storage", machine.storage, Format::BinarySi),
        ("memory", machine.memory, Format::BinarySi),
    ];
    let mut wrong = vec![];
    for (resource, capacity, format) in capacities {
        let reserved = machine.reservations.with_eviction(resource, capacity);
        if reserved > capacity {
            let shown = |amount| match resource {
                "cpu" => Quantity::milli(amount, format),
                _ => Quantity::new(amount, format),
            };
            let (reserved, capacity) = (shown(reserved), shown(capacity));
            wrong.push(format!(
                "Resource {resource:?} has a reservation of {reserved} but capacity of {capacity}. Expected capacity >= reservation."
            ));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!("invalid Node Allocatable configuration. {}", wrong.join(" ")))
}

/// What all pods together may use; the whole capacity where that is not to be enforced.
#[must_use]
pub fn pods_bounds(machine: &Machine) -> CgroupBounds {
    let enforced = machine.reservations.enforced.contains(&Enforcement::Pods);
    let left = |resource: &str, capacity: i64| {
        let reserved = if enforced { machine.reservations.total(resource) } else { 0 };
        capacity.saturating_sub(reserved).max(0)
    };
    let pages: i64 = if enforced { machine.hugepages.values().sum() } else { 0 };
    // No limit stands for nothing: the kernel takes zero literally.
    let limit = |amount: i64| Some(amount).filter(|a| *a > 0);
    let page = |(size, bytes): (&String, &i64)| {
        let page_size = page_size(&format!("hugepages-{size}"))?;
        Some(HugepageLimit { page_size, limit: u64::try_from(*bytes).unwrap_or(0) })
    };
    CgroupBounds {
        cpu_shares: Some(cpu_shares(left("cpu", i64::from(machine.processors) * 1000))),
        memory: limit((left("memory", machine.memory) - pages).max(0)),
        pids: limit(left("pid", machine.processes)),
        hugepages: machine.hugepages.iter().filter_map(page).collect(),
        ..CgroupBounds::default()
    }
}

/// What a cgroup of the system may use for which this much is reserved.
#[must_use]
pub fn reserved_bounds(amounts: &Amounts, compressible: bool) -> CgroupBounds {
    let of = |resource: &str| amounts.get(resource).copied();
    let cpu_shares = of("cpu").map(cpu_shares);
    if compressible {
        return CgroupBounds { cpu_shares, ..CgroupBounds::default() };
    }
    let limit = |resource: &str| of(resource).filter(|amount| *amount > 0);
    // What is kept for the system is never reclaimed for pods.
    let (memory, memory_min) = (limit("memory"), limit("memory"));
    CgroupBounds { cpu_shares, memory, memory_min, pids: limit("pid"), ..CgroupBounds::default() }
}

/// The weight of burstable pods as a whole: that of what they request.
pub fn burstable_shares<'a>(pods: impl Iterator<Item = &'a Pod>) -> u64 {
    let burstable = pods.filter(|pod| !model::is_terminal(pod) && model::qos(pod) == Qos::Burstable);
    let requested = burstable.map(|pod| admission::pod_requests(pod).get("cpu").copied().unwrap_or(0));
    cpu_shares(requested.fold(0, i64::saturating_add))
}

/// What is protected of the memory of all pods, and of burstable ones: the sum that a cgroup above those of pods needs for theirs to hold.
#[must_use]
pub fn protections(protected: Protected) -> [(&'static str, CgroupBounds); 2] {
    let memory_low = Some(protected.low);
    let memory_min = Some(protected.min.saturating_add(protected.low));
    [
        (PODS, CgroupBounds { memory_min, memory_low, ..CgroupBounds::default() }),
        (BURSTABLE, CgroupBounds { memory_low, ..CgroupBounds::default() }),
    ]
}

/// The cgroups of the system that are bounded, and the kind of each as messages name it.
fn reserved(reservations: &Reservations) -> Vec<(&'static str, &str, CgroupBounds, &Amounts)> {
    let of = |enforcement: &Enforcement| {
        let (system, kube) = (&reservations.system, &reservations.kube);
        let (kind, cgroup, amounts, compressible) = match enforcement {
            Enforcement::Pods => return None,
            Enforcement::SystemReserved => ("System", &reservations.system_cgroup, system, false),
            Enforcement::SystemReservedCompressible => ("System", &reservations.system_cgroup, system, true),
            Enforcement::KubeReserved => ("Kube", &reservations.kube_cgroup, kube, false),
            Enforcement::KubeReservedCompressible => ("Kube", &reservations.kube_cgroup, kube, true),
        };
        Some((kind, cgroup.as_str(), reserved_bounds(amounts, compressible), amounts))
    };
    reservations.enforced.iter().filter_map(of).collect()
}

/// Bounds the cgroups of the system and the kubelet, where that is to be enforced.
///
/// # Errors
/// A cgroup is absent or refuses its limits: the kubelet does not start then, as upstream.
pub fn enforce_reserved(cgroups: Option<&dyn PodCgroups>, reservations: &Reservations) -> Result<(), String> {
    for (kind, path, bounds, amounts) in reserved(reservations) {
        let failed =
            |why: String| format!("Failed to enforce {kind} Reserved Cgroup Limits on {path:?}: {why}");
        let Some(cgroups) = cgroups else { return Err(failed("cgroups cannot be changed here".to_owned())) };
        if amounts.is_empty() {
            return Err(failed(format!("{path:?} cgroup is not configured properly")));
        }
        if !cgroups.exists(path) {
            return Err(failed(format!("{path:?} cgroup does not exist")));
        }
        let missing = cgroups.bound(path, &bounds).map_err(failed)?;
        if !missing.is_empty() {
            return Err(failed(format!("the cgroup has no {}", missing.join(", "))));
        }
    }
    Ok(())
}

/// Bounds the cgroups of pods, and keeps the weight of burstable ones up to date, for ever.
pub(super) async fn keep(
    cx: Arc<NodeContext>,
    machine: Machine,
    pods: Arc<Informer<FullPod>>,
    statics: watch::Receiver<StaticPods>,
) {
    let Some(cgroups) = cx.cgroups.clone() else { return };
    let node = || reference(&cx.config.node_name);
    for (kind, path, ..) in reserved(&machine.reservations) {
        let kind = kind.to_lowercase();
        let message = format!("Updated limits on {kind} reserved cgroup {path}");
        cx.api.record(EventRecord::normal(node(), ENFORCED, message));
    }
    let bounds = pods_bounds(&machine);
    let limit = async {
        // What pods use already may be more than the limit; evictions bring it down.
        while let Err(error) = set(&*cgroups, PODS, &bounds) {
            let message = format!("Failed to update Node Allocatable Limits {PODS:?}: {error}");
            cx.api.record(EventRecord::warning(node(), FAILED, message));
            kaji_runtime::time::sleep(&*cx.clock, PERIOD).await;
        }
        let message = "Updated Node Allocatable limit across pods";
        cx.api.record(EventRecord::normal(node(), ENFORCED, message));
    };
    tokio::join!(limit, keep_tiers(&cx, &*cgroups, pods, statics));
}

async fn keep_tiers(
    cx: &NodeContext,
    cgroups: &dyn PodCgroups,
    pods: Arc<Informer<FullPod>>,
    statics: watch::Receiver<StaticPods>,
) {
    let changed = Arc::new(Notify::new());
    let changes = changed.clone();
    pods.handle(move |_| changes.notify_one());
    let shares = |shares| CgroupBounds { cpu_shares: Some(shares), ..CgroupBounds::default() };
    loop {
        let (snapshot, known) = (pods.snapshot(), statics.borrow().clone());
        // Mirror pods stand for static ones.
        let own = snapshot.iter().map(|p| &*p.pod).filter(|pod| static_pods::mirrored(pod).is_none());
        let all: Vec<&Pod> = own.chain(known.iter().map(|p| &**p)).collect();
        let protected = cx.config.memory_qos.protected(all.iter().copied());
        cx.metrics.memory_protected(protected);
        let weights =
            [(BURSTABLE, shares(burstable_shares(all.into_iter()))), (BEST_EFFORT, shares(LEAST_SHARES))];
        for (path, bounds) in weights.iter().chain(&protections(protected)) {
            if let Err(error) = set(cgroups, path, bounds) {
                tracing::warn!(path, error, "Failed to update QoS cgroup configuration");
            }
        }
        // Both lead to the same look at the newest state.
        tokio::select! {
            () = changed.notified() => {}
            () = kaji_runtime::time::sleep(&*cx.clock, PERIOD) => {}
        }
    }
}

/// Bounds a cgroup of pods; where a controller is not handed down to the kubelet, it bounds nothing.
fn set(cgroups: &dyn PodCgroups, path: &str, bounds: &CgroupBounds) -> Result<(), String> {
    let missing = cgroups.bound(path, bounds)?;
    if !missing.is_empty() {
        tracing::debug!(path, ?missing, "cgroups of pods have no such controllers");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
