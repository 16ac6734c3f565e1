//! ValidatingAdmissionPolicies.

use super::{
    expressions::{compile, match_conditions, policy_env},
    parameters::Guard,
    rules::{
        FAILURE_POLICIES, GROUP, default_match, match_resources, name_warnings, param_kind, param_kind_cell,
        unreserved_name,
    },
};
use crate::{
    Deps,
    shared::{
        check, metadata, rules,
        table::{age, name},
        value::{Fields, ensure_object, put},
    },
};
use kaji_cel::{
    Env,
    admission::{Returns, without_authorizer},
};
use kaji_meta::{
    Status,
    field::{Error, ErrorList, Path},
    object,
};
use kaji_resource::{
    BoxFuture, Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column,
};
use serde_json::{Value, json};

const KIND: &str = "ValidatingAdmissionPolicy";

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Validations",
        "integer",
        0,
        "Validations indicates the number of validation rules defined in this configuration",
    ),
    Column::new(
        "ParamKind",
        "string",
        0,
        "ParamKind specifies the kind of resources used to parameterize this policy",
    ),
    age_column(),
];

const MAX_ANNOTATIONS: usize = 20;
const MAX_VALUE_EXPRESSION: usize = 5 * 1024;

struct Policies {
    guard: Guard,
}

fn validation(errs: &mut ErrorList, path: &Path, v: &Value, (env, messages): (&Env, &Env)) {
    let (text, at) = (v.text("expression"), path.child("expression"));
    if text.trim().is_empty() {
        errs.push(Error::required(&at, "expression is not specified"));
    } else {
        compile(errs, &at, env, (text, text), Returns::Bool);
    }
    let (text, at) = (v.text("messageExpression"), path.child("messageExpression"));
    if !text.trim().is_empty() {
        compile(errs, &at, messages, (text, text), Returns::String);
    }
    for f in ["messageExpression", "message"] {
        let text = v.text(f);
        if !text.is_empty() && text.trim().is_empty() {
            errs.push(Error::invalid(&path.child(f), text, "must be non-empty if specified"));
        } else if f == "message" && text.trim().contains('\n') {
            errs.push(Error::invalid(&path.child(f), text, "must not contain line breaks"));
        }
    }
    if let Some(reason) = v.opt_text("reason") {
        let valid = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
        check::one_of(errs, &path.child("reason"), reason, &valid);
    }
}

fn annotations(errs: &mut ErrorList, path: &Path, object: &Value, env: &Env) {
    let list = object.at("spec").list("auditAnnotations");
    if list.len() > MAX_ANNOTATIONS {
        let text = format!("must not have more than {MAX_ANNOTATIONS} auditAnnotations");
        errs.push(Error::invalid(path, list.to_vec(), text));
    }
    for (i, a) in list.iter().enumerate() {
        let (at, key, text) = (path.index(i), a.text("key"), a.text("valueExpression"));
        let value = text.trim();
        match object::name(object) {
            "" => errs.push(Error::invalid(&at.child("key"), key, "requires metadata.name be non-empty")),
            name => check::qualified_name(errs, &at.child("key"), &format!("{name}/{key}")),
        }
        if value.is_empty() {
            errs.push(Error::required(&at.child("valueExpression"), "valueExpression is not specified"));
        } else if value.len() > MAX_VALUE_EXPRESSION {
            let text = format!("must not exceed {MAX_VALUE_EXPRESSION} bytes in length");
            errs.push(Error::required(&at.child("valueExpression"), text));
        } else {
            compile(errs, &at.child("valueExpression"), env, (value, text), Returns::StringOrNull);
        }
        if list[..i].iter().any(|o| o.text("key") == key) {
            errs.push(Error::duplicate(&at.child("key"), key));
        }
    }
}

