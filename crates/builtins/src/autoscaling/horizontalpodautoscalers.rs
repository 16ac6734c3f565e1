//! HorizontalPodAutoscalers: stored as `v2`, served as `v2` and `v1`.
//!
//! Invariant: `minReplicas` is 0 only where an Object or External metric can tell when pods are needed again.

use super::{
    convert,
    metrics::{self, ApiVersion},
};
use crate::shared::{
    Fields, check, metadata, table,
    value::{ensure_object, object_mut, put, set_default},
};
use kaji_meta::{
    GroupVersion, Path, Status,
    field::{Error, ErrorList},
    semantic_equal,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Reference",
        "string",
        0,
        "scaleTargetRef points to the target resource to scale, and is used to the pods for which metrics should be collected, as well as to actually change the replica count.",
    ),
    Column::new(
        "Targets",
        "string",
        0,
        "metrics contains the specifications for which to use to calculate the desired replica count (the maximum replica count across all metrics will be used).  The desired replica count is calculated multiplying the ratio between the target value and the current value by the current number of pods.  Ergo, metrics used must decrease as the pod count is increased, and vice-versa.  See the individual metric source types for more information about how each type of metric must respond. If not set, the default metric will be set to 80% average CPU utilization.",
    ),
    Column::new(
        "MinPods",
        "string",
        0,
        "minReplicas is the lower limit for the number of replicas to which the autoscaler can scale down.  It defaults to 1 pod.  minReplicas is allowed to be 0 if the alpha feature gate HPAScaleToZero is enabled and at least one Object or External metric is configured.  Scaling is active as long as at least one metric value is available.",
    ),
    Column::new(
        "MaxPods",
        "string",
        0,
        "maxReplicas is the upper limit for the number of replicas to which the autoscaler can scale up. It cannot be less that minReplicas.",
    ),
    Column::new(
        "Replicas",
        "string",
        0,
        "currentReplicas is current number of replicas of pods managed by this autoscaler, as last seen by the autoscaler.",
    ),
    age_column(),
];
/// The longest period of a scaling policy, in seconds.
const MAX_PERIOD: i64 = 1800;
/// The longest stabilisation window, in seconds.
const MAX_WINDOW: i64 = 3600;

struct Autoscalers;

/// The horizontalpodautoscalers resource.
pub fn def() -> ResourceDef {
    let (kind, plural) = ("HorizontalPodAutoscaler", "horizontalpodautoscalers");
    ResourceDef::builtin("autoscaling", "v2", kind, plural, Scope::Namespaced, COLUMNS, Autoscalers)
        .optional_to_start()
        .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
        .short(&["hpa"])
        .category(&["all"])
        .sub(&[SubresourceDef::status()])
        .with_generation()
        .also_version("v1", None)
}

/// Defaults of scaling rules, where a client sets any.
fn default_rules(behavior: &mut Value) {
    let up = json!([
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ]);
    let down = json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]);
    for (field, policies) in [("scaleUp", up), ("scaleDown", down)] {
        let rules = ensure_object(behavior, field);
        if field == "scaleUp" {
            set_default(rules, "stabilizationWindowSeconds", || 0.into());
        }
        set_default(rules, "selectPolicy", || "Max".into());
        set_default(rules, "policies", || policies);
    }
}

