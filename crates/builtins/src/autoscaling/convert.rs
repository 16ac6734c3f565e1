//! Conversion of HorizontalPodAutoscalers between `v2`, which is stored, and `v1`, which has cpu utilisation only and
//! keeps the rest in annotations.
//!
//! Invariant: converting `v2` to `v1` and back gives the same object.

use crate::shared::{
    Fields,
    value::{copy_field, drop_field, ensure_object, object_mut, put},
};
use serde_json::{Map, Value, json};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
/// The annotations that hold fields of `v2` in `v1`.
const ALL: [&str; 6] = [
    METRICS,
    BEHAVIOR,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
    CURRENT_METRICS,
    CONDITIONS,
];
/// Upstream's default target, in percent.
pub const DEFAULT_CPU_UTILIZATION: i64 = 80;

/// Removes the annotations that stand for fields.
pub fn drop_annotations(hpa: &mut Value) {
    let Some(meta) = object_mut(hpa, "metadata") else { return };
    let Some(a) = object_mut(meta, "annotations") else { return };
    let had = ALL.iter().any(|k| a.has(k));
    ALL.iter().for_each(|k| drop_field(a, k));
    if had && a.as_object().is_some_and(|m| m.is_empty()) {
        drop_field(meta, "annotations");
    }
}

fn is_cpu(metric: &Value) -> bool {
    metric.text("type") == "Resource" && metric.at("resource").text("name") == "cpu"
}

/// A metric that aims at a cpu utilisation.
pub fn cpu_metric(percent: i64) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization",
        "averageUtilization": percent}}})
}

/// `v2` to `v1`.
pub fn to_v1(hpa: &mut Value) {
    drop_annotations(hpa);
    let spec = ensure_object(hpa, "spec");
    let metrics = spec.list("metrics").to_vec();
    let behavior = spec.get_field("behavior").cloned();
    drop_field(spec, "metrics");
    drop_field(spec, "behavior");
    let utilization =
        |m: &Value| m.at("resource").at("target").opt_int("averageUtilization").filter(|_| is_cpu(m));
    if let Some(n) = metrics.iter().find_map(utilization) {
        put(spec, "targetCPUUtilizationPercentage", n);
    }
    let others: Vec<Value> =
        metrics.iter().filter(|m| utilization(m).is_none()).map(|m| metric_to_v1(m, &SPECS)).collect();
    let status = ensure_object(hpa, "status");
    let current = status.list("currentMetrics").to_vec();
    let conditions = status.list("conditions").to_vec();
    drop_field(status, "currentMetrics");
    drop_field(status, "conditions");
    let seen = |m: &Value| m.at("resource").at("current").opt_int("averageUtilization").filter(|_| is_cpu(m));
    if let Some(n) = current.iter().rev().find_map(seen) {
        put(status, "currentCPUUtilizationPercentage", n);
    }
    let mut note = |key: &str, value: Option<Value>| {
        if let Some(v) = value {
            let mut text = String::new();
            write_in_order(&mut text, &v);
            put(ensure_object(ensure_object(hpa, "metadata"), "annotations"), key, text);
        }
    };
    let list = |l: Vec<Value>| (!l.is_empty()).then_some(Value::Array(l));
    note(METRICS, list(others));
    note(CURRENT_METRICS, list(current.iter().map(|m| metric_to_v1(m, &STATUSES)).collect()));
    note(BEHAVIOR, behavior.map(|b| behavior_to_go(&b)));
    note(CONDITIONS, list(conditions));
}

/// The fields in annotations, in the order in which Go writes those of each of the types there.
const IN_ORDER: [&str; 40] = [
    "ScaleUp",
    "ScaleDown",
    "StabilizationWindowSeconds",
    "SelectPolicy",
    "Policies",
    "Tolerance",
    "Type",
    "Value",
    "PeriodSeconds",
    "type",
    "status",
    "lastTransitionTime",
    "reason",
    "message",
    "observedGeneration",
    "object",
    "pods",
    "resource",
    "containerResource",
    "external",
    "target",
    "kind",
    "metricName",
    "metricSelector",
    "name",
    "apiVersion",
    "targetAverageUtilization",
    "currentAverageUtilization",
    "targetValue",
    "currentValue",
    "targetAverageValue",
    "currentAverageValue",
    "container",
    "selector",
    "averageValue",
    "matchLabels",
    "matchExpressions",
    "key",
    "operator",
    "values",
];

