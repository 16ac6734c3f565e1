//! ResourceClaimTemplates.

use super::{
    beta_versions,
    permissions::admin_access,
    rules::{GROUP, claim, default_claim, drop_disabled},
};
use crate::shared::{
    check, claim as claim_template, metadata,
    table::{age, name},
    value::Fields,
};
use kaji_meta::{
    Status,
    field::{ErrorList, Path},
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[name_column(), age_column()];

struct Templates;

impl Hooks for Templates {
    fn default(&self, version: &str, object: &mut Value) {
        if let Some(spec) = object.pointer_mut("/spec/spec") {
            default_claim(version, spec);
        }
    }

    fn convert(&self, object: &mut Value, from: &str, to: &str) -> Result<(), Status> {
        if let Some(spec) = object.pointer_mut("/spec/spec") {
            beta_versions::convert_claim(spec, from, to);
        }
        Ok(())
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        if let Some(spec) = object.pointer_mut("/spec/spec") {
            drop_disabled(spec, &Value::Null);
        }
    }

    fn validate_create(&self, ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
        admin_access(&mut errs, ctx, spec.at("spec").at("devices").list("requests"));
        claim_template::template_metadata(&mut errs, &path.child("metadata"), spec.at("metadata"));
        claim(&mut errs, &path.child("spec"), spec.at("spec"));
        errs
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if let Some(spec) = new.pointer_mut("/spec/spec") {
            drop_disabled(spec, old.at("spec").at("spec"));
        }
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        let ty = "io.k8s.api.resource.v1.ResourceClaimTemplateSpec";
        check::immutable_struct(&mut errs, &Path::new("spec"), ty, new.at("spec"), old.at("spec"));
        errs
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![name(object), age(object, now)]
    }
}

/// The definition of ResourceClaimTemplates.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        GROUP,
        "v1",
        "ResourceClaimTemplate",
        "resourceclaimtemplates",
        Scope::Namespaced,
        COLUMNS,
        Templates,
    )
    .metadata_checks(&[metadata::WHOLE, metadata::UPDATE], &[metadata::UPDATE])
    .return_deleted_object()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row, update, update_errors};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn fields_of_features_that_are_off_are_dropped() {
        let of = |derives: bool| {
            let mut sub =
                json!({"name": "b", "deviceClassName": "c", "allocationMode": "ExactCount", "count": 1});
            if derives {
                sub["derivedAttributes"] = json!([{"name": "a/b", "expression": "1"}]);
            }
            json!({"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [{"name": "a", "firstAvailable": [sub]}]}}}})
        };
        let made: Value = serde_json::from_str(&created(&def(), of(true))).unwrap();
        assert_eq!(made, of(false));
        assert_eq!(update(&def(), "", of(true), of(false)), (of(false), String::new()));
        assert_eq!(update(&def(), "", of(true), of(true)), (of(true), String::new()));
    }

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let of = |n: &str| json!({"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [{"name": n, "exactly": {"deviceClassName": "c"}}]}}}});
        assert_eq!(create_errors(&def(), of("a")), "");
        assert!(
            create_errors(&def(), of("A")).starts_with("spec.spec.devices.requests[0].name: Invalid value")
        );
        expect![[r#"spec: Invalid value: {"Spec":{"Devices":{"Requests":[{"Name":"a","Exactly":{"DeviceClassName":"c","Selectors":null,"AllocationMode":"ExactCount","Count":1,"AdminAccess":null,"Tolerations":null,"Capacity":null,"DerivedAttributes":null},"FirstAvailable":null}],"Constraints":null,"Config":null}}}: field is immutable"#]].assert_eq(&update_errors(&def(), "", of("a"), of("b")));
        assert_eq!(row(&def(), &of("a")), "t | <unknown>");
    }

    #[test]
    fn metadata_has_labels_and_annotations_alone() {
        let mut template = json!({"metadata": {"name": "t"}, "spec": {"spec": {"devices": {}}}});
        template["spec"]["metadata"] =
            json!({"labels": {"a": "b"}, "annotations": {"a": "b"}, "generation": 0});
        assert_eq!(create_errors(&def(), template.clone()), "");
        template["spec"]["metadata"] = json!({"uid": "u", "name": "n", "finalizers": ["a/b"], "generation": 1,
            "ownerReferences": [{"kind": "A"}], "deletionGracePeriodSeconds": 0});
        expect![[r#"
            spec.metadata.name: Forbidden: cannot be set
            spec.metadata.uID: Forbidden: cannot be set
            spec.metadata.generation: Forbidden: cannot be set
            spec.metadata.deletionGracePeriodSeconds: Forbidden: cannot be set
            spec.metadata.ownerReferences: Forbidden: cannot be set
            spec.metadata.finalizers: Forbidden: cannot be set"#]]
        .assert_eq(&create_errors(&def(), template));
    }

    #[test]
    fn tolerations_compare_by_default() {
        let request = json!({"name": "a", "firstAvailable": [{"name": "b", "deviceClassName": "c", "tolerations": [{"key": "k"}]}]});
        let template = json!({"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [request,
            {"name": "d", "exactly": {"deviceClassName": "c", "tolerations": [{"key": "k"}, {"operator": "Exists"}]}}]}}}});
        let template: Value = serde_json::from_str(&created(&def(), template)).unwrap();
        let requests = &template["spec"]["spec"]["devices"]["requests"];
        expect![[
            r#"[{"key":"k","operator":"Equal"}] [{"key":"k","operator":"Equal"},{"operator":"Exists"}]"#
        ]]
        .assert_eq(&format!(
            "{} {}",
            requests[0]["firstAvailable"][0]["tolerations"], requests[1]["exactly"]["tolerations"]
        ));
    }
}
