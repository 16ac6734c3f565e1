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

use kaji_auth::Authorizer;
use kaji_engine::{Admission, Attributes};
use kaji_meta::{GroupResource, Status};
use serde_json::Value;
use std::sync::Arc;

pub use config::{Config, ConfigError, Flags};

/// The plugins that run, in order. The engine itself runs `NamespaceLifecycle`.
/// `authorizer` answers plugins that ask what a user may do.
pub fn plugins(config: &Config, authorizer: &Arc<dyn Authorizer>) -> Vec<Arc<dyn Admission>> {
    config.plugins.iter().filter_map(|name| make(name, config, authorizer)).collect()
}

fn make(name: &str, config: &Config, authorizer: &Arc<dyn Authorizer>) -> Option<Arc<dyn Admission>> {
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
        let nobody: Arc<dyn Authorizer> = Arc::new(Union(vec![]));
        let names: Vec<&str> = plugins(&config, &nobody).iter().map(|p| p.name()).collect();
        let brought: Vec<&str> =
            config.plugins.iter().copied().filter(|name| *name != "NamespaceLifecycle").collect();
        assert_eq!(names, brought, "the engine brings NamespaceLifecycle");
    }
}
