//! Names of resources that quotas, limit ranges and containers may use.
//! Source: upstream's `pkg/apis/core/helper`.
//!
//! Invariant: this is the only table of the names; validation and evaluation both use it.

pub use kaji_meta::resource_name::{is_extended, is_native};

/// Resources that are counted in whole numbers of objects.
const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    NODE_PORTS,
    LOAD_BALANCERS,
];
/// The node ports of services.
pub const NODE_PORTS: &str = "services.nodeports";
/// Services of type LoadBalancer.
pub const LOAD_BALANCERS: &str = "services.loadbalancers";
/// The storage that volume claims request.
pub const STORAGE_REQUESTS: &str = "requests.storage";
/// Resources of containers that quotas limit by their bare names, as requests and as limits.
const COMPUTE: [&str; 9] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

/// Whether amounts of a resource are whole numbers (`IsIntegerResourceName`).
pub fn is_integer(name: &str) -> bool {
    COUNTED.contains(&name) || is_extended(name)
}

/// Whether a resource is one of containers that quotas limit: `cpu`, `requests.memory`, `limits.ephemeral-storage`, …
pub fn is_compute(name: &str) -> bool {
    COMPUTE.contains(&name)
}

/// Whether a resource is one that every container may have: `cpu`, `memory` and `ephemeral-storage`.
pub fn is_container_standard(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage")
}

/// Whether a name without a prefix is defined (`IsStandardResourceName`).
pub fn is_standard(name: &str) -> bool {
    name == "storage" || is_standard_for_quota(name)
}

/// Whether a quota may limit a name without a prefix (`IsStandardQuotaResourceName`).
pub fn is_standard_for_quota(name: &str) -> bool {
    COMPUTE.contains(&name)
        || name == STORAGE_REQUESTS
        || COUNTED.contains(&name)
        || is_hugepages(name)
        || name.starts_with("requests.hugepages-")
}

/// Whether a resource is of the `hugepages-` family.
pub fn is_hugepages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_names() {
        assert!(is_standard("storage") && !is_standard_for_quota("storage"));
        for name in ["pods", "limits.memory", "requests.storage", "requests.hugepages-2Mi", NODE_PORTS] {
            assert!(is_standard_for_quota(name), "{name}");
        }
        assert!(!is_standard("gpus") && !is_standard("count/pods"));
        assert!(is_integer("example.com/gpu") && is_integer("secrets") && !is_integer("cpu"));
        assert!(is_extended("example.com/gpu") && !is_extended("requests.example.com/gpu"));
        assert!(!is_extended("kubernetes.io/x") && is_native("kubernetes.io/x"));
    }
}
