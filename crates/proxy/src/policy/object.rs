//! NetworkPolicy, projected.

use kaji_runtime::{Meta, Projection, objects::LabelSelector};
use serde::Deserialize;
use serde_json::Value;

/// A range of addresses without some of them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IpBlock {
    /// The range.
    pub cidr: String,
    /// Ranges in it that are left out.
    pub except: Vec<String>,
}

/// The other side of a connection.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Peer {
    /// Pods with these labels; of the policy's namespace, if namespaces are not selected.
    pub pod_selector: Option<LabelSelector>,
    /// Namespaces with these labels.
    pub namespace_selector: Option<LabelSelector>,
    /// Addresses.
    pub ip_block: Option<IpBlock>,
}

/// A port of the destination.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Port {
    /// `TCP` when absent.
    pub protocol: Option<String>,
    /// Number or name, raw; all when absent.
    pub port: Value,
    /// Last port of a range.
    pub end_port: Option<u16>,
}

/// What a policy allows: these peers, at these ports. An absent or empty list means all.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Rule {
    /// Sources, of ingress rules.
    pub from: Option<Vec<Peer>>,
    /// Destinations, of egress rules.
    pub to: Option<Vec<Peer>>,
    /// Ports.
    pub ports: Option<Vec<Port>>,
}

impl Rule {
    /// Sources or destinations; none for all.
    #[must_use]
    pub fn peers(&self) -> &[Peer] {
        self.from.as_deref().or(self.to.as_deref()).unwrap_or_default()
    }
}

/// A policy's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkPolicySpec {
    /// The pods that it restricts; all of the namespace when empty.
    pub pod_selector: Option<LabelSelector>,
    /// Connections to them.
    pub ingress: Option<Vec<Rule>>,
    /// Connections from them.
    pub egress: Option<Vec<Rule>>,
    /// `Ingress`, `Egress`
    pub policy_types: Option<Vec<String>>,
}

/// A policy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NetworkPolicy {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: NetworkPolicySpec,
}

impl NetworkPolicy {
    /// Whether it restricts connections to its pods, and whether those from them.
    #[must_use]
    pub fn directions(&self) -> (bool, bool) {
        match self.spec.policy_types.as_deref() {
            None | Some([]) => (true, self.spec.egress.as_ref().is_some_and(|rules| !rules.is_empty())),
            Some(types) => (types.iter().any(|t| t == "Ingress"), types.iter().any(|t| t == "Egress")),
        }
    }
}

impl Projection for NetworkPolicy {
    const GROUP: &'static str = "networking.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "networkpolicies";
    const KIND: &'static str = "NetworkPolicy";

    kaji_runtime::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_schema::probe::mismatches_with_kind;

    #[test]
    fn policies_are_read_as_their_schema_has_them() {
        let mismatches =
            mismatches_with_kind::<NetworkPolicy>(NetworkPolicy::GROUP, "v1", NetworkPolicy::KIND);
        // Rules of both directions are one type.
        let of_the_other_direction =
            ["spec.egress.[].from: is not in the schema", "spec.ingress.[].to: is not in the schema"];
        assert_eq!(mismatches, of_the_other_direction);
    }
}
