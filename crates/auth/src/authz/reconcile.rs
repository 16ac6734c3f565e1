//! Reconciliation of default roles and bindings, which keeps what an administrator added.
//!
//! Source: upstream's `component-helpers/auth/rbac/reconciliation`.

use super::{PolicyRule, policy::AUTO_UPDATE, rule::uncovered};
use kaji_meta::object;
use serde_json::{Map, Value, json};

/// What is to be done about a default object.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Nothing.
    Keep,
    /// It is not there.
    Create,
    /// It lacks something; this is the whole object.
    Update(Value),
    /// It names another role, which cannot be changed.
    Recreate,
}

/// Compares what is there with what should be.
pub fn reconcile(existing: Option<&Value>, expected: &Value) -> Action {
    let Some(existing) = existing else { return Action::Create };
    let annotations = &existing["metadata"]["annotations"];
    if annotations.get(AUTO_UPDATE).and_then(Value::as_str) == Some("false") {
        return Action::Keep;
    }
    let mut object = existing.clone();
    let mut changed = merge(&mut object, expected, "annotations");
    changed |= merge(&mut object, expected, "labels");
    if let Some(role) = expected.get("roleRef") {
        let same = |f: &str| role.get(f) == existing["roleRef"].get(f);
        if !["apiGroup", "kind", "name"].iter().all(|f| same(f)) {
            return Action::Recreate;
        }
        changed |= add_missing(&mut object, expected, "subjects");
    } else {
        changed |= add_rules(&mut object, expected);
        changed |= aggregation(&mut object, expected);
    }
    if changed { Action::Update(object) } else { Action::Keep }
}

/// A default binding as it is created beside the one from which it was split off: with the subjects, labels and annotations of
/// that one, so that what an administrator restricted stays restricted.
pub fn split_off(from: &Value, mut binding: Value) -> Value {
    let taken: [&[&str]; 3] = [&["subjects"], &["metadata", "labels"], &["metadata", "annotations"]];
    for path in taken {
        match object::at(from, path) {
            Some(value) => object::set_at(&mut binding, path, value.clone()),
            None => drop(object::remove_at(&mut binding, path)),
        }
    }
    binding
}

/// Adds the entries of a map in the metadata that are not there; what is there wins.
fn merge(object: &mut Value, expected: &Value, field: &str) -> bool {
    let Some(wanted) = expected["metadata"][field].as_object() else { return false };
    let meta = &mut object["metadata"][field];
    if !meta.is_object() {
        *meta = Value::Object(Map::new());
    }
    let Some(map) = meta.as_object_mut() else { return false };
    let before = map.len();
    for (key, value) in wanted {
        map.entry(key).or_insert_with(|| value.clone());
    }
    map.len() != before
}

fn items<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn append(object: &mut Value, field: &str, new: Vec<Value>) -> bool {
    if new.is_empty() {
        return false;
    }
    match object.get_mut(field).and_then(Value::as_array_mut) {
        Some(list) => list.extend(new),
        None => object[field] = new.into(),
    }
    true
}

fn add_missing(object: &mut Value, expected: &Value, field: &str) -> bool {
    let known = items(object, field);
    let new = items(expected, field).iter().filter(|e| !known.contains(e)).cloned().collect();
    append(object, field, new)
}

fn add_rules(object: &mut Value, expected: &Value) -> bool {
    let known = PolicyRule::of_role(object);
    let missing = uncovered(known.iter(), &PolicyRule::of_role(expected));
    append(object, "rules", missing.iter().map(PolicyRule::to_value).collect())
}

