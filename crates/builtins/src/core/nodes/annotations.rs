//! Annotations of nodes from before there were fields. They have no effect any more, but what they hold has to be valid.
//!
//! Invariant: they are read as Go's decoder reads them, so that what upstream takes is taken here.

use crate::shared::{Fields, rules};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object,
};
use kaji_schema::{Property, Props, Schema, SchemaRef, Type, decode, types};
use serde_json::Value;

/// Taints, from before they were a field.
const TAINTS: &str = "scheduler.alpha.kubernetes.io/taints";
/// Pods that the scheduler should keep off the node.
const AVOIDED: &str = "scheduler.alpha.kubernetes.io/preferAvoidPods";

/// Checks what the annotations of a node hold.
pub fn validate(errs: &mut ErrorList, node: &Value) {
    let (path, all) = (Path::new("metadata").child("annotations"), node.at("metadata").at("annotations"));
    if !all.text(TAINTS).is_empty() {
        match read_taints(all.text(TAINTS)) {
            Ok(list) => rules::taints(errs, &path.child(TAINTS), &list),
            Err(why) => errs.push(Error::invalid(&path, TAINTS, why)),
        }
    }
    if all.text(AVOIDED).is_empty() {
        return;
    }
    let avoided = match read_json(all.text(AVOIDED)).and_then(|value| typed(&avoid_pods(), value)) {
        Ok(value) => value,
        Err(why) => return errs.push(Error::invalid(&path.child("AvoidPods"), AVOIDED, why)),
    };
    for (i, entry) in avoided.list("preferAvoidPods").iter().enumerate() {
        let path = path.child(AVOIDED).index(i).child("PodSignature");
        let controller = entry.at("podSignature").at("podController");
        if controller.is_null() {
            errs.push(Error::required(&path, ""));
        } else if !controller.flag("controller") {
            let path = path.child("PodController").child("Controller");
            errs.push(Error::invalid(&path, false, "must point to a controller"));
        }
    }
}

fn read_json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|e| match e.is_eof() {
        true => "unexpected end of JSON input".into(),
        false => e.to_string(),
    })
}

fn read_taints(text: &str) -> Result<Vec<Value>, String> {
    let list = match read_json(text)? {
        Value::Null => vec![],
        Value::Array(list) => list,
        other => {
            let kind = object::json_type(&other);
            return Err(format!("json: cannot unmarshal {kind} into Go value of type []core.Taint"));
        }
    };
    match types::lookup("io.k8s.api.core.v1.Taint") {
        Some(schema) => list.into_iter().map(|taint| typed(&schema, taint)).collect(),
        None => Ok(list),
    }
}

/// Go's type of the pods that a node avoids, which no kind holds.
fn avoid_pods() -> SchemaRef {
    let of = |ty| SchemaRef::from(Schema::of(ty));
    let fields = |name, fields: Vec<(&str, SchemaRef)>| {
        let fields = fields.into_iter().map(|(name, schema)| Property::new(name, schema)).collect();
        let schema = Schema { properties: Some(Props::new(fields)), ..Schema::of(Type::Object) };
        SchemaRef::from(Schema { name: Some(name), ..schema })
    };
    let owner = types::lookup("io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference");
    let owner = owner.unwrap_or_else(|| of(Type::Any));
    let entry = fields(
        "v1.PreferAvoidPodsEntry",
        vec![
            ("podSignature", fields("v1.PodSignature", vec![("podController", owner)])),
            ("evictionTime", of(Type::Time)),
            ("reason", of(Type::String)),
            ("message", of(Type::String)),
        ],
    );
    let entries = Schema { items: Some(entry), ..Schema::of(Type::Array) };
    fields("v1.AvoidPods", vec![("preferAvoidPods", entries.into())])
}

/// A value as Go's decoder reads it into a struct. Null is its zero value.
fn typed(schema: &Schema, mut value: Value) -> Result<Value, String> {
    if !value.is_null() {
        spell(schema, &mut value);
        decode::check_types(schema, &mut value)?;
    }
    Ok(value)
}

