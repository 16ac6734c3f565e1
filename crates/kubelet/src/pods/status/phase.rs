//! The phase of a pod, from the statuses of its containers. Upstream's `getPhase`.

use super::Inputs;
use super::containers::RESTARTING;
use crate::pods::core::{Container, ContainerStateTerminated, ContainerStatus, PodStatus};
use crate::pods::model;
use kaji_containers::ContainerState;

/// What a container's status says in short.
enum Summary {
    Running {
        started: bool,
    },
    Terminated(Ended),
    /// Not yet, or not again; with the end of the last run.
    Waiting(Option<Ended>),
    Unknown,
}

/// How a run has ended.
struct Ended {
    code: i32,
    /// Removed because a rule restarts all containers: it runs again, whatever its own policy says.
    restarting: bool,
}

impl Ended {
    fn of(state: &ContainerStateTerminated) -> Ended {
        Ended { code: state.exit_code, restarting: state.reason.as_deref() == Some(RESTARTING) }
    }

    fn restarts(&self, container: &Container, inputs: &Inputs<'_>) -> bool {
        self.restarting || model::restarts_after_exit(container, inputs.pod, self.code)
    }
}

fn summary(status: &ContainerStatus) -> Summary {
    let Some(state) = &status.state else { return Summary::Unknown };
    if state.running.is_some() {
        return Summary::Running { started: status.started == Some(true) };
    }
    if let Some(terminated) = &state.terminated {
        return Summary::Terminated(Ended::of(terminated));
    }
    if state.waiting.is_some() {
        let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        return Summary::Waiting(last.map(Ended::of));
    }
    Summary::Unknown
}

#[derive(Default)]
struct Counts {
    pending_init: usize,
    pending_sidecars: usize,
    failed_for_good: usize,
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_for_good: usize,
    succeeded: usize,
}

pub(super) fn of(inputs: &Inputs<'_>, status: &PodStatus) -> &'static str {
    let mut counts = Counts::default();
    let regular = status.container_statuses.as_deref().unwrap_or_default();
    let init = status.init_container_statuses.as_deref().unwrap_or_default();
    let find = |list: &[ContainerStatus], c: &Container| {
        list.iter().find(|s| s.name == c.name).map_or(Summary::Unknown, summary)
    };
    for container in model::init_containers(inputs.pod) {
        let found = find(init, container);
        if model::is_sidecar(container) {
            count_sidecar(&mut counts, &found);
        } else {
            count_init(inputs, &mut counts, container, &found);
        }
    }
    for container in model::containers(inputs.pod) {
        count_regular(inputs, &mut counts, container, &find(regular, container));
    }
    decide(inputs, &counts)
}

fn count_init(inputs: &Inputs<'_>, counts: &mut Counts, container: &Container, found: &Summary) {
    match found {
        Summary::Terminated(ended) | Summary::Waiting(Some(ended)) => {
            if ended.code != 0 && !ended.restarts(container, inputs) {
                counts.failed_for_good += 1;
            }
        }
        Summary::Running { .. } | Summary::Waiting(None) | Summary::Unknown => counts.pending_init += 1,
    }
}

fn count_sidecar(counts: &mut Counts, found: &Summary) {
    match found {
        Summary::Running { started } => {
            counts.pending_sidecars += usize::from(!started);
            counts.running += 1;
        }
        // Sidecars that ended do not count.
        Summary::Terminated(_) | Summary::Waiting(Some(_)) => {}
        Summary::Waiting(None) => {
            counts.pending_sidecars += 1;
            counts.waiting += 1;
        }
        Summary::Unknown => {
            counts.pending_sidecars += 1;
            counts.unknown += 1;
        }
    }
}

fn count_regular(inputs: &Inputs<'_>, counts: &mut Counts, container: &Container, found: &Summary) {
    match found {
        Summary::Running { .. } => counts.running += 1,
        Summary::Terminated(ended) | Summary::Waiting(Some(ended)) => {
            counts.stopped += 1;
            counts.stopped_for_good += usize::from(!ended.restarts(container, inputs));
            if matches!(found, Summary::Terminated(Ended { code: 0, .. })) {
                counts.succeeded += 1;
            }
        }
        Summary::Waiting(None) => counts.waiting += 1,
        Summary::Unknown => counts.unknown += 1,
    }
}

fn decide(inputs: &Inputs<'_>, counts: &Counts) -> &'static str {
    // Also one that has ended, as long as its sandbox stands: sidecars that still run make no pod Pending again.
    let sandbox = inputs.observed.ready_sandbox().map(|sandbox| sandbox.info.id.as_str());
    let began = |c: &Container| {
        let newest = inputs.observed.newest(&c.name);
        newest.is_some_and(|o| matches!(o.state(), ContainerState::Running | ContainerState::Exited))
            && newest.map(|o| o.status.info.sandbox_id.as_str()) == sandbox
    };
    if counts.failed_for_good > 0 {
        return "Failed";
    }
    let initialized = model::containers(inputs.pod).iter().any(began);
    let uninitialized = counts.pending_init > 0 || counts.pending_sidecars > 0 && !initialized;
    if uninitialized || counts.waiting > 0 {
        return "Pending";
    }
    if counts.running > 0 && counts.unknown == 0 {
        return "Running";
    }
    if counts.running > 0 || counts.stopped == 0 || counts.unknown > 0 {
        return "Pending";
    }
    if !inputs.terminal && counts.stopped != counts.stopped_for_good {
        return "Running";
    }
    if counts.stopped == counts.succeeded { "Succeeded" } else { "Failed" }
}
