//! DeviceClasses.

use super::rules::{GROUP, limited, opaque, selectors};
use crate::shared::{
    metadata,
    table::{age, name},
    value::Fields,
};
use kaji_meta::field::{Error, ErrorList, Path};
use kaji_quota::names;
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[name_column(), age_column()];

struct DeviceClasses;

impl Hooks for DeviceClasses {
    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
        selectors(&mut errs, &path.child("selectors"), spec.list("selectors"));
        let (at, configs) = (path.child("config"), spec.list("config"));
        limited(&mut errs, &at, configs, 32);
        configs.iter().enumerate().for_each(|(i, c)| opaque(&mut errs, &at.index(i), c));
        if let Some(resource) = spec.opt_text("extendedResourceName").filter(|r| !names::is_extended(r)) {
            let at = path.child("extendedResourceName");
            errs.push(Error::invalid(&at, resource, "must be a valid extended resource name"));
        }
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        self.validate_create(ctx, new)
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![name(object), age(object, now)]
    }
}

/// The definition of DeviceClasses.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(GROUP, "v1", "DeviceClass", "deviceclasses", Scope::Cluster, COLUMNS, DeviceClasses)
        .metadata_checks(&[metadata::WHOLE, metadata::UPDATE], &[metadata::UPDATE])
        .return_deleted_object()
        .with_generation()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn compiles_selectors() {
        let selectors = |texts: &[&str]| {
            let list: Vec<Value> = texts.iter().map(|t| json!({"cel": {"expression": t}})).collect();
            create_errors(&def(), json!({"metadata": {"name": "c"}, "spec": {"selectors": list}}))
        };
        assert_eq!(selectors(&[r#"device.driver == "d" && device.attributes["d"].on"#]), "");
        let list = "[1,2,3,4,5,6,7,8,9,10]";
        let mut costly = "true".to_owned();
        for name in ["a", "b", "c", "d", "e", "f"] {
            costly = format!("{list}.all({name}, {costly})");
        }
        expect![[r#"
            spec.selectors[0].cel.expression: Invalid value: "device.nope": compilation failed: ERROR: <input>:1:7: undefined field 'nope'
             | device.nope
             | ......^
            spec.selectors[1].cel.expression: Invalid value: "1": must evaluate to bool or the unknown type, not int
            spec.selectors[2].cel.expression: Invalid value: "": compilation failed: ERROR: <input>:1:0: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}
            spec.selectors[3].cel.expression: Forbidden: too complex, exceeds cost limit
            spec.selectors[4].cel.expression: Too long: may not be more than 10240 bytes"#]].assert_eq(&selectors(&["device.nope", "1", "", &costly, &"x".repeat(10241)]));
    }

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let bad = json!({"metadata": {"name": "c"}, "spec": {"selectors": [{}], "config": [{}], "extendedResourceName": "x"}});
        expect![[r#"
            spec.selectors[0].cel: Required value
            spec.config[0].opaque: Required value
            spec.extendedResourceName: Invalid value: "x": must be a valid extended resource name"#]]
        .assert_eq(&create_errors(&def(), bad.clone()));
        assert_eq!(row(&def(), &bad), "c | <unknown>");
    }
}
