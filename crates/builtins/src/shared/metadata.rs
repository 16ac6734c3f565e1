//! Upstream's validators of metadata, as built-in kinds call them when an object changes besides the general ones.
//!
//! Invariant: as at an API server, each validator that a kind names reports a bad label once more.

use kaji_resource::MetadataCheck::{self, Update, Whole};

/// `ValidateObjectMeta` of `pkg/apis/core/validation`.
pub const WHOLE: MetadataCheck = Whole { finalizers: true };
/// `ValidateObjectMetaUpdate` of `pkg/apis/core/validation`.
pub const UPDATE: MetadataCheck = Update { finalizers: true };
/// `ValidateObjectMeta` of apimachinery: finalizers only have to be label keys.
pub const GENERAL_WHOLE: MetadataCheck = Whole { finalizers: false };
/// `ValidateObjectMetaUpdate` of apimachinery.
pub const GENERAL_UPDATE: MetadataCheck = Update { finalizers: false };

#[cfg(test)]
mod tests {
    use crate::shared::testing::deps;

    #[test]
    fn most_kinds_want_qualified_finalizers() {
        let defs = crate::all(&deps());
        let find = |group: &str, plural: &str| {
            let mut found = defs.iter().filter(|d| d.group == group && d.plural == plural);
            found.next().map(|d| d.metadata_checks).unwrap()
        };
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
            assert_eq!(find(group, plural).finalizers(), wanted, "{group} {plural}");
        }
        assert_eq!(find("", "persistentvolumes").update, [super::WHOLE, super::WHOLE]);
    }
}
