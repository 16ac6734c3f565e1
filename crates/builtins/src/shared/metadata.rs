//! Which of upstream's validators of metadata each built-in kind calls when an object changes, besides the general ones.
//!
//! Observed at an API server: each validator reports a bad label once more. Kinds without an entry call none.

use kaji_resource::{
    MetadataCheck::{self, Update, Whole},
    MetadataChecks, ResourceDef,
};

const A: MetadataCheck = Whole { finalizers: true };
const U: MetadataCheck = Update { finalizers: true };
/// The validators of apimachinery, which ask nothing of finalizers but that they are label keys.
const GENERAL_A: MetadataCheck = Whole { finalizers: false };
const GENERAL_U: MetadataCheck = Update { finalizers: false };

/// The validators of a resource.
fn checks(group: &str, plural: &str) -> MetadataChecks {
    let (update, status): (&[MetadataCheck], &[MetadataCheck]) = match (group, plural) {
        ("", "services" | "resourcequotas" | "replicationcontrollers" | "podtemplates")
        | ("apps", "deployments" | "statefulsets" | "daemonsets" | "replicasets")
        | ("autoscaling", "horizontalpodautoscalers")
        | ("networking.k8s.io", "networkpolicies" | "servicecidrs")
        | ("storage.k8s.io", "csidrivers")
        | ("scheduling.k8s.io", "priorityclasses")
        | ("resource.k8s.io", "resourceslices")
        | ("events.k8s.io", "events") => (&[U], &[U]),
        ("", "namespaces" | "nodes")
        | ("batch", "jobs")
        | ("rbac.authorization.k8s.io", _)
        | ("storage.k8s.io", "storageclasses" | "csistoragecapacities")
        | ("networking.k8s.io", "ipaddresses")
        | ("resource.k8s.io", "deviceclasses" | "resourceclaims" | "resourceclaimtemplates") => {
            (&[A, U], &[U])
        }
        ("certificates.k8s.io", "certificatesigningrequests") => (&[A, U], &[A, U]),
        (
            "",
            "serviceaccounts" | "secrets" | "configmaps" | "endpoints" | "persistentvolumeclaims" | "pods",
        )
        | ("apps", "controllerrevisions")
        | ("networking.k8s.io", "ingresses" | "ingressclasses")
        | ("storage.k8s.io", "volumeattributesclasses") => (&[U, A], &[U]),
        ("", "persistentvolumes") => (&[A, A], &[U]),
        ("batch", "cronjobs") => (&[U], &[]),
        ("", "limitranges")
        | ("storage.k8s.io", "csinodes" | "volumeattachments")
        | ("discovery.k8s.io", "endpointslices")
        | ("flowcontrol.apiserver.k8s.io", _) => (&[A], &[]),
        ("admissionregistration.k8s.io", _) => (&[GENERAL_A], &[]),
        ("coordination.k8s.io", "leases") => (&[GENERAL_U], &[]),
        ("node.k8s.io", "runtimeclasses") => (&[GENERAL_A, GENERAL_U], &[]),
        ("apiregistration.k8s.io", "apiservices") => (&[GENERAL_U, GENERAL_A], &[]),
        ("apiextensions.k8s.io", "customresourcedefinitions") => (&[GENERAL_U], &[GENERAL_U]),
        _ => (&[], &[]),
    };
    MetadataChecks { update, status }
}

/// The resource with its validators.
pub fn with_checks(def: ResourceDef) -> ResourceDef {
    ResourceDef { metadata_checks: checks(&def.group, &def.plural), ..def }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_kinds_want_qualified_finalizers() {
        for (group, plural, wanted) in [
            ("", "configmaps", true),
            ("apps", "deployments", true),
            ("rbac.authorization.k8s.io", "roles", true),
            ("", "events", false),
            ("policy", "poddisruptionbudgets", false),
            ("coordination.k8s.io", "leases", false),
            ("admissionregistration.k8s.io", "validatingadmissionpolicies", false),
            ("apiextensions.k8s.io", "customresourcedefinitions", false),
        ] {
            assert_eq!(checks(group, plural).finalizers(), wanted, "{group} {plural}");
        }
        assert_eq!(checks("", "persistentvolumes").update, [A, A]);
    }
}
