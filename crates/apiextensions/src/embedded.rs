//! Metadata of embedded resources, as it may be stored from a time when the schema did not call it that.
//!
//! Invariant: what is shown as metadata has the types of metadata; writes are validated by the schema, and refused.
//! Source: apiextensions-apiserver, `pkg/apiserver/schema/objectmeta`.

use kaji_schema::{Schema, decode::check_types, prune::object_meta};
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
}
