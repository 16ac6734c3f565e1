//! ControllerRevisions.

use crate::shared::{Fields, check, metadata, table};
use kaji_meta::{
    GroupVersionKind, Path,
    field::{Error, ErrorList},
    object,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Controller", "string", 0, "Controller of the object"),
    Column::new("Revision", "string", 0, "Revision indicates the revision of the state represented by Data."),
    age_column(),
];

struct ControllerRevisions;

/// The controllerrevisions resource.
pub fn def() -> ResourceDef {
    let kind = "ControllerRevision";
    ResourceDef::builtin(
        "apps",
        "v1",
        kind,
        "controllerrevisions",
        Scope::Namespaced,
        COLUMNS,
        ControllerRevisions,
    )
    .optional_to_start()
    .metadata_checks(&[metadata::UPDATE, metadata::WHOLE], &[metadata::UPDATE])
}

impl Hooks for ControllerRevisions {
    fn default(&self, _version: &str, object: &mut Value) {
        // Go writes this number even when it is zero.
        crate::shared::value::set_default(object, "revision", || 0.into());
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        check::not_negative(&mut errs, &Path::new("revision"), object.int("revision"));
        let path = Path::new("data");
        match object.at("data") {
            Value::Object(_) => {}
            Value::Null => errs.push(Error::required(&path, "data is mandatory")),
            _ => errs.push(Error::required(&path, "data must be a valid JSON object")),
        }
        errs
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        check::not_negative(&mut errs, &Path::new("revision"), new.int("revision"));
        // Raw data compares as it is: an empty list in it is not an absent one.
        if new.at("data") != old.at("data") {
            errs.push(Error::invalid(&Path::new("data"), new.at("data").clone(), check::IMMUTABLE));
        }
        errs
    }

    fn row(&self, _version: &str, r: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let controller = object::controller_of(r).map_or_else(
            || "<none>".to_owned(),
            |c| {
                let kind =
                    GroupVersionKind::from_api_version(c.text("apiVersion"), c.text("kind")).group_kind();
                format!("{}/{}", kind.to_string().to_lowercase(), c.text("name"))
            },
        );
        vec![table::name(r), controller.into(), r.int("revision").into(), table::age(r, now)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, show};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_changes_and_prints_a_row() {
        let w = TestContext::default();
        let r = json!({
            "metadata": {"name": "r", "creationTimestamp": "2026-01-02T03:04:00Z", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "Widget", "name": "web", "controller": true}]},
            "revision": 2, "data": {"a": 1}
        });
        assert_eq!(show(&ControllerRevisions.validate_create(&w.ctx(&r, "", "v1"), &r)), "");
        expect![[r#"["r","widget.apps/web",2,"5s"]"#]]
            .assert_eq(&Value::from(ControllerRevisions.row("v1", &r, w.now)).to_string());
        let mut bad = r.clone();
        bad["data"] = json!([1]);
        bad["revision"] = (-1).into();
        expect![[r#"
            revision: Invalid value: -1: must be greater than or equal to 0
            data: Required value: data must be a valid JSON object"#]]
        .assert_eq(&show(&ControllerRevisions.validate_create(&w.ctx(&r, "", "v1"), &bad)));
        expect![[r#"
            revision: Invalid value: -1: must be greater than or equal to 0
            data: Invalid value: [1]: field is immutable"#]]
        .assert_eq(&show(&ControllerRevisions.validate_update(&w.ctx(&r, "", "v1"), &bad, &r)));
    }
}
