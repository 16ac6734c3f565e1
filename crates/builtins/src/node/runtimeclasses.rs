//! RuntimeClasses.

use crate::core::pods::{validate::tolerations, warnings::deprecated_node_label};
use crate::shared::{
    check, metadata, rules,
    table::{age, name},
    value::Fields,
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[name_column(), Column::new("Handler", "string", 0, ""), age_column()];

struct RuntimeClasses;

impl Hooks for RuntimeClasses {
    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let (mut errs, handler, path) = (vec![], object.text("handler"), Path::new("handler"));
        if handler.is_empty() {
            errs.push(Error::required(&path, ""));
        } else {
            check::dns_label(&mut errs, &path, handler);
        }
        let path = Path::new("overhead").child("limits");
        for (k, v) in object.at("overhead").map("podFixed").into_iter().flatten() {
            rules::container_resource_name(&mut errs, &path.key(k), k);
            rules::resource_amount(&mut errs, &path.key(k), k, v);
        }
        let (scheduling, path) = (object.at("scheduling"), Path::new("scheduling"));
        if scheduling.has("nodeSelector") {
            errs.extend(validation::validate_labels(
                scheduling.at("nodeSelector"),
                &path.child("nodeSelector"),
            ));
        }
        let (list, path) = (scheduling.list("tolerations"), path.child("tolerations"));
        tolerations(&mut errs, &path, list);
        let key = |t: &Value| ["key", "operator", "value", "effect"].map(|f| t.text(f).to_owned());
        for (i, t) in list.iter().enumerate() {
            if list[..i].iter().any(|o| key(o) == key(t)) {
                let shown = kaji_schema::internal::text("io.k8s.api.core.v1.Toleration", t);
                errs.push(Error::duplicate(&path.index(i), Value::Null).showing(shown));
            }
        }
        errs
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        check::immutable(&mut errs, &Path::new("handler"), new.at("handler"), old.at("handler"));
        errs
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let labels = new.at("scheduling").map("nodeSelector").into_iter().flatten();
        let texts = labels.filter_map(|(key, _)| deprecated_node_label(key));
        texts.map(|text| format!("scheduling.nodeSelector: {text}")).collect()
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![name(object), object.text("handler").into(), age(object, now)]
    }
}

/// The definition of RuntimeClasses.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "node.k8s.io",
        "v1",
        "RuntimeClass",
        "runtimeclasses",
        Scope::Cluster,
        COLUMNS,
        RuntimeClasses,
    )
    .metadata_checks(&[metadata::GENERAL_WHOLE, metadata::GENERAL_UPDATE], &[])
    .create_on_update()
    .conditional_update_only()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors, warnings};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn warns_of_deprecated_node_labels() {
        let class = json!({"metadata": {"name": "r"}, "handler": "a", "scheduling": {"nodeSelector": {"beta.kubernetes.io/os": "linux"}}});
        assert_eq!(
            warnings(&def(), &class),
            r#"scheduling.nodeSelector: deprecated since v1.14; use "kubernetes.io/os" instead"#
        );
    }

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let bad = json!({"scheduling": {"tolerations": [{}, {"key": "a"}, {"key": "a"}]}});
        expect![[r#"
            handler: Required value
            scheduling.tolerations[0].operator: Invalid value: "": operator must be Exists when `key` is empty, which means "match all values and all keys"
            scheduling.tolerations[2]: Duplicate value: {"Key":"a","Operator":"","Value":"","Effect":"","TolerationSeconds":null}"#]]
        .assert_eq(&create_errors(&def(), bad));
        let of = |h: &str| json!({"metadata": {"name": "r"}, "handler": h});
        assert_eq!(
            update_errors(&def(), "", of("a"), of("b")),
            r#"handler: Invalid value: "a": field is immutable"#
        );
        assert_eq!(row(&def(), &of("a")), "r | a | <unknown>");
    }
}
