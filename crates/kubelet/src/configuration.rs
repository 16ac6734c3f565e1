//! `KubeletConfiguration` files of `kubelet.config.k8s.io/v1beta1`: the fields that this kubelet has.
//!
//! Invariant: a field that is not supported, and a value that cannot be honoured, is an error; none is ignored.
//!
//! Source: upstream's `pkg/kubelet/apis/config/types.go` and `validation`.

mod dns;
mod eviction;
mod memory_qos;
mod reservations;
mod shutdown;

pub use dns::DnsConfiguration;

use crate::node::Housekeeping;
use crate::node::allocatable::Reservations;
use crate::node::eviction::thresholds::{Signal, Statements, Threshold};
use crate::node::shutdown::plan::GracePeriod;
use crate::pods::backoff::RestartDelays;
use crate::pods::memory_qos::MemoryQos;
use crate::pods::sysctls::AllowedSysctls;
use crate::resource_managers::cpu::CpuOptions;
use crate::resource_managers::hints::TopologyPolicy;
use crate::resource_managers::memory::MemoryOptions;
use crate::resource_managers::memory::table::Reserved;
use crate::resource_managers::{Scope, Settings};
use kaji_meta::{TypeMeta, duration, quantity::Quantity};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

const VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigurationError {
    /// The file.
    #[error("failed to read kubelet config file {path:?}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// What it says.
    #[error("failed to load kubelet config file {path:?}: {message}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
}

/// What an administrator configures of a kubelet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Configuration {
    /// Logs, images, pressure.
    pub housekeeping: Housekeeping,
    /// Processors and devices.
    pub managers: Settings,
    /// Pods that the node takes; `None` for the default.
    pub max_pods: Option<u32>,
    /// What pods may not use.
    pub reservations: Reservations,
    /// The sysctls that pods may set.
    pub sysctls: AllowedSysctls,
    /// The longest delay before a container that exits is started again (KEP-4603).
    pub restart_delays: RestartDelays,
    /// Protection and throttling of memory by cgroup v2 (KEP-2570).
    pub memory_qos: MemoryQos,
    /// Resolvers of pods.
    pub dns: DnsConfiguration,
    /// How long pods get to end when the node shuts down, the lowest priority first; empty for no time at all.
    pub shutdown: Vec<GracePeriod>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    api_version: String,
    kind: String,
    container_log_max_size: Option<String>,
    container_log_max_files: Option<usize>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    image_gc_high: Option<u8>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    image_gc_low: Option<u8>,
    #[serde(rename = "imageMinimumGCAge")]
    image_minimum_age: Option<String>,
    #[serde(rename = "imageMaximumGCAge")]
    image_maximum_age: Option<String>,
    eviction_hard: Option<Statements>,
    eviction_soft: Option<Statements>,
    eviction_soft_grace_period: Option<BTreeMap<String, String>>,
    eviction_minimum_reclaim: Option<Statements>,
    eviction_max_pod_grace_period: Option<i64>,
    eviction_pressure_transition_period: Option<String>,
    merge_default_eviction_settings: Option<bool>,
    enforce_node_allocatable: Option<Vec<String>>,
    system_reserved_cgroup: Option<String>,
    kube_reserved_cgroup: Option<String>,
    shutdown_grace_period: Option<String>,
    shutdown_grace_period_critical_pods: Option<String>,
    shutdown_grace_period_by_pod_priority: Option<Vec<shutdown::PodPriorityPeriod>>,
    cpu_manager_policy: Option<String>,
    cpu_manager_policy_options: Option<BTreeMap<String, String>>,
    memory_manager_policy: Option<String>,
    memory_reservation_policy: Option<String>,
    memory_throttling_factor: Option<f64>,
    reserved_memory: Option<Vec<MemoryReservation>>,
    topology_manager_policy: Option<String>,
    topology_manager_scope: Option<String>,
    #[serde(rename = "reservedSystemCPUs")]
    reserved_system_cpus: Option<String>,
    system_reserved: Option<BTreeMap<String, String>>,
    kube_reserved: Option<BTreeMap<String, String>>,
    max_pods: Option<u32>,
    allowed_unsafe_sysctls: Option<Vec<String>>,
    crash_loop_back_off: Option<CrashLoopBackOff>,
    cluster_domain: Option<String>,
    #[serde(rename = "clusterDNS")]
    cluster_dns: Option<Vec<String>>,
    resolv_conf: Option<String>,
    feature_gates: Option<BTreeMap<String, bool>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct CrashLoopBackOff {
    max_container_restart_period: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct MemoryReservation {
    numa_node: u32,
    limits: BTreeMap<String, String>,
}

/// Reads a file.
///
/// # Errors
/// [`ConfigurationError`].
pub fn read(path: &Path) -> Result<Configuration, ConfigurationError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigurationError::Read { path: path.to_owned(), error })?;
    parse(&text).map_err(|message| ConfigurationError::Invalid { path: path.to_owned(), message })
}

