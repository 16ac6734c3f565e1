//! PodTemplates.

use crate::{
    core::pods::{defaults, drop, template},
    shared::{Fields, metadata, table},
};
use kaji_meta::{Path, field::ErrorList, object};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    table::containers_column(0),
    table::images_column(0),
    Column::new("Pod Labels", "string", 0, "The labels for the pod template."),
];

struct PodTemplates;

/// The podtemplates resource.
pub fn def() -> ResourceDef {
    ResourceDef::builtin("", "v1", "PodTemplate", "podtemplates", Scope::Namespaced, COLUMNS, PodTemplates)
        .optional_to_start()
        .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
        .pod_template(&["template"])
        .return_deleted_object()
        .with_generation()
}

fn validate(object: &Value) -> ErrorList {
    let mut errs = vec![];
    template::validate(&mut errs, &Path::new("template"), object.at("template"));
    errs
}

impl Hooks for PodTemplates {
    fn default(&self, _version: &str, object: &mut Value) {
        defaults::template(object, "template");
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        drop::of_template(ctx.features, object, &["template"], None);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object)
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        drop::of_template(ctx.features, new, &["template"], Some(old));
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        validate(new)
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        if old.is_some_and(|o| object::generation(o) == object::generation(new)) {
            return vec![];
        }
        template::warn(&Path::new("template"), new.at("template"))
    }

    fn row(&self, _version: &str, t: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        let [names, images] = table::containers(t.at("template").at("spec"));
        let labels = table::labels(t.at("template").at("metadata").at("labels"));
        vec![table::name(t), names, images, labels.into()]
    }

    fn reset_fields(&self, _version: &str, _subresource: &str) -> &'static [&'static [&'static str]] {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, show};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn fills_in_defaults_rejects_invalid_fields_and_prints_a_row() {
        let w = TestContext::default();
        let mut t = json!({"metadata": {"name": "t"}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i:1"}]}}});
        PodTemplates.default("v1", &mut t);
        assert_eq!(t["template"]["spec"]["restartPolicy"], "Always");
        assert!(t["template"]["spec"].get("enableServiceLinks").is_none());
        assert_eq!(show(&PodTemplates.validate_create(&w.ctx(&t, "", "v1"), &t)), "");
        expect![[r#"["t","c","i:1","a=b"]"#]]
            .assert_eq(&Value::from(PodTemplates.row("v1", &t, w.now)).to_string());
        t["template"]["spec"]["containers"][0]["name"] = "".into();
        t["template"]["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "i", "imagePullPolicy": "Always",
            "terminationMessagePolicy": "File"}]);
        expect![[r#"
            template.spec.containers[0].name: Required value
            template.spec.ephemeralContainers: Forbidden: ephemeral containers not allowed in pod template"#]]
        .assert_eq(&show(&PodTemplates.validate_update(&w.ctx(&t, "", "v1"), &t, &t)));
    }
}
