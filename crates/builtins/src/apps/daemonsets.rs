//! DaemonSets.

use super::rolling;
use crate::{
    core::pods::{defaults, drop, template},
    shared::{
        Fields, check, metadata, table,
        value::{default_text, ensure_object, object_mut, put, set_default},
    },
};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    labels::Selector,
    semantic_equal, validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

/// The annotation that holds the template's generation (the field of that name was removed in `apps/v1`).
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Desired",
        "integer",
        0,
        "The total number of nodes that should be running the daemon pod (including nodes correctly running the daemon pod). More info: https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/",
    ),
    Column::new(
        "Current",
        "integer",
        0,
        "The number of nodes that are running at least 1 daemon pod and are supposed to run the daemon pod. More info: https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/",
    ),
    Column::new(
        "Ready",
        "integer",
        0,
        "numberReady is the number of nodes that should be running the daemon pod and have one or more of the daemon pod running with a Ready Condition.",
    ),
    Column::new("Up-to-date", "integer", 0, "The total number of nodes that are running updated daemon pod"),
    Column::new(
        "Available",
        "integer",
        0,
        "The number of nodes that should be running the daemon pod and have one or more of the daemon pod running and available (ready for at least spec.minReadySeconds)",
    ),
    Column::new(
        "Node Selector",
        "string",
        0,
        "NodeSelector is a selector which must be true for the pod to fit on a node. Selector which must match a node's labels for the pod to be scheduled on that node. More info: https://kubernetes.io/docs/concepts/configuration/assign-pod-node/",
    ),
    age_column(),
    table::containers_column(1),
    table::images_column(1),
    table::selector_column(
        "A label query over pods that are managed by the daemon set. Must match in order to be controlled. It must match the pod template's labels. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors",
    ),
];

struct DaemonSets;

/// The daemonsets resource.
pub fn def() -> ResourceDef {
    ResourceDef::builtin("apps", "v1", "DaemonSet", "daemonsets", Scope::Namespaced, COLUMNS, DaemonSets)
        .optional_to_start()
        .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
        .pod_template(&["spec", "template"])
        .short(&["ds"])
        .category(&["all"])
        .with_generation()
        .sub(&[SubresourceDef::status()])
}

fn template_generation(object: &Value) -> i64 {
    object.at("metadata").at("annotations").text(TEMPLATE_GENERATION).parse().unwrap_or(0)
}

fn set_template_generation(object: &mut Value, n: i64) {
    let annotations = ensure_object(ensure_object(object, "metadata"), "annotations");
    put(annotations, TEMPLATE_GENERATION, n.to_string());
}

fn spec(errs: &mut ErrorList, spec: &Value) {
    let path = Path::new("spec");
    let selector = spec.at("selector");
    errs.extend(validation::validate_label_selector(selector, &path.child("selector")));
    let template_path = path.child("template");
    if let Ok(s) = Selector::from_label_selector(selector) {
        check::selector_matches_template(errs, &template_path, &s, spec.at("template"));
    }
    if !selector.is_null() && check::is_empty_selector(selector) {
        let text = "empty selector is invalid for daemonset";
        errs.push(check::invalid_struct(&path.child("selector"), check::LABEL_SELECTOR, selector, text));
    }
    template::validate(errs, &template_path, spec.at("template"));
    template::only_restarted(errs, &template_path, spec.at("template"), "DaemonSet");
    check::not_negative_fields(errs, &path, spec, &["minReadySeconds"]);
    strategy(errs, &path.child("updateStrategy"), spec.at("updateStrategy"));
    check::not_negative_fields(errs, &path, spec, &["revisionHistoryLimit"]);
}

fn strategy(errs: &mut ErrorList, path: &Path, strategy: &Value) {
    match strategy.text("type") {
        "OnDelete" => {}
        "RollingUpdate" => {
            let path = path.child("rollingUpdate");
            let Some(r) = strategy.get_field("rollingUpdate") else {
                errs.push(Error::required(&path, ""));
                return;
            };
            let (unavailable, surge) = (r.at("maxUnavailable"), r.at("maxSurge"));
            rolling::bounded(errs, &path.child("maxUnavailable"), unavailable);
            rolling::bounded(errs, &path.child("maxSurge"), surge);
            match (rolling::is_zero(unavailable), rolling::is_zero(surge)) {
                (false, false) => {
                    let text = "may not be set when maxUnavailable is non-zero";
                    errs.push(Error::invalid(&path.child("maxSurge"), surge.clone(), text));
                }
                (true, true) => {
                    let text = "cannot be 0 when maxSurge is 0";
                    errs.push(Error::required(&path.child("maxUnavailable"), text));
                }
                _ => {}
            }
        }
        other => {
            let given = strategy.get_field("rollingUpdate");
            let shown = rolling::shown(other, given, &["maxUnavailable", "maxSurge"]);
            errs.push(Error::not_supported(path, Value::Null, &["RollingUpdate", "OnDelete"]).showing(shown));
        }
    }
}

