//! The types that documentation is collected from: every kind that is served, with all it refers to.

use super::Builder;
use k8s_openapi::{api, apiextensions_apiserver, apimachinery, kube_aggregator};

macro_rules! roots {
    ($builder:expr; $($module:path { $($kind:ident),+ $(,)? })+) => {
        $({
            use $module as types;
            $($builder.root::<types::$kind>();)+
        })+
    };
}

/// Shows every root to the builder.
pub fn visit(builder: &mut Builder) {
    core(builder);
    workloads(builder);
    cluster(builder);
    access(builder);
    machinery(builder);
}

fn core(builder: &mut Builder) {
    roots! { builder;
        api::core::v1 {
            Binding, ComponentStatus, ConfigMap, Endpoints, Event, LimitRange, Namespace, Node, PersistentVolume,
            PersistentVolumeClaim, Pod, PodTemplate, ReplicationController, ResourceQuota, Secret, Service, ServiceAccount,
        }
        api::events::v1 { Event }
    }
}

fn workloads(builder: &mut Builder) {
    roots! { builder;
        api::apps::v1 { ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet }
        api::autoscaling::v1 { HorizontalPodAutoscaler, Scale }
        api::autoscaling::v2 { HorizontalPodAutoscaler }
        api::batch::v1 { CronJob, Job }
        api::policy::v1 { Eviction, PodDisruptionBudget }
        api::scheduling::v1 { PriorityClass }
    }
}

fn cluster(builder: &mut Builder) {
    roots! { builder;
        api::coordination::v1 { Lease }
        api::discovery::v1 { EndpointSlice }
        api::networking::v1 { IPAddress, Ingress, IngressClass, NetworkPolicy, ServiceCIDR }
        api::node::v1 { RuntimeClass }
        api::resource::v1 { DeviceClass, DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice }
        api::storage::v1 {
            CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment, VolumeAttributesClass,
        }
        api::storagemigration::v1 { StorageVersionMigration }
    }
}

fn access(builder: &mut Builder) {
    roots! { builder;
        api::admissionregistration::v1 {
            MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, MutatingWebhookConfiguration,
            ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
        }
        api::authentication::v1 { SelfSubjectReview, TokenRequest, TokenReview }
        api::authorization::v1 {
            LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
        }
        api::certificates::v1 { CertificateSigningRequest, ClusterTrustBundle, PodCertificateRequest }
        api::flowcontrol::v1 { FlowSchema, PriorityLevelConfiguration }
        api::rbac::v1 { ClusterRole, ClusterRoleBinding, Role, RoleBinding }
    }
}

fn machinery(builder: &mut Builder) {
    roots! { builder;
        apiextensions_apiserver::pkg::apis::apiextensions::v1 { CustomResourceDefinition }
        apimachinery::pkg::apis::meta::v1 {
            APIGroup, APIGroupList, APIResourceList, APIVersions, DeleteOptions, ListMeta, Status,
        }
        kube_aggregator::pkg::apis::apiregistration::v1 { APIService }
    }
}
