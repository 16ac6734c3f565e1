//! Fixtures: which users are nodes, and what they may write.

use super::{
    differences, node_of,
    own_node::forbidden_labels,
    pods_on_node::{MIRROR, not_a_mirror, reference},
};
use expect_test::expect;
use kaji_resource::UserInfo;
use serde_json::{Value, json};

#[test]
fn identifies_nodes_by_name_and_group() {
    let user = |name: &str, group: &str| UserInfo {
        name: name.into(),
        groups: vec![group.into()],
        ..UserInfo::default()
    };
    assert_eq!(node_of(&user("system:node:n", "system:nodes")), Some("n"));
    assert_eq!(node_of(&user("system:node:", "system:nodes")), Some(""));
    assert_eq!(node_of(&user("system:node:n", "system:masters")), None);
    assert_eq!(node_of(&user("n", "system:nodes")), None);
}

#[test]
fn lists_labels_forbidden_to_kubelets() {
    let node = |labels: Value| json!({"metadata": {"labels": labels}});
    let new = node(json!({
        "mine": "1", "example.com/x": "1", "kubernetes.io/hostname": "n", "node.kubernetes.io/x": "1",
        "a.kubelet.kubernetes.io/x": "1", "kubernetes.io/x": "1", "a.k8s.io/x": "1", "notk8s.io/x": "1",
        "node-restriction.kubernetes.io/x": "1", "a.node-restriction.kubernetes.io/x": "1", "same.k8s.io/x": "1",
        "other.k8s.io/x": "2",
    }));
    let old = node(json!({"same.k8s.io/x": "1", "other.k8s.io/x": "1", "gone.k8s.io/x": "1"}));
    assert_eq!(
        forbidden_labels(&new, &old),
        [
            "a.k8s.io/x",
            "a.node-restriction.kubernetes.io/x",
            "gone.k8s.io/x",
            "kubernetes.io/x",
            "node-restriction.kubernetes.io/x",
            "other.k8s.io/x"
        ]
    );
}

#[test]
fn rejects_mirror_pods_of_other_owners() {
    let pod = |change: &dyn Fn(&mut Value)| {
        let mut pod = json!({"metadata": {"annotations": {MIRROR: "x"}, "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true}]}, "spec": {"nodeName": "n"}});
        change(&mut pod);
        not_a_mirror(&pod, "n").unwrap_or_default()
    };
    let owner = |field: &'static str, value: Value| {
        pod(&move |p| p["metadata"]["ownerReferences"][0][field] = value.clone())
    };
    let texts = [
        pod(&|_| {}),
        pod(&|p| p["metadata"]["annotations"] = Value::Null),
        pod(&|p| p["spec"]["nodeName"] = json!("m")),
        pod(&|p| p["metadata"]["ownerReferences"] = json!([])),
        pod(&|p| p["metadata"]["ownerReferences"] = json!([1, 2])),
        owner("name", json!("m")),
        owner("controller", json!(false)),
        owner("blockOwnerDeletion", json!(true)),
    ];
    expect![[r#"

        pod does not have "kubernetes.io/config.mirror" annotation, node "n" can only create mirror pods
        node "n" can only create pods with spec.nodeName set to itself
        node "n" can only create pods with an owner reference set to itself
        node "n" can only create pods with a single owner reference set to itself
        node "n" can only create pods with an owner reference set to itself
        node "n" can only create pods with a controller owner reference set to itself
        node "n" must not set blockOwnerDeletion on an owner reference"#]]
    .assert_eq(&texts.join("\n"));
}

#[test]
fn finds_references_of_mirror_pods() {
    let of = |spec: Value| match reference(&json!({"spec": spec})) {
        Ok(what) => what.unwrap_or("nothing").to_owned(),
        Err(error) => error,
    };
    let volume = |source: Value| {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        of(json!({"volumes": [{"name": "w", "hostPath": {}}, volume]}))
    };
    let texts = [
        of(json!({})),
        of(json!({"serviceAccountName": "a"})),
        of(json!({"imagePullSecrets": [{"name": "s"}]})),
        of(json!({"containers": [{"envFrom": [{"configMapRef": {"name": "c"}}]}]})),
        of(json!({"resourceClaims": [{}]})),
        volume(json!({"emptyDir": {}})),
        volume(json!({"persistentVolumeClaim": {}})),
        volume(json!({"projected": {"sources": [{"downwardAPI": {}}]}})),
        volume(json!({"projected": {"sources": [{"downwardAPI": {}}, {"serviceAccountToken": {}}]}})),
        volume(json!({"projected": {"sources": [{"new": {}}]}})),
        volume(json!({"new": {}})),
    ];
    expect![[r#"
        nothing
        serviceaccounts
        secrets
        configmaps
        resourceclaims
        nothing
        persistentvolumeclaims
        nothing
        serviceaccounts (via projected volumes)
        unknown source for projected volume "v"
        unknown volume type for volume  "v""#]]
    .assert_eq(&texts.join("\n"));
}

#[test]
fn differences_are_named_by_their_paths() {
    let (a, b) = (json!({"a": {"b": 1, "c": []}, "d": [1]}), json!({"a": {"b": 2}, "d": [2], "e": null}));
    let mut out = vec![];
    differences("", &a, &b, &mut out);
    assert_eq!(out, ["a.b", "d"]);
}
