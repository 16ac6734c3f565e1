//! What bindings of validating and mutating policies share.

use super::{
    parameters::Guard,
    rules::{
        GROUP, default_match, match_resources, name_warnings, param_ref, param_ref_cell, unreserved_name,
    },
};
use crate::{
    Deps,
    shared::{
        check, metadata,
        table::{age, name},
        value::Fields,
    },
};
use kaji_meta::{
    Status,
    field::{Error, ErrorList, Path},
};
use kaji_resource::{BoxFuture, Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

/// The columns of both kinds.
const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "PolicyName",
        "string",
        0,
        "PolicyName indicates the policy definition which the policy binding binded to",
    ),
    Column::new(
        "ParamRef",
        "string",
        0,
        "ParamRef indicates the param resource which sets the configuration param",
    ),
    age_column(),
];

/// The hooks of both kinds.
struct Bindings {
    guard: Guard,
}

fn actions(errs: &mut ErrorList, path: &Path, spec: &Value) {
    let all: Vec<&str> = spec.strings("validationActions").collect();
    for (i, a) in all.iter().enumerate() {
        check::one_of(errs, &path.index(i), a, &["Audit", "Deny", "Warn"]);
        if all[..i].contains(a) {
            errs.push(Error::duplicate(&path.index(i), *a));
        }
    }
    if all.contains(&"Deny") && all.contains(&"Warn") {
        let shown = spec.at("validationActions").clone();
        let text = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errs.push(Error::invalid(path, shown, text));
    }
    if all.is_empty() {
        errs.push(Error::required(path, "at least one validation action is required"));
    }
}

impl Bindings {
    fn validate(&self, object: &Value) -> ErrorList {
        let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
        let policy = spec.text("policyName");
        if policy.is_empty() {
            errs.push(Error::required(&path.child("policyName"), ""));
        } else {
            check::dns_subdomain(&mut errs, &path.child("policyName"), policy);
        }
        param_ref(&mut errs, &path.child("paramRef"), spec.at("paramRef"));
        match_resources(&mut errs, &path.child("matchResources"), spec.at("matchResources"));
        // They have actions for violations.
        if self.guard.validating {
            actions(&mut errs, &path.child("validationActions"), spec);
        }
        errs
    }
}

/// The definition of one of the two kinds.
pub fn def(deps: &Deps, kind: &'static str, plural: &'static str, validating: bool) -> ResourceDef {
    let hooks = Bindings { guard: Guard::new(deps, kind, validating) };
    ResourceDef::builtin(GROUP, "v1", kind, plural, Scope::Cluster, COLUMNS, hooks)
        .metadata_checks(&[metadata::GENERAL_WHOLE], &[])
        .with_generation()
        .wait_for_caches()
        .conditional_update_only()
        .category(&["api-extensions"])
}

impl Hooks for Bindings {
    fn default(&self, _version: &str, object: &mut Value) {
        if let Some(spec) = object.get_mut("spec") {
            default_match(spec, "matchResources");
        }
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = self.validate(object);
        unreserved_name(&mut errs, object);
        errs
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        self.validate(new)
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        name_warnings(new, old)
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
        let policy = object.at("spec").text("policyName");
        vec![name(object), policy.into(), param_ref_cell(object).into(), age(object, now)]
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        admissionregistration::validatingadmissionpolicybindings::def,
        shared::testing::{create_errors, deps, row},
    };
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let b = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "paramRef": {"name": "n", "namespace": "x"},
            "validationActions": ["Deny", "Warn", "Deny"]}});
        expect![[r#"
            spec.paramRef.parameterNotFoundAction: Required value
            spec.validationActions[2]: Duplicate value: "Deny"
            spec.validationActions: Invalid value: ["Deny","Warn","Deny"]: must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"#]]
        .assert_eq(&create_errors(&def(&deps()), b.clone()));
        assert_eq!(row(&def(&deps()), &b), "b | p | x/n | <unknown>");
    }
}
