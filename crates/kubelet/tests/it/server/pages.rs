//! The pages of a node: its pods, its configuration, and what is used.

use super::{Served, whole};
use http::{Method, StatusCode};
use kaji_containers::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const SECOND: i64 = 1_767_225_600;

fn labels() -> BTreeMap<String, String> {
    ["name:p", "namespace:n", "uid:u"]
        .map(|l| l.split_once(':').unwrap())
        .map(|(k, v)| (format!("io.kubernetes.pod.{k}"), v.to_owned()))
        .into()
}

fn stall(total_nanos: u64) -> PressureStall {
    PressureStall { total_nanos, avg10: 0.5, ..PressureStall::default() }
}

/// A pod with a container that runs, and what they use.
async fn with_pod(served: &Served) {
    let runtime = &served.fake.runtime;
    served.pods.set(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "node-1"},
        "status": {"phase": "Running"},
    }));
    let metadata =
        PodSandboxMetadata { name: "p".into(), namespace: "n".into(), uid: "u".into(), attempt: 0 };
    let sandbox = PodSandboxConfig { metadata, labels: labels(), ..PodSandboxConfig::default() };
    let sandbox = runtime.run_pod_sandbox(sandbox).await.unwrap();
    let container = ContainerConfig {
        metadata: ContainerMetadata { name: "c".into(), attempt: 0 },
        image: "registry/i:1".into(),
        labels: labels(),
        ..ContainerConfig::default()
    };
    let id = runtime.create_container(&sandbox, container).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    let at_nanos = SECOND * 1_000_000_000 + 500_000_000;
    let pressure = Some(Pressure { full: stall(1_000_000), some: stall(2_000_000_000) });
    let throttling = Some(Throttling { periods: 10, throttled_periods: 3, throttled_nanos: 500_000_000 });
    let cpu = CpuUsage { at_nanos, core_nanos: 1_500_000_000, nano_cores: Some(7), pressure, throttling };
    let memory = MemoryUsage {
        at_nanos,
        working_set: 40 << 20,
        available: Some(24 << 20),
        usage: 50 << 20,
        rss: 30 << 20,
        page_faults: 11,
        major_page_faults: 1,
        cache: Some(9 << 20),
        mapped_file: Some(1 << 20),
        limit_hits: Some(5),
        pressure: None,
    };
    let swap = Some(SwapUsage { at_nanos, available: 10, usage: 5 });
    let packets = Some(PacketCounts { rx: 6, rx_dropped: 7, tx: 8, tx_dropped: 9 });
    let sda = DeviceIo { device: "/dev/sda".into(), reads: 1, writes: 2, read_bytes: 3, written_bytes: 4 };
    let eth0 =
        InterfaceUsage { name: "eth0".into(), rx_bytes: 1, rx_errors: 2, tx_bytes: 3, tx_errors: 4, packets };
    let stats = PodSandboxStats {
        id: sandbox,
        pod_uid: "u".into(),
        cpu,
        memory,
        swap: None,
        network: Some(NetworkUsage { at_nanos, interfaces: vec![eth0] }),
        processes: 3,
        containers: vec![ContainerStats {
            id,
            name: "c".into(),
            started_at_nanos: SECOND * 1_000_000_000,
            cpu,
            memory,
            swap,
            writable_layer_bytes: 4096,
            writable_layer_inodes: 2,
            oom_events: 1,
            disk_io: vec![sda],
            ..ContainerStats::default()
        }],
        disk_io: vec![],
    };
    runtime.state.lock().unwrap().stats.push(stats);
}

/// Replaces what is the machine's own.
fn masked(value: &mut Value) {
    let own = ["availableBytes", "capacityBytes", "inodesFree", "inodes"];
    match value {
        Value::Object(fields) if fields.contains_key("capacityBytes") => {
            for (_, value) in fields.iter_mut().filter(|(name, _)| own.contains(&name.as_str())) {
                assert!(value.as_u64().unwrap() > 0);
                *value = json!("DISK");
            }
        }
        Value::Object(fields) => fields.values_mut().for_each(masked),
        Value::Array(items) => items.iter_mut().for_each(masked),
        _ => {}
    }
}

