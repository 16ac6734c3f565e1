//! How long plugins take, each and all of a phase together, with upstream's names (`admission/metrics` of k8s.io/apiserver): each
//! plugin of the chain is wrapped in one that measures it.
//!
//! Invariant: there are as many series as plugins, phases and operations; a write looks none of them up by labels.

use kaji_engine::{Admission, AdmissionSteps, Attributes, Operation, Phases};
use kaji_meta::Status;
use kaji_resource::BoxFuture;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, histogram::Histogram},
    registry::Registry,
};
use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    name: &'static str,
    r#type: &'static str,
    operation: &'static str,
    rejected: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StepLabels {
    r#type: &'static str,
    operation: &'static str,
    rejected: &'static str,
}

/// By phase, operation and outcome; made by the first write of that kind.
type Histograms = [OnceLock<Histogram>; 16];

/// The place of a phase, operation and outcome among [`Histograms`].
fn place(validating: bool, operation: Operation, rejected: bool) -> usize {
    let operations = [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];
    let at = operations.into_iter().position(|o| o == operation).unwrap_or_default();
    at * 4 + usize::from(validating) * 2 + usize::from(rejected)
}

fn phase(validating: bool) -> &'static str {
    if validating { "validate" } else { "admit" }
}

fn truth(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// The metrics of all plugins.
pub(crate) struct PluginMetrics {
    plugins: Family<Labels, Histogram, fn() -> Histogram>,
    steps: Family<StepLabels, Histogram, fn() -> Histogram>,
    step_histograms: Histograms,
}

impl Default for PluginMetrics {
    fn default() -> Self {
        let buckets = || Histogram::new([0.005, 0.025, 0.1, 0.5, 1.0, 2.5]);
        PluginMetrics {
            plugins: Family::new_with_constructor(buckets as fn() -> Histogram),
            steps: Family::new_with_constructor(buckets as fn() -> Histogram),
            step_histograms: Default::default(),
        }
    }
}

impl AdmissionSteps for PluginMetrics {
    fn ended(&self, validating: bool, operation: Operation, rejected: bool, took: Duration) {
        let cell = &self.step_histograms[place(validating, operation, rejected)];
        let histogram = cell.get_or_init(|| {
            self.steps.get_or_create_owned(&StepLabels {
                r#type: phase(validating),
                operation: operation.as_str(),
                rejected: truth(rejected),
            })
        });
        histogram.observe(took.as_secs_f64());
    }
}

impl PluginMetrics {
    /// Puts them on a page.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "[STABLE] Admission controller latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).";
        registry.register(
            "apiserver_admission_controller_admission_duration_seconds",
            help,
            self.plugins.clone(),
        );
        let help = "[STABLE] Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step type (validate or admit).";
        registry.register("apiserver_admission_step_admission_duration_seconds", help, self.steps.clone());
    }
}

/// A plugin that is measured.
pub(crate) struct Measured {
    plugin: Arc<dyn Admission>,
    metrics: Arc<PluginMetrics>,
    histograms: Histograms,
}

impl Measured {
    pub(crate) fn wrap(plugin: Arc<dyn Admission>, metrics: &Arc<PluginMetrics>) -> Arc<dyn Admission> {
        Arc::new(Measured { plugin, metrics: metrics.clone(), histograms: Default::default() })
    }

    fn observe(&self, validating: bool, operation: Operation, rejected: bool, since: Instant) {
        let histogram = self.histograms[place(validating, operation, rejected)].get_or_init(|| {
            self.metrics.plugins.get_or_create_owned(&Labels {
                name: self.plugin.name(),
                r#type: phase(validating),
                operation: operation.as_str(),
                rejected: truth(rejected),
            })
        });
        histogram.observe(since.elapsed().as_secs_f64());
    }
}

impl Admission for Measured {
    fn name(&self) -> &'static str {
        self.plugin.name()
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        self.plugin.phases(group, resource, operation)
    }

    fn measured_phases(&self) -> Phases {
        self.plugin.measured_phases()
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        self.plugin.handles(attributes)
    }

    fn handles_unchanged(&self) -> bool {
        self.plugin.handles_unchanged()
    }

    fn dynamic(&self) -> bool {
        self.plugin.dynamic()
    }

    fn admit<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let (operation, since) = (attributes.operation, Instant::now());
        let work = self.plugin.admit(attributes);
        if !self.plugin.measured_phases().mutating {
            return work;
        }
        Box::pin(async move {
            let outcome = work.await;
            self.observe(false, operation, outcome.is_err(), since);
            outcome
        })
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let (operation, since) = (attributes.operation, Instant::now());
        let work = self.plugin.validate(attributes);
        if !self.plugin.measured_phases().validating {
            return work;
        }
        Box::pin(async move {
            let outcome = work.await;
            self.observe(true, operation, outcome.is_err(), since);
            outcome
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{always_deny::AlwaysDeny, namespace_lifecycle::NamespaceLifecycle, test_support::Request};

    /// The plugins' series that have counted anything.
    fn counts(metrics: &PluginMetrics) -> String {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let page = kaji_exposition::encode(&registry);
        let counts = page.lines().filter_map(|line| line.split_once("_seconds_count").map(|(_, rest)| rest));
        counts.collect::<Vec<_>>().join("\n")
    }

    #[tokio::test]
    async fn a_phase_that_upstreams_plugin_has_not_is_not_measured() {
        let metrics = Arc::new(PluginMetrics::default());
        let plugin = Measured::wrap(Arc::new(NamespaceLifecycle), &metrics);
        let mut request = Request::new();
        request
            .with(async |a| {
                assert!(plugin.phases("", "configmaps", a.operation).validating, "it looks a second time");
                plugin.admit(a).await.unwrap();
                plugin.validate(a).await.unwrap();
            })
            .await;
        let admitted = r#"{name="NamespaceLifecycle",operation="CREATE",rejected="false",type="admit"} 1"#;
        assert_eq!(counts(&metrics), admitted);
    }

    #[test]
    fn outcomes_are_told_apart() {
        let metrics = Arc::new(PluginMetrics::default());
        let measured = Measured {
            plugin: Arc::new(AlwaysDeny),
            metrics: metrics.clone(),
            histograms: Default::default(),
        };
        for (validating, operation, rejected) in [
            (false, Operation::Create, true),
            (true, Operation::Connect, true),
            (true, Operation::Connect, false),
            (true, Operation::Connect, false),
        ] {
            measured.observe(validating, operation, rejected, Instant::now());
        }
        metrics.ended(false, Operation::Delete, false, Duration::ZERO);
        metrics.ended(true, Operation::Update, true, Duration::ZERO);
        expect_test::expect![[r#"
            {name="AlwaysDeny",operation="CONNECT",rejected="false",type="validate"} 2
            {name="AlwaysDeny",operation="CONNECT",rejected="true",type="validate"} 1
            {name="AlwaysDeny",operation="CREATE",rejected="true",type="admit"} 1
            {operation="DELETE",rejected="false",type="admit"} 1
            {operation="UPDATE",rejected="true",type="validate"} 1"#]]
        .assert_eq(&counts(&metrics));
    }
}
