//! The table of admission plugins: one line a plugin, in the order in which they run.
//!
//! Invariants:
//! - Names, order and defaults are upstream's (`pkg/kubeapiserver/options/plugins.go`), with NodeRestriction on as kubeadm has
//!   it. A name that upstream has and this server lacks is in the table without a constructor: it is refused by name, never
//!   ignored.
//! - A plugin is added by its file and its line here; flags, configuration files and the chain derive from the table.

use crate::{
    Deps, always_admit::AlwaysAdmit, always_deny::AlwaysDeny, always_pull_images::AlwaysPullImages,
    certificate_approval::CertificateApproval, certificate_signing::CertificateSigning,
    certificate_subject_restriction::CertificateSubjectRestriction,
    cluster_trust_bundle_attest::ClusterTrustBundleAttest, config::Configuration,
    default_ingress_class::DefaultIngressClass, default_storage_class::DefaultStorageClass,
    default_toleration_seconds::DefaultTolerationSeconds, event_rate_limit::EventRateLimit,
    extended_resource_toleration::ExtendedResourceToleration, job_validation::JobValidation,
    limit_ranger::LimitRanger, mutating_admission_policy::MutatingAdmissionPolicy,
    mutating_admission_webhook::MutatingAdmissionWebhook, namespace_lifecycle::NamespaceLifecycle,
    node_declared_feature_validator::NodeDeclaredFeatureValidator, node_restriction::NodeRestriction,
    owner_references_permission_enforcement::OwnerReferencesPermissionEnforcement,
    persistent_volume_claim_resize::PersistentVolumeClaimResize, pod_group_protection::PodGroupProtection,
    pod_group_workload_exists::PodGroupWorkloadExists, pod_resize_validator::PodResizeValidator,
    pod_security::PodSecurity, pod_topology_labels::PodTopologyLabels, priority::Priority,
    resource_quota::ResourceQuota, runtime_class::RuntimeClass, service_account::ServiceAccount,
    storage_object_in_use_protection::StorageObjectInUseProtection,
    taint_nodes_by_condition::TaintNodesByCondition, validating_admission_policy::ValidatingAdmissionPolicy,
    validating_admission_webhook::ValidatingAdmissionWebhook, webhooks::Webhooks,
};
use kaji_engine::Admission;
use std::sync::Arc;

/// A plugin of the table.
pub(crate) struct Plugin {
    /// As flags spell it.
    pub name: &'static str,
    /// Whether it runs unless a flag says otherwise.
    pub default: bool,
    /// `None` if this server lacks it.
    pub constructor: Option<Constructor>,
}

/// A plugin, or what is wrong with its configuration.
type Constructed = Result<Arc<dyn Admission>, String>;

