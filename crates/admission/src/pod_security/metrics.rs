//! Metrics of Pod Security, with upstream's names (`pod-security-admission/metrics`).

use super::policy::{Level, LevelVersion, Version};
use kaji_engine::{Attributes, Operation};
use kaji_exposition::MINOR_NUMBER;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use std::borrow::Cow;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EvaluationLabels {
    decision: &'static str,
    policy_level: &'static str,
    policy_version: Cow<'static, str>,
    mode: &'static str,
    request_operation: &'static str,
    resource: &'static str,
    subresource: Cow<'static, str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ExemptionLabels {
    request_operation: &'static str,
    resource: &'static str,
    subresource: Cow<'static, str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ErrorLabels {
    fatal: &'static str,
    request_operation: &'static str,
    resource: &'static str,
    subresource: Cow<'static, str>,
}

/// What the plugin counts.
#[derive(Debug, Default)]
pub struct PodSecurityMetrics {
    evaluations: Family<EvaluationLabels, Counter>,
    exemptions: Family<ExemptionLabels, Counter>,
    errors: Family<ErrorLabels, Counter>,
}

/// Which mode a policy was evaluated in.
#[derive(Clone, Copy)]
pub(super) enum Mode {
    Enforce,
    Audit,
    Warn,
}

impl PodSecurityMetrics {
    /// An evaluation in a mode. Only the enforced level is counted when it allows.
    pub(super) fn evaluated(&self, a: &Attributes<'_>, mode: Mode, policy: LevelVersion, allowed: bool) {
        let labels = EvaluationLabels {
            decision: if allowed { "allow" } else { "deny" },
            policy_level: match policy.level {
                Level::Privileged => "privileged",
                Level::Baseline => "baseline",
                Level::Restricted => "restricted",
            },
            policy_version: match policy.version {
                _ if policy.level == Level::Privileged => "latest".into(),
                Version::Latest => "latest".into(),
                // Those later than the API are one label.
                Version::Minor(minor) if minor > MINOR_NUMBER => "future".into(),
                version => version.to_string().into(),
            },
            mode: match mode {
                Mode::Enforce => "enforce",
                Mode::Audit => "audit",
                Mode::Warn => "warn",
            },
            request_operation: operation(a),
            resource: resource(a),
            subresource: subresource(a),
        };
        self.evaluations.get_or_create(&labels).inc();
    }

    /// A request that is exempt.
    pub(super) fn exempted(&self, a: &Attributes<'_>) {
        let (request_operation, resource, subresource) = (operation(a), resource(a), subresource(a));
        self.exemptions.get_or_create(&ExemptionLabels { request_operation, resource, subresource }).inc();
    }

    /// Something that prevents the normal evaluation; the request is not evaluated at all if it is fatal.
    pub(super) fn failed(&self, a: &Attributes<'_>, fatal: bool) {
        let (request_operation, resource, subresource) = (operation(a), resource(a), subresource(a));
        let fatal = if fatal { "true" } else { "false" };
        let labels = ErrorLabels { fatal, request_operation, resource, subresource };
        self.errors.get_or_create(&labels).inc();
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "pod_security_evaluations_total",
            "[ALPHA] Number of policy evaluations that occurred, not counting ignored or exempt requests.",
            self.evaluations.clone(),
        );
        registry.register(
            "pod_security_exemptions_total",
            "[ALPHA] Number of exempt requests, not counting ignored or out of scope requests.",
            self.exemptions.clone(),
        );
        registry.register(
            "pod_security_errors_total",
            "[ALPHA] Number of errors preventing normal evaluation. Non-fatal errors may result in the latest restricted profile being used for evaluation.",
            self.errors.clone(),
        );
    }
}

fn operation(a: &Attributes<'_>) -> &'static str {
    match a.operation {
        Operation::Create => "create",
        Operation::Update => "update",
        Operation::Delete => "delete",
        Operation::Connect => "connect",
    }
}

fn resource(a: &Attributes<'_>) -> &'static str {
    match (a.resource.group.as_str(), a.resource.resource.as_str()) {
        ("", "pods") => "pod",
        ("", "namespaces") => "namespace",
        _ => "controller",
    }
}

fn subresource(a: &Attributes<'_>) -> Cow<'static, str> {
    match a.subresource {
        "" => Cow::Borrowed(""),
        other => Cow::Owned(other.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::PodSecurity;
    use super::*;
    use crate::{config::Configuration, test_support::Request};
    use expect_test::expect;
    use kaji_engine::Admission;
    use kaji_meta::GroupResource;
    use kaji_resource::Scope;
    use serde_json::json;
    use std::sync::Arc;

    #[tokio::test]
    async fn counts_evaluations_exemptions_and_errors() {
        let metrics = Arc::new(PodSecurityMetrics::default());
        let config = json!({"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
            "exemptions": {"usernames": ["root"]}});
        let plugin = PodSecurity::configured(Some(Configuration::of(config)), metrics.clone()).unwrap();
        for (user, labels) in [
            ("alice", json!({})),
            ("root", json!({})),
            ("alice", json!({"enforce": "restricted", "enforce-version": "v1.99"})),
            (
                "alice",
                json!({"enforce": "baseline", "enforce-version": "v1.20", "audit": "restricted", "warn": "restricted"}),
            ),
            ("alice", json!({"warn": "nonsense"})),
        ] {
            let mut request = Request::of("", "v1", "Pod", "pods", Scope::Namespaced);
            request.user.name = user.into();
            let labels = labels.as_object().unwrap();
            let labels: serde_json::Map<_, _> = labels
                .iter()
                .map(|(key, v)| (format!("pod-security.kubernetes.io/{key}"), v.clone()))
                .collect();
            let namespace = json!({"metadata": {"name": "n", "labels": labels}});
            request.api.put(&GroupResource::new("", "namespaces"), namespace);
            request.object =
                Some(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}));
            // Some are refused, which is counted as well.
            let _refused = request.with(async |a| plugin.validate(a).await).await.is_err();
        }
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        let mut lines: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        lines.sort_unstable();
        expect![[r#"
            pod_security_errors_total_total{fatal="false",request_operation="create",resource="pod",subresource=""} 1
            pod_security_evaluations_total_total{decision="allow",policy_level="baseline",policy_version="v1.20",mode="enforce",request_operation="create",resource="pod",subresource=""} 1
            pod_security_evaluations_total_total{decision="allow",policy_level="privileged",policy_version="latest",mode="enforce",request_operation="create",resource="pod",subresource=""} 2
            pod_security_evaluations_total_total{decision="deny",policy_level="restricted",policy_version="future",mode="enforce",request_operation="create",resource="pod",subresource=""} 1
            pod_security_evaluations_total_total{decision="deny",policy_level="restricted",policy_version="latest",mode="audit",request_operation="create",resource="pod",subresource=""} 1
            pod_security_evaluations_total_total{decision="deny",policy_level="restricted",policy_version="latest",mode="warn",request_operation="create",resource="pod",subresource=""} 1
            pod_security_exemptions_total_total{request_operation="create",resource="pod",subresource=""} 1"#]].assert_eq(&lines.join("\n"));
    }
}
