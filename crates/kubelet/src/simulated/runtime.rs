//! The sandbox and containers of one simulated pod: what a container runtime would show of it.
//!
//! Invariants: a container of a name runs at most once; of each, the last two runs are kept; a run that has ended stays as it is;
//! what is restored from a status shows the same status.

use super::behaviour::Exit;
use crate::pods::core::{Container, ContainerStatus as ApiStatus, Pod, PodStatus};
use crate::pods::labels::Kept;
use crate::pods::model;
use crate::pods::observed::{Observed, ObservedContainer};
use crate::pods::resize::{Actual, Actuals};
use jiff::Timestamp;
use kaji_containers::{
    ContainerInfo, ContainerMetadata, ContainerState, ContainerStatus, ImageSpec, NamespaceMode,
    PodSandboxInfo, PodSandboxMetadata, PodSandboxState, PodSandboxStatus, SandboxSecurity,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The scheme of container ids and images.
pub const SCHEME: &str = "simulated";
/// Runs of a container that are kept.
const MOST_RUNS: usize = 2;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// When.
    pub at: Timestamp,
    /// With which code.
    pub code: i32,
    /// Why, if that does not follow from the code.
    pub reason: Box<str>,
}

impl Ended {
    /// `Completed`, `Error`, `OOMKilled`.
    #[must_use]
    pub fn reason(&self) -> &str {
        match (&*self.reason, self.code) {
            ("", 0) => "Completed",
            ("", _) => "Error",
            (reason, _) => reason,
        }
    }
}

/// One run of a container.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// How many came before.
    pub attempt: u32,
    /// The attempt of its sandbox.
    pub sandbox: u32,
    /// See [`model::container_hash`].
    pub hash: u64,
    /// When it was started.
    pub started: Timestamp,
    /// When and how it ends by itself.
    pub planned: Option<Box<Ended>>,
    /// It was asked to stop; when and how it ends of that.
    pub stopping: Option<Box<(Timestamp, Ended)>>,
    /// It has ended. Most runs have not, and there are very many: what they lack takes no room.
    pub ended: Option<Box<Ended>>,
    /// It ends by SIGKILL only.
    pub deaf: bool,
    /// It has ended, and a start was tried since.
    pub followed: bool,
    /// What it prints.
    pub stdout: Box<str>,
    /// The termination message.
    pub message: Box<str>,
    /// The resources that it runs with.
    pub actual: Actual,
}

impl Run {
    /// When it will have ended, as far as that is known.
    #[must_use]
    pub fn ends_at(&self) -> Option<Timestamp> {
        let stopping = self.stopping.as_ref().map(|stopping| stopping.1.at);
        self.planned.iter().map(|planned| planned.at).chain(stopping).min()
    }

    /// Plans its end.
    pub fn plan(&mut self, exit: Option<Exit>) {
        let ended = |exit: Exit| Ended {
            at: self.started.saturating_add(exit.after).unwrap_or(Timestamp::MAX),
            code: exit.code,
            reason: exit.reason.into(),
        };
        self.planned = exit.map(|exit| Box::new(ended(exit)));
    }

    fn pass(&mut self, now: Timestamp) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let stopping = self.stopping.as_deref().map(|(_, ended)| ended);
        let first = self.planned.as_deref().into_iter().chain(stopping).min_by_key(|ended| ended.at);
        self.ended = first.filter(|ended| ended.at <= now).map(|ended| Box::new(ended.clone()));
        self.ended.is_some()
    }
}

/// The runs of a container, newest first.
#[derive(Debug, Clone, PartialEq)]
struct Runs {
    name: Box<str>,
    next_attempt: u32,
    runs: Vec<Run>,
}

/// The sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sandbox {
    /// How many came before.
    pub attempt: u32,
    /// Whether containers can be started in it.
    pub ready: bool,
    /// When it was made.
    pub created: Timestamp,
}

/// A pod's sandbox and containers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodRuntime {
    /// The newest sandbox.
    pub sandbox: Option<Sandbox>,
    containers: Vec<Runs>,
    /// Files in its volumes and containers, see [`super::files`].
    pub files: BTreeMap<String, String>,
}

fn nanos(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX)
}

/// The id of a container's run.
#[must_use]
pub fn container_id(pod: &Pod, name: &str, attempt: u32) -> String {
    format!("{}-{name}-{attempt}", model::uid(pod))
}

impl PodRuntime {
    /// The newest run of a container.
    #[must_use]
    pub fn newest(&self, name: &str) -> Option<&Run> {
        self.runs(name).first()
    }

    /// The runs of a container, newest first.
    #[must_use]
    pub fn runs(&self, name: &str) -> &[Run] {
        self.containers.iter().find(|c| &*c.name == name).map_or(&[], |c| &c.runs)
    }

    fn newest_mut(&mut self, name: &str) -> Option<&mut Run> {
        self.containers.iter_mut().find(|c| &*c.name == name)?.runs.first_mut()
    }

    /// Names of the containers that run, with their runs.
    pub fn alive(&self) -> impl Iterator<Item = (&str, &Run)> {
        let newest = self.containers.iter().filter_map(|c| Some((&*c.name, c.runs.first()?)));
        newest.filter(|(_, run)| run.ended.is_none())
    }

