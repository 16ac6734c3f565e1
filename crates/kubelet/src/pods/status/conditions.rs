//! The conditions that belong to the kubelet. Upstream's `status/generate.go`.

use super::Inputs;
use crate::pods::compute;
use crate::pods::core::{ContainerStatus, PodCondition, PodStatus};
use crate::pods::model;

fn condition(kind: &str, status: bool, reason: &str, message: String) -> PodCondition {
    PodCondition {
        type_: kind.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: (!reason.is_empty()).then(|| reason.to_owned()),
        message: (!message.is_empty()).then_some(message),
        ..PodCondition::default()
    }
}

/// Of a pod that the kubelet evicts.
pub(super) fn disruption(message: &str) -> PodCondition {
    condition("DisruptionTarget", true, "TerminationByKubelet", message.to_owned())
}

/// `others` are the pod's conditions that do not belong to the kubelet; readiness gates name some of them.
pub(super) fn generate(
    inputs: &Inputs<'_>,
    status: &PodStatus,
    others: &[PodCondition],
) -> Vec<PodCondition> {
    let all: Vec<&ContainerStatus> = [&status.init_container_statuses, &status.container_statuses]
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    let without_sandbox = compute::sandbox_changed(inputs.pod, inputs.observed).0;
    let (reason, why) = without_sandbox.map_or(("", ""), |why| ("PodSandboxNotReady", why));
    let containers_ready = containers_ready(inputs, status, &all);
    let ready = ready(inputs, &containers_ready, others);
    let mut conditions = vec![
        condition("PodReadyToStartContainers", without_sandbox.is_none(), reason, why.to_owned()),
        initialized(inputs, status, &all),
        ready,
        containers_ready,
        condition("PodScheduled", true, "", String::new()),
    ];
    if let Some((reason, message)) = &inputs.resizing.pending {
        conditions.push(condition("PodResizePending", true, reason, message.clone()));
    }
    if inputs.resizing.in_progress {
        let error = inputs.resizing.error.clone().unwrap_or_default();
        let reason = if error.is_empty() { "" } else { "Error" };
        conditions.push(condition("PodResizeInProgress", true, reason, error));
    }
    if model::all_containers_could_restart(inputs.pod) {
        let restarting = compute::restarts_all(inputs.pod, inputs.observed, inputs.former);
        let (reason, message) = match status.phase.as_deref() {
            Some("Succeeded") => ("PodCompleted", ""),
            Some("Failed") => ("PodFailed", ""),
            _ if restarting => ("RestartAllContainersStarted", "container exited with restart policy rule"),
            _ => ("", ""),
        };
        let holds = reason == "RestartAllContainersStarted";
        conditions.push(condition(compute::RESTARTING, holds, reason, message.to_owned()));
    }
    conditions
}

/// Names in Go's notation of a list.
fn list(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

fn unready_message(unknown: &[&str], incomplete: &[&str], word: &str) -> String {
    let mut parts = vec![];
    if !unknown.is_empty() {
        parts.push(format!("containers with unknown status: {}", list(unknown)));
    }
    if !incomplete.is_empty() {
        parts.push(format!("containers with {word} status: {}", list(incomplete)));
    }
    parts.join(", ")
}

fn containers_ready(inputs: &Inputs<'_>, status: &PodStatus, all: &[&ContainerStatus]) -> PodCondition {
    let kind = "ContainersReady";
    let (mut unknown, mut unready) = (vec![], vec![]);
    let sidecars = model::init_containers(inputs.pod).iter().filter(|c| model::is_sidecar(c));
    for container in sidecars.chain(model::containers(inputs.pod)) {
        match all.iter().find(|s| s.name == container.name) {
            None => unknown.push(container.name.as_str()),
            Some(found) if !found.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    match status.phase.as_deref() {
        Some("Succeeded") if unknown.is_empty() => {
            return condition(kind, false, "PodCompleted", String::new());
        }
        Some("Failed") => return condition(kind, false, "PodFailed", String::new()),
        _ => {}
    }
    let message = unready_message(&unknown, &unready, "unready");
    let reason = if message.is_empty() { "" } else { "ContainersNotReady" };
    condition(kind, message.is_empty(), reason, message)
}

fn ready(inputs: &Inputs<'_>, containers: &PodCondition, others: &[PodCondition]) -> PodCondition {
    if containers.status != "True" {
        return PodCondition { type_: "Ready".to_owned(), ..containers.clone() };
    }
    let gates = model::spec(inputs.pod).readiness_gates.as_deref().unwrap_or_default();
    let closed: Vec<String> = gates
        .iter()
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            match others.iter().find(|c| c.type_ == *kind) {
                None => {
                    Some(format!("corresponding condition of pod readiness gate \"{kind}\" does not exist."))
                }
                Some(c) if c.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{kind}\" is not \"True\", but {}",
                    c.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    let reason = if closed.is_empty() { "" } else { "ReadinessGatesNotReady" };
    condition("Ready", closed.is_empty(), reason, closed.join(", "))
}

fn initialized(inputs: &Inputs<'_>, status: &PodStatus, all: &[&ContainerStatus]) -> PodCondition {
    let kind = "Initialized";
    let (mut unknown, mut incomplete) = (vec![], vec![]);
    for container in model::init_containers(inputs.pod) {
        match all.iter().find(|s| s.name == container.name) {
            None => unknown.push(container.name.as_str()),
            Some(found) => {
                let done =
                    if model::is_sidecar(container) { found.started == Some(true) } else { found.ready };
                if !done {
                    incomplete.push(container.name.as_str());
                }
            }
        }
    }
    if status.phase.as_deref() == Some("Succeeded") && unknown.is_empty() {
        return condition(kind, true, "PodCompleted", String::new());
    }
    let began = model::containers(inputs.pod).iter().any(|c| {
        let found = all.iter().find(|s| s.name == c.name);
        found.is_some_and(|s| {
            let past = s.last_state.as_ref().is_some_and(|l| l.terminated.is_some());
            let present = s.state.as_ref();
            past || present.is_some_and(|p| p.running.is_some() || p.terminated.is_some())
        })
    });
    let message = unready_message(&unknown, &incomplete, "incomplete");
    let former = inputs.former.conditions.as_deref().unwrap_or_default();
    let was = model::all_containers_could_restart(inputs.pod)
        && former.iter().any(|c| c.type_ == kind && c.status == "True");
    if began || was || message.is_empty() {
        return condition(kind, true, "", String::new());
    }
    condition(kind, false, "ContainersNotInitialized", message)
}
