//! Tokens in secrets that were generated for a service account and are unused: they are labelled as invalid, and deleted when
//! they stay unused. Source: KEP-2799; upstream's `legacy_serviceaccount_token_cleaner.go`.
//!
//! Invariants:
//! - Keys are secrets. One goes only when its account lists it, no pod of its namespace names it, and its use has been
//!   watched for the whole period, as the config map of the API server says.
//! - It is deleted as it was seen, or not at all: a use meanwhile is written on it.

use crate::{Descriptor, Start};
use jiff::{SignedDuration, Timestamp, civil::Date, tz::TimeZone};
use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, PatchKind, Plan, Reconciler, View, Write,
    client::Target,
    objects::{ConfigMap, Pod, Secret, ServiceAccount},
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// Since when the use of tokens is watched. The API server keeps it.
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const SINCE: &str = "since";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// How often a secret is looked at again, whatever happens.
const AGAIN: Duration = Duration::from_secs(24 * 60 * 60);
/// A year of 365 days: `--legacy-service-account-token-clean-up-period` unless it is given.
pub const PERIOD: Duration = Duration::from_secs(8760 * 60 * 60);

const COMPONENT: &str = "legacy-service-account-token-cleaner";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "legacy-serviceaccount-token-cleaner-controller",
    components: &[COMPONENT],
    service_account: Some("legacy-service-account-token-cleaner"),
    workers: None,
    start: Start::Reconcilers(|informers, config| {
        vec![controller(informers, config.unused_token_period.unwrap_or(PERIOD))]
    }),
};

/// The controller. Tokens stay for `period` after their last use, and as long again after they were marked.
fn controller(informers: &Arc<Informers>, period: Duration) -> Controller {
    let period = SignedDuration::try_from(period).unwrap_or(SignedDuration::MAX);
    Controller::new(Cleaner { period }, informers)
        .reads::<Secret>(|change: &Change<Secret>, _| {
            let secret = change.any();
            secret.token.as_ref().map(|_| secret.metadata.key()).into_iter().collect()
        })
        .reads::<ConfigMap>(|change: &Change<ConfigMap>, view| {
            let map = &change.any().metadata;
            if map.name != TRACKING || map.namespace != "kube-system" {
                return vec![];
            }
            let secrets = view.get::<Secret>();
            secrets.iter().filter(|s| s.token.is_some()).map(|s| s.metadata.key()).collect()
        })
        .reads::<ServiceAccount>(|_, _| vec![])
        .reads::<Pod>(|_, _| vec![])
}

/// A day as labels have it; nothing else is one.
fn day(text: &str) -> Option<Date> {
    Date::strptime("%Y-%m-%d", text).ok().filter(|day| day.to_string() == text)
}

struct Cleaner {
    period: SignedDuration,
}

impl Reconciler for Cleaner {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let (secrets, maps) = (view.get::<Secret>(), view.get::<ConfigMap>());
        let secret = secrets.by_key(key).filter(|s| s.token.is_some() && !s.metadata.deleting());
        let (Some(secret), Some(since)) = (secret, tracked_since(maps.get("kube-system", TRACKING))) else {
            return Plan::nothing();
        };
        let meta = &secret.metadata;
        let label = |name: &str| meta.labels.get(name).map(String::as_str);
        // Until then it is too early, whatever has been seen.
        let made = meta.creation_timestamp.unwrap_or(Timestamp::MIN);
        for begin in [since, made] {
            let end = begin.saturating_add(self.period).unwrap_or(Timestamp::MAX);
            if cx.now <= end {
                return Plan::nothing().again_after(until(cx.now, end).min(AGAIN));
            }
        }
        let kept = utc(cx.now.saturating_sub(self.period).unwrap_or(Timestamp::MIN));
        let again = Plan::nothing().again_after(AGAIN);
        match label(LAST_USED).map(day) {
            // Not a date: the last use is unknown.
            Some(None) => return Plan::nothing(),
            Some(Some(used)) if used >= kept => return again,
            Some(Some(_)) | None => {}
        }
        if !generated(view, secret) || mounted(view, secret) {
            return again;
        }
        match label(INVALID_SINCE).and_then(day) {
            None => again.then(Write::Patch {
                target: Target::of::<Secret>(&meta.namespace, &meta.name),
                kind: PatchKind::Merge,
                body: json!({"metadata": {"uid": meta.uid, "labels": {INVALID_SINCE: utc(cx.now).to_string()}}}),
            }),
            Some(marked) if marked >= kept => again,
            Some(_) => again.then(Write::Delete {
                target: Target::of::<Secret>(&meta.namespace, &meta.name),
                options: json!({"preconditions": {"resourceVersion": meta.resource_version}}),
            }),
        }
    }
}

fn utc(at: Timestamp) -> Date {
    at.to_zoned(TimeZone::UTC).date()
}

/// From now to then; something in any case, so that then is past when it is over.
fn until(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default() + Duration::from_secs(1)
}

/// The beginning of the first whole day of which every use is known.
fn tracked_since(map: Option<&Arc<ConfigMap>>) -> Option<Timestamp> {
    let next = day(map?.data.get(SINCE)?)?.tomorrow().ok()?;
    next.to_zoned(TimeZone::UTC).ok().map(|day| day.timestamp())
}

