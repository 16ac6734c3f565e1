//! The families, their labels and buckets.

use kaji_engine::Engine;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, PoisonError, RwLock},
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub verb: &'static str,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub scope: &'static str,
    pub component: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct DryRunLabels {
    verb: &'static str,
    dry_run: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    component: &'static str,
}

impl DryRunLabels {
    pub fn of(labels: &RequestLabels, dry_run: &'static str) -> DryRunLabels {
        let RequestLabels { verb, group, version, resource, subresource, scope, component } = labels.clone();
        DryRunLabels { verb, dry_run, group, version, resource, subresource, scope, component }
    }
}

/// Terminations have no `dry_run`.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct CodeLabels {
    request: RequestLabels,
    dry_run: Option<&'static str>,
    code: u16,
}

impl CodeLabels {
    pub fn of(labels: &RequestLabels, dry_run: Option<&'static str>, code: u16) -> CodeLabels {
        CodeLabels { request: labels.clone(), dry_run, code }
    }
}

impl EncodeLabelSet for CodeLabels {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelSetEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        use prometheus_client::encoding::EncodeLabel;
        self.request.encode(encoder)?;
        if let Some(dry_run) = self.dry_run {
            ("dry_run", dry_run).encode(encoder.encode_label())?;
        }
        ("code", self.code).encode(encoder.encode_label())
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct DeprecatedLabels {
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub removed_release: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct ResourceLabels {
    resource: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct GroupResourceLabels {
    group: String,
    resource: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct KindLabels {
    pub request_kind: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Seconds.
const DURATIONS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];

fn durations() -> Histogram {
    Histogram::new(DURATIONS)
}

/// Those of indicators begin at 50 ms.
fn indicators() -> Histogram {
    Histogram::new(DURATIONS.into_iter().filter(|bound| *bound >= 0.05))
}

/// From a kilobyte to a gigabyte.
fn sizes() -> Histogram {
    Histogram::new([1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9])
}

/// The series of one kind of request. Each is made by the first request that it counts, and looked up by labels once.
pub(super) struct Series {
    labels: RequestLabels,
    dry_run: &'static str,
    codes: RwLock<Vec<(u16, Counter)>>,
    duration: OnceLock<Histogram>,
    indicator: OnceLock<Histogram>,
    sizes: OnceLock<Histogram>,
}

impl Series {
    /// A request was answered.
    pub fn count(&self, families: &Families, code: u16) {
        let known = self.codes.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, counter)) = known.iter().find(|(known, _)| *known == code) {
            counter.inc();
            return;
        }
        drop(known);
        let labels = CodeLabels::of(&self.labels, Some(self.dry_run), code);
        let counter = families.requests.get_or_create_owned(&labels);
        counter.inc();
        let mut known = self.codes.write().unwrap_or_else(PoisonError::into_inner);
        if known.iter().all(|(known, _)| *known != code) {
            known.push((code, counter));
        }
    }

    /// It took so long: in all, and without queues and webhooks.
    pub fn took(&self, families: &Families, all: f64, own: f64) {
        let duration = self.duration.get_or_init(|| {
            families.duration.get_or_create_owned(&DryRunLabels::of(&self.labels, self.dry_run))
        });
        duration.observe(all);
        if self.dry_run.is_empty() {
            let indicator =
                self.indicator.get_or_init(|| families.indicator.get_or_create_owned(&self.labels));
            indicator.observe(own);
        }
    }

    /// Where sizes of answers are counted; `None` for writes.
    pub fn sizes(&self, families: &Families) -> Option<&Histogram> {
        let reads = matches!(self.labels.verb, "GET" | "LIST");
        reads.then(|| self.sizes.get_or_init(|| families.sizes.get_or_create_owned(&self.labels)))
    }
}

/// All of them.
pub(super) struct Families {
    /// By labels and dry run value.
    series: RwLock<HashMap<(RequestLabels, &'static str), Arc<Series>>>,
    requests: Family<CodeLabels, Counter>,
    duration: Histograms<DryRunLabels>,
    indicator: Histograms<RequestLabels>,
    sizes: Histograms<RequestLabels>,
    pub terminations: Family<CodeLabels, Counter>,
    pub deprecated: Family<DeprecatedLabels, Gauge>,
    pub inflight: Family<KindLabels, Gauge>,
    pub long_running: Family<RequestLabels, Gauge>,
    objects: Family<ResourceLabels, Gauge>,
    resource_objects: Family<GroupResourceLabels, Gauge>,
    cache_revision: Gauge,
    watchers: Family<ResourceLabels, Gauge>,
}

impl Default for Families {
    fn default() -> Self {
        Families {
            series: RwLock::default(),
            requests: Family::default(),
            duration: Family::new_with_constructor(durations),
            indicator: Family::new_with_constructor(indicators),
            sizes: Family::new_with_constructor(sizes),
            terminations: Family::default(),
            deprecated: Family::default(),
            inflight: Family::default(),
            long_running: Family::default(),
            objects: Family::default(),
            resource_objects: Family::default(),
            cache_revision: Gauge::default(),
            watchers: Family::default(),
        }
    }
}

impl Families {
    /// The series of a kind of request.
    pub fn of(&self, labels: RequestLabels, dry_run: &'static str) -> Arc<Series> {
        let key = (labels, dry_run);
        if let Some(series) = self.series.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return series.clone();
        }
        let mut all = self.series.write().unwrap_or_else(PoisonError::into_inner);
        let labels = key.0.clone();
        let new = || Series {
            labels,
            dry_run,
            codes: RwLock::default(),
            duration: OnceLock::new(),
            indicator: OnceLock::new(),
            sizes: OnceLock::new(),
        };
        all.entry(key).or_insert_with(|| Arc::new(new())).clone()
    }

    pub fn register(&self, registry: &mut Registry) {
        let all = registry.sub_registry_with_prefix("apiserver");
        let help = "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.";
        all.register("request_total", help, self.requests.clone());
        let help = "[STABLE] Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.";
        all.register("request_duration_seconds", help, self.duration.clone());
        let help = "[ALPHA] Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and component.";
        all.register("request_sli_duration_seconds", help, self.indicator.clone());
        let help = "[STABLE] Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.";
        all.register("response_sizes", help, self.sizes.clone());
        let help = "[ALPHA] Number of requests which apiserver terminated in self-defense.";
        all.register("request_terminations_total", help, self.terminations.clone());
        let help = "[STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.";
        all.register("requested_deprecated_apis", help, self.deprecated.clone());
        let help = "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in last second.";
        all.register("current_inflight_requests", help, self.inflight.clone());
        let help = "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way.";
        all.register("longrunning_requests", help, self.long_running.clone());
        let help = "[STABLE] [DEPRECATED, consider using apiserver_resource_objects instead] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.";
        all.register("storage_objects", help, self.objects.clone());
        let help = "[ALPHA] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.";
        all.register("resource_objects", help, self.resource_objects.clone());
        let help = "Number of currently registered watchers for a given resource";
        all.register("registered_watchers", help, self.watchers.clone());
        let help = "The revision of the store up to which the caches have everything.";
        registry.register("kaji_cache_revision", help, self.cache_revision.clone());
    }

    /// Reads what is counted when the page is asked for.
    pub fn observe(&self, engine: &Engine) {
        self.objects.clear();
        self.resource_objects.clear();
        self.watchers.clear();
        self.cache_revision.set(i64::try_from(engine.applied()).unwrap_or(i64::MAX));
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        for resource in engine.registry().iter().filter(|r| r.def.stored) {
            let labels = ResourceLabels { resource: resource.def.group_resource().to_string() };
            let count = number(resource.cache.count());
            self.objects.get_or_create(&labels).set(count);
            let (group, name) = (resource.def.group.to_string(), resource.def.plural.to_string());
            self.resource_objects.get_or_create(&GroupResourceLabels { group, resource: name }).set(count);
            self.watchers.get_or_create(&labels).set(number(resource.cache.watcher_count()));
        }
    }
}

/// Counts the bytes of a response while it is sent; what was sent is its size when it is dropped.
pub struct ResponseSize {
    sizes: Histogram,
    bytes: u64,
}

impl ResponseSize {
    pub(super) fn of(sizes: Histogram) -> ResponseSize {
        ResponseSize { sizes, bytes: 0 }
    }

    /// So many bytes more.
    pub fn sent(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }
}

impl Drop for ResponseSize {
    fn drop(&mut self) {
        self.sizes.observe(self.bytes as f64);
    }
}
