//! PriorityClasses.

use crate::shared::{
    check, metadata, rules,
    table::{age, name},
    value::Fields,
};
use kaji_meta::{
    GroupResource, Status,
    field::{Error, ErrorList, Path},
    object,
};
use kaji_resource::{
    Column, Ctx, DeleteOptions, DeletionHooks, Hooks, ResourceDef, Scope, age_column, name_column,
};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Value",
        "integer",
        0,
        "value represents the integer value of this priority class. This is the actual priority that pods receive when they have the name of this class in their pod spec.",
    ),
    Column::new(
        "Global-Default",
        "boolean",
        0,
        "globalDefault specifies whether this PriorityClass should be considered as the default priority for pods that do not have any priority class. Only one PriorityClass can be marked as `globalDefault`. However, if more than one PriorityClasses exists with their `globalDefault` field set to true, the smallest value of such global default PriorityClasses will be used as the default priority.",
    ),
    age_column(),
    Column::new(
        "PreemptionPolicy",
        "string",
        0,
        "preemptionPolicy is the Policy for preempting pods with lower priority. One of Never, PreemptLowerPriority. Defaults to PreemptLowerPriority if unset.",
    ),
];

/// The highest priority a user may define; the system's own classes lie above.
pub const HIGHEST_USER_PRIORITY: i64 = 1_000_000_000;
/// The system's own classes and their priorities.
pub const SYSTEM_CLASSES: &[(&str, i64)] =
    &[("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

struct PriorityClasses;

fn system_rule(errs: &mut ErrorList, object: &Value) {
    let name = object::name(object);
    let problem = match SYSTEM_CLASSES.iter().find(|(n, _)| *n == name) {
        None => format!("{name} is not a known system priority class"),
        Some((_, v)) if *v != object.int("value") => format!("value of {name} PriorityClass must be {v}"),
        Some(_) if object.flag("globalDefault") => {
            format!("globalDefault of {name} PriorityClass must be false")
        }
        Some(_) => return,
    };
    let text = format!(
        "priority class names with 'system-' prefix are reserved for system use only. error: {problem}"
    );
    errs.push(Error::forbidden(&Path::new("metadata").child("name"), text));
}

impl Hooks for PriorityClasses {
    fn deletion(&self) -> &dyn DeletionHooks {
        self
    }

    fn default(&self, _version: &str, object: &mut Value) {
        rules::default_opt_text(object, "preemptionPolicy", "PreemptLowerPriority");
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        if object::name(object).starts_with("system-") {
            system_rule(&mut errs, object);
        } else if object.int("value") > HIGHEST_USER_PRIORITY {
            let text = format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}");
            errs.push(Error::forbidden(&Path::new("value"), text));
        }
        if let Some(p) = object.opt_text("preemptionPolicy") {
            check::required_one_of(
                &mut errs,
                &Path::new("preemptionPolicy"),
                p,
                &["PreemptLowerPriority", "Never"],
            );
        }
        errs
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        let same = new.int("value") == old.int("value");
        rules::frozen(&mut errs, &Path::new("value"), same, "may not be changed in an update.");
        let f = "preemptionPolicy";
        check::immutable(&mut errs, &Path::new(f), new.at(f), old.at(f));
        errs
    }

    fn bumps_generation(&self, _new: &Value, _old: &Value) -> bool {
        false
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![
            name(object),
            object.int("value").into(),
            object.flag("globalDefault").into(),
            age(object, now),
            object.text("preemptionPolicy").into(),
        ]
    }
}

impl DeletionHooks for PriorityClasses {
    fn check_delete(&self, _ctx: &Ctx<'_>, object: &Value, options: &DeleteOptions) -> Result<(), Status> {
        let name = object::name(object);
        // Upstream's registry checks single deletions only.
        if !options.of_collection && SYSTEM_CLASSES.iter().any(|(n, _)| *n == name) {
            let gr = GroupResource::new("scheduling.k8s.io", "priorityclasses");
            return Err(Status::forbidden(
                &gr,
                name,
                "this is a system priority class and cannot be deleted",
            ));
        }
        Ok(())
    }
}

/// The definition of PriorityClasses.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "scheduling.k8s.io",
        "v1",
        "PriorityClass",
        "priorityclasses",
        Scope::Cluster,
        COLUMNS,
        PriorityClasses,
    )
    .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
    .short(&["pc"])
    .with_generation()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let of = |name: &str, v: i64| json!({"metadata": {"name": name}, "value": v});
        let all = [
            create_errors(&def(), of("system-node-critical", 2_000_001_000)),
            create_errors(&def(), of("system-x", 1)),
            create_errors(&def(), of("a", 2_000_000_000)),
            update_errors(&def(), "", of("a", 1), of("a", 2)),
        ];
        expect![[r#"

            metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-x is not a known system priority class
            value: Forbidden: maximum allowed value of a user defined priority is 1000000000
            value: Forbidden: may not be changed in an update."#]]
        .assert_eq(&all.join("\n"));
        assert_eq!(row(&def(), &of("a", 1)), "a | 1 | false | <unknown> | ");
    }
}
