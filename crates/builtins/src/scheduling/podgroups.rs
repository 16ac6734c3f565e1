//! PodGroups: pods that are scheduled together.

use super::group_rules::{self, GROUP, VERSIONS};
use crate::shared::{
    Fields, check, rules,
    table::{age, name},
    value::{drop_field, ensure_object, put},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Policy",
        "string",
        0,
        "schedulingPolicy defines the scheduling policy for this instance of the PodGroup. Controllers are expected to fill this field by copying it from a PodGroupTemplate.",
    ),
    Column::new("Workload", "string", 0, "Name of the referenced Workload object"),
    Column::new("Status", "string", 0, "Status of the PodGroup"),
    age_column(),
];
/// The condition that says whether the group has been scheduled once.
const SCHEDULED: &str = "PodGroupInitiallyScheduled";

struct PodGroups;

fn reference(errs: &mut ErrorList, path: &Path, reference: &Value) {
    check::required_dns_subdomain(errs, &path.child("workloadName"), reference.text("workloadName"));
    check::required_dns_label(errs, &path.child("templateName"), reference.text("templateName"));
}

fn validate(object: &Value) -> ErrorList {
    let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
    if spec.has("workloadRef") {
        reference(&mut errs, &path.child("workloadRef"), spec.at("workloadRef"));
    }
    group_rules::validate(&mut errs, &path, spec);
    errs
}

fn validate_status(object: &Value) -> ErrorList {
    let (path, status) = (Path::new("status"), object.at("status"));
    let mut errs = validation::validate_conditions(status.at("conditions"), &path.child("conditions"));
    let claims = object.at("spec").list("resourceClaims");
    for (i, made) in status.list("resourceClaimStatuses").iter().enumerate() {
        let name = made.text("name");
        if !claims.iter().any(|claim| claim.text("name") == name) {
            let at = path.child("resourceClaimStatuses").index(i).child("name");
            errs.push(Error::invalid(&at, name, "must match the name of an entry in `spec.resourceClaims`"));
        }
    }
    errs
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object.at("status").list("conditions").iter().find(|c| c.text("type") == kind)
}

fn status(object: &Value) -> &str {
    match (condition(object, "DisruptionTarget"), condition(object, SCHEDULED)) {
        (Some(target), _) => target.text("reason"),
        (None, Some(scheduled)) if scheduled.text("status") == "True" => "Scheduled",
        (None, Some(_)) => "Unschedulable",
        (None, None) => "Pending",
    }
}

impl Hooks for PodGroups {
    fn default(&self, _version: &str, object: &mut Value) {
        group_rules::default_disruption_mode(ensure_object(object, "spec"));
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
        group_rules::drop_disabled(ensure_object(object, "spec"), None);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object)
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        let old_spec = old.at("spec");
        if ctx.subresource != "status" {
            group_rules::drop_disabled(ensure_object(new, "spec"), Some(old_spec));
            return;
        }
        rules::keep_meta_on_status(new, old);
        let status = ensure_object(new, "status");
        if old_spec.list("resourceClaims").is_empty() && status.has("resourceClaimStatuses") {
            drop_field(status, "resourceClaimStatuses");
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        if ctx.subresource == "status" {
            return validate_status(new);
        }
        let mut errs = validate(new);
        let (path, new, old) = (Path::new("spec"), new.at("spec"), old.at("spec"));
        group_rules::frozen(
            &mut errs,
            &path.child("workloadRef"),
            new.at("workloadRef"),
            old.at("workloadRef"),
        );
        group_rules::validate_update(&mut errs, &path, new, old);
        errs
    }

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        rules::resets_metadata(subresource)
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let spec = object.at("spec");
        let policy = if spec.at("schedulingPolicy").has("gang") { "Gang" } else { "Basic" };
        let workload = match spec.get_field("workloadRef") {
            Some(reference) => reference.text("workloadName"),
            None => "<none>",
        };
        vec![name(object), policy.into(), workload.into(), status(object).into(), age(object, now)]
    }
}

