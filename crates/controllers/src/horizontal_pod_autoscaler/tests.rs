//! Whole turns against an API server that the tests play.

mod turns;
mod zero;

use super::*;
use crate::testing::{ago, now, object};
use http_body_util::{BodyExt, Full};
use kaji_meta::{ManualClock, SeededRandom};
use kube::client::Body;
use std::{collections::HashMap, fmt::Write as _};

/// Answers by path, and the requests that are of interest.
#[derive(Default)]
struct Played {
    answers: HashMap<String, (u16, Value)>,
    /// Conflicts that writes of scales meet before one succeeds.
    conflicts: usize,
    asked: Vec<String>,
}

type Server = Arc<Mutex<Played>>;

fn status(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code});
    (code, body)
}

impl Played {
    fn answer(&mut self, method: &http::Method, uri: &str, body: &Value) -> (u16, Value) {
        let path = uri.split('?').next().unwrap_or_default();
        if method == http::Method::PUT {
            self.asked.push(format!("PUT {uri} {}", body["spec"]));
            if self.conflicts > 0 {
                self.conflicts -= 1;
                return status(409, "Conflict", "the object has been modified");
            }
            return (200, body.clone());
        }
        if uri.contains("metrics.k8s.io/") && path.contains("/namespaces/") {
            self.asked.push(format!("{method} {uri}"));
        }
        let found = self.answers.get(path).cloned();
        found.unwrap_or_else(|| status(404, "NotFound", "the server could not find the requested resource"))
    }
}

fn client(server: &Server) -> Client {
    let server = server.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let server = server.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
            let uri = head.uri.to_string();
            if uri.contains("watch=true") {
                std::future::pending::<()>().await;
            }
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (code, answer) = server.lock().unwrap().answer(&head.method, &uri, &body);
            let body = Full::new(bytes::Bytes::from(answer.to_string()));
            http::Response::builder().status(code).body(body).map_err(|e| e.to_string())
        }
    });
    Client::new(kube::Client::new(service, "default"), "test")
}

fn pod(name: &str, app: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1", "labels": {"app": app}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running", "startTime": ago(3600),
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": ago(3590)}]},
    })
}

fn usage(name: &str, cpu: &str) -> Value {
    json!({"metadata": {"name": name}, "timestamp": ago(5), "window": "15s",
        "containers": [{"name": "c", "usage": {"cpu": cpu, "memory": "1Mi"}}]})
}

const SCALE: &str = "/apis/apps/v1/namespaces/n/deployments/d/scale";

/// A deployment of two pods with a scale, and their usage.
fn played(replicas: i64) -> Played {
    let list = |items: Vec<Value>| json!({"metadata": {"resourceVersion": "1"}, "items": items});
    let version = |group: &str, version: &str| json!({"name": group, "versions": [{"version": version}], "preferredVersion": {"version": version}});
    let deployments = json!({"resources": [
        {"name": "deployments", "kind": "Deployment", "namespaced": true, "verbs": []},
        {"name": "deployments/scale", "kind": "Scale", "namespaced": true, "verbs": []}]});
    let scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "d", "namespace": "n", "resourceVersion": "7"},
        "spec": {"replicas": replicas}, "status": {"replicas": replicas, "selector": "app=x"}});
    let answers = [
        ("/api/v1/pods", list(vec![pod("p0", "x"), pod("p1", "x"), pod("q", "y")])),
        ("/apis/autoscaling/v2/horizontalpodautoscalers", list(vec![])),
        ("/apis/apps", version("apps", "v1")),
        ("/apis/apps/v1", deployments),
        (SCALE, scale),
        ("/apis/metrics.k8s.io/v1beta1/namespaces/n/pods", list(vec![usage("p0", "600m"), usage("p1", "1")])),
        ("/apis/custom.metrics.k8s.io", version("custom.metrics.k8s.io", "v1beta2")),
    ];
    let answers = answers.into_iter().map(|(path, answer)| (path.to_owned(), (200, answer))).collect();
    Played { answers, ..Played::default() }
}

