//! The numbers of a process' controllers, and the page of them.

use super::{Label, Metric, MetricKind, Sample};
use crate::queue::QueueMetrics;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Registry,
};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// Series of one metric that are counted. What would be more is not, and the log says so.
pub const MAX_SERIES: usize = 1000;

/// Reads gauges.
type GaugeSource = dyn Fn() -> Vec<Sample> + Send + Sync;

/// Gauges, which are on the page as long as this is there.
#[must_use]
pub struct Gauges {
    _source: Arc<GaugeSource>,
}

/// A series.
#[derive(Debug)]
enum Series {
    /// Of a counter or a gauge.
    Value(f64),
    /// Of a histogram: bounds with what is in their buckets alone; the last one is infinite.
    Histogram { buckets: Vec<(f64, u64)>, sum: f64, count: u64 },
}

impl Series {
    fn new(kind: MetricKind) -> Series {
        let MetricKind::Histogram(buckets) = kind else { return Series::Value(0.0) };
        let bounds = buckets.bounds().into_iter().chain([f64::INFINITY]);
        Series::Histogram { buckets: bounds.map(|bound| (bound, 0)).collect(), sum: 0.0, count: 0 }
    }

    fn observe(&mut self, kind: MetricKind, value: f64) {
        match self {
            Series::Value(held) if kind == MetricKind::Counter => *held += value,
            Series::Value(held) => *held = value,
            Series::Histogram { buckets, sum, count } => {
                if let Some((_, found)) = buckets.iter_mut().find(|(bound, _)| value <= *bound) {
                    *found += 1;
                }
                *sum += value;
                *count += 1;
            }
        }
    }

    fn encode(&self, kind: MetricKind, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Series::Value(value) if kind == MetricKind::Counter => {
                encoder.encode_counter::<NoLabelSet, f64, f64>(value, None)
            }
            Series::Value(value) => encoder.encode_gauge(value),
            Series::Histogram { buckets, sum, count } => {
                encoder.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
            }
        }
    }
}

/// A metric with its series by the values of their labels.
#[derive(Debug)]
struct Family {
    metric: &'static Metric,
    series: BTreeMap<Vec<Label>, Series>,
    /// Whether there were more series than are kept.
    full: bool,
}

impl Family {
    fn new(metric: &'static Metric) -> Family {
        let mut series = BTreeMap::new();
        // What has no labels is there before anything is counted, as client_golang's.
        if metric.labels.is_empty() && metric.kind != MetricKind::Gauge {
            series.insert(vec![], Series::new(metric.kind));
        }
        Family { metric, series, full: false }
    }

    fn observe(&mut self, labels: &[Label], value: f64, most: usize) {
        let kind = self.metric.kind;
        if let Some(series) = self.series.get_mut(labels) {
            return series.observe(kind, value);
        }
        if self.series.len() >= most {
            if !std::mem::replace(&mut self.full, true) {
                tracing::warn!(metric = self.metric.name, "it has too many series: others are not counted");
            }
            return;
        }
        self.series.entry(labels.to_vec()).or_insert_with(|| Series::new(kind)).observe(kind, value);
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let kind = match self.metric.kind {
            MetricKind::Counter => MetricType::Counter,
            MetricKind::Gauge => MetricType::Gauge,
            MetricKind::Histogram(_) => MetricType::Histogram,
        };
        // Pages take off the full stop that the library adds to texts which are registered.
        let help = format!("{}.", self.metric.help);
        let mut family = encoder.encode_descriptor(self.metric.name, &help, None, kind)?;
        for (values, series) in &self.series {
            let values = values.iter().map(|value| &**value);
            let labels: Vec<(&str, &str)> = self.metric.labels.iter().copied().zip(values).collect();
            series.encode(self.metric.kind, family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Numbers {
    families: BTreeMap<&'static str, Family>,
    gauges: Vec<Weak<GaugeSource>>,
}

/// The metrics of the controllers of a process: those of their queues, and their own. Clones share the numbers.
#[derive(Clone, Default)]
pub struct ControllerMetrics {
    queues: QueueMetrics,
    numbers: Arc<Mutex<Numbers>>,
}

impl fmt::Debug for ControllerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerMetrics").finish_non_exhaustive()
    }
}

impl ControllerMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.queues.register(registry);
        registry.register_collector(Box::new(self.clone()));
    }

    /// Those of the queues.
    pub(crate) fn queues(&self) -> &QueueMetrics {
        &self.queues
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A controller has these metrics: those without labels are on the page from now on.
    pub fn declare(&self, metrics: &[&'static Metric]) {
        let mut numbers = self.numbers();
        for metric in metrics {
            numbers.families.entry(metric.name).or_insert_with(|| Family::new(metric));
        }
    }

    /// The names of the metrics that were declared or counted.
    pub fn names(&self) -> Vec<&'static str> {
        self.numbers().families.keys().copied().collect()
    }

    /// Counts a sample.
    pub fn observe(&self, sample: &Sample) {
        self.observe_value(sample, sample.value);
    }

    /// Counts a sample with another value.
    pub(crate) fn observe_value(&self, sample: &Sample, value: f64) {
        let mut numbers = self.numbers();
        let family = numbers.families.entry(sample.metric.name).or_insert_with(|| Family::new(sample.metric));
        family.observe(&sample.labels, value, MAX_SERIES);
    }

    /// Reads gauges for each page. There are as many series as there are objects that they are about.
    pub fn gauges(&self, read: impl Fn() -> Vec<Sample> + Send + Sync + 'static) -> Gauges {
        let source: Arc<GaugeSource> = Arc::new(read);
        let gauges = &mut self.numbers().gauges;
        gauges.retain(|source| source.strong_count() > 0);
        gauges.push(Arc::downgrade(&source));
        Gauges { _source: source }
    }

    /// The gauges as they are now.
    fn read_gauges(&self) -> BTreeMap<&'static str, Family> {
        // Sources are called without the lock: they read snapshots of informers.
        let sources: Vec<Arc<GaugeSource>> = self.numbers().gauges.iter().filter_map(Weak::upgrade).collect();
        let mut found = BTreeMap::new();
        for Sample { metric, labels, value } in sources.iter().flat_map(|source| source()) {
            let family = found.entry(metric.name).or_insert_with(|| Family::new(metric));
            family.observe(&labels, value, usize::MAX);
        }
        found
    }
}

impl Collector for ControllerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gauges = self.read_gauges();
        let numbers = self.numbers();
        let counted = numbers.families.values().filter(|family| !family.series.is_empty());
        counted.chain(gauges.values()).try_for_each(|family| family.encode(&mut encoder))
    }
}