fn spec(errs: &mut ErrorList, new: &Value, old: Option<&Value>) {
    let path = Path::new("spec");
    let (min, max) = (new.opt_int("minReplicas"), new.int("maxReplicas"));
    if let Some(n) = min {
        check::not_negative(errs, &path.child("minReplicas"), n);
    }
    let max_path = path.child("maxReplicas");
    if max == 0 {
        errs.push(Error::required(&max_path, "must be set and greater than 0"));
    } else if max < 0 {
        errs.push(Error::invalid(&max_path, max, "must be greater than or equal to 1"));
    }
    if min.is_some_and(|n| max < n) {
        errs.push(Error::invalid(&max_path, max, "must be greater than or equal to `minReplicas`"));
    }
    let target = new.at("scaleTargetRef");
    let same = |o: &Value| {
        let o = o.at("scaleTargetRef");
        o.text("apiVersion") == target.text("apiVersion") && o.text("kind") == target.text("kind")
    };
    let version = if old.is_some_and(same) {
        ApiVersion::Any
    } else if target.text("kind") == "ReplicationController" {
        ApiVersion::WellFormed
    } else {
        ApiVersion::WithGroup
    };
    metrics::reference(errs, &path.child("scaleTargetRef"), target, version);
    let malformed = |m: &Value| {
        m.text("type") == "Object"
            && GroupVersion::parse(m.at("object").at("describedObject").text("apiVersion")).is_err()
    };
    let tolerate = old.is_some_and(|o| o.list("metrics").iter().any(malformed));
    let objects = if tolerate { ApiVersion::Any } else { ApiVersion::WellFormed };
    metrics::validate(errs, &path.child("metrics"), new, objects);
    for field in ["scaleUp", "scaleDown"] {
        if let Some(rules) = new.at("behavior").get_field(field) {
            scaling_rules(errs, &path.child("behavior").child(field), rules);
        }
    }
}

fn status(errs: &mut ErrorList, status: &Value) {
    let path = Path::new("status");
    for (i, condition) in status.list("conditions").iter().enumerate() {
        let at = path.child("conditions").index(i);
        check::not_negative_fields(errs, &at, condition, &["observedGeneration"]);
    }
    check::not_negative_fields(errs, &path, status, &["currentReplicas", "desiredReplicas"]);
}

fn scaling_rules(errs: &mut ErrorList, path: &Path, rules: &Value) {
    if let Some(n) = rules.opt_int("stabilizationWindowSeconds") {
        let path = path.child("stabilizationWindowSeconds");
        if n < 0 {
            errs.push(Error::invalid(&path, n, "must be greater than or equal to zero"));
        }
        if n > MAX_WINDOW {
            errs.push(Error::invalid(&path, n, format!("must be less than or equal to {MAX_WINDOW}")));
        }
    }
    if let Some(p) = rules.opt_text("selectPolicy") {
        check::one_of(errs, &path.child("selectPolicy"), p, &["Disabled", "Max", "Min"]);
    }
    let policies = path.child("policies");
    if rules.list("policies").is_empty() {
        errs.push(Error::required(&policies, "must specify at least one Policy"));
    }
    for (i, p) in rules.list("policies").iter().enumerate() {
        let path = policies.index(i);
        check::one_of(errs, &path.child("type"), p.text("type"), &["Percent", "Pods"]);
        check::positive(errs, &path.child("value"), p.int("value"));
        let (period, at) = (p.int("periodSeconds"), path.child("periodSeconds"));
        check::positive(errs, &at, period);
        if period > MAX_PERIOD {
            errs.push(Error::invalid(&at, period, format!("must be less than or equal to {MAX_PERIOD}")));
        }
    }
    check::not_negative_quantity(errs, &path.child("tolerance"), rules.at("tolerance"));
}

impl Hooks for Autoscalers {
    fn default(&self, version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        set_default(spec, "minReplicas", || 1.into());
        if version != "v2" {
            return;
        }
        if spec.list("metrics").is_empty() {
            put(spec, "metrics", vec![convert::cpu_metric(convert::DEFAULT_CPU_UTILIZATION)]);
        }
        if let Some(b) = object_mut(spec, "behavior") {
            default_rules(b);
        }
    }

