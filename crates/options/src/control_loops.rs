//! Flags of control loops, with upstream's names and defaults: how many objects they work on at the same time, periods and limits.
//!
//! Invariant: the defaults are those of [`LoopConfig`].

use crate::cloud::CloudFlags;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use kaji_controllers::{
    BatchPeriods, EvictionRates, LoopConfig, NodeMonitorConfig, VolumeLoops, WorkersFlag,
};
use std::{collections::BTreeMap, time::Duration};

/// Flags of kube-controller-manager.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Control loops")]
pub(crate) struct ControlLoopFlags {
    #[command(flatten)]
    workers: Workers,
    #[command(flatten)]
    nodes: NodeFlags,
    #[command(flatten)]
    volumes: VolumeFlags,
    #[command(flatten)]
    cloud: CloudFlags,
    /// How long a controller waits at least before it starts, and up to twice as long.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = super::duration)]
    controller_start_interval: Duration,
    /// Controllers look at every object again after a time between this and twice as long, whatever was noticed; 0 for never.
    #[arg(long, value_name = "DURATION", default_value = "12h", value_parser = super::duration)]
    min_resync_period: Duration,
    /// Whether dependents are deleted with their owners. An API server and the controller manager beside it have to have the same.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    enable_garbage_collector: bool,
    /// Pods that are over and stay; 0 or less lets all stay.
    #[arg(long, value_name = "N", default_value_t = 12_500, allow_negative_numbers = true)]
    terminated_pod_gc_threshold: i32,
    /// How often the usage of quotas is counted anew, whatever was noticed.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = super::duration)]
    resource_quota_sync_period: Duration,
    /// Endpoints of one EndpointSlice.
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_endpoints_per_slice: usize,
    /// Addresses of one subset of Endpoints that are mirrored to EndpointSlices.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    mirroring_max_endpoints_per_subset: usize,
    /// How long changes of pods wait before Endpoints are written, so that more of them go into one write.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = super::duration)]
    endpoint_updates_batch_period: Duration,
    /// The same for EndpointSlices.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = super::duration)]
    endpointslice_updates_batch_period: Duration,
    /// How long changes of mirrored EndpointSlices wait before they are compared with their Endpoints.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = super::duration)]
    mirroring_endpointslice_updates_batch_period: Duration,
    /// The longest time between two looks at a namespace that is being deleted.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = super::duration)]
    namespace_sync_period: Duration,
    /// How long certificates live at most that are signed for CertificateSigningRequests.
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = super::duration)]
    cluster_signing_duration: Duration,
}

/// When nodes are lost, and how fast their pods are evicted.
#[derive(Args, Clone, Debug)]
struct NodeFlags {
    /// The time between two looks at the health of all nodes.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = super::duration)]
    node_monitor_period: Duration,
    /// For how long a node may be silent until its status is Unknown.
    #[arg(long, value_name = "DURATION", default_value = "50s", value_parser = super::duration)]
    node_monitor_grace_period: Duration,
    /// The same before its first status.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = super::duration)]
    node_startup_grace_period: Duration,
    /// How many nodes of a zone lose their pods in a second; 0 for none.
    #[arg(long, value_name = "RATE", default_value_t = 0.1)]
    node_eviction_rate: f64,
    /// The same in a large zone with too many nodes that are not ready.
    #[arg(long, value_name = "RATE", default_value_t = 0.01)]
    secondary_node_eviction_rate: f64,
    /// The fraction of a zone's nodes from which on those that are not ready are too many.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.55)]
    unhealthy_zone_threshold: f64,
    /// A zone with more nodes is large.
    #[arg(long, value_name = "N", default_value_t = 50)]
    large_cluster_size_threshold: usize,
}

/// How volumes are made, and taken off nodes.
#[derive(Args, Clone, Debug)]
struct VolumeFlags {
    /// Whether provisioners are asked for volumes.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    enable_dynamic_provisioning: bool,
    /// Never detaches volumes that the kubelet may still use from a node that has been unhealthy for six minutes, only from nodes that are out
    /// of service.
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    disable_force_detach_on_timeout: bool,
}

impl VolumeFlags {
    fn config(&self) -> VolumeLoops {
        VolumeLoops {
            dynamic_provisioning: self.enable_dynamic_provisioning,
            force_detach_on_timeout: !self.disable_force_detach_on_timeout,
        }
    }
}