/// An autoscaler of the deployment with these metrics.
fn autoscaler(metrics: Value) -> Value {
    json!({"metadata": {"name": "h", "namespace": "n", "uid": "h", "generation": 3}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
        "minReplicas": 1, "maxReplicas": 10, "metrics": metrics}})
}

fn cpu(percent: i64) -> Value {
    json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}}])
}

struct Harness {
    server: Server,
    autoscalers: Autoscalers,
    _informers: Arc<Informers>,
}

impl Harness {
    async fn new(played: Played) -> Harness {
        let server: Server = Arc::new(Mutex::new(played));
        let client = client(&server);
        let clock = Arc::new(ManualClock::new(now()));
        let informers = Informers::new(client.clone());
        let shared = Shared { client, clock, random: Arc::new(SeededRandom::new(1)), decisions: None };
        let autoscalers = Autoscalers::new(&informers, &shared, &AutoscalerConfig::default());
        autoscalers.pods.synced().await;
        Harness { server, autoscalers, _informers: informers }
    }

    /// What a turn asks for, says and leaves.
    async fn turn(&self, hpa: Value) -> String {
        let hpa: HorizontalPodAutoscaler = object(hpa);
        let key = hpa.metadata.key();
        let mut turn = Turn::new(&hpa, now());
        self.autoscalers.remember(&key);
        self.autoscalers.scale(&key, &mut turn).await;
        let mut out = String::new();
        let mut asked = std::mem::take(&mut self.server.lock().unwrap().asked);
        // Metrics are read side by side.
        asked.sort();
        for asked in asked {
            let _ = writeln!(out, "{asked}");
        }
        for event in &turn.events {
            let _ = writeln!(out, "{:?} {}: {}", event.kind, event.reason, event.message);
        }
        if let Some(mut status) = turn.status() {
            for condition in status["conditions"].take().as_array().unwrap() {
                let text = |name: &str| condition[name].as_str().unwrap_or_default();
                let _ = writeln!(
                    out,
                    "{}={} {}: {}",
                    text("type"),
                    text("status"),
                    text("reason"),
                    text("message")
                );
            }
            status.as_object_mut().unwrap().remove("conditions");
            let _ = writeln!(out, "{status}");
        }
        out
    }
}

async fn turn(played: Played, hpa: Value) -> String {
    Harness::new(played).await.turn(hpa).await
}

