//! The tables, over fixtures.

use super::*;
use crate::testing::fixture;
use expect_test::expect;
use serde_json::json;

fn server() -> Vec<Value> {
    let container =
        |name: &str, cpu: &str, memory: &str| json!({"name": name, "usage": {"cpu": cpu, "memory": memory}});
    let node = |name: &str| json!({"kind": "Node", "name": name, "status": {"allocatable": {"cpu": "4", "memory": "8Gi"}}});
    vec![
        node("a"),
        node("b"),
        json!({"kind": "NodeMetrics", "name": "a", "usage": {"cpu": "1500m", "memory": "2Gi"}}),
        json!({"kind": "PodMetrics", "name": "web", "containers":
            [container("proxy", "1500000n", "1Mi"), container("app", "250m", "64Mi")]}),
        json!({"kind": "PodMetrics", "name": "db", "containers": [container("db", "1", "32Mi")]}),
        json!({"kind": "PodMetrics", "name": "far", "namespace": "other", "containers": [container("c", "0", "0")]}),
    ]
}

#[tokio::test]
async fn tables_of_nodes_and_pods() {
    let server = fixture(&server());
    let query = |namespace: &str, order: Order| UsageQuery {
        namespace: namespace.into(),
        order,
        ..UsageQuery::default()
    };
    let mut text = node_table(&nodes(&server, &query("", Order::Name)).await.unwrap());
    text += &pod_table(&pods(&server, &query("", Order::Name)).await.unwrap(), false, true);
    text += &pod_table(&pods(&server, &query("d", Order::Memory)).await.unwrap(), false, false);
    text += &pod_table(&pods(&server, &query("d", Order::Cpu)).await.unwrap(), true, false);
    let one = UsageQuery { name: Some("web".into()), namespace: "d".into(), ..UsageQuery::default() };
    text += &pod_table(&pods(&server, &one).await.unwrap(), true, true);
    expect![[r#"
        NAME   CPU(cores)   CPU(%)      MEMORY(bytes)   MEMORY(%)
        a      1500m        37%         2048Mi          25%
        b      <unknown>    <unknown>   <unknown>       <unknown>
        NAMESPACE   NAME   CPU(cores)   MEMORY(bytes)
        d           db     1000m        32Mi
        d           web    252m         65Mi
        other       far    0m           0Mi
        NAME   CPU(cores)   MEMORY(bytes)
        web    252m         65Mi
        db     1000m        32Mi
        POD   NAME    CPU(cores)   MEMORY(bytes)
        db    db      1000m        32Mi
        web   app     250m         64Mi
        web   proxy   2m           1Mi
        NAMESPACE   POD   NAME    CPU(cores)   MEMORY(bytes)
        d           web   app     250m         64Mi
        d           web   proxy   2m           1Mi
    "#]]
    .assert_eq(&text);
}

#[tokio::test]
async fn says_what_to_do_without_figures() {
    let pod = json!({"kind": "Pod", "name": "web", "status": {"phase": "Running"}});
    let mut text = String::new();
    for server in [
        fixture(&[]).not_serving(GROUP),
        fixture(std::slice::from_ref(&pod)),
        fixture(&server()).forbidding("/pods"),
    ] {
        text += &format!("{}\n", pods(&server, &UsageQuery::default()).await.unwrap_err());
    }
    // Nodes that may not be read have figures, but no percentages.
    let server = fixture(&server()).forbidding("/api/v1/nodes");
    text += &node_table(&nodes(&server, &UsageQuery::default()).await.unwrap());
    expect![[r#"
        the server does not serve metrics.k8s.io, where the figures come from: install metrics-server (kubectl apply -f https://github.com/kubernetes-sigs/metrics-server/releases/latest/download/components.yaml); `kaji up` serves it by itself
        there are no figures of running pods yet (1): they take two readings of the node, about half a minute from a container's start; try again
        /apis/metrics.k8s.io/v1beta1/pods is forbidden
        NAME   CPU(cores)   CPU(%)      MEMORY(bytes)   MEMORY(%)
        a      1500m        <unknown>   2048Mi          <unknown>
    "#]].assert_eq(&text);
    assert_eq!(pods(&fixture(&[]), &UsageQuery::default()).await.unwrap(), []);
}

#[test]
fn a_screen_has_no_more_than_fits() {
    assert_eq!(screen("abc\ndef\nghi\n", 3, 2), "\x1b[H\x1b[2Jab\nde\n");
    assert_eq!(screen("abc\n", 0, 0), "\x1b[H\x1b[2Ja\n");
}