/// More workers than a loop has use for.
const MOST_WORKERS: usize = 10_000;

/// How many objects each controller works on at the same time: a flag for each that has one in its descriptor.
#[derive(Clone, Debug, Default)]
struct Workers(BTreeMap<&'static str, usize>);

impl Workers {
    /// # Errors
    /// Upstream's text for a number that is no use.
    fn checked(self) -> Result<BTreeMap<&'static str, usize>, String> {
        for (controller, flag) in kaji_controllers::worker_flags() {
            let (Some(&count), flag) = (self.0.get(controller), flag.name) else { continue };
            if count < 1 {
                return Err(format!("{flag} must be greater than 0, but got {count}"));
            }
            if count > MOST_WORKERS {
                return Err(format!("{flag} must be {MOST_WORKERS} at most, but got {count}"));
            }
        }
        Ok(self.0)
    }
}

impl Args for Workers {
    fn augment_args(command: Command) -> Command {
        kaji_controllers::worker_flags().fold(command, |command, (controller, flag)| {
            let help = format!(
                "How many objects {controller} works on at the same time [default: {}]",
                flag.default
            );
            let arg = Arg::new(flag.name).long(flag.name).value_name("N").help(help);
            // Upstream's name of it; the other flags have underscores nowhere.
            let arg = if flag.name == "concurrent-rc-syncs" { arg.alias("concurrent_rc_syncs") } else { arg };
            command.arg(arg.value_parser(value_parser!(usize)))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Workers {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let count = |(controller, flag): (&'static str, WorkersFlag)| {
            let given = matches.get_one::<usize>(flag.name).copied();
            (controller, given.unwrap_or(flag.default))
        };
        Ok(Workers(kaji_controllers::worker_flags().map(count).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl NodeFlags {
    fn config(&self) -> Result<NodeMonitorConfig, String> {
        let positive = [
            ("node-monitor-period", self.node_monitor_period),
            ("node-monitor-grace-period", self.node_monitor_grace_period),
            ("node-startup-grace-period", self.node_startup_grace_period),
        ];
        if let Some((flag, _)) = positive.iter().find(|(_, period)| period.is_zero()) {
            return Err(format!("{flag} must be greater than 0"));
        }
        let numbers = [
            ("node-eviction-rate", self.node_eviction_rate),
            ("secondary-node-eviction-rate", self.secondary_node_eviction_rate),
            ("unhealthy-zone-threshold", self.unhealthy_zone_threshold),
        ];
        if let Some((flag, value)) = numbers.iter().find(|(_, n)| !n.is_finite() || *n < 0.0) {
            return Err(format!("{flag} must not be negative, but got {value}"));
        }
        Ok(NodeMonitorConfig {
            period: self.node_monitor_period,
            grace: self.node_monitor_grace_period,
            startup_grace: self.node_startup_grace_period,
            evictions: EvictionRates {
                rate: self.node_eviction_rate,
                secondary_rate: self.secondary_node_eviction_rate,
                unhealthy: self.unhealthy_zone_threshold,
                large: self.large_cluster_size_threshold,
            },
        })
    }
}

impl ControlLoopFlags {
    /// The configuration.
    ///
    /// # Errors
    /// For values that no loop can work with; upstream's texts where it refuses them too.
    pub fn into_config(self) -> Result<LoopConfig, String> {
        let workers = self.workers.checked()?;
        let limits = [
            ("max-endpoints-per-slice", self.max_endpoints_per_slice),
            ("mirroring-max-endpoints-per-subset", self.mirroring_max_endpoints_per_subset),
        ];
        for (flag, limit) in limits {
            // Upstream's bounds: a slice has 1000 endpoints at most.
            if !(1..=1000).contains(&limit) {
                return Err(format!("{flag} must be in the inclusive range 1..1000, but got {limit}"));
            }
        }
        let positive = [
            ("resource-quota-sync-period", self.resource_quota_sync_period),
            ("cluster-signing-duration", self.cluster_signing_duration),
            ("namespace-sync-period", self.namespace_sync_period),
        ];
        if let Some((flag, _)) = positive.iter().find(|(_, period)| period.is_zero()) {
            return Err(format!("{flag} must be greater than 0"));
        }
        Ok(LoopConfig {
            start_interval: self.controller_start_interval,
            resync_period: self.min_resync_period,
            garbage_collector: self.enable_garbage_collector,
            workers,
            nodes: self.nodes.config()?,
            terminated_pods: usize::try_from(self.terminated_pod_gc_threshold).ok().filter(|n| *n > 0),
            quota_period: self.resource_quota_sync_period,
            endpoints_per_slice: self.max_endpoints_per_slice,
            mirrored_endpoints: self.mirroring_max_endpoints_per_subset,
            batches: BatchPeriods {
                endpoints: self.endpoint_updates_batch_period,
                slices: self.endpointslice_updates_batch_period,
                mirrored: self.mirroring_endpointslice_updates_batch_period,
            },
            namespace_period: self.namespace_sync_period,
            signing_duration: self.cluster_signing_duration,
            volumes: self.volumes.config(),
            cloud: self.cloud.config()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Flags {
        #[command(flatten)]
        loops: ControlLoopFlags,
    }

    fn parse(flags: &[&str]) -> Result<LoopConfig, String> {
        let flags = ["kaji"].into_iter().chain(flags.iter().copied());
        Flags::try_parse_from(flags).map_err(|e| e.to_string())?.loops.into_config()
    }

    #[test]
    fn defaults_are_those_of_the_loops() {
        assert_eq!(parse(&[]).unwrap(), LoopConfig::default());
    }

    #[test]
    fn workers_have_flags() {
        let parsed = parse(&["--concurrent_rc_syncs=9", "--concurrent-gc-syncs=3"]).unwrap().workers;
        let changed: Vec<_> =
            parsed.iter().filter(|(name, count)| LoopConfig::default().workers[*name] != **count).collect();
        assert_eq!(
            changed,
            [(&"garbage-collector-controller", &3), (&"replicationcontroller-controller", &9)]
        );
    }

    #[test]
    fn loops_can_be_switched_off_and_begin_later() {
        let parsed = parse(&[
            "--enable-garbage-collector=false",
            "--enable-dynamic-provisioning=false",
            "--disable-force-detach-on-timeout",
            "--controller-start-interval=2m",
            "--min-resync-period=8h",
        ])
        .unwrap();
        let volumes = VolumeLoops { dynamic_provisioning: false, force_detach_on_timeout: false };
        assert_eq!((parsed.garbage_collector, parsed.volumes), (false, volumes));
        assert_eq!(
            (parsed.start_interval, parsed.resync_period),
            (Duration::from_secs(120), Duration::from_secs(8 * 3600))
        );
        assert!(parse(&["--min-resync-period=0"]).is_ok_and(|loops| loops.resync_period.is_zero()));
        assert!(parse(&["--controller-start-interval=-1s"]).is_err());
    }

    #[test]
    fn values_are_taken_and_checked() {
        let parsed = parse(&[
            "--node-monitor-grace-period=20s",
            "--node-eviction-rate=0",
            "--terminated-pod-gc-threshold=-1",
            "--max-endpoints-per-slice=7",
            "--cluster-signing-duration=2h",
            "--namespace-sync-period=10s",
            "--endpoint-updates-batch-period=1s",
            "--endpointslice-updates-batch-period=2s",
            "--mirroring-endpointslice-updates-batch-period=3s",
        ])
        .unwrap();
        let seconds = |n| Duration::from_secs(n);
        assert_eq!(parsed.namespace_period, seconds(10));
        let batches = BatchPeriods { endpoints: seconds(1), slices: seconds(2), mirrored: seconds(3) };
        assert_eq!(parsed.batches, batches);
        assert_eq!((parsed.nodes.grace, parsed.terminated_pods), (Duration::from_secs(20), None));
        assert_eq!((parsed.endpoints_per_slice, parsed.signing_duration.as_secs()), (7, 7200));
        for bad in [
            "--concurrent-job-syncs=0",
            "--concurrent-job-syncs=1000000",
            "--node-monitor-period=0s",
            "--node-eviction-rate=-1",
            "--unhealthy-zone-threshold=NaN",
            "--max-endpoints-per-slice=1001",
            "--resource-quota-sync-period=0",
            "--namespace-sync-period=0s",
            "--endpoint-updates-batch-period=-1s",
            "--endpointslice-updates-batch-period=soon",
        ] {
            assert!(parse(&[bad]).is_err(), "{bad}");
        }
    }
}
