//! Admission plugins: one file a plugin, named as upstream names it, and one line a plugin in the table of `plugins.rs`.
//! Source: kubernetes `plugin/pkg/admission`, `k8s.io/apiserver/pkg/admission/plugin`.
//!
//! Invariant: a plugin looks up what an object names only after the caches have caught up with all acknowledged writes.

mod always_admit;
mod always_deny;
mod always_pull_images;
mod certificate_approval;
mod certificate_signing;
mod certificate_signing_requests;
mod certificate_subject_restriction;
mod cluster_trust_bundle_attest;
mod config;
mod default_class;
mod default_ingress_class;
mod default_storage_class;
mod default_toleration_seconds;
mod deny_service_external_ips;
mod event_rate_limit;
mod extended_resource_toleration;
mod image_policy_webhook;
mod job_validation;
mod limit_pod_hard_anti_affinity_topology;
mod limit_ranger;
mod lru;
mod match_conditions;
mod matching;
mod measured;
mod mutating_admission_policy;
mod mutating_admission_webhook;
mod namespace_auto_provision;
mod namespace_exists;
mod namespace_lifecycle;
mod node_declared_feature_validator;
mod node_restriction;
mod owner_references_permission_enforcement;
mod persistent_volume_claim_resize;
mod plugins;
mod pod_group_protection;
mod pod_group_workload_exists;
mod pod_node_selector;
mod pod_on_node;
mod pod_resize_validator;
mod pod_security;
mod pod_spec;
mod pod_toleration_restriction;
mod pod_topology_labels;
mod policies;
mod priority;
mod resource_quota;
mod runtime_class;
mod service_account;
mod storage_object_in_use_protection;
mod taint_nodes_by_condition;
#[cfg(test)]
mod test_support;
mod validating_admission_policy;
mod validating_admission_webhook;
mod versioned;
mod webhooks;

use kaji_auth::Authorizer;
use kaji_decisions::Decisions;
use kaji_engine::Attributes;
use kaji_meta::{GroupResource, Status, status::Reason};
use kaji_outbound::ClientCache;
use kaji_resource::Api;
use prometheus_client::registry::Registry;
use serde_json::Value;
use std::sync::Arc;

pub use config::{ConfigError, Flags, load};
pub use default_toleration_seconds::DefaultTolerations;
pub use plugins::names;
pub use pod_security::PodSecurityMetrics;
pub use policies::PolicyMetrics;
pub use validating_admission_policy::type_checking::follow as check_types;
pub use webhooks::WebhookMetrics;

/// What plugins need besides the objects of the cluster.
#[derive(Clone)]
pub struct Deps {
    /// Decides what users may do.
    pub authorizer: Arc<dyn Authorizer>,
    /// Calls webhooks.
    pub callers: Arc<ClientCache>,
    /// Counts calls of webhooks.
    pub metrics: Arc<WebhookMetrics>,
    /// Counts evaluations of policies.
    pub policies: Arc<PolicyMetrics>,
    /// Counts evaluations of the Pod Security Standards.
    pub pod_security: Arc<PodSecurityMetrics>,
    /// How long pods stay on nodes that are not ready; [`load`] takes it from the flags.
    pub tolerations: DefaultTolerations,
    /// Where failures of webhooks are remembered.
    pub decisions: Arc<Decisions>,
}

impl Deps {
    /// With metrics of its own, and upstream's tolerations.
    pub fn new(
        authorizer: Arc<dyn Authorizer>,
        callers: Arc<ClientCache>,
        decisions: Arc<Decisions>,
    ) -> Deps {
        Deps {
            authorizer,
            callers,
            metrics: Arc::default(),
            policies: Arc::default(),
            pod_security: Arc::default(),
            tolerations: DefaultTolerations::default(),
            decisions,
        }
    }

    /// Adds what the plugins count.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.metrics.register(registry);
        self.policies.register(registry);
        self.pod_security.register(registry);
    }
}

/// Waits until reads return every write that this server has acknowledged; free when they do. A write of another server is seen a
/// moment later, rather than that each request asks the store.
async fn read_own_writes(api: &dyn Api) -> Result<(), Status> {
    if api.lags() { api.sync().await } else { Ok(()) }
}

/// An object that is likely to be there. As upstream: a change that another server has just made counts a moment later, an object that
/// it has just created at once.
async fn get_expected(
    api: &dyn Api,
    resource: &GroupResource,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<Value>>, Status> {
    read_own_writes(api).await?;
    if let Some(found) = api.get(resource, namespace, name) {
        return Ok(Some(found));
    }
    api.sync().await?;
    Ok(api.get(resource, namespace, name))
}

/// An object of the cluster by name.
async fn find(
    a: &Attributes<'_>,
    resource: &GroupResource,
    name: &str,
) -> Result<Option<Arc<Value>>, Status> {
    a.api.sync().await?;
    Ok(a.api.get(resource, "", name))
}

/// What upstream answers where a plugin returns an error that is no status: 500 without a reason.
fn plain_error(text: impl Into<String>) -> Status {
    Status::new(500, Reason::Unknown, text)
}