impl Hooks for DaemonSets {
    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        set_default(spec, "revisionHistoryLimit", || 10.into());
        let strategy = ensure_object(spec, "updateStrategy");
        default_text(strategy, "type", "RollingUpdate");
        if strategy.text("type") == "RollingUpdate" {
            let rolling = ensure_object(strategy, "rollingUpdate");
            set_default(rolling, "maxUnavailable", || 1.into());
            set_default(rolling, "maxSurge", || 0.into());
        } else if let Some(rolling) = object_mut(strategy, "rollingUpdate") {
            // Upstream's internal type has no way to leave them out.
            set_default(rolling, "maxUnavailable", || 0.into());
            set_default(rolling, "maxSurge", || 0.into());
        }
        defaults::template(spec, "template");
        // Every object has it, as after upstream's conversion.
        set_template_generation(object, template_generation(object));
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        let counters =
            ["currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"];
        put(
            object,
            "status",
            json!(counters.map(|c| (c, 0)).into_iter().collect::<std::collections::BTreeMap<_, _>>()),
        );
        let generation = template_generation(object).max(1);
        set_template_generation(object, generation);
        drop::of_template(ctx.features, object, &["spec", "template"], None);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        spec(&mut errs, object.at("spec"));
        errs
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if !ctx.subresource.is_empty() {
            // It belongs to the spec.
            set_template_generation(new, template_generation(old));
            return;
        }
        drop::of_template(ctx.features, new, &["spec", "template"], Some(old));
        let changed = !semantic_equal(new.at("spec").at("template"), old.at("spec").at("template"));
        set_template_generation(new, template_generation(old) + i64::from(changed));
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource == "status" {
            let counters = [
                "currentNumberScheduled",
                "numberMisscheduled",
                "desiredNumberScheduled",
                "numberReady",
                "observedGeneration",
                "updatedNumberScheduled",
                "numberAvailable",
                "numberUnavailable",
                "collisionCount",
            ];
            check::not_negative_fields(&mut errs, &Path::new("status"), new.at("status"), &counters);
            check::collision_count(&mut errs, new, old);
            return errs;
        }
        let path = Path::new("spec").child("selector");
        check::immutable_selector(
            &mut errs,
            &path,
            new.at("spec").at("selector"),
            old.at("spec").at("selector"),
        );
        spec(&mut errs, new.at("spec"));
        errs
    }

    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let changed = old.is_none_or(|o| template_generation(o) != template_generation(new));
        if ctx.subresource.is_empty() && changed {
            return template::warn(&Path::new("spec").child("template"), new.at("spec").at("template"));
        }
        vec![]
    }

    fn row(&self, _version: &str, ds: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let (spec, status) = (ds.at("spec"), ds.at("status"));
        let pod = spec.at("template").at("spec");
        let [names, images] = table::containers(pod);
        vec![
            table::name(ds),
            status.int("desiredNumberScheduled").into(),
            status.int("currentNumberScheduled").into(),
            status.int("numberReady").into(),
            status.int("updatedNumberScheduled").into(),
            status.int("numberAvailable").into(),
            table::labels(pod.at("nodeSelector")).into(),
            table::age(ds, now),
            names,
            images,
            table::selector(spec.at("selector")).into(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, show};
    use expect_test::expect;

    fn set() -> Value {
        let mut ds = json!({
            "metadata": {"name": "ds", "creationTimestamp": "2026-01-01T03:04:05Z"},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"os": "linux"},
                    "containers": [{"name": "x", "image": "i:1"}]}}
            }
        });
        DaemonSets.default("v1", &mut ds);
        ds
    }

    #[test]
    fn template_generation_stays_with_the_status() {
        let w = TestContext::default();
        let (mut old, mut new) = (set(), set());
        set_template_generation(&mut old, 3);
        DaemonSets.prepare_update(&w.ctx(&new.clone(), "status", "v1"), &mut new, &old);
        assert_eq!(template_generation(&new), 3);
    }

    #[test]
    fn template_generation_follows_the_template() {
        let w = TestContext::default();
        let mut ds = set();
        DaemonSets.prepare_create(&w.ctx(&ds.clone(), "", "v1"), &mut ds);
        assert_eq!(template_generation(&ds), 1);
        let mut new = ds.clone();
        new["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2".into();
        DaemonSets.prepare_update(&w.ctx(&ds, "", "v1"), &mut new, &ds);
        assert_eq!(template_generation(&new), 2);
        expect![[r#"["ds",0,0,0,0,0,"os=linux","24h","x","i:1","a=b"]"#]]
            .assert_eq(&Value::from(DaemonSets.row("v1", &ds, w.now)).to_string());
    }

    #[test]
    fn what_rolls_updates_has_all_fields() {
        let of = |strategy: Value| {
            let mut ds = json!({"spec": {"updateStrategy": strategy}});
            DaemonSets.default("v1", &mut ds);
            ds["spec"]["updateStrategy"].to_string()
        };
        let shown = [
            json!({}),
            json!({"type": "OnDelete"}),
            json!({"type": "OnDelete", "rollingUpdate": {"maxSurge": "5%"}}),
        ];
        expect![[r#"
            {"rollingUpdate":{"maxSurge":0,"maxUnavailable":1},"type":"RollingUpdate"}
            {"type":"OnDelete"}
            {"rollingUpdate":{"maxSurge":"5%","maxUnavailable":0},"type":"OnDelete"}"#]]
        .assert_eq(&shown.map(of).join("\n"));
    }

    #[test]
    fn rejects_invalid_fields() {
        let w = TestContext::default();
        let mut ds = set();
        assert_eq!(show(&DaemonSets.validate_create(&w.ctx(&ds, "", "v1"), &ds)), "");
        ds["spec"]["updateStrategy"]["rollingUpdate"] = json!({"maxUnavailable": 1, "maxSurge": "101%"});
        ds["spec"]["selector"] = json!({});
        expect![[r#"
            spec.selector: Invalid value: {}: empty selector is invalid for daemonset
            spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: "101%": must not be greater than 100%
            spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: "101%": may not be set when maxUnavailable is non-zero"#]]
        .assert_eq(&show(&DaemonSets.validate_create(&w.ctx(&ds, "", "v1"), &ds)));
    }
}
