//! The metrics of the loops' queues and of single controllers, with upstream's names.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use serde_json::{Value, json};

#[tokio::test]
async fn queues_are_measured() {
    let test = TestCluster::start(1).await;
    let labels = json!({"app": "a"});
    let deployment = json!({"metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    ok(&test, &admin(), "POST /apis/apps/v1/namespaces/default/deployments", deployment).await;
    let mut page = String::new();
    until("the deployment has been worked on", async || {
        let (_, answer) = ask(&test, &admin(), "GET /metrics", &Value::Null).await;
        page = answer.as_str().unwrap_or_default().to_owned();
        let count = |name: &str| {
            let line = page.lines().find(|l| l.starts_with(name)).unwrap_or_default();
            line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0)
        };
        count("workqueue_work_duration_seconds_count{name=\"deployment\"}") > 0.0
            && count("workqueue_adds_total{name=\"replicaset\"}") > 0.0
    })
    .await;
    for name in [
        "workqueue_depth{name=\"namespace\"}",
        "workqueue_queue_duration_seconds_bucket{name=\"job\",le=\"9.999999999999999e-06\"}",
        "workqueue_retries_total{name=\"garbage_collector_attempt_to_delete\"}",
        "workqueue_unfinished_work_seconds{name=\"statefulset\"}",
        "workqueue_longest_running_processor_seconds{name=\"disruption\"}",
        "replicaset_controller_sorting_deletion_age_ratio_count 0",
        "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers 0",
    ] {
        assert!(
            page.contains(name),
            "{name}: {}",
            page.lines().filter(|l| l.contains("workqueue")).collect::<Vec<_>>().join("\n")
        );
    }
    test.stop().await;
}
