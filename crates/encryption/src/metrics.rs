//! Metrics with upstream's names. Key ids are in them as hashes only, and of those a bounded number.

use crate::kms::hash;
use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError, atomic::AtomicU64},
    time::Duration,
};

/// Key ids in metrics at once, as upstream.
const KEY_IDS: usize = 100;

type Seconds = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabels {
    provider_name: String,
    method_name: &'static str,
    grpc_status_code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct UseLabels {
    transformation_type: &'static str,
    provider_name: String,
    key_id_hash: String,
    apiserver_id_hash: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StatusLabels {
    provider_name: String,
    key_id_hash: String,
    apiserver_id_hash: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct InvalidLabels {
    provider_name: String,
    error: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ProviderLabel {
    provider_name: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    resource: String,
    transformation_type: &'static str,
    transformer_prefix: String,
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DurationLabels {
    transformation_type: &'static str,
    transformer_prefix: String,
}

/// Metrics of encryption, and of KMS plugins.
pub struct Metrics {
    server: String,
    operations: Family<OperationLabels, Counter>,
    durations: Family<DurationLabels, Histogram, fn() -> Histogram>,
    calls: Family<CallLabels, Histogram, fn() -> Histogram>,
    used: Family<UseLabels, Counter>,
    used_at: Family<UseLabels, Seconds>,
    seen_at: Family<StatusLabels, Seconds>,
    invalid: Family<InvalidLabels, Counter>,
    known: Family<ProviderLabel, Gauge>,
    misses: Counter,
    generated: Histogram,
    uses: Mutex<VecDeque<UseLabels>>,
    statuses: Mutex<VecDeque<StatusLabels>>,
}

/// `count` buckets, each twice the one before.
fn doubling(start: f64, count: u16) -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(start, 2.0, count))
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new("")
    }
}

impl Metrics {
    /// Of a server that goes by this name (it is shown as a hash).
    pub fn new(server: &str) -> Self {
        Metrics {
            server: hash(server),
            operations: Family::default(),
            durations: Family::new_with_constructor(|| doubling(5e-6, 25)),
            calls: Family::new_with_constructor(|| doubling(0.0001, 20)),
            used: Family::default(),
            used_at: Family::default(),
            seen_at: Family::default(),
            invalid: Family::default(),
            known: Family::default(),
            misses: Counter::default(),
            generated: doubling(5e-6, 14),
            uses: Mutex::default(),
            statuses: Mutex::default(),
        }
    }

    /// Puts them on a page.
    pub fn register(&self, registry: &mut Registry) {
        let name = |text: &str| format!("apiserver_envelope_encryption_{text}");
        let help = "[ALPHA] KMS operation duration with gRPC error code status total.";
        registry.register(name("kms_operations_latency_seconds"), help, self.calls.clone());
        let help = "[ALPHA] Number of times a keyID is used split by transformation type, provider, and apiserver identity.";
        registry.register(name("key_id_hash_total"), help, self.used.clone());
        let help = "[ALPHA] The last time in seconds when a keyID was used.";
        registry.register(name("key_id_hash_last_timestamp_seconds"), help, self.used_at.clone());
        let help = "[ALPHA] The last time in seconds when a keyID was returned by the Status RPC call.";
        registry.register(name("key_id_hash_status_last_timestamp_seconds"), help, self.seen_at.clone());
        let help =
            "[ALPHA] Number of times an invalid keyID is returned by the Status RPC call split by error.";
        registry.register(name("invalid_key_id_from_status_total"), help, self.invalid.clone());
        let help = "[ALPHA] Number of records in data encryption key (DEK) source cache. On a restart, this value is an approximation of the number of decrypt RPC calls the server will make to the KMS plugin.";
        registry.register(name("dek_source_cache_size"), help, self.known.clone());
        let name = |text: &str| format!("apiserver_storage_{text}");
        let help = "[ALPHA] Total number of transformations. Successful transformation will have a status 'OK' and a varied status string when the transformation fails. The status, resource, and transformation_type fields can be used for alerting purposes. For example, you can monitor for encryption/decryption failures using the transformation_type (e.g., from_storage for decryption and to_storage for encryption). Additionally, these fields can be used to ensure that the correct transformers are applied to each resource.";
        registry.register(name("transformation_operations_total"), help, self.operations.clone());
        let help = "[ALPHA] Latencies in seconds of value transformation operations.";
        registry.register(name("transformation_duration_seconds"), help, self.durations.clone());
        let help = "[ALPHA] Total number of cache misses while accessing key decryption key(KEK).";
        registry.register(name("envelope_transformation_cache_misses_total"), help, self.misses.clone());
        let help = "[ALPHA] Latencies in seconds of data encryption key(DEK) generation operations.";
        registry.register(name("data_key_generation_duration_seconds"), help, self.generated.clone());
    }

    pub(crate) fn transformed(
        &self,
        resource: String,
        way: &'static str,
        prefix: &str,
        status: &'static str,
    ) {
        let labels =
            OperationLabels { resource, transformation_type: way, transformer_prefix: prefix.into(), status };
        self.operations.get_or_create(&labels).inc();
    }

    pub(crate) fn took(&self, way: &'static str, prefix: &str, took: Duration) {
        let labels = DurationLabels { transformation_type: way, transformer_prefix: prefix.into() };
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn called(&self, plugin: &str, method: &'static str, code: &'static str, took: Duration) {
        let labels = CallLabels { provider_name: plugin.into(), method_name: method, grpc_status_code: code };
        self.calls.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Counts uses of a key. The handle is made once per key.
    pub(crate) fn used(&self, way: &'static str, plugin: &str, key_id: &str) -> Used {
        let labels = UseLabels {
            transformation_type: way,
            provider_name: plugin.into(),
            key_id_hash: hash(key_id),
            apiserver_id_hash: self.server.clone(),
        };
        if let Some(old) = remember(&self.uses, &labels) {
            self.used.remove(&old);
            self.used_at.remove(&old);
        }
        let count = self.used.get_or_create(&labels).clone();
        Used { count, at: self.used_at.get_or_create(&labels).clone() }
    }

    pub(crate) fn seen(&self, plugin: &str, key_id: &str, now: Timestamp) {
        let labels = StatusLabels {
            provider_name: plugin.into(),
            key_id_hash: hash(key_id),
            apiserver_id_hash: self.server.clone(),
        };
        if let Some(old) = remember(&self.statuses, &labels) {
            self.seen_at.remove(&old);
        }
        self.seen_at.get_or_create(&labels).set(seconds(now));
    }

    pub(crate) fn invalid(&self, plugin: &str, error: &'static str) {
        self.invalid.get_or_create(&InvalidLabels { provider_name: plugin.into(), error }).inc();
    }

    pub(crate) fn known(&self, plugin: &str, keys: usize) {
        self.known.get_or_create(&ProviderLabel { provider_name: plugin.into() }).set(keys as i64);
    }

    pub(crate) fn missed(&self) {
        self.misses.inc();
    }

    pub(crate) fn generated(&self, took: Duration) {
        self.generated.observe(took.as_secs_f64());
    }
}

/// Makes these labels the newest; returns the oldest if there are too many now.
fn remember<T: Clone + PartialEq>(all: &Mutex<VecDeque<T>>, labels: &T) -> Option<T> {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|l| l != labels);
    all.push_back(labels.clone());
    (all.len() > KEY_IDS).then(|| all.pop_front()).flatten()
}

fn seconds(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}

/// Counts uses of one key in one direction.
pub(crate) struct Used {
    count: Counter,
    at: Seconds,
}

impl Used {
    pub(crate) fn record(&self, now: Timestamp) {
        self.count.inc();
        self.at.set(seconds(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_ids_do_not_pile_up() {
        let metrics = Metrics::new("server");
        for n in 0..=KEY_IDS {
            metrics.used("to_storage", "p", &n.to_string()).record(Timestamp::UNIX_EPOCH);
            metrics.seen("p", &n.to_string(), Timestamp::UNIX_EPOCH);
        }
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let page = kaji_exposition::encode(&registry);
        for (name, lines) in [
            ("key_id_hash_total{", KEY_IDS),
            ("key_id_hash_last_timestamp_seconds{", KEY_IDS),
            ("key_id_hash_status_last_timestamp_seconds{", KEY_IDS),
        ] {
            let name = format!("apiserver_envelope_encryption_{name}");
            assert_eq!(page.lines().filter(|l| l.starts_with(&name)).count(), lines, "{name}");
        }
        let first = hash("0");
        assert!(!page.contains(&first) && page.contains(&hash("1")));
    }
}
