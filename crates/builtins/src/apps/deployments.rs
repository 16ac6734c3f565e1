//! Deployments.

use super::rolling;
use crate::{
    core::pods::{defaults, drop, template},
    shared::{
        Fields, check, metadata, replicas, table,
        value::{default_text, ensure_object, put, set_default},
    },
};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    labels::Selector,
    object, semantic_equal,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Ready", "string", 0, "Number of the pod with ready state"),
    Column::new(
        "Up-to-date",
        "string",
        0,
        "Total number of non-terminating pods targeted by this deployment that have the desired template spec.",
    ),
    Column::new(
        "Available",
        "string",
        0,
        "Total number of available non-terminating pods (ready for at least minReadySeconds) targeted by this deployment.",
    ),
    age_column(),
    table::containers_column(1),
    table::images_column(1),
    table::selector_column(
        "Label selector for pods. Existing ReplicaSets whose pods are selected by this will be the ones affected by this deployment. It must match the pod template's labels.",
    ),
];

struct Deployments;

/// The deployments resource.
pub fn def() -> ResourceDef {
    ResourceDef::builtin("apps", "v1", "Deployment", "deployments", Scope::Namespaced, COLUMNS, Deployments)
        .optional_to_start()
        .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
        .pod_template(&["spec", "template"])
        .short(&["deploy"])
        .category(&["all"])
        .with_generation()
        .sub(&[SubresourceDef::status(), SubresourceDef::scale()])
}

fn spec(errs: &mut ErrorList, spec: &Value) {
    let path = Path::new("spec");
    check::not_negative(errs, &path.child("replicas"), spec.int("replicas"));
    template::validate_replicated(errs, &path, spec);
    strategy(errs, &path.child("strategy"), spec.at("strategy"));
    let numbers = ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"];
    check::not_negative_fields(errs, &path, spec, &numbers);
    if let Some(deadline) = spec.opt_int("progressDeadlineSeconds")
        && deadline <= spec.int("minReadySeconds")
    {
        let path = path.child("progressDeadlineSeconds");
        errs.push(Error::invalid(&path, deadline, "must be greater than minReadySeconds"));
    }
}

fn strategy(errs: &mut ErrorList, path: &Path, strategy: &Value) {
    let rolling = path.child("rollingUpdate");
    match (strategy.text("type"), strategy.get_field("rollingUpdate")) {
        ("Recreate", Some(_)) => {
            errs.push(Error::forbidden(&rolling, "may not be specified when strategy `type` is 'Recreate'"));
        }
        ("Recreate", None) => {}
        ("RollingUpdate", None) => {
            errs.push(Error::required(&rolling, "this should be defaulted and never be nil"));
        }
        ("RollingUpdate", Some(r)) => {
            let (unavailable, surge) = (r.at("maxUnavailable"), r.at("maxSurge"));
            let path = rolling.child("maxUnavailable");
            check::int_or_percent(errs, &path, unavailable);
            check::int_or_percent(errs, &rolling.child("maxSurge"), surge);
            if rolling::is_zero(unavailable) && rolling::is_zero(surge) {
                errs.push(Error::invalid(&path, unavailable.clone(), "may not be 0 when `maxSurge` is 0"));
            }
            check::at_most_100_percent(errs, &path, unavailable);
        }
        (other, rolling) => {
            let shown = rolling::shown(other, rolling, &["maxUnavailable", "maxSurge"]);
            errs.push(Error::not_supported(path, Value::Null, &["Recreate", "RollingUpdate"]).showing(shown));
        }
    }
}

fn status(errs: &mut ErrorList, object: &Value) {
    let path = Path::new("status");
    let s = object.at("status");
    let counters = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    check::not_negative_fields(errs, &path, s, &counters);
    check::not_above_replicas(errs, &path, s, &["updatedReplicas", "readyReplicas", "availableReplicas"]);
    replicas::available_not_above_ready(errs, &path, s, "cannot be greater than readyReplicas");
}

