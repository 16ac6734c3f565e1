//! What the four kinds of RBAC share: rules, role references, subjects.

use crate::shared::{
    check,
    value::{Fields, default_text, ensure_object, list_mut},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    validation,
};
use kaji_resource::{Column, age_column, name_column};
use serde_json::Value;

/// The API group of RBAC.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The columns of bindings of the cluster.
pub const CLUSTER_BINDING_COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Role",
        "string",
        0,
        "RoleRef can only reference a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.",
    ),
    age_column(),
    Column::new("Users", "string", 1, "Users in the clusterRoleBinding"),
    Column::new("Groups", "string", 1, "Groups in the clusterRoleBinding"),
    Column::new("ServiceAccounts", "string", 1, "ServiceAccounts in the clusterRoleBinding"),
];

/// The columns of bindings of a namespace.
pub const BINDING_COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Role",
        "string",
        0,
        "RoleRef can reference a Role in the current namespace or a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.",
    ),
    age_column(),
    Column::new("Users", "string", 1, "Users in the roleBinding"),
    Column::new("Groups", "string", 1, "Groups in the roleBinding"),
    Column::new("ServiceAccounts", "string", 1, "ServiceAccounts in the roleBinding"),
];

/// Checks the rules of a role.
pub fn policy_rules(object: &Value, namespaced: bool) -> ErrorList {
    let mut errs = vec![];
    for (i, rule) in object.list("rules").iter().enumerate() {
        let path = Path::new("rules").index(i);
        let empty = |f: &str| rule.list(f).is_empty();
        if empty("verbs") {
            errs.push(Error::required(&path.child("verbs"), "verbs must contain at least one value"));
        }
        if !empty("nonResourceURLs") {
            let urls = path.child("nonResourceURLs");
            let mut bad =
                |text: &str| errs.push(Error::invalid(&urls, rule.at("nonResourceURLs").clone(), text));
            if namespaced {
                bad("namespaced rules cannot apply to non-resource URLs");
            }
            if !empty("apiGroups") || !empty("resources") || !empty("resourceNames") {
                bad("rules cannot apply to both regular resources and non-resource URLs");
            }
            continue;
        }
        if empty("apiGroups") {
            let text = "resource rules must supply at least one api group";
            errs.push(Error::required(&path.child("apiGroups"), text));
        }
        if empty("resources") {
            let text = "resource rules must supply at least one resource";
            errs.push(Error::required(&path.child("resources"), text));
        }
    }
    errs
}

/// Fills in API groups of the role reference and the subjects.
pub fn default_binding(object: &mut Value) {
    default_text(ensure_object(object, "roleRef"), "apiGroup", GROUP);
    for subject in list_mut(object, "subjects") {
        if ["User", "Group"].contains(&subject.text("kind")) {
            default_text(subject, "apiGroup", GROUP);
        }
    }
}

fn subject(errs: &mut ErrorList, path: &Path, subject: &Value, namespaced: bool) {
    let (name, group) = (subject.text("name"), subject.text("apiGroup"));
    check::required(errs, &path.child("name"), name);
    match subject.text("kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                check::dns_subdomain(errs, &path.child("name"), name);
            }
            if !group.is_empty() {
                errs.push(Error::not_supported(&path.child("apiGroup"), group, &[""]));
            }
            if !namespaced {
                check::required(errs, &path.child("namespace"), subject.text("namespace"));
            }
        }
        "User" | "Group" => check::one_of(errs, &path.child("apiGroup"), group, &[GROUP]),
        other => {
            let valid = ["ServiceAccount", "User", "Group"];
            errs.push(Error::not_supported(&path.child("kind"), other, &valid));
        }
    }
}

/// Checks a binding; on updates the role reference stays what it was.
pub fn binding(object: &Value, old: Option<&Value>, namespaced: bool) -> ErrorList {
    let (mut errs, role, path) = (vec![], object.at("roleRef"), Path::new("roleRef"));
    check::one_of(&mut errs, &path.child("apiGroup"), role.text("apiGroup"), &[GROUP]);
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    check::one_of(&mut errs, &path.child("kind"), role.text("kind"), kinds);
    let name = role.text("name");
    if name.is_empty() {
        errs.push(Error::required(&path.child("name"), ""));
    } else {
        check::each(&mut errs, &path.child("name"), name, validation::path_segment_name(name, false));
    }
    for (i, s) in object.list("subjects").iter().enumerate() {
        subject(&mut errs, &Path::new("subjects").index(i), s, namespaced);
    }
    if old
        .is_some_and(|o| ["apiGroup", "kind", "name"].iter().any(|f| o.at("roleRef").text(f) != role.text(f)))
    {
        let shown = kaji_schema::internal::text("io.k8s.api.rbac.v1.RoleRef", role);
        errs.push(Error::invalid(&path, Value::Null, "cannot change roleRef").showing(shown));
    }
    errs
}

/// The cells of a binding.
pub fn binding_row(object: &Value, now: jiff::Timestamp) -> Vec<Value> {
    let role = object.at("roleRef");
    let of = |kind: &str| -> String {
        let all = object.list("subjects").iter().filter(|s| s.text("kind") == kind);
        let names = all.map(|s| match kind {
            "ServiceAccount" => format!("{}/{}", s.text("namespace"), s.text("name")),
            _ => s.text("name").to_owned(),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    vec![
        crate::shared::table::name(object),
        format!("{}/{}", role.text("kind"), role.text("name")).into(),
        crate::shared::table::age(object, now),
        of("User").into(),
        of("Group").into(),
        of("ServiceAccount").into(),
    ]
}
