//! Metrics of the service proxy, by the names of upstream's kube-proxy.
//!
//! Rules of both IP families are brought up to date together, so that both have the same times.
//!
//! Source: upstream's `pkg/proxy/metrics/metrics.go`.

use hyper::StatusCode;
use jiff::Timestamp;
use kaji_runtime::Key;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
/// Changes of endpoints that are measured at once; of more at a time the others are not.
const TRIGGERS: usize = 16_384;

/// Rules of a family of addresses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFamily {
    ip_family: &'static str,
}

/// A health check's answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCode {
    code: u16,
}

/// 1 ms, doubled up to 16 s.
#[derive(Debug, Clone)]
struct Doubled;

impl MetricConstructor<Histogram> for Doubled {
    fn new_metric(&self) -> Histogram {
        Histogram::new((0..15).map(|power| 0.001 * f64::from(1_u32 << power)))
    }
}

/// Upstream's, of 250 ms to five minutes.
#[derive(Debug, Clone)]
struct Programming;

impl MetricConstructor<Histogram> for Programming {
    fn new_metric(&self) -> Histogram {
        let seconds = [0.25, 0.5].into_iter().chain((1..60).map(f64::from));
        let coarse = (0..12).map(|i| f64::from(60 + 5 * i)).chain((0..7).map(|i| f64::from(120 + 30 * i)));
        Histogram::new(seconds.chain(coarse))
    }
}

/// What made the endpoints of a service change, and when.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trigger {
    /// The service.
    pub service: Key,
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
    /// When, as the slice says.
    pub at: Timestamp,
}

/// Triggers of changes that are not in force yet.
#[derive(Debug, Default)]
struct Triggers {
    /// Not looked at.
    pending: Vec<Trigger>,
    /// Of the changes that are being brought into force.
    taken: Vec<Trigger>,
}

type Seconds = Gauge<f64, AtomicU64>;