/// Whether a secret was generated for its account: the account lists it.
fn generated(view: &View, secret: &Secret) -> bool {
    let annotation = |name: &str| secret.metadata.annotations.get(name).map_or("", String::as_str);
    let accounts = view.get::<ServiceAccount>();
    let Some(account) = accounts.get(&secret.metadata.namespace, annotation(ACCOUNT)) else { return false };
    let uid = annotation(ACCOUNT_UID);
    (uid.is_empty() || uid == account.metadata.uid)
        && account.secrets.iter().flatten().any(|s| s.name == secret.metadata.name)
}

/// Whether a pod names it.
fn mounted(view: &View, secret: &Secret) -> bool {
    let pods = view.get::<Pod>();
    pods.in_namespace(&secret.metadata.namespace).any(|pod| pod.secrets().any(|s| s == secret.metadata.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{reconcile, snapshot, text};
    use serde_json::Value;

    /// What happens to a secret that is two years old, at noon of the first day of 2025.
    fn plan(labels: Value, since: &str, listed: &str, pod: Value) -> String {
        let secret = json!({"metadata": {"name": "t", "namespace": "ns", "uid": "u", "resourceVersion": "7",
            "creationTimestamp": "2023-01-01T00:00:00Z", "labels": labels,
            "annotations": {ACCOUNT: "sa", ACCOUNT_UID: "u1"}}, "type": "kubernetes.io/service-account-token"});
        let account = json!({"metadata": {"name": "sa", "namespace": "ns", "uid": "u1"}, "secrets": [{"name": listed}]});
        let map = json!({"metadata": {"name": TRACKING, "namespace": "kube-system"}, "data": {SINCE: since}});
        let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": pod});
        let view = View::default()
            .with(snapshot::<Secret>([secret]))
            .with(snapshot::<ServiceAccount>([account]))
            .with(snapshot::<ConfigMap>([map]))
            .with(snapshot::<Pod>([pod]));
        let period = SignedDuration::try_from(PERIOD).unwrap();
        text(&reconcile(&Cleaner { period }, &view, "ns", "t", &[]))
    }

    const DAILY: &str = "again after 86400s\n";

    #[test]
    fn marks_unused_tokens_and_then_deletes_them() {
        let with = |labels| plan(labels, "2023-06-01", "t", json!({}));
        let marks = "merge /api/v1/namespaces/ns/secrets/t {\"metadata\":{\"labels\":{\"kubernetes.io/legacy-token-invalid-since\":\"2025-01-01\"},\"uid\":\"u\"}}\n";
        let deletes =
            "delete /api/v1/namespaces/ns/secrets/t {\"preconditions\":{\"resourceVersion\":\"7\"}}\n";
        assert_eq!(with(json!({})), format!("{marks}{DAILY}"));
        assert_eq!(with(json!({LAST_USED: "2024-01-01"})), format!("{marks}{DAILY}"));
        // 2024 was a leap year: 365 days before is the second of January.
        assert_eq!(with(json!({LAST_USED: "2024-01-02"})), DAILY);
        assert_eq!(with(json!({INVALID_SINCE: "2024-01-02"})), DAILY);
        assert_eq!(with(json!({INVALID_SINCE: "2024-01-01"})), format!("{deletes}{DAILY}"));
        assert_eq!(with(json!({INVALID_SINCE: "soon"})), format!("{marks}{DAILY}"));
        assert_eq!(with(json!({INVALID_SINCE: "2023-01-01", LAST_USED: "2024-12-31"})), DAILY);
    }

    #[test]
    fn keeps_tokens_in_use() {
        let old = || json!({INVALID_SINCE: "2023-12-01"});
        let with = |since: &str, listed: &str, pod: Value| plan(old(), since, listed, pod);
        assert_eq!(with("2023-06-01", "another", json!({})), DAILY, "made by hand");
        assert_eq!(with("2024-01-02", "t", json!({})), "again after 43201s\n", "not watched for long enough");
        assert_eq!(with("2024-1-1", "t", json!({})), "", "the start of tracking is not a date");
        assert_eq!(plan(json!({LAST_USED: "once"}), "2023-06-01", "t", json!({})), "");
        for pod in [
            json!({"volumes": [{"name": "v", "secret": {"secretName": "t"}}]}),
            json!({"volumes": [{"name": "v", "projected": {"sources": [{}, {"secret": {"name": "t"}}]}}]}),
            json!({"volumes": [{"name": "v", "csi": {"nodePublishSecretRef": {"name": "t"}}}]}),
            json!({"imagePullSecrets": [{"name": "t"}]}),
            json!({"containers": [{"env": [{"name": "E"}, {"name": "F", "valueFrom": {"secretKeyRef": {"name": "t"}}}]}]}),
            json!({"initContainers": [{"envFrom": [{"configMapRef": {"name": "t"}}, {"secretRef": {"name": "t"}}]}]}),
            json!({"ephemeralContainers": [{"envFrom": [{"secretRef": {"name": "t"}}]}]}),
        ] {
            assert_eq!(with("2023-06-01", "t", pod.clone()), DAILY, "{pod}");
        }
        assert!(
            with("2023-06-01", "t", json!({"volumes": [{"configMap": {"name": "t"}}]}))
                .starts_with("delete ")
        );
    }
}
