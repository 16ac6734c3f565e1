//! DeviceTaintRules.

use super::rules::{GROUP, default_taint, driver, limited, pool, taint};
use crate::{
    Deps,
    shared::{
        check, rules,
        table::{age, name, since},
        value::{Fields, ensure_object, put},
    },
};
use kaji_meta::{
    field::{ErrorList, Path},
    validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Key", "string", 0, "key is the taint key to be applied to a device. Must be a label name."),
    Column::new(
        "Value",
        "string",
        0,
        "value is the taint value corresponding to the taint key. Must be a label value.",
    ),
    Column::new(
        "Effect",
        "string",
        0,
        "effect is the effect of the taint on claims that do not tolerate the taint and through such claims on the pods using them.",
    ),
    Column::new(
        "TimeAdded",
        "string",
        0,
        "timeAdded represents the time at which the taint was added or (only in a DeviceTaintRule) the effect was modified.",
    ),
    age_column(),
];

const MAX_CONDITIONS: usize = 8;

struct Rules {
    deps: Deps,
}

fn validate(object: &Value, old: Option<&Value>) -> ErrorList {
    let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
    let (s, at) = (spec.at("deviceSelector"), path.child("deviceSelector"));
    if let Some(d) = s.opt_text("driver") {
        driver(&mut errs, &at.child("driver"), d);
    }
    if let Some(p) = s.opt_text("pool") {
        pool(&mut errs, &at.child("pool"), p);
    }
    if let Some(d) = s.opt_text("device") {
        check::dns_label(&mut errs, &at.child("device"), d);
    }
    taint(&mut errs, &path.child("taint"), spec.at("taint"), old.map(|o| o.at("spec").at("taint")));
    errs
}

impl Hooks for Rules {
    fn default(&self, _version: &str, object: &mut Value) {
        if let Some(t) = object.pointer_mut("/spec/taint").filter(|t| t.is_object()) {
            default_taint(t, self.deps.clock.now());
        }
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object, None)
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource == "status" {
            rules::keep_meta_on_status(new, old);
            return;
        }
        let before = old.at("spec").at("taint");
        let taint = ensure_object(ensure_object(new, "spec"), "taint");
        // A new effect counts from now on.
        if taint.text("effect") != before.text("effect") && taint.at("timeAdded") == before.at("timeAdded") {
            put(taint, "timeAdded", kaji_meta::Time::new(ctx.now).to_string());
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        if ctx.subresource != "status" {
            return validate(new, Some(old));
        }
        let (path, status) = (Path::new("status").child("conditions"), new.at("status"));
        let mut errs = validation::validate_conditions(status.at("conditions"), &path);
        limited(&mut errs, &path, status.list("conditions"), MAX_CONDITIONS);
        errs
    }

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        rules::resets_metadata(subresource)
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let taint = object.at("spec").at("taint");
        let added = taint.opt_text("timeAdded").map_or_else(String::new, |t| since(Some(t), now));
        vec![
            name(object),
            taint.text("key").into(),
            taint.text("value").into(),
            taint.text("effect").into(),
            added.into(),
            age(object, now),
        ]
    }
}

/// The definition of DeviceTaintRules.
pub fn def(deps: &Deps) -> ResourceDef {
    let hooks = Rules { deps: deps.clone() };
    ResourceDef::builtin(GROUP, "v1", "DeviceTaintRule", "devicetaintrules", Scope::Cluster, COLUMNS, hooks)
        .with_generation()
        .conditional_update_only()
        .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, deps, row};

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let def = def(&deps());
        let rule = json!({"metadata": {"name": "r"}, "spec": {"taint": {"key": "k", "effect": "NoExecute"}}});
        assert_eq!(create_errors(&def, rule.clone()), "");
        let made: Value = serde_json::from_str(&created(&def, rule)).unwrap();
        assert_eq!(made["spec"]["taint"]["timeAdded"], "2026-01-02T03:04:05Z");
        assert_eq!(row(&def, &made), "r | k |  | NoExecute | 0s | <unknown>");
        assert_eq!(
            create_errors(&def, json!({"spec": {"taint": {"key": "k"}}})),
            "spec.taint.effect: Required value"
        );
    }
}