    /// Whether any container was ever started.
    #[must_use]
    pub fn began(&self) -> bool {
        !self.containers.is_empty()
    }

    /// Lets time pass: runs that are due end.
    pub fn pass(&mut self, now: Timestamp) {
        for run in self.containers.iter_mut().filter_map(|c| c.runs.first_mut()) {
            run.pass(now);
        }
    }

    /// When the next run ends.
    #[must_use]
    pub fn next_end(&self) -> Option<Timestamp> {
        self.alive().filter_map(|(_, run)| run.ends_at()).min()
    }

    /// The number of a container's next run.
    #[must_use]
    pub fn next_attempt(&self, name: &str) -> u32 {
        self.containers.iter().find(|c| &*c.name == name).map_or(0, |c| c.next_attempt)
    }

    /// A container runs.
    pub fn start(&mut self, name: &str, run: Run) {
        let next_attempt = run.attempt + 1;
        match self.containers.iter_mut().find(|c| &*c.name == name) {
            Some(container) => {
                container.runs.truncate(MOST_RUNS - 1);
                container.runs.insert(0, run);
                container.next_attempt = next_attempt;
            }
            None => self.containers.push(Runs { name: name.into(), next_attempt, runs: vec![run] }),
        }
    }

    /// Plans the end of a container that runs.
    pub fn plan(&mut self, name: &str, exit: Option<Exit>, deaf: bool) {
        if let Some(run) = self.newest_mut(name) {
            run.plan(exit);
            run.deaf = deaf;
        }
    }

    /// Asks a container to stop, which it does within `takes`, and is killed after `grace`. One that stops already stops earlier if
    /// this one would.
    pub fn stop(&mut self, name: &str, now: Timestamp, (takes, grace): (Duration, Duration)) {
        let Some(run) = self.newest_mut(name).filter(|run| run.ended.is_none()) else { return };
        let killed = takes > grace || run.deaf;
        let at = now.saturating_add(takes.min(grace)).unwrap_or(Timestamp::MAX);
        let (since, former) =
            run.stopping.as_deref().map_or((now, None), |(since, ended)| (*since, Some(ended.at)));
        if former.is_none_or(|former| at < former) {
            let ended = Ended { at, code: if killed { 137 } else { 0 }, reason: "".into() };
            run.stopping = Some(Box::new((since, ended)));
        }
        run.pass(now);
    }

    /// Whether the newest run of a container has ended because it was asked to, and this is the first start that is tried since.
    pub fn was_stopped(&mut self, name: &str) -> bool {
        let ended = self.newest_mut(name).filter(|run| run.ended.is_some());
        ended.is_some_and(|run| !std::mem::replace(&mut run.followed, true) && run.stopping.is_some())
    }

    /// The machine has lost all that ran.
    pub fn crash(&mut self, now: Timestamp) {
        self.pass(now);
        for run in self.containers.iter_mut().filter_map(|c| c.runs.first_mut()).filter(|r| r.ended.is_none())
        {
            run.ended = Some(Box::new(Ended { at: now, code: 255, reason: "Unknown".into() }));
        }
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.ready = false;
        }
    }

    /// Removes a run, whether it has ended or not; the container's next run still counts it.
    pub fn remove(&mut self, pod: &Pod, id: &str) {
        for container in &mut self.containers {
            container.runs.retain(|run| container_id(pod, &container.name, run.attempt) != id);
        }
    }

    /// What running containers run with.
    #[must_use]
    pub fn actuals(&self) -> Actuals {
        self.alive().map(|(name, run)| (name.to_owned(), run.actual)).collect()
    }

    /// A running container runs with other resources from now on.
    pub fn set_actual(&mut self, name: &str, actual: Actual) {
        if let Some(run) = self.newest_mut(name) {
            run.actual = actual;
        }
    }

    /// What the kubelet sees of it. `addresses` are the pod's, none in the node's network.
    #[must_use]
    pub fn observed(&self, pod: &Pod, addresses: &[IpAddr]) -> Observed {
        let mut observed = Observed::default();
        if let Some(sandbox) = self.sandbox {
            observed.sandboxes.push(sandbox_status(pod, sandbox, addresses));
        }
        for container in &self.containers {
            let spec = model::find_container(pod, &container.name);
            let image = spec.and_then(|(c, _)| c.image).unwrap_or_default();
            let runs = container.runs.iter().map(|run| observe(pod, &container.name, &image, run));
            observed.containers.extend(runs);
        }
        observed.sort();
        observed
    }

    /// From the status that the API shows, as a kubelet that was started anew finds it.
    #[must_use]
    pub fn restore(pod: &Pod, now: Timestamp) -> PodRuntime {
        let mut runtime = PodRuntime::default();
        let Some(status) = &pod.status else { return runtime };
        for shown in statuses(status) {
            let spec = model::find_container(pod, &shown.name).map(|(c, _)| c);
            let runs = restored_runs(pod, shown, spec.as_ref(), now);
            if !runs.is_empty() {
                let next_attempt = runs[0].attempt + 1;
                runtime.containers.push(Runs { name: shown.name.as_str().into(), next_attempt, runs });
            }
        }
        runtime.containers.shrink_to_fit();
        if runtime.began() || status.pod_ip.is_some() && !model::host_network(pod) {
            let created = status.start_time.as_ref().map_or(now, |t| t.0);
            runtime.sandbox = Some(Sandbox { attempt: 0, ready: !model::is_terminal(pod), created });
        }
        runtime
    }
}

