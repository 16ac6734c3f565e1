//! Reading and editing objects that are plain JSON values.
//!
//! Readers borrow and never fail: what is absent or of another type reads as empty. Writers create what is missing on
//! the way, replacing anything there that is not an object.

use serde_json::{Map, Value};

/// Maps of so many members have one node, which is quicker to go through than to search: most names differ in their length.
const ONE_NODE: usize = 11;

/// The member of a map under a name: what `map.get(name)` gives, with fewer instructions for small maps.
#[inline]
pub fn member<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if map.len() > ONE_NODE {
        return map.get(name);
    }
    let first = name.as_bytes().first();
    for (key, value) in map {
        let key = key.as_bytes();
        if key.len() == name.len() && key == name.as_bytes() {
            return Some(value);
        }
        // Members come in the order of their names.
        if key.first() > first {
            return None;
        }
    }
    None
}

/// What Go's JSON decoder calls a value in its errors.
pub fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn step<'a>(v: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(v, |v, name| member(v.as_object()?, name))
}

/// The value at a path of field names; `None` if absent (JSON null is `Some(Null)`).
pub fn at<'a>(v: &'a Value, path: &[&str]) -> Option<&'a Value> {
    step(v, path)
}

/// The string at a path, or `""`.
pub fn str_at<'a>(v: &'a Value, path: &[&str]) -> &'a str {
    step(v, path).and_then(Value::as_str).unwrap_or("")
}

/// The integer at a path.
pub fn i64_at(v: &Value, path: &[&str]) -> Option<i64> {
    step(v, path).and_then(Value::as_i64)
}

/// The boolean at a path.
pub fn bool_at(v: &Value, path: &[&str]) -> Option<bool> {
    step(v, path).and_then(Value::as_bool)
}

/// The items of the list at a path, or an empty slice.
pub fn arr_at<'a>(v: &'a Value, path: &[&str]) -> &'a [Value] {
    step(v, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The map at a path.
pub fn obj_at<'a>(v: &'a Value, path: &[&str]) -> Option<&'a Map<String, Value>> {
    step(v, path).and_then(Value::as_object)
}

/// The string entries of the map at a path.
pub fn str_map_at<'a>(v: &'a Value, path: &[&str]) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
    obj_at(v, path).into_iter().flatten().filter_map(|(k, v)| Some((k.as_str(), v.as_str()?)))
}

/// The strings of the list at a path.
pub fn strs_at<'a>(v: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a str> + use<'a> {
    arr_at(v, path).iter().filter_map(Value::as_str)
}

/// The object that `v` is, made one if it is not.
fn as_map(v: &mut Value) -> &mut Map<String, Value> {
    if !v.is_object() {
        *v = Value::Object(Map::new());
    }
    match v {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

/// The map at a path, created if need be.
pub fn map_mut_at<'a>(v: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    let mut map = as_map(v);
    for key in path {
        map = as_map(map.entry(*key).or_insert(Value::Null));
    }
    map
}

/// A field of an object; null if it was absent.
pub fn field_mut<'a>(v: &'a mut Value, name: &str) -> &'a mut Value {
    as_map(v).entry(name).or_insert(Value::Null)
}

/// Puts a value at a path, creating the maps on the way. An empty path replaces `v` itself.
pub fn set_at(v: &mut Value, path: &[&str], value: impl Into<Value>) {
    match path.split_last() {
        None => *v = value.into(),
        Some((last, parents)) => {
            map_mut_at(v, parents).insert((*last).to_owned(), value.into());
        }
    }
}

/// Takes out the field at a path; creates nothing.
pub fn remove_at(v: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, parents) = path.split_last()?;
    let parent = parents.iter().try_fold(v, |v, key| v.get_mut(*key))?;
    parent.as_object_mut()?.remove(*last)
}

/// `metadata`, if it is a map.
pub fn meta(v: &Value) -> Option<&Map<String, Value>> {
    obj_at(v, &["metadata"])
}

/// `metadata`, created if need be.
pub fn meta_mut(v: &mut Value) -> &mut Map<String, Value> {
    map_mut_at(v, &["metadata"])
}

/// `apiVersion`.
pub fn api_version(v: &Value) -> &str {
    str_at(v, &["apiVersion"])
}

/// `kind`.
pub fn kind(v: &Value) -> &str {
    str_at(v, &["kind"])
}

/// `metadata.name`.
pub fn name(v: &Value) -> &str {
    str_at(v, &["metadata", "name"])
}

/// `metadata.generateName`.
pub fn generate_name(v: &Value) -> &str {
    str_at(v, &["metadata", "generateName"])
}

