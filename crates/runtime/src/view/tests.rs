//! A snapshot finds objects by key, namespace, owner and further terms, and tells what has changed since a former one.

use super::*;
use crate::objects::ReplicaSet;
use kaji_meta::json;
use serde_json::json;

fn replica_set(name: &str, owner: &str, replicas: i64) -> ReplicaSet {
    let mut set =
        json!({"metadata": {"name": name, "namespace": "n", "uid": name}, "spec": {"replicas": replicas}});
    if !owner.is_empty() {
        set["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": owner, "uid": owner, "controller": true}]);
    }
    json::from_value(&set).unwrap()
}

fn names<'a>(sets: impl Iterator<Item = &'a Arc<ReplicaSet>>) -> Vec<&'a str> {
    sets.map(|set| set.meta().name.as_str()).collect()
}

#[test]
fn objects_are_found_by_key_namespace_and_owner() {
    let mut sets =
        ObjectSnapshot::of([replica_set("b", "d", 1), replica_set("a", "d", 1), replica_set("c", "", 1)]);
    assert_eq!((sets.len(), names(sets.iter())), (3, vec!["a", "b", "c"]));
    assert_eq!(names(sets.in_namespace("n")), ["a", "b", "c"]);
    assert_eq!(names(sets.in_namespace("m")), [""; 0]);
    assert_eq!(names(sets.get("n", "b").into_iter()), ["b"]);
    assert_eq!(names(sets.owned_by("d")), ["a", "b"]);
    assert_eq!(names(sets.orphans("n")), ["c"]);

    // An object that changes its owner changes its place in the index.
    let before = sets.insert(Arc::new(replica_set("b", "e", 1))).unwrap();
    assert_eq!(before.meta().controller().unwrap().uid, "d");
    assert_eq!((names(sets.owned_by("d")), names(sets.owned_by("e"))), (vec!["a"], vec!["b"]));
    assert_eq!(sets.remove(&Key::new("n", "b")).unwrap().meta().name, "b");
    assert!(sets.remove(&Key::new("n", "b")).is_none());
    assert_eq!((names(sets.owned_by("e")).len(), sets.len()), (0, 2));
}

#[test]
fn changes_are_those_of_contents() {
    let former =
        ObjectSnapshot::of([replica_set("a", "", 1), replica_set("b", "", 1), replica_set("c", "", 1)]);
    let mut sets = former.clone();
    assert_eq!(sets.changes_since(&former).count(), 0);
    // The same contents once more are no change.
    sets.insert(Arc::new(replica_set("a", "", 1)));
    sets.insert(Arc::new(replica_set("b", "", 2)));
    sets.remove(&Key::new("n", "c"));
    sets.insert(Arc::new(replica_set("d", "", 1)));
    let name = |set: Option<&Arc<ReplicaSet>>| set.map(|set| set.meta().name.clone()).unwrap_or_default();
    let changes: Vec<_> =
        sets.changes_since(&former).map(|(old, new)| format!("{}->{}", name(old), name(new))).collect();
    assert_eq!(changes, ["b->b", "c->", "->d"]);
    assert_eq!(former.len(), 3);
}
