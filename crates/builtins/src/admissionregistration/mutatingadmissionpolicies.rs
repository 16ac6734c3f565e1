//! MutatingAdmissionPolicies.

use super::{
    expressions::{compile, match_conditions, policy_env},
    parameters::Guard,
    rules::{GROUP, REINVOCATION_POLICIES, default_match, name_warnings, param_kind_cell, unreserved_name},
    validatingadmissionpolicies::policy,
};
use crate::{
    Deps,
    shared::{
        check, metadata, rules,
        table::{age, name},
        value::{Fields, ensure_object},
    },
};
use kaji_cel::{Env, admission::Returns};
use kaji_meta::{
    Status,
    field::{Error, ErrorList, Path},
};
use kaji_resource::{BoxFuture, Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const KIND: &str = "MutatingAdmissionPolicy";

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Mutations",
        "integer",
        0,
        "Mutation indicates the number of mutations rules defined in this configuration",
    ),
    Column::new(
        "ParamKind",
        "string",
        0,
        "ParamKind specifies the kind of resources used to parameterize this policy",
    ),
    age_column(),
];

struct Policies {
    guard: Guard,
}

fn mutation(errs: &mut ErrorList, path: &Path, m: &Value, env: &Env) {
    let kinds = [
        ("JSONPatch", "jsonPatch", Returns::Patches),
        ("ApplyConfiguration", "applyConfiguration", Returns::Object),
    ];
    let ty = m.text("patchType");
    if ty.is_empty() {
        errs.push(Error::required(&path.child("patchType"), ""));
        return;
    }
    if !kinds.iter().any(|(k, ..)| *k == ty) {
        let valid = ["ApplyConfiguration", "JSONPatch"];
        errs.push(Error::not_supported(&path.child("patchType"), ty, &valid));
        return;
    }
    for (kind, field, returns) in kinds {
        let at = path.child(field);
        if kind != ty {
            if m.has(field) {
                let text = format!("must not be specified when patchType is {ty}");
                errs.push(Error::invalid(&at, format!("{{{field}}}"), text));
            }
        } else if m.has(field) {
            let text = m.at(field).text("expression").trim();
            if text.is_empty() {
                errs.push(Error::required(&at.child("expression"), ""));
            } else {
                compile(errs, &at.child("expression"), env, (text, text), returns);
            }
        } else {
            errs.push(Error::required(&at, format!("must be specified when patchType is {ty}")));
        }
    }
}

fn validate(object: &Value) -> ErrorList {
    let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
    policy(&mut errs, spec, &path);
    for r in spec.at("matchConstraints").list("resourceRules") {
        let at = path.child("matchConstraints").child("resourceRules").child("operations");
        for o in r.strings("operations") {
            check::one_of(&mut errs, &at, o, &["*", "CONNECT", "CREATE", "UPDATE"]);
        }
    }
    let conditions = spec.list("matchConditions");
    match_conditions(&mut errs, &path.child("matchConditions"), conditions, spec.has("paramKind"));
    let env = policy_env(&mut errs, &path.child("variables"), spec, true).making_objects();
    let mutations = spec.list("mutations");
    if mutations.is_empty() {
        errs.push(Error::required(&path.child("mutations"), "mutations must contain at least one item"));
    }
    mutations
        .iter()
        .enumerate()
        .for_each(|(i, m)| mutation(&mut errs, &path.child("mutations").index(i), m, &env));
    let policy = spec.text("reinvocationPolicy");
    check::required_one_of(&mut errs, &path.child("reinvocationPolicy"), policy, REINVOCATION_POLICIES);
    errs
}

impl Hooks for Policies {
    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        rules::default_opt_text(spec, "failurePolicy", "Fail");
        default_match(spec, "matchConstraints");
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = validate(object);
        unreserved_name(&mut errs, object);
        errs
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        validate(new)
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
        Box::pin(self.guard.policy(ctx, new, old))
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let count = object.at("spec").list("mutations").len();
        vec![name(object), count.into(), param_kind_cell(object).into(), age(object, now)]
    }
}

/// The definition of MutatingAdmissionPolicies.
pub fn def(deps: &Deps) -> ResourceDef {
    ResourceDef::builtin(
        GROUP,
        "v1",
        KIND,
        "mutatingadmissionpolicies",
        Scope::Cluster,
        COLUMNS,
        Policies { guard: Guard::new(deps, KIND, false) },
    )
    .metadata_checks(&[metadata::GENERAL_WHOLE], &[])
    .wait_for_caches()
    .with_generation()
    .conditional_update_only()
    .category(&["api-extensions"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, deps, row};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let p = json!({"metadata": {"name": "p"}, "spec": {"reinvocationPolicy": "Never", "matchConstraints": {"resourceRules": [{
            "operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
            "mutations": [{"patchType": "JSONPatch", "applyConfiguration": {}}]}});
        expect![[r#"
            spec.matchConstraints.resourceRules.operations: Unsupported value: "DELETE": supported values: "*", "CONNECT", "CREATE", "UPDATE"
            spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch
            spec.mutations[0].applyConfiguration: Invalid value: "{applyConfiguration}": must not be specified when patchType is JSONPatch"#]]
        .assert_eq(&create_errors(&def(&deps()), p.clone()));
        assert_eq!(row(&def(&deps()), &p), "p | 1 | <unset> | <unknown>");
    }
}