/// Reads the text of a file.
///
/// # Errors
/// What it has of other fields or wrong values.
pub fn parse(text: &str) -> Result<Configuration, String> {
    let file: File = kaji_files::yaml::decode(text).map_err(|error| {
        format!("{error} (this kubelet supports the fields that are expected, and no others)")
    })?;
    let meta = TypeMeta { api_version: &file.api_version, kind: &file.kind };
    meta.expect(KIND, &[VERSION]).map_err(|e| format!("{e}: expected {KIND} of {VERSION}"))?;
    let gates = file.feature_gates.iter().flatten().map(|(name, on)| format!("{name}={on}"));
    kaji_meta::Features::parse(gates).map_err(|error| format!("featureGates: {error}"))?;
    let reserved_cpus = reservations::reserved_cpus(&file)?;
    let housekeeping = housekeeping(&file)?;
    let reservations = reservations::parse(&file, reserved_cpus.as_ref(), &housekeeping.eviction.thresholds)?;
    let hard = |t: &&Threshold| t.signal == Signal::MemoryAvailable && t.is_hard();
    let memory = memory_reservations(&file)?.map(|kept| MemoryOptions {
        reserved: kept,
        expected: u64::try_from(reservations.total("memory")).unwrap_or(0),
        eviction: housekeeping.eviction.thresholds.iter().find(hard).map(|t| t.least),
    });
    let managers = Settings {
        memory,
        cpu: cpu_options(&file)?,
        reserved_cpus,
        reserved_milli: reservations.total("cpu"),
        policy: topology_policy(&file)?,
        scope: match file.topology_manager_scope.as_deref().unwrap_or_default() {
            "" | "container" => Scope::Container,
            "pod" => Scope::Pod,
            other => return Err(format!("unknown scope: {other:?}")),
        },
    };
    let sysctls = AllowedSysctls::with(file.allowed_unsafe_sysctls.as_deref().unwrap_or_default())?;
    let max_pods = file.max_pods.filter(|n| *n > 0);
    let restart_delays = restart_delays(&file)?;
    let memory_qos = memory_qos::parse(&file)?;
    let shutdown = shutdown::parse(&file)?;
    let servers = file.cluster_dns.as_deref().unwrap_or_default();
    let dns = DnsConfiguration::new(file.cluster_domain.as_deref(), servers, file.resolv_conf.as_deref())?;
    Ok(Configuration {
        housekeeping,
        managers,
        max_pods,
        reservations,
        sysctls,
        restart_delays,
        memory_qos,
        dns,
        shutdown,
    })
}

fn restart_delays(file: &File) -> Result<RestartDelays, String> {
    let settings = file.crash_loop_back_off.as_ref();
    let Some(text) = settings.and_then(|settings| settings.max_container_restart_period.as_deref()) else {
        return Ok(RestartDelays::default());
    };
    let longest = time("crashLoopBackOff.maxContainerRestartPeriod", text)?;
    RestartDelays::up_to(longest).ok_or_else(|| {
        format!(
            "invalid configuration: CrashLoopBackOff.MaxContainerRestartPeriod (got: {} seconds) must be set between 1s and 300s",
            longest.as_secs_f64()
        )
    })
}

fn cpu_options(file: &File) -> Result<Option<CpuOptions>, String> {
    let mut options = CpuOptions::default();
    for (name, value) in file.cpu_manager_policy_options.iter().flatten() {
        let value = match value.as_str() {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => true,
            "0" | "f" | "F" | "FALSE" | "false" | "False" => false,
            _ => return Err(format!("bad value for option {name:?}: {value:?}")),
        };
        match name.as_str() {
            "full-pcpus-only" => options.whole_cores = value,
            "strict-cpu-reservation" => options.strict_reservation = value,
            "align-by-socket" | "distribute-cpus-across-cores" => {
                return Err(format!(
                    "CPU Manager Policy Alpha-level Options not enabled, but option {name:?} provided"
                ));
            }
            "distribute-cpus-across-numa" => options.across_numa = value,
            "prefer-align-cpus-by-uncorecache" => options.align_caches = value,
            _ => return Err(format!("unknown CPU Manager Policy option: {name:?}")),
        }
    }
    match file.cpu_manager_policy.as_deref().unwrap_or_default() {
        "" | "none" if options != CpuOptions::default() => {
            Err("None policy: received unsupported options".to_owned())
        }
        "" | "none" => Ok(None),
        "static" => Ok(Some(options)),
        other => Err(format!("unknown policy: {other:?}")),
    }
}

