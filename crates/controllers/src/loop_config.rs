//! What loops are configured with by flags of kube-controller-manager. The defaults are upstream's.

use kaji_meta::random::{Random, fraction};
use kaji_runtime::Resync;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// How the health of nodes is monitored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeMonitorConfig {
    /// `--node-monitor-period`: the time between two looks.
    pub period: Duration,
    /// `--node-monitor-grace-period`: how long a node may be silent.
    pub grace: Duration,
    /// `--node-startup-grace-period`: how long it may be silent before its first status.
    pub startup_grace: Duration,
    /// The zones' rates.
    pub evictions: EvictionRates,
}

/// How fast nodes of a zone may get taints that evict their pods.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictionRates {
    /// `--node-eviction-rate`: nodes a second.
    pub rate: f64,
    /// `--secondary-node-eviction-rate`: the same in a large zone with too many nodes that are not ready.
    pub secondary_rate: f64,
    /// `--unhealthy-zone-threshold`: the fraction of nodes from which on those that are not ready are too many.
    pub unhealthy: f64,
    /// `--large-cluster-size-threshold`: a zone with more nodes is large.
    pub large: usize,
}

impl Default for NodeMonitorConfig {
    fn default() -> NodeMonitorConfig {
        NodeMonitorConfig {
            period: Duration::from_secs(5),
            grace: Duration::from_secs(50),
            startup_grace: Duration::from_secs(60),
            evictions: EvictionRates::default(),
        }
    }
}

impl Default for EvictionRates {
    fn default() -> EvictionRates {
        EvictionRates { rate: 0.1, secondary_rate: 0.01, unhealthy: 0.55, large: 50 }
    }
}

/// The configuration of loops.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopConfig {
    /// `--controller-start-interval`: how long a controller waits at least before it starts, and up to twice as long. All wait at the
    /// same time.
    pub start_interval: Duration,
    /// `--min-resync-period`: how often loops look at every object at most, whatever was noticed; never for no time.
    pub resync_period: Duration,
    /// `--enable-garbage-collector`: whether dependents are collected. The API server has to have the same.
    pub garbage_collector: bool,
    /// How many objects a controller works on at the same time, by its name in `--controllers`; others have their own number.
    pub workers: BTreeMap<&'static str, usize>,
    /// The health of nodes.
    pub nodes: NodeMonitorConfig,
    /// `--terminated-pod-gc-threshold`: pods that are over and stay. Without it all stay.
    pub terminated_pods: Option<usize>,
    /// `--resource-quota-sync-period`: how often everything is counted anew.
    pub quota_period: Duration,
    /// `--max-endpoints-per-slice`
    pub endpoints_per_slice: usize,
    /// `--mirroring-max-endpoints-per-subset`
    pub mirrored_endpoints: usize,
    /// How long changes wait for others before endpoints are written.
    pub batches: BatchPeriods,
    /// `--namespace-sync-period`: the longest time between two looks at a namespace that is being deleted.
    pub namespace_period: Duration,
    /// `--cluster-signing-duration`: how long certificates live at most.
    pub signing_duration: Duration,
    /// The loops of volumes.
    pub volumes: VolumeLoops,
    /// The loops that ask the cloud provider.
    pub cloud: CloudLoops,
}

/// The loops of volumes and claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeLoops {
    /// `--enable-dynamic-provisioning`: whether provisioners are asked for volumes.
    pub dynamic_provisioning: bool,
    /// Not `--disable-force-detach-on-timeout`: whether a volume is detached from a node that has been unhealthy for six minutes.
    pub force_detach_on_timeout: bool,
}

impl Default for VolumeLoops {
    fn default() -> VolumeLoops {
        VolumeLoops { dynamic_provisioning: true, force_detach_on_timeout: true }
    }
}

/// How long changes wait for others, so that one write has them all. None by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchPeriods {
    /// `--endpoint-updates-batch-period`: changes of pods, before Endpoints are written.
    pub endpoints: Duration,
    /// `--endpointslice-updates-batch-period`: changes of pods and slices, before EndpointSlices are written.
    pub slices: Duration,
    /// `--mirroring-endpointslice-updates-batch-period`: changes of mirrored EndpointSlices.
    pub mirrored: Duration,
}

/// What the loops that ask the cloud provider are configured with, here or in a cloud-controller-manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudLoops {
    /// `--cloud-provider=external`: a cloud-controller-manager outside runs these loops, none runs here.
    pub external: bool,
    /// `--cluster-name`: what the provider tells clusters apart by.
    pub cluster_name: String,
    /// `--configure-cloud-routes`: whether nodes with pod CIDRs get routes.
    pub configure_routes: bool,
    /// `--route-reconciliation-period`: the time between two looks at the routes.
    pub route_period: Duration,
    /// `--node-status-update-frequency`: the time between two questions about a node's addresses.
    pub node_status_period: Duration,
}

impl Default for CloudLoops {
    fn default() -> CloudLoops {
        CloudLoops {
            external: false,
            cluster_name: "kubernetes".to_owned(),
            configure_routes: true,
            route_period: Duration::from_secs(10),
            node_status_period: Duration::from_secs(300),
        }
    }
}

impl Default for LoopConfig {
    fn default() -> LoopConfig {
        LoopConfig {
            start_interval: Duration::ZERO,
            resync_period: Duration::from_secs(12 * 60 * 60),
            garbage_collector: true,
            workers: crate::worker_flags().map(|(controller, flag)| (controller, flag.default)).collect(),
            nodes: NodeMonitorConfig::default(),
            terminated_pods: Some(12_500),
            quota_period: Duration::from_secs(300),
            endpoints_per_slice: 100,
            mirrored_endpoints: 1000,
            batches: BatchPeriods::default(),
            namespace_period: Duration::from_secs(300),
            signing_duration: Duration::from_secs(365 * 24 * 60 * 60),
            volumes: VolumeLoops::default(),
            cloud: CloudLoops::default(),
        }
    }
}

impl LoopConfig {
    /// How often informers of loops are resynced.
    pub fn resync(&self, random: Arc<dyn Random>) -> Option<Resync> {
        Resync::every(self.resync_period, random)
    }

    /// How long a controller waits before it starts, as upstream's `wait.Jitter` with a factor of one.
    pub fn start_wait(&self, random: &dyn Random) -> Duration {
        if self.start_interval.is_zero() {
            return Duration::ZERO;
        }
        self.start_interval.mul_f64(1.0 + fraction(random))
    }

    /// How many objects a controller works on at the same time; one without a flag has one worker.
    pub(crate) fn workers(&self, controller: &str) -> usize {
        self.workers.get(controller).copied().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::random::SeededRandom;

    #[test]
    fn controllers_wait_for_one_to_two_intervals() {
        let random = SeededRandom::new(1);
        assert_eq!(LoopConfig::default().start_wait(&random), Duration::ZERO);
        let second = Duration::from_secs(1);
        let loops = LoopConfig { start_interval: second, ..LoopConfig::default() };
        let waits: Vec<Duration> = (0..100).map(|_| loops.start_wait(&random)).collect();
        assert!(waits.iter().all(|wait| (second..=2 * second).contains(wait)), "{waits:?}");
        assert!(waits.iter().any(|wait| *wait != waits[0]), "they differ");
    }
}