fn statuses(status: &PodStatus) -> impl Iterator<Item = &ApiStatus> {
    let lists =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten()
}

fn restored_runs(pod: &Pod, shown: &ApiStatus, spec: Option<&Container>, now: Timestamp) -> Vec<Run> {
    let count = u32::try_from(shown.restart_count).unwrap_or(0);
    let as_shown =
        Container { name: shown.name.clone(), image: Some(shown.image.clone()), ..Container::default() };
    let resources = shown.resources.clone().or_else(|| spec.and_then(|c| c.resources.clone()));
    let actual = Actual::of(pod, &Container { resources, ..Container::default() });
    let run = |attempt: u32, started: Option<Timestamp>, ended: Option<Ended>| Run {
        attempt,
        sandbox: 0,
        hash: model::container_hash(&as_shown),
        started: started.or(ended.as_ref().map(|e| e.at)).unwrap_or(now),
        planned: None,
        stopping: None,
        ended: ended.map(Box::new),
        deaf: false,
        followed: false,
        stdout: "".into(),
        message: "".into(),
        actual,
    };
    let terminated = |state: Option<&crate::pods::core::ContainerState>, attempt: u32| {
        let terminated = state?.terminated.as_ref()?;
        let at = terminated.finished_at.as_ref().map_or(now, |t| t.0);
        let reason =
            terminated.reason.as_deref().filter(|r| !matches!(*r, "Completed" | "Error")).unwrap_or_default();
        let ended = Ended { at, code: terminated.exit_code, reason: reason.into() };
        let mut run = run(attempt, terminated.started_at.as_ref().map(|t| t.0), Some(ended));
        run.message = terminated.message.as_deref().unwrap_or_default().into();
        Some(run)
    };
    let state = shown.state.as_ref();
    let running = state.and_then(|s| s.running.as_ref());
    let newest = running
        .map(|r| run(count, r.started_at.as_ref().map(|t| t.0), None))
        .or_else(|| terminated(state, count));
    let waits = newest.is_none();
    let before = terminated(shown.last_state.as_ref(), if waits { count } else { count.saturating_sub(1) });
    let mut runs: Vec<Run> = newest.into_iter().chain(before).collect();
    runs.shrink_to_fit();
    runs
}

fn sandbox_id(pod: &Pod, attempt: u32) -> String {
    format!("{}-{attempt}", model::uid(pod))
}

fn sandbox_status(pod: &Pod, sandbox: Sandbox, addresses: &[IpAddr]) -> PodSandboxStatus {
    let mut security = SandboxSecurity::default();
    let host = model::host_network(pod);
    security.namespaces.network = if host { NamespaceMode::Node } else { NamespaceMode::Pod };
    PodSandboxStatus {
        info: PodSandboxInfo {
            id: sandbox_id(pod, sandbox.attempt),
            metadata: PodSandboxMetadata { attempt: sandbox.attempt, ..PodSandboxMetadata::default() },
            state: if sandbox.ready { PodSandboxState::Ready } else { PodSandboxState::NotReady },
            created_at_nanos: nanos(sandbox.created),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            runtime_handler: String::new(),
        },
        addresses: if host { vec![] } else { addresses.to_vec() },
        network_namespace: None,
        security,
    }
}

fn observe(pod: &Pod, name: &str, image: &str, run: &Run) -> ObservedContainer {
    let ended = run.ended.as_ref();
    ObservedContainer {
        name: name.to_owned(),
        kept: Kept { hash: run.hash, restart_count: run.attempt, ..Kept::default() },
        message: run.message.to_string(),
        status: ContainerStatus {
            info: ContainerInfo {
                id: container_id(pod, name, run.attempt),
                sandbox_id: sandbox_id(pod, run.sandbox),
                metadata: ContainerMetadata { name: name.to_owned(), attempt: run.attempt },
                image: ImageSpec { user_specified: image.to_owned(), ..ImageSpec::default() },
                image_id: String::new(),
                state: if ended.is_some() { ContainerState::Exited } else { ContainerState::Running },
                created_at_nanos: nanos(run.started),
                labels: BTreeMap::new(),
                annotations: BTreeMap::new(),
            },
            started_at_nanos: nanos(run.started),
            finished_at_nanos: ended.map_or(0, |e| nanos(e.at)),
            exit_code: ended.map_or(0, |e| e.code),
            image_ref: format!("{SCHEME}://{image}"),
            reason: ended.map_or_else(String::new, |e| e.reason().to_owned()),
            message: String::new(),
            mounts: vec![],
            log_path: String::new(),
            resources: Default::default(),
            user: None,
            stop_signal: String::new(),
            pid: 0,
        },
    }
}
