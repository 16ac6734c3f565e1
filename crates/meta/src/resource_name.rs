//! Names of compute resources (`cpu`, `example.com/gpu`): which are Kubernetes' own, and which are extended ones.
//! Source: upstream's `pkg/apis/core/v1/helper`.

use crate::validation::is_qualified_name;

/// Whether a resource is one of Kubernetes itself: without a prefix, or under `kubernetes.io/`.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether a resource is an extended one (`example.com/gpu`): with a domain that is not Kubernetes' own, and short enough for
/// a quota of its requests.
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && is_qualified_name(&format!("requests.{name}")).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_resources_have_a_domain_that_is_not_kubernetes_own() {
        for (name, expected) in [
            ("example.com/gpu", true),
            ("gpu", false),
            ("kubernetes.io/gpu", false),
            ("x.kubernetes.io/gpu", false),
            ("requests.example.com/gpu", false),
            ("example.com/", false),
            ("example.com/a/b", false),
        ] {
            assert_eq!(is_extended(name), expected, "{name}");
        }
        assert!(is_native("cpu") && is_native("kubernetes.io/x") && !is_native("example.com/gpu"));
    }
}
