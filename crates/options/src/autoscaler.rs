//! Flags of the horizontal pod autoscaler, with upstream's names and defaults.

use clap::Args;
use kaji_controllers::AutoscalerConfig;
use std::time::Duration;

/// How replicas are scaled by metrics.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Horizontal pod autoscaler")]
pub(crate) struct AutoscalerFlags {
    /// Autoscalers that have their turn at the same time.
    #[arg(long, value_name = "N", default_value_t = 5)]
    concurrent_horizontal_pod_autoscaler_syncs: usize,
    /// The time between two turns of an autoscaler.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = super::duration)]
    horizontal_pod_autoscaler_sync_period: Duration,
    /// For how long an autoscaler does not scale below its former recommendations.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = super::duration)]
    horizontal_pod_autoscaler_downscale_stabilization: Duration,
    /// How far the ratio of a metric to its target must be from 1 to scale.
    #[arg(long, value_name = "RATIO", default_value_t = 0.1)]
    horizontal_pod_autoscaler_tolerance: f64,
    /// For how long after a pod's start its CPU samples may be skipped.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = super::duration)]
    horizontal_pod_autoscaler_cpu_initialization_period: Duration,
    /// For how long after a pod's start a change of its readiness is the initial one.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = super::duration)]
    horizontal_pod_autoscaler_initial_readiness_delay: Duration,
}

impl AutoscalerFlags {
    /// The configuration.
    ///
    /// # Errors
    /// For values that no autoscaler can work with; upstream's texts where it refuses them too.
    pub fn into_config(self) -> Result<AutoscalerConfig, String> {
        let workers = self.concurrent_horizontal_pod_autoscaler_syncs;
        if workers < 1 {
            return Err(format!(
                "concurrent-horizontal-pod-autoscaler-syncs must be greater than 0, but got {workers}"
            ));
        }
        let sync_period = self.horizontal_pod_autoscaler_sync_period;
        if sync_period.is_zero() {
            return Err("horizontal-pod-autoscaler-sync-period must be greater than 0".into());
        }
        let tolerance = self.horizontal_pod_autoscaler_tolerance;
        if !(tolerance >= 0.0 && tolerance.is_finite()) {
            return Err(format!(
                "horizontal-pod-autoscaler-tolerance must not be negative, but got {tolerance}"
            ));
        }
        Ok(AutoscalerConfig {
            workers,
            sync_period,
            downscale_stabilization: self.horizontal_pod_autoscaler_downscale_stabilization,
            tolerance,
            cpu_initialization_period: self.horizontal_pod_autoscaler_cpu_initialization_period,
            initial_readiness_delay: self.horizontal_pod_autoscaler_initial_readiness_delay,
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
        autoscaler: AutoscalerFlags,
    }

    fn parse(flags: &[&str]) -> Result<AutoscalerConfig, String> {
        let flags = ["kaji"].into_iter().chain(flags.iter().copied());
        Flags::try_parse_from(flags).map_err(|e| e.to_string())?.autoscaler.into_config()
    }

    #[test]
    fn defaults_are_upstreams() {
        assert_eq!(parse(&[]).unwrap(), AutoscalerConfig::default());
        let some =
            ["--horizontal-pod-autoscaler-sync-period=1m30s", "--horizontal-pod-autoscaler-tolerance=0.2"];
        let parsed = parse(&some).unwrap();
        assert_eq!((parsed.sync_period, parsed.tolerance), (Duration::from_secs(90), 0.2));
    }

    #[test]
    fn unusable_values_are_refused() {
        for bad in [
            "--concurrent-horizontal-pod-autoscaler-syncs=0",
            "--horizontal-pod-autoscaler-sync-period=0",
            "--horizontal-pod-autoscaler-sync-period=-1s",
            "--horizontal-pod-autoscaler-tolerance=NaN",
        ] {
            assert!(parse(&[bad]).is_err(), "{bad}");
        }
    }
}
