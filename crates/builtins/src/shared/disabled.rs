//! Fields of features that are off by default: they are dropped on write, unless the stored object uses the feature already.
//!
//! Invariant: the fields of one feature stay or go together.

use super::value::{Fields, drop_field};
use serde_json::Value;

/// The fields of a feature, each with the way to it. Lists on the way are entered, and with `*` the values of a map.
pub type Feature = &'static [&'static [&'static str]];

/// Whether a field is set; an empty list is not.
fn is_set(value: &Value, path: &[&str]) -> bool {
    match (value, path) {
        (Value::Array(items), _) => items.iter().any(|item| is_set(item, path)),
        (value, []) => !value.is_null(),
        (Value::Object(map), ["*", rest @ ..]) => map.values().any(|value| is_set(value, rest)),
        (value, [field, rest @ ..]) => value.get_field(field).is_some_and(|value| is_set(value, rest)),
    }
}

fn unset(value: &mut Value, path: &[&str]) {
    match (value, path) {
        (Value::Array(items), _) => items.iter_mut().for_each(|item| unset(item, path)),
        (Value::Object(map), ["*", rest @ ..]) => map.values_mut().for_each(|value| unset(value, rest)),
        (value, [field]) => drop_field(value, field),
        (value, [field, rest @ ..]) => {
            if let Some(value) = value.get_mut(*field) {
                unset(value, rest);
            }
        }
        (_, []) => {}
    }
}

/// Whether any field of a feature is set.
pub fn uses(value: &Value, feature: Feature) -> bool {
    feature.iter().any(|path| is_set(value, path))
}

/// Drops the fields of a feature.
pub fn strip(value: &mut Value, feature: Feature) {
    feature.iter().for_each(|path| unset(value, path));
}

/// Drops the fields of features that are off from a new value; `old` is what is stored, or null.
pub fn drop_fields(new: &mut Value, old: &Value, features: &[Feature]) {
    for &feature in features {
        if uses(new, feature) && !uses(old, feature) {
            strip(new, feature);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LISTS: Feature = &[&["all", "*", "one"], &["all", "*", "two"]];
    const OWN: Feature = &[&["own"]];

    fn dropped(mut new: Value, old: Value) -> String {
        drop_fields(&mut new, &old, &[LISTS, OWN]);
        new.to_string()
    }

    #[test]
    fn fields_go_unless_their_feature_is_in_use() {
        let new =
            || json!({"all": [{"a": {"one": 1, "x": 1}, "b": {"two": {}}}, {"c": null}], "own": {}, "x": 1});
        assert_eq!(dropped(new(), Value::Null), r#"{"all":[{"a":{"x":1},"b":{}},{"c":null}],"x":1}"#);
        let uses_lists = json!({"all": [{"z": {"two": false}}], "own": null});
        assert_eq!(
            dropped(new(), uses_lists),
            r#"{"all":[{"a":{"one":1,"x":1},"b":{"two":{}}},{"c":null}],"x":1}"#
        );
        let uses_own = json!({"all": [{"z": {"two": []}}], "own": {}});
        assert_eq!(dropped(new(), uses_own), r#"{"all":[{"a":{"x":1},"b":{}},{"c":null}],"own":{},"x":1}"#);
        assert_eq!(dropped(json!("text"), Value::Null), r#""text""#);
        assert_eq!(dropped(json!({"all": 5, "own": []}), Value::Null), r#"{"all":5,"own":[]}"#);
    }
}
