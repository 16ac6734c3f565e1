//! IngressClasses.

use super::ingresses::reference;
use crate::shared::{
    check, metadata, rules,
    table::{age, name},
    value::Fields,
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Controller", "string", 0, "Controller that is responsible for handling this class"),
    Column::new("Parameters", "string", 0, "A reference to a resource with additional parameters"),
    age_column(),
];

const MAX_CONTROLLER: usize = 250;

struct IngressClasses;

fn parameters(errs: &mut ErrorList, path: &Path, p: &Value) {
    if p.is_null() {
        return;
    }
    reference(errs, path, p);
    let namespace = path.child("namespace");
    match p.opt_text("scope") {
        None => errs.push(Error::required(&path.child("scope"), "")),
        Some("Namespace") => match p.opt_text("namespace") {
            None => errs.push(Error::required(&namespace, "`parameters.scope` is set to 'Namespace'")),
            Some(n) => check::dns_label(errs, &namespace, n),
        },
        Some("Cluster") => {
            rules::frozen(errs, &namespace, !p.has("namespace"), "`parameters.scope` is set to 'Cluster'");
        }
        Some(other) => {
            errs.push(Error::not_supported(&path.child("scope"), other, &["Cluster", "Namespace"]))
        }
    }
}

impl Hooks for IngressClasses {
    fn default(&self, _version: &str, object: &mut Value) {
        if let Some(p) = object.pointer_mut("/spec/parameters").filter(|p| p.is_object()) {
            rules::default_opt_text(p, "scope", "Cluster");
        }
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
        let (controller, at) = (spec.text("controller"), path.child("controller"));
        if controller.len() > MAX_CONTROLLER {
            errs.push(Error::too_long(&at, "", MAX_CONTROLLER));
        }
        errs.extend(validation::validate_domain_prefixed_path(&at, controller));
        parameters(&mut errs, &path.child("parameters"), spec.at("parameters"));
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        let path = Path::new("spec").child("controller");
        check::immutable(&mut errs, &path, new.at("spec").at("controller"), old.at("spec").at("controller"));
        errs.extend(self.validate_create(ctx, new));
        errs
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let default =
            object::annotation(object, "ingressclass.kubernetes.io/is-default-class") == Some("true");
        let name = match default {
            true => format!("{} (default)", object::name(object)).into(),
            false => name(object),
        };
        let p = object.at("spec").at("parameters");
        let parameters = match (p.is_null(), p.opt_text("apiGroup")) {
            (true, _) => "<none>".to_owned(),
            (_, Some(group)) => format!("{}.{group}/{}", p.text("kind"), p.text("name")),
            (_, None) => format!("{}/{}", p.text("kind"), p.text("name")),
        };
        vec![name, object.at("spec").text("controller").into(), parameters.into(), age(object, now)]
    }
}

/// The definition of IngressClasses.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "networking.k8s.io",
        "v1",
        "IngressClass",
        "ingressclasses",
        Scope::Cluster,
        COLUMNS,
        IngressClasses,
    )
    .metadata_checks(&[metadata::UPDATE, metadata::WHOLE], &[metadata::UPDATE])
    .with_generation()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let bad = json!({"spec": {"controller": "x", "parameters": {"name": "a", "namespace": "b"}}});
        expect![[r#"
            spec.controller: Invalid value: "x": must be a domain-prefixed path (such as "acme.io/foo")
            spec.parameters.kind: Required value
            spec.parameters.namespace: Forbidden: `parameters.scope` is set to 'Cluster'"#]]
        .assert_eq(&create_errors(&def(), bad));
        let class = json!({"metadata": {"name": "c", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}},
            "spec": {"controller": "k8s.io/nginx", "parameters": {"apiGroup": "g", "kind": "K", "name": "n"}}});
        assert_eq!(row(&def(), &class), "c (default) | k8s.io/nginx | K.g/n | <unknown>");
    }
}
