//! PodDisruptionBudgets.

use crate::shared::{Fields, check, table, value::put};
use kaji_meta::{
    Path,
    field::ErrorList,
    validation::{self, LabelSelectorOptions},
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Min Available", "string", 0, "The minimum number of pods that must be available."),
    Column::new("Max Unavailable", "string", 0, "The maximum number of pods that may be unavailable."),
    Column::new(
        "Allowed Disruptions",
        "integer",
        0,
        "Calculated number of pods that may be disrupted at this time.",
    ),
    age_column(),
];
/// The counters of the status; Go writes them even when they are zero.
const COUNTERS: [&str; 4] = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];

struct PodDisruptionBudgets;

/// The poddisruptionbudgets resource.
pub fn def() -> ResourceDef {
    let hooks = PodDisruptionBudgets;
    let kind = "PodDisruptionBudget";
    ResourceDef::builtin("policy", "v1", kind, "poddisruptionbudgets", Scope::Namespaced, COLUMNS, hooks)
        .short(&["pdb"])
        .with_generation()
        .named(validation::path_segment_name)
        .conditional_update_only()
        .sub(&[SubresourceDef::status()])
}

fn validate(object: &Value, old: Option<&Value>) -> ErrorList {
    let mut errs = vec![];
    let path = Path::new("spec");
    let spec = object.at("spec");
    let (min, max) = (spec.get_field("minAvailable"), spec.get_field("maxUnavailable"));
    if min.is_some() && max.is_some() {
        let ty = "io.k8s.api.policy.v1.PodDisruptionBudgetSpec";
        errs.push(check::invalid_struct(
            &path,
            ty,
            spec,
            "minAvailable and maxUnavailable cannot be both set",
        ));
    }
    for (field, value) in [("minAvailable", min), ("maxUnavailable", max)] {
        if let Some(v) = value {
            check::int_or_percent(&mut errs, &path.child(field), v);
            check::at_most_100_percent(&mut errs, &path.child(field), v);
        }
    }
    // A selector that was stored with a malformed value may stay.
    let tolerate =
        old.is_some_and(|o| validation::label_selector_has_invalid_label_value(o.at("spec").at("selector")));
    let options = LabelSelectorOptions { allow_invalid_label_value: tolerate, ..Default::default() };
    let selector = path.child("selector");
    errs.extend(validation::validate_label_selector_with(spec.at("selector"), options, &selector));
    if let Some(policy) = spec.opt_text("unhealthyPodEvictionPolicy") {
        let allowed = ["AlwaysAllow", "IfHealthyBudget"];
        check::one_of(&mut errs, &path.child("unhealthyPodEvictionPolicy"), policy, &allowed);
    }
    errs
}

impl Hooks for PodDisruptionBudgets {
    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        let zeros: serde_json::Map<String, Value> =
            COUNTERS.iter().map(|c| ((*c).to_owned(), 0.into())).collect();
        put(object, "status", zeros);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object, None)
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        if ctx.subresource != "status" {
            return validate(new, Some(old));
        }
        let path = Path::new("status");
        let status = new.at("status");
        let mut errs = validation::validate_conditions(status.at("conditions"), &path.child("conditions"));
        check::not_negative_fields(&mut errs, &path, status, &COUNTERS);
        errs
    }

    fn row(&self, _version: &str, b: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let show =
            |f: &str| b.at("spec").get_field(f).map_or_else(|| "N/A".to_owned(), table::int_or_string).into();
        vec![
            table::name(b),
            show("minAvailable"),
            show("maxUnavailable"),
            b.at("status").int("disruptionsAllowed").into(),
            table::age(b, now),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, show};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let w = TestContext::default();
        let b = json!({"metadata": {"name": "b", "creationTimestamp": "2026-01-02T03:00:05Z"},
            "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"a": "b"}}}, "status": {"disruptionsAllowed": 1}});
        assert_eq!(show(&PodDisruptionBudgets.validate_create(&w.ctx(&b, "", "v1"), &b)), "");
        expect![[r#"["b","50%","N/A",1,"4m"]"#]]
            .assert_eq(&Value::from(PodDisruptionBudgets.row("v1", &b, w.now)).to_string());
        let mut bad = b.clone();
        bad["spec"] =
            json!({"minAvailable": "101%", "maxUnavailable": -1, "unhealthyPodEvictionPolicy": "X"});
        expect![[r#"
            spec: Invalid value: {"MinAvailable":"101%","Selector":null,"MaxUnavailable":-1,"UnhealthyPodEvictionPolicy":"X"}: minAvailable and maxUnavailable cannot be both set
            spec.minAvailable: Invalid value: "101%": must not be greater than 100%
            spec.maxUnavailable: Invalid value: -1: must be greater than or equal to 0
            spec.unhealthyPodEvictionPolicy: Unsupported value: "X": supported values: "AlwaysAllow", "IfHealthyBudget""#]]
        .assert_eq(&show(&PodDisruptionBudgets.validate_create(&w.ctx(&b, "", "v1"), &bad)));
    }
}