/// Names fields as the schema does: Go's decoder takes them in any case.
fn spell(schema: &Schema, value: &mut Value) {
    match (value, &schema.properties, &schema.items) {
        (Value::Object(map), Some(fields), _) => {
            let named = std::mem::take(map).into_iter().map(|(name, mut value)| {
                let field = fields.iter().find(|field| field.name.eq_ignore_ascii_case(&name));
                let Some(field) = field else { return (name, value) };
                spell(&field.schema, &mut value);
                (field.name.to_string(), value)
            });
            *map = named.collect();
        }
        (Value::Array(list), _, Some(items)) => list.iter_mut().for_each(|item| spell(items, item)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::nodes::def,
        shared::testing::{create_errors, update_errors},
    };
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn what_annotations_hold_is_valid() {
        let node = |key: &str, text: &str| json!({"metadata": {"annotations": {(key): text}}});
        let good = r#"[{"key": "a", "effect": "NoSchedule"}, {"Key": "b", "Effect": "NoExecute", "timeAdded": null}]"#;
        assert_eq!(create_errors(&def(), node(TAINTS, good)), "");
        assert_eq!(create_errors(&def(), node(TAINTS, "")), "");
        let controller = r#"{"kind": "ReplicaSet", "controller": true}"#;
        let good = format!(
            r#"{{"preferAvoidPods": [{{"podSignature": {{"PodController": {controller}}}, "reason": "r"}}]}}"#
        );
        assert_eq!(update_errors(&def(), "", node(AVOIDED, &good), json!({})), "");
        let bad = [
            (TAINTS, "[{"),
            (TAINTS, "{}"),
            (TAINTS, r#"[{"key": 1}]"#),
            (TAINTS, r#"[{"key": "a"}, null]"#),
            (AVOIDED, "[]"),
            (AVOIDED, r#"{"preferAvoidPods": "x"}"#),
            (
                AVOIDED,
                r#"{"preferAvoidPods": [{}, {"podSignature": {"podController": {"controller": false}}}]}"#,
            ),
        ];
        let mut out = String::new();
        for (key, text) in bad {
            let errors = create_errors(&def(), node(key, text));
            assert_eq!(update_errors(&def(), "status", node(key, text), json!({})), errors);
            assert!(update_errors(&def(), "", node(key, text), json!({})).starts_with(&errors));
            out += &format!("{errors}\n");
        }
        expect![[r#"
            metadata.annotations: Invalid value: "scheduler.alpha.kubernetes.io/taints": unexpected end of JSON input
            metadata.annotations: Invalid value: "scheduler.alpha.kubernetes.io/taints": json: cannot unmarshal object into Go value of type []core.Taint
            metadata.annotations: Invalid value: "scheduler.alpha.kubernetes.io/taints": json: cannot unmarshal number into Go struct field Taint.key of type string
            metadata.annotations.scheduler.alpha.kubernetes.io/taints[0].effect: Required value
            metadata.annotations.scheduler.alpha.kubernetes.io/taints[1].key: Invalid value: "": name part must be non-empty
            metadata.annotations.scheduler.alpha.kubernetes.io/taints[1].key: Invalid value: "": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
            metadata.annotations.scheduler.alpha.kubernetes.io/taints[1].effect: Required value
            metadata.annotations.AvoidPods: Invalid value: "scheduler.alpha.kubernetes.io/preferAvoidPods": json: cannot unmarshal array into Go value of type v1.AvoidPods
            metadata.annotations.AvoidPods: Invalid value: "scheduler.alpha.kubernetes.io/preferAvoidPods": json: cannot unmarshal string into Go struct field AvoidPods.preferAvoidPods of type []v1.PreferAvoidPodsEntry
            metadata.annotations.scheduler.alpha.kubernetes.io/preferAvoidPods[0].PodSignature: Required value
            metadata.annotations.scheduler.alpha.kubernetes.io/preferAvoidPods[1].PodSignature.PodController.Controller: Invalid value: false: must point to a controller
        "#]]
        .assert_eq(&out);
    }
}
