//! `/metrics` of the API server: what it counts of requests, with upstream's names.
//!
//! Invariants:
//! - A client cannot grow these tables: targets that nothing serves are counted without their names, verbs and values of `dryRun`
//!   come from small sets.
//! - The latency for service level indicators has neither the time of webhooks nor that in queues.
//!
//! Source: apiserver's `endpoints/metrics`.

mod families;

use crate::{
    authentication_metrics::AuthenticationMetrics, authorization_metrics::AuthorizationMetrics,
    flowcontrol::FlowControl, reload_metrics::ReloadMetrics, route::RequestInfo,
};
pub(crate) use families::ResponseSize;
use families::{CodeLabels, DeprecatedLabels, Families, KindLabels, RequestLabels};
use kaji_engine::Engine;
use kaji_exposition::Page;
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use std::time::Duration;

/// The metrics of one server.
pub struct Metrics {
    registry: Registry,
    families: Families,
    pub(crate) attempts: AuthenticationMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let families = Families::default();
        families.register(&mut registry);
        let attempts = AuthenticationMetrics::default();
        attempts.register(&mut registry);
        Metrics { registry, families, attempts }
    }
}

/// A request that was answered.
pub(crate) struct Answered<'a> {
    /// What it is about.
    pub info: &'a RequestInfo,
    /// Whether this server serves its target.
    pub known: bool,
    /// Whether it is a server-side apply.
    pub apply: bool,
    /// Of the response.
    pub code: u16,
    /// Since it arrived.
    pub took: Duration,
    /// Of that, the time in queues and of webhooks.
    pub outside: Duration,
    /// Its size, where that is known already.
    pub size: Option<u64>,
}

impl<'a> Answered<'a> {
    /// An answer to a request that is not resolved yet, or cannot be.
    pub fn unresolved(info: &'a RequestInfo, code: u16, took: Duration) -> Answered<'a> {
        Answered { info, known: false, apply: false, code, took, outside: Duration::ZERO, size: None }
    }
}

/// Pages that upstream counts, by the first segment of the path.
fn page(info: &RequestInfo) -> &'static str {
    let first = info.path.trim_start_matches('/').split('/').next().unwrap_or_default();
    let known = ["/healthz", "/livez", "/readyz", "/metrics", "/version"];
    known.into_iter().find(|page| &page[1..] == first).unwrap_or_default()
}

fn labels(info: &RequestInfo, known: bool, apply: bool) -> RequestLabels {
    let target = info.resource.as_ref().filter(|_| known);
    let text = |f: fn(&crate::route::Target) -> &str| target.map(|t| f(t).to_owned()).unwrap_or_default();
    let verb = match info.verb.as_str() {
        // Upstream's verb of everything that is connected to another server.
        v if v != "watch" && info.long_running() => "CONNECT",
        "get" | "head" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" if apply => "APPLY",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        _ => "other",
    };
    let subresource = if info.resource.is_some() { text(|t| &t.subresource) } else { page(info).to_owned() };
    RequestLabels {
        verb,
        group: text(|t| &t.group),
        version: text(|t| &t.version),
        resource: text(|t| &t.resource),
        subresource,
        scope: target.map_or("", |t| match (info.name().is_empty(), t.namespace.is_empty()) {
            (false, _) => "resource",
            (true, _) if info.verb == "create" => "resource",
            (true, false) => "namespace",
            (true, true) => "cluster",
        }),
        component: if info.resource.is_some() { "apiserver" } else { "" },
    }
}

