//! StorageVersionMigrations.

use crate::shared::{
    check, conditions, rules,
    table::name,
    value::{Fields, put},
};
use kaji_meta::{
    GroupResource,
    field::{Error, ErrorList, Path},
    validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Resource", "string", 0, "GroupResource to migrate"),
    Column::new("Status", "string", 0, "Status of the migration"),
];

struct Migrations;

fn validate(object: &Value) -> ErrorList {
    let (mut errs, r) = (vec![], object.at("spec").at("resource"));
    let path = Path::new("spec").child("resource");
    let (resource, group) = (r.text("resource"), r.text("group"));
    if resource.is_empty() {
        errs.push(Error::required(&path.child("resource"), "resource is required to be set"));
    } else {
        let bad = validation::is_dns1035_label(resource);
        if !bad.is_empty() {
            errs.push(Error::invalid(&path.child("resource"), resource, bad.join(",")));
        }
    }
    let bad = if group.is_empty() { vec![] } else { validation::is_dns1123_subdomain(group) };
    if !bad.is_empty() {
        errs.push(Error::invalid(&path.child("group"), group, bad.join(",")));
    }
    errs
}

fn validate_status(new: &Value, old: &Value) -> ErrorList {
    let (mut errs, status, path) = (vec![], new.at("status"), Path::new("status"));
    let (at, version) = (path.child("conditions"), status.text("resourceVersion"));
    errs.extend(validation::validate_conditions(status.at("conditions"), &at));
    let before = old.at("status").text("resourceVersion");
    if !before.is_empty() && before != version {
        errs.push(Error::invalid(&path.child("resourceVersion"), version, check::IMMUTABLE));
    }
    let is = |v: &Value, ty: &str| conditions::is_true(v.at("status"), ty);
    let mut bad = |text: &str| errs.push(Error::invalid(&at, status.at("conditions").clone(), text));
    if is(new, "Succeeded") && is(new, "Failed") {
        bad("Both success and failed conditions cannot be true at the same time");
    }
    if is(old, "Succeeded") && !is(new, "Succeeded") {
        bad("Success condition cannot be set to false once it is true");
    }
    if is(old, "Failed") && !is(new, "Failed") {
        bad("Failed condition cannot be set to false once it is true");
    }
    errs
}

impl Hooks for Migrations {
    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object)
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource == "status" {
            rules::keep_meta_on_status(new, old);
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        if ctx.subresource == "status" {
            return validate_status(new, old);
        }
        let mut errs = validate(new);
        let ty = "io.k8s.api.storagemigration.v1beta1.StorageVersionMigrationSpec";
        check::immutable_struct(&mut errs, &Path::new("spec"), ty, new.at("spec"), old.at("spec"));
        errs
    }

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        rules::resets_metadata(subresource)
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        let r = object.at("spec").at("resource");
        let resource = GroupResource::new(r.text("group"), r.text("resource")).to_string();
        let known = |c: &&Value| {
            c.text("status") == "True" && ["Running", "Failed", "Succeeded"].contains(&c.text("type"))
        };
        let last = object.at("status").list("conditions").iter().rfind(known);
        vec![name(object), resource.into(), last.map_or("Unknown", |c| c.text("type")).into()]
    }
}

/// The definition of StorageVersionMigrations.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "storagemigration.k8s.io",
        "v1",
        "StorageVersionMigration",
        "storageversionmigrations",
        Scope::Cluster,
        COLUMNS,
        Migrations,
    )
    .conditional_update_only()
    .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors};
    use expect_test::expect;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let of = |r: &str| json!({"metadata": {"name": "m"}, "spec": {"resource": {"group": "apps", "resource": r}}});
        assert_eq!(
            create_errors(&def(), of("")),
            "spec.resource.resource: Required value: resource is required to be set"
        );
        expect![[r#"spec: Invalid value: {"Resource":{"group":"apps","resource":"a"}}: field is immutable"#]]
            .assert_eq(&update_errors(&def(), "", of("a"), of("b")));
        assert_eq!(row(&def(), &of("deployments")), "m | deployments.apps | Unknown");
    }
}
