//! Leases.

use crate::shared::{
    check, metadata, rules,
    table::{age, name},
    value::{Fields, drop_field},
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

/// What only `CoordinatedLeaderElection` has, a feature that upstream has off by default and this server has not: it is dropped,
/// unless the stored lease has it.
const COORDINATED: [&str; 2] = ["strategy", "preferredHolder"];

fn drop_coordinated(lease: &mut Value, old: &Value) {
    let Some(spec) = lease.get_mut("spec") else { return };
    for field in COORDINATED.into_iter().filter(|field| !old.at("spec").has(field)) {
        drop_field(spec, field);
    }
}

impl Hooks for Leases {
    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        drop_coordinated(object, &Value::Null);
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        drop_coordinated(new, old);
    }

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
        .optional_to_start()
        .metadata_checks(&[metadata::GENERAL_UPDATE], &[])
        .acknowledge_when_stored()
        .create_on_update()
        .conditional_update_only()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row, update_errors};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn fields_of_coordinated_leader_election_are_dropped() {
        let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "strategy": "a/b", "preferredHolder": "x"}});
        let created: Value = serde_json::from_str(&created(&def(), lease.clone())).unwrap();
        assert_eq!(created["spec"], json!({"holderIdentity": "me"}));
        let (mut new, mut old) = (lease.clone(), created);
        drop_coordinated(&mut new, &old);
        assert_eq!(new, old);
        old["spec"]["strategy"] = "a/c".into();
        new = lease;
        drop_coordinated(&mut new, &old);
        assert_eq!(new["spec"], json!({"holderIdentity": "me", "strategy": "a/b"}));
    }

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let bad = json!({"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}});
        expect![[r#"
            spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0
            spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0"#]]
        .assert_eq(&create_errors(&def(), bad));
        let stored = json!({"spec": {"preferredHolder": "y"}});
        expect!["spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined"]
            .assert_eq(&update_errors(&def(), "", json!({"spec": {"preferredHolder": "x"}}), stored));
        let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
        assert_eq!(row(&def(), &lease), "l | me | <unknown>");
    }
}
