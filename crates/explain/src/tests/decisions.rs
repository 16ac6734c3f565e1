//! Explanations that repeat what the server remembers of decisions, as known.

use super::{node, pending};
use crate::testing::fixture;
use expect_test::expect;
use serde_json::{Value, json};

#[tokio::test]
async fn tells_what_was_decided_last() {
    let decision = |component: &str, object: Value, message: &str, rejections: Value| {
        json!({"kind": "Decision", "name": component, "component": component, "object": object, "message": message,
            "count": 2, "firstTimestamp": "2026-01-01T00:01:00Z", "lastTimestamp": "2026-01-01T00:05:00Z",
            "rejections": rejections})
    };
    let taint = json!([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]);
    let hook = json!({"name": "guard.acme.example.com", "clientConfig": {"url": "https://guard.acme.example.com"},
        "rules": [{"operations": ["CREATE"], "resources": ["pods"]}]});
    let server = fixture(&[
        pending("6"),
        node("a", "4", taint),
        node("b", "4", json!([])),
        json!({"kind": "ReplicaSet", "name": "web"}),
        json!({"kind": "ValidatingWebhookConfiguration", "name": "guard", "webhooks": [hook]}),
        json!({"kind": "APIService", "name": "v1.acme.example.com",
            "status": {"conditions": [{"type": "Available", "status": "False", "reason": "Away", "message": "away"}]}}),
        decision(
            "kube-scheduler",
            json!({"resource": "pods", "namespace": "d", "name": "web"}),
            "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s).",
            json!([{"plugin": "NodeResourcesFit", "reason": "Insufficient cpu", "count": 1, "nodes": ["b"]}]),
        ),
        decision(
            "replicaset-controller",
            json!({"resource": "pods", "namespace": "d", "owner": "ReplicaSet web"}),
            "no answer within 60s",
            json!([]),
        ),
        json!({"kind": "Decision", "name": "hook", "namespace": "default", "component": "admission-webhooks", "count": 1,
            "object": {"group": "admissionregistration.k8s.io", "resource": "validatingwebhookconfigurations", "name": "guard"},
            "lastTimestamp": "2026-01-01T00:05:00Z",
            "message": "failed calling webhook \"guard.acme.example.com\": failed to call webhook: timed out"}),
        json!({"kind": "Decision", "name": "api", "namespace": "default", "component": "kube-aggregator", "count": 1,
            "object": {"group": "apiregistration.k8s.io", "resource": "apiservices", "name": "v1.acme.example.com"},
            "lastTimestamp": "2026-01-01T00:05:00Z", "message": "connection refused"}),
    ]);
    let mut text = String::new();
    for name in [
        "pod/web",
        "replicaset/web",
        "validatingwebhookconfiguration/guard",
        "apiservice/v1.acme.example.com",
    ] {
        text += &server.why(name).await;
    }
    expect![[r#"
        Pod d/web: no node takes it (0 of 2)
          known    the scheduler, 2 times from 2026-01-01T00:01:00Z to 2026-01-01T00:05:00Z: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s).
          known    NodeResourcesFit: Insufficient cpu, on b (requests cpu 6; b can allocate cpu 4, memory 8Gi, pods 110 to all its pods)
          inferred NodeResourcesFit: Insufficient cpu, on a (requests cpu 6; a can allocate cpu 4, memory 8Gi, pods 110 to all its pods)
          inferred TaintToleration: node(s) had untolerated taint(s), on a (a has gpu=yes:NoSchedule)
          nearest  node b: NodeResourcesFit alone rejects it
          fix      lower the requests in the pod's template, free room, or add a node
        ReplicaSet d/web: replicaset-controller cannot write pods
          known    replicaset-controller, 2 times from 2026-01-01T00:01:00Z to 2026-01-01T00:05:00Z: no answer within 60s
        ValidatingWebhookConfiguration guard: webhook guard.acme.example.com cannot be called
          known    its last call failed at 2026-01-01T00:05:00Z: failed calling webhook "guard.acme.example.com": failed to call webhook: timed out
          known    failurePolicy is Fail: it refuses CREATE of pods
        APIService v1.acme.example.com: its server is not available
          known    condition Available is False (Away): away
          known    the last request to it failed at 2026-01-01T00:05:00Z: connection refused
    "#]].assert_eq(&text);
}