/// `metadata.namespace`.
pub fn namespace(v: &Value) -> &str {
    str_at(v, &["metadata", "namespace"])
}

/// `metadata.uid`.
pub fn uid(v: &Value) -> &str {
    str_at(v, &["metadata", "uid"])
}

/// `metadata.resourceVersion`.
pub fn resource_version(v: &Value) -> &str {
    str_at(v, &["metadata", "resourceVersion"])
}

/// `metadata.generation`; 0 if absent.
pub fn generation(v: &Value) -> i64 {
    i64_at(v, &["metadata", "generation"]).unwrap_or(0)
}

/// `metadata.creationTimestamp`, RFC 3339.
pub fn creation_timestamp(v: &Value) -> Option<&str> {
    step(v, &["metadata", "creationTimestamp"]).and_then(Value::as_str)
}

/// How long the object has existed, for people (`5m`); `<unknown>` without a creation timestamp.
pub fn age(v: &Value, now: jiff::Timestamp) -> String {
    crate::time::time_since(creation_timestamp(v).unwrap_or_default(), now)
}

/// `metadata.deletionTimestamp`, RFC 3339; `Some` means that the object is being deleted.
pub fn deletion_timestamp(v: &Value) -> Option<&str> {
    step(v, &["metadata", "deletionTimestamp"]).and_then(Value::as_str)
}

/// `metadata.deletionGracePeriodSeconds`.
pub fn deletion_grace_period_seconds(v: &Value) -> Option<i64> {
    i64_at(v, &["metadata", "deletionGracePeriodSeconds"])
}

/// Keys and values of `metadata.labels`.
pub fn labels(v: &Value) -> impl Iterator<Item = (&str, &str)> {
    str_map_at(v, &["metadata", "labels"])
}

/// The value of one label.
pub fn label<'a>(v: &'a Value, key: &str) -> Option<&'a str> {
    step(v, &["metadata", "labels", key]).and_then(Value::as_str)
}

/// Keys and values of `metadata.annotations`.
pub fn annotations(v: &Value) -> impl Iterator<Item = (&str, &str)> {
    str_map_at(v, &["metadata", "annotations"])
}

/// The value of one annotation.
pub fn annotation<'a>(v: &'a Value, key: &str) -> Option<&'a str> {
    step(v, &["metadata", "annotations", key]).and_then(Value::as_str)
}

/// `metadata.finalizers`.
pub fn finalizers(v: &Value) -> impl Iterator<Item = &str> {
    strs_at(v, &["metadata", "finalizers"])
}

/// `metadata.ownerReferences`.
pub fn owner_references(v: &Value) -> &[Value] {
    arr_at(v, &["metadata", "ownerReferences"])
}

/// The owner reference with `controller` true.
pub fn controller_of(v: &Value) -> Option<&Value> {
    owner_references(v).iter().find(|r| bool_at(r, &["controller"]) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_metadata_and_members() {
        let v = json!({
            "kind": "Pod",
            "metadata": {
                "name": "n", "generation": 3, "labels": {"a": "b", "bad": 1}, "finalizers": ["x", 2, "y"],
                "ownerReferences": [{"uid": "1"}, {"uid": "2", "controller": true}],
                "deletionTimestamp": null
            },
            "spec": {"list": [1, 2], "on": true}
        });
        assert_eq!((kind(&v), name(&v), namespace(&v), generation(&v)), ("Pod", "n", "", 3));
        assert_eq!(labels(&v).collect::<Vec<_>>(), [("a", "b")]);
        assert_eq!(finalizers(&v).collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(controller_of(&v).map(|r| str_at(r, &["uid"])), Some("2"));
        assert_eq!(deletion_timestamp(&v), None);
        assert_eq!(arr_at(&v, &["spec", "list"]).len(), 2);
        assert_eq!(bool_at(&v, &["spec", "on"]), Some(true));
        assert_eq!(i64_at(&v, &["spec", "on"]), None);
        assert_eq!(label(&v, "a"), Some("b"));
    }

    #[test]
    fn writes_and_removes_members() {
        let mut v = json!({"spec": "oops"});
        set_at(&mut v, &["spec", "a", "b"], 1);
        meta_mut(&mut v).insert("name".into(), "x".into());
        assert_eq!(v, json!({"spec": {"a": {"b": 1}}, "metadata": {"name": "x"}}));
        assert_eq!(remove_at(&mut v, &["spec", "a", "b"]), Some(json!(1)));
        assert_eq!(remove_at(&mut v, &["none", "a"]), None);
        assert_eq!(v, json!({"spec": {"a": {}}, "metadata": {"name": "x"}}));
        set_at(&mut v, &[], json!(5));
        assert_eq!(v, json!(5));
    }
}
