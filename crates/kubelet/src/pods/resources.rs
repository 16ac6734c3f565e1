//! Cgroup limits of containers and pods, from their requests and limits. Upstream's `cm/helpers_linux.go`.

use super::admission;
use super::context::NodeContext;
use super::core::{Container, Pod, ResourceRequirements};
use super::memory_qos::Files;
use super::model::{self, Amounts, Qos};
use kaji_containers::{HugepageLimit, LinuxResources};

/// Microseconds of a period of the scheduler.
const PERIOD: u64 = 100_000;

/// Relative weight of a request in thousandths of a processor.
#[must_use]
pub fn cpu_shares(milli: i64) -> u64 {
    u64::try_from(milli.saturating_mul(1024) / 1000).unwrap_or(0).clamp(2, 262_144)
}

/// Microseconds in each period of a limit in thousandths of a processor; 0 for no limit.
#[must_use]
pub fn cpu_quota(milli: i64) -> i64 {
    if milli == 0 { 0 } else { (milli.saturating_mul(100_000) / 1000).max(1000) }
}

/// The request that gives these shares, in thousandths of a processor.
#[must_use]
pub fn milli_of_shares(shares: u64) -> i64 {
    i64::try_from(shares.saturating_mul(1000).div_ceil(1024)).unwrap_or(i64::MAX)
}

/// The limit that gives this quota, in thousandths of a processor; 0 for none.
#[must_use]
pub fn milli_of_quota(quota: i64, period: u64) -> i64 {
    let period = i64::try_from(period).unwrap_or(i64::MAX).max(1);
    if quota <= 0 { 0 } else { quota.saturating_mul(1000) / period }
}

/// Adds a container's amounts to those of its pod, as quantities: sums over containers and sidecars, or what one init container has
/// while it runs, replaced by the pod's own. Upstream's `PodRequests` and `PodLimits`.
fn sum_of_pod(pod: &Pod, of: fn(Option<&ResourceRequirements>) -> Option<&Amounts>) -> Amounts {
    let add = |to: &mut Amounts, amounts: Option<&Amounts>| {
        for (name, amount) in amounts.into_iter().flatten() {
            let sum = match to.get(name) {
                Some(before) => model::quantity(before).add(&model::quantity(amount)),
                None => model::quantity(amount),
            };
            to.insert(name.clone(), model::api_quantity(&sum));
        }
    };
    let mut sum = Amounts::new();
    for container in model::containers(pod) {
        add(&mut sum, of(container.resources.as_ref()));
    }
    let (mut sidecars, mut most) = (Amounts::new(), Amounts::new());
    let raise = |to: &mut Amounts, by: &Amounts| {
        for (name, amount) in by {
            let more = |b: &_| model::quantity(b).scaled_value(-3) < model::quantity(amount).scaled_value(-3);
            if to.get(name).is_none_or(more) {
                to.insert(name.clone(), amount.clone());
            }
        }
    };
    for container in model::init_containers(pod) {
        let own = of(container.resources.as_ref());
        let mut while_it_runs = sidecars.clone();
        add(&mut while_it_runs, own);
        if model::is_sidecar(container) {
            add(&mut sum, own);
            sidecars.clone_from(&while_it_runs);
        }
        raise(&mut most, &while_it_runs);
    }
    raise(&mut sum, &most);
    for (name, amount) in of(model::spec(pod).resources.as_ref()).into_iter().flatten() {
        if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
            sum.insert(name.clone(), amount.clone());
        }
    }
    sum
}

/// What a pod requests in all, its overhead with it.
#[must_use]
pub fn requests_of_pod(pod: &Pod) -> Amounts {
    let mut sum = sum_of_pod(pod, model::requests);
    for (name, amount) in model::spec(pod).overhead.iter().flatten() {
        let own = model::quantity(amount);
        let more = sum.get(name).map_or_else(|| own.clone(), |sum| model::quantity(sum).add(&own));
        sum.insert(name.clone(), model::api_quantity(&more));
    }
    sum
}

