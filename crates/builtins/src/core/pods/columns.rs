//! The table of pods: readiness, the status word and restarts as `kubectl get pods` shows them.

use super::{is_sidecar, is_terminal};
use crate::shared::{
    Fields,
    conditions::{self, is_true},
    table,
};
use kaji_resource::{Column, age_column, name_column};
use serde_json::Value;
use std::collections::HashMap;

/// Columns of a pod table.
pub const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Ready", "string", 0, "The aggregate readiness state of this pod for accepting traffic."),
    Column::new("Status", "string", 0, "The aggregate status of the containers in this pod."),
    Column::new(
        "Restarts",
        "string",
        0,
        "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted.",
    ),
    age_column(),
    Column::new(
        "IP",
        "string",
        1,
        "podIP address allocated to the pod. Routable at least within the cluster. Empty if not yet allocated.",
    ),
    Column::new(
        "Node",
        "string",
        1,
        "NodeName indicates in which node this pod is scheduled. If empty, this pod is a candidate for scheduling by the scheduler defined in schedulerName. Once this field is set, the kubelet for this node becomes responsible for the lifecycle of this pod. This field should not be used to express a desire for the pod to be scheduled on a specific node. https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#nodename",
    ),
    Column::new(
        "Nominated Node",
        "string",
        1,
        "nominatedNodeName is set only when this pod preempts other pods on the node, but it cannot be scheduled right away as preemption victims receive their graceful termination periods. This field does not guarantee that the pod will be scheduled on this node. Scheduler may decide to place the pod elsewhere if other nodes become available sooner. Scheduler may also decide to give the resources on this node to a higher priority pod that is created after preemption. As a result, this field may be different than PodSpec.nodeName when the pod is scheduled.",
    ),
    Column::new(
        "Readiness Gates",
        "string",
        1,
        "If specified, all readiness gates will be evaluated for pod readiness. A pod is ready when all its containers are ready AND all conditions specified in the readiness gates have status equal to \"True\" More info: https://git.k8s.io/enhancements/keps/sig-network/580-pod-readiness-gates",
    ),
];

/// The status that the containers of a pod sum up to.
struct Summary {
    reason: String,
    ready: usize,
    restarts: i64,
    last_restart: Option<jiff::Timestamp>,
}

impl Summary {
    fn restarted(&mut self, status: &Value) {
        self.restarts += status.int("restartCount");
        self.last_restart = self.last_restart.max(last_restart(status));
    }
}

fn last_restart(status: &Value) -> Option<jiff::Timestamp> {
    table::parse_time(status.at("lastState").at("terminated").text("finishedAt"))
}

/// Why a container ended: its reason, signal or exit code.
fn ended(t: &Value) -> String {
    match (t.text("reason"), t.int("signal")) {
        ("", 0) => format!("ExitCode:{}", t.int("exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// Folds the init containers in; returns whether the pod is still initialising, and the restarts of its sidecars.
fn init(pod: &Value, sum: &mut Summary) -> (bool, Summary) {
    let spec = pod.at("spec").list("initContainers");
    let by_name: HashMap<&str, &Value> = spec.iter().map(|c| (c.text("name"), c)).collect();
    let mut sidecars = Summary { reason: String::new(), ready: 0, restarts: 0, last_restart: None };
    for (i, s) in pod.at("status").list("initContainerStatuses").iter().enumerate() {
        let sidecar = by_name.get(s.text("name")).is_some_and(|c| is_sidecar(c));
        sum.restarted(s);
        if sidecar {
            sidecars.restarted(s);
        }
        let terminated = s.at("state").get_field("terminated");
        if terminated.is_some_and(|t| t.int("exitCode") == 0) {
            continue;
        }
        if sidecar && s.flag("started") {
            sum.ready += usize::from(s.flag("ready"));
            continue;
        }
        let waiting = s.at("state").at("waiting").text("reason");
        sum.reason = match terminated {
            Some(t) => format!("Init:{}", ended(t)),
            None if !matches!(waiting, "" | "PodInitializing") => format!("Init:{waiting}"),
            None => format!("Init:{i}/{}", spec.len()),
        };
        return (true, sidecars);
    }
    (false, sidecars)
}

fn main_containers(pod: &Value, sum: &mut Summary) {
    let status = pod.at("status");
    let (mut running, mut error) = (false, None);
    for s in status.list("containerStatuses").iter().rev() {
        sum.restarted(s);
        let state = s.at("state");
        let waiting = state.at("waiting").text("reason");
        if !waiting.is_empty() {
            sum.reason = waiting.to_owned();
        } else if let Some(t) = state.get_field("terminated") {
            sum.reason = ended(t);
            if t.int("exitCode") != 0 {
                error = Some(sum.reason.clone());
            }
        } else if s.flag("ready") && state.has("running") {
            running = true;
            sum.ready += 1;
        }
    }
    if sum.reason == "Completed" {
        if running
            && status
                .list("conditions")
                .iter()
                .any(|c| c.text("type") == "Ready" && c.text("status") == "True")
        {
            sum.reason = "Running".to_owned();
        } else if let Some(e) = error {
            sum.reason = e;
        } else if running {
            sum.reason = "NotReady".to_owned();
        }
    }
}

fn summary(pod: &Value) -> Summary {
    let status = pod.at("status");
    let mut reason =
        status.opt_text("reason").filter(|r| !r.is_empty()).unwrap_or_else(|| status.text("phase"));
    let gated = |c: &Value| c.text("type") == "PodScheduled" && c.text("reason") == "SchedulingGated";
    if status.list("conditions").iter().any(gated) {
        reason = "SchedulingGated";
    }
    let mut sum = Summary { reason: reason.to_owned(), ready: 0, restarts: 0, last_restart: None };
    let (initializing, sidecars) = init(pod, &mut sum);
    if !initializing || is_true(status, "Initialized") {
        sum.restarts = sidecars.restarts;
        sum.last_restart = sidecars.last_restart;
        main_containers(pod, &mut sum);
    }
    if kaji_meta::object::deletion_timestamp(pod).is_some() {
        if status.text("reason") == "NodeLost" {
            sum.reason = "Unknown".to_owned();
        } else if !is_terminal(pod) {
            sum.reason = "Terminating".to_owned();
        }
    }
    sum
}

/// The cells of a pod, one a column.
pub fn row(pod: &Value, now: jiff::Timestamp) -> Vec<Value> {
    let (spec, status) = (pod.at("spec"), pod.at("status"));
    let sum = summary(pod);
    let sidecars = spec.list("initContainers").iter().filter(|c| is_sidecar(c)).count();
    let total = spec.list("containers").len() + sidecars;
    let restarts = match sum.last_restart {
        Some(at) if sum.restarts != 0 => {
            format!("{} ({} ago)", sum.restarts, table::human(table::seconds_between(at, now)))
        }
        _ => sum.restarts.to_string(),
    };
    let or_none = |s: &str| Value::from(if s.is_empty() { "<none>" } else { s });
    let ip = status.list("podIPs").first().map_or("", |p| p.text("ip"));
    let gates = spec.list("readinessGates");
    let open = gates.iter().filter(|g| conditions::is_true(status, g.text("conditionType"))).count();
    let gates = if gates.is_empty() { "<none>".to_owned() } else { format!("{open}/{}", gates.len()) };
    vec![
        table::name(pod),
        format!("{}/{total}", sum.ready).into(),
        sum.reason.into(),
        restarts.into(),
        table::age(pod, now),
        or_none(ip),
        or_none(spec.text("nodeName")),
        or_none(status.text("nominatedNodeName")),
        gates.into(),
    ]
}
