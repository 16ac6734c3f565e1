//! Malformed metadata of embedded resources, stored before the schema had `x-kubernetes-embedded-resource`, is left out on reads.
//!
//! Invariant: what is shown as metadata has the types of metadata; writes are validated by the schema, and refused.
//! Source: apiextensions-apiserver, `pkg/apiserver/schema/objectmeta`.

use kaji_meta::object;
use kaji_schema::{
    Schema,
    decode::check_types,
    prune::{object_meta, prune},
};
use serde_json::{Map, Value};

/// Whether a schema has embedded resources.
pub fn any(schema: &Schema) -> bool {
    schema.embedded_resource
        || schema.properties.iter().flat_map(|p| p.iter()).any(|p| any(p.schema.get()))
        || schema.additional.as_ref().is_some_and(|a| any(a.get()))
        || schema.items.as_ref().is_some_and(|i| any(i.get()))
}

/// Removes what is no metadata, field by field, from the metadata of embedded resources.
pub fn drop_malformed(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => {
            if schema.embedded_resource
                && let Some(Value::Object(meta)) = map.get_mut("metadata")
            {
                well_formed(meta);
            }
            for (name, value) in map.iter_mut().filter(|(_, v)| v.is_object() || v.is_array()) {
                if let Some(child) = schema.child(name) {
                    drop_malformed(child.get(), value);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            list.iter_mut().for_each(|v| drop_malformed(items.get(), v));
        }
        _ => {}
    }
}

/// Makes metadata of what an object has as its own, whatever wrote it: what has no place in it or the wrong type goes, field by field,
/// and an object from before there were generations is of the first.
pub fn own_metadata(object: &mut Value) {
    let Some(Value::Object(meta)) = object.get_mut("metadata") else { return };
    meta.retain(|_, value| !value.is_null());
    well_formed(meta);
    if let Some(meta) = object.get_mut("metadata") {
        drop(prune(object_meta(), meta, false));
    }
    if object::generation(object) == 0 {
        object::set_at(object, &["metadata", "generation"], 1);
    }
}

fn well_formed(meta: &mut Map<String, Value>) {
    let types = |meta: &Value| check_types(object_meta(), &mut meta.clone()).is_ok();
    if types(&Value::Object(meta.clone())) {
        return;
    }
    meta.retain(|name, value| types(&Value::Object(Map::from_iter([(name.clone(), value.clone())]))));
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_schema::structural;
    use serde_json::json;

    #[test]
    fn fields_of_wrong_types_go() {
        let schema = structural::build(&json!({"type": "object", "properties": {
            "list": {"type": "array", "items": {"type": "object", "x-kubernetes-embedded-resource": true}},
            "plain": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}));
        assert!(any(&schema) && !any(&structural::build(&json!({"type": "object"}))));
        let meta = json!({"name": "n", "annotations": {"a": 1, "b": "c"}, "labels": {"bad": "x y"}});
        let mut value = json!({"list": [{"metadata": meta}, {"metadata": 1}], "plain": {"metadata": meta}});
        drop_malformed(&schema, &mut value);
        assert_eq!(
            value["list"],
            json!([{"metadata": {"name": "n", "labels": {"bad": "x y"}}}, {"metadata": 1}])
        );
        assert_eq!(value["plain"]["metadata"], meta);
    }

    #[test]
    fn metadata_of_any_writer_is_made_metadata() {
        let mut object = json!({"metadata": {"name": "n", "unknown": 1, "generation": null, "annotations": {"a": 1, "b": "c"},
            "labels": {"bad": "x y"}, "managedFields": [{"manager": "m", "fieldsV1": {"f:a": {}}}]}});
        own_metadata(&mut object);
        let fields = json!([{"manager": "m", "fieldsV1": {"f:a": {}}}]);
        let labels = json!({"bad": "x y"});
        let made = json!({"name": "n", "generation": 1, "labels": labels, "managedFields": fields});
        assert_eq!(object["metadata"], made);
        let before = json!({"metadata": {"name": "n", "generation": 3}, "spec": {"metadata": 1}});
        let mut after = before.clone();
        own_metadata(&mut after);
        assert_eq!(after, before);
    }
}
