//! Metrics of a HorizontalPodAutoscaler (`v2`): validation and the text of the table.

use crate::shared::{
    Fields,
    check::{self, quantity},
    rules::container_resource_name,
};
use kaji_meta::{
    GroupVersion, Path,
    field::{Error, ErrorList},
    validation,
};
use serde_json::Value;

const TYPES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
/// Sources in the order in which upstream validates them.
const SOURCES: [&str; 5] = ["object", "external", "pods", "resource", "containerResource"];

/// What an API version in a reference is held to.
#[derive(Clone, Copy)]
pub enum ApiVersion {
    /// Anything that was stored before.
    Any,
    /// Well-formed.
    WellFormed,
    /// Well-formed, and not of the core group.
    WithGroup,
}

/// A CrossVersionObjectReference.
pub fn reference(errs: &mut ErrorList, path: &Path, r: &Value, version: ApiVersion) {
    for f in ["kind", "name"] {
        let value = r.text(f);
        if value.is_empty() {
            errs.push(Error::required(&path.child(f), ""));
        } else {
            check::each(errs, &path.child(f), value, validation::path_segment_name(value, false));
        }
    }
    let v = r.text("apiVersion");
    let problem = match (version, GroupVersion::parse(v)) {
        (ApiVersion::Any, _) => None,
        (_, Err(e)) => Some(e.to_string()),
        (ApiVersion::WithGroup, Ok(gv)) if gv.group.is_empty() => {
            Some("apiVersion must specify API group".to_owned())
        }
        (_, Ok(_)) => None,
    };
    if let Some(p) = problem {
        errs.push(Error::invalid(&path.child("apiVersion"), v, p));
    }
}

/// `spec.metrics`.
pub fn validate(errs: &mut ErrorList, path: &Path, spec: &Value, objects: ApiVersion) {
    for (i, m) in spec.list("metrics").iter().enumerate() {
        metric(errs, &path.index(i), m, objects);
    }
    let from_outside = |m: &Value| matches!(m.text("type"), "Object" | "External");
    if spec.opt_int("minReplicas") == Some(0) && !spec.list("metrics").iter().any(from_outside) {
        let text = "must specify at least one Object or External metric to support scaling to zero replicas";
        errs.push(Error::forbidden(path, text));
    }
}

fn metric(errs: &mut ErrorList, path: &Path, m: &Value, objects: ApiVersion) {
    let ty = m.text("type");
    if ty.is_empty() {
        errs.push(Error::required(&path.child("type"), "must specify a metric source type"));
    }
    check::one_of(errs, &path.child("type"), ty, &TYPES);
    let present: Vec<&str> = SOURCES.into_iter().filter(|s| m.has(s)).collect();
    if let Some(first) = present.first() {
        source(errs, &path.child(first), first, m.at(first), objects);
    }
    let mut expected = ty.chars();
    let expected: String =
        expected.next().map(|c| c.to_ascii_lowercase()).into_iter().chain(expected).collect();
    if !TYPES.contains(&ty) {
        errs.push(Error::not_supported(&path.child("type"), ty, &TYPES));
    } else if !m.has(&expected) {
        let text = "must populate information for the given metric source";
        errs.push(Error::required(&path.child(&expected), text));
    }
    if present.len() != 1 {
        for other in present.iter().filter(|p| **p != expected) {
            errs.push(Error::forbidden(&path.child(other), "must populate the given metric source only"));
        }
    }
}

