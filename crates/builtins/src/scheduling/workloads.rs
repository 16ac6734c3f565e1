//! Workloads: the templates of groups of pods that one controller has scheduled together.

use super::group_rules::{self, GROUP, VERSIONS};
use crate::shared::{
    Fields, check,
    table::{age, name},
    value::{drop_field, ensure_object, list_mut},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[name_column(), age_column()];
const MAX_TEMPLATES: usize = 8;
const TEMPLATES: &str = "podGroupTemplates";
const COMPOSITE: &str = "compositePodGroupTemplates";

struct Workloads;

fn named<'a>(list: &'a [Value], name: &str) -> Option<&'a Value> {
    list.iter().find(|entry| entry.text("name") == name)
}

fn controller(errs: &mut ErrorList, path: &Path, reference: &Value) {
    if let Some(group) = reference.opt_text("apiGroup").filter(|group| !group.is_empty()) {
        check::dns_subdomain(errs, &path.child("apiGroup"), group);
    }
    for field in ["kind", "name"] {
        let (at, text) = (path.child(field), reference.text(field));
        match text {
            "" => errs.push(Error::required(&at, "")),
            text => check::each(errs, &at, text, validation::path_segment_name(text, false)),
        }
    }
}

fn validate(object: &Value) -> ErrorList {
    let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
    if spec.has("controllerRef") {
        controller(&mut errs, &path.child("controllerRef"), spec.at("controllerRef"));
    }
    let list = spec.list(TEMPLATES);
    if list.is_empty() && spec.list(COMPOSITE).is_empty() {
        let text = format!("must specify one of: `{TEMPLATES}`, `{COMPOSITE}`");
        errs.push(Error::invalid(&path, "", text));
    }
    let path = path.child(TEMPLATES);
    if list.len() > MAX_TEMPLATES {
        errs.push(Error::too_many(&path, list.len(), MAX_TEMPLATES));
        return errs;
    }
    for (i, template) in list.iter().enumerate() {
        let at = path.index(i);
        check::required_dns_label(&mut errs, &at.child("name"), template.text("name"));
        if named(&list[..i], template.text("name")).is_some() {
            errs.push(Error::duplicate(&at, template.text("name")));
        }
        group_rules::validate(&mut errs, &at, template);
    }
    errs
}

fn drop_disabled(spec: &mut Value, old: Option<&Value>) {
    if spec.has(COMPOSITE) && !old.is_some_and(|old| old.has(COMPOSITE)) {
        drop_field(spec, COMPOSITE);
    }
    for template in list_mut(spec, TEMPLATES) {
        let former = old.and_then(|old| named(old.list(TEMPLATES), template.text("name"))).cloned();
        group_rules::drop_disabled(template, former.as_ref());
    }
}

/// Templates neither come nor go; of those that stay only the size of a gang changes.
fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errs = validate(new);
    let (path, new, old) = (Path::new("spec"), new.at("spec"), old.at("spec"));
    let reference = "controllerRef";
    group_rules::frozen(&mut errs, &path.child(reference), new.at(reference), old.at(reference));
    let path = path.child(TEMPLATES);
    let (list, former) = (new.list(TEMPLATES), old.list(TEMPLATES));
    for (i, template) in list.iter().enumerate() {
        match named(former, template.text("name")) {
            Some(former) => group_rules::validate_update(&mut errs, &path.index(i), template, former),
            None => errs.push(Error::forbidden(&path.index(i), "item may not be added")),
        }
    }
    for (i, _) in former.iter().enumerate().filter(|(_, t)| named(list, t.text("name")).is_none()) {
        errs.push(Error::forbidden(&path.index(i), "item may not be removed"));
    }
    errs
}

impl Hooks for Workloads {
    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        drop_disabled(ensure_object(object, "spec"), None);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object)
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        drop_disabled(ensure_object(new, "spec"), Some(old.at("spec")));
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        validate_update(new, old)
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![name(object), age(object, now)]
    }
}

/// The definition of Workloads.
pub fn def() -> ResourceDef {
    let (stored, other) = VERSIONS;
    ResourceDef::builtin(GROUP, stored, "Workload", "workloads", Scope::Namespaced, COLUMNS, Workloads)
        .also_version(other, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, update_errors};
    use expect_test::expect;
    use serde_json::json;

    fn workload(templates: &[(&str, i64)]) -> Value {
        let template = |(name, count): &(&str, i64)| json!({"name": name, "schedulingPolicy": {"gang": {"minCount": count}}});
        let templates: Vec<Value> = templates.iter().map(template).collect();
        json!({"metadata": {"name": "w"}, "spec": {"podGroupTemplates": templates}})
    }

    #[test]
    fn rejects_invalid_fields() {
        assert_eq!(create_errors(&def(), workload(&[("a", 1), ("b", 2)])), "");
        let mut refers = workload(&[("a", 1)]);
        refers["spec"]["controllerRef"] = json!({"apiGroup": "A", "kind": "a/b"});
        let all = [
            create_errors(&def(), workload(&[])),
            create_errors(&def(), workload(&[("a", 1), ("a", 0), ("B", 1), ("", 1)])),
            create_errors(&def(), workload(&[("a", 1); 9])),
            create_errors(&def(), refers),
        ];
        expect![[r#"
            spec: Invalid value: "": must specify one of: `podGroupTemplates`, `compositePodGroupTemplates`
            spec.podGroupTemplates[1]: Duplicate value: "a"
            spec.podGroupTemplates[1].schedulingPolicy.gang.minCount: Required value
            spec.podGroupTemplates[2].name: Invalid value: "B": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
            spec.podGroupTemplates[3].name: Required value
            spec.podGroupTemplates: Too many: 9: must have at most 8 items
            spec.controllerRef.apiGroup: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
            spec.controllerRef.kind: Invalid value: "a/b": may not contain '/'
            spec.controllerRef.name: Required value"#]].assert_eq(&all.join("\n"));
    }

    #[test]
    fn templates_neither_come_nor_go() {
        assert_eq!(update_errors(&def(), "", workload(&[("a", 5)]), workload(&[("a", 1)])), "");
        expect![[r#"
            spec.podGroupTemplates[1]: Forbidden: item may not be added
            spec.podGroupTemplates[1]: Forbidden: item may not be removed"#]]
        .assert_eq(&update_errors(
            &def(),
            "",
            workload(&[("a", 1), ("c", 1)]),
            workload(&[("a", 1), ("b", 1)]),
        ));
    }
}
