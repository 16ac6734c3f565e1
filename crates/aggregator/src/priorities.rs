//! In which order groups and versions are listed.
//!
//! Source: `apiVersionPriorities` of upstream's kube-apiserver, and what it gives to custom resources.

pub use kaji_meta::gvk::version_rank;

/// Where a group and its version stand among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// Of the group: higher ones come first.
    pub group: i64,
    /// Of the version within it.
    pub version: i64,
}

/// What custom resources get.
pub const CUSTOM: Priority = Priority { group: 1000, version: 100 };

/// The group of APIServices themselves, which comes first and which none of them stands for.
pub const OWN: Priority = Priority { group: 20_001, version: 0 };

/// A group with its priority, and its versions with theirs.
type Group = (&'static str, i64, &'static [(&'static str, i64)]);

const TABLE: &[Group] = &[
    ("", 18_000, &[("v1", 1)]),
    ("apps", 17_800, &[("v1", 15)]),
    ("events.k8s.io", 17_750, &[("v1", 15), ("v1beta1", 5)]),
    ("authentication.k8s.io", 17_700, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("authorization.k8s.io", 17_600, &[("v1", 15)]),
    ("autoscaling", 17_500, &[("v2", 30), ("v1", 15)]),
    ("batch", 17_400, &[("v1", 15), ("v1beta1", 9)]),
    ("certificates.k8s.io", 17_300, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("networking.k8s.io", 17_200, &[("v1", 15), ("v1beta1", 9)]),
    ("policy", 17_100, &[("v1", 15), ("v1beta1", 9)]),
    ("rbac.authorization.k8s.io", 17_000, &[("v1", 15)]),
    ("storage.k8s.io", 16_800, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("admissionregistration.k8s.io", 16_700, &[("v1", 15), ("v1beta1", 12), ("v1alpha1", 9)]),
    ("apiextensions.k8s.io", 16_700, &[("v1", 15)]),
    ("scheduling.k8s.io", 16_600, &[("v1", 15), ("v1alpha2", 2)]),
    ("coordination.k8s.io", 16_500, &[("v1", 15), ("v1beta1", 13), ("v1alpha2", 12)]),
    ("node.k8s.io", 16_300, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("discovery.k8s.io", 16_200, &[("v1", 15), ("v1beta1", 12)]),
    ("resource.k8s.io", 16_200, &[("v1", 21), ("v1beta2", 15), ("v1beta1", 9), ("v1alpha3", 1)]),
    ("flowcontrol.apiserver.k8s.io", 16_100, &[("v1", 21), ("v1beta3", 18)]),
    ("internal.apiserver.k8s.io", 16_000, &[("v1alpha1", 9)]),
    ("storagemigration.k8s.io", 15_800, &[("v1", 15), ("v1beta1", 9)]),
];

/// The priority of a group version that is built in; `None` for what upstream registers nothing for.
pub fn builtin(group: &str, version: &str) -> Option<Priority> {
    let (_, priority, versions) = TABLE.iter().find(|(g, ..)| *g == group)?;
    let (_, found) = versions.iter().find(|(v, _)| *v == version)?;
    Some(Priority { group: *priority, version: *found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_in_has_its_place() {
        let preferred = builtin("autoscaling", "v2").unwrap().version;
        assert!(preferred > builtin("autoscaling", "v1").unwrap().version);
        assert_eq!(builtin("apiregistration.k8s.io", "v1"), None);
        assert_eq!(builtin("example.com", "v1"), None);
        let order: Vec<_> = TABLE.iter().map(|(_, priority, _)| *priority).collect();
        assert!(order.is_sorted_by(|a, b| a >= b));
    }
}
