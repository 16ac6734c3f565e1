//! Metrics of the requests to etcd, with upstream's names, and of how far this server's caches are behind.
//!
//! Invariant: label values are resources that are stored and a fixed set of operations, so their number is bounded by what is
//! registered.
//!
//! Source: upstream's `storage/etcd3/metrics`.

use kaji_etcd::{Observer, ROOT};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    operation: &'static str,
    group: String,
    resource: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResourceLabels {
    group: String,
    resource: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ClusterLabels {
    storage_cluster_id: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EndpointLabels {
    endpoint: String,
}

fn buckets() -> Histogram {
    Histogram::new([
        0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0,
        15.0, 20.0, 30.0, 45.0, 60.0,
    ])
}

/// The metrics. Clones share the numbers.
#[derive(Clone, Debug)]
pub(crate) struct EtcdMetrics {
    duration: Family<RequestLabels, Histogram, fn() -> Histogram>,
    requests: Family<RequestLabels, Counter>,
    errors: Family<RequestLabels, Counter>,
    events: Family<ResourceLabels, Counter>,
    progress: Counter,
    size: Family<ClusterLabels, Gauge>,
    size_of_endpoint: Family<EndpointLabels, Gauge>,
    revision: Gauge,
}

impl EtcdMetrics {
    /// Adds them to those of a server.
    pub fn new(registry: &mut Registry) -> EtcdMetrics {
        let metrics = EtcdMetrics {
            duration: Family::new_with_constructor(buckets),
            requests: Family::default(),
            errors: Family::default(),
            events: Family::default(),
            progress: Counter::default(),
            size: Family::default(),
            size_of_endpoint: Family::default(),
            revision: Gauge::default(),
        };
        let m = metrics.clone();
        registry.register(
            "etcd_request_duration_seconds",
            "[ALPHA] Etcd request latency in seconds for each operation and object type.",
            m.duration,
        );
        registry.register(
            "etcd_requests_total",
            "[ALPHA] Etcd request counts for each operation and object type.",
            m.requests,
        );
        registry.register(
            "etcd_request_errors_total",
            "[ALPHA] Etcd failed request counts for each operation and object type.",
            m.errors,
        );
        registry.register(
            "apiserver_storage_events_received_total",
            "[BETA] Number of etcd events received split by kind.",
            m.events,
        );
        registry.register(
            "etcd_bookmark_total",
            "[ALPHA] Number of etcd bookmarks (progress notify events).",
            m.progress,
        );
        registry.register(
            "apiserver_storage_size_bytes",
            "[STABLE] Size of the storage database file physically allocated in bytes.",
            m.size,
        );
        registry.register(
            "apiserver_storage_db_total_size_in_bytes",
            "[ALPHA] Total size of the storage database file physically allocated in bytes.",
            m.size_of_endpoint,
        );
        registry.register(
            "kaji_storage_revision",
            "The latest revision of the store that this server knows of; kaji_cache_revision is behind it by the lag.",
            m.revision,
        );
        metrics
    }
}

/// Group and resource of `<group or core>/<plural>`.
fn labels(resource: &str) -> ResourceLabels {
    let (group, resource) = resource.split_once('/').unwrap_or(("", resource));
    let group = if group == "core" { "" } else { group };
    ResourceLabels { group: group.to_owned(), resource: resource.to_owned() }
}

/// `<group or core>/<plural>` of a key.
fn resource_of(key: &str) -> &str {
    let Some(rest) = key.strip_prefix(ROOT).and_then(|rest| rest.strip_prefix('/')) else { return "" };
    match rest.match_indices('/').nth(1) {
        Some((end, _)) => &rest[..end],
        None => "",
    }
}

impl Observer for EtcdMetrics {
    fn request(&self, operation: &'static str, key: &str, took: Duration, failed: bool) {
        let ResourceLabels { group, resource } = labels(resource_of(key));
        let labels = RequestLabels { operation, group, resource };
        self.duration.get_or_create(&labels).observe(took.as_secs_f64());
        self.requests.get_or_create(&labels).inc();
        if failed {
            self.errors.get_or_create(&labels).inc();
        }
    }

    fn event(&self, key: &str) {
        self.events.get_or_create(&labels(resource_of(key))).inc();
    }

    fn progress(&self) {
        self.progress.inc();
    }

    fn database(&self, endpoint: &str, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.size.get_or_create(&ClusterLabels { storage_cluster_id: "etcd-0" }).set(bytes);
        self.size_of_endpoint.get_or_create(&EndpointLabels { endpoint: endpoint.to_owned() }).set(bytes);
    }

    fn revision(&self, revision: u64) {
        self.revision.set(i64::try_from(revision).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_resource() {
        let mut registry = Registry::default();
        let metrics = EtcdMetrics::new(&mut registry);
        metrics.request("create", "/registry/core/pods/a/b", Duration::from_millis(1), false);
        metrics.request("list", "/registry/apps/deployments/", Duration::from_millis(1), true);
        metrics.database("http://e:2379", 7);
        let page = kaji_exposition::encode(&registry);
        for line in [
            r#"etcd_requests_total{group="",operation="create",resource="pods"} 1"#,
            r#"etcd_request_errors_total{group="apps",operation="list",resource="deployments"} 1"#,
            r#"apiserver_storage_size_bytes{storage_cluster_id="etcd-0"} 7"#,
            r#"apiserver_storage_db_total_size_in_bytes{endpoint="http://e:2379"} 7"#,
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
    }
}
