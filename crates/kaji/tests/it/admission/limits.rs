//! Limit ranges.

use super::{PODS, pod};
use crate::common::{TestCluster, api::Api};
use kaji_resource::Verb;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_default_and_bound() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "r"}, "spec": {"limits": [
        {"type": "Container", "max": {"cpu": "1"}, "defaultRequest": {"cpu": "100m"}, "default": {"cpu": "300m"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}},
    ]}});
    api.ok(Verb::Create, "/v1/limitranges?namespace=default", range).await;
    let made = api.ok(Verb::Create, PODS, pod("p", json!({}))).await;
    assert_eq!(
        made["spec"]["containers"][0]["resources"],
        json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "300m"}})
    );
    assert_eq!(made["status"]["qosClass"], "Burstable");
    assert_eq!(
        made["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    );
    let big = json!({"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "2"}}}]});
    assert_eq!(
        api.refused(Verb::Create, PODS, pod("x", big)).await,
        (403, r#"pods "x" is forbidden: maximum cpu usage per Container is 1, but limit is 2"#.into())
    );
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}});
    assert_eq!(
        api.refused(Verb::Create, "/v1/persistentvolumeclaims?namespace=default", claim).await,
        (403, r#"persistentvolumeclaims "c" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi"#.into())
    );
    cluster.stop().await;
}