/// The limits of a pod in all. Overhead raises those that there are.
#[must_use]
pub fn limits_of_pod(pod: &Pod) -> Amounts {
    let mut sum = sum_of_pod(pod, model::limits);
    for (name, amount) in model::spec(pod).overhead.iter().flatten() {
        if let Some(limit) = sum.get_mut(name).filter(|limit| !model::quantity(limit).is_zero()) {
            *limit = model::api_quantity(&model::quantity(limit).add(&model::quantity(amount)));
        }
    }
    sum
}

/// Each container's share of the memory that the pod requests beyond its containers.
fn memory_beyond_containers(pod: &Pod) -> i64 {
    let whole = model::whole(model::requests(model::spec(pod).resources.as_ref()), "memory").unwrap_or(0);
    if whole == 0 {
        return 0;
    }
    let mut of_containers = pod.clone();
    if let Some(spec) = &mut of_containers.spec {
        (spec.resources, spec.overhead) = (None, None);
    }
    let own = model::whole(Some(&sum_of_pod(&of_containers, model::requests)), "memory").unwrap_or(0);
    let count = model::containers(pod).len() + model::init_containers(pod).len();
    (whole - own) / i64::try_from(count.max(1)).unwrap_or(1)
}

/// Which container the kernel kills first for want of memory: the one that uses most of what it asked for.
/// Source: upstream's `qos/policy.go`.
#[must_use]
pub fn oom_score_adj(pod: &Pod, container: &Container, node_memory: i64) -> i64 {
    if model::is_critical(pod) {
        return -997;
    }
    match model::qos(pod) {
        Qos::Guaranteed => return -997,
        Qos::BestEffort => return 1000,
        Qos::Burstable => {}
    }
    let beyond = memory_beyond_containers(pod);
    let request = model::whole(model::requests(container.resources.as_ref()), "memory").unwrap_or(0);
    let score = 1000 - 1000_i64.saturating_mul(request + beyond) / node_memory.max(1);
    let score = score.clamp(3, 999);
    let regular = |c: &&Container| model::whole(model::requests(c.resources.as_ref()), "memory").unwrap_or(0);
    // A sidecar goes no earlier than the regular container that goes last.
    if model::is_sidecar(container) && model::init_containers(pod).iter().any(|c| c.name == container.name) {
        let least = model::containers(pod).iter().map(|c| regular(&c)).min().unwrap_or(0);
        let theirs = (1000 - 1000_i64.saturating_mul(least + beyond) / node_memory.max(1)).clamp(3, 999);
        return score.min(theirs);
    }
    score
}

/// `hugepages-2Mi` as the cgroup names it: `2MB`.
pub(crate) fn page_size(resource: &str) -> Option<String> {
    let size = resource.strip_prefix("hugepages-")?;
    let bytes = kaji_meta::quantity::Quantity::parse(size).ok()?.value();
    let (divisor, unit) = match bytes {
        b if b >= 1 << 30 => (1 << 30, "GB"),
        b if b >= 1 << 20 => (1 << 20, "MB"),
        _ => (1 << 10, "KB"),
    };
    Some(format!("{}{unit}", bytes / divisor))
}

fn hugepages(limits: Option<&Amounts>) -> Vec<HugepageLimit> {
    let of = |(name, q): (&String, _)| {
        let limit = u64::try_from(model::quantity(q).value()).unwrap_or(0);
        Some(HugepageLimit { page_size: page_size(name)?, limit })
    };
    limits.into_iter().flatten().filter_map(of).collect()
}

/// The limits of a container. `node_memory` is the node's capacity, in bytes.
#[must_use]
pub fn of_container(pod: &Pod, container: &Container, node_memory: i64) -> LinuxResources {
    let (requests, limits) =
        (model::requests(container.resources.as_ref()), model::limits(container.resources.as_ref()));
    let pod_limits = model::limits(model::spec(pod).resources.as_ref());
    let limit_cpu = model::milli(limits, "cpu").or(model::milli(pod_limits, "cpu")).unwrap_or(0);
    // A limit without a request stands for both.
    let asked = model::milli(requests, "cpu").unwrap_or(limit_cpu);
    let memory = model::whole(limits, "memory").or(model::whole(pod_limits, "memory")).unwrap_or(0);
    LinuxResources {
        cpu_period: PERIOD,
        cpu_quota: cpu_quota(limit_cpu),
        cpu_shares: cpu_shares(asked),
        memory_limit_bytes: memory,
        oom_score_adj: Some(oom_score_adj(pod, container, node_memory)),
        hugepage_limits: hugepages(limits),
        ..LinuxResources::default()
    }
}

