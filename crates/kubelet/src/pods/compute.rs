//! What has to be done for a pod: [`actions`], pure. Upstream's `computePodActions`.
//!
//! Invariants: a container is started only when none of its name runs, or the one that does is to be killed first; regular
//! containers start after the last init container has succeeded or, for a sidecar, has started; nothing is started in a pod
//! that is to be killed.

use super::core::{Container, Pod, PodStatus};
use super::model;
use super::observed::{Observed, ObservedContainer};
use kaji_containers::{ContainerState, NamespaceMode, PodSandboxState};
use std::collections::BTreeMap;

/// The condition of a pod in which a rule restarts all containers.
pub(super) const RESTARTING: &str = "AllContainersRestarting";

/// Outcomes of probes by container id. What is absent is not known yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProbeResults {
    /// Whether the container is alive.
    pub liveness: BTreeMap<String, bool>,
    /// Whether the container may be sent requests.
    pub readiness: BTreeMap<String, bool>,
    /// Whether the container has started.
    pub startup: BTreeMap<String, bool>,
}

/// Why a container is killed; decides which grace period holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KillReason {
    /// The pod's own grace period holds.
    #[default]
    Other,
    /// A startup probe's.
    StartupProbe,
    /// A liveness probe's.
    LivenessProbe,
}

/// A container that is to be killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    /// The container's id.
    pub id: String,
    /// As in the spec.
    pub name: String,
    /// The event's text.
    pub message: String,
    /// Why.
    pub reason: KillReason,
}

/// What has to be done for a pod, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Actions {
    /// Stop all containers and the sandbox.
    pub kill_pod: bool,
    /// Then create a sandbox of this attempt.
    pub create_sandbox: Option<u32>,
    /// The sandbox that containers are started in otherwise.
    pub sandbox: Option<String>,
    /// Kill these.
    pub kill: Vec<Kill>,
    /// Remove these, killing those that run, because a rule restarts all containers; in order.
    pub reset: Vec<String>,
    /// Indexes of init containers to start.
    pub init: Vec<usize>,
    /// Indexes of containers to start.
    pub regular: Vec<usize>,
    /// Indexes of ephemeral containers to start.
    pub ephemeral: Vec<usize>,
}

/// Why a sandbox has to be created, if it has to; as which attempt, and the one that is there. The texts are upstream's.
#[must_use]
pub fn sandbox_changed(pod: &Pod, observed: &Observed) -> (Option<&'static str>, u32, Option<String>) {
    let Some(newest) = observed.sandboxes.first() else { return (Some("no pod sandbox exists"), 0, None) };
    let ready = observed.sandboxes.iter().filter(|s| s.info.state == PodSandboxState::Ready).count();
    let next = newest.info.metadata.attempt + 1;
    let id = Some(newest.info.id.clone());
    if ready > 1 {
        return (Some("multiple pod sandboxes are ready and need to be reconciled"), next, id);
    }
    if newest.info.state != PodSandboxState::Ready {
        return (Some("pod sandbox is not ready"), next, id);
    }
    let host = model::host_network(pod);
    if (newest.security.namespaces.network == NamespaceMode::Node) != host {
        return (Some("network namespace mode changed and sandbox needs to be recreated"), next, None);
    }
    if !host && newest.addresses.is_empty() {
        return (Some("pod sandbox has no IP address"), next, id);
    }
    (None, newest.info.metadata.attempt, id)
}

/// Whether a rule has asked to restart all containers, by the status that was generated last or by an exit since. The condition
/// holds on after the container that asked for it was removed.
#[must_use]
pub fn asks_to_restart_all(pod: &Pod, observed: &Observed, former: &PodStatus) -> bool {
    let mut conditions = former.conditions.iter().flatten();
    conditions.any(|c| c.type_ == RESTARTING && c.status == "True")
        || restartable(pod).any(|c| is_restart_source(c, observed))
}

/// Whether all containers are to be restarted, and some of them still have to be removed for it.
#[must_use]
pub fn restarts_all(pod: &Pod, observed: &Observed, former: &PodStatus) -> bool {
    restartable(pod).any(|c| observed.newest(&c.name).is_some()) && asks_to_restart_all(pod, observed, former)
}

