//! The table of admission plugins: one line a plugin, in the order in which they run.
//!
//! Invariants:
//! - Names, order and defaults are upstream's (`pkg/kubeapiserver/options/plugins.go`), with NodeRestriction on as kubeadm has
//!   it.
//! - A plugin is added by its file and its line here; flags, configuration files and the chain derive from the table.

use crate::{
    Deps, always_admit::AlwaysAdmit, always_deny::AlwaysDeny, always_pull_images::AlwaysPullImages,
    certificate_approval::CertificateApproval, certificate_signing::CertificateSigning,
    certificate_subject_restriction::CertificateSubjectRestriction,
    cluster_trust_bundle_attest::ClusterTrustBundleAttest, config::Configuration,
    default_ingress_class::DefaultIngressClass, default_storage_class::DefaultStorageClass,
    default_toleration_seconds::DefaultTolerationSeconds, deny_service_external_ips::DenyServiceExternalIPs,
    event_rate_limit::EventRateLimit, extended_resource_toleration::ExtendedResourceToleration,
    image_policy_webhook::ImagePolicyWebhook, job_validation::JobValidation,
    limit_pod_hard_anti_affinity_topology::LimitPodHardAntiAffinityTopology, limit_ranger::LimitRanger,
    mutating_admission_policy::MutatingAdmissionPolicy, mutating_admission_webhook::MutatingAdmissionWebhook,
    namespace_auto_provision::NamespaceAutoProvision, namespace_exists::NamespaceExists,
    namespace_lifecycle::NamespaceLifecycle, node_declared_feature_validator::NodeDeclaredFeatureValidator,
    node_restriction::NodeRestriction,
    owner_references_permission_enforcement::OwnerReferencesPermissionEnforcement,
    persistent_volume_claim_resize::PersistentVolumeClaimResize, pod_group_protection::PodGroupProtection,
    pod_group_workload_exists::PodGroupWorkloadExists, pod_node_selector::PodNodeSelector,
    pod_resize_validator::PodResizeValidator, pod_security::PodSecurity,
    pod_toleration_restriction::PodTolerationRestriction, pod_topology_labels::PodTopologyLabels,
    priority::Priority, resource_quota::ResourceQuota, runtime_class::RuntimeClass,
    service_account::ServiceAccount, storage_object_in_use_protection::StorageObjectInUseProtection,
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
    /// Makes it.
    pub constructor: Constructor,
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
    /// The same, of no kind: it was the whole file before there was an `AdmissionConfiguration`.
    Unversioned(fn(Option<Configuration<'_>>, &Deps) -> Constructed),
}

use Constructor::{Configured, Plain, Unversioned};

const fn on(name: &'static str, constructor: Constructor) -> Plugin {
    Plugin { name, default: true, constructor }
}

const fn off(name: &'static str, constructor: Constructor) -> Plugin {
    Plugin { name, default: false, constructor }
}

/// All plugins in the order in which they run.
#[rustfmt::skip]
pub(crate) static PLUGINS: [Plugin; 41] = [
    off("AlwaysAdmit", Plain(|_| Arc::new(AlwaysAdmit))),
    off("NamespaceAutoProvision", Plain(|_| Arc::new(NamespaceAutoProvision))),
    on("NamespaceLifecycle", Plain(|_| Arc::new(NamespaceLifecycle))),
    off("NamespaceExists", Plain(|_| Arc::new(NamespaceExists))),
    off("LimitPodHardAntiAffinityTopology", Plain(|_| Arc::new(LimitPodHardAntiAffinityTopology))),
    on("LimitRanger", Plain(|_| Arc::new(LimitRanger))),
    on("ServiceAccount", Plain(|_| Arc::new(ServiceAccount))),
    on("NodeRestriction", Plain(|deps| Arc::new(NodeRestriction::new(deps.authorizer.clone())))),
    on("TaintNodesByCondition", Plain(|_| Arc::new(TaintNodesByCondition))),
    off("AlwaysPullImages", Plain(|_| Arc::new(AlwaysPullImages))),
    off("ImagePolicyWebhook", Unversioned(|file, deps| Ok(Arc::new(ImagePolicyWebhook::configured(file, deps)?)))),
    on("PodSecurity", Configured(|file, deps| Ok(Arc::new(PodSecurity::configured(file, deps.pod_security.clone())?)))),
    off("PodNodeSelector", Unversioned(|file, _| Ok(Arc::new(PodNodeSelector::configured(file)?)))),
    on("Priority", Plain(|_| Arc::new(Priority))),
    on("DefaultTolerationSeconds", Plain(|deps| Arc::new(DefaultTolerationSeconds(deps.tolerations)))),
    off("PodTolerationRestriction", Configured(|file, _| Ok(Arc::new(PodTolerationRestriction::configured(file)?)))),
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
    off("DenyServiceExternalIPs", Plain(|_| Arc::new(DenyServiceExternalIPs))),
    on("PodTopologyLabels", Plain(|_| Arc::new(PodTopologyLabels))),
    on("PodGroupWorkloadExists", Plain(|_| Arc::new(PodGroupWorkloadExists))),
    on("NodeDeclaredFeatureValidator", Plain(|_| Arc::new(NodeDeclaredFeatureValidator))),
    on("JobValidation", Plain(|_| Arc::new(JobValidation))),
    on("PodResizeValidator", Plain(|_| Arc::new(PodResizeValidator))),
    on("MutatingAdmissionPolicy", Plain(|deps| Arc::new(MutatingAdmissionPolicy::new(deps)))),
    on("MutatingAdmissionWebhook", Configured(|file, deps| Ok(Arc::new(MutatingAdmissionWebhook(Webhooks::configured(true, file, deps)?))))),
    on("ValidatingAdmissionPolicy", Plain(|deps| Arc::new(ValidatingAdmissionPolicy::new(deps)))),
    on("ValidatingAdmissionWebhook", Configured(|file, deps| Ok(Arc::new(ValidatingAdmissionWebhook(Webhooks::configured(false, file, deps)?))))),
    on("ResourceQuota", Configured(|file, _| Ok(Arc::new(ResourceQuota::configured(file)?)))),
    off("AlwaysDeny", Plain(|_| Arc::new(AlwaysDeny))),
];

/// The plugin of a name.
pub(crate) fn plugin(name: &str) -> Option<&'static Plugin> {
    PLUGINS.iter().find(|plugin| plugin.name == name)
}

/// The names of the plugins that run by default, or that do not, in order: for help texts.
pub fn names(default: bool) -> impl Iterator<Item = &'static str> {
    PLUGINS.iter().filter(move |plugin| plugin.default == default).map(|plugin| plugin.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constructors_make_the_plugin_of_their_line() {
        let deps = crate::test_support::deps();
        let mut lacking = vec![];
        for line in &PLUGINS {
            let made = match line.constructor {
                Plain(new) => Ok(new(&deps)),
                Configured(new) | Unversioned(new) => new(None, &deps),
            };
            match made {
                Ok(made) => assert_eq!(made.name(), line.name),
                Err(why) => lacking.push(format!("{}: {why}", line.name)),
            }
        }
        expect_test::expect![[r#"
            ImagePolicyWebhook: no config specified
            EventRateLimit: limits: Invalid value: null: must not be empty"#]]
        .assert_eq(&lacking.join("\n"));
    }
}
