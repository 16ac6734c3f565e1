//! One OpenAPI v2 document out of several.
//!
//! Invariants: what is there first stays as it is, except that a definition may gain kinds; what comes in brings the paths
//! that are its own and the definitions that these lead to, under other names where those are taken. Pure.
//!
//! Source: `MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters` and `FilterSpecByPaths` of kube-openapi.

use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashSet};

const KINDS: &str = "x-kubernetes-group-version-kind";

type Object = Map<String, Value>;

fn part<'a>(document: &'a Value, name: &str) -> Option<&'a Object> {
    document.get(name)?.as_object()
}

/// Calls for each reference below a value.
fn references<'a>(value: &'a Value, visit: &mut impl FnMut(&'a str)) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "$ref" => visit(text),
                    other => references(other, visit),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|v| references(v, visit)),
        _ => {}
    }
}

/// The definitions that paths lead to, themselves or through others. Each is looked at once.
fn used(document: &Value) -> HashSet<&str> {
    let (mut found, mut ahead): (HashSet<&str>, Vec<&str>) = Default::default();
    let definitions = part(document, "definitions");
    let mut next = document.get("paths");
    loop {
        if let Some(value) = next {
            references(value, &mut |reference| {
                if let Some(name) = reference.strip_prefix("#/definitions/")
                    && found.insert(name)
                {
                    ahead.push(name);
                }
            });
        }
        let Some(name) = ahead.pop() else { return found };
        next = definitions.and_then(|all| all.get(name));
    }
}

/// Keeps the paths that are wanted, and no definition that only others of them used.
pub(crate) fn filter(document: &Value, wanted: impl Fn(&str) -> bool) -> Value {
    let mut out = document.clone();
    let Some(paths) = out.get_mut("paths").and_then(Value::as_object_mut) else { return out };
    let before = paths.len();
    paths.retain(|path, _| wanted(path));
    if paths.len() == before {
        return out;
    }
    let first = used(document);
    let gone: HashSet<String> = {
        let now = used(&out);
        first.into_iter().filter(|name| !now.contains(name)).map(str::to_owned).collect()
    };
    if let Some(definitions) = out.get_mut("definitions").and_then(Value::as_object_mut) {
        definitions.retain(|name, _| !gone.contains(name));
    }
    out
}

/// Takes a document into another.
pub(crate) fn merge(into: &mut Value, from: &Value) {
    let Some(paths) = part(from, "paths") else { return };
    let taken = |path: &str| part(into, "paths").is_some_and(|p| p.contains_key(path));
    let conflicts = paths.keys().filter(|p| taken(p)).count();
    if paths.is_empty() || conflicts == paths.len() {
        return;
    }
    let mut from = match conflicts {
        0 => from.clone(),
        _ => filter(from, |path| !taken(path)),
    };
    for (section, same) in
        [("definitions", same_but_for_kinds as fn(&Value, &Value) -> bool), ("parameters", |a, b| a == b)]
    {
        let renames = renames(part(into, section), part(&from, section), same);
        if !renames.is_empty() {
            rename(&mut from, section, &renames);
        }
    }
    for section in ["definitions", "parameters", "paths"] {
        let Some(new) = from.get_mut(section).map(Value::take) else { continue };
        let Value::Object(new) = new else { continue };
        if !into[section].is_object() {
            into[section] = Value::Object(Object::new());
        }
        let Some(old) = into[section].as_object_mut() else { continue };
        for (name, value) in new {
            match old.get_mut(&name) {
                None => drop(old.insert(name, value)),
                Some(there) if section == "definitions" => add_kinds(there, &value),
                Some(_) => {}
            }
        }
    }
}

/// New names for what is there under the same name and is something else.
fn renames(
    old: Option<&Object>,
    new: Option<&Object>,
    same: fn(&Value, &Value) -> bool,
) -> BTreeMap<String, String> {
    let (Some(old), Some(new)) = (old, new) else { return BTreeMap::new() };
    let mut given: BTreeSet<String> = BTreeSet::new();
    let mut renames = BTreeMap::new();
    for (name, value) in new {
        if old.get(name).is_none_or(|there| same(there, value)) {
            continue;
        }
        let mut names = (2..).map(|i| format!("{name}_v{i}"));
        let free = names.find(|candidate| match old.get(candidate) {
            // Another server brought the same under that name.
            Some(there) => same(there, value),
            None => !given.contains(candidate) && !new.contains_key(candidate),
        });
        if let Some(free) = free {
            given.insert(free.clone());
            renames.insert(name.clone(), free);
        }
    }
    renames
}

