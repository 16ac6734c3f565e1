//! Namespaces: deletion waits for `spec.finalizers`, which only the finalize subresource changes. While it waits, a further DELETE
//! changes nothing.

use crate::shared::{
    check, metadata,
    table::{age, name},
    value::{Fields, copy_field, ensure_object, put},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, validation,
};
use kaji_resource::{
    Column, Ctx, DeletionHooks, Hooks, ResourceDef, Scope, SelectableField, SubresourceDef, Verb, age_column,
    name_column,
};
use serde_json::{Value, json};

const COLUMNS: &[Column] =
    &[name_column(), Column::new("Status", "string", 0, "The status of the namespace"), age_column()];

/// Namespaces cannot be deleted as a collection.
const VERBS: &[Verb] =
    &[Verb::Create, Verb::Delete, Verb::Get, Verb::List, Verb::Patch, Verb::Update, Verb::Watch];

/// The label that holds the namespace's name.
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";
const FINALIZER: &str = "kubernetes";

struct Namespaces;

fn label(object: &mut Value) {
    let name = object::name(object).to_owned();
    if !name.is_empty() {
        object::set_at(object, &["metadata", "labels", NAME_LABEL], name);
    }
}

fn finalizer(errs: &mut ErrorList, path: &Path, value: &str) {
    check::qualified_name(errs, path, value);
    let standard = ["kubernetes", "orphan", "foregroundDeletion"];
    if !value.contains('/') && !standard.contains(&value) {
        let text = "name is neither a standard finalizer name nor is it fully qualified";
        errs.push(Error::invalid(path, value, text));
    }
}

fn spec_finalizers(object: &Value) -> impl Iterator<Item = &str> {
    object.at("spec").strings("finalizers")
}

impl Hooks for Namespaces {
    fn deletion(&self) -> &dyn DeletionHooks {
        self
    }

    fn default(&self, _version: &str, object: &mut Value) {
        label(object);
        let status = ensure_object(object, "status");
        if status.text("phase").is_empty() {
            put(status, "phase", "Active");
        }
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({"phase": "Active"}));
        if !spec_finalizers(object).any(|f| f == FINALIZER) {
            let spec = ensure_object(object, "spec");
            let mut all = spec.list("finalizers").to_vec();
            all.push(FINALIZER.into());
            put(spec, "finalizers", all);
        }
        label(object);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        let path = Path::new("spec").child("finalizers");
        spec_finalizers(object).for_each(|f| finalizer(&mut errs, &path, f));
        errs
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        match ctx.subresource {
            "finalize" => copy_field(new, old, "status"),
            "" => {
                let spec = ensure_object(new, "spec");
                copy_field(spec, old.at("spec"), "finalizers");
                copy_field(new, old, "status");
            }
            _ => {}
        }
        label(new);
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        let mut errs = vec![];
        match ctx.subresource {
            "finalize" => {
                let path = Path::new("spec").child("finalizers");
                spec_finalizers(new).enumerate().for_each(|(i, f)| finalizer(&mut errs, &path.index(i), f));
            }
            "status" => {
                let phase = new.at("status").text("phase");
                let (want, text) = match object::deletion_timestamp(new) {
                    None => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
                    Some(_) => {
                        ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
                    }
                };
                if phase != want {
                    errs.push(Error::invalid(&Path::new("status").child("Phase"), phase, text));
                }
            }
            _ => return self.validate_create(ctx, new),
        }
        errs
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![name(object), object.at("status").text("phase").into(), age(object, now)]
    }

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        if subresource == "status" { &[&["spec"]] } else { &[&["status"]] }
    }
}

impl DeletionHooks for Namespaces {
    fn marks_timestamp_only(&self) -> bool {
        true
    }

    fn mark_deleted(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(ensure_object(object, "status"), "phase", "Terminating");
    }

    fn deletion_waits(&self, object: &Value) -> bool {
        spec_finalizers(object).next().is_some()
    }
}

/// The definition of namespaces.
pub fn def() -> ResourceDef {
    let mut def =
        ResourceDef::builtin("", "v1", "Namespace", "namespaces", Scope::Cluster, COLUMNS, Namespaces)
            .metadata_checks(&[metadata::WHOLE, metadata::UPDATE], &[metadata::UPDATE])
            .return_deleted_object()
            .own_namespace()
            .short(&["ns"])
            .named(validation::name_is_dns_label)
            .sub(&[SubresourceDef::status(), SubresourceDef::update("finalize", &[Verb::Update])])
            .select(&[SelectableField::new("status.phase")]);
    def.verbs = VERBS;
    def
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row, update, update_errors};
    use expect_test::expect;

    #[test]
    fn adds_label_finalizer_and_phase_on_create() {
        expect![[r#"
            {
              "metadata": {
                "labels": {
                  "kubernetes.io/metadata.name": "a"
                },
                "name": "a"
              },
              "spec": {
                "finalizers": [
                  "x.io/y",
                  "kubernetes"
                ]
              },
              "status": {
                "phase": "Active"
              }
            }"#]]
        .assert_eq(&created(&def(), json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["x.io/y"]}})));
        expect![[r#"spec.finalizers: Invalid value: "foo": name is neither a standard finalizer name nor is it fully qualified"#]]
            .assert_eq(&create_errors(&def(), json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["foo"]}})));
    }

    #[test]
    fn finalizers_change_only_by_finalize() {
        let old = json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes"]}});
        let new = json!({"metadata": {"name": "a"}, "spec": {"finalizers": []}});
        let (kept, _) = update(&def(), "", new.clone(), old.clone());
        assert_eq!(kept["spec"]["finalizers"], json!(["kubernetes"]));
        let (gone, _) = update(&def(), "finalize", new, old);
        assert!(!Namespaces.deletion_waits(&gone));
        assert!(Namespaces.deletion_waits(&kept));
    }

    #[test]
    fn status_phase_follows_deletion() {
        let old = json!({"metadata": {"name": "a"}});
        let new = json!({"metadata": {"name": "a"}, "status": {"phase": "Terminating"}});
        expect![[r#"status.Phase: Invalid value: "Terminating": may only be 'Active' if `deletionTimestamp` is empty"#]]
            .assert_eq(&update_errors(&def(), "status", new, old));
    }

    #[test]
    fn prints_a_row() {
        let ns = json!({"metadata": {"name": "a", "creationTimestamp": "2026-01-02T03:00:05Z"}, "status": {"phase": "Active"}});
        assert_eq!(row(&def(), &ns), "a | Active | 4m");
    }
}
