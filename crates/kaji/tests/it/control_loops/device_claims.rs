//! Claims of devices: made from templates for a pod, allocated by the scheduler, and deleted when the pod is done.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";

#[tokio::test]
async fn claims_follow_their_pods() {
    let test = TestCluster::start(1).await;
    // No node is right for it: the scheduler leaves its claim alone.
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeSelector": {"no": "node"},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
        "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}]}});
    ok(&test, &admin(), &format!("POST {PODS}"), pod).await;
    until("the missing template is reported", async || {
        let events =
            "GET /api/v1/namespaces/default/events?fieldSelector=reason%3DFailedResourceClaimCreation";
        let (_, events) = ask(&test, &admin(), events, &Value::Null).await;
        events["items"].as_array().is_some_and(|all| !all.is_empty())
    })
    .await;
    // The pod's claim is made once the template comes.
    let request = json!({"name": "r", "exactly": {"deviceClassName": "class"}});
    let template = json!({"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [request]}}}});
    ok(&test, &admin(), &format!("POST {TEMPLATES}"), template).await;
    let mut name = String::new();
    until("the pod has its claim", async || {
        let (_, pod) = ask(&test, &admin(), &format!("GET {PODS}/p"), &Value::Null).await;
        name = pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
            .as_str()
            .unwrap_or_default()
            .into();
        !name.is_empty()
    })
    .await;
    let claim = ok(&test, &admin(), &format!("GET {CLAIMS}/{name}"), Value::Null).await;
    assert!(name.starts_with("p-gpu-"), "{name}");
    assert_eq!(claim["metadata"]["ownerReferences"][0]["name"], "p", "{claim}");
    assert_eq!(claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"], "class", "{claim}");
    let all = ok(&test, &admin(), &format!("GET {CLAIMS}"), Value::Null).await;
    assert_eq!(all["items"].as_array().unwrap().len(), 1, "{all}");
    // A driver allocated it; the reservation of a pod that never was goes, and with it the allocation and its finalizer.
    let finalizers = json!({"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}});
    ok(&test, &admin(), &format!("PATCH {CLAIMS}/{name}"), finalizers).await;
    let result = json!({"request": "r", "driver": "d.example.com", "pool": "p", "device": "x"});
    let status = json!({"status": {"allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "never", "uid": "1"}]}});
    ok(&test, &admin(), &format!("PATCH {CLAIMS}/{name}/status"), status).await;
    until("the claim is free again", async || {
        let (_, claim) = ask(&test, &admin(), &format!("GET {CLAIMS}/{name}"), &Value::Null).await;
        claim["status"]["allocation"].is_null()
            && claim["status"]["reservedFor"].is_null()
            && claim["metadata"]["finalizers"].is_null()
    })
    .await;
    // A pod that is done needs it no more, even while the pod stays.
    ok(&test, &admin(), &format!("PATCH {PODS}/p/status"), json!({"status": {"phase": "Failed"}})).await;
    until("the claim is gone", async || {
        ask(&test, &admin(), &format!("GET {CLAIMS}/{name}"), &Value::Null).await.0 == 404
    })
    .await;
    assert_eq!(ask(&test, &admin(), &format!("GET {PODS}/p"), &Value::Null).await.0, 200);
    test.stop().await;
}

/// A pod of one container, with more of a spec.
fn pod(name: &str, more: &Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn running(test: &TestCluster, name: &str) {
    until(&format!("{name} runs"), async || {
        let (_, pod) = ask(test, &admin(), &format!("GET {PODS}/{name}"), &Value::Null).await;
        pod["status"]["phase"] == "Running"
    })
    .await;
}

#[tokio::test]
async fn devices_are_allocated_with_the_node() {
    let test = TestCluster::start(1).await;
    let mut node = Value::Null;
    until("there is a node", async || {
        let (_, nodes) = ask(&test, &admin(), "GET /api/v1/nodes", &Value::Null).await;
        node = nodes["items"][0]["metadata"]["name"].clone();
        !node.is_null()
    })
    .await;
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu",
        "selectors": [{"cel": {"expression": "device.driver == 'd.example.com'"}}]}});
    ok(&test, &admin(), "POST /apis/resource.k8s.io/v1/deviceclasses", class).await;
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "nodeName": node,
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "x"}, {"name": "y"}]}});
    ok(&test, &admin(), "POST /apis/resource.k8s.io/v1/resourceslices", slice).await;
    let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu"}});
    let template = json!({"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [request]}}}});
    ok(&test, &admin(), &format!("POST {TEMPLATES}"), template).await;
    let claims = json!({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]});
    ok(&test, &admin(), &format!("POST {PODS}"), pod("a", &claims)).await;
    running(&test, "a").await;
    let all = ok(&test, &admin(), &format!("GET {CLAIMS}"), Value::Null).await;
    let status = &all["items"][0]["status"];
    assert_eq!(status["reservedFor"][0]["name"], "a", "{all}");
    assert_eq!(status["allocation"]["devices"]["results"][0]["device"], "x", "{all}");
    // Extended resources that the node has by its devices become a claim of the scheduler's own.
    let container = json!({"name": "c", "image": "i", "resources": {"limits": {"example.com/gpu": "1"}}});
    ok(&test, &admin(), &format!("POST {PODS}"), pod("b", &json!({"containers": [container]}))).await;
    running(&test, "b").await;
    let b = ok(&test, &admin(), &format!("GET {PODS}/b"), Value::Null).await;
    let told = &b["status"]["extendedResourceClaimStatus"];
    assert_eq!(told["requestMappings"][0]["requestName"], "container-0-request-0", "{b}");
    let made = told["resourceClaimName"].as_str().unwrap_or_default();
    assert!(made.starts_with("b-extended-resources-"), "{b}");
    // There are no more devices, until a pod is gone.
    ok(&test, &admin(), &format!("POST {PODS}"), pod("c", &claims)).await;
    until("c is unschedulable", async || {
        let (_, pod) = ask(&test, &admin(), &format!("GET {PODS}/c"), &Value::Null).await;
        pod["status"]["conditions"][0]["message"]
            .as_str()
            .is_some_and(|m| m.contains("1 cannot allocate all claims"))
    })
    .await;
    let now = json!({"gracePeriodSeconds": 0});
    ok(&test, &admin(), &format!("DELETE {PODS}/a"), now).await;
    running(&test, "c").await;
    test.stop().await;
}

#[tokio::test]
async fn a_rule_that_taints_a_device_evicts_the_pod_that_uses_it() {
    const RULES: &str = "/apis/resource.k8s.io/v1/devicetaintrules";
    let test = TestCluster::start(1).await;
    let class = json!({"metadata": {"name": "gpu"}, "spec": {}});
    ok(&test, &admin(), "POST /apis/resource.k8s.io/v1/deviceclasses", class).await;
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "allNodes": true,
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "x"}, {"name": "y"}]}});
    ok(&test, &admin(), "POST /apis/resource.k8s.io/v1/resourceslices", slice).await;
    let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu"}});
    let template = json!({"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [request]}}}});
    ok(&test, &admin(), &format!("POST {TEMPLATES}"), template).await;
    let more = json!({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]});
    for name in ["a", "b"] {
        ok(&test, &admin(), &format!("POST {PODS}"), pod(name, &more)).await;
        running(&test, name).await;
    }
    // Nothing happens to pods while a rule has no effect, but it says what it would do.
    let rule = |name: &str, effect: &str| {
        json!({"metadata": {"name": name}, "spec": {"deviceSelector": {"driver": "d.example.com", "device": "x"},
            "taint": {"key": "sick", "effect": effect}}})
    };
    ok(&test, &admin(), &format!("POST {RULES}"), rule("dry", "None")).await;
    let condition = async |name: &str, reason: &str| {
        let mut found = Value::Null;
        until(&format!("the rule {name} says {reason}"), async || {
            let (_, rule) = ask(&test, &admin(), &format!("GET {RULES}/{name}"), &Value::Null).await;
            found = rule["status"]["conditions"][0].clone();
            found["type"] == "EvictionInProgress" && found["reason"] == reason
        })
        .await;
        found["message"].as_str().unwrap_or_default().to_owned()
    };
    let message = condition("dry", "NoEffect").await;
    let counts =
        "1 published device selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace";
    assert!(message.starts_with(counts), "{message}");
    let before = ok(&test, &admin(), &format!("GET {PODS}"), Value::Null).await;
    let taken = ok(&test, &admin(), &format!("GET {CLAIMS}"), Value::Null).await;
    let of_x = taken["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|claim| claim["status"]["allocation"]["devices"]["results"][0]["device"] == "x");
    let evicted = of_x.unwrap()["status"]["reservedFor"][0]["name"].as_str().unwrap().to_owned();
    assert_eq!(before["items"].as_array().unwrap().len(), 2, "{before}");
    ok(&test, &admin(), &format!("POST {RULES}"), rule("real", "NoExecute")).await;
    until("the pod is gone", async || {
        ask(&test, &admin(), &format!("GET {PODS}/{evicted}"), &Value::Null).await.0 == 404
    })
    .await;
    let left = ok(&test, &admin(), &format!("GET {PODS}"), Value::Null).await;
    assert_eq!(left["items"].as_array().unwrap().len(), 1, "{left}");
    until("the eviction is an event", async || {
        let events =
            "GET /api/v1/namespaces/default/events?fieldSelector=reason%3DDeviceTaintManagerEviction";
        let (_, events) = ask(&test, &admin(), events, &Value::Null).await;
        events["items"].as_array().is_some_and(|all| {
            all.iter()
                .any(|e| e["message"] == "Marking for deletion" && e["involvedObject"]["name"] == *evicted)
        })
    })
    .await;
    test.stop().await;
}
