//! Which controllers run, of those of which upstream says so: a gauge that is 1 as long as the controller is there.
//!
//! Source: upstream's `component-base/metrics/prometheus/controllers`.

use kaji_runtime::{Metric, Sample};

/// The gauge; controllers with it have it among their metrics.
pub static RUNNING: Metric = Metric::gauge(
    "running_managed_controllers",
    "[BETA] Indicates where instances of a controller are currently running",
    &["name", "manager"],
);

/// That a controller runs, by upstream's name in this metric. Those of a cloud-controller-manager run in this manager, too.
pub fn running(name: &'static str) -> Sample {
    RUNNING.one([name.into(), "kube-controller-manager".into()])
}