fn aggregation(object: &mut Value, expected: &Value) -> bool {
    match expected.get("aggregationRule") {
        None => object.as_object_mut().is_some_and(|o| o.remove("aggregationRule").is_some()),
        Some(wanted) => {
            if !object["aggregationRule"].is_object() {
                object["aggregationRule"] = json!({});
            }
            add_missing(&mut object["aggregationRule"], wanted, "clusterRoleSelectors")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(labels: Value, annotations: Value, rules: Value) -> Value {
        json!({"metadata": {"name": "r", "labels": labels, "annotations": annotations}, "rules": rules})
    }

    #[test]
    fn reconciliation_keeps_added_rules() {
        let pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
        let nodes = json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]});
        let expected = role(json!({"l": "1"}), json!({AUTO_UPDATE: "true"}), json!([pods]));
        assert_eq!(reconcile(None, &expected), Action::Create);
        assert_eq!(reconcile(Some(&expected), &expected), Action::Keep);
        let more = role(json!({"l": "2"}), json!({AUTO_UPDATE: "true"}), json!([nodes, pods]));
        assert_eq!(reconcile(Some(&more), &expected), Action::Keep);
        let less = role(json!({"m": "2"}), json!({AUTO_UPDATE: "true"}), json!([nodes]));
        let whole = role(json!({"l": "1", "m": "2"}), json!({AUTO_UPDATE: "true"}), json!([nodes, pods]));
        assert_eq!(reconcile(Some(&less), &expected), Action::Update(whole));
        let protected = role(json!({}), json!({AUTO_UPDATE: "false"}), json!([]));
        assert_eq!(reconcile(Some(&protected), &expected), Action::Keep);
        let bare = json!({"metadata": {"name": "r"}});
        assert_eq!(reconcile(Some(&bare), &expected), Action::Update(expected.clone()));
    }

    #[test]
    fn recreates_bindings_with_another_role() {
        let binding = |role: &str, subjects: Value| json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": role}, "subjects": subjects});
        let expected = binding("a", json!([{"name": "x"}]));
        assert_eq!(reconcile(Some(&binding("b", json!([]))), &expected), Action::Recreate);
        assert_eq!(
            reconcile(Some(&binding("a", json!([{"name": "y"}, {"name": "x"}]))), &expected),
            Action::Keep
        );
        let whole = binding("a", json!([{"name": "y"}, {"name": "x"}]));
        assert_eq!(reconcile(Some(&binding("a", json!([{"name": "y"}]))), &expected), Action::Update(whole));
    }

    #[test]
    fn what_is_split_off_has_the_restrictions_of_the_other() {
        let wanted = json!({"metadata": {"name": "new", "labels": {"l": "1"}, "annotations": {AUTO_UPDATE: "true"}},
            "roleRef": {"name": "new"}, "subjects": [{"name": "x"}, {"name": "anyone"}]});
        let from = json!({"metadata": {"name": "old", "uid": "u", "annotations": {AUTO_UPDATE: "false"}},
            "roleRef": {"name": "old"}, "subjects": [{"name": "x"}]});
        let whole = json!({"metadata": {"name": "new", "annotations": {AUTO_UPDATE: "false"}},
            "roleRef": {"name": "new"}, "subjects": [{"name": "x"}]});
        assert_eq!(split_off(&from, wanted.clone()), whole);
        assert_eq!(reconcile(Some(&whole), &wanted), Action::Keep);
        let empty = json!({"metadata": {"name": "old"}, "roleRef": {"name": "old"}});
        let bare = json!({"metadata": {"name": "new"}, "roleRef": {"name": "new"}});
        assert_eq!(split_off(&empty, wanted), bare);
    }

    #[test]
    fn aggregation_follows() {
        let selector = |v: &str| json!({"matchLabels": {"a": v}});
        let plain = json!({"metadata": {}});
        let mut aggregated = plain.clone();
        aggregated["aggregationRule"] = json!({"clusterRoleSelectors": [selector("1")]});
        assert_eq!(reconcile(Some(&plain), &aggregated), Action::Update(aggregated.clone()));
        assert_eq!(reconcile(Some(&aggregated), &plain), Action::Update(plain.clone()));
        let mut more = aggregated.clone();
        more["aggregationRule"]["clusterRoleSelectors"] = json!([selector("2"), selector("1")]);
        assert_eq!(reconcile(Some(&more), &aggregated), Action::Keep);
    }
}