fn source(errs: &mut ErrorList, path: &Path, kind: &str, s: &Value, objects: ApiVersion) {
    match kind {
        "object" => reference(errs, &path.child("describedObject"), s.at("describedObject"), objects),
        "resource" | "containerResource" => {
            let (name, at) = (s.text("name"), path.child("name"));
            if name.is_empty() {
                errs.push(Error::required(&at, "must specify a resource name"));
            } else if kind == "containerResource" {
                container_resource_name(errs, &at, name);
            }
            if kind == "containerResource" {
                match s.text("container") {
                    "" => errs.push(Error::required(&path.child("container"), "must specify a container")),
                    c => check::dns_label(errs, &path.child("container"), c),
                }
            }
        }
        _ => {}
    }
    if matches!(kind, "object" | "external" | "pods") {
        let (name, at) = (s.at("metric").text("name"), path.child("metric").child("name"));
        if name.is_empty() {
            errs.push(Error::required(&at, "must specify a metric name"));
        } else {
            check::each(errs, &at, name, validation::path_segment_name(name, false));
        }
    }
    let (t, path) = (s.at("target"), path.child("target"));
    target(errs, &path, t);
    let (value, average, utilization) = (t.has("value"), t.has("averageValue"), t.has("averageUtilization"));
    let (at, text) = match kind {
        "object" if !value && !average => ("averageValue", "must set either a target value or averageValue"),
        "external" if !value && !average => {
            ("averageValue", "must set either a target value for metric or a per-pod target")
        }
        "pods" if !average => ("averageValue", "must specify a positive target averageValue"),
        "resource" | "containerResource" if !utilization && !average => {
            ("averageUtilization", "must set either a target raw value or a target utilization")
        }
        "external" if value && average => {
            let text = "may not set both a target value for metric and a per-pod target";
            errs.push(Error::forbidden(&path.child("value"), text));
            return;
        }
        "resource" | "containerResource" if utilization && average => {
            let text = "may not set both a target raw value and a target utilization";
            errs.push(Error::forbidden(&path.child("averageValue"), text));
            return;
        }
        _ => return,
    };
    errs.push(Error::required(&path.child(at), text));
}

fn target(errs: &mut ErrorList, path: &Path, t: &Value) {
    let ty = t.text("type");
    if ty.is_empty() {
        errs.push(Error::required(&path.child("type"), "must specify a metric target type"));
    }
    if !matches!(ty, "Utilization" | "Value" | "AverageValue") {
        let text = "must be either Utilization, Value, or AverageValue";
        errs.push(Error::invalid(&path.child("type"), ty, text));
    }
    for f in ["value", "averageValue"] {
        if let Some(q) = t.get_field(f).and_then(quantity).filter(|q| q.sign() <= 0) {
            errs.push(Error::invalid(&path.child(f), q.to_string(), "must be positive"));
        }
    }
    if let Some(n) = t.opt_int("averageUtilization").filter(|n| *n < 1) {
        errs.push(Error::invalid(&path.child("averageUtilization"), n, "must be greater than 0"));
    }
}

/// The `Targets` cell: current and target of the first two metrics, and how many more there are.
pub fn cell(hpa: &Value) -> String {
    let specs = hpa.at("spec").list("metrics");
    let statuses = hpa.at("status").list("currentMetrics");
    if specs.is_empty() {
        return "<none>".to_owned();
    }
    let null = Value::Null;
    let shown: Vec<String> =
        specs.iter().enumerate().take(2).map(|(i, m)| one(m, statuses.get(i).unwrap_or(&null))).collect();
    let mut out = shown.join(", ");
    if specs.len() > 2 {
        out.push_str(&format!(" + {} more...", specs.len() - 2));
    }
    out
}

fn one(metric: &Value, status: &Value) -> String {
    let kind = match metric.text("type") {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let (source, current) = (metric.at(kind), status.at(kind).at("current"));
    let target = source.at("target");
    let unknown = || "<unknown>".to_owned();
    let amount = |v: &Value, f: &str| quantity(v.at(f)).map(|q| q.to_string());
    let percent = |v: &Value| v.opt_int("averageUtilization").map(|n| format!("{n}%"));
    let average = amount(target, "averageValue");
    match (kind, average) {
        ("resource" | "containerResource", Some(want)) => {
            format!(
                "{}: {}/{want}",
                source.text("name"),
                amount(current, "averageValue").unwrap_or_else(unknown)
            )
        }
        ("resource" | "containerResource", None) => {
            let want = percent(target).unwrap_or_else(|| "<auto>".to_owned());
            format!("{}: {}/{want}", source.text("name"), percent(current).unwrap_or_else(unknown))
        }
        ("pods", want) => {
            let want = want.unwrap_or_else(|| "0".to_owned());
            format!("{}/{want}", amount(current, "averageValue").unwrap_or_else(unknown))
        }
        (_, Some(want)) => {
            format!("{}/{want} (avg)", amount(current, "averageValue").unwrap_or_else(unknown))
        }
        (_, None) => {
            let want = amount(target, "value").unwrap_or_else(|| "0".to_owned());
            format!("{}/{want}", amount(current, "value").unwrap_or_else(unknown))
        }
    }
}