/// Appends a value with its fields as [`IN_ORDER`]; labels stay sorted.
fn write_in_order(out: &mut String, value: &Value) {
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> = map.iter().collect();
            members
                .sort_by_key(|(name, _)| IN_ORDER.iter().position(|n| n == name).unwrap_or(IN_ORDER.len()));
            out.push('{');
            for (i, (name, member)) in members.into_iter().enumerate() {
                out.push_str(if i == 0 { "" } else { "," });
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                match name.as_str() {
                    "matchLabels" => out.push_str(&member.to_string()),
                    _ => write_in_order(out, member),
                }
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { "," });
                write_in_order(out, item);
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// `v1` to `v2`.
pub fn to_v2(hpa: &mut Value) {
    let annotations = hpa.at("metadata").at("annotations").clone();
    let parsed = |key: &str| -> Option<Value> { serde_json::from_str(annotations.opt_text(key)?).ok() };
    let items = |key: &str| parsed(key).and_then(|v| v.as_array().cloned());
    let spec = ensure_object(hpa, "spec");
    let target = spec.opt_int("targetCPUUtilizationPercentage");
    drop_field(spec, "targetCPUUtilizationPercentage");
    let mut metrics: Vec<Value> =
        items(METRICS).unwrap_or_default().iter().map(|m| metric_to_v2(m, &SPECS)).collect();
    metrics.extend(target.map(cpu_metric));
    if metrics.is_empty() {
        metrics.push(cpu_metric(DEFAULT_CPU_UTILIZATION));
    }
    put(spec, "metrics", metrics);
    let behavior = parsed(BEHAVIOR).map(|b| behavior_from_go(&b));
    if let Some(b) = behavior.filter(|b| b.as_object().is_some_and(|m| !m.is_empty())) {
        put(spec, "behavior", b);
    }
    let status = ensure_object(hpa, "status");
    let current = status.opt_int("currentCPUUtilizationPercentage");
    drop_field(status, "currentCPUUtilizationPercentage");
    let seen = items(CURRENT_METRICS).map(|l| l.iter().map(|m| metric_to_v2(m, &STATUSES)).collect());
    let from_field = current.map(|n| {
        vec![json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": n}}})]
    });
    if let Some(list) = seen.or(from_field) {
        put(status, "currentMetrics", list);
    }
    if let Some(list) = items(CONDITIONS) {
        put(status, "conditions", list);
    }
    drop_annotations(hpa);
}

/// How the two versions name things: of specs (what is aimed at) and of statuses (what is).
struct Names {
    /// `target` or `current`
    inner: &'static str,
    value: &'static str,
    average_value: &'static str,
    utilization: &'static str,
    /// Specs have the type of the target, statuses do not.
    typed: bool,
}

const SPECS: Names = Names {
    inner: "target",
    value: "targetValue",
    average_value: "targetAverageValue",
    utilization: "targetAverageUtilization",
    typed: true,
};
const STATUSES: Names = Names {
    inner: "current",
    value: "currentValue",
    average_value: "currentAverageValue",
    utilization: "currentAverageUtilization",
    typed: false,
};
const SOURCES: [&str; 5] = ["object", "pods", "resource", "containerResource", "external"];

impl Names {
    /// Objects call their average without a prefix.
    fn average_of(&self, source: &str) -> &'static str {
        if source == "object" { "averageValue" } else { self.average_value }
    }

    /// `v1` has no pointer there: an absent quantity is 0.
    fn zero_of(&self, source: &str) -> Option<&'static str> {
        match (source, self.typed) {
            ("object", _) | ("external", false) => Some(self.value),
            ("pods", _) | ("resource" | "containerResource", false) => Some(self.average_value),
            _ => None,
        }
    }
}

