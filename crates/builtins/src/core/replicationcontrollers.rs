//! ReplicationControllers.

use crate::{
    core::pods::{defaults, drop, template},
    shared::{
        Fields, check, metadata, replicas, table,
        value::{ensure_object, put, set_default},
    },
};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    labels::Selector,
};
use kaji_resource::{
    Column, Ctx, GarbageCollectionPolicy, Hooks, ResourceDef, Scope, SelectableField, SubresourceDef,
    age_column, name_column,
};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Desired",
        "integer",
        0,
        "Replicas is the number of desired replicas. This is a pointer to distinguish between explicit zero and unspecified. Defaults to 1. More info: https://kubernetes.io/docs/concepts/workloads/controllers/replicationcontroller#what-is-a-replicationcontroller",
    ),
    Column::new(
        "Current",
        "integer",
        0,
        "Replicas is the most recently observed number of replicas. More info: https://kubernetes.io/docs/concepts/workloads/controllers/replicationcontroller#what-is-a-replicationcontroller",
    ),
    Column::new("Ready", "integer", 0, "The number of ready replicas for this replication controller."),
    age_column(),
    table::containers_column(1),
    table::images_column(1),
    table::selector_column(
        "Selector is a label query over pods that should match the Replicas count. If Selector is empty, it is defaulted to the labels present on the Pod template. Label keys and values that must match in order to be controlled by this replication controller, if empty defaulted to labels on Pod template. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors",
    ),
];

struct ReplicationControllers;

/// The replicationcontrollers resource.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "",
        "v1",
        "ReplicationController",
        "replicationcontrollers",
        Scope::Namespaced,
        COLUMNS,
        ReplicationControllers,
    )
    .optional_to_start()
    .storage_prefix("controllers")
    .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
    .pod_template(&["spec", "template"])
    .with_garbage_collection(GarbageCollectionPolicy::OrphanDependents)
    .short(&["rc"])
    .category(&["all"])
    .with_generation()
    .select(&[SelectableField::new("status.replicas").missing("0")])
    .sub(&[SubresourceDef::status(), SubresourceDef::scale()])
}

fn spec(errs: &mut ErrorList, spec: &Value) {
    let path = Path::new("spec");
    check::not_negative_fields(errs, &path, spec, &["minReadySeconds"]);
    if spec.map("selector").is_none_or(|s| s.is_empty()) {
        errs.push(Error::required(&path.child("selector"), ""));
    }
    match spec.opt_int("replicas") {
        None => errs.push(Error::required(&path.child("replicas"), "")),
        Some(n) => check::not_negative(errs, &path.child("replicas"), n),
    }
    let template_path = path.child("template");
    if !spec.has("template") {
        errs.push(Error::required(&template_path, ""));
        return;
    }
    let selector = Selector::from_map(spec.string_map("selector"));
    let kind = "ReplicationController";
    template::validate_restarted(errs, &template_path, spec.at("template"), Some(&selector), kind);
}

impl Hooks for ReplicationControllers {
    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        set_default(spec, "replicas", || 1.into());
        if !spec.has("template") {
            return;
        }
        defaults::template(spec, "template");
        // Selector and labels follow the template where they are not given.
        let labels = spec.at("template").at("metadata").at("labels").clone();
        if labels.as_object().is_none_or(|l| l.is_empty()) {
            return;
        }
        if spec.map("selector").is_none_or(|s| s.is_empty()) {
            put(spec, "selector", labels.clone());
        }
        if object.at("metadata").map("labels").is_none_or(|l| l.is_empty()) {
            put(ensure_object(object, "metadata"), "labels", labels);
        }
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

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource == "status" {
            replicas::status(&mut errs, new);
        } else {
            spec(&mut errs, new.at("spec"));
        }
        errs
    }

    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        template::warn_workload(ctx, new, old)
    }

    fn row(&self, _version: &str, rc: &Value, now: jiff::Timestamp) -> Vec<Value> {
        replicas::row(rc, table::labels(rc.at("spec").at("selector")), now)
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
        let mut rc = json!({
            "metadata": {"name": "rc", "creationTimestamp": "2026-01-02T03:00:05Z"},
            "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}
        });
        ReplicationControllers.default("v1", &mut rc);
        assert_eq!(rc["spec"]["selector"], json!({"a": "b"}));
        assert_eq!(rc["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(show(&ReplicationControllers.validate_create(&w.ctx(&rc, "", "v1"), &rc)), "");
        expect![[r#"["rc",1,0,0,"4m","c","i:1","a=b"]"#]]
            .assert_eq(&Value::from(ReplicationControllers.row("v1", &rc, w.now)).to_string());
        let mut bad = rc.clone();
        bad["spec"]["selector"] = json!({"a": "c"});
        bad["spec"]["replicas"] = (-1).into();
        bad["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
        expect![[r#"
            spec.replicas: Invalid value: -1: must be greater than or equal to 0
            spec.template.metadata.labels: Invalid value: {"a":"b"}: `selector` does not match template `labels`
            spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always""#]]
        .assert_eq(&show(&ReplicationControllers.validate_create(&w.ctx(&rc, "", "v1"), &bad)));
        bad["spec"] = json!({});
        ReplicationControllers.default("v1", &mut bad);
        expect![[r#"
            spec.selector: Required value
            spec.template: Required value"#]]
        .assert_eq(&show(&ReplicationControllers.validate_create(&w.ctx(&rc, "", "v1"), &bad)));
    }
}
