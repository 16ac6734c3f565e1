//! Claims of pods, and the volumes that the node mounts itself.

use crate::fake::{Fake, NoMounts};
use expect_test::expect;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const CLAIM: &str = "/api/v1/namespaces/n/persistentvolumeclaims/data";
const VOLUME: &str = "/api/v1/persistentvolumes/pv";

pub fn put(fake: &Fake, path: &str, object: Value) {
    fake.objects.objects.lock().unwrap().insert(path.to_owned(), object);
}

/// A pod with a volume `v` of this source.
pub fn pod(security: Value, source: Value) -> Value {
    let mut volume = source;
    volume["name"] = "v".into();
    json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {
            "serviceAccountName": "sa",
            "securityContext": security,
            "volumes": [volume],
            "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/data"}]}],
        },
    })
}

pub fn claim() -> Value {
    json!({
        "metadata": {"name": "data", "namespace": "n", "uid": "claim"},
        "spec": {"volumeName": "pv"},
        "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}},
    })
}

/// A volume that is bound to it.
pub fn volume(mut spec: Value) -> Value {
    spec["claimRef"] = json!({"namespace": "n", "name": "data", "uid": "claim"});
    if spec.get("accessModes").is_none() {
        spec["accessModes"] = json!(["ReadWriteOnce"]);
    }
    json!({"metadata": {"name": "pv"}, "spec": spec})
}

fn of_claim() -> Value {
    pod(json!({}), json!({"persistentVolumeClaim": {"claimName": "data"}}))
}

async fn set_up(fake: &Fake, pod: &Value) -> Result<(), String> {
    let pod = serde_json::from_value(pod.clone()).unwrap();
    fake.cx.volumes.set_up(&fake.cx, &pod).await.map_err(|e| e.to_string())
}

async fn refusal(fake: &Fake, pod: &Value) -> String {
    set_up(fake, pod).await.unwrap_err().replace(&fake.dir.path().display().to_string(), "DIR")
}