/// The rules that both kinds of policies share.
pub(super) fn policy(errs: &mut ErrorList, spec: &Value, path: &Path) {
    match spec.opt_text("failurePolicy") {
        None => errs.push(Error::required(&path.child("failurePolicy"), "")),
        Some(p) => check::one_of(errs, &path.child("failurePolicy"), p, FAILURE_POLICIES),
    }
    if spec.has("paramKind") {
        param_kind(errs, &path.child("paramKind"), spec.at("paramKind"));
    }
    let (at, constraints) = (path.child("matchConstraints"), spec.at("matchConstraints"));
    if constraints.is_null() {
        errs.push(Error::required(&at, ""));
    } else {
        match_resources(errs, &at, constraints);
        if constraints.list("resourceRules").is_empty() {
            errs.push(Error::required(&at.child("resourceRules"), ""));
        }
    }
}

fn validate(object: &Value) -> ErrorList {
    let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
    policy(&mut errs, spec, &path);
    let conditions = spec.list("matchConditions");
    match_conditions(&mut errs, &path.child("matchConditions"), conditions, spec.has("paramKind"));
    let env = policy_env(&mut errs, &path.child("variables"), spec, false);
    if spec.list("validations").is_empty() && spec.list("auditAnnotations").is_empty() {
        for f in ["validations", "auditAnnotations"] {
            let text = "validations or auditAnnotations must contain at least one item";
            errs.push(Error::required(&path.child(f), text));
        }
        return errs;
    }
    let messages = without_authorizer(&env);
    for (i, v) in spec.list("validations").iter().enumerate() {
        validation(&mut errs, &path.child("validations").index(i), v, (&env, &messages));
    }
    annotations(&mut errs, &path.child("auditAnnotations"), object, &env);
    errs
}

fn validate_status(object: &Value) -> ErrorList {
    let (mut errs, status, path) = (vec![], object.at("status"), Path::new("status"));
    let warnings = status.at("typeChecking").list("expressionWarnings");
    for (i, w) in warnings.iter().enumerate() {
        let at = path.child("typeChecking").child("expressionWarnings").index(i);
        check::required(&mut errs, &at.child("warning"), w.text("warning"));
        check::required(&mut errs, &at.child("fieldRef"), w.text("fieldRef"));
    }
    errs.extend(kaji_meta::validation::validate_conditions(
        status.at("conditions"),
        &path.child("conditions"),
    ));
    errs
}

impl Hooks for Policies {
    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        rules::default_opt_text(spec, "failurePolicy", "Fail");
        default_match(spec, "matchConstraints");
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = validate(object);
        unreserved_name(&mut errs, object);
        errs
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource == "status" {
            rules::keep_meta_on_status(new, old);
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        if ctx.subresource == "status" { validate_status(new) } else { validate(new) }
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

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        rules::resets_metadata(subresource)
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let count = object.at("spec").list("validations").len();
        vec![name(object), count.into(), param_kind_cell(object).into(), age(object, now)]
    }
}

/// The definition of ValidatingAdmissionPolicies.
pub fn def(deps: &Deps) -> ResourceDef {
    ResourceDef::builtin(
        GROUP,
        "v1",
        KIND,
        "validatingadmissionpolicies",
        Scope::Cluster,
        COLUMNS,
        Policies { guard: Guard::new(deps, KIND, true) },
    )
    .metadata_checks(&[metadata::GENERAL_WHOLE], &[])
    .wait_for_caches()
    .with_generation()
    .conditional_update_only()
    .category(&["api-extensions"])
    .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, deps, row};
    use expect_test::expect;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let bad = json!({"metadata": {"name": "p"}, "spec": {"paramKind": {"apiVersion": "a/b/c"}, "matchConstraints": {},
            "variables": [{"name": "for"}], "auditAnnotations": [{"key": "k"}]}});
        expect![[r#"
            spec.paramKind.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c
            spec.paramKind.kind: Required value
            spec.matchConstraints.resourceRules: Required value
            spec.variables[0].name: Invalid value: "for": must be a valid CEL identifier
            spec.variables[0].expression: Required value: expression is not specified
            spec.auditAnnotations[0].valueExpression: Required value: valueExpression is not specified"#]]
        .assert_eq(&create_errors(&def(&deps()), bad));
        let p = json!({"metadata": {"name": "p"}, "spec": {"validations": [{}], "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}});
        assert_eq!(row(&def(&deps()), &p), "p | 1 | v1/ConfigMap | <unknown>");
    }
}