/// Whether the kernel has cgroups of version 2 for all controllers.
#[must_use]
pub fn has_unified_cgroups() -> bool {
    std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// Adds files of cgroup v2, where the kernel has them.
#[must_use]
pub fn with_unified(mut limits: LinuxResources, files: Files) -> LinuxResources {
    if has_unified_cgroups() {
        limits.unified.extend(files);
    }
    limits
}

/// Asks for an end of all processes of a container when one of them takes too much memory, where the kernel can do that.
#[must_use]
pub fn with_group_kill(limits: LinuxResources) -> LinuxResources {
    with_unified(limits, [("memory.oom.group".to_owned(), "1".to_owned())].into())
}

/// The limits of a pod's own cgroup with its processors, and with what protects and throttles its memory.
#[must_use]
pub fn of_pod_cgroup(cx: &NodeContext, pod: &Pod) -> LinuxResources {
    with_unified(cx.managers.of_pod(pod, of_pod(pod)), cx.config.memory_qos.of_pod(pod))
}

/// The limits of a pod's own cgroup. A limit holds for the pod when all of its containers have one.
#[must_use]
pub fn of_pod(pod: &Pod) -> LinuxResources {
    let asked = admission::pod_requests(pod);
    let cpu = asked.get("cpu").copied().unwrap_or(0);
    let pod_level = model::limits(model::spec(pod).resources.as_ref());
    let limit = |name: &str| -> Option<i64> {
        let of = |amounts: Option<&Amounts>| {
            if name == "cpu" { model::milli(amounts, name) } else { model::whole(amounts, name) }
        };
        if let Some(own) = of(pod_level) {
            return Some(own);
        }
        let all = model::containers(pod).iter().chain(model::init_containers(pod));
        let counted: Option<Vec<i64>> =
            all.map(|c| of(model::limits(c.resources.as_ref())).filter(|l| *l > 0)).collect();
        let counted = counted?;
        let regular: i64 = counted.iter().take(model::containers(pod).len()).sum();
        let inits = model::init_containers(pod).iter().zip(counted.iter().skip(model::containers(pod).len()));
        let (mut sidecars, mut most) = (0, 0);
        for (container, limit) in inits {
            most = most.max(sidecars + limit);
            if model::is_sidecar(container) {
                sidecars += limit;
            }
        }
        let overhead = of(model::spec(pod).overhead.as_ref()).unwrap_or(0);
        Some((regular + sidecars).max(most) + overhead)
    };
    let quality = model::qos(pod);
    LinuxResources {
        cpu_period: PERIOD,
        cpu_quota: limit("cpu").map_or(-1, cpu_quota),
        cpu_shares: if quality == Qos::BestEffort { 2 } else { cpu_shares(cpu) },
        memory_limit_bytes: limit("memory").unwrap_or(-1),
        ..LinuxResources::default()
    }
}

/// What a pod takes beside its containers, which its RuntimeClass says.
#[must_use]
pub fn of_overhead(pod: &Pod) -> LinuxResources {
    let overhead = model::spec(pod).overhead.as_ref();
    let cpu = model::milli(overhead, "cpu").unwrap_or(0);
    LinuxResources {
        cpu_period: PERIOD,
        cpu_quota: cpu_quota(cpu),
        cpu_shares: cpu_shares(cpu),
        memory_limit_bytes: model::whole(overhead, "memory").unwrap_or(0),
        ..LinuxResources::default()
    }
}

/// The path of a pod's cgroup below the hierarchies' mount points.
#[must_use]
pub fn cgroup_path(pod: &Pod) -> String {
    let uid = model::uid(pod);
    match model::qos(pod) {
        Qos::Guaranteed => format!("/kubepods/pod{uid}"),
        Qos::Burstable => format!("/kubepods/burstable/pod{uid}"),
        Qos::BestEffort => format!("/kubepods/besteffort/pod{uid}"),
    }
}
