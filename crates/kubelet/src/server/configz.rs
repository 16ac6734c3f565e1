//! `/configz`: the values of a `KubeletConfiguration` that hold on this node.
//!
//! Fields of what this kubelet does not have are left out.

use super::node_api::NodeApi;
use super::request::{self, JSON, ServerBody};
use crate::node::KUBELET_PORT;
use http::{Response, StatusCode};
use kaji_meta::duration;
use serde_json::{Value, json};

/// The configuration of a node.
fn configuration(api: &NodeApi) -> Value {
    let config = &api.cx.config;
    let (logs, images) = (&api.housekeeping.logs, &api.housekeeping.images);
    let mut shown = json!({
        "enableServer": true,
        "address": config.addresses.first().map(ToString::to_string).unwrap_or_default(),
        "port": KUBELET_PORT,
        "authentication": {
            "x509": {},
            "webhook": {"enabled": true, "cacheTTL": "2m0s"},
            "anonymous": {"enabled": false},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s"},
        },
        "enableDebuggingHandlers": true,
        "enableSystemLogHandler": true,
        "enableSystemLogQuery": false,
        "enableProfilingHandler": false,
        "clusterDomain": config.dns.domain,
        "clusterDNS": config.dns.servers.iter().map(ToString::to_string).collect::<Vec<String>>(),
        "resolvConf": config.dns.node.file,
        "streamingConnectionIdleTimeout": "4h0m0s",
        "nodeStatusUpdateFrequency": "10s",
        "nodeStatusReportFrequency": "5m0s",
        "nodeLeaseDurationSeconds": 40,
        "cgroupsPerQOS": api.cx.cgroups.is_some(),
        "cgroupDriver": "cgroupfs",
        "podLogsDir": config.pod_log_dir,
        "containerLogMaxSize": format!("{}Mi", logs.max_bytes >> 20),
        "containerLogMaxFiles": logs.max_files,
        "imageGCHighThresholdPercent": images.high_percent,
        "imageGCLowThresholdPercent": images.low_percent,
        "imagePullCredentialsVerificationPolicy": "NeverVerifyPreloadedImages",
        "evictionMaxPodGracePeriod": api.housekeeping.eviction.most_pod_grace,
        "crashLoopBackOff": {"maxContainerRestartPeriod": duration::format(config.restart_delays.longest())},
        "memoryReservationPolicy": config.memory_qos.reservation.name(),
        "registerNode": true,
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
    });
    if let Some(factor) = config.memory_qos.throttling_factor {
        shown["memoryThrottlingFactor"] = factor.into();
    }
    shown
}

/// Answers with it.
pub(super) fn page(api: &NodeApi) -> Response<ServerBody> {
    let page = json!({"kubeletconfig": configuration(api)});
    request::respond(StatusCode::OK, JSON, page.to_string())
}
