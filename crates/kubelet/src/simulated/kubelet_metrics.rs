//! `/metrics` of a simulated node, in Prometheus' text format: of what a kubelet counts, that which a simulated one has.
//!
//! The process is the server's.

use super::metrics::running;
use crate::server::kubelet_metrics::{self, Counts};
use kaji_exposition::{Page, Process};
use kaji_runtime::objects::Pod;

/// The page of a node with its pods.
pub fn page<'a>(node: &str, pods: impl Iterator<Item = &'a Pod>) -> String {
    let mut counts = Counts::default();
    let (mut containers, mut exited) = (0, 0);
    for pod in pods {
        counts.desired += 1;
        if matches!(&*pod.status.phase, "Succeeded" | "Failed") {
            continue;
        }
        counts.active += 1;
        if pod.status.phase == "Running" {
            counts.sandboxes += 1;
            containers += running(pod).count();
            let statuses = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
            exited += statuses.filter(|status| status.state.terminated.is_some()).count();
        }
    }
    let mut page = Page::default();
    counts.containers = vec![("exited", exited), ("running", containers)];
    kubelet_metrics::counts(&mut page, node, &counts);
    page.build_info();
    page.process(&Process::read());
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counts_pods_and_containers() {
        let pod = |phase: &str, statuses: serde_json::Value| -> Pod {
            let spec = json!({"nodeName": "sim-1", "containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]});
            let status = json!({"phase": phase, "containerStatuses": statuses});
            serde_json::from_value(json!({"metadata": {"name": phase}, "spec": spec, "status": status}))
                .unwrap()
        };
        let ended = json!([{"name": "b", "state": {"terminated": {"exitCode": 0}}}]);
        let pods = [
            pod("Running", json!([])),
            pod("Running", ended.clone()),
            pod("Pending", json!([])),
            pod("Failed", ended),
        ];
        let page = page("sim-1", pods.iter());
        let own: Vec<&str> = page.lines().filter(|line| line.starts_with("kubelet_")).collect();
        expect_test::expect![[r#"
            kubelet_active_pods{static=""} 3
            kubelet_active_pods{static="true"} 0
            kubelet_desired_pods{static=""} 4
            kubelet_desired_pods{static="true"} 0
            kubelet_mirror_pods 0
            kubelet_node_name{node="sim-1"} 1
            kubelet_running_containers{container_state="exited"} 1
            kubelet_running_containers{container_state="running"} 3
            kubelet_running_pods 2"#]]
        .assert_eq(&own.join("\n"));
        assert!(page.contains("kubernetes_build_info{") && page.contains("process_start_time_seconds "));
    }
}
