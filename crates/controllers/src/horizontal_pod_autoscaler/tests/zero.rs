//! Scaling to zero replicas and from them: only an autoscaler that scaled to zero itself scales up again.

use super::*;

/// An autoscaler with a pod for each ten entries of a queue. Its condition `ScaledToZero` has this status, or is not there.
fn by_queue(min: i64, scaled_to_zero: &str) -> Value {
    let mut hpa = autoscaler(json!([{"type": "External", "external": {"metric": {"name": "queue"},
        "target": {"type": "AverageValue", "averageValue": "10"}}}]));
    hpa["spec"]["minReplicas"] = min.into();
    let rules = |kind: &str, value: i64| {
        json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max",
            "policies": [{"type": kind, "value": value, "periodSeconds": 15}]})
    };
    hpa["spec"]["behavior"] = json!({"scaleUp": rules("Pods", 4), "scaleDown": rules("Percent", 100)});
    if !scaled_to_zero.is_empty() {
        let condition = json!({"type": "ScaledToZero", "status": scaled_to_zero, "reason": "Before", "message": "it was"});
        hpa["status"] = json!({"conditions": [condition]});
    }
    hpa
}

/// A target of so many replicas, and a queue.
fn with_queue(replicas: i64, length: &str) -> Played {
    let mut played = played(replicas);
    let queue = "/apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue";
    played.answers.insert(queue.into(), (200, json!({"items": [value(length)]})));
    played
}

#[tokio::test]
async fn scales_to_zero_and_from_it() {
    let down = turn(with_queue(2, "0"), by_queue(0, "")).await;
    let still = turn(with_queue(0, "0"), by_queue(0, "True")).await;
    let up = turn(with_queue(0, "25"), by_queue(0, "True")).await;
    expect_test::expect![[r#"
        GET /apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue
        PUT /apis/apps/v1/namespaces/n/deployments/d/scale {"replicas":0}
        Normal SuccessfulRescale: New size: 0; reason: All metrics below target
        AbleToScale=True SucceededRescale: the HPA controller was able to update the target scale to 0
        ScalingActive=True ValidMetricFound: the HPA was able to successfully calculate a replica count from external metric queue(nil)
        ScalingLimited=False DesiredWithinRange: the desired count is within the acceptable range
        ScaledToZero=True ScaledToZero: the HPA controller scaled the workload to zero
        {"currentMetrics":[{"external":{"current":{"averageValue":"0"},"metric":{"name":"queue"}},"type":"External"}],"currentReplicas":2,"desiredReplicas":0,"lastScaleTime":"2025-01-01T12:00:00Z","observedGeneration":3}

        GET /apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue
        ScaledToZero=True Before: it was
        AbleToScale=True ReadyForNewScale: recommended size matches current size
        ScalingActive=True ValidMetricFound: the HPA was able to successfully calculate a replica count from external metric queue(nil)
        ScalingLimited=False DesiredWithinRange: the desired count is within the acceptable range
        {"currentMetrics":[{"external":{"current":{"averageValue":"0"},"metric":{"name":"queue"}},"type":"External"}],"currentReplicas":0,"desiredReplicas":0,"lastScaleTime":null,"observedGeneration":3}

        GET /apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue
        PUT /apis/apps/v1/namespaces/n/deployments/d/scale {"replicas":3}
        Normal SuccessfulRescale: New size: 3; reason: external metric queue(nil) above target
        ScaledToZero=False NotScaledToZero: the HPA controller did not scale the workload to zero
        AbleToScale=True SucceededRescale: the HPA controller was able to update the target scale to 3
        ScalingActive=True ValidMetricFound: the HPA was able to successfully calculate a replica count from external metric queue(nil)
        ScalingLimited=False DesiredWithinRange: the desired count is within the acceptable range
        {"currentMetrics":[{"external":{"current":{"averageValue":"25"},"metric":{"name":"queue"}},"type":"External"}],"currentReplicas":0,"desiredReplicas":3,"lastScaleTime":"2025-01-01T12:00:00Z","observedGeneration":3}
    "#]]
    .assert_eq(&[down, still, up].join("\n"));
}

#[tokio::test]
async fn zero_replicas_of_a_user_turn_autoscaling_off() {
    for (min, scaled_to_zero) in [(0, ""), (0, "False"), (1, ""), (1, "False")] {
        let text = turn(with_queue(0, "25"), by_queue(min, scaled_to_zero)).await;
        assert!(!text.contains("GET") && !text.contains("PUT"), "{text}");
        assert!(text.contains("ScalingActive=False ScalingDisabled"), "{text}");
        // The condition stays what it was.
        assert_eq!(text.contains("ScaledToZero=False Before"), scaled_to_zero == "False", "{text}");
    }
    // Without a metric from outside of the pods, nothing would tell when to scale up.
    let mut by_cpu = by_queue(0, "True");
    by_cpu["spec"]["metrics"] = cpu(80);
    let text = turn(played(0), by_cpu).await;
    assert!(text.contains("ScalingActive=False ScalingDisabled"), "{text}");
}

#[tokio::test]
async fn a_raised_minimum_ends_zero_replicas() {
    let rescaled =
        |text: &str| text.lines().find(|line| line.contains("SuccessfulRescale")).unwrap().to_owned();
    let with_behavior = turn(with_queue(0, "0"), by_queue(2, "True")).await;
    assert_eq!(
        rescaled(&with_behavior),
        "Normal SuccessfulRescale: New size: 2; reason: Current number of replicas below Spec.MinReplicas"
    );
    assert!(with_behavior.contains("ScaledToZero=False NotScaledToZero"), "{with_behavior}");
    // Limits without a behaviour raise it themselves, and upstream gives no reason then.
    let mut bare = by_queue(2, "True");
    bare["spec"]["behavior"] = Value::Null;
    let bare = turn(with_queue(0, "0"), bare).await;
    assert_eq!(rescaled(&bare), "Normal SuccessfulRescale: New size: 2; reason: ");
    assert!(bare.contains("ScalingLimited=True TooFewReplicas"), "{bare}");
    // Rates of change count from zero, but not below the minimum.
    let more = turn(with_queue(0, "1000"), by_queue(6, "True")).await;
    assert_eq!(
        rescaled(&more),
        "Normal SuccessfulRescale: New size: 6; reason: external metric queue(nil) above target"
    );
}

#[tokio::test]
async fn a_metric_that_fails_leaves_zero_replicas() {
    let text = turn(played(0), by_queue(0, "True")).await;
    assert!(!text.contains("PUT") && text.contains("ScaledToZero=True"), "{text}");
    assert!(text.contains("ScalingActive=False FailedGetExternalMetric"), "{text}");
    // One of several that is there scales up.
    let mut two = by_queue(0, "True");
    two["spec"]["metrics"].as_array_mut().unwrap().push(
        json!({"type": "External", "external": {"metric": {"name": "none"}, "target": {"type": "Value", "value": "1"}}}),
    );
    let text = turn(with_queue(0, "25"), two).await;
    assert!(text.contains("New size: 3"), "{text}");
}

#[tokio::test]
async fn any_scaling_says_whether_it_was_to_zero() {
    let mut stale = autoscaler(cpu(40));
    stale["status"] = json!({"conditions": [{"type": "ScaledToZero", "status": "True"}]});
    let text = turn(played(2), stale).await;
    assert!(text.contains("ScaledToZero=False NotScaledToZero"), "{text}");
}