#[tokio::test]
async fn scales_by_utilization() {
    expect_test::expect![[r#"
        GET /apis/metrics.k8s.io/v1beta1/namespaces/n/pods?labelSelector=app%3Dx
        PUT /apis/apps/v1/namespaces/n/deployments/d/scale {"replicas":4}
        Normal SuccessfulRescale: New size: 4; reason: cpu resource utilization (percentage of request) above target
        AbleToScale=True SucceededRescale: the HPA controller was able to update the target scale to 4
        ScalingActive=True ValidMetricFound: the HPA was able to successfully calculate a replica count from cpu resource utilization (percentage of request)
        ScalingLimited=False DesiredWithinRange: the desired count is within the acceptable range
        ScaledToZero=False NotScaledToZero: the HPA controller did not scale the workload to zero
        {"currentMetrics":[{"resource":{"current":{"averageUtilization":80,"averageValue":"800m"},"name":"cpu"},"type":"Resource"}],"currentReplicas":2,"desiredReplicas":4,"lastScaleTime":"2025-01-01T12:00:00Z","observedGeneration":3}
    "#]]
    .assert_eq(&turn(played(2), autoscaler(cpu(40))).await);
}

#[tokio::test]
async fn leaves_what_is_within_the_tolerance() {
    let harness = Harness::new(played(2)).await;
    let first = harness.turn(autoscaler(cpu(80))).await;
    expect_test::expect![[r#"
        GET /apis/metrics.k8s.io/v1beta1/namespaces/n/pods?labelSelector=app%3Dx
        AbleToScale=True ReadyForNewScale: recommended size matches current size
        ScalingActive=True ValidMetricFound: the HPA was able to successfully calculate a replica count from cpu resource utilization (percentage of request)
        ScalingLimited=False DesiredWithinRange: the desired count is within the acceptable range
        {"currentMetrics":[{"resource":{"current":{"averageUtilization":80,"averageValue":"800m"},"name":"cpu"},"type":"Resource"}],"currentReplicas":2,"desiredReplicas":2,"lastScaleTime":null,"observedGeneration":3}
    "#]]
    .assert_eq(&first);
    // A recommendation to scale down waits for its window.
    let down = harness.turn(autoscaler(cpu(200))).await;
    assert!(down.contains("ScaleDownStabilized") && !down.contains("PUT"), "{down}");
}

#[tokio::test]
async fn keeps_zero_replicas_and_bounds() {
    let seen = [turn(played(0), autoscaler(cpu(40))).await, turn(played(12), autoscaler(cpu(40))).await, {
        let mut hpa = autoscaler(cpu(40));
        hpa["spec"]["minReplicas"] = 3.into();
        turn(played(2), hpa).await
    }];
    expect_test::expect![[r#"
        AbleToScale=True SucceededGetScale: the HPA controller was able to get the target's current scale
        ScalingActive=False ScalingDisabled: scaling is disabled since the replica count of the target is zero
        {"currentMetrics":null,"currentReplicas":0,"desiredReplicas":0,"lastScaleTime":null,"observedGeneration":3}

        PUT /apis/apps/v1/namespaces/n/deployments/d/scale {"replicas":10}
        Normal SuccessfulRescale: New size: 10; reason: Current number of replicas above Spec.MaxReplicas
        AbleToScale=True SucceededRescale: the HPA controller was able to update the target scale to 10
        ScaledToZero=False NotScaledToZero: the HPA controller did not scale the workload to zero
        {"currentMetrics":null,"currentReplicas":12,"desiredReplicas":10,"lastScaleTime":"2025-01-01T12:00:00Z","observedGeneration":3}

        PUT /apis/apps/v1/namespaces/n/deployments/d/scale {"replicas":3}
        Normal SuccessfulRescale: New size: 3; reason: Current number of replicas below Spec.MinReplicas
        AbleToScale=True SucceededRescale: the HPA controller was able to update the target scale to 3
        ScaledToZero=False NotScaledToZero: the HPA controller did not scale the workload to zero
        {"currentMetrics":null,"currentReplicas":2,"desiredReplicas":3,"lastScaleTime":"2025-01-01T12:00:00Z","observedGeneration":3}
    "#]]
    .assert_eq(&seen.join("\n"));
}

#[tokio::test]
async fn targets_that_cannot_be_scaled() {
    let to = |api_version: &str, kind: &str, name: &str| {
        let mut hpa = autoscaler(cpu(40));
        hpa["spec"]["scaleTargetRef"] = json!({"apiVersion": api_version, "kind": kind, "name": name});
        hpa
    };
    let mut text = String::new();
    for (version, kind, name) in [
        ("apps/v1", "Deployment", "none"),
        ("apps/v1", "Nope", "d"),
        ("x.io/v1", "Y", "d"),
        ("a/b/c", "D", "d"),
    ] {
        text += &turn(played(2), to(version, kind, name)).await;
    }
    let refused = Played { conflicts: 2, ..played(2) };
    let retried = turn(refused, autoscaler(cpu(40))).await;
    assert_eq!(retried.matches("PUT").count(), 3, "{retried}");
    assert!(retried.contains("Normal SuccessfulRescale"), "{retried}");
    text += &turn(Played { conflicts: 9, ..played(2) }, autoscaler(cpu(40))).await;
    expect_test::expect![[r#"
        Warning FailedGetScale: the server could not find the requested resource
        AbleToScale=False FailedGetScale: the HPA controller was unable to get the target's current scale: the server could not find the requested resource
        {"currentMetrics":null,"currentReplicas":0,"desiredReplicas":0,"lastScaleTime":null,"observedGeneration":null}
        Warning FailedGetScale: no matches for kind "Nope" in group "apps"
        AbleToScale=False FailedGetScale: the HPA controller was unable to get the target's current scale: no matches for kind "Nope" in group "apps"
        {"currentMetrics":null,"currentReplicas":0,"desiredReplicas":0,"lastScaleTime":null,"observedGeneration":null}
        Warning FailedGetScale: no matches for kind "Y" in group "x.io"
        AbleToScale=False FailedGetScale: the HPA controller was unable to get the target's current scale: no matches for kind "Y" in group "x.io"
        {"currentMetrics":null,"currentReplicas":0,"desiredReplicas":0,"lastScaleTime":null,"observedGeneration":null}
        Warning FailedGetScale: unexpected GroupVersion string: a/b/c
        AbleToScale=False FailedGetScale: the HPA controller was unable to get the target's current scale: unexpected GroupVersion string: a/b/c
        {"currentMetrics":null,"currentReplicas":0,"desiredReplicas":0,"lastScaleTime":null,"observedGeneration":null}
        GET /apis/metrics.k8s.io/v1beta1/namespaces/n/pods?labelSelector=app%3Dx
        PUT /apis/apps/v1/namespaces/n/deployments/d/scale {"replicas":4}
        PUT /apis/apps/v1/namespaces/n/deployments/d/scale {"replicas":4}
        PUT /apis/apps/v1/namespaces/n/deployments/d/scale {"replicas":4}
        PUT /apis/apps/v1/namespaces/n/deployments/d/scale {"replicas":4}
        PUT /apis/apps/v1/namespaces/n/deployments/d/scale {"replicas":4}
        Warning FailedRescale: New size: 4; reason: cpu resource utilization (percentage of request) above target; error: the object has been modified
        AbleToScale=False FailedUpdateScale: the HPA controller was unable to update the target scale: the object has been modified
        ScalingActive=True ValidMetricFound: the HPA was able to successfully calculate a replica count from cpu resource utilization (percentage of request)
        ScalingLimited=False DesiredWithinRange: the desired count is within the acceptable range
        {"currentMetrics":[{"resource":{"current":{"averageUtilization":80,"averageValue":"800m"},"name":"cpu"},"type":"Resource"}],"currentReplicas":2,"desiredReplicas":0,"lastScaleTime":null,"observedGeneration":3}
    "#]]
    .assert_eq(&text);
}

fn value(value: &str) -> Value {
    json!({"describedObject": {"name": "p0"}, "value": value, "timestamp": ago(5)})
}

#[tokio::test]
async fn scales_by_metrics_of_all_kinds() {
    let mut played = played(2);
    let base = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/n";
    let mut second = value("300m");
    second["describedObject"]["name"] = "p1".into();
    let answers = [
        (format!("{base}/pods/*/rps"), vec![value("500m"), second]),
        (format!("{base}/deployments.apps/d/hits"), vec![value("12")]),
        (format!("{base}/metrics/quota"), vec![value("9")]),
        ("/apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue".into(), vec![value("30"), value("12")]),
    ];
    played.answers.extend(answers.map(|(path, items)| (path, (200, json!({"items": items})))));
    let object = |kind: &str, version: &str| json!({"kind": kind, "name": "d", "apiVersion": version});
    let metrics = json!([
        {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c", "target": {"type": "Utilization", "averageUtilization": 50}}},
        {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Mi"}}},
        {"type": "Pods", "pods": {"metric": {"name": "rps", "selector": {"matchLabels": {"path": "a"}}}, "target": {"type": "AverageValue", "averageValue": "200m"}}},
        {"type": "Object", "object": {"metric": {"name": "hits"}, "describedObject": object("Deployment", "apps/v1"), "target": {"type": "AverageValue", "averageValue": "4"}}},
        {"type": "Object", "object": {"metric": {"name": "quota"}, "describedObject": object("Namespace", "v1"), "target": {"type": "Value", "value": "6"}}},
        {"type": "External", "external": {"metric": {"name": "queue", "selector": {"matchLabels": {"q": "a"}}}, "target": {"type": "AverageValue", "averageValue": "6"}}},
        {"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "42"}}},
    ]);
    expect_test::expect![[r#"
        GET /apis/custom.metrics.k8s.io/v1beta2/namespaces/n/deployments.apps/d/hits
        GET /apis/custom.metrics.k8s.io/v1beta2/namespaces/n/metrics/quota
        GET /apis/custom.metrics.k8s.io/v1beta2/namespaces/n/pods/*/rps?labelSelector=app%3Dx&metricLabelSelector=path%3Da
        GET /apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue
        GET /apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue?labelSelector=q%3Da
        GET /apis/metrics.k8s.io/v1beta1/namespaces/n/pods?labelSelector=app%3Dx
        GET /apis/metrics.k8s.io/v1beta1/namespaces/n/pods?labelSelector=app%3Dx
        PUT /apis/apps/v1/namespaces/n/deployments/d/scale {"replicas":4}
        Normal SuccessfulRescale: New size: 4; reason: external metric queue(&LabelSelector{MatchLabels:map[string]string{q: a,},MatchExpressions:[]LabelSelectorRequirement{},}) above target
        AbleToScale=True SucceededRescale: the HPA controller was able to update the target scale to 4
        ScalingActive=True ValidMetricFound: the HPA was able to successfully calculate a replica count from external metric queue(&LabelSelector{MatchLabels:map[string]string{q: a,},MatchExpressions:[]LabelSelectorRequirement{},})
        ScalingLimited=True ScaleUpLimit: the desired replica count is increasing faster than the maximum scale rate
        ScaledToZero=False NotScaledToZero: the HPA controller did not scale the workload to zero
        {"currentMetrics":[{"containerResource":{"container":"c","current":{"averageUtilization":80,"averageValue":"800m"},"name":"cpu"},"type":"ContainerResource"},{"resource":{"current":{"averageValue":"1Mi"},"name":"memory"},"type":"Resource"},{"pods":{"current":{"averageValue":"400m"},"metric":{"name":"rps","selector":{"matchLabels":{"path":"a"}}}},"type":"Pods"},{"object":{"current":{"averageValue":"6"},"describedObject":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"},"metric":{"name":"hits"}},"type":"Object"},{"object":{"current":{"value":"9"},"describedObject":{"apiVersion":"v1","kind":"Namespace","name":"d"},"metric":{"name":"quota"}},"type":"Object"},{"external":{"current":{"averageValue":"21"},"metric":{"name":"queue","selector":{"matchLabels":{"q":"a"}}}},"type":"External"},{"external":{"current":{"value":"42"},"metric":{"name":"queue"}},"type":"External"}],"currentReplicas":2,"desiredReplicas":4,"lastScaleTime":"2025-01-01T12:00:00Z","observedGeneration":3}
    "#]].assert_eq(&turn(played, autoscaler(metrics)).await);
}

#[tokio::test]
async fn reports_metrics_that_fail() {
    let missing = json!([
        {"type": "Pods", "pods": {"metric": {"name": "rps"}, "target": {"type": "AverageValue", "averageValue": "200m"}}},
        {"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "42"}}},
        {"type": "Object", "object": {"metric": {"name": "hits"}, "describedObject": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}, "target": {"type": "AverageValue", "averageValue": "4"}}},
    ]);
    let all_fail = turn(played(2), autoscaler(missing.clone())).await;
    let with = |percent: i64| {
        let mut metrics = cpu(percent);
        metrics.as_array_mut().unwrap().push(missing[1].clone());
        autoscaler(metrics)
    };
    // What is there scales up, but never down.
    let up = turn(played(2), with(40)).await;
    assert!(up.contains("PUT") && up.contains(r#"{"type":""}"#) && !up.contains("FailedCompute"), "{up}");
    let down = turn(played(2), with(200)).await;
    assert!(!down.contains("PUT") && down.contains("ScalingActive=False FailedGetExternalMetric"), "{down}");
    let mut without = played(2);
    without.answers.remove("/apis/metrics.k8s.io/v1beta1/namespaces/n/pods");
    let none = turn(without, autoscaler(cpu(40))).await;
    expect_test::expect![[r#"
        GET /apis/custom.metrics.k8s.io/v1beta2/namespaces/n/deployments.apps/d/hits
        GET /apis/custom.metrics.k8s.io/v1beta2/namespaces/n/pods/*/rps?labelSelector=app%3Dx
        GET /apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue
        Warning FailedGetPodsMetric: unable to get metric rps: unable to fetch metrics from custom metrics API: the server could not find the requested resource
        Warning FailedGetExternalMetric: unable to get external metric n/queue/nil: unable to fetch metrics from external metrics API: the server could not find the requested resource
        Warning FailedGetObjectMetric: unable to get metric hits on Deployment n/d: unable to fetch metrics from custom metrics API: the server could not find the requested resource
        Warning FailedComputeMetricsReplicas: invalid metrics (3 invalid out of 3), first error is: failed to get pods metric value: unable to get metric rps: unable to fetch metrics from custom metrics API: the server could not find the requested resource
        AbleToScale=True SucceededGetScale: the HPA controller was able to get the target's current scale
        ScalingActive=False FailedGetPodsMetric: the HPA was unable to compute the replica count: unable to get metric rps: unable to fetch metrics from custom metrics API: the server could not find the requested resource
        {"currentMetrics":[{"type":""},{"type":""},{"type":""}],"currentReplicas":2,"desiredReplicas":0,"lastScaleTime":null,"observedGeneration":3}
        GET /apis/metrics.k8s.io/v1beta1/namespaces/n/pods?labelSelector=app%3Dx
        Warning FailedGetResourceMetric: failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: the server could not find the requested resource
        Warning FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: the server could not find the requested resource
        AbleToScale=True SucceededGetScale: the HPA controller was able to get the target's current scale
        ScalingActive=False FailedGetResourceMetric: the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: the server could not find the requested resource
        {"currentMetrics":[{"type":""}],"currentReplicas":2,"desiredReplicas":0,"lastScaleTime":null,"observedGeneration":3}
    "#]].assert_eq(&format!("{all_fail}{none}"));
}

#[tokio::test]
async fn selectors_that_do_not_do() {
    let with = |selector: &str| {
        let mut played = played(2);
        played.answers.get_mut(SCALE).unwrap().1["status"]["selector"] = selector.into();
        played
    };
    let mut text = turn(with(""), autoscaler(cpu(40))).await;
    text += &turn(with("a in"), autoscaler(cpu(40))).await;
    let harness = Harness::new(played(2)).await;
    harness.turn(autoscaler(cpu(80))).await;
    let mut other = autoscaler(cpu(80));
    other["metadata"]["name"] = "g".into();
    text += &harness.turn(other.clone()).await;
    harness.autoscalers.kept().remove(&Key::new("n", "h"));
    let alone = harness.turn(other).await;
    assert!(alone.contains("ValidMetricFound"), "{alone}");
    expect_test::expect![[r#"
        Warning SelectorRequired: selector is required
        Warning FailedComputeMetricsReplicas: selector is required
        AbleToScale=True SucceededGetScale: the HPA controller was able to get the target's current scale
        ScalingActive=False InvalidSelector: the HPA target's scale is missing a selector
        {"currentMetrics":null,"currentReplicas":2,"desiredReplicas":0,"lastScaleTime":null,"observedGeneration":3}
        Warning InvalidSelector: couldn't convert selector into a corresponding internal selector object: unable to parse requirement: found '' expected: '('
        Warning FailedComputeMetricsReplicas: couldn't convert selector into a corresponding internal selector object: unable to parse requirement: found '' expected: '('
        AbleToScale=True SucceededGetScale: the HPA controller was able to get the target's current scale
        ScalingActive=False InvalidSelector: couldn't convert selector into a corresponding internal selector object: unable to parse requirement: found '' expected: '('
        {"currentMetrics":null,"currentReplicas":2,"desiredReplicas":0,"lastScaleTime":null,"observedGeneration":3}
        Warning AmbiguousSelector: pods by selector app=x are controlled by more than one HPA (e.g. [n/g n/h])
        Warning FailedComputeMetricsReplicas: pods by selector app=x are controlled by more than one HPA (e.g. [n/g n/h])
        AbleToScale=True SucceededGetScale: the HPA controller was able to get the target's current scale
        ScalingActive=False AmbiguousSelector: pods by selector app=x are controlled by more than one HPA (e.g. [n/g n/h])
        {"currentMetrics":null,"currentReplicas":2,"desiredReplicas":0,"lastScaleTime":null,"observedGeneration":3}
    "#]].assert_eq(&text);
}

/// The page's lines of the metrics, but for times and buckets.
fn measured(harness: &Harness) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    harness.autoscalers.metrics.register(&mut registry);
    let page = kaji_exposition::encode(&registry);
    let own =
        |line: &&str| line.starts_with("horizontal_") && !line.contains("_bucket") && !line.contains("_sum");
    let short = |line: &str| line.replace("horizontal_pod_autoscaler_controller_", "") + "\n";
    page.lines().filter(own).map(short).collect()
}

#[tokio::test]
async fn turns_and_computations_are_measured() {
    let take = async |harness: &Harness, hpa: Value| {
        let hpa: HorizontalPodAutoscaler = object(hpa);
        let key = hpa.metadata.key();
        harness.autoscalers.remember(&key);
        harness.autoscalers.take_turn(&hpa, &key).await;
    };
    let mut all = played(2);
    let status = "/apis/autoscaling/v2/namespaces/n/horizontalpodautoscalers/h/status";
    all.answers.insert(status.into(), (200, json!({})));
    let mut listed = autoscaler(cpu(80));
    listed["status"] =
        json!({"desiredReplicas": 3, "conditions": [{"type": "AbleToScale", "status": "True"}]});
    let mut fresh = autoscaler(cpu(80));
    fresh["metadata"]["name"] = "fresh".into();
    let list = json!({"metadata": {"resourceVersion": "1"}, "items": [listed, fresh]});
    all.answers.insert("/apis/autoscaling/v2/horizontalpodautoscalers".into(), (200, list));
    let harness = Harness::new(all).await;
    harness.autoscalers.autoscalers.synced().await;
    let mut steady = autoscaler(cpu(80));
    steady["status"] = json!({"currentReplicas": 2});
    take(&harness, steady).await;
    let mut of_two = autoscaler(cpu(40));
    of_two["status"] = json!({"currentReplicas": 2});
    take(&harness, of_two).await;
    // A metric without a source, a type that is none, and a version that is none.
    let external = json!([{"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "42"}}}]);
    take(&harness, autoscaler(external)).await;
    take(&harness, autoscaler(json!([{"type": "Nothing"}]))).await;
    let mut wrong = autoscaler(cpu(80));
    wrong["spec"]["scaleTargetRef"]["apiVersion"] = "a/b/c".into();
    take(&harness, wrong).await;
    expect_test::expect![[r#"
        desired_replicas{hpa_name="h",namespace="n"} 3
        metric_computation_duration_seconds_count{action="none",error="internal",metric_type="External"} 1
        metric_computation_duration_seconds_count{action="none",error="none",metric_type="Resource"} 1
        metric_computation_duration_seconds_count{action="none",error="spec",metric_type="Nothing"} 1
        metric_computation_duration_seconds_count{action="scale_up",error="none",metric_type="Resource"} 1
        metric_computation_total{action="none",error="internal",metric_type="External"} 1
        metric_computation_total{action="none",error="none",metric_type="Resource"} 1
        metric_computation_total{action="none",error="spec",metric_type="Nothing"} 1
        metric_computation_total{action="scale_up",error="none",metric_type="Resource"} 1
        num_horizontal_pod_autoscalers 2
        reconciliation_duration_seconds_count{action="none",error="internal"} 1
        reconciliation_duration_seconds_count{action="none",error="none"} 1
        reconciliation_duration_seconds_count{action="none",error="spec"} 2
        reconciliation_duration_seconds_count{action="scale_up",error="none"} 1
        reconciliations_total{action="none",error="internal"} 1
        reconciliations_total{action="none",error="none"} 1
        reconciliations_total{action="none",error="spec"} 2
        reconciliations_total{action="scale_up",error="none"} 1
    "#]]
    .assert_eq(&measured(&harness));
}