/// `All`, `""` or `invalid`.
fn dry_run(info: &RequestInfo) -> &'static str {
    let mut given = info.query.all("dryRun").peekable();
    if given.peek().is_none() {
        return "";
    }
    if given.all(|value| value == "All") { "All" } else { "invalid" }
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

    /// A request begins; `known` tells whether this server serves its target.
    pub fn begin(&self, info: &RequestInfo, known: bool) -> InFlight {
        let gauge = if info.long_running() {
            self.families.long_running.get_or_create(&labels(info, known, false)).clone()
        } else {
            let read_only = matches!(info.verb.as_str(), "get" | "list" | "head");
            let request_kind = if read_only { "readOnly" } else { "mutating" };
            self.families.inflight.get_or_create(&KindLabels { request_kind }).clone()
        };
        gauge.inc();
        InFlight(gauge)
    }

    /// Requests that are being served, except watches and other streams.
    pub fn in_flight(&self) -> i64 {
        ["readOnly", "mutating"]
            .map(|request_kind| self.families.inflight.get_or_create(&KindLabels { request_kind }).get())
            .into_iter()
            .sum()
    }

    /// A request has been answered. What is returned counts the response's size, where it is not known yet.
    pub(crate) fn finish(&self, answered: &Answered<'_>) -> Option<ResponseSize> {
        let Answered { info, known, apply, code, took, outside, size } = *answered;
        let families = &self.families;
        let series = families.of(labels(info, known, apply), dry_run(info));
        series.count(families, code);
        if info.long_running() {
            return None;
        }
        series.took(families, took.as_secs_f64(), took.saturating_sub(outside).as_secs_f64());
        let sizes = series.sizes(families)?;
        match size {
            Some(size) => {
                sizes.observe(size as f64);
                None
            }
            None => Some(ResponseSize::of(sizes.clone())),
        }
    }

    /// A request was rejected or timed out by the server.
    pub fn terminated(&self, info: &RequestInfo, known: bool, code: u16) {
        let labels = labels(info, known, false);
        self.families.terminations.get_or_create(&CodeLabels::of(&labels, None, code)).inc();
    }

    /// A deprecated version was requested, which is removed in this release (`""` if none is named).
    pub fn deprecated(&self, info: &RequestInfo, removed_release: &str) {
        let Some(target) = &info.resource else { return };
        let labels = DeprecatedLabels {
            group: target.group.clone(),
            version: target.version.clone(),
            resource: target.resource.clone(),
            subresource: target.subresource.clone(),
            removed_release: removed_release.to_owned(),
        };
        self.families.deprecated.get_or_create(&labels).set(1);
    }

    /// The page.
    pub fn render(&self, engine: &Engine, flow: &FlowControl) -> String {
        flow.observe();
        self.families.observe(engine);
        let mut page = Page::default();
        page.registry(&self.registry);
        page.process(&kaji_exposition::Process::read());
        page.build_info();
        page.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;
    use kaji_meta::Query;

    fn info(method: &Method, path: &str, query: &str) -> RequestInfo {
        RequestInfo::parse(method, path, Query::parse(query)).unwrap()
    }

    /// The series of some families, without buckets.
    fn shown(metrics: &Metrics, families: &[&str]) -> String {
        let page = kaji_exposition::encode(&metrics.registry);
        let wanted = |line: &&str| families.iter().any(|f| line.starts_with(f)) && !line.contains("_bucket{");
        page.lines().filter(wanted).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn requests_are_counted_as_upstream_does() {
        let metrics = Metrics::default();
        let all = [
            (info(&Method::GET, "/api/v1/namespaces/a/pods", ""), true, false, 200),
            (info(&Method::GET, "/api/v1/namespaces/a/pods/p", ""), true, false, 404),
            (info(&Method::POST, "/api/v1/namespaces/a/pods", "dryRun=All"), true, false, 201),
            (info(&Method::PATCH, "/apis/apps/v1/namespaces/a/deployments/d", ""), true, true, 200),
            (info(&Method::GET, "/apis/no.such/v1/things", ""), false, false, 404),
            (info(&Method::GET, "/readyz/ping", ""), false, false, 200),
            (info(&Method::POST, "/api/v1/namespaces/a/pods/p/exec", ""), true, false, 101),
        ];
        for (info, known, apply, code) in &all {
            let (took, outside) = (Duration::from_millis(70), Duration::from_millis(30));
            let answered =
                Answered { info, known: *known, apply: *apply, code: *code, took, outside, size: Some(100) };
            assert!(metrics.finish(&answered).is_none());
        }
        metrics.terminated(&all[0].0, true, 429);
        metrics.deprecated(&all[0].0, "1.40");
        let _watch = metrics.begin(&info(&Method::GET, "/api/v1/pods", "watch=1"), true);
        let families = ["apiserver_request", "apiserver_longrunning", "apiserver_response"];
        expect_test::expect![[r#"
            apiserver_longrunning_requests{component="apiserver",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"} 1
            apiserver_request_duration_seconds_sum{component="",dry_run="",group="",resource="",scope="",subresource="/readyz",verb="GET",version=""} 0.07
            apiserver_request_duration_seconds_count{component="",dry_run="",group="",resource="",scope="",subresource="/readyz",verb="GET",version=""} 1
            apiserver_request_duration_seconds_sum{component="apiserver",dry_run="",group="",resource="",scope="",subresource="",verb="LIST",version=""} 0.07
            apiserver_request_duration_seconds_count{component="apiserver",dry_run="",group="",resource="",scope="",subresource="",verb="LIST",version=""} 1
            apiserver_request_duration_seconds_sum{component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 0.07
            apiserver_request_duration_seconds_count{component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1
            apiserver_request_duration_seconds_sum{component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 0.07
            apiserver_request_duration_seconds_count{component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 1
            apiserver_request_duration_seconds_sum{component="apiserver",dry_run="",group="apps",resource="deployments",scope="resource",subresource="",verb="APPLY",version="v1"} 0.07
            apiserver_request_duration_seconds_count{component="apiserver",dry_run="",group="apps",resource="deployments",scope="resource",subresource="",verb="APPLY",version="v1"} 1
            apiserver_request_duration_seconds_sum{component="apiserver",dry_run="All",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 0.07
            apiserver_request_duration_seconds_count{component="apiserver",dry_run="All",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 1
            apiserver_request_sli_duration_seconds_sum{component="",group="",resource="",scope="",subresource="/readyz",verb="GET",version=""} 0.04
            apiserver_request_sli_duration_seconds_count{component="",group="",resource="",scope="",subresource="/readyz",verb="GET",version=""} 1
            apiserver_request_sli_duration_seconds_sum{component="apiserver",group="",resource="",scope="",subresource="",verb="LIST",version=""} 0.04
            apiserver_request_sli_duration_seconds_count{component="apiserver",group="",resource="",scope="",subresource="",verb="LIST",version=""} 1
            apiserver_request_sli_duration_seconds_sum{component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 0.04
            apiserver_request_sli_duration_seconds_count{component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1
            apiserver_request_sli_duration_seconds_sum{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 0.04
            apiserver_request_sli_duration_seconds_count{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 1
            apiserver_request_sli_duration_seconds_sum{component="apiserver",group="apps",resource="deployments",scope="resource",subresource="",verb="APPLY",version="v1"} 0.04
            apiserver_request_sli_duration_seconds_count{component="apiserver",group="apps",resource="deployments",scope="resource",subresource="",verb="APPLY",version="v1"} 1
            apiserver_request_terminations_total{code="429",component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1
            apiserver_request_total{code="101",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="exec",verb="CONNECT",version="v1"} 1
            apiserver_request_total{code="200",component="",dry_run="",group="",resource="",scope="",subresource="/readyz",verb="GET",version=""} 1
            apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1
            apiserver_request_total{code="200",component="apiserver",dry_run="",group="apps",resource="deployments",scope="resource",subresource="",verb="APPLY",version="v1"} 1
            apiserver_request_total{code="201",component="apiserver",dry_run="All",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 1
            apiserver_request_total{code="404",component="apiserver",dry_run="",group="",resource="",scope="",subresource="",verb="LIST",version=""} 1
            apiserver_request_total{code="404",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 1
            apiserver_requested_deprecated_apis{group="",removed_release="1.40",resource="pods",subresource="",version="v1"} 1
            apiserver_response_sizes_sum{component="",group="",resource="",scope="",subresource="/readyz",verb="GET",version=""} 100
            apiserver_response_sizes_count{component="",group="",resource="",scope="",subresource="/readyz",verb="GET",version=""} 1
            apiserver_response_sizes_sum{component="apiserver",group="",resource="",scope="",subresource="",verb="LIST",version=""} 100
            apiserver_response_sizes_count{component="apiserver",group="",resource="",scope="",subresource="",verb="LIST",version=""} 1
            apiserver_response_sizes_sum{component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 100
            apiserver_response_sizes_count{component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1
            apiserver_response_sizes_sum{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 100
            apiserver_response_sizes_count{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 1"#]]
        .assert_eq(&shown(&metrics, &families));
    }

    #[test]
    fn a_size_is_counted_when_all_is_sent() {
        let metrics = Metrics::default();
        let list = info(&Method::GET, "/api/v1/pods", "");
        let answered = Answered { known: true, ..Answered::unresolved(&list, 200, Duration::ZERO) };
        let mut size = metrics.finish(&answered).unwrap();
        size.sent(700);
        size.sent(800);
        assert_eq!(shown(&metrics, &["apiserver_response_sizes_sum"]).rsplit(' ').next(), Some("0"));
        drop(size);
        assert_eq!(shown(&metrics, &["apiserver_response_sizes_sum"]).rsplit(' ').next(), Some("1500"));
    }
}
