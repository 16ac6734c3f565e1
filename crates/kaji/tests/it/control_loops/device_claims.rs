//! Claims of devices from templates: made for a pod, and deleted when the pod is done.

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
    let pod = json!({"metadata": {"name": "p"}, "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
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
