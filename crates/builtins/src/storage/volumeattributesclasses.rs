//! VolumeAttributesClasses.

use super::rules::{GROUP, parameters, provisioner};
use crate::shared::{
    metadata, rules,
    table::{age, name},
    value::Fields,
};
use kaji_meta::{
    field::{ErrorList, Path},
    semantic_equal,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("DriverName", "string", 0, "Name of the CSI driver This field is immutable."),
    age_column(),
];

struct VolumeAttributesClasses;

impl Hooks for VolumeAttributesClasses {
    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        provisioner(&mut errs, &Path::new("driverName"), object.text("driverName"));
        parameters(&mut errs, object, false);
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        for f in ["driverName", "parameters"] {
            let same = semantic_equal(new.at(f), old.at(f));
            rules::frozen(&mut errs, &Path::new(f), same, &format!("updates to {f} are forbidden."));
        }
        errs.extend(self.validate_create(ctx, new));
        errs
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![name(object), object.text("driverName").into(), age(object, now)]
    }
}

/// The definition of VolumeAttributesClasses.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        GROUP,
        "v1",
        "VolumeAttributesClass",
        "volumeattributesclasses",
        Scope::Cluster,
        COLUMNS,
        VolumeAttributesClasses,
    )
    .metadata_checks(&[metadata::UPDATE, metadata::WHOLE], &[metadata::UPDATE])
    .return_deleted_object()
    .short(&["vac"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        expect![[r#"
            driverName: Required value
            parameters: Required value: must contain at least one key/value pair"#]]
        .assert_eq(&create_errors(&def(), json!({})));
        let of = |d: &str| json!({"metadata": {"name": "v"}, "driverName": d, "parameters": {"a": "b"}});
        assert_eq!(
            update_errors(&def(), "", of("x"), of("y")),
            "driverName: Forbidden: updates to driverName are forbidden."
        );
        assert_eq!(row(&def(), &of("x")), "v | x | <unknown>");
    }
}
