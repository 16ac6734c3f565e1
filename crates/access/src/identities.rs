//! The users of the cluster's own components: those of upstream's components, with no more permissions.
//!
//! A controller has its service account, a simulated kubelet its node's user; which one is read from `User-Agent`, which
//! is trusted inside this process only.

use kaji_auth::{
    authz::policy,
    names::{AUTHENTICATED, NODE_PREFIX, NODES, SERVICE_ACCOUNT_PREFIX, SERVICE_ACCOUNTS},
};
use kaji_resource::UserInfo;
use kaji_server::Identities;
use std::{collections::HashMap, sync::Arc};

/// A user with groups, authenticated.
fn user(name: String, groups: &[&str]) -> Arc<UserInfo> {
    let groups = groups.iter().copied().chain([AUTHENTICATED]).map(str::to_owned).collect();
    Arc::new(UserInfo { name, groups, ..UserInfo::default() })
}

/// A component of the control plane: `system:kube-scheduler`.
pub fn component(name: &str) -> Identities {
    let user = user(format!("system:{name}"), &[]);
    Arc::new(move |_| user.clone())
}

/// The controller manager: controllers have their service accounts, other requests the manager's user.
pub fn controllers() -> Identities {
    let account = |name: &str| {
        let namespaced = format!("{SERVICE_ACCOUNTS}:kube-system");
        user(format!("{SERVICE_ACCOUNT_PREFIX}kube-system:{name}"), &[SERVICE_ACCOUNTS, &namespaced])
    };
    let mut known: HashMap<&str, Arc<UserInfo>> =
        policy::controller_accounts().map(|name| (name, account(name))).collect();
    known.extend(kaji_controllers::service_accounts().map(|(component, name)| (component, account(name))));
    let manager = user("system:kube-controller-manager".into(), &[]);
    Arc::new(move |agent| known.get(agent).unwrap_or(&manager).clone())
}

/// Kubelets: `kubelet/NODE` is that node. Requests for all of them (events) are those of `first`.
pub fn kubelets(first: &str) -> Identities {
    let node = |name: &str| user(format!("{NODE_PREFIX}{name}"), &[NODES]);
    let first = node(first);
    Arc::new(move |agent| match agent.strip_prefix("kubelet/") {
        Some(name) if !name.is_empty() => node(name),
        _ => first.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_component_of_a_controller_has_a_service_account() {
        let identities = controllers();
        let components = kaji_controllers::CONTROLLERS.iter().flat_map(|d| d.components);
        let without: Vec<&str> = components
            .filter(|name| identities(name).name == "system:kube-controller-manager")
            .copied()
            .collect();
        // The tokens controller acts as the manager, as upstream: it runs before any service account can be used.
        assert_eq!(without, ["serviceaccount-token-controller"]);
    }

    #[test]
    fn user_agents_select_users() {
        let text = |identities: &Identities, agent| {
            let user = identities(agent);
            format!("{} {}", user.name, user.groups.join(","))
        };
        let all = [
            text(&component("kube-scheduler"), "anything"),
            text(&controllers(), "deployment-controller"),
            text(&controllers(), "endpoint-slice-controller"),
            text(&controllers(), "kube-controller-manager"),
            text(&kubelets("sim-1"), "kubelet/sim-7"),
            text(&kubelets("sim-1"), "kubelet"),
            text(&kubelets("sim-1"), "kubelet/"),
        ];
        expect_test::expect![[r#"
            system:kube-scheduler system:authenticated
            system:serviceaccount:kube-system:deployment-controller system:serviceaccounts,system:serviceaccounts:kube-system,system:authenticated
            system:serviceaccount:kube-system:endpointslice-controller system:serviceaccounts,system:serviceaccounts:kube-system,system:authenticated
            system:kube-controller-manager system:authenticated
            system:node:sim-7 system:nodes,system:authenticated
            system:node:sim-1 system:nodes,system:authenticated
            system:node:sim-1 system:nodes,system:authenticated"#]]
        .assert_eq(&all.join("\n"));
    }
}
