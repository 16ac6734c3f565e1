//! Keys of etcd that are no resource's, which upstream's servers share with this one: the record of node ports, and the leases of
//! API servers.
//!
//! Invariants: below upstream's resource names for them; their values are left as they are by what converts and what encrypts those of
//! resources, also by the rule `*.*` of an `EncryptionConfiguration`, as upstream's storage factory does (kube-apiserver,
//! `EtcdOptions::ApplyWithStorageFactoryTo`: only the getter of resources' options has the transformers).

/// The resource of [`NODE_PORTS`], and upstream's prefix for it.
pub const ALLOCATIONS: (&str, &str) = ("core/servicenodeportallocations", "ranges");
/// The resource of the leases of API servers, and upstream's prefix for it.
pub const SERVERS: (&str, &str) = ("core/apiserveripinfo", "masterleases");

/// The record of node ports.
pub const NODE_PORTS: &str = "/registry/core/servicenodeportallocations/servicenodeports";
/// What the keys of leases of API servers begin with; an address follows.
pub const SERVER_LEASES: &str = "/registry/core/apiserveripinfo/";

/// Whether a key is no resource's.
pub fn is_internal(key: &str) -> bool {
    [ALLOCATIONS, SERVERS].iter().any(|(resource, _)| {
        key.strip_prefix("/registry/")
            .and_then(|rest| rest.strip_prefix(resource))
            .is_some_and(|r| r.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_keys_of_no_resource() {
        assert!(is_internal(NODE_PORTS));
        assert!(is_internal(&format!("{SERVER_LEASES}10.0.0.1")));
        assert!(!is_internal("/registry/core/services/a/b"));
        assert!(!is_internal("/registry/core/apiserveripinfos/a"));
    }
}
