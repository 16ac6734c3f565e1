//! Leases.

use crate::shared::{
    check, metadata, rules,
    table::{age, name},
    value::Fields,
};
use kaji_meta::field::{Error, ErrorList, Path};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Holder",
        "string",
        0,
        "holderIdentity contains the identity of the holder of a current lease. If Coordinated Leader Election is used, the holder identity must be equal to the elected LeaseCandidate.metadata.name field.",
    ),
    age_column(),
];

struct Leases;

impl Hooks for Leases {
    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
        if let Some(n) = spec.opt_int("leaseDurationSeconds").filter(|n| *n <= 0) {
            errs.push(Error::invalid(&path.child("leaseDurationSeconds"), n, "must be greater than 0"));
        }
        if let Some(n) = spec.opt_int("leaseTransitions") {
            check::not_negative(&mut errs, &path.child("leaseTransitions"), n);
        }
        let strategy = spec.opt_text("strategy");
        if let Some(s) = strategy {
            // Upstream names the field twice.
            let at = path.child("strategy").child("strategy");
            // Upstream defines one name and accepts any qualified one.
            if s.contains('/') || s.is_empty() {
                check::qualified_name(&mut errs, &at, s);
            } else {
                check::one_of(&mut errs, &at, s, &["OldestEmulationVersion"]);
            }
        }
        let alone = !spec.text("preferredHolder").is_empty() && strategy.unwrap_or("").is_empty();
        rules::frozen(
            &mut errs,
            &path.child("preferredHolder"),
            !alone,
            "may only be specified if `strategy` is defined",
        );
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        self.validate_create(ctx, new)
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![name(object), object.at("spec").text("holderIdentity").into(), age(object, now)]
    }
}

/// The definition of Leases.
pub fn def() -> ResourceDef {
    ResourceDef::builtin("coordination.k8s.io", "v1", "Lease", "leases", Scope::Namespaced, COLUMNS, Leases)
        .metadata_checks(&[metadata::GENERAL_UPDATE], &[])
        .acknowledge_when_stored()
        .create_on_update()
        .conditional_update_only()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let bad =
            json!({"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1, "preferredHolder": "x"}});
        expect![[r#"
            spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0
            spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0
            spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined"#]]
        .assert_eq(&create_errors(&def(), bad));
        let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
        assert_eq!(row(&def(), &lease), "l | me | <unknown>");
    }
}
