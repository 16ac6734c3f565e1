//! The flags of kube-apiserver 1.37, and what becomes of those that this server's own command line does not have.
//!
//! Source: `kube-apiserver --help` and the flag reference on kubernetes.io.
//!
//! Invariant: a flag is without effect only when nothing that a client could see depends on it; anything else is refused,
//! unless its value says what this server does anyway.

use Kind::{Switch, Value};
use Meaning::{Are, Nothing, Refused, Versions};

/// How a flag takes its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `--x`, `--x=true`, `--x=false`
    Switch,
    /// `--x=v`, `--x v`
    Value,
}

/// What becomes of a flag that only kube-apiserver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Accepted: no client can tell.
    Nothing,
    /// Accepted if every value is one of these: that is how it is here.
    Are(&'static [&'static str]),
    /// `--runtime-config`: accepted if what it enables is served anyway, and what it disables is not.
    Versions,
    /// Refused.
    Refused,
}

/// Names, kinds, meanings.
const FLAGS: &[(&str, Kind, Meaning)] = &[
    ("admission-control-config-file", Value, Refused),
    ("advertise-address", Value, Nothing),
    ("aggregator-reject-forwarding-redirect", Switch, Nothing),
    ("allow-metric-labels", Value, Refused),
    ("allow-metric-labels-manifest", Value, Refused),
    ("allow-privileged", Switch, Are(&["true"])),
    ("anonymous-auth", Switch, Are(&["true"])),
    ("api-audiences", Value, Refused),
    ("audit-log-batch-buffer-size", Value, Refused),
    ("audit-log-batch-max-size", Value, Refused),
    ("audit-log-batch-max-wait", Value, Refused),
    ("audit-log-batch-throttle-burst", Value, Refused),
    ("audit-log-batch-throttle-enable", Switch, Refused),
    ("audit-log-batch-throttle-qps", Value, Refused),
    ("audit-log-compress", Switch, Refused),
    ("audit-log-format", Value, Refused),
    ("audit-log-maxage", Value, Refused),
    ("audit-log-maxbackup", Value, Refused),
    ("audit-log-maxsize", Value, Refused),
    ("audit-log-mode", Value, Refused),
    ("audit-log-path", Value, Refused),
    ("audit-log-truncate-enabled", Switch, Refused),
    ("audit-log-truncate-max-batch-size", Value, Refused),
    ("audit-log-truncate-max-event-size", Value, Refused),
    ("audit-log-version", Value, Refused),
    ("audit-policy-file", Value, Refused),
    ("audit-webhook-batch-buffer-size", Value, Refused),
    ("audit-webhook-batch-max-size", Value, Refused),
    ("audit-webhook-batch-max-wait", Value, Refused),
    ("audit-webhook-batch-throttle-burst", Value, Refused),
    ("audit-webhook-batch-throttle-enable", Switch, Refused),
    ("audit-webhook-batch-throttle-qps", Value, Refused),
    ("audit-webhook-config-file", Value, Refused),
    ("audit-webhook-initial-backoff", Value, Refused),
    ("audit-webhook-mode", Value, Refused),
    ("audit-webhook-truncate-enabled", Switch, Refused),
    ("audit-webhook-truncate-max-batch-size", Value, Refused),
    ("audit-webhook-truncate-max-event-size", Value, Refused),
    ("audit-webhook-version", Value, Refused),
    ("authentication-config", Value, Refused),
    ("authentication-token-webhook-cache-ttl", Value, Refused),
    ("authentication-token-webhook-config-file", Value, Refused),
    ("authentication-token-webhook-version", Value, Refused),
    ("authorization-config", Value, Refused),
    ("authorization-mode", Value, Refused),
    ("authorization-policy-file", Value, Refused),
    ("authorization-webhook-cache-authorized-ttl", Value, Refused),
    ("authorization-webhook-cache-unauthorized-ttl", Value, Refused),
    ("authorization-webhook-config-file", Value, Refused),
    ("authorization-webhook-version", Value, Refused),
    ("bind-address", Value, Refused),
    ("cert-dir", Value, Refused),
    ("client-ca-file", Value, Refused),
    ("contention-profiling", Switch, Nothing),
    ("coordinated-leadership-lease-duration", Value, Nothing),
    ("coordinated-leadership-renew-deadline", Value, Nothing),
    ("coordinated-leadership-retry-period", Value, Nothing),
    ("cors-allowed-origins", Value, Refused),
    ("debug-socket-path", Value, Refused),
    ("default-not-ready-toleration-seconds", Value, Are(&["300"])),
    ("default-unreachable-toleration-seconds", Value, Are(&["300"])),
    ("delete-collection-workers", Value, Nothing),
    ("disable-admission-plugins", Value, Refused),
    ("disable-http2-serving", Switch, Are(&["false"])),
    ("disabled-metrics", Value, Refused),
    ("egress-selector-config-file", Value, Refused),
    ("emulated-version", Value, Are(&["1.37", "kube=1.37"])),
    ("emulation-forward-compatible", Switch, Are(&["false"])),
    ("enable-admission-plugins", Value, Refused),
    ("enable-aggregator-routing", Switch, Nothing),
    ("enable-bootstrap-token-auth", Switch, Are(&["false"])),
    ("enable-garbage-collector", Switch, Are(&["true"])),
    ("enable-logs-handler", Switch, Are(&["false"])),
    ("enable-priority-and-fairness", Switch, Nothing),
    ("encryption-provider-config", Value, Refused),
    ("encryption-provider-config-automatic-reload", Switch, Are(&["false"])),
    ("endpoint-reconciler-type", Value, Nothing),
    ("etcd-cafile", Value, Nothing),
    ("etcd-certfile", Value, Nothing),
    ("etcd-compaction-interval", Value, Nothing),
    ("etcd-count-metric-poll-period", Value, Nothing),
    ("etcd-db-metric-poll-interval", Value, Nothing),
    ("etcd-healthcheck-timeout", Value, Nothing),
    ("etcd-keyfile", Value, Nothing),
    ("etcd-prefix", Value, Nothing),
    ("etcd-readycheck-timeout", Value, Nothing),
    ("etcd-servers", Value, Nothing),
    ("etcd-servers-overrides", Value, Nothing),
    ("event-ttl", Value, Refused),
    ("external-hostname", Value, Nothing),
    ("feature-gates", Value, Refused),
    ("goaway-chance", Value, Nothing),
    ("http2-max-streams-per-connection", Value, Nothing),
    ("kubelet-certificate-authority", Value, Nothing),
    ("kubelet-client-certificate", Value, Nothing),
    ("kubelet-client-key", Value, Nothing),
    ("kubelet-preferred-address-types", Value, Nothing),
    ("kubelet-timeout", Value, Nothing),
    ("kubernetes-service-node-port", Value, Are(&["0"])),
    ("lease-reuse-duration-seconds", Value, Nothing),
    ("livez-grace-period", Value, Nothing),
    ("log-flush-frequency", Value, Nothing),
    ("log-json-info-buffer-size", Value, Nothing),
    ("log-json-split-stream", Switch, Nothing),
    ("log-text-info-buffer-size", Value, Nothing),
    ("log-text-split-stream", Switch, Nothing),
    ("logging-format", Value, Nothing),
    ("max-connection-bytes-per-sec", Value, Are(&["0"])),
    ("max-mutating-requests-inflight", Value, Nothing),
    ("max-requests-inflight", Value, Nothing),
    ("min-compatibility-version", Value, Nothing),
    ("min-request-timeout", Value, Nothing),
    ("oidc-ca-file", Value, Refused),
    ("oidc-client-id", Value, Refused),
    ("oidc-groups-claim", Value, Refused),
    ("oidc-groups-prefix", Value, Refused),
    ("oidc-issuer-url", Value, Refused),
    ("oidc-required-claim", Value, Refused),
    ("oidc-signing-algs", Value, Refused),
    ("oidc-username-claim", Value, Refused),
    ("oidc-username-prefix", Value, Refused),
    ("peer-advertise-ip", Value, Nothing),
    ("peer-advertise-port", Value, Nothing),
    ("peer-ca-file", Value, Nothing),
    ("permit-address-sharing", Switch, Are(&["false"])),
    ("permit-port-sharing", Switch, Are(&["false"])),
    ("profiling", Switch, Nothing),
    ("proxy-client-cert-file", Value, Nothing),
    ("proxy-client-key-file", Value, Nothing),
    ("request-timeout", Value, Nothing),
    ("requestheader-allowed-names", Value, Refused),
    ("requestheader-client-ca-file", Value, Refused),
    ("requestheader-extra-headers-prefix", Value, Refused),
    ("requestheader-group-headers", Value, Refused),
    ("requestheader-uid-headers", Value, Refused),
    ("requestheader-username-headers", Value, Refused),
    ("runtime-config", Value, Versions),
    ("runtime-config-emulation-forward-compatible", Switch, Are(&["false"])),
    ("secure-port", Value, Refused),
    ("send-retry-after-while-not-ready-once", Switch, Nothing),
    // Tokens of service accounts are refused whatever signed them.
    ("service-account-extend-token-expiration", Switch, Nothing),
    ("service-account-issuer", Value, Nothing),
    ("service-account-jwks-uri", Value, Nothing),
    ("service-account-key-file", Value, Nothing),
    ("service-account-lookup", Switch, Nothing),
    ("service-account-max-token-expiration", Value, Nothing),
    ("service-account-signing-endpoint", Value, Refused),
    ("service-account-signing-key-file", Value, Nothing),
    ("service-cluster-ip-range", Value, Refused),
    ("service-node-port-range", Value, Are(&["30000-32767"])),
    ("show-hidden-metrics-for-version", Value, Nothing),
    ("shutdown-delay-duration", Value, Nothing),
    ("shutdown-send-retry-after", Switch, Nothing),
    ("shutdown-watch-termination-grace-period", Value, Nothing),
    ("storage-backend", Value, Nothing),
    ("storage-initialization-timeout", Value, Nothing),
    ("storage-media-type", Value, Nothing),
    ("strict-transport-security-directives", Value, Refused),
    ("tls-cert-file", Value, Refused),
    ("tls-cipher-suites", Value, Refused),
    ("tls-curve-preferences", Value, Refused),
    ("tls-min-version", Value, Are(&["VersionTLS12"])),
    ("tls-private-key-file", Value, Refused),
    ("tls-sni-cert-key", Value, Refused),
    ("token-auth-file", Value, Refused),
    ("tracing-config-file", Value, Refused),
    ("v", Value, Nothing),
    ("vmodule", Value, Nothing),
    ("watch-cache", Switch, Nothing),
    ("watch-cache-sizes", Value, Nothing),
];

