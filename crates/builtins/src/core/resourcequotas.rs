//! ResourceQuotas.

use crate::shared::{
    check, metadata, rules,
    table::{age, name},
    value::{Fields, put},
};
use kaji_meta::field::{Error, ErrorList, Path};
use kaji_quota::names;
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Request",
        "string",
        0,
        "Request represents a minimum amount of cpu/memory that a container may consume.",
    ),
    Column::new(
        "Limit",
        "string",
        0,
        "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.",
    ),
    age_column(),
];

const POD_SCOPES: &[&str] =
    &["Terminating", "NotTerminating", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity"];
const COMPUTE: &[&str] =
    &["pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];

struct ResourceQuotas;

fn amounts(errs: &mut ErrorList, path: &Path, map: &Value) {
    for (k, v) in map.as_object().into_iter().flatten() {
        let at = path.key(k);
        let mut named = vec![];
        rules::resource_name(&mut named, &at, k);
        if !k.contains('/') && !names::is_standard_for_quota(k) {
            named.push(Error::invalid(&at, k.as_str(), "must be a standard resource for quota"));
        }
        errs.extend(named);
        rules::resource_amount(errs, &at, k, v);
    }
}

fn known_scope(scope: &str) -> bool {
    POD_SCOPES.contains(&scope) || ["BestEffort", "VolumeAttributesClass"].contains(&scope)
}

fn scope_fits(scope: &str, resource: &str) -> bool {
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => ["persistentvolumeclaims", "requests.storage"].contains(&resource),
        s if POD_SCOPES.contains(&s) => COMPUTE.contains(&resource),
        _ => true,
    }
}

fn conflicting(scopes: &BTreeSet<&str>) -> usize {
    let pairs = [["BestEffort", "NotBestEffort"], ["NotTerminating", "Terminating"]];
    pairs.iter().filter(|p| p.iter().all(|s| scopes.contains(s))).count()
}

fn misfits(spec: &Value, scope: &str) -> usize {
    let hard = spec.map("hard").into_iter().flatten().map(|(k, _)| k.as_str());
    hard.filter(|k| names::is_standard_for_quota(k) && !scope_fits(scope, k)).count()
}

fn scopes(errs: &mut ErrorList, spec: &Value) {
    let path = Path::new("spec").child("scopes");
    let mut bad = |text: &str| errs.push(Error::invalid(&path, spec.at("scopes").clone(), text));
    let all: BTreeSet<&str> = spec.strings("scopes").collect();
    for scope in spec.strings("scopes") {
        if !known_scope(scope) {
            bad("unsupported scope");
        }
        (0..misfits(spec, scope)).for_each(|_| bad("unsupported scope applied to resource"));
    }
    (0..conflicting(&all)).for_each(|_| bad("conflicting scopes"));
}

fn selector(errs: &mut ErrorList, spec: &Value) {
    let path = Path::new("spec").child("scopeSelector").child("matchExpressions");
    let mut all = BTreeSet::new();
    for e in spec.at("scopeSelector").list("matchExpressions") {
        let (scope, operator, values) = (e.text("scopeName"), e.text("operator"), e.list("values"));
        if !known_scope(scope) {
            errs.push(Error::invalid(&path.child("scopeName"), scope, "unsupported scope"));
        }
        for _ in 0..misfits(spec, scope) {
            let (ty, shown) = ("io.k8s.api.core.v1.ScopeSelector", spec.at("scopeSelector"));
            errs.push(check::invalid_struct(&path, ty, shown, "unsupported scope applied to resource"));
        }
        let exists_only = scope != "PriorityClass" && scope != "VolumeAttributesClass" && known_scope(scope);
        if exists_only && operator != "Exists" {
            let text = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errs.push(Error::invalid(&path.child("operator"), operator, text));
        }
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let text = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errs.push(Error::required(&path.child("values"), text));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let text = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errs.push(Error::invalid(&path.child("values"), values.to_vec(), text));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => {
                errs.push(Error::invalid(&path.child("operator"), operator, "not a valid selector operator"))
            }
        }
        all.insert(scope);
    }
    for _ in 0..conflicting(&all) {
        errs.push(Error::invalid(&path, spec.at("scopes").clone(), "conflicting scopes"));
    }
}

fn validate_spec(errs: &mut ErrorList, spec: &Value) {
    amounts(errs, &Path::new("spec").child("hard"), spec.at("hard"));
    scopes(errs, spec);
    selector(errs, spec);
}

