//! Admission plugins of the server itself, in upstream's order. Source: kubernetes `plugin/pkg/admission`.
//!
//! Invariant: a plugin looks up what an object names only after the caches have caught up with all acknowledged writes.

mod accounts;
mod always;
mod certificates;
mod classes;
mod config;
mod dynamic;
mod events;
mod limits;
mod nodes;
mod owners;
mod pod;
mod pods;
mod priority;
mod quota;
mod security;
mod topology;
mod volumes;
mod webhooks;

use dynamic::policies::{MutatingPolicies, ValidatingPolicies};
use kaji_auth::Authorizer;
use kaji_engine::{Admission, Attributes};
use kaji_meta::{GroupResource, Status};
use kaji_outbound::Callers;
use serde_json::Value;
use std::sync::Arc;

pub use config::{Config, ConfigError, Flags};
pub use dynamic::policies::{PolicyMetrics, typecheck::follow as check_types};
pub use webhooks::WebhookMetrics;

/// What plugins need besides the objects of the cluster.
#[derive(Clone)]
pub struct Deps {
    /// Says what users may do.
    pub authorizer: Arc<dyn Authorizer>,
    /// Calls webhooks.
    pub callers: Arc<Callers>,
    /// Counts what comes of it.
    pub metrics: Arc<WebhookMetrics>,
    /// Counts what policies do.
    pub policies: Arc<PolicyMetrics>,
}

/// The plugins that run, in order. The engine itself runs `NamespaceLifecycle`.
pub fn plugins(config: &Config, deps: &Deps) -> Vec<Arc<dyn Admission>> {
    config.plugins.iter().filter_map(|name| make(name, config, deps)).collect()
}

fn make(name: &str, config: &Config, deps: &Deps) -> Option<Arc<dyn Admission>> {
    let authorizer = &deps.authorizer;
    let webhooks = |mutating: bool| {
        let auth = if mutating { &config.mutating } else { &config.validating };
        Arc::new(webhooks::Webhooks::new(mutating, auth.clone(), deps.clone()))
    };
    Some(match name {
        "AlwaysAdmit" => Arc::new(always::AlwaysAdmit),
        "LimitRanger" => Arc::new(limits::LimitRanger),
        "ServiceAccount" => Arc::new(accounts::ServiceAccount),
        "NodeRestriction" => Arc::new(nodes::NodeRestriction::new(authorizer.clone())),
        "TaintNodesByCondition" => Arc::new(nodes::TaintNodesByCondition),
        "AlwaysPullImages" => Arc::new(always::AlwaysPullImages),
        "PodSecurity" => Arc::new(security::PodSecurity::new(config.security.clone())),
        "Priority" => Arc::new(priority::Priority),
        "DefaultTolerationSeconds" => Arc::new(pods::DefaultTolerationSeconds),
        "EventRateLimit" => Arc::new(events::EventRateLimit::new(&config.events)),
        "ExtendedResourceToleration" => Arc::new(pods::ExtendedResourceToleration),
        "DefaultStorageClass" => Arc::new(classes::DefaultStorageClass),
        "StorageObjectInUseProtection" => Arc::new(volumes::StorageObjectInUseProtection),
        "OwnerReferencesPermissionEnforcement" => {
            Arc::new(owners::OwnerReferencesPermissionEnforcement(authorizer.clone()))
        }
        "PersistentVolumeClaimResize" => Arc::new(volumes::PersistentVolumeClaimResize),
        "RuntimeClass" => Arc::new(pods::RuntimeClass),
        "CertificateApproval" => Arc::new(certificates::CertificateApproval(authorizer.clone())),
        "CertificateSigning" => Arc::new(certificates::CertificateSigning(authorizer.clone())),
        "ClusterTrustBundleAttest" => Arc::new(certificates::ClusterTrustBundleAttest(authorizer.clone())),
        "CertificateSubjectRestriction" => Arc::new(certificates::CertificateSubjectRestriction),
        "DefaultIngressClass" => Arc::new(classes::DefaultIngressClass),
        "PodTopologyLabels" => Arc::new(topology::PodTopologyLabels),
        "MutatingAdmissionPolicy" => Arc::new(MutatingPolicies::new(deps)),
        "ValidatingAdmissionPolicy" => Arc::new(ValidatingPolicies::new(deps)),
        "MutatingAdmissionWebhook" => webhooks(true),
        "ValidatingAdmissionWebhook" => webhooks(false),
        "ResourceQuota" => Arc::new(quota::ResourceQuota::new()),
        "AlwaysDeny" => Arc::new(always::AlwaysDeny),
        _ => return None,
    })
}

/// Whether a write is to this resource itself, not to a subresource.
fn is(a: &Attributes<'_>, group: &str, resource: &str) -> bool {
    a.subresource.is_empty() && a.resource.resource == resource && a.resource.group == group
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

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_auth::Union;

    #[test]
    fn what_runs_is_there() {
        let config = Config { plugins: config::all(), ..Config::default() };
        let deps = Deps {
            authorizer: Arc::new(Union(vec![])),
            callers: Arc::default(),
            metrics: Arc::default(),
            policies: Arc::default(),
        };
        let names: Vec<&str> = plugins(&config, &deps).iter().map(|p| p.name()).collect();
        let brought: Vec<&str> =
            config.plugins.iter().copied().filter(|name| *name != "NamespaceLifecycle").collect();
        assert_eq!(names, brought, "the engine brings NamespaceLifecycle");
    }
}