/// The definition of PodGroups.
pub fn def() -> ResourceDef {
    let (stored, other) = VERSIONS;
    ResourceDef::builtin(GROUP, stored, "PodGroup", "podgroups", Scope::Namespaced, COLUMNS, PodGroups)
        .sub(&[SubresourceDef::status()])
        .also_version(other, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row, update_errors};
    use expect_test::expect;

    fn group(spec: Value) -> Value {
        json!({"metadata": {"name": "g", "namespace": "n"}, "spec": spec})
    }

    fn gang(count: i64) -> Value {
        json!({"gang": {"minCount": count}})
    }

    #[test]
    fn created_groups_have_a_mode_and_lose_what_is_disabled() {
        let spec = json!({"schedulingPolicy": gang(3), "schedulingConstraints": {"topology": [{"key": "a"}]},
            "resourceClaims": [{"name": "c"}], "parentCompositePodGroupName": "p"});
        let made: Value = serde_json::from_str(&created(&def(), group(spec))).unwrap();
        assert_eq!(made["spec"], json!({"schedulingPolicy": gang(3), "disruptionMode": {"single": {}}}));
    }

    #[test]
    fn rejects_invalid_fields() {
        let errors = |spec| create_errors(&def(), group(spec));
        assert_eq!(errors(json!({"schedulingPolicy": gang(1)})), "");
        let bad = json!({"schedulingPolicy": {"basic": {}, "gang": {"minCount": 0}}, "priority": 2_000_000_000,
            "disruptionMode": {}, "workloadRef": {"workloadName": "A"}});
        let all = [errors(json!({})), errors(json!({"schedulingPolicy": gang(-1)})), errors(bad)];
        expect![[r#"
            spec.schedulingPolicy: Invalid value: "": must specify one of: `basic`, `gang`
            spec.schedulingPolicy.gang.minCount: Invalid value: -1: must be greater than or equal to 1
            spec.workloadRef.workloadName: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
            spec.workloadRef.templateName: Required value
            spec.schedulingPolicy: Invalid value: "{`basic`, `gang`}": must specify exactly one of: `basic`, `gang`
            spec.schedulingPolicy.gang.minCount: Required value
            spec.disruptionMode: Invalid value: "": must specify one of: `single`, `all`
            spec.priority: Invalid value: 2000000000: must be less than or equal to 1000000000"#]].assert_eq(&all.join("\n"));
    }

    #[test]
    fn only_the_size_of_a_gang_changes() {
        let of = |policy: Value, more: Value| {
            let mut spec = json!({"schedulingPolicy": policy});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            group(spec)
        };
        let none = || json!({});
        let errors = |new, old| update_errors(&def(), "", new, old);
        assert_eq!(errors(of(gang(2), none()), of(gang(3), none())), "");
        let all = [
            errors(of(gang(2), none()), of(json!({"basic": {}}), none())),
            errors(of(json!({"basic": {}}), none()), of(gang(2), none())),
            errors(
                of(
                    gang(2),
                    json!({"priority": 2, "workloadRef": {"workloadName": "w", "templateName": "t"}}),
                ),
                of(gang(2), json!({"disruptionMode": {"all": {}}})),
            ),
        ];
        expect![[r#"
            spec.schedulingPolicy.basic: Invalid value: null: field is immutable
            spec.schedulingPolicy.gang: Invalid value: null: field cannot be set once created
            spec.schedulingPolicy.basic: Invalid value: null: field is immutable
            spec.schedulingPolicy.gang: Invalid value: null: field cannot be cleared once set
            spec.workloadRef: Invalid value: null: field is immutable
            spec.disruptionMode: Invalid value: null: field is immutable
            spec.priority: Invalid value: null: field is immutable"#]]
        .assert_eq(&all.join("\n"));
    }

    #[test]
    fn rows_tell_of_policy_and_status() {
        let of = |conditions: Value| {
            let mut object =
                group(json!({"schedulingPolicy": gang(1), "workloadRef": {"workloadName": "w"}}));
            object["status"] = json!({"conditions": conditions});
            row(&def(), &object)
        };
        let scheduled = |status: &str| json!({"type": SCHEDULED, "status": status});
        let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"});
        let all = [
            row(&def(), &group(json!({"schedulingPolicy": {"basic": {}}}))),
            of(json!([scheduled("True")])),
            of(json!([scheduled("False")])),
            of(json!([scheduled("True"), target])),
        ];
        expect![[r#"
            g | Basic | <none> | Pending | <unknown>
            g | Gang | w | Scheduled | <unknown>
            g | Gang | w | Unschedulable | <unknown>
            g | Gang | w | PreemptionByScheduler | <unknown>"#]]
        .assert_eq(&all.join("\n"));
    }
}
