//! ReplicaSets.

use crate::{
    core::pods::{defaults, drop, template},
    shared::{
        Fields, check, metadata, replicas, table,
        value::{ensure_object, put, set_default},
    },
};
use kaji_meta::{Path, field::ErrorList};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Desired",
        "integer",
        0,
        "Replicas is the number of desired pods. This is a pointer to distinguish between explicit zero and unspecified. Defaults to 1. More info: https://kubernetes.io/docs/concepts/workloads/controllers/replicaset",
    ),
    Column::new(
        "Current",
        "integer",
        0,
        "Replicas is the most recently observed number of non-terminating pods. More info: https://kubernetes.io/docs/concepts/workloads/controllers/replicaset",
    ),
    Column::new(
        "Ready",
        "integer",
        0,
        "The number of non-terminating pods targeted by this ReplicaSet with a Ready Condition.",
    ),
    age_column(),
    table::containers_column(1),
    table::images_column(1),
    table::selector_column(
        "Selector is a label query over pods that should match the replica count. Label keys and values that must match in order to be controlled by this replica set. It must match the pod template's labels. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors",
    ),
];

struct ReplicaSets;

/// The replicasets resource.
pub fn def() -> ResourceDef {
    ResourceDef::builtin("apps", "v1", "ReplicaSet", "replicasets", Scope::Namespaced, COLUMNS, ReplicaSets)
        .optional_to_start()
        .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
        .pod_template(&["spec", "template"])
        .short(&["rs"])
        .category(&["all"])
        .with_generation()
        .sub(&[SubresourceDef::status(), SubresourceDef::scale()])
}

fn spec(errs: &mut ErrorList, spec: &Value) {
    let path = Path::new("spec");
    check::not_negative(errs, &path.child("replicas"), spec.int("replicas"));
    check::not_negative_fields(errs, &path, spec, &["minReadySeconds"]);
    template::validate_replicated(errs, &path, spec);
}

impl Hooks for ReplicaSets {
    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        set_default(spec, "replicas", || 1.into());
        defaults::template(spec, "template");
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({"replicas": 0}));
        drop::of_template(ctx.features, object, &["spec", "template"], None);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        spec(&mut errs, object.at("spec"));
        errs
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource.is_empty() {
            drop::of_template(ctx.features, new, &["spec", "template"], Some(old));
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource == "status" {
            replicas::status(&mut errs, new);
            return errs;
        }
        spec(&mut errs, new.at("spec"));
        let path = Path::new("spec").child("selector");
        check::immutable_selector(
            &mut errs,
            &path,
            new.at("spec").at("selector"),
            old.at("spec").at("selector"),
        );
        errs
    }

    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        template::warn_workload(ctx, new, old)
    }

    fn row(&self, _version: &str, rs: &Value, now: jiff::Timestamp) -> Vec<Value> {
        replicas::row(rs, table::selector(rs.at("spec").at("selector")), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, show};
    use expect_test::expect;

    #[test]
    fn fills_in_defaults_rejects_invalid_fields_and_prints_a_row() {
        let w = TestContext::default();
        let mut rs = json!({
            "metadata": {"name": "rs", "creationTimestamp": "2026-01-02T00:04:05Z"},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [{"name": "x", "image": "i:1"}, {"name": "y", "image": "j:1"}]}}
            }
        });
        ReplicaSets.default("v1", &mut rs);
        ReplicaSets.prepare_create(&w.ctx(&rs.clone(), "", "v1"), &mut rs);
        assert_eq!(rs["spec"]["replicas"], 1);
        assert_eq!(show(&ReplicaSets.validate_create(&w.ctx(&rs, "", "v1"), &rs)), "");
        expect![[r#"["rs",1,0,0,"3h","x,y","i:1,j:1","a=b"]"#]]
            .assert_eq(&Value::from(ReplicaSets.row("v1", &rs, w.now)).to_string());
        let mut bad = rs.clone();
        bad["status"] =
            json!({"replicas": 1, "readyReplicas": 2, "availableReplicas": 3, "fullyLabeledReplicas": -1});
        expect![[r#"
            status.fullyLabeledReplicas: Invalid value: -1: must be greater than or equal to 0
            status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas
            status.availableReplicas: Invalid value: 3: cannot be greater than status.replicas
            status.availableReplicas: Invalid value: 3: cannot be greater than readyReplicas"#]]
        .assert_eq(&show(&ReplicaSets.validate_update(&w.ctx(&rs, "status", "v1"), &bad, &rs)));
    }
}
