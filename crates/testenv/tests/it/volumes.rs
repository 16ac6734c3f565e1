//! Claims get volumes: those that are there, and those that the built-in provisioner makes for the nodes of their pods; and
//! what becomes of the volumes when the claims are gone.

use crate::kube_rs::{object, post, until};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kaji_testenv::TestEnv;
use kube::{Api, Client, ResourceExt, api::DeleteParams};
use serde_json::{Value, json};

fn phase(claim: Option<&PersistentVolumeClaim>) -> &str {
    claim.and_then(|c| c.status.as_ref()?.phase.as_deref()).unwrap_or_default()
}

fn volume_phase(volume: Option<&PersistentVolume>) -> &str {
    volume.and_then(|v| v.status.as_ref()?.phase.as_deref()).unwrap_or_default()
}

fn node(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default()
}

fn running(pod: Option<&Pod>) -> bool {
    pod.and_then(|p| p.status.as_ref()?.phase.as_deref()) == Some("Running")
}

fn claim_spec(class: Option<&str>) -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}}})
}

async fn start() -> (TestEnv, Client) {
    let env = TestEnv::builder().controllers(["*"]).nodes(2).start().await.unwrap();
    let client = env.client();
    (env, client)
}

#[tokio::test]
async fn a_stateful_set_gets_volumes_of_the_default_class() {
    let (env, client) = start().await;
    let (sets, pods): (Api<StatefulSet>, Api<Pod>) =
        (Api::default_namespaced(client.clone()), Api::default_namespaced(client.clone()));
    let (claims, volumes): (Api<PersistentVolumeClaim>, Api<PersistentVolume>) =
        (Api::default_namespaced(client.clone()), Api::all(client.clone()));
    let classes: Api<StorageClass> = Api::all(client.clone());
    assert_eq!(classes.get("local-path").await.unwrap().provisioner, "kaji.dev/local-path");
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let set = json!({"metadata": {"name": "db"}, "spec": {
        "serviceName": "db", "replicas": 1, "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}},
            "spec": {"containers": [{"name": "c", "image": "i", "volumeMounts": mounts}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim_spec(None)}],
    }});
    sets.create(&post(), &object(set)).await.unwrap();
    until(&pods, "db-0", "its running", running).await;
    let claim = claims.get("data-db-0").await.unwrap();
    assert_eq!(phase(Some(&claim)), "Bound");
    let spec = claim.spec.as_ref().unwrap();
    assert_eq!(spec.storage_class_name.as_deref(), Some("local-path"));
    let name = spec.volume_name.clone().unwrap();
    let volume = volumes.get(&name).await.unwrap();
    let first = node(&pods.get("db-0").await.unwrap());
    assert_eq!(volume.labels()["kaji.dev/local-path-node"], first);
    // The next pod comes to the volume.
    let uid = pods.get("db-0").await.unwrap().uid();
    pods.delete("db-0", &DeleteParams::default()).await.unwrap();
    until(&pods, "db-0", "another pod", |pod| running(pod) && pod.is_some_and(|pod| pod.uid() != uid)).await;
    assert_eq!(node(&pods.get("db-0").await.unwrap()), first);
    assert_eq!(claims.get("data-db-0").await.unwrap().spec.unwrap().volume_name, Some(name.clone()));
    // Without its claim the volume goes, since nothing has data of it.
    sets.delete("db", &DeleteParams::default()).await.unwrap();
    until(&pods, "db-0", "its end", |pod| pod.is_none()).await;
    claims.delete("data-db-0", &DeleteParams::default()).await.unwrap();
    until(&volumes, &name, "the end of the volume", |volume| volume.is_none()).await;
    env.stop().await;
}

#[tokio::test]
async fn claims_are_bound_to_volumes_that_are_there() {
    let (env, client) = start().await;
    let (claims, volumes): (Api<PersistentVolumeClaim>, Api<PersistentVolume>) =
        (Api::default_namespaced(client.clone()), Api::all(client.clone()));
    let claim = |name: &str| json!({"metadata": {"name": name}, "spec": claim_spec(Some(""))});
    claims.create(&post(), &object(claim("first"))).await.unwrap();
    claims.create(&post(), &object(claim("second"))).await.unwrap();
    let volume = json!({"metadata": {"name": "disk"}, "spec": {"capacity": {"storage": "2Gi"},
        "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp"}}});
    volumes.create(&post(), &object(volume)).await.unwrap();
    until(&volumes, "disk", "its binding", |volume| volume_phase(volume) == "Bound").await;
    let owner = volumes.get("disk").await.unwrap().spec.unwrap().claim_ref.unwrap();
    let (owner, other) = match owner.name.as_deref() {
        Some("first") => ("first", "second"),
        _ => ("second", "first"),
    };
    until(&claims, owner, "its binding", |claim| phase(claim) == "Bound").await;
    assert_eq!(phase(Some(&claims.get(other).await.unwrap())), "Pending");
    claims.delete(owner, &DeleteParams::default()).await.unwrap();
    until(&volumes, "disk", "its release", |volume| volume_phase(volume) == "Released").await;
    env.stop().await;
}

#[tokio::test]
async fn a_pod_gets_its_ephemeral_claim() {
    let (env, client) = start().await;
    let (pods, claims): (Api<Pod>, Api<PersistentVolumeClaim>) =
        (Api::default_namespaced(client.clone()), Api::default_namespaced(client));
    let volume = json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(None)}}});
    let pod = json!({"metadata": {"name": "p"}, "spec": {"volumes": [volume],
        "containers": [{"name": "c", "image": "i"}]}});
    pods.create(&post(), &object(pod)).await.unwrap();
    until(&pods, "p", "its running", running).await;
    assert_eq!(phase(Some(&claims.get("p-scratch").await.unwrap())), "Bound");
    pods.delete("p", &DeleteParams::default()).await.unwrap();
    until(&claims, "p-scratch", "its end with the pod", |claim| claim.is_none()).await;
    env.stop().await;
}
