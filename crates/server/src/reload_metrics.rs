//! Metrics of configuration file reloads, with upstream's names, `apiserver_<what>_config_controller_*`.

use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use sha2::{Digest, Sha256};
use std::sync::atomic::AtomicU64;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReloadLabels {
    status: &'static str,
    apiserver_id_hash: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ConfigLabels {
    apiserver_id_hash: String,
    hash: String,
}

/// The metrics of one file.
pub struct ReloadMetrics {
    what: &'static str,
    reloads: Family<ReloadLabels, Counter>,
    reloaded_at: Family<ReloadLabels, Gauge<f64, AtomicU64>>,
    config: Family<ConfigLabels, Gauge>,
    /// The id of the server, in its hashed form.
    server: String,
}

impl ReloadMetrics {
    /// Metrics of the `what` configuration (`authentication`, `authorization`, `encryption`) of the server with this name.
    pub fn new(what: &'static str, server: &str) -> ReloadMetrics {
        ReloadMetrics {
            what,
            reloads: Family::default(),
            reloaded_at: Family::default(),
            config: Family::default(),
            server: hash(server.as_bytes()),
        }
    }

    /// Registers them.
    pub fn register(&self, registry: &mut Registry) {
        let what = self.what;
        let group = registry.sub_registry_with_prefix(format!("apiserver_{what}_config_controller"));
        // Upstream has two wordings.
        let (level, [total, timestamp], split) = match what {
            "encryption" => (
                "ALPHA",
                ["reload successes and failures", "successful or failed automatic reload"],
                "apiserver identity",
            ),
            _ => ("BETA", ["automatic reloads", "automatic reload"], "status and apiserver identity"),
        };
        let help = format!("[{level}] Total number of {total} of {what} configuration split by {split}.");
        group.register("automatic_reloads_total", help, self.reloads.clone());
        let help =
            format!("[{level}] Timestamp of the last {timestamp} of {what} configuration split by {split}.");
        group.register("automatic_reload_last_timestamp_seconds", help, self.reloaded_at.clone());
        let help = format!(
            "[ALPHA] Information about the last applied {what} configuration with hash as label, split by apiserver identity."
        );
        group.register("last_config_info", help, self.config.clone());
    }

    /// A configuration is in force from now on.
    pub fn configured(&self, file: &[u8]) {
        // One series at a time: the others are of the past.
        self.config.clear();
        let labels = ConfigLabels { apiserver_id_hash: self.server.clone(), hash: hash(file) };
        self.config.get_or_create(&labels).set(1);
    }

    /// A changed file was read.
    pub fn reloaded(&self, good: bool, now: Timestamp) {
        let status = if good { "success" } else { "failure" };
        let labels = ReloadLabels { status, apiserver_id_hash: self.server.clone() };
        self.reloads.get_or_create(&labels).inc();
        self.reloaded_at.get_or_create(&labels).set(now.as_millisecond() as f64 / 1000.0);
    }
}

/// The hash that metrics show of a text.
pub(crate) fn hash(data: &[u8]) -> String {
    if data.is_empty() {
        return String::new();
    }
    format!("sha256:{}", kaji_meta::text::hex(&Sha256::digest(data)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_texts_are_upstreams() {
        for (what, text) in [
            (
                "encryption",
                "reload successes and failures of encryption configuration split by apiserver identity.",
            ),
            (
                "authentication",
                "automatic reloads of authentication configuration split by status and apiserver identity.",
            ),
        ] {
            let mut registry = Registry::default();
            let metrics = ReloadMetrics::new(what, "server");
            metrics.register(&mut registry);
            metrics.reloaded(true, Timestamp::UNIX_EPOCH);
            let page = kaji_exposition::encode(&registry);
            assert!(page.contains(&format!("] Total number of {text}\n")), "{page}");
        }
    }

    #[test]
    fn writes_upstreams_families() {
        let reloads = ReloadMetrics::new("authorization", "server");
        let mut registry = Registry::default();
        reloads.register(&mut registry);
        reloads.configured(b"old");
        reloads.configured(b"new");
        reloads.reloaded(true, Timestamp::from_millisecond(1_500).unwrap());
        let page = kaji_exposition::encode(&registry);
        let mut lines: Vec<&str> = page.lines().filter(|l| !l.starts_with('#')).collect();
        lines.sort_unstable();
        expect_test::expect![[r#"
            apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds{apiserver_id_hash="sha256:b3eacd33433b31b5252351032c9b3e7a2e7aa7738d5decdf0dd6c62680853c06",status="success"} 1.5
            apiserver_authorization_config_controller_automatic_reloads_total{apiserver_id_hash="sha256:b3eacd33433b31b5252351032c9b3e7a2e7aa7738d5decdf0dd6c62680853c06",status="success"} 1
            apiserver_authorization_config_controller_last_config_info{apiserver_id_hash="sha256:b3eacd33433b31b5252351032c9b3e7a2e7aa7738d5decdf0dd6c62680853c06",hash="sha256:11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437"} 1"#]].assert_eq(&lines.join("\n"));
    }
}
