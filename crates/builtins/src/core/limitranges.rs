//! LimitRanges.

use crate::shared::{
    check, created, metadata, rules,
    rules::quantity,
    value::{Fields, ensure_object, list_mut, put},
};
use kaji_meta::{
    Quantity, Random,
    field::{Error, ErrorList, Path},
};
use kaji_quota::names;
use kaji_resource::{Ctx, Hooks, ResourceDef, Scope};
use serde_json::Value;
use std::collections::BTreeSet;

struct LimitRanges;

/// A container's defaults: limits follow the maximum; requests follow limits, then the minimum.
fn default_container(limit: &mut Value) {
    for (to, from) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")] {
        let source = limit.map(from).cloned().unwrap_or_default();
        if source.is_empty() {
            continue;
        }
        let target = ensure_object(limit, to);
        for (k, v) in source {
            if target.get(&k).is_none() {
                put(target, &k, v);
            }
        }
    }
}

fn names(errs: &mut ErrorList, path: &Path, ty: &str, map: &Value) {
    for k in map.as_object().into_iter().flatten().map(|(k, _)| k) {
        let at = path.key(k);
        if ["Pod", "Container"].contains(&ty) {
            rules::container_resource_name(errs, &at, k);
        } else {
            rules::resource_name(errs, &at, k);
        }
    }
}

fn limit_type(errs: &mut ErrorList, path: &Path, ty: &str) {
    let before = errs.len();
    check::qualified_name(errs, path, ty);
    let standard = ["Pod", "Container", "PersistentVolumeClaim"];
    if errs.len() == before && !ty.contains('/') && !standard.contains(&ty) {
        errs.push(Error::invalid(path, ty, "must be a standard limit type or fully qualified"));
    }
}

fn limit_rules(errs: &mut ErrorList, path: &Path, limit: &Value) {
    let ty = limit.text("type");
    let mut fields = vec!["max", "min"];
    if ty == "Pod" {
        for f in ["default", "defaultRequest"] {
            let text = "may not be specified when `type` is 'Pod'";
            rules::frozen(errs, &path.child(f), limit.map(f).is_none_or(|m| m.is_empty()), text);
        }
    } else {
        fields.extend(["default", "defaultRequest"]);
    }
    for f in &fields {
        names(errs, &path.child(f), ty, limit.at(f));
    }
    if ty == "PersistentVolumeClaim" && !limit.at("min").has("storage") && !limit.at("max").has("storage") {
        let text = "either minimum or maximum storage value is required, but neither was provided";
        errs.push(Error::required(&path.child("limits"), text));
    }
    fields.push("maxLimitRequestRatio");
    names(errs, &path.child("maxLimitRequestRatio"), ty, limit.at("maxLimitRequestRatio"));
    let keys: BTreeSet<&String> = fields.iter().filter_map(|f| limit.map(f)).flat_map(|m| m.keys()).collect();
    for k in keys {
        amounts(errs, path, limit, k, ty);
    }
}

fn amounts(errs: &mut ErrorList, path: &Path, limit: &Value, key: &str, ty: &str) {
    let get = |f: &str| limit.at(f).get_field(key).map(quantity);
    let (min, max, ratio) = (get("min"), get("max"), get("maxLimitRequestRatio"));
    let (default, request) = if ty == "Pod" { (None, None) } else { (get("default"), get("defaultRequest")) };
    let mut above = |low: &Option<Quantity>,
                     high: &Option<Quantity>,
                     field: &str,
                     shown: &Option<Quantity>,
                     names: [&str; 2]| {
        if let (Some(l), Some(h), Some(s)) = (low, high, shown)
            && l > h
        {
            let text = format!("{} value {l} is greater than {} value {h}", names[0], names[1]);
            errs.push(Error::invalid(&path.child(field).key(key), s.to_string(), text));
        }
    };
    above(&min, &max, "min", &min, ["min", "max"]);
    above(&min, &request, "defaultRequest", &request, ["min", "default request"]);
    above(&request, &max, "defaultRequest", &request, ["default request", "max"]);
    above(&request, &default, "defaultRequest", &request, ["default request", "default limit"]);
    above(&min, &default, "default", &min, ["min", "default"]);
    above(&default, &max, "default", &max, ["default", "max"]);
    if let Some(r) = &ratio {
        ratio_rules(errs, &path.child("maxLimitRequestRatio").key(key), r, min.as_ref(), max.as_ref());
    }
    if (names::is_hugepages(key) || !names::is_native(key))
        && let (Some(d), Some(r)) = (default, request)
        && d != r
    {
        let text = format!("default value {d} must equal to defaultRequest value {r} in {key}");
        errs.push(Error::invalid(&path.child("defaultRequest").key(key), r.to_string(), text));
    }
}