fn rename(document: &mut Value, section: &str, renames: &BTreeMap<String, String>) {
    let prefix = format!("#/{section}/");
    replace(document, &|reference| {
        let new = renames.get(reference.strip_prefix(&prefix)?)?;
        Some(format!("{prefix}{new}"))
    });
    let Some(map) = document.get_mut(section).and_then(Value::as_object_mut) else { return };
    for (old, new) in renames {
        if let Some(value) = map.remove(old) {
            map.insert(new.clone(), value);
        }
    }
}

fn replace(value: &mut Value, with: &impl Fn(&str) -> Option<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "$ref" => {
                        if let Some(new) = with(text) {
                            *text = new;
                        }
                    }
                    other => replace(other, with),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|v| replace(v, with)),
        _ => {}
    }
}

fn same_but_for_kinds(one: &Value, other: &Value) -> bool {
    let (Some(a), Some(b)) = (one.as_object(), other.as_object()) else { return one == other };
    let without = |map: &Object| map.len() - usize::from(map.contains_key(KINDS));
    without(a) == without(b) && a.iter().all(|(key, value)| key == KINDS || b.get(key) == Some(value))
}

fn add_kinds(there: &mut Value, more: &Value) {
    let Some(new) = more.get(KINDS).and_then(Value::as_array) else { return };
    let Some(there) = there.as_object_mut() else { return };
    let kinds = there.entry(KINDS).or_insert_with(|| Value::Array(vec![]));
    let Some(kinds) = kinds.as_array_mut() else { return };
    let mut known: HashSet<String> = kinds.iter().map(Value::to_string).collect();
    let before = kinds.len();
    kinds.extend(new.iter().filter(|kind| known.insert(kind.to_string())).cloned());
    if kinds.len() != before {
        let key = |k: &Value| {
            let text = |field: &str| k[field].as_str().unwrap_or_default().to_owned();
            format!("{}/{}.{}", text("group"), text("version"), text("kind"))
        };
        kinds.sort_by_cached_key(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn own() -> Value {
        json!({
            "swagger": "2.0",
            "paths": {"/api/v1/pods": {"get": {"schema": {"$ref": "#/definitions/Pod"}}}},
            "definitions": {
                "Pod": {"type": "object", "description": "ours"},
                "Meta": {"type": "object", KINDS: [{"group": "", "kind": "X", "version": "v1"}]},
            },
            "parameters": {"name": {"in": "path"}},
        })
    }

    fn theirs() -> Value {
        json!({
            "paths": {
                "/apis/a.io/v1/x": {"get": {"parameters": [{"$ref": "#/parameters/name"}], "schema": {"$ref": "#/definitions/X"}}},
                "/apis/b.io/v1/y": {"get": {"schema": {"$ref": "#/definitions/Y"}}},
                "/api/v1/pods": {"get": {"operationId": "stolen", "schema": {"$ref": "#/definitions/Stolen"}}},
            },
            "definitions": {
                "X": {"type": "object", "properties": {"pod": {"$ref": "#/definitions/Pod"}, "meta": {"$ref": "#/definitions/Meta"}}},
                "Y": {"type": "object", "properties": {"z": {"$ref": "#/definitions/Z"}}},
                "Z": {"type": "object"},
                "Pod": {"type": "object", "description": "theirs"},
                "Meta": {"type": "object", KINDS: [{"group": "a.io", "kind": "X", "version": "v1"}]},
                "Stolen": {"type": "object"},
                "Alone": {"type": "object"},
            },
            "parameters": {"name": {"in": "query"}},
        })
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn what_is_taken_gets_another_name() {
        let mut all = own();
        let x = filter(&theirs(), |p| p.starts_with("/apis/a.io/v1/"));
        merge(&mut all, &x);
        expect![[r##"
            {
              "definitions": {
                "Alone": {
                  "type": "object"
                },
                "Meta": {
                  "type": "object",
                  "x-kubernetes-group-version-kind": [
                    {
                      "group": "",
                      "kind": "X",
                      "version": "v1"
                    },
                    {
                      "group": "a.io",
                      "kind": "X",
                      "version": "v1"
                    }
                  ]
                },
                "Pod": {
                  "description": "ours",
                  "type": "object"
                },
                "Pod_v2": {
                  "description": "theirs",
                  "type": "object"
                },
                "X": {
                  "properties": {
                    "meta": {
                      "$ref": "#/definitions/Meta"
                    },
                    "pod": {
                      "$ref": "#/definitions/Pod_v2"
                    }
                  },
                  "type": "object"
                }
              },
              "parameters": {
                "name": {
                  "in": "path"
                },
                "name_v2": {
                  "in": "query"
                }
              },
              "paths": {
                "/api/v1/pods": {
                  "get": {
                    "schema": {
                      "$ref": "#/definitions/Pod"
                    }
                  }
                },
                "/apis/a.io/v1/x": {
                  "get": {
                    "parameters": [
                      {
                        "$ref": "#/parameters/name_v2"
                      }
                    ],
                    "schema": {
                      "$ref": "#/definitions/X"
                    }
                  }
                }
              },
              "swagger": "2.0"
            }"##]]
        .assert_eq(&serde_json::to_string_pretty(&all).unwrap());
        // Another server with the same definitions shares them; nothing is stolen.
        merge(&mut all, &theirs());
        let names: Vec<_> = part(&all, "definitions").unwrap().keys().cloned().collect();
        assert_eq!(names, ["Alone", "Meta", "Pod", "Pod_v2", "X", "Y", "Z"]);
        assert_eq!(all["paths"]["/api/v1/pods"], own()["paths"]["/api/v1/pods"]);
    }

    /// A chain of definitions, one of which only a path of others leads to, costs no more than its length.
    #[test]
    fn long_chains_are_walked_once() {
        let definition =
            |next: usize| json!({"properties": {"next": {"$ref": format!("#/definitions/{next}")}}});
        let all = 20_000;
        let chain: Object = (0..all).map(|i| (i.to_string(), definition(i + 1))).collect();
        let path = |to: &str| json!({"get": {"schema": {"$ref": format!("#/definitions/{to}")}}});
        let document = json!({"paths": {"/mine": path("5"), "/other": path("0")}, "definitions": chain});
        let kept = filter(&document, |p| p == "/mine");
        assert_eq!(part(&kept, "definitions").unwrap().len(), all - 5);
        // Kinds are compared by their texts.
        let kinds: Vec<Value> =
            (0..all).map(|i| json!({"group": "g", "version": "v", "kind": i.to_string()})).collect();
        let mut there = json!({"type": "object", KINDS: kinds});
        let more = there.clone();
        add_kinds(&mut there, &more);
        assert_eq!(there, more);
    }

    /// Those that lead to each other, and nothing else to them, go too.
    #[test]
    fn circles_go_with_what_leads_to_them() {
        let reference = |to: &str| json!({"items": {"$ref": format!("#/definitions/{to}")}});
        let document = json!({
            "paths": {"/mine": {}, "/other": reference("A")},
            "definitions": {"A": reference("B"), "B": reference("A"), "Alone": {}},
        });
        let kept = filter(&document, |p| p == "/mine");
        assert_eq!(kept["definitions"], json!({"Alone": {}}));
    }

    #[test]
    fn what_is_no_document_changes_nothing() {
        for odd in [json!([]), json!({"paths": []}), json!({"paths": {}}), json!(null)] {
            let mut all = own();
            merge(&mut all, &odd);
            assert_eq!(all, own());
            filter(&odd, |_| false);
        }
        let mut all = own();
        merge(&mut all, &json!({"paths": {"/x": 1}, "definitions": [], "parameters": 7}));
        assert_eq!(all["paths"]["/x"], 1);
    }
}