/// What kube-apiserver's flag is; `None` when it has none of that name.
pub(super) fn find(name: &str) -> Option<(Kind, Meaning)> {
    let found = FLAGS.binary_search_by_key(&name, |(name, ..)| name).ok()?;
    FLAGS.get(found).map(|(_, kind, meaning)| (*kind, *meaning))
}

/// All of them.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FLAGS.iter().map(|(name, ..)| *name)
}

impl Meaning {
    /// Whether a flag with this value changes nothing here.
    pub(super) fn accepts(self, value: &str) -> bool {
        let each =
            |good: &dyn Fn(&str) -> bool| value.split(',').map(str::trim).all(|v| v.is_empty() || good(v));
        match self {
            Nothing => true,
            Refused => false,
            Are(values) => each(&|v| values.contains(&v)),
            Versions => each(&served),
        }
    }

    /// Why it is refused, as the end of a sentence.
    pub(super) fn why(self) -> String {
        match self {
            Are(values) => format!("only {} is supported", values.join(", ")),
            Versions => "the versions that are served are those that are generally available".into(),
            Nothing | Refused => "this server does not have it".into(),
        }
    }
}

/// Whether an item of `--runtime-config` says what is so anyway.
fn served(item: &str) -> bool {
    let (name, on) = item.split_once('=').map_or((item, true), |(name, value)| (name, value != "false"));
    let Some((group, version)) = name.split_once('/') else { return false };
    let general = match (group, version) {
        ("api", "ga" | "legacy") => true,
        ("api", "alpha" | "beta") => false,
        // All versions are more than those.
        ("api", "all") => return false,
        _ => !version.contains("alpha") && !version.contains("beta"),
    };
    general == on
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_searchable() {
        assert!(names().is_sorted());
        for name in names() {
            assert!(find(name).is_some(), "{name}");
        }
        assert_eq!(find("insecure-port"), None);
    }

    #[test]
    fn what_changes_nothing_is_accepted() {
        assert!(Are(&["RBAC", "Node"]).accepts("Node,RBAC"));
        assert!(!Are(&["RBAC", "Node"]).accepts("AlwaysAllow"));
        for (item, good) in [
            ("api/ga=true", true),
            ("api/all=true", false),
            ("api/alpha=false,api/beta=false", true),
            ("apps/v1=true", true),
            ("apps/v1", true),
            ("apps/v1=false", false),
            ("resource.k8s.io/v1beta1=true", false),
            ("resource.k8s.io/v1beta1=false", true),
        ] {
            assert_eq!(Versions.accepts(item), good, "{item}");
        }
    }
}