fn metric_to_v1(metric: &Value, names: &Names) -> Value {
    let mut out = Map::new();
    out.insert("type".into(), metric.text("type").into());
    for source in SOURCES {
        let Some(s) = metric.get_field(source) else { continue };
        let mut v = json!({});
        for f in ["name", "container"] {
            copy_field(&mut v, s, f);
        }
        if let Some(m) = s.get_field("metric") {
            put(&mut v, "metricName", m.text("name"));
            let selector = if source == "external" { "metricSelector" } else { "selector" };
            if let Some(s) = m.get_field("selector") {
                put(&mut v, selector, s.clone());
            }
        }
        if let Some(o) = s.get_field("describedObject") {
            put(&mut v, "target", o.clone());
        }
        let inner = s.at(names.inner);
        for (from, to) in [
            ("value", names.value),
            ("averageValue", names.average_of(source)),
            ("averageUtilization", names.utilization),
        ] {
            if let Some(q) = inner.get_field(from) {
                put(&mut v, to, q.clone());
            }
        }
        if let Some(f) = names.zero_of(source)
            && !v.has(f)
        {
            put(&mut v, f, "0");
        }
        out.insert(source.into(), v);
    }
    Value::Object(out)
}

fn metric_to_v2(metric: &Value, names: &Names) -> Value {
    let mut out = Map::new();
    out.insert("type".into(), metric.text("type").into());
    for source in SOURCES {
        let Some(s) = metric.get_field(source) else { continue };
        let mut v = json!({});
        for f in ["name", "container"] {
            copy_field(&mut v, s, f);
        }
        if matches!(source, "object" | "pods" | "external") {
            let mut m = json!({"name": s.text("metricName")});
            let selector = if source == "external" { "metricSelector" } else { "selector" };
            if let Some(s) = s.get_field(selector) {
                put(&mut m, "selector", s.clone());
            }
            put(&mut v, "metric", m);
        }
        if source == "object" {
            put(&mut v, "describedObject", s.at("target").clone());
        }
        let mut inner = json!({});
        for (to, from) in [
            ("value", names.value),
            ("averageValue", names.average_of(source)),
            ("averageUtilization", names.utilization),
        ] {
            let zero = || names.typed && source == "object" && to == "value" && s.text(from) == "0";
            // A zero that v1 had to write is no target if there is an average.
            if let Some(q) = s.get_field(from).filter(|_| !(zero() && s.has("averageValue"))) {
                put(&mut inner, to, q.clone());
            }
        }
        if names.typed {
            let ty = target_type(source, &inner);
            put(&mut inner, "type", ty);
        }
        put(&mut v, names.inner, inner);
        out.insert(source.into(), v);
    }
    Value::Object(out)
}

fn target_type(source: &str, target: &Value) -> &'static str {
    match source {
        "resource" | "containerResource" if target.has("averageUtilization") => "Utilization",
        "object" if !target.has("averageValue") => "Value",
        "external" if target.has("value") => "Value",
        _ => "AverageValue",
    }
}

fn rename(key: &str, case: fn(char) -> char) -> String {
    let mut chars = key.chars();
    chars.next().map(case).into_iter().chain(chars).collect()
}

fn rename_all(v: &Value, case: fn(char) -> char) -> Value {
    match v {
        Value::Object(m) => m
            .iter()
            .filter(|(_, v)| !v.is_null())
            .map(|(k, v)| (rename(k, case), rename_all(v, case)))
            .collect(),
        Value::Array(a) => a.iter().map(|v| rename_all(v, case)).collect(),
        other => other.clone(),
    }
}

/// The annotation holds upstream's internal type: its JSON has Go's field names and shows what is not set as null.
fn behavior_to_go(behavior: &Value) -> Value {
    let mut out = rename_all(behavior, |c| c.to_ascii_uppercase());
    for rules in ["ScaleUp", "ScaleDown"] {
        match object_mut(&mut out, rules) {
            None => put(&mut out, rules, Value::Null),
            Some(r) => {
                for f in ["StabilizationWindowSeconds", "SelectPolicy", "Policies", "Tolerance"] {
                    if !r.has(f) {
                        put(r, f, Value::Null);
                    }
                }
            }
        }
    }
    out
}