#[tokio::test]
async fn serves_the_summary_of_stats() {
    let served = Served::start().await;
    with_pod(&served).await;
    let logs = served.fake.cx.config.pod_log_dir.join("n_p_u/c");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("0.log"), "").unwrap();
    let volume = served.fake.cx.config.pod_dir("u").join("volumes/kubernetes.io~empty-dir/scratch");
    std::fs::create_dir_all(&volume).unwrap();
    let get = async |query: &str| -> Value {
        serde_json::from_str(&served.get(&format!("/stats/summary{query}")).await.1).unwrap()
    };
    let mut all = get("").await;
    let node = all["node"].take();
    assert_eq!(node["nodeName"], "node-1");
    for figure in
        ["/cpu/usageCoreNanoSeconds", "/memory/workingSetBytes", "/fs/capacityBytes", "/rlimit/maxpid"]
    {
        assert!(node.pointer(figure).unwrap().as_u64().unwrap() > 0, "{figure}: {node}");
    }
    masked(&mut all);
    for place in ["/pods/0/volume/0", "/pods/0/ephemeral-storage", "/pods/0/containers/0/logs"] {
        // Directories have sizes of their own on some file systems.
        assert!(all.pointer(place).unwrap()["usedBytes"].is_u64());
        all.pointer_mut(place).unwrap()["usedBytes"] = json!("SIZE");
    }
    let pod = all["pods"][0].as_object().unwrap();
    let lines: Vec<String> = pod.iter().map(|(field, value)| format!("{field}: {value}")).collect();
    expect_test::expect![[r#"
        containers: [{"cpu":{"psi":{"full":{"avg10":0.5,"avg300":0.0,"avg60":0.0,"total":1000000},"some":{"avg10":0.5,"avg300":0.0,"avg60":0.0,"total":2000000000}},"time":"2026-01-01T00:00:00Z","usageCoreNanoSeconds":1500000000,"usageNanoCores":7},"logs":{"availableBytes":"DISK","capacityBytes":"DISK","inodes":"DISK","inodesFree":"DISK","inodesUsed":2,"time":"2026-01-01T00:00:00Z","usedBytes":"SIZE"},"memory":{"availableBytes":25165824,"majorPageFaults":1,"pageFaults":11,"rssBytes":31457280,"time":"2026-01-01T00:00:00Z","usageBytes":52428800,"workingSetBytes":41943040},"name":"c","rootfs":{"availableBytes":"DISK","capacityBytes":"DISK","inodes":"DISK","inodesFree":"DISK","inodesUsed":2,"time":"2026-01-01T00:00:00Z","usedBytes":4096},"startTime":"2026-01-01T00:00:00Z","swap":{"swapAvailableBytes":10,"swapUsageBytes":5,"time":"2026-01-01T00:00:00Z"}}]
        cpu: {"psi":{"full":{"avg10":0.5,"avg300":0.0,"avg60":0.0,"total":1000000},"some":{"avg10":0.5,"avg300":0.0,"avg60":0.0,"total":2000000000}},"time":"2026-01-01T00:00:00Z","usageCoreNanoSeconds":1500000000,"usageNanoCores":7}
        ephemeral-storage: {"availableBytes":"DISK","capacityBytes":"DISK","inodes":"DISK","inodesFree":"DISK","inodesUsed":5,"time":"2026-01-01T00:00:00Z","usedBytes":"SIZE"}
        memory: {"availableBytes":25165824,"majorPageFaults":1,"pageFaults":11,"rssBytes":31457280,"time":"2026-01-01T00:00:00Z","usageBytes":52428800,"workingSetBytes":41943040}
        network: {"interfaces":[{"name":"eth0","rxBytes":1,"rxErrors":2,"txBytes":3,"txErrors":4}],"name":"eth0","rxBytes":1,"rxErrors":2,"time":"2026-01-01T00:00:00Z","txBytes":3,"txErrors":4}
        podRef: {"name":"p","namespace":"n","uid":"u"}
        process_stats: {"process_count":3}
        startTime: "2026-01-01T00:00:00Z"
        volume: [{"availableBytes":"DISK","capacityBytes":"DISK","inodes":"DISK","inodesFree":"DISK","inodesUsed":1,"name":"scratch","time":"2026-01-01T00:00:00Z","usedBytes":"SIZE"}]"#]].assert_eq(&lines.join("\n"));
    let small = get("?only_cpu_and_memory=true").await;
    let fields: Vec<&String> = small["pods"][0].as_object().unwrap().keys().collect();
    assert!(!fields.iter().any(|f| ["network", "volume", "ephemeral-storage"].contains(&f.as_str())));
}

/// The lines of a page that are of the pod.
async fn lines_of_pod(served: &Served, path: &str) -> String {
    let (code, page) = served.get(path).await;
    assert_eq!(code, StatusCode::OK);
    // File systems are the machine's.
    let own = ["container_fs_inodes", "container_fs_limit", "container_fs_usage"];
    let of_pod = |l: &&str| l.contains("pod=\"p\"") && !own.iter().any(|family| l.starts_with(family));
    page.lines().filter(of_pod).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn service_level_indicators_count_answers() {
    let served = Served::start().await;
    let shown = async || {
        let (code, page) = served.get("/metrics/slis").await;
        assert_eq!(code, StatusCode::OK);
        let lines = page.lines().filter(|line| line.starts_with("kubernetes_") && line.contains("ping"));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(shown().await, "");
    for _ in 0..2 {
        assert_eq!(served.get("/healthz").await.0, StatusCode::OK);
    }
    expect_test::expect![[r#"
        kubernetes_healthcheck{name="ping",type="healthz"} 1
        kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 2"#]]
    .assert_eq(&shown().await);
}

/// The pages show the node, too.
async fn check_node(served: &Served) {
    let (_, page) = served.get("/metrics/resource").await;
    for family in
        ["node_cpu_usage_seconds_total ", "node_memory_working_set_bytes ", "resource_scrape_error 0"]
    {
        assert!(page.lines().any(|l| l.starts_with(family)), "{page}");
    }
    let (_, page) = served.get("/metrics/cadvisor").await;
    assert!(page.contains("container_memory_working_set_bytes{container=\"\",id=\"/\","), "{page}");
    for family in ["limit_bytes", "usage_bytes", "inodes_free", "inodes_total"] {
        assert!(page.contains(&format!("container_fs_{family}{{container=\"\",device=\"")), "{page}");
    }
}

#[tokio::test]
async fn metrics_of_what_is_used() {
    let served = Served::start().await;
    with_pod(&served).await;
    expect_test::expect![[r#"
        container_cpu_usage_seconds_total{container="c",namespace="n",pod="p"} 1.5 1767225600500
        container_memory_working_set_bytes{container="c",namespace="n",pod="p"} 4.194304e+07 1767225600500
        container_start_time_seconds{container="c",namespace="n",pod="p"} 1.7672256e+09
        container_swap_limit_bytes{container="c",namespace="n",pod="p"} 15 1767225600500
        container_swap_usage_bytes{container="c",namespace="n",pod="p"} 5 1767225600500
        pod_cpu_usage_seconds_total{namespace="n",pod="p"} 1.5 1767225600500
        pod_memory_working_set_bytes{namespace="n",pod="p"} 4.194304e+07 1767225600500"#]]
    .assert_eq(&lines_of_pod(&served, "/metrics/resource").await);
    expect_test::expect![[r#"
        container_cpu_cfs_periods_total{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 10 1767225600500
        container_cpu_cfs_periods_total{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 10 1767225600500
        container_cpu_cfs_throttled_periods_total{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 3 1767225600500
        container_cpu_cfs_throttled_periods_total{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 3 1767225600500
        container_cpu_cfs_throttled_seconds_total{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 0.5 1767225600500
        container_cpu_cfs_throttled_seconds_total{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 0.5 1767225600500
        container_cpu_usage_seconds_total{container="c",cpu="total",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 1.5 1767225600500
        container_cpu_usage_seconds_total{container="",cpu="total",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 1.5 1767225600500
        container_fs_reads_bytes_total{container="c",device="/dev/sda",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 3 1767225600500
        container_fs_reads_total{container="c",device="/dev/sda",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 1 1767225600500
        container_fs_writes_bytes_total{container="c",device="/dev/sda",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 4 1767225600500
        container_fs_writes_total{container="c",device="/dev/sda",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 2 1767225600500
        container_last_seen{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 1.7672256e+09 1767225600500
        container_last_seen{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 1.7672256e+09 1767225600500
        container_memory_cache{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 9.437184e+06 1767225600500
        container_memory_cache{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 9.437184e+06 1767225600500
        container_memory_failcnt{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 5 1767225600500
        container_memory_failcnt{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 5 1767225600500
        container_memory_failures_total{container="c",failure_type="pgfault",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p",scope="container"} 11 1767225600500
        container_memory_failures_total{container="c",failure_type="pgmajfault",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p",scope="container"} 1 1767225600500
        container_memory_failures_total{container="",failure_type="pgfault",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p",scope="container"} 11 1767225600500
        container_memory_failures_total{container="",failure_type="pgmajfault",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p",scope="container"} 1 1767225600500
        container_memory_mapped_file{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 1.048576e+06 1767225600500
        container_memory_mapped_file{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 1.048576e+06 1767225600500
        container_memory_rss{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 3.145728e+07 1767225600500
        container_memory_rss{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 3.145728e+07 1767225600500
        container_memory_swap{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 5 1767225600500
        container_memory_swap{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 0 1767225600500
        container_memory_usage_bytes{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 5.24288e+07 1767225600500
        container_memory_usage_bytes{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 5.24288e+07 1767225600500
        container_memory_working_set_bytes{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 4.194304e+07 1767225600500
        container_memory_working_set_bytes{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 4.194304e+07 1767225600500
        container_network_receive_bytes_total{container="",id="/kubepods/besteffort/podu",image="",interface="eth0",name="",namespace="n",pod="p"} 1 1767225600500
        container_network_receive_errors_total{container="",id="/kubepods/besteffort/podu",image="",interface="eth0",name="",namespace="n",pod="p"} 2 1767225600500
        container_network_receive_packets_dropped_total{container="",id="/kubepods/besteffort/podu",image="",interface="eth0",name="",namespace="n",pod="p"} 7 1767225600500
        container_network_receive_packets_total{container="",id="/kubepods/besteffort/podu",image="",interface="eth0",name="",namespace="n",pod="p"} 6 1767225600500
        container_network_transmit_bytes_total{container="",id="/kubepods/besteffort/podu",image="",interface="eth0",name="",namespace="n",pod="p"} 3 1767225600500
        container_network_transmit_errors_total{container="",id="/kubepods/besteffort/podu",image="",interface="eth0",name="",namespace="n",pod="p"} 4 1767225600500
        container_network_transmit_packets_dropped_total{container="",id="/kubepods/besteffort/podu",image="",interface="eth0",name="",namespace="n",pod="p"} 9 1767225600500
        container_network_transmit_packets_total{container="",id="/kubepods/besteffort/podu",image="",interface="eth0",name="",namespace="n",pod="p"} 8 1767225600500
        container_oom_events_total{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 1 1767225600500
        container_pressure_cpu_stalled_seconds_total{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 0.001 1767225600500
        container_pressure_cpu_stalled_seconds_total{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 0.001 1767225600500
        container_pressure_cpu_waiting_seconds_total{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 2 1767225600500
        container_pressure_cpu_waiting_seconds_total{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 2 1767225600500
        container_processes{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 3 1767225600500
        container_spec_memory_limit_bytes{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 6.7108864e+07 1767225600500
        container_spec_memory_limit_bytes{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 6.7108864e+07 1767225600500
        container_start_time_seconds{container="c",id="/kubepods/besteffort/podu/c2",image="registry/i:1",name="c2",namespace="n",pod="p"} 1.7672256e+09
        container_start_time_seconds{container="",id="/kubepods/besteffort/podu",image="",name="",namespace="n",pod="p"} 1.7672256e+09"#]].assert_eq(&lines_of_pod(&served, "/metrics/cadvisor").await);
    check_node(&served).await;
    let asked =
        served.fake.runtime.state.lock().unwrap().calls.iter().filter(|c| c.starts_with("stats")).count();
    assert_eq!(asked, 1, "one reading serves all pages of a second");
}

#[tokio::test]
async fn a_runtime_that_has_no_figures() {
    let served = Served::start().await;
    let fail = || {
        let error = RuntimeError::Unimplemented("no figures".into());
        served.fake.runtime.state.lock().unwrap().failures.push(("stats", error));
    };
    let mut lines = vec![];
    for path in ["/stats/summary", "/metrics/resource", "/metrics/cadvisor"] {
        fail();
        lines.push(served.shown(path).await);
    }
    expect_test::expect![[r#"
        /stats/summary: 500 Internal Error: no figures
        /metrics/resource: 200 # HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise
        # TYPE resource_scrape_error gauge
        resource_scrape_error 1
        /metrics/cadvisor: 200 # HELP container_scrape_error 1 if there was an error while getting container metrics, 0 otherwise
        # TYPE container_scrape_error gauge
        container_scrape_error 1"#]].assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn pods_configuration_and_what_is_switched_off() {
    let served = Served::start().await;
    with_pod(&served).await;
    let mut lines = vec![];
    for path in [
        "/pods",
        "/runningpods/",
        "/debug/pprof/heap",
        "/debug/flags/v",
        "/checkpoint/n/p/c",
        "/stats/container",
        "/metrics/none",
    ] {
        lines.push(served.shown(path).await);
    }
    let directory = served.fake.dir.path().to_str().unwrap();
    lines.push(served.shown("/configz").await.replace(directory, "DIR"));
    for path in ["/metrics", "/pods", "/stats/summary"] {
        let refused = served.send(Method::POST, path, "admin").await;
        lines.push(format!("POST {path}: {}", refused.status()));
    }
    expect_test::expect![[r#"
        /pods: 200 {"apiVersion":"v1","items":[{"metadata":{"name":"p","namespace":"n","uid":"u"},"spec":{"containers":[{"image":"i","name":"c"}],"nodeName":"node-1"},"status":{"phase":"Running"}}],"kind":"PodList","metadata":{}}
        /runningpods/: 200 {"apiVersion":"v1","items":[{"metadata":{"name":"p","namespace":"n","uid":"u"},"spec":{"containers":[{"image":"registry/i:1","name":"c","resources":{}}]},"status":{}}],"kind":"PodList","metadata":{}}
        /debug/pprof/heap: 405 profiling endpoint is disabled.
        /debug/flags/v: 405 flags endpoint is disabled.
        /checkpoint/n/p/c: 405 405: Method Not Allowed
        /stats/container: 404 404: Page Not Found
        /metrics/none: 404 404: Page Not Found
        /configz: 200 {"kubeletconfig":{"address":"192.0.2.1","apiVersion":"kubelet.config.k8s.io/v1beta1","authentication":{"anonymous":{"enabled":false},"webhook":{"cacheTTL":"2m0s","enabled":true},"x509":{}},"authorization":{"mode":"Webhook","webhook":{"cacheAuthorizedTTL":"5m0s","cacheUnauthorizedTTL":"30s"}},"cgroupDriver":"cgroupfs","cgroupsPerQOS":false,"clusterDNS":["10.96.0.10"],"clusterDomain":"cluster.local","containerLogMaxFiles":5,"containerLogMaxSize":"10Mi","crashLoopBackOff":{"maxContainerRestartPeriod":"5m0s"},"enableDebuggingHandlers":true,"enableProfilingHandler":false,"enableServer":true,"enableSystemLogHandler":true,"enableSystemLogQuery":false,"evictionMaxPodGracePeriod":0,"imageGCHighThresholdPercent":85,"imageGCLowThresholdPercent":80,"imagePullCredentialsVerificationPolicy":"NeverVerifyPreloadedImages","kind":"KubeletConfiguration","memoryReservationPolicy":"None","nodeLeaseDurationSeconds":40,"nodeStatusReportFrequency":"5m0s","nodeStatusUpdateFrequency":"10s","podLogsDir":"DIR/pods","port":10250,"registerNode":true,"resolvConf":"/etc/resolv.conf","streamingConnectionIdleTimeout":"4h0m0s"}}
        POST /metrics: 405 Method Not Allowed
        POST /pods: 405 Method Not Allowed
        POST /stats/summary: 405 Method Not Allowed"#]].assert_eq(&lines.join("\n"));
    let (_, page) = served.get("/metrics").await;
    components_own(&page);
    let counted: Vec<&str> = page
        .lines()
        // The version of cgroups is the machine's.
        .filter(|l| l.starts_with("kubelet_") && !l.starts_with("kubelet_cgroup_version"))
        .collect();
    expect_test::expect![[r#"
        kubelet_active_pods{static=""} 1
        kubelet_active_pods{static="true"} 0
        kubelet_desired_pods{static=""} 1
        kubelet_desired_pods{static="true"} 0
        kubelet_http_requests_total{long_running="false",method="GET",path="checkpoint",server_type="readwrite"} 1
        kubelet_http_requests_total{long_running="false",method="GET",path="configz",server_type="readwrite"} 1
        kubelet_http_requests_total{long_running="false",method="GET",path="metrics",server_type="readwrite"} 2
        kubelet_http_requests_total{long_running="false",method="GET",path="other",server_type="readwrite"} 2
        kubelet_http_requests_total{long_running="false",method="GET",path="pods",server_type="readwrite"} 1
        kubelet_http_requests_total{long_running="false",method="GET",path="runningpods",server_type="readwrite"} 1
        kubelet_http_requests_total{long_running="false",method="GET",path="stats",server_type="readwrite"} 1
        kubelet_http_requests_total{long_running="false",method="POST",path="metrics",server_type="readwrite"} 1
        kubelet_http_requests_total{long_running="false",method="POST",path="pods",server_type="readwrite"} 1
        kubelet_http_requests_total{long_running="false",method="POST",path="stats",server_type="readwrite"} 1
        kubelet_managed_ephemeral_containers 0
        kubelet_mirror_pods 0
        kubelet_node_name{node="node-1"} 1
        kubelet_running_containers{container_state="running"} 1
        kubelet_running_pods 1"#]].assert_eq(&counted.join("\n"));
    let (_, page) = served.get("/metrics/probes").await;
    assert!(page.contains("process_start_time_seconds "), "{page}");
}

#[tokio::test]
async fn checkpoints_are_asked_of_the_runtime() {
    let served = Served::start().await;
    with_pod(&served).await;
    let mut lines = vec![];
    for path in ["n/p/c", "n/p/c?timeout=1&timeout=-1", "n/p/c?timeout=a", "n/p/x", "n/x/c", "n/p"] {
        let path = format!("/checkpoint/{path}");
        let (code, text) = whole(served.send(Method::POST, &path, "admin").await).await;
        lines.push(format!("{path}: {} {text}", code.as_u16()));
    }
    expect_test::expect![[r#"
        /checkpoint/n/p/c: 500 checkpointing of n/p/c failed (rpc error: code = Unimplemented desc = method CheckpointContainer not implemented)
        /checkpoint/n/p/c?timeout=1&timeout=-1: 500 checkpointing of n/p/c failed (CheckpointContainer requires the timeout value to be > 0)
        /checkpoint/n/p/c?timeout=a: 404 cannot parse value of timeout parameter
        /checkpoint/n/p/x: 404 container x does not exist
        /checkpoint/n/x/c: 404 pod does not exist
        /checkpoint/n/p: 404 404: Page Not Found"#]]
    .assert_eq(&lines.join("\n"));
}

/// What every component has on its page.
fn components_own(page: &str) {
    let families = kaji_testing::text_format::parse(page).unwrap();
    for name in [
        "kubernetes_build_info",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
    ] {
        assert!(families.contains_key(name), "{name} in {page}");
    }
}
