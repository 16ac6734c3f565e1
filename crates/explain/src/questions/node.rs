//! A node that is not ready, or takes no pods.

use crate::{
    case::{Case, condition, tell, title},
    paths::path,
    report::{Cause, Sort},
};
use kaji_meta::object::{self, arr_at, bool_at, str_at};
use serde_json::Value;

/// Conditions that are bad when they are true.
const PRESSURES: &[&str] = &["MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"];

/// Why the node is not ready, or takes no pods.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    let mut causes: Vec<Cause> = not_ready(case.object).into_iter().collect();
    for pressure in PRESSURES.iter().filter_map(|sort| crate::case::condition_is(case.object, sort, "True")) {
        causes.push(
            Cause::new(Sort::Node, format!("it has {}", str_at(pressure, &["type"]))).known(tell(pressure)),
        );
    }
    if bool_at(case.object, &["spec", "unschedulable"]) == Some(true) {
        let cause = Cause::new(Sort::Node, "it takes no new pods").known("spec.unschedulable is true");
        causes.push(cause.fix(format!("kubectl uncordon {}", case.name())));
    }
    let uninitialized = "node.cloudprovider.kubernetes.io/uninitialized";
    if arr_at(case.object, &["spec", "taints"]).iter().any(|taint| str_at(taint, &["key"]) == uninitialized) {
        let cause = Cause::new(Sort::Node, "no cloud controller has initialized it")
            .known(format!("it has the taint {uninitialized}"));
        causes.push(cause.inferred("its kubelet runs with an external cloud provider, and no cloud controller manager answers for it"));
    }
    if !causes.is_empty()
        && let Some(silence) = silence(case).await
    {
        let first = causes.remove(0);
        causes.insert(0, first.known(silence));
    }
    causes
}

/// Since when its lease was not renewed.
async fn silence(case: &Case<'_>) -> Option<String> {
    let lease =
        case.reader.get(&path("coordination.k8s.io/v1", "kube-node-lease", "leases", case.name())).await;
    let renewed: jiff::Timestamp = str_at(lease.object()?, &["spec", "renewTime"]).parse().ok()?;
    let seconds = case.now.duration_since(renewed).as_secs();
    (seconds > 40).then(|| format!("its lease was renewed {seconds} s ago"))
}

/// A cause if the node's condition Ready is not True.
pub fn not_ready(node: &Value) -> Option<Cause> {
    let ready = condition(node, "Ready");
    if ready.is_some_and(|ready| str_at(ready, &["status"]) == "True") {
        return None;
    }
    let cause = Cause::new(Sort::Node, format!("{} is not ready", title(node)));
    let Some(ready) = ready else { return Some(cause.known("its kubelet has never reported")) };
    let cause = cause.known(tell(ready));
    Some(match str_at(ready, &["status"]) {
        "Unknown" => cause
            .inferred("its kubelet does not reach the API server: the machine is off, cut off, or kubelet does not run")
            .fix(format!("look at the machine of {}: power, network, and the log of its kubelet", object::name(node))),
        _ => cause,
    })
}