/// The containers that a restart of all is about.
fn restartable(pod: &Pod) -> impl Iterator<Item = &Container> {
    model::init_containers(pod).iter().chain(model::containers(pod))
}

fn is_restart_source(container: &Container, observed: &Observed) -> bool {
    observed.newest(&container.name).is_some_and(|found| asks(container, found))
}

/// Whether this run of a container has ended with an exit for which a rule restarts all.
fn asks(container: &Container, found: &ObservedContainer) -> bool {
    found.state() == ContainerState::Exited
        && model::matching_rule(container, found.status.exit_code) == Some("RestartAllContainers")
}

/// Whether a container that does not run is to be started.
#[must_use]
pub fn should_restart(container: &Container, pod: &Pod, observed: &Observed) -> bool {
    if model::deleting(pod) {
        return false;
    }
    match observed.newest(&container.name) {
        None => true,
        Some(found) => match found.state() {
            ContainerState::Running => false,
            ContainerState::Created | ContainerState::Unknown => true,
            ContainerState::Exited => model::restarts_after_exit(container, pod, found.status.exit_code),
        },
    }
}

/// What has to be done for a pod. `former` is the status that was generated last.
#[must_use]
pub fn actions(pod: &Pod, observed: &Observed, results: &ProbeResults, former: &PodStatus) -> Actions {
    let (changed, attempt, sandbox) = sandbox_changed(pod, observed);
    let mut actions = Actions { sandbox, ..Actions::default() };
    if restarts_all(pod, observed, former) {
        actions.reset = to_reset(pod, observed);
        return actions;
    }
    if changed.is_some() {
        in_new_sandbox(pod, observed, attempt, &mut actions);
        return actions;
    }
    for (index, container) in model::ephemeral_containers(pod).iter().enumerate() {
        if observed.newest(&container.name).is_none() {
            actions.ephemeral.push(index);
        }
    }
    let initialized = init_actions(pod, observed, results, &mut actions);
    if actions.kill_pod || !initialized {
        return actions;
    }
    let mut kept = 0;
    for (index, container) in model::containers(pod).iter().enumerate() {
        match observed.newest(&container.name) {
            Some(found) if found.state() == ContainerState::Running => {
                match running_container(pod, container, found, results) {
                    None => kept += 1,
                    Some((kill, restart)) => {
                        actions.kill.push(kill);
                        if restart {
                            actions.regular.push(index);
                        }
                    }
                }
            }
            found => {
                if should_restart(container, pod, observed) {
                    actions.regular.push(index);
                    actions.kill.extend(found.and_then(|found| kill_unknown(found, "Container")));
                }
            }
        }
    }
    if kept == 0 && actions.regular.is_empty() {
        // Sidecars do not keep a pod alive.
        actions.kill_pod = true;
        actions.init.clear();
    }
    actions
}

fn kill_unknown(found: &ObservedContainer, what: &str) -> Option<Kill> {
    (found.state() == ContainerState::Unknown).then(|| Kill {
        id: found.id().to_owned(),
        name: found.name.clone(),
        message: format!("{what} is in \"unknown\" state, try killing it before restart"),
        reason: KillReason::Other,
    })
}

/// Those that asked for it by their exit are removed last, so that the request is still seen after a restart of the kubelet in
/// between.
fn to_reset(pod: &Pod, observed: &Observed) -> Vec<String> {
    let mut ids = vec![];
    for source in [false, true] {
        for list in [model::containers(pod), model::init_containers(pod)] {
            for container in list {
                let runs = observed.containers.iter().filter(|o| o.name == container.name);
                ids.extend(runs.filter(|o| asks(container, o) == source).map(|o| o.id().to_owned()));
            }
        }
    }
    ids
}

