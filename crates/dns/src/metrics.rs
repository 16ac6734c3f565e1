//! Metrics, by the names of CoreDNS, so that its dashboards show this server.

use hickory_proto::op::ResponseCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

/// Of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// `udp` or `tcp`.
    proto: &'static str,
}

/// Of a response.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResponseLabels {
    /// `NOERROR`, `NXDOMAIN`, ...
    rcode: &'static str,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    responses: Family<ResponseLabels, Counter>,
    durations: Histogram,
    cache_hits: Counter,
    cache_misses: Counter,
}

impl Default for Metrics {
    fn default() -> Metrics {
        // CoreDNS' buckets: 0.25 ms, doubled up to 8 s.
        let buckets = (0..16).map(|power| 0.000_25 * f64::from(1_u32 << power));
        Metrics {
            requests: Family::default(),
            responses: Family::default(),
            durations: Histogram::new(buckets),
            cache_hits: Counter::default(),
            cache_misses: Counter::default(),
        }
    }
}

impl Metrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let dns = registry.sub_registry_with_prefix("coredns_dns");
        dns.register("requests_total", "Counter of DNS requests made", self.requests.clone());
        dns.register("responses_total", "Counter of response status codes", self.responses.clone());
        dns.register(
            "request_duration_seconds",
            "Histogram of the time (in seconds) each request took",
            self.durations.clone(),
        );
        let cache = registry.sub_registry_with_prefix("coredns_cache");
        cache.register("hits_total", "The count of cache hits", self.cache_hits.clone());
        cache.register("misses_total", "The count of cache misses", self.cache_misses.clone());
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> String {
        let mut registry = Registry::default();
        self.register(&mut registry);
        kaji_exposition::component(&registry)
    }

    /// Counts a request.
    pub fn request(&self, proto: &'static str) {
        self.requests.get_or_create(&RequestLabels { proto }).inc();
    }

    /// Counts a response.
    pub fn response(&self, code: ResponseCode, took: Duration) {
        self.responses.get_or_create(&ResponseLabels { rcode: name(code) }).inc();
        self.durations.observe(took.as_secs_f64());
    }

    /// Counts a question that the cache was asked.
    pub fn cache(&self, hit: bool) {
        if hit {
            self.cache_hits.inc()
        } else {
            self.cache_misses.inc()
        };
    }
}

fn name(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        ResponseCode::BADVERS => "BADVERS",
        _ => "OTHER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_names_of_coredns() {
        let metrics = Metrics::default();
        metrics.request("udp");
        metrics.response(ResponseCode::NXDomain, Duration::from_millis(1));
        metrics.cache(true);
        metrics.cache(false);
        let page = metrics.page();
        assert!(kaji_testing::text_format::parse(&page).unwrap().contains_key("process_cpu_seconds_total"));
        let lines: Vec<&str> =
            page.lines().filter(|l| l.starts_with("coredns_") && !l.contains("_bucket")).collect();
        expect_test::expect![[r#"
            coredns_cache_hits_total 1
            coredns_cache_misses_total 1
            coredns_dns_request_duration_seconds_sum 0.001
            coredns_dns_request_duration_seconds_count 1
            coredns_dns_requests_total{proto="udp"} 1
            coredns_dns_responses_total{rcode="NXDOMAIN"} 1"#]]
        .assert_eq(&lines.join("\n"));
    }
}
