//! A webhook may change labels and annotations; everything else in metadata stays as it was.
//!
//! Source: apiextensions-apiserver, `validateConvertedObject` and `restoreObjectMeta`.

use kaji_meta::{
    field::{Path, aggregate},
    object,
    text::go_type,
    validation,
};
use serde_json::{Map, Value};

/// Whether it is still the same object.
///
/// # Errors
/// Which of kind, name, namespace and uid it is not.
pub fn same(original: &Value, converted: &Value) -> Result<(), String> {
    for (what, of) in [
        ("kind", object::kind as fn(&Value) -> &str),
        ("name", object::name),
        ("namespace", object::namespace),
        ("UID", object::uid),
    ] {
        let (expected, got) = (of(original), of(converted));
        if expected != got {
            return Err(format!("must have the same {what}: {expected} != {got}"));
        }
    }
    Ok(())
}

/// Puts the original metadata back, with the labels and annotations that the webhook gave.
///
/// # Errors
/// Metadata, labels or annotations are none.
pub fn restore(original: &Value, converted: &mut Value) -> Result<(), String> {
    let Some(map) = converted.as_object_mut() else {
        return Err("missing metadata in converted object".into());
    };
    let mut given = match map.remove("metadata") {
        Some(Value::Object(given)) => given,
        Some(other) => {
            return Err(format!("invalid metadata of type {} in converted object", go_type(&other)));
        }
        None => return Err("missing metadata in converted object".into()),
    };
    let mut metadata = match original.get("metadata") {
        None => Map::new(),
        Some(Value::Object(metadata)) => metadata.clone(),
        Some(other) => return Err(format!("invalid metadata of type {} in input object", go_type(other))),
    };
    for field in ["labels", "annotations"] {
        let texts = match given.remove(field) {
            None | Some(Value::Null) => {
                metadata.remove(field);
                continue;
            }
            Some(Value::Object(texts)) => texts,
            Some(other) => {
                let found = go_type(&other);
                return Err(format!("invalid metadata.{field} of type {found} in converted object"));
            }
        };
        if let Some((key, value)) = texts.iter().find(|(_, v)| !v.is_string()) {
            let found = go_type(value);
            return Err(format!(
                "metadata.{field}[{key}] must be a string, but is {found} in converted object"
            ));
        }
        let texts = Value::Object(texts);
        if metadata.get(field) != Some(&texts) {
            let errors = match field {
                "labels" => validation::validate_labels(&texts, &Path::new("metadata").child("labels")),
                _ => validation::validate_annotations(&texts, &Path::new("metadata").child("annotation")),
            };
            if !errors.is_empty() {
                return Err(aggregate(&errors));
            }
        }
        metadata.insert(field.to_owned(), texts);
    }
    map.insert("metadata".into(), Value::Object(metadata));
    Ok(())
}