fn in_new_sandbox(pod: &Pod, observed: &Observed, attempt: u32, actions: &mut Actions) {
    actions.kill_pod = true;
    let never = model::restart_policy(pod) == "Never";
    if never && attempt != 0 && !observed.containers.is_empty() {
        return;
    }
    let succeeded = |c: &Container| {
        let found = observed.newest(&c.name);
        found.is_some_and(|o| o.state() == ContainerState::Exited && o.status.exit_code == 0)
    };
    let once = |c: &Container| {
        c.restart_policy.as_deref().unwrap_or(model::restart_policy(pod)) == "OnFailure" && succeeded(c)
    };
    let regular: Vec<usize> =
        (0..model::containers(pod).len()).filter(|index| !once(&model::containers(pod)[*index])).collect();
    let any_created = model::containers(pod).iter().any(|c| observed.newest(&c.name).is_some());
    if regular.is_empty() && any_created {
        return;
    }
    actions.create_sandbox = Some(attempt);
    if model::init_containers(pod).is_empty() {
        actions.regular = regular;
    } else {
        actions.init = vec![0];
    }
}

/// Why a running container has to be killed, and whether it is started again.
fn running_container(
    pod: &Pod,
    container: &Container,
    found: &ObservedContainer,
    results: &ProbeResults,
) -> Option<(Kill, bool)> {
    let policy = container.restart_policy.as_deref().unwrap_or(model::restart_policy(pod));
    let mut restart = policy != "Never";
    let failed = |results: &BTreeMap<String, bool>| results.get(found.id()) == Some(&false);
    let name = &container.name;
    let (mut message, reason) = if found.kept.hash != model::container_hash(container) {
        restart = true;
        (format!("Container {name} definition changed"), KillReason::Other)
    } else if failed(&results.liveness) {
        (format!("Container {name} failed liveness probe"), KillReason::LivenessProbe)
    } else if failed(&results.startup) {
        (format!("Container {name} failed startup probe"), KillReason::StartupProbe)
    } else {
        return None;
    };
    if restart {
        message += ", will be restarted";
    }
    Some((Kill { id: found.id().to_owned(), name: name.clone(), message, reason }, restart))
}

/// The init containers' part. Whether regular containers may be looked at.
fn init_actions(pod: &Pod, observed: &Observed, results: &ProbeResults, actions: &mut Actions) -> bool {
    let list = model::init_containers(pod);
    if list.is_empty() {
        return true;
    }
    let began = |c: &Container| {
        let state = observed.newest(&c.name).map(ObservedContainer::state);
        matches!(state, Some(ContainerState::Created | ContainerState::Running))
    };
    let previously = model::containers(pod).iter().any(began);
    let mut initialized = previously;
    // The newest one of which something is known decides; those before it may have been removed from the runtime.
    for (index, container) in list.iter().enumerate().rev() {
        let sidecar = model::is_sidecar(container);
        let Some(found) = observed.newest(&container.name) else {
            if previously && sidecar {
                actions.init.push(index);
            }
            continue;
        };
        if previously && !sidecar {
            continue;
        }
        let last = index + 1 == list.len();
        let next = |actions: &mut Actions, initialized: &mut bool| {
            if last {
                *initialized = true;
            } else if !previously {
                actions.init.push(index + 1);
            }
        };
        match found.state() {
            ContainerState::Created => actions.init.push(index),
            ContainerState::Running if sidecar => {
                if sidecar_started(container, found, results, index, actions) {
                    next(actions, &mut initialized);
                    sidecar_alive(container, found, results, index, actions);
                }
            }
            ContainerState::Running => {}
            ContainerState::Exited if sidecar => actions.init.push(index),
            ContainerState::Exited if !found.failed() => next(actions, &mut initialized),
            ContainerState::Exited | ContainerState::Unknown => {
                let restart = sidecar || should_restart(container, pod, observed);
                if !restart {
                    actions.kill_pod = true;
                    actions.init.clear();
                    return false;
                }
                actions.kill.extend(kill_unknown(found, "Init container"));
                actions.init.push(index);
            }
        }
        if !previously {
            break;
        }
    }
    if !previously && list.iter().all(|c| observed.newest(&c.name).is_none()) {
        actions.init = vec![0];
        return false;
    }
    // They were found in reverse order; those that run before others start before them.
    actions.init.sort_unstable();
    actions.init.dedup();
    if !previously {
        restart_earlier_sidecars(pod, observed, results, actions);
    }
    initialized
}

