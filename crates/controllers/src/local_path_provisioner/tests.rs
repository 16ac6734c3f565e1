//! What becomes of claims and volumes, as text.

use super::*;
use crate::testing::{ago, object, reconcile, snapshot, text};
use expect_test::expect;
use serde_json::Value;

fn claim(name: &str, node: Option<&str>, spec: Value) -> Value {
    let mut claim = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": "5",
            "annotations": {STORAGE_PROVISIONER: PROVISIONER}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "local-path"},
    });
    if let Some(node) = node {
        claim["metadata"]["annotations"][SELECTED_NODE] = node.into();
    }
    for (key, value) in spec.as_object().unwrap() {
        claim["spec"][key] = value.clone();
    }
    claim
}

fn node(name: &str, labels: Value, annotations: Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels, "annotations": annotations}})
}

fn view(claims: Vec<Value>, volumes: Vec<Value>) -> View {
    let class = |name: &str, mode: &str, more: Value| {
        let mut class =
            json!({"metadata": {"name": name}, "provisioner": PROVISIONER, "volumeBindingMode": mode});
        class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        class
    };
    let late = "WaitForFirstConsumer";
    View::default()
        .with(snapshot::<PersistentVolumeClaim>(claims))
        .with(snapshot::<PersistentVolume>(volumes))
        .with(snapshot::<StorageClass>([
            class("local-path", late, json!({})),
            class("now", "Immediate", json!({})),
            class("kept", late, json!({"reclaimPolicy": "Retain"})),
            class("tuned", late, json!({"parameters": {"fsType": "xfs"}})),
            class("options", late, json!({"mountOptions": ["ro"]})),
        ]))
        .with(snapshot::<Node>([
            node(
                "real",
                json!({HOST_NAME: "real.example"}),
                json!({ROOT: "/data/local-volumes/", local_path::VOLUMES: "a,b"}),
            ),
            node("sim-1", json!({HOST_NAME: "sim-1", SIMULATED: "true"}), json!({})),
            node("foreign", json!({HOST_NAME: "foreign"}), json!({})),
        ]))
}

#[test]
fn makes_volumes_of_nodes() {
    let claims = vec![
        claim("early", None, json!({})),
        claim("real", Some("real"), json!({})),
        claim("kept", Some("sim-1"), json!({"storageClassName": "kept"})),
        claim("bound", Some("real"), json!({"volumeName": "v"})),
    ];
    let view = view(claims, vec![]);
    let all =
        ["early", "real", "kept", "bound"].map(|name| text(&reconcile(&Provisioner, &view, "ns", name, &[])));
    expect![[r#"
        .
        create /api/v1/persistentvolumes {"apiVersion":"v1","kind":"PersistentVolume","metadata":{"annotations":{"pv.kubernetes.io/provisioned-by":"kaji.dev/local-path"},"finalizers":["kaji.dev/local-path"],"labels":{"kaji.dev/local-path-node":"real"},"name":"pvc-uid-real"},"spec":{"accessModes":["ReadWriteOnce"],"capacity":{"storage":"1Gi"},"claimRef":{"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"real","namespace":"ns","resourceVersion":"5","uid":"uid-real"},"local":{"path":"/data/local-volumes/pvc-uid-real"},"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"In","values":["real.example"]}]}]}},"persistentVolumeReclaimPolicy":"Delete","storageClassName":"local-path","volumeMode":"Filesystem"}}
            ok: Normal ProvisioningSucceeded: Successfully provisioned volume pvc-uid-real
            failed: Warning ProvisioningFailed: Error creating provisioned PV object for claim ns/real: {error}
        event: Normal Provisioning: External provisioner is provisioning volume for claim "ns/real"
        .
        create /api/v1/persistentvolumes {"apiVersion":"v1","kind":"PersistentVolume","metadata":{"annotations":{"pv.kubernetes.io/provisioned-by":"kaji.dev/local-path"},"finalizers":[],"labels":{"kaji.dev/local-path-node":"sim-1"},"name":"pvc-uid-kept"},"spec":{"accessModes":["ReadWriteOnce"],"capacity":{"storage":"1Gi"},"claimRef":{"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"kept","namespace":"ns","resourceVersion":"5","uid":"uid-kept"},"local":{"path":"/var/lib/kaji/local-volumes/pvc-uid-kept"},"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"In","values":["sim-1"]}]}]}},"persistentVolumeReclaimPolicy":"Retain","storageClassName":"kept","volumeMode":"Filesystem"}}
            ok: Normal ProvisioningSucceeded: Successfully provisioned volume pvc-uid-kept
            failed: Warning ProvisioningFailed: Error creating provisioned PV object for claim ns/kept: {error}
        event: Normal Provisioning: External provisioner is provisioning volume for claim "ns/kept"
        .
    "#]].assert_eq(&all.join(".\n"));
}