impl Hooks for Deployments {
    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        set_default(spec, "replicas", || 1.into());
        set_default(spec, "revisionHistoryLimit", || 10.into());
        set_default(spec, "progressDeadlineSeconds", || 600.into());
        let strategy = ensure_object(spec, "strategy");
        default_text(strategy, "type", "RollingUpdate");
        if strategy.text("type") == "RollingUpdate" {
            let rolling = ensure_object(strategy, "rollingUpdate");
            set_default(rolling, "maxUnavailable", || "25%".into());
            set_default(rolling, "maxSurge", || "25%".into());
        }
        defaults::template(spec, "template");
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
        drop::of_template(ctx.features, object, &["spec", "template"], None);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        spec(&mut errs, object.at("spec"));
        errs
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource == "status" {
            crate::shared::value::copy_field(ensure_object(new, "metadata"), old.at("metadata"), "labels");
            return;
        }
        drop::of_template(ctx.features, new, &["spec", "template"], Some(old));
        // Annotations are copied to ReplicaSets: their change is a new generation too.
        let annotations = |v: &Value| v.at("metadata").at("annotations").clone();
        if !semantic_equal(new.at("spec"), old.at("spec"))
            || !semantic_equal(&annotations(new), &annotations(old))
        {
            put(ensure_object(new, "metadata"), "generation", object::generation(old) + 1);
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource == "status" {
            status(&mut errs, new);
            check::collision_count(&mut errs, new, old);
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

    fn row(&self, _version: &str, d: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let (spec, status) = (d.at("spec"), d.at("status"));
        let [names, images] = table::containers(spec.at("template").at("spec"));
        let selector = Selector::from_label_selector(spec.at("selector"));
        vec![
            table::name(d),
            format!("{}/{}", status.int("readyReplicas"), spec.int("replicas")).into(),
            status.int("updatedReplicas").into(),
            status.int("availableReplicas").into(),
            table::age(d, now),
            names,
            images,
            selector.map_or_else(|_| "<invalid>".to_owned(), |s| s.to_string()).into(),
        ]
    }

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        match subresource {
            "" => &[&["status"]],
            "status" => &[&["spec"], &["metadata", "labels"]],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, show};
    use expect_test::expect;

    fn deployment(change: impl FnOnce(&mut Value)) -> Value {
        let mut d = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default", "creationTimestamp": "2026-01-02T03:03:05Z"},
            "spec": {
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}
                }
            }
        });
        change(&mut d);
        Deployments.default("v1", &mut d);
        d
    }

    #[test]
    fn defaults_fill_the_strategy() {
        let mut d = deployment(|_| {});
        let again = d.clone();
        Deployments.default("v1", &mut d);
        assert_eq!(again, d);
        d["spec"]["template"].take();
        expect![[r#"{"progressDeadlineSeconds":600,"replicas":1,"revisionHistoryLimit":10,"selector":{"matchLabels":{"app":"web"}},"strategy":{"rollingUpdate":{"maxSurge":"25%","maxUnavailable":"25%"},"type":"RollingUpdate"},"template":null}"#]]
        .assert_eq(&d["spec"].to_string());
    }

    #[test]
    fn rejects_invalid_fields() {
        let w = TestContext::default();
        let good = deployment(|_| {});
        assert_eq!(show(&Deployments.validate_create(&w.ctx(&good, "", "v1"), &good)), "");
        let bad = deployment(|d| {
            d["spec"]["replicas"] = (-1).into();
            d["spec"]["template"]["metadata"]["labels"] = json!({"app": "other"});
            d["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
            d["spec"]["template"]["spec"]["activeDeadlineSeconds"] = 5.into();
            d["spec"]["strategy"] = json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}});
            d["spec"]["minReadySeconds"] = 700.into();
        });
        expect![[r#"
            spec.replicas: Invalid value: -1: must be greater than or equal to 0
            spec.template.metadata.labels: Invalid value: {"app":"other"}: `selector` does not match template `labels`
            spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"
            spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported
            spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "0%": may not be 0 when `maxSurge` is 0
            spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"#]]
        .assert_eq(&show(&Deployments.validate_create(&w.ctx(&bad, "", "v1"), &bad)));
        let empty = deployment(|d| d["spec"] = json!({"strategy": {"type": "X"}}));
        expect![[r#"
            spec.selector: Required value
            spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`
            spec.template.spec.containers: Required value
            spec.strategy: Unsupported value: {"Type":"X","RollingUpdate":null}: supported values: "Recreate", "RollingUpdate""#]]
        .assert_eq(&show(&Deployments.validate_create(&w.ctx(&empty, "", "v1"), &empty)));
        let moved = deployment(|d| {
            d["spec"]["selector"] = json!({"matchLabels": {"a": "b"}});
            d["spec"]["template"]["metadata"]["labels"] = json!({"a": "b"});
        });
        expect![[r#"spec.selector: Invalid value: {"matchLabels":{"a":"b"}}: field is immutable"#]]
            .assert_eq(&show(&Deployments.validate_update(&w.ctx(&good, "", "v1"), &moved, &good)));
    }

    #[test]
    fn annotations_make_a_generation() {
        let w = TestContext::default();
        let mut old = deployment(|_| {});
        old["metadata"]["generation"] = 3.into();
        let mut new = old.clone();
        new["metadata"]["annotations"] = json!({"a": "b"});
        Deployments.prepare_update(&w.ctx(&old, "", "v1"), &mut new, &old);
        assert_eq!(new["metadata"]["generation"], 4);
    }

    #[test]
    fn prints_a_row() {
        let w = TestContext::default();
        let mut d = deployment(|_| {});
        d["status"] = json!({"readyReplicas": 1, "updatedReplicas": 1, "availableReplicas": 1});
        expect![[r#"["web","1/1",1,1,"60s","c","nginx:1","app=web"]"#]]
            .assert_eq(&Value::from(Deployments.row("v1", &d, w.now)).to_string());
    }
}