fn behavior_from_go(behavior: &Value) -> Value {
    rename_all(behavior, |c| c.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn v1_keeps_v2_in_annotations() {
        let v2 = json!({
            "metadata": {"name": "h", "annotations": {"a": "b"}},
            "spec": {
                "maxReplicas": 5, "minReplicas": 1,
                "metrics": [
                    cpu_metric(70),
                    {"type": "Object", "object": {"describedObject": {"kind": "Service", "name": "s", "apiVersion": "v1"},
                        "metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "3"}}},
                    {"type": "External", "external": {"metric": {"name": "q", "selector": {"matchLabels": {"a": "b"}}},
                        "target": {"type": "Value", "value": "30"}}},
                    {"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization",
                        "averageUtilization": 60}}},
                    {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c",
                        "target": {"type": "AverageValue", "averageValue": "1"}}}
                ],
                "behavior": {"scaleDown": {"selectPolicy": "Max",
                    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}}
            },
            "status": {
                "observedGeneration": 4, "currentReplicas": 1, "desiredReplicas": 1,
                "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
                    "current": {"averageUtilization": 5, "averageValue": "10m"}}}],
                "conditions": [{"type": "AbleToScale", "status": "True", "observedGeneration": 3}]
            }
        });
        let mut v1 = v2.clone();
        to_v1(&mut v1);
        expect![[r#"
            {
              "metadata": {
                "annotations": {
                  "a": "b",
                  "autoscaling.alpha.kubernetes.io/behavior": "{\"ScaleUp\":null,\"ScaleDown\":{\"StabilizationWindowSeconds\":null,\"SelectPolicy\":\"Max\",\"Policies\":[{\"Type\":\"Percent\",\"Value\":100,\"PeriodSeconds\":15}],\"Tolerance\":null}}",
                  "autoscaling.alpha.kubernetes.io/conditions": "[{\"type\":\"AbleToScale\",\"status\":\"True\",\"observedGeneration\":3}]",
                  "autoscaling.alpha.kubernetes.io/current-metrics": "[{\"type\":\"Resource\",\"resource\":{\"name\":\"cpu\",\"currentAverageUtilization\":5,\"currentAverageValue\":\"10m\"}}]",
                  "autoscaling.alpha.kubernetes.io/metrics": "[{\"type\":\"Object\",\"object\":{\"target\":{\"kind\":\"Service\",\"name\":\"s\",\"apiVersion\":\"v1\"},\"metricName\":\"m\",\"targetValue\":\"0\",\"averageValue\":\"3\"}},{\"type\":\"External\",\"external\":{\"metricName\":\"q\",\"metricSelector\":{\"matchLabels\":{\"a\":\"b\"}},\"targetValue\":\"30\"}},{\"type\":\"Resource\",\"resource\":{\"name\":\"memory\",\"targetAverageUtilization\":60}},{\"type\":\"ContainerResource\",\"containerResource\":{\"name\":\"cpu\",\"targetAverageValue\":\"1\",\"container\":\"c\"}}]"
                },
                "name": "h"
              },
              "spec": {
                "maxReplicas": 5,
                "minReplicas": 1,
                "targetCPUUtilizationPercentage": 70
              },
              "status": {
                "currentCPUUtilizationPercentage": 5,
                "currentReplicas": 1,
                "desiredReplicas": 1,
                "observedGeneration": 4
              }
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&v1).unwrap());
        to_v2(&mut v1);
        // The cpu metric comes last on the way back, as upstream has it.
        let mut want = v2;
        want["spec"]["metrics"].as_array_mut().unwrap().rotate_left(1);
        assert_eq!(v1, want);
    }

    #[test]
    fn v1_without_a_target_has_the_default() {
        let mut v1 = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 5}});
        to_v2(&mut v1);
        assert_eq!(v1["spec"]["metrics"], json!([cpu_metric(80)]));
    }
}