/// Sidecars before the init container that is next are kept running as well.
fn restart_earlier_sidecars(pod: &Pod, observed: &Observed, results: &ProbeResults, actions: &mut Actions) {
    let list = model::init_containers(pod);
    let furthest = list.iter().rposition(|c| observed.newest(&c.name).is_some()).unwrap_or(0);
    for (index, container) in list.iter().enumerate().take(furthest).filter(|(_, c)| model::is_sidecar(c)) {
        match observed.newest(&container.name) {
            Some(found) if found.state() == ContainerState::Running => {
                if sidecar_started(container, found, results, index, actions) {
                    sidecar_alive(container, found, results, index, actions);
                }
            }
            found => {
                actions.kill.extend(found.and_then(|found| kill_unknown(found, "Init container")));
                actions.init.push(index);
            }
        }
    }
    actions.init.sort_unstable();
    actions.init.dedup();
}

/// Whether a running sidecar has passed its startup probe. One that failed it is restarted.
fn sidecar_started(
    container: &Container,
    found: &ObservedContainer,
    results: &ProbeResults,
    index: usize,
    actions: &mut Actions,
) -> bool {
    if container.startup_probe.is_none() {
        return true;
    }
    match results.startup.get(found.id()) {
        Some(true) => true,
        None => false,
        Some(false) => {
            restart_sidecar(found, index, actions, "failed startup probe", KillReason::StartupProbe);
            false
        }
    }
}

fn sidecar_alive(
    container: &Container,
    found: &ObservedContainer,
    results: &ProbeResults,
    index: usize,
    actions: &mut Actions,
) {
    if found.kept.hash != model::container_hash(container) {
        restart_sidecar(found, index, actions, "definition changed", KillReason::Other);
    } else if container.liveness_probe.is_some() && results.liveness.get(found.id()) == Some(&false) {
        restart_sidecar(found, index, actions, "failed liveness probe", KillReason::LivenessProbe);
    }
}

fn restart_sidecar(
    found: &ObservedContainer,
    index: usize,
    actions: &mut Actions,
    what: &str,
    reason: KillReason,
) {
    let message = format!("Init container {} {what}", found.name);
    actions.kill.push(Kill { id: found.id().to_owned(), name: found.name.clone(), message, reason });
    actions.init.push(index);
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_containers::{PodSandboxInfo, PodSandboxMetadata, PodSandboxStatus, SandboxSecurity};

    fn sandbox(state: PodSandboxState, address: Option<&str>) -> PodSandboxStatus {
        PodSandboxStatus {
            info: PodSandboxInfo {
                id: "s".to_owned(),
                metadata: PodSandboxMetadata::default(),
                state,
                created_at_nanos: 0,
                labels: BTreeMap::new(),
                annotations: BTreeMap::new(),
                runtime_handler: String::new(),
            },
            addresses: address.into_iter().map(|text| text.parse().unwrap()).collect(),
            network_namespace: None,
            security: SandboxSecurity::default(),
        }
    }

    #[test]
    fn a_sandbox_that_has_to_be_replaced_has_a_reason() {
        let ready = || sandbox(PodSandboxState::Ready, Some("10.0.0.1"));
        let on_host: Pod = serde_json::from_value(serde_json::json!({
            "spec": {"hostNetwork": true, "containers": []},
        }))
        .unwrap();
        let shown = [
            (Pod::default(), vec![]),
            (Pod::default(), vec![ready(), ready()]),
            (Pod::default(), vec![sandbox(PodSandboxState::NotReady, None), ready()]),
            (on_host, vec![ready()]),
            (Pod::default(), vec![sandbox(PodSandboxState::Ready, None)]),
            (Pod::default(), vec![ready()]),
        ]
        .map(|(pod, sandboxes)| {
            let observed = Observed { sandboxes, ..Observed::default() };
            sandbox_changed(&pod, &observed).0.unwrap_or("-")
        });
        expect_test::expect![[r"
            no pod sandbox exists
            multiple pod sandboxes are ready and need to be reconciled
            pod sandbox is not ready
            network namespace mode changed and sandbox needs to be recreated
            pod sandbox has no IP address
            -"]]
        .assert_eq(&shown.join("\n"));
    }
}