#[test]
fn refuses_what_a_directory_is_not() {
    let on = |name: &str, spec: Value| claim(name, Some("real"), spec);
    let claims = vec![
        on("many", json!({"accessModes": ["ReadWriteMany"]})),
        on("block", json!({"volumeMode": "Block"})),
        on("selector", json!({"selector": {}})),
        on("source", json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "x"}})),
        on("tuned", json!({"storageClassName": "tuned"})),
        on("options", json!({"storageClassName": "options"})),
        claim("now", None, json!({"storageClassName": "now"})),
        claim("foreign", Some("foreign"), json!({})),
        claim("gone", Some("gone"), json!({})),
    ];
    let names: Vec<String> =
        claims.iter().map(|c| c["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    let view = view(claims, vec![]);
    let all: String =
        names.iter().map(|name| text(&reconcile(&Provisioner, &view, "ns", name, &[]))).collect();
    expect![[r#"
        event: Warning ProvisioningFailed: failed to provision volume with StorageClass "local-path": access mode ReadWriteMany is not supported: the volume is a directory of one node
        again after 60s
        event: Warning ProvisioningFailed: failed to provision volume with StorageClass "local-path": volumeMode Block is not supported: the volume is a directory
        again after 60s
        event: Warning ProvisioningFailed: failed to provision volume with StorageClass "local-path": claim.Spec.Selector is not supported
        again after 60s
        event: Warning ProvisioningFailed: failed to provision volume with StorageClass "local-path": data sources are not supported
        again after 60s
        event: Warning ProvisioningFailed: failed to provision volume with StorageClass "tuned": parameter "fsType" is not supported
        again after 60s
        event: Warning ProvisioningFailed: failed to provision volume with StorageClass "options": mount options ["ro"] are not supported
        again after 60s
        event: Warning ProvisioningFailed: failed to provision volume with StorageClass "now": no node was selected: the class needs volumeBindingMode WaitForFirstConsumer
        again after 60s
        merge /api/v1/namespaces/ns/persistentvolumeclaims/foreign {"metadata":{"annotations":{"volume.kubernetes.io/selected-node":null},"resourceVersion":"5","uid":"uid-foreign"}}
        event: Warning ProvisioningFailed: failed to provision volume with StorageClass "local-path": node "foreign" has no directory for volumes
        merge /api/v1/namespaces/ns/persistentvolumeclaims/gone {"metadata":{"annotations":{"volume.kubernetes.io/selected-node":null},"resourceVersion":"5","uid":"uid-gone"}}
        event: Warning ProvisioningFailed: failed to provision volume with StorageClass "local-path": node "gone" not found
    "#]].assert_eq(&all);
}

#[test]
fn deletes_volumes_that_nodes_have_no_data_of() {
    let volume = |name: &str, node: &str, phase: &str, policy: &str, deleted: bool| {
        let mut volume = json!({
            "metadata": {"name": name, "uid": name, "resourceVersion": "7", "finalizers": ["other", FINALIZER],
                "labels": {NODE: node}, "annotations": {PROVISIONED_BY: PROVISIONER}},
            "spec": {"local": {"path": format!("/data/{name}")}, "persistentVolumeReclaimPolicy": policy},
            "status": {"phase": phase},
        });
        if deleted {
            volume["metadata"]["deletionTimestamp"] = ago(1).into();
        }
        volume
    };
    let volumes = vec![
        volume("a", "real", "Released", "Delete", false),
        volume("c", "real", "Released", "Delete", false),
        volume("d", "real", "Released", "Delete", true),
        volume("e", "gone", "Released", "Delete", false),
        volume("f", "real", "Bound", "Delete", true),
        volume("g", "real", "Released", "Retain", false),
        volume("h", "real", "Released", "Retain", true),
    ];
    let view = view(vec![], volumes.clone());
    let all: Vec<String> = "acdefgh"
        .chars()
        .map(|c| format!("{c}: {}", text(&reconcile(&Provisioner, &view, "", &c.to_string(), &[]))))
        .collect();
    expect![[r#"
        a: 
        c: delete /api/v1/persistentvolumes/c {"preconditions":{"resourceVersion":"7","uid":"c"}}

        d: merge /api/v1/persistentvolumes/d {"metadata":{"finalizers":["other"],"resourceVersion":"7","uid":"d"}}

        e: delete /api/v1/persistentvolumes/e {"preconditions":{"resourceVersion":"7","uid":"e"}}

        f: 
        g: 
        h: merge /api/v1/persistentvolumes/h {"metadata":{"finalizers":["other"],"resourceVersion":"7","uid":"h"}}
    "#]].assert_eq(&all.join("\n"));
    // A node that lists fewer volumes, or goes, lets those go that waited for it.
    let real = |volumes: &str| {
        Some(Arc::new(object::<Node>(node("real", json!({}), json!({local_path::VOLUMES: volumes})))))
    };
    let keys = |old, new| {
        keys_of_node(&Change { old, new }, &view)
            .iter()
            .map(|key| key.name.clone())
            .collect::<Vec<_>>()
            .join("")
    };
    assert_eq!(keys(real("a,b"), real("b")), "acd");
    assert_eq!(keys(real("a,b"), None), "acd");
    assert_eq!(keys(real("a"), real("a")), "");
}