/// What the static policy of memory keeps from pods; `None` for the policy `None`.
fn memory_reservations(file: &File) -> Result<Option<Reserved>, String> {
    let mut reserved = Reserved::new();
    for reservation in file.reserved_memory.iter().flatten() {
        let node = reservation.numa_node;
        for (kind, text) in &reservation.limits {
            if kind != "memory" && !kind.starts_with("hugepages-") {
                return Err(format!(
                    "invalid configuration: the limit type {kind:?} for NUMA node {node} is not supported, only [memory hugepages-<HugePageSize>] is accepted"
                ));
            }
            let bytes = Quantity::parse(text).ok().and_then(|amount| u64::try_from(amount.value()).ok());
            let bytes = bytes.ok_or_else(|| format!("reservedMemory: invalid quantity {text:?}"))?;
            if bytes == 0 {
                return Err(format!(
                    "invalid configuration: reserved memory may not be zero for NUMA node {node} and resource {kind:?}"
                ));
            }
            if reserved.entry(node).or_default().insert(kind.clone(), bytes).is_some() {
                return Err(format!(
                    "invalid configuration: the reserved memory has a duplicate value for NUMA node {node} and resource {kind:?}"
                ));
            }
        }
    }
    match file.memory_manager_policy.as_deref().unwrap_or_default() {
        "" | "None" => Ok(None),
        "Static" => Ok(Some(reserved)),
        other => Err(format!("unknown policy: {other:?}")),
    }
}

fn topology_policy(file: &File) -> Result<TopologyPolicy, String> {
    match file.topology_manager_policy.as_deref().unwrap_or_default() {
        "" => Ok(TopologyPolicy::None),
        text => TopologyPolicy::parse(text).ok_or_else(|| format!("unknown policy: {text:?}")),
    }
}

fn time(field: &str, text: &str) -> Result<Duration, String> {
    duration::parse_non_negative(text).map_err(|_| format!("{field}: invalid duration {text:?}"))
}