impl Hooks for ResourceQuotas {
    fn default(&self, _version: &str, object: &mut Value) {
        for (part, list) in [("spec", "hard"), ("status", "hard"), ("status", "used")] {
            if let Some(part) = object.get_mut(part) {
                rules::round_quantities(part, list);
            }
        }
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        validate_spec(&mut errs, object.at("spec"));
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource == "status" {
            for field in ["hard", "used"] {
                amounts(&mut errs, &Path::new("status").child(field), new.at("status").at(field));
            }
            return errs;
        }
        validate_spec(&mut errs, new.at("spec"));
        let set = |v: &Value| v.at("spec").strings("scopes").map(str::to_owned).collect::<BTreeSet<_>>();
        if set(new) != set(old) {
            let shown = new.at("spec").at("scopes").clone();
            errs.push(Error::invalid(&Path::new("spec").child("scopes"), shown, check::IMMUTABLE));
        }
        errs
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let hard = new.at("spec").at("hard");
        let mut all = vec![];
        for resource in
            ["cpu", "memory", "storage", "ephemeral-storage"].into_iter().filter(|_| old.is_none())
        {
            let (mut request, limit) = (format!("requests.{resource}"), format!("limits.{resource}"));
            if !hard.has(&request) && matches!(resource, "cpu" | "memory") {
                resource.clone_into(&mut request);
            }
            if !hard.has(&request) || !hard.has(&limit) {
                continue;
            }
            let (least, most) = (rules::quantity(hard.at(&request)), rules::quantity(hard.at(&limit)));
            if least > most {
                all.push(format!("ResourceQuota {request} ({least}) should be less than {limit} ({most})"));
            }
        }
        all
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let status = object.at("status");
        let used = |k: &str| {
            status.at("used").get(k).map_or_else(|| "0".to_owned(), |v| rules::quantity(v).to_string())
        };
        let (mut requests, mut limits) = (vec![], vec![]);
        for (k, hard) in status.map("hard").into_iter().flatten() {
            let text = format!("{k}: {}/{}", used(k), rules::quantity(hard));
            if k.starts_with("limits.") { limits.push(text) } else { requests.push(text) }
        }
        vec![name(object), requests.join(", ").into(), limits.join(", ").into(), age(object, now)]
    }
}

/// The definition of ResourceQuotas.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "",
        "v1",
        "ResourceQuota",
        "resourcequotas",
        Scope::Namespaced,
        COLUMNS,
        ResourceQuotas,
    )
    .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
    .return_deleted_object()
    .short(&["quota"])
    .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors, warnings};
    use expect_test::expect;

    #[test]
    fn warns_of_requests_above_limits() {
        let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"cpu": "3", "limits.cpu": "2",
            "requests.memory": "2Gi", "limits.memory": "1Gi", "requests.storage": "1Gi", "limits.ephemeral-storage": "1"}}});
        assert_eq!(
            warnings(&def(), &quota),
            "ResourceQuota cpu (3) should be less than limits.cpu (2)\n\
             ResourceQuota requests.memory (2Gi) should be less than limits.memory (1Gi)"
        );
    }

    #[test]
    fn rejects_invalid_fields() {
        let bad = json!({"spec": {"hard": {"foo": "1", "pods": "1500m", "cpu": "1"}, "scopes": ["BestEffort", "NotBestEffort", "x"],
            "scopeSelector": {"matchExpressions": [{"scopeName": "Terminating", "operator": "In"}]}}});
        expect![[r#"
            spec.hard[foo]: Invalid value: "foo": must be a standard resource type or fully qualified
            spec.hard[foo]: Invalid value: "foo": must be a standard resource for quota
            spec.hard[pods]: Invalid value: "1500m": must be an integer
            spec.scopes: Invalid value: ["BestEffort","NotBestEffort","x"]: unsupported scope applied to resource
            spec.scopes: Invalid value: ["BestEffort","NotBestEffort","x"]: unsupported scope
            spec.scopes: Invalid value: ["BestEffort","NotBestEffort","x"]: conflicting scopes
            spec.scopeSelector.matchExpressions.operator: Invalid value: "In": must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity
            spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"#]]
        .assert_eq(&create_errors(&def(), bad));
        assert_eq!(
            update_errors(&def(), "", json!({"spec": {"scopes": ["Terminating"]}}), json!({"spec": {}})),
            r#"spec.scopes: Invalid value: ["Terminating"]: field is immutable"#
        );
    }

    #[test]
    fn prints_a_row() {
        let q = json!({"metadata": {"name": "q"}, "status": {"hard": {"pods": "3", "limits.cpu": "2"}, "used": {"pods": "1"}}});
        assert_eq!(row(&def(), &q), "q | pods: 1/3 | limits.cpu: 0/2 | <unknown>");
    }
}