#[tokio::test]
async fn claims_that_cannot_be_used_say_why() {
    let fake = Fake::new();
    expect![[r#"Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: error processing PVC n/data: failed to fetch PVC from API server: persistentvolumeclaims "data" not found"#]]
        .assert_eq(&refusal(&fake, &of_claim()).await);
    let mut shown = vec![];
    let mut look = async |claim: Value, volume: Value, pod: Value| {
        put(&fake, CLAIM, claim);
        put(&fake, VOLUME, volume);
        let text = refusal(&fake, &pod).await;
        shown.push(text.split_once("volumes=[v]: ").map_or(text.clone(), |(_, end)| end.to_owned()));
    };
    let with = |mut object: Value, path: &str, value: Value| {
        *object.pointer_mut(path).unwrap() = value;
        object
    };
    let local = || volume(json!({"local": {"path": "/nothing/there"}}));
    look(with(claim(), "/status/phase", "Pending".into()), local(), of_claim()).await;
    let mut deleted = claim();
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    look(deleted.clone(), local(), of_claim()).await;
    deleted["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
    look(deleted, local(), of_claim()).await;
    look(claim(), with(local(), "/spec/claimRef/uid", "other".into()), of_claim()).await;
    look(claim(), with(local(), "/spec/claimRef", Value::Null), of_claim()).await;
    look(claim(), volume(json!({"iscsi": {"targetPortal": "t", "iqn": "i", "lun": 0}})), of_claim()).await;
    let ephemeral = pod(json!({}), json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}));
    put(&fake, "/api/v1/namespaces/n/persistentvolumeclaims/p-v", claim());
    look(claim(), local(), ephemeral).await;
    let terms = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]);
    let mut far = local();
    far["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
    let node = json!({"metadata": {"name": "node-1", "labels": {"zone": "b"}}});
    *fake.objects.node.lock().unwrap() = Some(std::sync::Arc::new(serde_json::from_value(node).unwrap()));
    look(claim(), far, of_claim()).await;
    expect![[r#"
        error processing PVC n/data: PVC is not bound
        error processing PVC n/data: PVC is being deleted
        MountVolume.NewMounter initialization failed for volume "pv" : path "/nothing/there" does not exist
        error processing PVC n/data: found PV object pv but its pv.Spec.ClaimRef.UID other does not point to claim.UID claim
        error processing PVC n/data: found PV object pv but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim
        MountVolume.SetUp failed for volume "pv" : volumes of type iscsi are not supported by this node
        PVC n/p-v was not created for pod n/p (pod is not owner)
        MountVolume.NodeAffinity check failed for volume "pv" : no matching NodeSelectorTerms"#]]
    .assert_eq(&shown.join("\n"));
}

#[tokio::test]
async fn a_local_volume_outlives_its_pods() {
    let fake = Fake::at(tempfile::tempdir().unwrap(), NoMounts { may: true, ..NoMounts::default() });
    let data = fake.dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("file"), "kept").unwrap();
    put(&fake, CLAIM, claim());
    put(&fake, VOLUME, volume(json!({"local": {"path": data}, "mountOptions": ["noatime"]})));
    let mut pod = of_claim();
    pod["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = true.into();
    set_up(&fake, &pod).await.unwrap();
    set_up(&fake, &pod).await.unwrap();
    let shown = |fake: &Fake| {
        let mounts = fake.mounter.mounts.lock().unwrap();
        let all: Vec<String> = mounts.iter().map(|(to, what)| format!("{} {what}", to.display())).collect();
        all.join("\n").replace(&fake.dir.path().display().to_string(), "")
    };
    // 1025: read-only, without times of access.
    expect!["/kubelet/pods/u/volumes/kubernetes.io~local-volume/pv /data flags 1025"]
        .assert_eq(&shown(&fake));
    let parsed: kaji_kubelet::pods::core::Pod = serde_json::from_value(pod.clone()).unwrap();
    let container = &parsed.spec.as_ref().unwrap().containers[0];
    let mounts = fake.cx.volumes.mounts(&parsed, container, &BTreeMap::new()).await.unwrap();
    assert!(mounts[0].readonly && mounts[0].host_path.ends_with("kubernetes.io~local-volume/pv"));
    // What a container wrote through a mount that is not seen any more must not be removed.
    let target = fake.dir.path().join("kubelet/pods/u/volumes/kubernetes.io~local-volume/pv");
    std::fs::write(target.join("file"), "kept").unwrap();
    assert!(fake.cx.volumes.tear_down("u").await.is_err());
    assert!(target.join("file").exists());
    std::fs::remove_file(target.join("file")).unwrap();
    fake.cx.volumes.tear_down("u").await.unwrap();
    assert_eq!(shown(&fake), "");
    assert_eq!(std::fs::read(data.join("file")).unwrap(), b"kept");
    assert!(!fake.dir.path().join("kubelet/pods/u/volumes").exists());
}

#[tokio::test]
async fn containers_cannot_write_what_comes_from_the_api() {
    let fake = Fake::new();
    let name = json!({"path": "name", "fieldRef": {"fieldPath": "metadata.name"}});
    let sources = [
        json!({"configMap": {"name": "map"}}),
        json!({"secret": {"secretName": "secret"}}),
        json!({"downwardAPI": {"items": [name]}}),
        json!({"projected": {"sources": [{"configMap": {"name": "map"}}]}}),
        json!({"emptyDir": {}}),
    ];
    let mut shown = vec![];
    for source in sources {
        let kind = source.as_object().unwrap().keys().next().unwrap().clone();
        let with_volume = pod(json!({}), source);
        set_up(&fake, &with_volume).await.unwrap();
        let parsed: kaji_kubelet::pods::core::Pod = serde_json::from_value(with_volume).unwrap();
        let container = &parsed.spec.as_ref().unwrap().containers[0];
        let mounts = fake.cx.volumes.mounts(&parsed, container, &BTreeMap::new()).await.unwrap();
        shown.push(format!("{kind} {} {}", mounts[0].readonly, mounts[0].recursive_read_only));
    }
    expect![[r#"
        configMap true false
        secret true false
        downwardAPI true false
        projected true false
        emptyDir false false"#]]
    .assert_eq(&shown.join("\n"));
}

#[tokio::test]
async fn a_signer_s_trust_bundles_are_chosen_by_a_selector_alone() {
    let mut shown = vec![];
    for source in [
        json!({"name": "known"}),
        json!({"name": "gone"}),
        json!({"name": "gone", "optional": true}),
        json!({"signerName": "example.com/known", "labelSelector": {}}),
        json!({"signerName": "example.com/known", "labelSelector": {"matchLabels": {"a": "b"}}}),
        json!({"signerName": "example.com/known"}),
        json!({"signerName": "example.com/known", "optional": true}),
    ] {
        let fake = Fake::new();
        let mut bundle = source;
        bundle["path"] = "ca".into();
        let pod = pod(json!({}), json!({"projected": {"sources": [{"clusterTrustBundle": bundle}]}}));
        let file = fake.dir.path().join("kubelet/pods/u/volumes/kubernetes.io~projected/v/ca");
        shown.push(match set_up(&fake, &pod).await {
            Ok(_) => format!("{:?}", std::fs::read_to_string(file).unwrap()),
            Err(error) => error.to_string(),
        });
    }
    expect![[r#"
        "bundles that match \"\""
        MountVolume.SetUp failed for volume "v" : while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "gone" not found
        ""
        "bundles that match \"\""
        "bundles that match \"a=b\""
        MountVolume.SetUp failed for volume "v" : combination of signerName and labelSelector matched zero ClusterTrustBundles
        """#]].assert_eq(&shown.join("\n"));
}

#[tokio::test]
async fn exports_are_mounted_by_the_kernel() {
    let fake = Fake::at(tempfile::tempdir().unwrap(), NoMounts { may: true, ..NoMounts::default() });
    let pod = pod(json!({}), json!({"nfs": {"server": "127.0.0.1", "path": "/export", "readOnly": true}}));
    set_up(&fake, &pod).await.unwrap();
    let shown: Vec<String> = fake.mounter.mounts.lock().unwrap().values().cloned().collect();
    expect!["nfs 127.0.0.1:/export 1 vers=4.2,addr=127.0.0.1"].assert_eq(&shown.join("\n"));
    fake.cx.volumes.tear_down("u").await.unwrap();
    assert!(fake.mounter.mounts.lock().unwrap().is_empty());
}

#[tokio::test]
async fn volumes_that_no_container_uses_are_not_set_up() {
    let fake = Fake::new();
    let mut pod = of_claim();
    pod["spec"]["containers"][0]["volumeMounts"] = json!([]);
    set_up(&fake, &pod).await.unwrap();
}

#[tokio::test]
async fn groups_of_volumes_are_known() {
    let fake = Fake::new();
    let path = fake.dir.path().join("data");
    std::fs::create_dir(&path).unwrap();
    put(&fake, CLAIM, claim());
    let mut grouped = volume(json!({"hostPath": {"path": path}}));
    grouped["metadata"]["annotations"] = json!({"pv.beta.kubernetes.io/gid": "1234"});
    put(&fake, VOLUME, grouped);
    set_up(&fake, &of_claim()).await.unwrap();
    assert_eq!(fake.cx.volumes.groups("u"), [1234]);
    fake.cx.volumes.tear_down("u").await.unwrap();
    assert_eq!(fake.cx.volumes.groups("u"), [0_i64; 0]);
}