/// See the module.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    syncs: Family<OfFamily, Histogram, Doubled>,
    full_syncs: Family<OfFamily, Histogram, Doubled>,
    partial_syncs: Family<OfFamily, Histogram, Doubled>,
    synced: Family<OfFamily, Seconds>,
    queued: Family<OfFamily, Seconds>,
    failures: Family<OfFamily, Counter>,
    service_changes: Counter,
    services_pending: Gauge,
    endpoint_changes: Counter,
    endpoints_pending: Gauge,
    healthz: Family<OfCode, Counter>,
    livez: Family<OfCode, Counter>,
    programming: Family<OfFamily, Histogram, Programming>,
    triggers: Mutex<Triggers>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let times = || Family::new_with_constructor(Doubled);
        let mut metrics = Metrics {
            registry: Registry::default(),
            syncs: times(),
            full_syncs: times(),
            partial_syncs: times(),
            synced: Family::default(),
            queued: Family::default(),
            failures: Family::default(),
            service_changes: Counter::default(),
            services_pending: Gauge::default(),
            endpoint_changes: Counter::default(),
            endpoints_pending: Gauge::default(),
            healthz: Family::default(),
            livez: Family::default(),
            programming: Family::new_with_constructor(Programming),
            triggers: Mutex::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let registry = self.registry.sub_registry_with_prefix("kubeproxy");
        let rules = "sync_proxy_rules";
        registry.register(
            format!("{rules}_duration_seconds"),
            "[ALPHA] SyncProxyRules latency in seconds",
            self.syncs.clone(),
        );
        registry.register(
            "sync_full_proxy_rules_duration_seconds",
            "[ALPHA] SyncProxyRules latency in seconds for full resyncs",
            self.full_syncs.clone(),
        );
        registry.register(
            "sync_partial_proxy_rules_duration_seconds",
            "[ALPHA] SyncProxyRules latency in seconds for partial resyncs",
            self.partial_syncs.clone(),
        );
        registry.register(
            format!("{rules}_last_timestamp_seconds"),
            "[ALPHA] The last time proxy rules were successfully synced",
            self.synced.clone(),
        );
        registry.register(
            format!("{rules}_last_queued_timestamp_seconds"),
            "[ALPHA] The last time a sync of proxy rules was queued",
            self.queued.clone(),
        );
        registry.register(
            format!("{rules}_nftables_sync_failures_total"),
            "[ALPHA] Cumulative proxy nftables sync failures",
            self.failures.clone(),
        );
        registry.register(
            format!("{rules}_service_changes_total"),
            "[ALPHA] Cumulative proxy rules Service changes",
            self.service_changes.clone(),
        );
        registry.register(
            format!("{rules}_service_changes_pending"),
            "[ALPHA] Pending proxy rules Service changes",
            self.services_pending.clone(),
        );
        registry.register(
            format!("{rules}_endpoint_changes_total"),
            "[ALPHA] Cumulative proxy rules Endpoint changes",
            self.endpoint_changes.clone(),
        );
        registry.register(
            format!("{rules}_endpoint_changes_pending"),
            "[ALPHA] Pending proxy rules Endpoint changes",
            self.endpoints_pending.clone(),
        );
        registry.register(
            "proxy_healthz_total",
            "[ALPHA] Cumulative proxy healthz HTTP status",
            self.healthz.clone(),
        );
        registry.register(
            "proxy_livez_total",
            "[ALPHA] Cumulative proxy livez HTTP status",
            self.livez.clone(),
        );
        registry.register(
            "network_programming_duration_seconds",
            "[ALPHA] In Cluster Network Programming Latency in seconds",
            self.programming.clone(),
        );
    }

    fn triggers<T>(&self, use_them: impl FnOnce(&mut Triggers) -> T) -> T {
        use_them(&mut self.triggers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Endpoints change because of something that has happened at a time that is known.
    pub(crate) fn triggered(&self, trigger: Trigger) {
        self.triggers(|triggers| {
            if triggers.pending.len() + triggers.taken.len() < TRIGGERS {
                triggers.pending.push(trigger);
            }
        });
    }

    /// A slice is gone: when that happened is not known, and what was before is of no interest.
    pub(crate) fn slice_removed(&self, service: &Key) {
        self.triggers(|triggers| triggers.pending.retain(|trigger| trigger.service != *service));
    }

    /// A Service has changed.
    pub(crate) fn service_changed(&self, now: Timestamp) {
        self.service_changes.inc();
        self.services_pending.inc();
        self.queued(now);
    }

    /// A slice of endpoints has changed.
    pub(crate) fn endpoints_changed(&self, now: Timestamp) {
        self.endpoint_changes.inc();
        self.endpoints_pending.inc();
        self.queued(now);
    }

    fn queued(&self, now: Timestamp) {
        for ip_family in FAMILIES {
            self.queued.get_or_create(&OfFamily { ip_family }).set(seconds(now));
        }
    }

    /// All changes that were pending are being looked at.
    pub(crate) fn taken(&self) {
        self.services_pending.set(0);
        self.endpoints_pending.set(0);
        self.triggers(|triggers| triggers.taken.append(&mut triggers.pending));
    }

    /// Rules were brought up to date: those of all services, or of some. Or the kernel refused them.
    pub(crate) fn synced(&self, took: Duration, whole: bool, at: Result<Timestamp, ()>) {
        for ip_family in FAMILIES {
            let family = OfFamily { ip_family };
            let Ok(at) = at else {
                self.failures.get_or_create(&family).inc();
                continue;
            };
            let kind = if whole { &self.full_syncs } else { &self.partial_syncs };
            self.syncs.get_or_create(&family).observe(took.as_secs_f64());
            kind.get_or_create(&family).observe(took.as_secs_f64());
            self.synced.get_or_create(&family).set(seconds(at));
        }
        // What failed is tried again.
        let Ok(at) = at else { return };
        let taken = self.triggers(|triggers| std::mem::take(&mut triggers.taken));
        for Trigger { family: ip_family, at: trigger, .. } in taken {
            let took = at.duration_since(trigger).as_secs_f64().max(0.0);
            self.programming.get_or_create(&OfFamily { ip_family }).observe(took);
        }
    }

    /// A health check was answered: `/healthz`, or else `/livez`.
    pub(crate) fn checked(&self, healthz: bool, code: StatusCode) {
        let family = if healthz { &self.healthz } else { &self.livez };
        family.get_or_create(&OfCode { code: code.as_u16() }).inc();
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> String {
        kaji_exposition::component(&self.registry)
    }
}

fn seconds(at: Timestamp) -> f64 {
    at.as_microsecond() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_measured_from_what_made_them() {
        let metrics = Metrics::default();
        let at = |seconds: i64| Timestamp::from_second(1_767_225_600 + seconds).unwrap();
        let trigger = |service: &str, family, seconds| {
            metrics.triggered(Trigger { service: Key::new("ns", service), family, at: at(seconds) });
        };
        trigger("a", "IPv4", 0);
        trigger("b", "IPv4", 2);
        metrics.slice_removed(&Key::new("ns", "b"));
        metrics.taken();
        trigger("c", "IPv6", 4);
        metrics.synced(Duration::ZERO, true, Ok(at(3)));
        // The rules of the next change are refused.
        metrics.taken();
        metrics.synced(Duration::ZERO, true, Err(()));
        metrics.synced(Duration::ZERO, true, Ok(at(9)));
        let page = metrics.page();
        let shown = |end: &str| -> Vec<&str> {
            let name = format!("kubeproxy_network_programming_duration_seconds_{end}");
            page.lines().filter_map(|line| line.strip_prefix(name.as_str())).collect()
        };
        assert_eq!(shown("sum"), ["{ip_family=\"IPv4\"} 3", "{ip_family=\"IPv6\"} 5"]);
        assert_eq!(shown("count"), ["{ip_family=\"IPv4\"} 1", "{ip_family=\"IPv6\"} 1"]);
        assert_eq!(shown("bucket").len(), 2 * 81, "as many as upstream has");
        assert_eq!(shown("bucket")[79], "{ip_family=\"IPv4\",le=\"300\"} 1");
    }

    #[test]
    fn changes_and_syncs_are_counted() {
        let metrics = Metrics::default();
        let now = Timestamp::from_second(1_767_225_600).unwrap();
        metrics.service_changed(now);
        metrics.endpoints_changed(now);
        metrics.endpoints_changed(now);
        let shown = || -> Vec<String> {
            let page = metrics.page();
            let lines = page.lines().filter(|l| l.starts_with("kubeproxy_") && !l.contains("_bucket"));
            // Series of a family are in no order.
            let mut lines: Vec<String> = lines.map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        };
        expect_test::expect![[r#"
            kubeproxy_sync_proxy_rules_endpoint_changes_pending 2
            kubeproxy_sync_proxy_rules_endpoint_changes_total 2
            kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1.7672256e+09
            kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv6"} 1.7672256e+09
            kubeproxy_sync_proxy_rules_service_changes_pending 1
            kubeproxy_sync_proxy_rules_service_changes_total 1"#]]
        .assert_eq(&shown().join("\n"));
        metrics.taken();
        metrics.synced(Duration::from_millis(3), true, Ok(now));
        metrics.synced(Duration::from_millis(1), false, Ok(now));
        metrics.synced(Duration::from_secs(1), false, Err(()));
        metrics.checked(true, StatusCode::OK);
        metrics.checked(false, StatusCode::SERVICE_UNAVAILABLE);
        expect_test::expect![[r#"
            kubeproxy_proxy_healthz_total{code="200"} 1
            kubeproxy_proxy_livez_total{code="503"} 1
            kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1
            kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1
            kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 0.003
            kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family="IPv6"} 0.003
            kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1
            kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1
            kubeproxy_sync_partial_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 0.001
            kubeproxy_sync_partial_proxy_rules_duration_seconds_sum{ip_family="IPv6"} 0.001
            kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2
            kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv6"} 2
            kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 0.004
            kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family="IPv6"} 0.004
            kubeproxy_sync_proxy_rules_endpoint_changes_pending 0
            kubeproxy_sync_proxy_rules_endpoint_changes_total 2
            kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1.7672256e+09
            kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv6"} 1.7672256e+09
            kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1.7672256e+09
            kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"} 1.7672256e+09
            kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 1
            kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 1
            kubeproxy_sync_proxy_rules_service_changes_pending 0
            kubeproxy_sync_proxy_rules_service_changes_total 1"#]]
        .assert_eq(&shown().join("\n"));
    }
}
