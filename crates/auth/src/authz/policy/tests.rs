//! The table against well-known roles, and against what upstream says of all of them.

use super::*;
use crate::{
    authz::{Attributes, Authorizer},
    names::{AUTHENTICATED, MASTERS, UNAUTHENTICATED},
};
use expect_test::expect;
use kaji_resource::UserInfo;
use std::collections::BTreeSet;

fn find(resource: &str, name: &str) -> Value {
    defaults().into_iter().find(|d| d.resource == resource && d.name == name).unwrap().object
}

#[test]
fn default_policy_is_upstreams() {
    expect![[r#"
        {"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"rbac.authorization.k8s.io/aggregate-to-edit":"true"}}]},"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"annotations":{"rbac.authorization.kubernetes.io/autoupdate":"true"},"labels":{"kubernetes.io/bootstrapping":"rbac-defaults","rbac.authorization.k8s.io/aggregate-to-admin":"true"},"name":"edit"}}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"annotations":{"rbac.authorization.kubernetes.io/autoupdate":"true"},"labels":{"kubernetes.io/bootstrapping":"rbac-defaults"},"name":"cluster-admin"},"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]},{"nonResourceURLs":["*"],"verbs":["*"]}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"annotations":{"rbac.authorization.kubernetes.io/autoupdate":"true"},"labels":{"kubernetes.io/bootstrapping":"rbac-defaults"},"name":"system:controller:job-controller"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"system:controller:job-controller"},"subjects":[{"kind":"ServiceAccount","name":"job-controller","namespace":"kube-system"}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"annotations":{"rbac.authorization.kubernetes.io/autoupdate":"true"},"labels":{"kubernetes.io/bootstrapping":"rbac-defaults"},"name":"system::leader-locking-kube-scheduler","namespace":"kube-system"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"system::leader-locking-kube-scheduler"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"system:kube-scheduler"},{"kind":"ServiceAccount","name":"kube-scheduler","namespace":"kube-system"}]}"#]]
    .assert_eq(
        &[
            find("clusterroles", "edit"),
            find("clusterroles", "cluster-admin"),
            find("clusterrolebindings", "system:controller:job-controller"),
            find("rolebindings", "system::leader-locking-kube-scheduler"),
        ]
        .map(|v| v.to_string())
        .join("\n"),
    );
}

/// Every binding names a role of the table, every controller's role is bound, and no name comes twice.
#[test]
fn default_roles_are_complete() {
    let all = defaults();
    let names: BTreeSet<_> = all.iter().map(|d| (d.resource, d.namespace, d.name)).collect();
    assert_eq!(names.len(), all.len());
    for d in all.iter().filter(|d| d.resource.ends_with("bindings")) {
        let (kind, role) = (&d.object["roleRef"]["kind"], d.object["roleRef"]["name"].as_str().unwrap());
        let found = match kind.as_str().unwrap() {
            "Role" => names.contains(&("roles", d.namespace, role)),
            _ => names.contains(&("clusterroles", "", role)),
        };
        assert!(found, "{}: {role}", d.name);
    }
    for d in all.iter().filter(|d| d.resource == "clusterroles" && d.name.starts_with("system:controller:")) {
        assert!(names.contains(&("clusterrolebindings", "", d.name)), "{}", d.name);
    }
    let counted = |r: &str| all.iter().filter(|d| d.resource == r).count();
    let counts = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"].map(counted);
    expect![[r#"[74, 55, 7, 7]"#]].assert_eq(&format!("{counts:?}"));
    assert!(controller_accounts().any(|a| a == "deployment-controller"));
}

/// What the default bindings grant to well-known users, through the authorizer itself.
#[test]
fn default_roles_allow_what_upstreams_do() {
    let rbac = crate::authz::rbac::tests::defaults();
    let table = [
        (UNAUTHENTICATED, "get", "", "/healthz", true),
        (UNAUTHENTICATED, "get", "", "/version", true),
        (UNAUTHENTICATED, "get", "", "/api", false),
        (UNAUTHENTICATED, "get", "", "/metrics", false),
        (AUTHENTICATED, "get", "", "/apis/apps/v1", true),
        (AUTHENTICATED, "get", "", "/openapi/v3", true),
        (AUTHENTICATED, "get", "", "/metrics", false),
        (AUTHENTICATED, "create", "authorization.k8s.io", "selfsubjectaccessreviews", true),
        (AUTHENTICATED, "create", "authorization.k8s.io", "subjectaccessreviews", false),
        (AUTHENTICATED, "list", "", "pods", false),
        ("system:monitoring", "get", "", "/metrics", true),
        ("system:serviceaccounts", "get", "", "/.well-known/openid-configuration", true),
        ("system:serviceaccounts", "list", "certificates.k8s.io", "clustertrustbundles", true),
        ("system:nodes", "list", "", "pods", false),
        (MASTERS, "delete", "any.example", "things", true),
        (MASTERS, "post", "", "/anything", true),
        ("user:system:kube-scheduler", "create", "", "bindings", true),
        ("user:system:kube-scheduler", "update", "", "pods", false),
        ("user:system:kube-controller-manager", "watch", "any.example", "things", true),
        ("user:system:kube-controller-manager", "create", "", "pods", false),
        ("user:system:serviceaccount:kube-system:job-controller", "create", "", "pods", true),
        ("user:system:serviceaccount:kube-system:job-controller", "update", "apps", "deployments", false),
        ("user:system:serviceaccount:kube-system:horizontal-pod-autoscaler", "update", "x", "y/scale", true),
        ("user:system:serviceaccount:default:job-controller", "create", "", "pods", false),
        ("user:system:kube-proxy", "watch", "discovery.k8s.io", "endpointslices", true),
    ];
    for (subject, verb, group, what, allowed) in table {
        let user = match subject.strip_prefix("user:") {
            Some(name) => UserInfo { name: name.into(), ..UserInfo::default() },
            None => UserInfo { groups: vec![subject.into()], ..UserInfo::default() },
        };
        let (resource, subresource) = what.split_once('/').unwrap_or((what, ""));
        let a = match what.starts_with('/') {
            true => Attributes::path(&user, verb, what),
            false => Attributes { subresource, ..Attributes::resource(&user, verb, group, resource) },
        };
        let outcome = crate::authz::tests::ready(rbac.authorize(&a));
        assert_eq!(outcome.allowed(), allowed, "{subject} {verb} {group} {what}");
    }
}
