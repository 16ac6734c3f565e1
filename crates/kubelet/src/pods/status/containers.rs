//! Statuses of containers. Upstream's `convertToAPIContainerStatuses` and the prober manager's `UpdatePodStatus`.

use super::Inputs;
use crate::pods::compute;
use crate::pods::core::{
    Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, PodStatus, VolumeMountStatus,
};
use crate::pods::model::{self, ContainerKind};
use crate::pods::observed::ObservedContainer;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kaji_containers::ContainerState;
use std::collections::BTreeMap;

/// The reason of containers that are removed because a rule restarts all.
pub(super) const RESTARTING: &str = "RestartingAllContainers";

/// Fills the three lists.
pub(super) fn fill(inputs: &Inputs<'_>, status: &mut PodStatus) {
    let pod = inputs.pod;
    let former = inputs.former;
    let regular = of_list(inputs, model::containers(pod), former.container_statuses.as_deref(), false);
    status.container_statuses = Some(regular);
    if !model::init_containers(pod).is_empty() {
        let init = model::init_containers(pod);
        let init = of_list(inputs, init, former.init_container_statuses.as_deref(), true);
        status.init_container_statuses = Some(init);
    }
    let ephemeral: Vec<Container> =
        model::ephemeral_containers(pod).iter().map(model::as_container).collect();
    if !ephemeral.is_empty() {
        let former = former.ephemeral_container_statuses.as_deref();
        status.ephemeral_container_statuses = Some(of_list(inputs, &ephemeral, former, false));
    }
}

fn of_list(
    inputs: &Inputs<'_>,
    list: &[Container],
    former: Option<&[ContainerStatus]>,
    init: bool,
) -> Vec<ContainerStatus> {
    let former = former.unwrap_or_default();
    let mut statuses: Vec<ContainerStatus> = list
        .iter()
        .map(|container| {
            let former = former.iter().find(|s| s.name == container.name);
            let mut status = of_container(inputs, container, former);
            failed_start(inputs, container, init, &mut status);
            status
        })
        .collect();
    if !init {
        statuses.sort_by(|a, b| a.name.cmp(&b.name));
    }
    statuses
}

fn of_container(
    inputs: &Inputs<'_>,
    container: &Container,
    former: Option<&ContainerStatus>,
) -> ContainerStatus {
    let mut seen = inputs.observed.containers.iter().filter(|c| c.name == container.name);
    let Some(newest) = seen.next() else { return missing(inputs, container, former) };
    let mut status = convert(inputs, container, newest);
    if let Some(before) = seen.next() {
        status.last_state = Some(state(inputs, before));
    } else if let Some(former) = former {
        // The former run may have been removed from the runtime.
        status.restart_count = status.restart_count.max(former.restart_count);
        let other = former.container_id != status.container_id;
        let ended = former.state.as_ref().filter(|s| other && s.terminated.is_some());
        status.last_state = ended.or(former.last_state.as_ref()).cloned();
    }
    status
}

fn waiting(reason: &str, message: &str) -> ApiState {
    let text = |t: &str| (!t.is_empty()).then(|| t.to_owned());
    let waiting = ContainerStateWaiting { reason: text(reason), message: text(message) };
    ApiState { waiting: Some(waiting), ..ApiState::default() }
}

/// A container that was removed because a rule restarts all.
fn restarting(former: &ContainerStatus) -> ContainerStatus {
    let message = "The container is removed because RestartAllContainers in place";
    let terminated = ContainerStateTerminated {
        exit_code: 137,
        reason: Some(RESTARTING.to_owned()),
        message: Some(message.to_owned()),
        ..ContainerStateTerminated::default()
    };
    ContainerStatus {
        state: Some(waiting(RESTARTING, message)),
        last_state: Some(ApiState { terminated: Some(terminated), ..ApiState::default() }),
        restart_count: former.restart_count + 1,
        ready: false,
        started: Some(false),
        container_id: None,
        image_id: String::new(),
        ..former.clone()
    }
}

/// A container that the runtime does not show.
fn missing(inputs: &Inputs<'_>, container: &Container, former: Option<&ContainerStatus>) -> ContainerStatus {
    let began = former.filter(|f| f.state.as_ref().is_some_and(|s| s.waiting.is_none()));
    if let Some(former) = began
        && compute::asks_to_restart_all(inputs.pod, inputs.observed, inputs.former)
        && !model::ephemeral_containers(inputs.pod).iter().any(|c| c.name == container.name)
    {
        return restarting(former);
    }
    if let Some(former) = former.filter(|f| f.state.as_ref().is_some_and(|s| s.terminated.is_some())) {
        return former.clone();
    }
    let creating =
        if model::init_containers(inputs.pod).is_empty() { "ContainerCreating" } else { "PodInitializing" };
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(waiting(creating, "")),
        last_state: former.and_then(|f| f.last_state.clone()),
        restart_count: former.map_or(0, |f| f.restart_count),
        volume_mounts: volume_mounts(container),
        started: Some(false),
        ..ContainerStatus::default()
    };
    let ran = former.and_then(|f| f.state.as_ref()).is_some_and(|s| s.running.is_some());
    let known = status.last_state.as_ref().is_some_and(|s| s.terminated.is_some());
    if ran && !known {
        let terminated = ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".to_owned()),
            message: Some(
                "The container could not be located when the pod was deleted.  The container used to be Running"
                    .to_owned(),
            ),
            ..ContainerStateTerminated::default()
        };
        status.last_state = Some(ApiState { terminated: Some(terminated), ..ApiState::default() });
        if !model::deleting(inputs.pod) {
            status.restart_count += 1;
        }
    }
    status
}

