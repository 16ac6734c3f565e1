//! `/metrics/resource` of a simulated node, in Prometheus' text format.
//!
//! Source: upstream's `pkg/kubelet/metrics/collectors/resource_metrics.go`; simulated nodes have no swap.

use super::usage::{Meters, NODE, Usage};
use crate::server::resource_metrics::{self, Figures};
use jiff::Timestamp;
use kaji_runtime::objects::{Container, Pod};

/// The page of a node that has run since `since`, with its pods.
pub fn page<'a>(
    since: Timestamp,
    pods: impl Iterator<Item = &'a Pod>,
    meters: &mut Meters,
    now: Timestamp,
) -> String {
    // Times of samples are whole milliseconds: what was used is that until then, so that rates are exact.
    let now = Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now);
    let mut pods: Vec<&Pod> = pods.filter(|pod| pod.status.phase == "Running").collect();
    pods.sort_by_key(|pod| (&pod.metadata.namespace, &pod.metadata.name));
    let mut whole = NODE;
    let (mut containers, mut sums) = (vec![], vec![]);
    let at = now.as_millisecond();
    for pod in pods {
        let Some(since) = pod.status.start_time else { continue };
        let (mut cpu, mut memory) = (0.0, 0.0);
        let figures = |cpu: f64, memory: f64| Figures {
            namespace: pod.metadata.namespace.clone(),
            pod: pod.metadata.name.clone(),
            cpu: (cpu, at),
            memory: (memory, at),
            ..Figures::default()
        };
        for container in running(pod) {
            let usage = Usage::of(pod, container);
            let key = format!("{}/{}", pod.metadata.uid, container.name);
            let used = meters.read(&key, usage.cpu, since, now);
            whole = whole.and(usage);
            (cpu, memory) = (cpu + used, memory + usage.memory);
            containers.push(Figures {
                container: container.name.to_string(),
                start: since.as_nanosecond() as f64 / 1e9,
                ..figures(used, usage.memory)
            });
        }
        sums.push(figures(cpu, memory));
    }
    let used = meters.read("", whole.cpu, since, now);
    meters.sweep();
    containers
        .sort_by(|a, b| (&a.container, &a.namespace, &a.pod).cmp(&(&b.container, &b.namespace, &b.pod)));
    let node = Figures { cpu: (used, at), memory: (whole.memory, at), ..Figures::default() };
    resource_metrics::page(&node, &sums, &containers)
}

/// The containers of a running pod that have not ended; of those for the start, only sidecars go on.
pub(super) fn running(pod: &Pod) -> impl Iterator<Item = &Container> {
    let ended = |c: &Container| {
        let statuses = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
        statuses.filter(|s| *s.name == *c.name).any(|s| s.state.terminated.is_some())
    };
    let sidecars = pod.spec.init_containers.iter().filter(|c| c.sidecar());
    sidecars.chain(&pod.spec.containers).filter(move |c| !ended(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, status: serde_json::Value) -> Pod {
        let requests = json!({"requests": {"cpu": "1", "memory": "128Mi"}});
        let spec = json!({
            "nodeName": "sim-1",
            "initContainers": [{"name": "first", "image": "i"}, {"name": "side", "image": "i", "restartPolicy": "Always"}],
            "containers": [{"name": "main", "image": "i", "resources": requests}],
        });
        let meta = json!({"name": name, "namespace": "default", "uid": name});
        serde_json::from_value(json!({"metadata": meta, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn writes_a_page() {
        let start = "2026-01-01T00:00:00Z";
        let pods = [
            pod("b", json!({"phase": "Running", "startTime": start})),
            pod("a", json!({"phase": "Pending", "startTime": start})),
            pod(
                "c",
                json!({"phase": "Running", "startTime": start, "containerStatuses":
                [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}),
            ),
        ];
        let since = start.parse().unwrap();
        let mut meters = Meters::default();
        let page = page(since, pods.iter(), &mut meters, "2026-01-01T00:01:40Z".parse().unwrap());
        expect_test::expect![[r##"
            # HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
            # TYPE container_cpu_usage_seconds_total counter
            container_cpu_usage_seconds_total{container="main",namespace="default",pod="b"} 53.080671124 1767225700000
            container_cpu_usage_seconds_total{container="side",namespace="default",pod="b"} 0.736223005 1767225700000
            container_cpu_usage_seconds_total{container="side",namespace="default",pod="c"} 0.469537177 1767225700000
            # HELP container_memory_working_set_bytes [STABLE] Current working set of the container in bytes
            # TYPE container_memory_working_set_bytes gauge
            container_memory_working_set_bytes{container="main",namespace="default",pod="b"} 4.0967364e+07 1767225700000
            container_memory_working_set_bytes{container="side",namespace="default",pod="b"} 1.3728235e+07 1767225700000
            container_memory_working_set_bytes{container="side",namespace="default",pod="c"} 1.7002021e+07 1767225700000
            # HELP container_start_time_seconds [STABLE] Start time of the container since unix epoch in seconds
            # TYPE container_start_time_seconds gauge
            container_start_time_seconds{container="main",namespace="default",pod="b"} 1.7672256e+09
            container_start_time_seconds{container="side",namespace="default",pod="b"} 1.7672256e+09
            container_start_time_seconds{container="side",namespace="default",pod="c"} 1.7672256e+09
            # HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds
            # TYPE node_cpu_usage_seconds_total counter
            node_cpu_usage_seconds_total 64.286431307 1767225700000
            # HELP node_memory_working_set_bytes [STABLE] Current working set of the node in bytes
            # TYPE node_memory_working_set_bytes gauge
            node_memory_working_set_bytes 6.08568532e+08 1767225700000
            # HELP pod_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the pod in core-seconds
            # TYPE pod_cpu_usage_seconds_total counter
            pod_cpu_usage_seconds_total{namespace="default",pod="b"} 53.816894129 1767225700000
            pod_cpu_usage_seconds_total{namespace="default",pod="c"} 0.469537177 1767225700000
            # HELP pod_memory_working_set_bytes [STABLE] Current working set of the pod in bytes
            # TYPE pod_memory_working_set_bytes gauge
            pod_memory_working_set_bytes{namespace="default",pod="b"} 5.4695599e+07 1767225700000
            pod_memory_working_set_bytes{namespace="default",pod="c"} 1.7002021e+07 1767225700000
            # HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise
            # TYPE resource_scrape_error gauge
            resource_scrape_error 0
        "##]].assert_eq(&page);
        let empty = super::page(since, [].iter(), &mut meters, since);
        assert!(!empty.contains("container_") && empty.contains("node_cpu_usage_seconds_total"));
    }

    #[test]
    fn what_is_used_is_that_at_the_time_of_the_sample() {
        let mut busy = pod("a", json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}));
        busy.metadata.annotations =
            serde_json::from_value(json!({"sim.kaji.dev/cpu-usage": "200m"})).unwrap();
        let mut meters = Meters::default();
        let mut at = |time: &str| {
            let page = page(Timestamp::UNIX_EPOCH, [&busy].into_iter(), &mut meters, time.parse().unwrap());
            let main =
                page.lines().find(|line| line.starts_with("container_cpu") && line.contains("\"main\""));
            main.unwrap().split_once('}').unwrap().1.trim().to_owned()
        };
        assert_eq!(at("2026-01-01T00:00:10.000999999Z"), "2 1767225610000");
        assert_eq!(at("2026-01-01T00:00:25.125000001Z"), "5.025 1767225625125");
    }
}
