//! How much the archive of an idle cluster grows in a day, on a virtual clock.
//!
//! The writes are those of three nodes and one server: leases are renewed every ten seconds, nodes report their status every five
//! minutes, and jobs of the control loops leave an event each hour.

use crate::recording::{put, records, start_with};
use jiff::{SignedDuration, Timestamp};
use kaji_meta::time::{Clock, ManualClock};
use kaji_store::{Store, memory::MemoryStore};
use serde_json::json;
use std::{path::Path, sync::Arc, time::Duration};

const MINUTES: u32 = 24 * 60;
const NODES: [&str; 3] = ["a", "b", "c"];
/// Under `kube-system`, beside the nodes' leases.
const COMPONENTS: [&str; 3] =
    ["kube-controller-manager", "kube-scheduler", "apiserver-qqxhzwdq4kfbqzhkkkdw2l5gii"];
/// A megabyte a day.
const MOST: u64 = 1_000_000;

/// An object as the server stores it: with the entry of the manager that writes it.
fn stored(
    kind: &str,
    api_version: &str,
    (namespace, name): (&str, &str),
    manager: &str,
    now: Timestamp,
) -> serde_json::Value {
    let fields = json!({"f:spec": {"f:holderIdentity": {}, "f:leaseDurationSeconds": {}, "f:renewTime": {}}});
    json!({"kind": kind, "apiVersion": api_version, "metadata": {
        "name": name, "namespace": namespace, "uid": "4ad0b2a5-3b5e-4c7e-8f55-5bb2ed1b6d3b", "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": manager, "operation": "Update", "apiVersion": api_version,
            "time": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "fieldsType": "FieldsV1", "fieldsV1": fields}],
    }})
}

async fn renew(store: &Arc<dyn Store>, namespace: &str, name: &str, now: Timestamp) {
    let mut lease = stored("Lease", "coordination.k8s.io/v1", (namespace, name), "kaji", now);
    let time = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    lease["spec"] = json!({"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": time});
    put(store, &format!("/registry/coordination.k8s.io/leases/{namespace}/{name}"), &lease.to_string()).await;
}

async fn report(store: &Arc<dyn Store>, name: &str, now: Timestamp) {
    let mut node = stored("Node", "v1", ("", name), "kubelet", now);
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |sort: &str, status: &str| json!({"type": sort, "status": status, "lastHeartbeatTime": time, "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Kubelet"});
    node["status"] = json!({"conditions": [
        condition("MemoryPressure", "False"), condition("DiskPressure", "False"), condition("PIDPressure", "False"), condition("Ready", "True"),
    ]});
    put(store, &format!("/registry/core/nodes/{name}"), &node.to_string()).await;
}

fn bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir.join("history")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

/// One minute's writes.
async fn minute(store: &Arc<dyn Store>, clock: &ManualClock, minute: u32) {
    for _ in 0..6 {
        let now = clock.now();
        for node in NODES {
            renew(store, "kube-node-lease", node, now).await;
        }
        for component in COMPONENTS {
            renew(store, "kube-system", component, now).await;
        }
        clock.advance(SignedDuration::from_secs(10));
    }
    if minute.is_multiple_of(5) {
        for node in NODES {
            report(store, node, clock.now()).await;
        }
    }
    if minute.is_multiple_of(60) {
        put(store, &format!("/registry/core/events/kube-system/e{minute}"), "{\"kind\":\"Event\"}").await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_archive_of_an_idle_cluster_grows_by_less_than_a_megabyte_a_day() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
    let clock = Arc::new(ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
    let recording = start_with(dir.path(), &store, clock.clone(), false);
    minute(&store, &clock, 0).await;
    recording.history.fresh().await;
    let before = bytes(dir.path());
    for number in 1..=MINUTES {
        minute(&store, &clock, number).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        // As the server's: what it forgets is recorded by then.
        if number.is_multiple_of(5) {
            recording.history.fresh().await;
            store.compact(store.revision().await.unwrap()).await.unwrap();
        }
    }
    let changed = "/registry/core/configmaps/d/changed";
    put(&store, changed, "{\"kind\":\"ConfigMap\"}").await;
    recording.stop().await;
    // It was recorded all the while: a change is there, no revision is missing, and each object has its first state alone.
    assert_eq!(records(dir.path(), changed).len(), 1);
    for node in NODES {
        let lease = format!("/registry/coordination.k8s.io/leases/kube-node-lease/{node}");
        assert_eq!(records(dir.path(), &lease).len(), 1);
        assert_eq!(records(dir.path(), &format!("/registry/core/nodes/{node}")).len(), 1);
    }
    let grown = bytes(dir.path()) - before;
    println!("the archive has grown by {grown} bytes in a day");
    assert!(grown > 0 && grown < MOST, "{grown} bytes");
}
