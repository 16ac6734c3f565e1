//! Features that nodes declare (`status.declaredFeatures`, KEP-5328), and which of them pods need of their node.
//!
//! Invariant: scheduler and kubelet ask the same: a pod that one of them places is not refused by the other.

/// What a pod's spec has that not every node can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureRequests {
    /// A rule of a container restarts all of them.
    pub restarts_all: bool,
    /// The pod uses the node's network.
    pub host_network: bool,
    /// The pod uses the node's users, if it says so.
    pub host_users: Option<bool>,
}

impl FeatureRequests {
    /// The features that the pod needs, in the order of their names.
    pub fn features(self) -> impl Iterator<Item = &'static str> {
        let own_users = self.host_network && self.host_users == Some(false);
        let all = [
            ("RestartAllContainersOnContainerExits", self.restarts_all),
            ("UserNamespacesHostNetworkSupport", own_users),
        ];
        all.into_iter().filter_map(|(feature, needed)| needed.then_some(feature))
    }
}