    fn convert(&self, object: &mut Value, from: &str, to: &str) -> Result<(), Status> {
        match (from, to) {
            ("v1", "v2") => convert::to_v2(object),
            ("v2", "v1") => convert::to_v1(object),
            _ => {}
        }
        Ok(())
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        convert::drop_annotations(object);
        put(object, "status", json!({"currentMetrics": null, "desiredReplicas": 0}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        spec(&mut errs, object.at("spec"), None);
        errs
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, new: &mut Value, _old: &Value) {
        convert::drop_annotations(new);
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource == "status" {
            status(&mut errs, new.at("status"));
        } else {
            spec(&mut errs, new.at("spec"), Some(old.at("spec")));
        }
        errs
    }

    fn bumps_generation(&self, new: &Value, old: &Value) -> bool {
        !semantic_equal(new.at("spec"), old.at("spec"))
    }

    fn row(&self, version: &str, hpa: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let stored;
        let hpa = if version == "v1" {
            let mut v2 = hpa.clone();
            convert::to_v2(&mut v2);
            stored = v2;
            &stored
        } else {
            hpa
        };
        let spec = hpa.at("spec");
        let target = spec.at("scaleTargetRef");
        vec![
            table::name(hpa),
            format!("{}/{}", target.text("kind"), target.text("name")).into(),
            metrics::cell(hpa).into(),
            spec.opt_int("minReplicas").map_or_else(|| "<unset>".to_owned(), |n| n.to_string()).into(),
            spec.int("maxReplicas").into(),
            hpa.at("status").int("currentReplicas").into(),
            table::age(hpa, now),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, show};
    use expect_test::expect;
    use kaji_resource::Generation;

    fn hpa(change: impl FnOnce(&mut Value)) -> Value {
        let mut h = json!({
            "metadata": {"name": "h", "creationTimestamp": "2026-01-02T03:00:05Z"},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}
        });
        change(&mut h);
        Autoscalers.default("v2", &mut h);
        h
    }

    #[test]
    fn fills_in_defaults_accepts_valid_fields_and_prints_a_row() {
        let w = TestContext::default();
        let h = hpa(|h| h["spec"]["behavior"] = json!({"scaleDown": {"stabilizationWindowSeconds": 60}}));
        assert_eq!(show(&Autoscalers.validate_create(&w.ctx(&h, "", "v2"), &h)), "");
        expect![[r#"{"behavior":{"scaleDown":{"policies":[{"periodSeconds":15,"type":"Percent","value":100}],"selectPolicy":"Max","stabilizationWindowSeconds":60},"scaleUp":{"policies":[{"periodSeconds":15,"type":"Pods","value":4},{"periodSeconds":15,"type":"Percent","value":100}],"selectPolicy":"Max","stabilizationWindowSeconds":0}},"maxReplicas":3,"metrics":[{"resource":{"name":"cpu","target":{"averageUtilization":80,"type":"Utilization"}},"type":"Resource"}],"minReplicas":1,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}"#]]
        .assert_eq(&h["spec"].to_string());
        expect![[r#"["h","Deployment/d","cpu: <unknown>/80%","1",3,0,"4m"]"#]]
            .assert_eq(&Value::from(Autoscalers.row("v2", &h, w.now)).to_string());
    }

    #[test]
    fn rejects_invalid_fields() {
        let w = TestContext::default();
        let bad = hpa(|h| {
            h["spec"] = json!({
                "minReplicas": 0, "maxReplicas": -1, "scaleTargetRef": {"kind": "", "name": "a/b", "apiVersion": "v1"},
                "metrics": [
                    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}},
                    {"type": "Pods", "object": {"metric": {}, "describedObject": {"kind": "K", "name": "n"},
                        "target": {"type": "Value", "value": "0"}}},
                    {"type": "X"}
                ],
                "behavior": {"scaleUp": {"policies": [{"type": "Y", "value": 0, "periodSeconds": 1801}]}}
            });
        });
        expect![[r#"
            spec.maxReplicas: Invalid value: -1: must be greater than or equal to 1
            spec.maxReplicas: Invalid value: -1: must be greater than or equal to `minReplicas`
            spec.scaleTargetRef.kind: Required value
            spec.scaleTargetRef.name: Invalid value: "a/b": may not contain '/'
            spec.scaleTargetRef.apiVersion: Invalid value: "v1": apiVersion must specify API group
            spec.metrics[0].resource.target.averageUtilization: Required value: must set either a target raw value or a target utilization
            spec.metrics[1].object.metric.name: Required value: must specify a metric name
            spec.metrics[1].object.target.value: Invalid value: "0": must be positive
            spec.metrics[1].pods: Required value: must populate information for the given metric source
            spec.metrics[2].type: Unsupported value: "X": supported values: "ContainerResource", "External", "Object", "Pods", "Resource"
            spec.metrics[2].type: Unsupported value: "X": supported values: "ContainerResource", "External", "Object", "Pods", "Resource"
            spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas
            spec.behavior.scaleUp.policies[0].type: Unsupported value: "Y": supported values: "Percent", "Pods"
            spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero
            spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800"#]]
        .assert_eq(&show(&Autoscalers.validate_create(&w.ctx(&bad, "", "v2"), &bad)));
    }

    #[test]
    fn zero_replicas_need_a_metric_from_outside_of_the_pods() {
        let w = TestContext::default();
        let errors = |min: i64, metrics: Value| {
            let h = hpa(|h| {
                h["spec"]["minReplicas"] = min.into();
                h["spec"]["metrics"] = metrics;
            });
            assert_eq!(h["spec"]["minReplicas"], min);
            show(&Autoscalers.validate_create(&w.ctx(&h, "", "v2"), &h))
        };
        let cpu = convert::cpu_metric(80);
        let external = json!({"type": "External", "external": {"metric": {"name": "queue"},
            "target": {"type": "AverageValue", "averageValue": "30"}}});
        let object = json!({"type": "Object", "object": {"metric": {"name": "hits"},
            "describedObject": {"kind": "Service", "name": "s", "apiVersion": "v1"},
            "target": {"type": "Value", "value": "2"}}});
        assert_eq!(errors(0, json!([cpu, external])), "");
        assert_eq!(errors(0, json!([object])), "");
        assert_eq!(
            errors(0, json!([cpu])),
            "spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas"
        );
        assert_eq!(
            errors(-1, json!([object])),
            "spec.minReplicas: Invalid value: -1: must be greater than or equal to 0"
        );
    }

    #[test]
    fn the_generation_follows_the_spec() {
        assert_eq!(def().generation, Generation::Spec);
        let (before, same) = (hpa(|_| ()), hpa(|h| h["metadata"]["labels"] = json!({"a": "b"})));
        assert!(!Autoscalers.bumps_generation(&same, &before));
        let more = hpa(|h| h["spec"]["maxReplicas"] = 4.into());
        assert!(Autoscalers.bumps_generation(&more, &before));
        // What is absent and what is empty mean the same.
        let mut empty = before.clone();
        empty["spec"]["behavior"] = Value::Null;
        assert!(!Autoscalers.bumps_generation(&empty, &before));
    }

    #[test]
    fn rejects_a_status_with_negative_numbers() {
        let w = TestContext::default();
        let old = hpa(|_| ());
        let new = hpa(|h| {
            h["status"] = json!({"currentReplicas": -1, "desiredReplicas": -2, "conditions": [
                {"type": "AbleToScale", "status": "True", "observedGeneration": 1},
                {"type": "ScaledToZero", "status": "False", "observedGeneration": -1}]});
        });
        expect![[r#"
            status.conditions[1].observedGeneration: Invalid value: -1: must be greater than or equal to 0
            status.currentReplicas: Invalid value: -1: must be greater than or equal to 0
            status.desiredReplicas: Invalid value: -2: must be greater than or equal to 0"#]]
        .assert_eq(&show(&Autoscalers.validate_update(&w.ctx(&new, "status", "v2"), &new, &old)));
    }

    #[test]
    fn prints_many_metrics() {
        let h = hpa(|h| {
            h["spec"]["metrics"] = json!([
                {"type": "External", "external": {"target": {"averageValue": "3"}}},
                {"type": "Pods", "pods": {"target": {"averageValue": "500m"}}},
                {"type": "Object", "object": {"target": {"value": "1k"}}}
            ]);
            h["status"] = json!({"currentMetrics": [{}, {"type": "Pods", "pods": {"current": {"averageValue": "0.25"}}}]});
        });
        assert_eq!(metrics::cell(&h), "<unknown>/3 (avg), 250m/500m + 1 more...");
    }
}
