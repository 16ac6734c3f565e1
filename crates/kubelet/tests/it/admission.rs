//! What a node does with pods that it does not take.

use crate::fake::Fake;
use crate::lifecycle::pod;
use crate::whole_node::start;
use serde_json::json;

#[tokio::test]
async fn a_pod_that_asks_for_apparmor_fails_where_there_is_none() {
    let confined = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
    let containers = json!([{"name": "c", "image": "i"}]);
    let mut pod = pod(json!({"nodeName": "node-1", "securityContext": confined, "containers": containers}));
    pod["metadata"]["resourceVersion"] = "2".into();
    let fake = Fake::new();
    let mut node = start(&fake, pod);
    let patch = node.seen.first(|path, _| path.ends_with("/pods/p/status")).await;
    let status = &patch["status"];
    expect_test::expect![[
        r#""Failed" "AppArmor" "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host""#
    ]]
    .assert_eq(&format!("{} {} {}", status["phase"], status["reason"], status["message"]));
    assert!(fake.runtime.state.lock().unwrap().sandboxes.is_empty());
    node.task.abort();
}
