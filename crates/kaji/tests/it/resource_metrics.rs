//! The resource metrics API: figures of simulated nodes and their pods, users' rights, and how it gives way to an extension
//! server of the same group version.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person},
    until,
};
use serde_json::{Value, json};

const NODES: &str = "GET /apis/metrics.k8s.io/v1beta1/nodes";
const PODS: &str = "GET /apis/metrics.k8s.io/v1beta1/namespaces/default/pods";
/// A duration as Go prints it, of seconds.
const WINDOW_ENDS: char = 's';

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

fn nano(quantity: &Value) -> f64 {
    kaji_meta::quantity::Quantity::from_value(quantity).unwrap().as_f64()
}

#[tokio::test]
async fn shows_what_nodes_and_pods_use() {
    let test = TestCluster::start(2).await;
    let pod = |name: &str, app: &str| {
        json!({"metadata": {"name": name, "labels": {"app": app}, "annotations": {
                "sim.kaji.dev/cpu-usage": "250m", "sim.kaji.dev/memory-usage": "64Mi"}},
            "spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}})
    };
    for (name, app) in [("one", "x"), ("two", "y")] {
        ok(&test, &admin(), "POST /api/v1/namespaces/default/pods", pod(name, app)).await;
    }
    let mut list = Value::Null;
    until("nodes and pods have figures", async || {
        let (_, nodes) = ask(&test, &admin(), NODES, &Value::Null).await;
        list = ask(&test, &admin(), PODS, &Value::Null).await.1;
        names(&nodes) == ["sim-1", "sim-2"] && names(&list) == ["one", "two"]
    })
    .await;
    let one = ok(&test, &admin(), &format!("{PODS}/one"), Value::Null).await;
    assert_eq!((&one["kind"], &one["apiVersion"]), (&json!("PodMetrics"), &json!("metrics.k8s.io/v1beta1")));
    assert_eq!(one["metadata"]["labels"], json!({"app": "x"}));
    assert!(one["window"].as_str().unwrap().ends_with(WINDOW_ENDS) && one["timestamp"].is_string());
    for (container, name) in one["containers"].as_array().unwrap().iter().zip(["a", "b"]) {
        assert_eq!((&container["name"], &container["usage"]["memory"]), (&json!(name), &json!("64Mi")));
        // The two readings are made a moment before and after their times.
        assert!((0.2..0.3).contains(&nano(&container["usage"]["cpu"])), "{container}");
    }
    let selected = [
        (format!("{PODS}?labelSelector=app%3Dy"), vec!["two"]),
        (format!("{PODS}?labelSelector=app%3Dz"), vec![]),
        (format!("{PODS}?fieldSelector=metadata.name%3Done"), vec!["one"]),
        ("GET /apis/metrics.k8s.io/v1beta1/namespaces/none/pods".to_owned(), vec![]),
        ("GET /apis/metrics.k8s.io/v1beta1/pods?labelSelector=app".to_owned(), vec!["one", "two"]),
        (format!("{NODES}?fieldSelector=metadata.name%3Dsim-2"), vec!["sim-2"]),
    ];
    for (request, wanted) in selected {
        assert_eq!(names(&ok(&test, &admin(), &request, Value::Null).await), wanted, "{request}");
    }
    let refused = [
        (format!("{PODS}/none"), 404, "pods \"none\" not found"),
        (format!("{NODES}/none"), 404, "nodes \"none\" not found"),
        (format!("{PODS}?watch=1"), 405, ""),
        (format!("{}/one", PODS.replace("GET", "DELETE")), 405, ""),
        (PODS.replace("GET", "POST"), 405, ""),
    ];
    for (request, code, message) in refused {
        let (got, status) = ask(&test, &admin(), &request, &Value::Null).await;
        assert_eq!(got, code, "{request}: {status}");
        assert!(message.is_empty() || status["message"] == message, "{request}: {status}");
    }
    // The role `view` has it from the role that this server brings.
    let alice = person("alice");
    assert_eq!(ask(&test, &alice, PODS, &Value::Null).await.0, 403);
    let binding = json!({"metadata": {"name": "alice"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]});
    let bind = "POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    ok(&test, &admin(), bind, binding).await;
    until("alice sees figures", async || ask(&test, &alice, PODS, &Value::Null).await.0 == 200).await;
    test.stop().await;
}

#[tokio::test]
async fn gives_way_to_an_extension_server() {
    let test = TestCluster::start(0).await;
    let groups = ok(&test, &admin(), "GET /apis/metrics.k8s.io", Value::Null).await;
    assert_eq!(groups["preferredVersion"]["groupVersion"], "metrics.k8s.io/v1beta1");
    assert_eq!(names(&ok(&test, &admin(), NODES, Value::Null).await), Vec::<&str>::new());
    // Nothing stands for it that the manifest of an extension server would have to replace.
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let own = format!("{services}/v1beta1.metrics.k8s.io");
    assert_eq!(ask(&test, &admin(), &format!("GET {own}"), &Value::Null).await.0, 404);
    let service = json!({"metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": {
        "group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
        "insecureSkipTLSVerify": true, "service": {"name": "metrics-server", "namespace": "kube-system"}}});
    ok(&test, &admin(), &format!("POST {services}"), service).await;
    let (code, _) = ask(&test, &admin(), NODES, &Value::Null).await;
    assert_eq!(code, 503);
    ok(&test, &admin(), &format!("DELETE {own}"), Value::Null).await;
    until("this server answers again", async || ask(&test, &admin(), NODES, &Value::Null).await.0 == 200)
        .await;
    test.stop().await;
}