fn ratio_rules(
    errs: &mut ErrorList,
    path: &Path,
    ratio: &Quantity,
    min: Option<&Quantity>,
    max: Option<&Quantity>,
) {
    if ratio.milli_value() < 1000 {
        errs.push(Error::invalid(path, ratio.to_string(), format!("ratio {ratio} is less than 1")));
    }
    if let (Some(min), Some(max)) = (min, max) {
        let allowed = max.milli_value() as f64 / min.milli_value() as f64;
        if ratio.milli_value() as f64 / 1000.0 > allowed {
            let text = format!("ratio {ratio} is greater than max/min = {allowed:.6}");
            errs.push(Error::invalid(path, ratio.to_string(), text));
        }
    }
}

impl Hooks for LimitRanges {
    fn default(&self, _version: &str, object: &mut Value) {
        if let Some(spec) = object.get_mut("spec") {
            for limit in list_mut(spec, "limits") {
                if limit.text("type") == "Container" {
                    default_container(limit);
                }
                for list in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
                    rules::round_quantities(limit, list);
                }
            }
        }
    }

    fn default_name(&self, random: &dyn Random) -> Option<String> {
        Some(kaji_meta::random::uid(random))
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let (mut errs, mut types) = (vec![], vec![]);
        let path = Path::new("spec").child("limits");
        for (i, limit) in object.at("spec").list("limits").iter().enumerate() {
            let (at, ty) = (path.index(i), limit.text("type"));
            limit_type(&mut errs, &at.child("type"), ty);
            if types.contains(&ty) {
                errs.push(Error::duplicate(&at.child("type"), ty));
            }
            types.push(ty);
            limit_rules(&mut errs, &at, limit);
        }
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        self.validate_create(ctx, new)
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        created::row(object)
    }
}

/// The definition of LimitRanges.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "",
        "v1",
        "LimitRange",
        "limitranges",
        Scope::Namespaced,
        created::COLUMNS,
        LimitRanges,
    )
    .metadata_checks(&[metadata::WHOLE], &[])
    .short(&["limits"])
    .create_on_update()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn fills_in_defaults() {
        expect![[r#"
            {
              "spec": {
                "limits": [
                  {
                    "default": {
                      "cpu": "2"
                    },
                    "defaultRequest": {
                      "cpu": "2",
                      "memory": "1Mi"
                    },
                    "max": {
                      "cpu": "2"
                    },
                    "min": {
                      "memory": "1Mi"
                    },
                    "type": "Container"
                  }
                ]
              }
            }"#]]
        .assert_eq(&created(
            &def(),
            json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}}]}}),
        ));
    }

    #[test]
    fn rejects_invalid_fields() {
        let bad = json!({"spec": {"limits": [
            {"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "1", "foo": "1"}, "default": {"cpu": "1"}},
            {"type": "PersistentVolumeClaim"},
            {"type": "Pod", "maxLimitRequestRatio": {"cpu": "500m"}},
        ]}});
        expect![[r#"
            spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'
            spec.limits[0].max[foo]: Invalid value: "foo": must be a standard resource type or fully qualified
            spec.limits[0].max[foo]: Invalid value: "foo": must be a standard resource for containers
            spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1
            spec.limits[1].limits: Required value: either minimum or maximum storage value is required, but neither was provided
            spec.limits[2].type: Duplicate value: "Pod"
            spec.limits[2].maxLimitRequestRatio[cpu]: Invalid value: "500m": ratio 500m is less than 1"#]]
        .assert_eq(&create_errors(&def(), bad));
    }
}