fn housekeeping(file: &File) -> Result<Housekeeping, String> {
    let mut settings = Housekeeping::default();
    if let Some(text) = &file.container_log_max_size {
        let bytes = Quantity::parse(text).ok().and_then(|q| u64::try_from(q.value()).ok()).filter(|b| *b > 0);
        settings.logs.max_bytes =
            bytes.ok_or_else(|| format!("failed to parse container log max size {text:?}"))?;
    }
    if let Some(files) = file.container_log_max_files {
        if files <= 1 {
            return Err(format!(
                "invalid configuration: containerLogMaxFiles (--container-log-max-files) {files} must be greater than 1"
            ));
        }
        settings.logs.max_files = files;
    }
    let images = &mut settings.images;
    (images.high_percent, images.low_percent) =
        (file.image_gc_high.unwrap_or(images.high_percent), file.image_gc_low.unwrap_or(images.low_percent));
    if images.high_percent > 100 || images.low_percent >= images.high_percent {
        return Err(format!(
            "invalid configuration: imageGCLowThresholdPercent (--image-gc-low-threshold) {} must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) {}",
            images.low_percent, images.high_percent
        ));
    }
    let age = |field, text: &String| {
        let age = time(field, text)?;
        jiff::SignedDuration::try_from(age).map_err(|error| format!("{field}: {error}"))
    };
    if let Some(text) = &file.image_minimum_age {
        images.min_age = age("imageMinimumGCAge", text)?;
    }
    if let Some(text) = &file.image_maximum_age {
        images.max_age = age("imageMaximumGCAge", text)?;
    }
    settings.eviction = eviction::parse(file)?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::eviction::thresholds::Amount;
    use crate::resource_managers::cpu_set::CpuSet;

    fn of(rest: &str) -> Result<Configuration, String> {
        parse(&format!("apiVersion: {VERSION}\nkind: {KIND}\n{rest}"))
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        assert_eq!(of(""), Ok(Configuration::default()));
        assert_eq!(
            of("cpuManagerPolicy: none\ntopologyManagerPolicy: none\nmemoryManagerPolicy: None"),
            of("")
        );
    }

    #[test]
    fn fields_are_taken_over() {
        let found = of("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n\
             topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n\
             systemReserved: {cpu: 500m, memory: 1Gi}\nkubeReserved: {cpu: '1', ephemeral-storage: 1G}\nmaxPods: 20\n\
             containerLogMaxSize: 1Mi\ncontainerLogMaxFiles: 3\nimageGCHighThresholdPercent: 70\nimageGCLowThresholdPercent: 60\n\
             imageMinimumGCAge: 1m\nevictionHard: {memory.available: 5%}\nevictionPressureTransitionPeriod: 30s\n\
             evictionMaxPodGracePeriod: 7\ncrashLoopBackOff: {maxContainerRestartPeriod: 5s}")
        .unwrap();
        assert_eq!(Some(found.restart_delays), RestartDelays::up_to(Duration::from_secs(5)));
        let managers = &found.managers;
        assert_eq!(managers.cpu, Some(CpuOptions { whole_cores: true, ..CpuOptions::default() }));
        assert_eq!((managers.policy, managers.scope), (TopologyPolicy::SingleNumaNode, Scope::Pod));
        assert_eq!((managers.reserved_milli, found.max_pods), (1500, Some(20)));
        let reserved = ["cpu", "ephemeral-storage", "memory"].map(|name| found.reservations.total(name));
        assert_eq!(reserved, [1500, 1_000_000_000, 1 << 30]);
        assert_eq!(found.reservations.eviction, [("memory", Amount::Part(0.05))].into());
        let settings = &found.housekeeping;
        assert_eq!((settings.logs.max_bytes, settings.logs.max_files), (1 << 20, 3));
        assert_eq!((settings.images.high_percent, settings.images.low_percent), (70, 60));
        assert_eq!((settings.eviction.thresholds.len(), settings.eviction.most_pod_grace), (2, 7));
        let named =
            of("cpuManagerPolicy: static\nreservedSystemCPUs: 0,2\nkubeReserved: {cpu: '1'}").unwrap();
        assert_eq!(named.managers.reserved_cpus, Some(CpuSet([0, 2].into())));
        assert_eq!(named.reservations.total("cpu"), 2000);
        let merged = of("evictionHard: {memory.available: 5%}\nmergeDefaultEvictionSettings: true").unwrap();
        assert_eq!(merged.housekeeping.eviction.thresholds.len(), 6);
        let reclaiming =
            of("evictionMinimumReclaim: {nodefs.available: 1Gi}\nevictionPressureTransitionPeriod: 0s");
        let reclaiming = reclaiming.unwrap().housekeeping.eviction;
        assert_eq!(reclaiming.thresholds.iter().filter(|t| t.reclaim.is_some()).count(), 1);
        assert_eq!(reclaiming.transition, Duration::from_secs(300));
        let enforcing = of("enforceNodeAllocatable: [pods, system-reserved-compressible]\nsystemReserved: {cpu: 100m, pid: '1000'}\n\
             systemReservedCgroup: /system.slice")
        .unwrap()
        .reservations;
        assert_eq!((enforcing.enforced.len(), enforcing.total("pid")), (2, 1000));
        assert!(of("enforceNodeAllocatable: [none]").unwrap().reservations.enforced.is_empty());
        let shutdown = of("shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s").unwrap().shutdown;
        assert_eq!(shutdown.iter().map(|p| p.seconds).collect::<Vec<_>>(), [20, 10]);
        let options = "{distribute-cpus-across-numa: 'true', prefer-align-cpus-by-uncorecache: 'true'}";
        let cpu = of(&format!("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {options}"))
            .unwrap()
            .managers
            .cpu;
        assert!(cpu.is_some_and(|cpu| cpu.across_numa && cpu.align_caches));
        let bound =
            of("memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 1, limits: {memory: 612Mi}}]\n\
             systemReserved: {memory: 512Mi}")
            .unwrap();
        let wanted = MemoryOptions {
            reserved: [(1, [("memory".to_owned(), 612 << 20)].into())].into(),
            expected: 512 << 20,
            eviction: Some(Amount::Units(100 << 20)),
        };
        assert_eq!(bound.managers.memory, Some(wanted));
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        let errors: Vec<String> = [
            "memoryManagerPolicy: static",
            "reservedMemory: [{numaNode: 0, limits: {cpu: '1'}}]",
            "reservedMemory: [{numaNode: 0, limits: {memory: '0'}}]",
            "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 0, limits: {memory: 1Gi}}]",
            "cpuManagerPolicy: dynamic",
            "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}",
            "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {align-by-socket: 'true'}",
            "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {distribute-cpus-across-numa: evenly}",
            "cpuManagerPolicyOptions: {x: 'true'}",
            "topologyManagerPolicy: x",
            "topologyManagerScope: node",
            "reservedSystemCPUs: a",
            "kubeReserved: {pods: '1'}",
            "systemReserved: {pid: many}",
            "systemReserved: {memory: '-1'}",
            "enforceNodeAllocatable: [none, pods]",
            "enforceNodeAllocatable: [system]",
            "enforceNodeAllocatable: [pods, system-reserved]",
            "enforceNodeAllocatable: [kube-reserved, kube-reserved-compressible]\nkubeReservedCgroup: /k",
            "reservedSystemCPUs: '0'\nkubeReservedCgroup: /kube.slice",
            "shutdownGracePeriod: 500ms",
            "shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 20s",
            "shutdownGracePeriod: 10s\nshutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]",
            "containerLogMaxFiles: 1",
            "imageGCHighThresholdPercent: 10",
            "evictionSoft: {memory.available: 10%}",
            "evictionPressureTransitionPeriod: soon",
            "allowedUnsafeSysctls: [vm.swappiness]",
            "crashLoopBackOff: {maxContainerRestartPeriod: 500ms}",
        ]
        .iter()
        .map(|text| of(text).unwrap_err())
        .collect();
        expect_test::expect![[r#"
            unknown policy: "static"
            invalid configuration: the limit type "cpu" for NUMA node 0 is not supported, only [memory hugepages-<HugePageSize>] is accepted
            invalid configuration: reserved memory may not be zero for NUMA node 0 and resource "memory"
            invalid configuration: the reserved memory has a duplicate value for NUMA node 0 and resource "memory"
            unknown policy: "dynamic"
            None policy: received unsupported options
            CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided
            bad value for option "distribute-cpus-across-numa": "evenly"
            unknown CPU Manager Policy option: "x"
            unknown policy: "x"
            unknown scope: "node"
            unable to parse reservedSystemCPUs: "a" is no number of a processor
            cannot reserve "pods" resource
            failed to parse quantity "many" for "pid" resource: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'
            resource quantity for "memory" cannot be negative: -1
            invalid configuration: enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements when "none" is specified
            invalid configuration: option "system" specified for enforceNodeAllocatable (--enforce-node-allocatable). Valid options are "pods", "system-reserved", "system-reserved-compressible", "kube-reserved", "kube-reserved-compressible", or "none"
            invalid configuration: systemReservedCgroup (--system-reserved-cgroup) must be specified when "system-reserved" contained in enforceNodeAllocatable (--enforce-node-allocatable)
            invalid configuration: both "kube-reserved" and "kube-reserved-compressible" cannot be specified in enforceNodeAllocatable (--enforce-node-allocatable)
            invalid configuration: can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)
            invalid configuration: shutdownGracePeriod 500ms must be either zero or otherwise >= 1 sec
            invalid configuration: shutdownGracePeriodCriticalPods 20s must be <= shutdownGracePeriod 10s
            invalid configuration: Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time
            invalid configuration: containerLogMaxFiles (--container-log-max-files) 1 must be greater than 1
            invalid configuration: imageGCLowThresholdPercent (--image-gc-low-threshold) 80 must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) 10
            grace period must be specified for the soft eviction threshold memory.available
            evictionPressureTransitionPeriod: invalid duration "soon"
            the sysctls "vm.swappiness" are not known to be namespaced
            invalid configuration: CrashLoopBackOff.MaxContainerRestartPeriod (got: 0.5 seconds) must be set between 1s and 300s"#]].assert_eq(&errors.join("\n"));
        assert!(of("featureGates: {KubeletPSI: true, ReduceDefaultCrashLoopBackOffDecay: false}").is_ok());
        assert_eq!(of("featureGates: {X: true}").unwrap_err(), "featureGates: unrecognized feature gate: X");
        assert_eq!(
            parse("apiVersion: v1\nkind: Pod\n").unwrap_err(),
            r#"no kind "Pod" is registered for version "v1": expected KubeletConfiguration of kubelet.config.k8s.io/v1beta1"#
        );
    }
}
