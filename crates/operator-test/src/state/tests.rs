//! Tests of comparable states.

use super::*;
use expect_test::expect;
use serde_json::json;

fn pod(name: &str, fields: Value) -> (String, Value) {
    let mut object = json!({"metadata": {"name": name, "namespace": "d", "generateName": "web-", "uid": name,
        "resourceVersion": name, "creationTimestamp": "2026-01-01T00:00:00Z"}});
    object["spec"] = fields;
    ("pods".into(), object)
}

fn map(name: &str, data: Value) -> (String, Value) {
    ("configmaps".into(), json!({"metadata": {"name": name, "namespace": "d"}, "data": data}))
}

#[test]
fn names_times_addresses_and_uids_do_not_matter() {
    let of = |suffix: &str, time: &str, address: &str, uid: &str| {
        let name = format!("web-{suffix}");
        let data = json!({"pod": name, "at": time, "ip": address, "uid": uid});
        State::of(&vec![pod(&name, json!({"a": 1})), map("m", data)])
    };
    let one = of("x1", "2026-01-01T00:00:00Z", "10.0.0.1", "123e4567-e89b-12d3-a456-426614174000");
    let two = of("y2", "2026-05-01T00:00:00.123456Z", "fd00::1", "00000000-e89b-12d3-a456-426614174000");
    assert_eq!(one, two);
    let other = State::of(&vec![map("m", json!({"pod": "web-x1"}))]);
    assert_ne!(one, other);
}

#[test]
fn the_order_of_endpoints_does_not_matter() {
    let of = |pods: [(&str, &str); 2]| {
        let endpoints =
            pods.map(|(name, address)| json!({"targetRef": {"name": name}, "addresses": [address]}));
        let metadata = json!({"name": "web-1", "namespace": "d", "generateName": "web-"});
        let slice = json!({"metadata": metadata, "endpoints": endpoints});
        State::of(&vec![("endpointslices.discovery.k8s.io".into(), slice)])
    };
    assert_eq!(of([("a", "10.0.0.1"), ("b", "10.0.0.2")]), of([("b", "10.0.0.3"), ("a", "10.0.0.4")]));
    assert_ne!(of([("a", "10.0.0.1"), ("b", "10.0.0.2")]), of([("a", "10.0.0.1"), ("c", "10.0.0.2")]));
}

#[test]
fn differences_name_objects_and_fields() {
    let reference = State::of(&vec![
        map("same", json!({})),
        map("a", json!({"x": "1", "y": "2"})),
        map("gone", json!({})),
        pod("web-1", json!({})),
    ]);
    let is = State::of(&vec![
        map("same", json!({})),
        map("a", json!({"x": "1", "y": "3", "z": 4})),
        map("new", json!({})),
        pod("web-2", json!({})),
        pod("web-3", json!({})),
    ]);
    expect![[r#"
        configmaps d/a .data.y: "3", not "2"
        configmaps d/a .data.z: 4, not absent
        configmaps d/gone is missing
        configmaps d/new should not be there
        pods d/web-*: 2 objects, not 1"#]]
    .assert_eq(&is.differences(&reference, &Mask::default()).join("\n"));
}

#[test]
fn what_differs_without_faults_is_masked() {
    let of = |random: &str, count: usize| {
        let mut objects = vec![map("a", json!({"random": random, "fixed": "1"}))];
        objects.extend((0..count).map(|i| map(&format!("m{i}"), json!({}))));
        State::of(&objects)
    };
    let mask = of("1", 1).mask(&of("2", 2), &[]);
    assert_eq!(mask.len(), 2);
    assert!(of("3", 1).differences(&of("1", 2), &mask).is_empty());
    let ignore = Ignore { resource: "configmaps".into(), path: ".data.fixed".into() };
    let other = State::of(&vec![map("a", json!({"random": "1", "fixed": "2"}))]);
    assert_eq!(other.differences(&of("1", 0), &Mask::default()).len(), 1);
    assert!(other.differences(&of("1", 0), &of("1", 0).mask(&of("1", 0), &[ignore])).is_empty());
}

#[test]
fn objects_without_their_owners_are_orphans() {
    let owned = |owner: &str| {
        let mut object = map("owned", json!({}));
        object.1["metadata"]["ownerReferences"] = json!([{"uid": owner, "kind": "Pod"}]);
        object
    };
    let pod = pod("web-1", json!({}));
    assert!(orphans(&vec![pod.clone(), owned("web-1")]).is_empty());
    assert_eq!(orphans(&vec![pod, owned("web-2")]), ["configmaps d/owned"]);
}
