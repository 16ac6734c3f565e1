//! `/metrics`, with upstream's names where the meaning is the same.

use crate::{
    authentication_metrics::AuthenticationMetrics, authorization_metrics::AuthorizationMetrics,
    flowcontrol::FlowControl, reload_metrics::ReloadMetrics, route::RequestInfo,
};
use kaji_engine::Engine;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    component: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CodeLabels {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    component: &'static str,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResourceLabels {
    resource: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GroupResourceLabels {
    group: String,
    resource: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    request_kind: &'static str,
}

/// The metrics of one server.
pub struct Metrics {
    registry: Registry,
    requests: Family<CodeLabels, Counter>,
    duration: Family<RequestLabels, Histogram, fn() -> Histogram>,
    terminations: Family<CodeLabels, Counter>,
    inflight: Family<KindLabels, Gauge>,
    long_running: Gauge,
    objects: Family<ResourceLabels, Gauge>,
    resource_objects: Family<GroupResourceLabels, Gauge>,
    cache_revision: Gauge,
    watchers: Family<ResourceLabels, Gauge>,
    pub(crate) attempts: AuthenticationMetrics,
}

/// Buckets of upstream's `apiserver_request_duration_seconds`, thinned.
fn buckets() -> Histogram {
    Histogram::new([
        0.001, 0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0,
    ])
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let requests = Family::default();
        let duration = Family::new_with_constructor(buckets as fn() -> Histogram);
        let terminations = Family::default();
        let (inflight, long_running) = (Family::default(), Gauge::default());
        let (objects, watchers) = (Family::default(), Family::default());
        let (resource_objects, cache_revision) = (Family::default(), Gauge::default());
        registry.register("apiserver_request", "Requests by verb, target and code", requests.clone());
        registry.register(
            "apiserver_request_duration_seconds",
            "Response latency in seconds",
            duration.clone(),
        );
        registry.register(
            "apiserver_request_terminations",
            "Number of requests which apiserver terminated in self-defense.",
            terminations.clone(),
        );
        registry.register("apiserver_current_inflight_requests", "Requests being served", inflight.clone());
        registry.register(
            "apiserver_longrunning_requests",
            "Watches and streams being served",
            long_running.clone(),
        );
        registry.register("apiserver_storage_objects", "Stored objects by resource", objects.clone());
        registry.register(
            "apiserver_resource_objects",
            "Number of stored objects at the time of last check split by kind.",
            resource_objects.clone(),
        );
        registry.register(
            "kaji_cache_revision",
            "The revision of the store up to which the caches have everything.",
            cache_revision.clone(),
        );
        registry.register("apiserver_registered_watchers", "Watchers by resource", watchers.clone());
        let attempts = AuthenticationMetrics::default();
        attempts.register(&mut registry);
        Metrics {
            registry,
            requests,
            duration,
            terminations,
            inflight,
            long_running,
            objects,
            resource_objects,
            cache_revision,
            watchers,
            attempts,
        }
    }
}

impl RequestLabels {
    fn with(self, code: u16) -> CodeLabels {
        let RequestLabels { verb, group, version, resource, subresource, scope, component } = self;
        CodeLabels { verb, group, version, resource, subresource, scope, component, code }
    }
}

fn labels(info: &RequestInfo, known: bool) -> RequestLabels {
    let target = info.resource.as_ref().filter(|_| known);
    let text = |f: fn(&crate::route::Target) -> &str| target.map(|t| f(t).to_owned()).unwrap_or_default();
    let verb = match info.verb.as_str() {
        // Upstream's verb of everything that is connected to another server.
        v if v != "watch" && info.long_running() => "CONNECT".to_owned(),
        v @ ("get" | "list" | "watch" | "create" | "update" | "patch" | "delete" | "deletecollection") => {
            match v {
                "create" => "POST".to_owned(),
                "update" => "PUT".to_owned(),
                other => other.to_ascii_uppercase(),
            }
        }
        _ => "OTHER".to_owned(),
    };
    RequestLabels {
        verb,
        group: text(|t| &t.group),
        version: text(|t| &t.version),
        resource: text(|t| &t.resource),
        subresource: text(|t| &t.subresource),
        scope: target.map_or("", |t| match (t.name.is_empty(), t.namespace.is_empty()) {
            (false, _) => "resource",
            (true, false) => "namespace",
            (true, true) => "cluster",
        }),
        component: "apiserver",
    }
}

/// Counts a request as being served until dropped.
pub struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Registers the metrics of flow control.
    pub fn with_flow(mut self, flow: &FlowControl) -> Self {
        flow.register(&mut self.registry);
        self
    }

    /// Registers further metrics.
    pub fn with(mut self, register: impl FnOnce(&mut Registry)) -> Self {
        register(&mut self.registry);
        self
    }

    /// Registers the metrics of authorizers.
    pub fn with_authorization_metrics(mut self, decisions: &AuthorizationMetrics) -> Self {
        decisions.register(&mut self.registry);
        self
    }

    /// Registers the metrics of a configuration file's reloads.
    pub fn with_reload_metrics(mut self, reloads: &ReloadMetrics) -> Self {
        reloads.register(&mut self.registry);
        self
    }

    /// The registry, for further metrics.
    pub fn registry(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// A request begins.
    pub fn begin(&self, info: &RequestInfo) -> InFlight {
        let gauge = if info.long_running() {
            self.long_running.clone()
        } else {
            let read_only = matches!(info.verb.as_str(), "get" | "list" | "head");
            let request_kind = if read_only { "readOnly" } else { "mutating" };
            self.inflight.get_or_create(&KindLabels { request_kind }).clone()
        };
        gauge.inc();
        InFlight(gauge)
    }

    /// Requests that are being served, except watches and other streams.
    pub fn in_flight(&self) -> i64 {
        ["readOnly", "mutating"]
            .map(|request_kind| self.inflight.get_or_create(&KindLabels { request_kind }).get())
            .into_iter()
            .sum()
    }

    /// A request has been answered. Targets that nothing serves are counted without their names: a client must not be
    /// able to grow this table.
    pub fn finish(&self, info: &RequestInfo, known: bool, code: u16, took: Duration) {
        let labels = labels(info, known);
        if !info.long_running() {
            self.duration.get_or_create(&labels).observe(took.as_secs_f64());
        }
        self.requests.get_or_create(&labels.with(code)).inc();
    }

    /// A request was rejected or timed out by the server.
    pub fn terminated(&self, info: &RequestInfo, known: bool, code: u16) {
        self.terminations.get_or_create(&labels(info, known).with(code)).inc();
    }

    /// The page.
    pub fn render(&self, engine: &Engine, flow: &FlowControl) -> String {
        flow.observe();
        self.objects.clear();
        self.resource_objects.clear();
        self.cache_revision.set(i64::try_from(engine.applied()).unwrap_or(i64::MAX));
        self.watchers.clear();
        for resource in engine.registry().iter().filter(|r| r.def.stored) {
            let labels = ResourceLabels { resource: resource.def.group_resource().to_string() };
            self.objects.get_or_create(&labels).set(resource.cache.count() as i64);
            let (group, name) = (resource.def.group.to_string(), resource.def.plural.to_string());
            let split = GroupResourceLabels { group, resource: name };
            self.resource_objects.get_or_create(&split).set(resource.cache.count() as i64);
            self.watchers.get_or_create(&labels).set(resource.cache.watcher_count() as i64);
        }
        let mut page = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }
}
