//! Which field manager holds a field, and which value the field has: the entries of `metadata.managedFields`.
//!
//! Source: FieldsV1, a tree of `f:NAME`, `k:{KEYS}`, `v:VALUE` and `i:INDEX`; a member is a leaf, or has the entry `.`. Paths are
//! spelt as the API server spells them in conflicts.
//!
//! Invariant: a tree is walked to a bounded depth, whatever it holds.

use kaji_meta::object::{arr_at, str_at};
use serde_json::{Map, Value};

/// Deeper than any type; a path that is deeper is not found.
const DEEPEST: usize = 64;

/// The elements of a path, from the object.
pub type Path = Vec<String>;

/// An entry of a manager that holds a field.
pub struct Held<'a> {
    /// The entry.
    pub entry: &'a Value,
    /// Where the field is.
    pub path: Path,
}

/// The entry of a manager that holds a field, by the field's spelling.
pub fn holding<'a>(object: &'a Value, manager: &str, subresource: &str, field: &str) -> Option<Held<'a>> {
    let of_manager = |entry: &&Value| {
        str_at(entry, &["manager"]) == manager && str_at(entry, &["subresource"]) == subresource
    };
    let mut entries = arr_at(object, &["metadata", "managedFields"]).iter().filter(of_manager);
    entries.find_map(|entry| {
        let mut path = vec![];
        let tree = entry.get("fieldsV1")?.as_object()?;
        find(tree, field, &mut path).then_some(Held { entry, path })
    })
}

/// Whether the rest of a field's spelling leads to a member of a tree; the elements on the way are in `path` then.
fn find(tree: &Map<String, Value>, rest: &str, path: &mut Path) -> bool {
    if rest.is_empty() {
        return tree.is_empty() || tree.contains_key(".");
    }
    if path.len() == DEEPEST {
        return false;
    }
    tree.iter().any(|(element, below)| {
        let (Some(shown), Some(below)) = (shown(element), below.as_object()) else { return false };
        let Some(rest) = rest.strip_prefix(shown.as_str()) else { return false };
        path.push(element.clone());
        let found = find(below, rest, path);
        if !found {
            path.pop();
        }
        found
    })
}

/// An element as conflicts spell it: `.name`, `[name="web"]`, `[="value"]`, `[0]`.
fn shown(element: &str) -> Option<String> {
    let (kind, rest) = element.split_at_checked(2)?;
    match kind {
        "f:" => Some(format!(".{rest}")),
        "k:" => {
            let keys: Map<String, Value> = serde_json::from_str(rest).ok()?;
            let mut keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            keys.sort();
            Some(format!("[{}]", keys.join(",")))
        }
        "v:" => Some(format!("[={rest}]")),
        "i:" => Some(format!("[{rest}]")),
        _ => None,
    }
}

/// What an object has at a path.
pub fn value_at<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, element| {
        let (kind, rest) = element.split_at_checked(2)?;
        match kind {
            "f:" => value.get(rest),
            "k:" => {
                let keys: Map<String, Value> = serde_json::from_str(rest).ok()?;
                let is_it = |item: &&Value| keys.iter().all(|(key, value)| item.get(key) == Some(value));
                value.as_array()?.iter().find(is_it)
            }
            "v:" => {
                let wanted: Value = serde_json::from_str(rest).ok()?;
                value.as_array()?.iter().find(|item| **item == wanted)
            }
            "i:" => value.get(rest.parse::<usize>().ok()?),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(fields: Value) -> Value {
        json!({
            "metadata": {"managedFields": [{"manager": "m", "fieldsV1": fields}]},
            "spec": {"replicas": 3, "ports": [{"port": 80, "protocol": "TCP", "name": "a"}], "set": ["x"], "list": [1, 2], "a": {"b.c": 1}},
        })
    }

    #[test]
    fn fields_are_found_by_their_spelling() {
        let object = object(json!({"f:spec": {
            "f:replicas": {},
            "f:a": {"f:b.c": {}},
            "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}},
            "f:set": {"v:\"x\"": {}},
            "f:list": {"i:1": {}},
        }}));
        let fields = [
            ".spec.replicas",
            ".spec.a.b.c",
            ".spec.ports[port=80,protocol=\"TCP\"]",
            ".spec.ports[port=80,protocol=\"TCP\"].name",
            ".spec.set[=\"x\"]",
            ".spec.list[1]",
            ".spec.ports",
            ".spec.other",
            "",
        ];
        let text: Vec<String> = fields
            .iter()
            .map(|field| match holding(&object, "m", "", field) {
                Some(held) => format!("{field}: {}", value_at(&object, &held.path).unwrap_or(&Value::Null)),
                None => format!("{field} is not held"),
            })
            .collect();
        expect_test::expect![[r#"
            .spec.replicas: 3
            .spec.a.b.c: 1
            .spec.ports[port=80,protocol="TCP"]: {"name":"a","port":80,"protocol":"TCP"}
            .spec.ports[port=80,protocol="TCP"].name: "a"
            .spec.set[="x"]: "x"
            .spec.list[1]: 2
            .spec.ports is not held
            .spec.other is not held
             is not held"#]]
        .assert_eq(&text.join("\n"));
        assert!(holding(&object, "n", "", ".spec.replicas").is_none());
        assert!(holding(&object, "m", "scale", ".spec.replicas").is_none());
    }

    #[test]
    fn malformed_trees_hold_nothing() {
        let mut deep = json!({});
        for _ in 0..100 {
            deep = json!({"f:": deep});
        }
        let trees = [json!(null), json!([1]), json!({"x": {}, "f:spec": 1, "k:no": {}, "ü": {}}), deep];
        for tree in trees {
            let object = object(tree);
            for field in [".spec", &".".repeat(100)] {
                assert!(holding(&object, "m", "", field).is_none());
            }
        }
        let path: Path = ["", "f", "i:x", "v:{", "k:no"].map(str::to_owned).to_vec();
        assert!(
            path.iter().all(|element| value_at(&object(json!({})), std::slice::from_ref(element)).is_none())
        );
    }
}