/// Makes a plugin.
#[derive(Clone, Copy)]
pub(crate) enum Constructor {
    /// It takes no configuration.
    Plain(fn(&Deps) -> Arc<dyn Admission>),
    /// It takes a part of the `AdmissionConfiguration`, if there is one.
    Configured(fn(Option<Configuration<'_>>, &Deps) -> Constructed),
}

use Constructor::{Configured, Plain};

const fn on(name: &'static str, constructor: Constructor) -> Plugin {
    Plugin { name, default: true, constructor: Some(constructor) }
}

const fn off(name: &'static str, constructor: Constructor) -> Plugin {
    Plugin { name, default: false, constructor: Some(constructor) }
}

/// Upstream has it; nothing here.
const fn missing(name: &'static str) -> Plugin {
    Plugin { name, default: false, constructor: None }
}

/// All plugins in the order in which they run.
#[rustfmt::skip]
pub(crate) static PLUGINS: [Plugin; 41] = [
    off("AlwaysAdmit", Plain(|_| Arc::new(AlwaysAdmit))),
    missing("NamespaceAutoProvision"),
    on("NamespaceLifecycle", Plain(|_| Arc::new(NamespaceLifecycle))),
    missing("NamespaceExists"),
    missing("LimitPodHardAntiAffinityTopology"),
    on("LimitRanger", Plain(|_| Arc::new(LimitRanger))),
    on("ServiceAccount", Plain(|_| Arc::new(ServiceAccount))),
    on("NodeRestriction", Plain(|deps| Arc::new(NodeRestriction::new(deps.authorizer.clone())))),
    on("TaintNodesByCondition", Plain(|_| Arc::new(TaintNodesByCondition))),
    off("AlwaysPullImages", Plain(|_| Arc::new(AlwaysPullImages))),
    missing("ImagePolicyWebhook"),
    on("PodSecurity", Configured(|file, _| Ok(Arc::new(PodSecurity::configured(file)?)))),
    missing("PodNodeSelector"),
    on("Priority", Plain(|_| Arc::new(Priority))),
    on("DefaultTolerationSeconds", Plain(|deps| Arc::new(DefaultTolerationSeconds(deps.tolerations)))),
    missing("PodTolerationRestriction"),
    off("EventRateLimit", Configured(|file, _| Ok(Arc::new(EventRateLimit::configured(file)?)))),
    off("ExtendedResourceToleration", Plain(|_| Arc::new(ExtendedResourceToleration))),
    on("DefaultStorageClass", Plain(|_| Arc::new(DefaultStorageClass))),
    on("StorageObjectInUseProtection", Plain(|_| Arc::new(StorageObjectInUseProtection))),
    on("PodGroupProtection", Plain(|_| Arc::new(PodGroupProtection))),
    off("OwnerReferencesPermissionEnforcement", Plain(|deps| Arc::new(OwnerReferencesPermissionEnforcement(deps.authorizer.clone())))),
    on("PersistentVolumeClaimResize", Plain(|_| Arc::new(PersistentVolumeClaimResize))),
    on("RuntimeClass", Plain(|_| Arc::new(RuntimeClass))),
    on("CertificateApproval", Plain(|deps| Arc::new(CertificateApproval(deps.authorizer.clone())))),
    on("CertificateSigning", Plain(|deps| Arc::new(CertificateSigning(deps.authorizer.clone())))),
    on("ClusterTrustBundleAttest", Plain(|deps| Arc::new(ClusterTrustBundleAttest(deps.authorizer.clone())))),
    on("CertificateSubjectRestriction", Plain(|_| Arc::new(CertificateSubjectRestriction))),
    on("DefaultIngressClass", Plain(|_| Arc::new(DefaultIngressClass))),
    missing("DenyServiceExternalIPs"),
    on("PodTopologyLabels", Plain(|_| Arc::new(PodTopologyLabels))),
    on("PodGroupWorkloadExists", Plain(|_| Arc::new(PodGroupWorkloadExists))),
    on("NodeDeclaredFeatureValidator", Plain(|_| Arc::new(NodeDeclaredFeatureValidator))),
    on("JobValidation", Plain(|_| Arc::new(JobValidation))),
    on("PodResizeValidator", Plain(|_| Arc::new(PodResizeValidator))),
    on("MutatingAdmissionPolicy", Plain(|deps| Arc::new(MutatingAdmissionPolicy::new(deps)))),
    on("MutatingAdmissionWebhook", Configured(|file, deps| Ok(Arc::new(MutatingAdmissionWebhook(Webhooks::configured(true, file, deps)?))))),
    on("ValidatingAdmissionPolicy", Plain(|deps| Arc::new(ValidatingAdmissionPolicy::new(deps)))),
    on("ValidatingAdmissionWebhook", Configured(|file, deps| Ok(Arc::new(ValidatingAdmissionWebhook(Webhooks::configured(false, file, deps)?))))),
    on("ResourceQuota", Plain(|_| Arc::new(ResourceQuota::new()))),
    off("AlwaysDeny", Plain(|_| Arc::new(AlwaysDeny))),
];

/// The plugin of a name.
pub(crate) fn plugin(name: &str) -> Option<&'static Plugin> {
    PLUGINS.iter().find(|plugin| plugin.name == name)
}

/// The names of the plugins that this server has and that run by default, or that do not, in order: for help texts.
pub fn names(default: bool) -> impl Iterator<Item = &'static str> {
    PLUGINS
        .iter()
        .filter(move |plugin| plugin.constructor.is_some() && plugin.default == default)
        .map(|plugin| plugin.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_auth::Union;

    #[test]
    fn constructors_make_the_plugin_of_their_line() {
        let deps = Deps {
            authorizer: Arc::new(Union(vec![])),
            callers: Arc::default(),
            metrics: Arc::default(),
            policies: Arc::default(),
            tolerations: Default::default(),
            decisions: Arc::default(),
        };
        for line in PLUGINS.iter().filter(|line| line.name != "EventRateLimit") {
            let made = match line.constructor {
                Some(Plain(new)) => new(&deps),
                Some(Configured(new)) => new(None, &deps).unwrap(),
                None => continue,
            };
            assert_eq!(made.name(), line.name);
        }
    }
}
