//! Volumes of CSI drivers in pods, with a driver on a socket.

use crate::csi_driver::CsiDriver;
use crate::fake::{Fake, NoMounts};
use crate::volumes::{claim, pod, put, volume};
use expect_test::expect;
use kaji_grpc::Code;
use serde_json::{Value, json};
use std::sync::Arc;

fn driver_object(spec: Value) -> Value {
    json!({"metadata": {"name": "d"}, "spec": spec})
}

/// A volume of the driver `d`, bound to the claim `data`.
fn bound(fake: &Fake, csi: Value, more: Value) {
    let mut source =
        json!({"driver": "d", "volumeHandle": "h", "fsType": "ext4", "volumeAttributes": {"a": "1"}});
    source.as_object_mut().unwrap().extend(csi.as_object().unwrap().clone());
    let mut spec = json!({"csi": source, "capacity": {"storage": "2Gi"}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    put(fake, "/api/v1/persistentvolumes/pv", volume(spec));
    put(fake, "/api/v1/namespaces/n/persistentvolumeclaims/data", claim());
}

fn start(fake: &Fake, capabilities: &[i32]) -> CsiDriver {
    let driver = CsiDriver::start(&fake.dir.path().join("d.sock"), fake.dir.path(), capabilities);
    let endpoint = driver.socket.display().to_string();
    fake.cx.volumes.csi_drivers().register("d", &endpoint, &["1.2.0".to_owned()]).unwrap();
    driver
}

fn of_claim() -> Value {
    pod(json!({"fsGroup": 0}), json!({"persistentVolumeClaim": {"claimName": "data"}}))
}

async fn set_up(fake: &Fake, pod: &Value) -> Result<(), String> {
    let pod = serde_json::from_value(pod.clone()).unwrap();
    fake.cx.volumes.set_up(&fake.cx, &pod).await.map_err(|e| e.to_string())
}

fn not_attached(fake: &Fake) {
    put(
        fake,
        "/apis/storage.k8s.io/v1/csidrivers/d",
        driver_object(json!({"attachRequired": false, "fsGroupPolicy": "File"})),
    );
}

#[tokio::test]
async fn a_volume_is_staged_once_and_published_to_each_pod() {
    let fake = Fake::new();
    let driver = start(&fake, &[1]);
    bound(
        &fake,
        json!({"nodeStageSecretRef": {"namespace": "s", "name": "stage"}}),
        json!({"mountOptions": ["noatime"]}),
    );
    not_attached(&fake);
    let (first, mut second) = (of_claim(), of_claim());
    second["metadata"]["uid"] = "u2".into();
    set_up(&fake, &first).await.unwrap();
    set_up(&fake, &first).await.unwrap();
    expect![[r#"
        stage h /kubelet/plugins/kubernetes.io/csi/d/aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123/globalmount SingleNodeWriter ext4 ["noatime"]  secrets {key=value} context {} attributes {a=1}
        publish h /kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount from "/kubelet/plugins/kubernetes.io/csi/d/aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123/globalmount" SingleNodeWriter ext4 ["noatime"]  readonly false secrets {} attributes {a=1}"#]]
    .assert_eq(&driver.calls());
    set_up(&fake, &second).await.unwrap();
    driver.calls();
    fake.cx.volumes.tear_down("u").await.unwrap();
    expect!["unpublish h /kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount"].assert_eq(&driver.calls());
    fake.cx.volumes.tear_down("u2").await.unwrap();
    expect![[r#"
        unpublish h /kubelet/pods/u2/volumes/kubernetes.io~csi/pv/mount
        unstage h /kubelet/plugins/kubernetes.io/csi/d/aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123/globalmount"#]]
    .assert_eq(&driver.calls());
    assert!(!fake.dir.path().join("kubelet/plugins/kubernetes.io/csi/d/aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123").exists());
}

#[tokio::test]
async fn an_attached_volume_waits_for_the_control_plane() {
    let fake = Fake::new();
    let driver = start(&fake, &[1]);
    bound(&fake, json!({}), json!({}));
    put(&fake, "/apis/storage.k8s.io/v1/csidrivers/d", driver_object(json!({"fsGroupPolicy": "None"})));
    let waits = set_up(&fake, &of_claim()).await.unwrap_err();
    expect!["volume pv has not been added to the list of VolumesInUse in the node's volume status"]
        .assert_eq(&waits);
    assert_eq!(fake.cx.volumes.csi_drivers().in_use(), ["kubernetes.io/csi/d^h"]);
    let node = json!({"metadata": {"name": "node-1"}, "status": {"volumesInUse": ["kubernetes.io/csi/d^h"]}});
    *fake.objects.node.lock().unwrap() = Some(Arc::new(serde_json::from_value(node).unwrap()));
    let waits = set_up(&fake, &of_claim()).await.unwrap_err();
    let name = waits.rsplit(' ').next().unwrap().to_owned();
    assert!(waits.starts_with("volume h has no volume attachment csi-"), "{waits}");
    let attachment = |attached: bool| {
        json!({
            "metadata": {"name": name},
            "spec": {"attacher": "d", "nodeName": "node-1", "source": {}},
            "status": {"attached": attached, "attachmentMetadata": {"lun": "3"}},
        })
    };
    let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
    put(&fake, &path, attachment(false));
    assert!(set_up(&fake, &of_claim()).await.unwrap_err().contains("is not attached"));
    assert_eq!(driver.calls(), "");
    put(&fake, &path, attachment(true));
    set_up(&fake, &of_claim()).await.unwrap();
    assert!(driver.calls().contains("context {lun=3}"));
    assert_eq!(fake.cx.volumes.csi_drivers().in_use(), ["kubernetes.io/csi/d^h"]);
    fake.cx.volumes.tear_down("u").await.unwrap();
    assert_eq!(fake.cx.volumes.csi_drivers().in_use(), [""; 0]);
}

#[tokio::test]
async fn a_node_that_takes_no_more_volumes_is_told_from_one_that_waits() {
    let fake = Fake::new();
    let _driver = start(&fake, &[1]);
    bound(&fake, json!({}), json!({}));
    let object = |period: Value| {
        let spec = json!({"fsGroupPolicy": "None", "nodeAllocatableUpdatePeriodSeconds": period});
        put(&fake, "/apis/storage.k8s.io/v1/csidrivers/d", driver_object(spec));
    };
    object(json!(10));
    let node = json!({"metadata": {"name": "node-1"}, "status": {"volumesInUse": ["kubernetes.io/csi/d^h"]}});
    *fake.objects.node.lock().unwrap() = Some(Arc::new(serde_json::from_value(node).unwrap()));
    let waits = set_up(&fake, &of_claim()).await.unwrap_err();
    let name = waits.rsplit(' ').next().unwrap().to_owned();
    let failed = |code: i32| {
        json!({
            "metadata": {"name": name},
            "spec": {"attacher": "d", "nodeName": "node-1", "source": {}},
            "status": {"attached": false, "attachError": {"message": "full", "errorCode": code}},
        })
    };
    let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
    let pod = serde_json::from_value(of_claim()).unwrap();
    put(&fake, &path, failed(13));
    assert_eq!(fake.cx.volumes.set_up(&fake.cx, &pod).await.unwrap_err().exhausted, None, "another failure");
    put(&fake, &path, failed(8));
    let (drivers, text) = fake.cx.volumes.set_up(&fake.cx, &pod).await.unwrap_err().exhausted.unwrap();
    assert_eq!(drivers, ["d"]);
    expect!["Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[v], unattached volumes=[v], failed to process volumes=[]: context deadline exceeded"].assert_eq(&text);
    object(Value::Null);
    let waits = fake.cx.volumes.set_up(&fake.cx, &pod).await.unwrap_err();
    assert_eq!(waits.exhausted, None, "the driver's limit is fixed");
}

#[tokio::test]
async fn a_driver_makes_a_volume_for_a_pod_and_learns_of_it() {
    let fake = Fake::new();
    let driver = start(&fake, &[1]);
    let source = json!({"csi": {"driver": "d", "volumeAttributes": {"a": "1"}, "nodePublishSecretRef": {"name": "own"}}});
    let pod = pod(json!({}), source);
    let refused = set_up(&fake, &pod).await.unwrap_err();
    expect![[r#"MountVolume.SetUp failed for volume "v" : kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode "Ephemeral" not supported by driver d (no CSIDriver object)"#]]
        .assert_eq(&refused);
    let spec = json!({
        "volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true, "fsGroupPolicy": "File", "requiresRepublish": true,
        "tokenRequests": [{"audience": "vault"}],
    });
    put(&fake, "/apis/storage.k8s.io/v1/csidrivers/d", driver_object(spec));
    set_up(&fake, &pod).await.unwrap();
    set_up(&fake, &pod).await.unwrap();
    expect![[r#"publish csi-9f6a1c8b /kubelet/pods/u/volumes/kubernetes.io~csi/v/mount from "" SingleNodeWriter  []  readonly false secrets {key=value} attributes {a=1 ephemeral=true pod.name=p pod.namespace=n pod.uid=u serviceAccount.name=sa serviceAccount.tokens={"vault":{"expirationTimestamp":"2026-01-01T01:00:00Z","token":"token of p for vault"}}}"#]]
        .assert_eq(&shortened(&driver.calls()));
    // It is published again, and a failure then takes nothing away.
    fake.clock.advance(jiff::SignedDuration::from_secs(61));
    driver.fail("publish", Code::Internal);
    assert!(set_up(&fake, &pod).await.is_err());
    assert!(fake.dir.path().join("kubelet/pods/u/volumes/kubernetes.io~csi/v/mount").is_dir());
    set_up(&fake, &pod).await.unwrap();
    driver.calls();
    fake.cx.volumes.tear_down("u").await.unwrap();
    assert!(driver.calls().starts_with("unpublish csi-"), "and nothing is unstaged");
    assert!(!fake.dir.path().join("kubelet/pods/u/volumes").exists());
}

/// Digests of handles, cut short.
fn shortened(calls: &str) -> String {
    let words = calls.split(' ').map(|word| match word.strip_prefix("csi-") {
        Some(digest) if digest.len() == 64 => "csi-9f6a1c8b".to_owned(),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn failures_leave_what_they_may_have_done_on_disk() {
    let fake = Fake::new();
    let driver = start(&fake, &[1]);
    bound(&fake, json!({}), json!({}));
    not_attached(&fake);
    let global = fake.dir.path().join("kubelet/plugins/kubernetes.io/csi/d");
    driver.fail("stage", Code::Internal);
    let failed = set_up(&fake, &of_claim()).await.unwrap_err();
    expect![[
        r#"MountVolume.MountDevice failed for volume "pv" : rpc error: code = Internal desc = injected"#
    ]]
    .assert_eq(&failed);
    assert_eq!(std::fs::read_dir(&global).unwrap().count(), 0, "nothing was staged");
    // The driver may still be at work.
    driver.fail("stage", Code::Aborted);
    assert!(set_up(&fake, &of_claim()).await.is_err());
    assert_eq!(std::fs::read_dir(&global).unwrap().count(), 1);
    driver.fail("publish", Code::Aborted);
    assert!(set_up(&fake, &of_claim()).await.is_err());
    driver.calls();
    driver.fail("unpublish", Code::Internal);
    assert!(fake.cx.volumes.tear_down("u").await.is_err());
    fake.cx.volumes.csi_drivers().unregister("d");
    let away = fake.cx.volumes.tear_down("u").await.unwrap_err();
    expect![[r#"UnmountVolume.TearDown failed for volume "pv" : kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client: driver name d not found in the list of registered CSI drivers"#]]
        .assert_eq(&away);
    // A kubelet after this one, which knows the pod from the disk alone.
    let Fake { dir, .. } = fake;
    let fake = Fake::at(dir, NoMounts::default());
    let endpoint = driver.socket.display().to_string();
    fake.cx.volumes.csi_drivers().register("d", &endpoint, &["1.0.0".to_owned()]).unwrap();
    driver.calls();
    fake.cx.volumes.tear_down("u").await.unwrap();
    let calls = driver.calls();
    assert!(calls.starts_with("unpublish h ") && calls.contains("unstage h "), "{calls}");
    assert_eq!(std::fs::read_dir(&global).unwrap().count(), 0);
}

#[tokio::test]
async fn a_volume_that_has_grown_is_expanded() {
    let fake = Fake::new();
    let driver = start(&fake, &[3]);
    bound(&fake, json!({}), json!({}));
    not_attached(&fake);
    let mut small = claim();
    small["status"]["capacity"]["storage"] = "1Gi".into();
    put(&fake, "/api/v1/namespaces/n/persistentvolumeclaims/data", small);
    set_up(&fake, &of_claim()).await.unwrap();
    let calls = driver.calls();
    expect!["expand h /kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount 2147483648"]
        .assert_eq(calls.lines().last().unwrap());
    expect![[r#"n/data {"status":{"allocatedResourceStatuses":{"storage":null},"capacity":{"storage":"2Gi"},"conditions":[{"$patch":"delete","type":"Resizing"},{"$patch":"delete","type":"FileSystemResizePending"},{"$patch":"delete","type":"ControllerResizeError"},{"$patch":"delete","type":"NodeResizeError"}]}}"#]]
        .assert_eq(&fake.api.claims.lock().unwrap().join("\n"));
}

#[tokio::test]
async fn devices_are_published_as_files() {
    let fake = Fake::new();
    let driver = start(&fake, &[1]);
    bound(&fake, json!({}), json!({"volumeMode": "Block"}));
    not_attached(&fake);
    let mounted = set_up(&fake, &of_claim()).await.unwrap_err();
    assert!(
        mounted.ends_with("volume v has volumeMode Block, but is specified in volumeMounts"),
        "{mounted}"
    );
    let mut pod = of_claim();
    pod["spec"]["containers"][0] =
        json!({"name": "c", "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]});
    set_up(&fake, &pod).await.unwrap();
    expect![[r#"
        stage h /kubelet/plugins/kubernetes.io/csi/volumeDevices/staging/pv SingleNodeWriter block secrets {} context {} attributes {a=1}
        publish h /kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv/u from "/kubelet/plugins/kubernetes.io/csi/volumeDevices/staging/pv" SingleNodeWriter block readonly false secrets {} attributes {a=1}"#]]
    .assert_eq(&driver.calls());
    let parsed: kaji_kubelet::pods::core::Pod = serde_json::from_value(pod).unwrap();
    let devices = fake.cx.volumes.devices(&parsed, &parsed.spec.as_ref().unwrap().containers[0]).unwrap();
    assert!(devices[0].container_path == "/dev/x" && devices[0].host_path.ends_with("publish/pv/u"));
    fake.cx.volumes.tear_down("u").await.unwrap();
    assert_eq!(driver.calls().lines().count(), 2);
}