fn time(nanos: i64) -> Option<Time> {
    // Seconds: the API has no fractions, and a comparison with what it shows must not differ by them.
    Timestamp::from_second(nanos.div_euclid(1_000_000_000)).ok().map(Time)
}

fn container_id(inputs: &Inputs<'_>, found: &ObservedContainer) -> String {
    format!("{}://{}", inputs.runtime_name, found.id())
}

fn state(inputs: &Inputs<'_>, found: &ObservedContainer) -> ApiState {
    let status = &found.status;
    match found.state() {
        ContainerState::Running => ApiState {
            running: Some(ContainerStateRunning { started_at: time(status.started_at_nanos) }),
            ..ApiState::default()
        },
        ContainerState::Exited => ApiState {
            terminated: Some(ContainerStateTerminated {
                exit_code: status.exit_code,
                reason: Some(status.reason.clone()).filter(|r| !r.is_empty()),
                message: Some(found.message.clone()).filter(|m| !m.is_empty()),
                started_at: time(status.started_at_nanos),
                finished_at: time(status.finished_at_nanos),
                container_id: Some(container_id(inputs, found)),
                signal: None,
            }),
            ..ApiState::default()
        },
        ContainerState::Created | ContainerState::Unknown => waiting("", ""),
    }
}

fn convert(inputs: &Inputs<'_>, container: &Container, found: &ObservedContainer) -> ContainerStatus {
    let status = &found.status;
    let image = match status.info.image.user_specified.as_str() {
        "" => status.info.image.image.clone(),
        text => text.to_owned(),
    };
    let user = status.user.as_ref().map(|user| ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: Some(user.supplemental_groups.clone()).filter(|g| !g.is_empty()),
        }),
    });
    let granted = container.resources.clone().unwrap_or_default();
    let actual = inputs.resizing.actuals.get(&container.name);
    let resources = match actual.filter(|_| found.state() == ContainerState::Running) {
        Some(actual) => actual.show(&granted),
        None => granted,
    };
    let stop_signal = container.lifecycle.as_ref().and_then(|l| l.stop_signal.as_ref());
    ContainerStatus {
        name: container.name.clone(),
        image,
        image_id: status.image_ref.clone(),
        container_id: Some(container_id(inputs, found)),
        restart_count: i32::try_from(found.kept.restart_count).unwrap_or(i32::MAX),
        state: Some(state(inputs, found)),
        volume_mounts: volume_mounts(container),
        allocated_resources: model::requests(container.resources.as_ref()).cloned(),
        resources: Some(resources),
        user,
        stop_signal: stop_signal.cloned(),
        ..ContainerStatus::default()
    }
}

fn volume_mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let of = |m: &crate::pods::core::VolumeMount| {
        let read_only = m.read_only.unwrap_or(false);
        let recursive = match m.recursive_read_only.as_deref() {
            Some("Enabled" | "IfPossible") => "Enabled",
            _ => "Disabled",
        };
        VolumeMountStatus {
            name: m.name.clone(),
            mount_path: m.mount_path.clone(),
            read_only: read_only.then_some(true),
            recursive_read_only: read_only.then(|| recursive.to_owned()),
            volume_status: None,
        }
    };
    (!mounts.is_empty()).then(|| mounts.iter().map(of).collect())
}

/// A container that could not be started, or has to wait, is shown as waiting; its last run moves to `lastState`.
fn failed_start(inputs: &Inputs<'_>, container: &Container, init: bool, status: &mut ContainerStatus) {
    let newest = inputs.observed.newest(&container.name);
    let done = |o: &ObservedContainer| o.state() == ContainerState::Exited && o.status.exit_code == 0;
    if init && !model::is_sidecar(container) && newest.is_some_and(done) {
        return;
    }
    if inputs.terminal || !compute::should_restart(container, inputs.pod, inputs.observed) {
        return;
    }
    let Some((reason, message)) = inputs.waiting.get(&container.name) else { return };
    if status.state.as_ref().is_some_and(|s| s.terminated.is_some()) {
        status.last_state = status.state.take();
    }
    status.state = Some(waiting(reason, message));
}

/// Sets `started` and `ready` by the probes' results.
pub(super) fn set_ready(inputs: &Inputs<'_>, status: &mut PodStatus) {
    for (statuses, kind) in [
        (&mut status.container_statuses, ContainerKind::Regular),
        (&mut status.init_container_statuses, ContainerKind::Init),
        (&mut status.ephemeral_container_statuses, ContainerKind::Ephemeral),
    ] {
        for status in statuses.iter_mut().flatten() {
            let container = model::find_container(inputs.pod, &status.name);
            let Some((container, _)) = container else { continue };
            let running = status.state.as_ref().is_some_and(|s| s.running.is_some());
            let id = inputs.observed.newest(&status.name).map(|o| o.id().to_owned()).unwrap_or_default();
            let result = |probe: bool, results: &BTreeMap<String, bool>| {
                !probe || results.get(&id).copied().unwrap_or(false)
            };
            let started = running && result(container.startup_probe.is_some(), &inputs.results.startup);
            let readiness = result(container.readiness_probe.is_some(), &inputs.results.readiness);
            let completed =
                status.state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0);
            (status.started, status.ready) = match kind {
                ContainerKind::Ephemeral => (Some(started), false),
                ContainerKind::Init if !model::is_sidecar(&container) => (Some(started), completed),
                ContainerKind::Init | ContainerKind::Regular => (Some(started), started && readiness),
            };
        }
    }
}
