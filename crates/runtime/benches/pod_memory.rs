//! Memory of an informer's snapshot, per pod: fixture pods of deployments are decoded as a watch decodes them, and the
//! growth of the resident set is divided by their number.
//!
//! `cargo bench -p kaji-runtime --bench pod_memory`

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints what it measured")]

use kaji_runtime::{ObjectSnapshot, objects::Pod};
use serde_json::{Value, json};

const PODS: usize = 50_000;
/// Pods of one replica set.
const REPLICAS: usize = 1000;
const NODES: usize = 500;

fn status(index: usize) -> Value {
    let time = format!("2026-01-01T00:{:02}:{:02}Z", index / 60 % 60, index % 60);
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": time});
    let address = format!("10.{}.{}.{}", index >> 16, index >> 8 & 255, index & 255);
    let types = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    let conditions = types.map(condition);
    json!({
        "phase": "Running",
        "observedGeneration": 1,
        "conditions": conditions,
        "hostIP": "192.168.0.1",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "qosClass": "Burstable",
        "startTime": time,
        "containerStatuses": [{
            "name": "server", "ready": true, "started": true, "restartCount": 0,
            "image": "registry.example/team/server:1.2.3",
            "imageID": "registry.example/team/server@sha256:0123456789abcdef",
            "containerID": format!("containerd://{index:064x}"),
            "state": {"running": {"startedAt": time}}, "lastState": {},
        }],
    })
}

fn pod(index: usize) -> String {
    let set = index / REPLICAS;
    let toleration = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("shop-{set}-5d8f9c7b6-{index:05}"),
            "generateName": format!("shop-{set}-5d8f9c7b6-"),
            "namespace": format!("team-{}", set % 10),
            "uid": format!("{index:08x}-1111-4222-8333-444455556666"),
            "resourceVersion": (1000 + index).to_string(),
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app.kubernetes.io/name": format!("shop-{set}"), "app.kubernetes.io/part-of": "shop", "pod-template-hash": "5d8f9c7b6"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("shop-{set}-5d8f9c7b6"),
                "uid": format!("{set:08x}-aaaa-4bbb-8ccc-ddddeeeeffff"), "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {
            "nodeName": format!("node-{}", index % NODES),
            "schedulerName": "default-scheduler",
            "serviceAccountName": "default",
            "restartPolicy": "Always",
            "preemptionPolicy": "PreemptLowerPriority",
            "priority": 0,
            "terminationGracePeriodSeconds": 30,
            "tolerations": [toleration("node.kubernetes.io/not-ready"), toleration("node.kubernetes.io/unreachable")],
            "containers": [{
                "name": "server", "image": "registry.example/team/server:1.2.3",
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "t"}}}],
            }],
            "volumes": [{"name": format!("kube-api-access-{index:05}"), "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
        },
        "status": status(index),
    })
    .to_string()
}

/// Resident bytes of this process.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: usize = statm.split(' ').nth(1).and_then(|p| p.parse().ok()).unwrap_or_default();
    pages * 4096
}

fn main() {
    // The first pods fault in what is allocated once.
    let warm: ObjectSnapshot<Pod> = ObjectSnapshot::of((0..100).map(|i| decode(&pod(i))));
    let before = resident();
    let snapshot: ObjectSnapshot<Pod> = ObjectSnapshot::of((0..PODS).map(|i| decode(&pod(i))));
    let grown = resident().saturating_sub(before);
    println!("{} pods: {} bytes a pod in the informer's snapshot", snapshot.len(), grown / snapshot.len());
    drop((warm, snapshot));
}

fn decode(text: &str) -> Pod {
    match kaji_meta::json::from_slice(text.as_bytes()) {
        Ok(pod) => pod,
        Err(error) => panic!("a fixture pod does not decode: {error}"),
    }
}
