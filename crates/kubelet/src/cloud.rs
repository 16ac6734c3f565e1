//! Nodes that a cloud-controller-manager initializes: the kubelet's `--cloud-provider=external`.
//!
//! Invariant: such a node is registered with a taint that keeps pods away, and nothing here removes it.

use k8s_openapi::api::core::v1::NodeAddress;
use serde_json::{Value, json};
use std::net::IpAddr;

/// Tells a cloud provider the addresses that the kubelet was started with.
pub(crate) const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// What a kubelet tells the cloud provider that initializes its node, which has the addresses that it is given by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalCloud {
    /// The addresses that the kubelet was started with (`--node-ip`): the provider has to know them.
    pub node_ips: Vec<IpAddr>,
}

impl ExternalCloud {
    /// The annotation's value; `None` for a kubelet that was started without an address.
    pub(crate) fn provided(&self) -> Option<String> {
        let texts: Vec<String> = self.node_ips.iter().map(IpAddr::to_string).collect();
        (!texts.is_empty()).then(|| texts.join(","))
    }
}

/// The addresses that a kubelet reports of its node. With an external cloud those that the node was given, and until then those
/// that the kubelet was started with.
pub(crate) fn node_addresses(
    cloud: Option<&ExternalCloud>,
    own: &[IpAddr],
    name: &str,
    given: &[NodeAddress],
) -> Vec<Value> {
    if cloud.is_some() && !given.is_empty() {
        return given.iter().map(|a| json!({"type": a.type_, "address": a.address})).collect();
    }
    let own = cloud.map_or(own, |cloud| &cloud.node_ips).iter();
    let internal = own.map(|ip| json!({"type": "InternalIP", "address": ip.to_string()}));
    internal.chain([json!({"type": "Hostname", "address": name})]).collect()
}

/// The taint of a node that is not initialized.
pub(crate) fn uninitialized_taint() -> Value {
    json!({"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_a_cloud_has_the_addresses_that_it_is_given() {
        let own = [IpAddr::from([192, 0, 2, 1])];
        let given = [NodeAddress { type_: "ExternalIP".into(), address: "198.51.100.1".into() }];
        let texts = |cloud: Option<&ExternalCloud>, given: &[NodeAddress]| {
            let addresses = node_addresses(cloud, &own, "n", given);
            let text = |a: &Value| a["address"].as_str().unwrap_or_default().to_owned();
            addresses.iter().map(text).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(texts(None, &given), "192.0.2.1 n");
        let cloud = ExternalCloud::default();
        assert_eq!(
            (texts(Some(&cloud), &[]), texts(Some(&cloud), &given)),
            ("n".into(), "198.51.100.1".into())
        );
        let started = ExternalCloud { node_ips: vec![IpAddr::from([203, 0, 113, 9])] };
        assert_eq!(texts(Some(&started), &[]), "203.0.113.9 n");
        assert_eq!((cloud.provided(), started.provided().as_deref()), (None, Some("203.0.113.9")));
    }
}
