//! What RoleBindings and ClusterRoleBindings share: role references, subjects, columns and hooks.

use super::{escalation::Guard, rules::GROUP};
use crate::{
    Deps,
    shared::{
        check, metadata, table,
        value::{Fields, default_text, ensure_object, list_mut},
    },
};
use kaji_meta::{
    Status,
    field::{Error, ErrorList, Path},
    validation,
};
use kaji_resource::{BoxFuture, Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

/// The columns of bindings of the cluster.
const CLUSTER_COLUMNS: &[Column] = &[
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
const COLUMNS: &[Column] = &[
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

struct Bindings {
    guard: Guard,
    namespaced: bool,
}

/// The definition of a kind of bindings, in one scope or the other.
pub fn def(deps: &Deps, kind: &'static str, plural: &'static str, scope: Scope) -> ResourceDef {
    let namespaced = scope == Scope::Namespaced;
    let columns = if namespaced { COLUMNS } else { CLUSTER_COLUMNS };
    let hooks = Bindings { guard: Guard::new(deps, plural), namespaced };
    ResourceDef::builtin(GROUP, "v1", kind, plural, scope, columns, hooks)
        .metadata_checks(&[metadata::WHOLE, metadata::UPDATE], &[metadata::UPDATE])
        .named(validation::path_segment_name)
        .create_on_update()
}

impl Hooks for Bindings {
    fn default(&self, _version: &str, object: &mut Value) {
        default_binding(object);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        binding(object, None, self.namespaced)
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        binding(new, Some(old), self.namespaced)
    }

    fn permit<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        new: &'a Value,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(self.guard.binding(ctx, new, old))
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        binding_row(object, now)
    }
}

/// Fills in API groups of the role reference and the subjects.
fn default_binding(object: &mut Value) {
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
fn binding(object: &Value, old: Option<&Value>, namespaced: bool) -> ErrorList {
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
fn binding_row(object: &Value, now: jiff::Timestamp) -> Vec<Value> {
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
        table::name(object),
        format!("{}/{}", role.text("kind"), role.text("name")).into(),
        table::age(object, now),
        of("User").into(),
        of("Group").into(),
        of("ServiceAccount").into(),
    ]
}
