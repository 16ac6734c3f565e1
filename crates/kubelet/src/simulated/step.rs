//! What a simulated kubelet does for a pod at one moment: [`step`]. Decisions and statuses are those of real nodes
//! ([`compute::actions`], [`status::generate`]) over a [`PodRuntime`] that only records what happens.
//!
//! Invariants: a pod that has succeeded or failed never runs again; a pod is removed only after its containers have ended and its last
//! status was written; all that can happen at one moment happens in one step, so that it is one write.

use super::facts::{self, Facts};
use super::files::HostFiles;
use super::probes;
use super::runtime::PodRuntime;
use super::start;
use crate::pods::backoff::Backoff;
use crate::pods::compute::{self, Actions, KillReason, ProbeResults};
use crate::pods::core::{Pod, PodSpec, PodStatus, Probe, ResourceRequirements};
use crate::pods::memory_qos::Files;
use crate::pods::observed::Observed;
use crate::pods::resize::{self, Resizing};
use crate::pods::status::{self, Inputs as StatusInputs, Waiting};
use crate::pods::worker::Ending;
use crate::pods::{allocation, model};
use jiff::Timestamp;
use kaji_meta::random::Random;
use kaji_runtime::EventRecord;
use kaji_runtime::objects::Service;
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Rounds of a step at most; a pod that is not at rest by then is looked at again soon.
const MOST_ROUNDS: u32 = 24;
/// How soon.
const SOON: Duration = Duration::from_millis(50);
/// A deferred resize is tried again after this long.
const RESIZE: Duration = Duration::from_secs(10);
/// A container gets at least so long to stop.
const LEAST: Duration = Duration::from_secs(2);

/// What a simulated kubelet keeps of a pod.
#[derive(Debug)]
pub struct SimulatedPod {
    /// Its sandbox and containers.
    pub runtime: PodRuntime,
    pub(super) restarts: Backoff,
    pub(super) pulls: Backoff,
    pub(super) mounts: Backoff,
    pub(super) waiting: Waiting,
    /// Its volumes were mounted.
    pub(super) mounted: bool,
    /// A postStart hook that takes its time: of which container, until when.
    pub(super) hook: Option<(String, Timestamp)>,
    failed: Option<Ending>,
    /// Since when it ends.
    ending: Option<Timestamp>,
    /// An event says that there is no address for it.
    pub(super) without_address: bool,
}

/// Whether a node has room for what a pod asks for now; reason and message of a resize that waits if not.
pub type Room<'a> = dyn Fn(&Pod) -> Result<(), (String, String)> + 'a;

/// What a step is made from.
pub struct Inputs<'a> {
    /// The pod, as the API shows it.
    pub pod: &'a Pod,
    /// The node's address.
    pub host: IpAddr,
    /// The pod's addresses; none when the node has none left.
    pub addresses: &'a [IpAddr],
    /// What the pod refers to, once it was looked up.
    pub facts: Option<&'a Facts>,
    /// All services, for variables.
    pub services: &'a dyn Fn() -> Vec<Arc<Service>>,
    /// Whether the node has room for what the pod asks for now; reason and message if not.
    pub room: &'a Room<'a>,
    /// Files of the nodes.
    pub host_files: &'a HostFiles,
    /// Randomness.
    pub random: &'a dyn Random,
    /// The present.
    pub now: Timestamp,
}

/// What follows from a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// The status to write, if it differs from the API's.
    pub status: Option<PodStatus>,
    /// The pod is to be removed from the API then.
    pub remove: bool,
    /// When the next step is due; without a change there is nothing to do before.
    pub again: Option<Timestamp>,
    /// The step has to be repeated with what the pod refers to.
    pub needs_facts: bool,
}

impl SimulatedPod {
    /// As a kubelet finds it that knows the API's status only.
    #[must_use]
    pub fn restore(pod: &Pod, now: Timestamp) -> SimulatedPod {
        let runtime = PodRuntime::restore(pod, now);
        SimulatedPod {
            mounted: runtime.began(),
            runtime,
            restarts: Backoff::standard(),
            pulls: Backoff::standard(),
            mounts: Backoff::new(Duration::from_millis(500), Duration::from_secs(122)),
            waiting: Waiting::default(),
            hook: None,
            failed: None,
            ending: None,
            without_address: false,
        }
    }

    /// Plans the ends of containers that were found running.
    pub fn plan(&mut self, pod: &Pod, host_files: &HostFiles) {
        start::plan(&mut self.runtime, pod, host_files);
    }
}

/// One step: what happens at this moment, and what is to be written of it.
pub fn step(state: &mut SimulatedPod, inputs: &Inputs<'_>, events: &mut Vec<EventRecord>) -> Outcome {
    let pod = with_gates(inputs.pod);
    let mut step = Step {
        state,
        inputs,
        pod,
        events,
        outcome: Outcome::default(),
        resizing: Resizing::default(),
        whole: None,
    };
    step.state.runtime.pass(inputs.now);
    step.run();
    step.outcome
}

/// A container that is never to be ready gets a probe that decides so.
fn with_gates(pod: &Pod) -> Cow<'_, Pod> {
    let unready = |c: &crate::pods::core::Container, kind| {
        c.readiness_probe.is_none() && super::behaviour::of(pod, c, kind).unready
    };
    let regular = model::ContainerKind::Regular;
    if !model::containers(pod).iter().any(|c| unready(c, regular)) {
        return Cow::Borrowed(pod);
    }
    let mut with = pod.clone();
    for container in with.spec.iter_mut().flat_map(|s| &mut s.containers) {
        if unready(container, regular) {
            container.readiness_probe = Some(Probe::default());
        }
    }
    Cow::Owned(with)
}

pub(super) struct Step<'a, 'i> {
    pub(super) state: &'a mut SimulatedPod,
    pub(super) inputs: &'a Inputs<'i>,
    /// The pod with what it was granted.
    pub(super) pod: Cow<'i, Pod>,
    pub(super) events: &'a mut Vec<EventRecord>,
    pub(super) outcome: Outcome,
    resizing: Resizing,
    /// Of a pod that asks for other resources as a whole than it has: those that it has.
    whole: Option<ResourceRequirements>,
}

impl Step<'_, '_> {
    pub(super) fn now(&self) -> Timestamp {
        self.inputs.now
    }

    pub(super) fn again_at(&mut self, at: Timestamp) {
        self.outcome.again = Some(self.outcome.again.map_or(at, |again| again.min(at)));
    }

    pub(super) fn again_in(&mut self, wait: Duration) {
        self.again_at(self.now().saturating_add(wait).unwrap_or(Timestamp::MAX));
    }

    pub(super) fn warn(&mut self, reason: &str, message: impl Into<String>) {
        self.events.push(EventRecord::warning(model::reference(&self.pod), reason, message));
    }

    pub(super) fn observed(&self) -> Observed {
        self.state.runtime.observed(&self.pod, self.inputs.addresses)
    }

    fn run(&mut self) {
        if model::deleting(&self.pod) || model::is_terminal(&self.pod) || self.deadline() {
            return self.end();
        }
        self.grant();
        let nothing = PodStatus::default();
        let former = self.inputs.pod.status.as_ref().unwrap_or(&nothing);
        let mut rounds = 0;
        loop {
            let observed = self.observed();
            let outcomes = probes::outcomes(&self.pod, &self.state.runtime, self.now());
            let mut actions = compute::actions(&self.pod, &observed, &outcomes.results, former);
            if !actions.kill_pod && actions.reset.is_empty() {
                self.resize(&observed, &mut actions);
            }
            if !self.carry_out(actions) {
                break;
            }
            rounds += 1;
            if rounds > MOST_ROUNDS {
                self.again_in(SOON);
                break;
            }
            self.state.runtime.pass(self.now());
        }
        self.report(false);
        if let Some(at) = self.state.runtime.next_end() {
            self.again_at(at);
        }
    }

    /// Whether the pod was active for too long, or was ended for that before.
    fn deadline(&mut self) -> bool {
        if self.state.failed.is_some() {
            return true;
        }
        let Some(limit) = model::spec(&self.pod).active_deadline_seconds else { return false };
        let started =
            self.pod.status.as_ref().and_then(|s| s.start_time.as_ref()).map_or(self.now(), |t| t.0);
        let limit = Duration::from_secs(limit.max(0).unsigned_abs());
        let over = started.saturating_add(limit).unwrap_or(Timestamp::MAX);
        if self.now() < over {
            self.again_at(over);
            return false;
        }
        let message = "Pod was active on the node longer than the specified deadline".to_owned();
        self.events.push(EventRecord::normal(
            model::reference(&self.pod),
            "DeadlineExceeded",
            message.clone(),
        ));
        self.state.failed = Some(Ending { reason: "DeadlineExceeded".into(), message, ..Ending::default() });
        true
    }

    /// Stops all containers, sidecars last and in reverse order, and reports the end.
    fn end(&mut self) {
        let now = self.now();
        let since = *self.state.ending.get_or_insert(now);
        let granted =
            self.pod.metadata.deletion_grace_period_seconds.unwrap_or(model::grace_period(&self.pod));
        let granted = Duration::from_secs(granted.max(0).unsigned_abs());
        let spent = Duration::try_from(now.duration_since(since)).unwrap_or_default();
        let left =
            if granted.is_zero() { granted } else { granted.saturating_sub(spent).max(LEAST).min(granted) };
        self.stop_in_order(left);
        let alive = self.state.runtime.alive().next().is_some();
        if alive {
            if let Some(at) = self.state.runtime.next_end() {
                self.again_at(at);
            }
            return;
        }
        if let Some(sandbox) = &mut self.state.runtime.sandbox {
            sandbox.ready = false;
        }
        self.outcome.remove = model::deleting(&self.pod);
        // A pod that never began goes with its removal; its last status is for those that hold it by finalizers.
        let held = self.pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
        let began = self.state.runtime.began() || self.state.failed.is_some();
        let untold = self.outcome.remove && !began && !held;
        if !model::is_terminal(&self.pod) && !untold {
            self.report(true);
            self.outcome.again = None;
        }
    }

    /// Asks the containers to stop that are next in order. A round more is needed for those that stop at once.
    fn stop_in_order(&mut self, left: Duration) {
        loop {
            let sidecars: Vec<&str> = model::init_containers(&self.pod)
                .iter()
                .filter(|c| model::is_sidecar(c))
                .map(|c| c.name.as_str())
                .collect();
            let alive: Vec<String> = self.state.runtime.alive().map(|(name, _)| name.to_owned()).collect();
            let mut turn: Vec<&String> =
                alive.iter().filter(|name| !sidecars.contains(&name.as_str())).collect();
            if turn.is_empty() {
                let last = sidecars.iter().rev().find_map(|s| alive.iter().find(|name| name == s));
                turn.extend(last);
            }
            if turn.is_empty() {
                return;
            }
            for name in &turn {
                self.stop(name, left);
            }
            let stopped =
                |name: &&String| self.state.runtime.newest(name).is_none_or(|run| run.ended.is_some());
            if !turn.iter().all(stopped) {
                return;
            }
        }
    }

    /// Asks a container to stop, with its preStop hook.
    fn stop(&mut self, name: &str, grace: Duration) {
        let Some((container, kind)) = model::find_container(&self.pod, name) else {
            return self.state.runtime.stop(name, self.inputs.now, (Duration::ZERO, grace));
        };
        let hook =
            container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()).and_then(|h| h.sleep.as_ref());
        let hook = hook.map_or(Duration::ZERO, |s| Duration::from_secs(s.seconds.max(0).unsigned_abs()));
        let takes = super::behaviour::of(&self.pod, &container, kind).stop_after.saturating_add(hook);
        self.state.runtime.stop(name, self.inputs.now, (takes, grace));
    }

    /// Carries actions out. Whether anything has changed at this moment.
    fn carry_out(&mut self, actions: Actions) -> bool {
        let pod_grace = Duration::from_secs(model::grace_period(&self.pod).max(0).unsigned_abs());
        if !actions.reset.is_empty() {
            for id in &actions.reset {
                self.state.runtime.remove(&self.pod, id);
            }
            return true;
        }
        if actions.kill_pod {
            self.stop_in_order(pod_grace);
            if self.state.runtime.alive().next().is_some() {
                return false;
            }
            let ready =
                self.state.runtime.sandbox.as_mut().is_some_and(|s| std::mem::replace(&mut s.ready, false));
            if actions.create_sandbox.is_none() {
                return ready;
            }
        }
        let mut waits = false;
        for kill in &actions.kill {
            waits |= !self.kill(kill, pod_grace);
        }
        if waits {
            // What follows a kill waits for its end.
            return false;
        }
        let starts = !(actions.init.is_empty() && actions.regular.is_empty() && actions.ephemeral.is_empty());
        if !starts && actions.create_sandbox.is_none() {
            return !actions.kill.is_empty();
        }
        start::start(self, &actions) || !actions.kill.is_empty()
    }

    /// Kills a container for a probe, a changed definition or a resize. Whether it has ended.
    fn kill(&mut self, kill: &compute::Kill, pod_grace: Duration) -> bool {
        let stopping = self.state.runtime.newest(&kill.name).is_some_and(|run| run.stopping.is_some());
        if !stopping {
            let container = model::find_container(&self.pod, &kill.name).map(|(c, _)| c);
            let probe = container.as_ref().and_then(|c| match kill.reason {
                KillReason::LivenessProbe => c.liveness_probe.as_ref().map(|p| ("Liveness", p)),
                KillReason::StartupProbe => c.startup_probe.as_ref().map(|p| ("Startup", p)),
                KillReason::Other => None,
            });
            let reference = model::container_reference(&self.pod, &kill.name);
            if let Some((kind, _)) = probe {
                let text = format!("{kind} probe failed: as its annotation asks");
                self.events.push(EventRecord::warning(reference.clone(), "Unhealthy", text));
            }
            self.events.push(EventRecord::normal(reference, "Killing", kill.message.clone()));
            let own = probe.and_then(|(_, p)| p.termination_grace_period_seconds);
            let grace = own.map_or(pod_grace, |s| Duration::from_secs(s.max(0).unsigned_abs()));
            self.stop(&kill.name, grace);
        }
        self.state.runtime.newest(&kill.name).is_none_or(|run| run.ended.is_some())
    }

    /// What the pod runs with: what it asks for if the node has room, else what its status shows.
    fn grant(&mut self) {
        let asks = |name: &str, actual: &resize::Actual| {
            let spec = model::find_container(&self.pod, name);
            spec.is_some_and(|(c, _)| resize::Actual::of(&self.pod, &c) != *actual)
        };
        let actuals = self.state.runtime.actuals();
        self.whole = resize_of_pod(&self.pod);
        if self.whole.is_none() && !actuals.iter().any(|(name, actual)| asks(name, actual)) {
            return;
        }
        let Err(pending) = (self.inputs.room)(&self.pod) else { return };
        let mut granted = self.pod.clone().into_owned();
        let shown = granted.status.clone().unwrap_or_default();
        let lists = [shown.container_statuses, shown.init_container_statuses];
        let shown: Vec<_> = lists.into_iter().flatten().flatten().collect();
        if let Some(spec) = &mut granted.spec {
            if let Some(former) = self.whole.take() {
                spec.resources = Some(former);
            }
            let all = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
            for container in all {
                if let Some(status) = shown.iter().find(|s| s.name == container.name) {
                    container.resources.clone_from(&status.resources);
                }
            }
        }
        let known = self.pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let reported = known
            .into_iter()
            .any(|c| c.type_ == "PodResizePending" && c.message.as_ref() == Some(&pending.1));
        if !reported {
            let text = allocation::event(&format!("Pod resize {}", pending.0), &self.pod, &pending.1);
            self.warn(&format!("Resize{}", pending.0), text);
        }
        self.resizing.pending = Some(pending);
        self.pod = Cow::Owned(granted);
        self.again_in(RESIZE);
    }

    /// Gives running containers what the pod was granted; those that have to be restarted for it go into `actions`.
    fn resize(&mut self, observed: &Observed, actions: &mut Actions) {
        let actuals = self.state.runtime.actuals();
        let steps = resize::steps(&self.pod, observed, &actuals, actions, (i64::MAX, &|_| Files::new()));
        if !steps.is_empty() || self.whole.take().is_some() {
            let started = allocation::event("Pod resize started", &self.pod, "");
            let completed = allocation::event("Pod resize completed", &self.pod, "");
            for (reason, text) in [("ResizeStarted", started), ("ResizeCompleted", completed)] {
                self.events.push(EventRecord::normal(model::reference(&self.pod), reason, text));
            }
        }
        for step in steps {
            self.state.runtime.set_actual(&step.name, step.then);
        }
    }

    /// Generates the status, to be written if it differs from the API's.
    fn report(&mut self, terminal: bool) {
        let observed = self.observed();
        let outcomes = probes::outcomes(&self.pod, &self.state.runtime, self.now());
        if let Some(next) = outcomes.next {
            self.again_at(next);
        }
        self.resizing.actuals = self.state.runtime.actuals();
        self.resizing.in_progress = resize::in_progress(&self.pod, &observed, &self.resizing.actuals, None);
        let status = self.generate(&observed, &outcomes.results, terminal);
        let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        if over && observed.alive().next().is_some() {
            // Success or failure is final: it is written when no container runs any more.
            return;
        }
        let shown = self.inputs.pod.status.clone().unwrap_or_default();
        if !same(&shown, &status) {
            self.outcome.status = Some(status);
        }
    }

    fn generate(&self, observed: &Observed, results: &ProbeResults, terminal: bool) -> PodStatus {
        let empty = PodStatus::default();
        let second = Timestamp::from_second(self.now().as_second()).unwrap_or(self.now());
        status::generate(&StatusInputs {
            pod: &self.pod,
            former: self.inputs.pod.status.as_ref().unwrap_or(&empty),
            observed,
            results,
            waiting: &self.state.waiting,
            host_addresses: &[self.inputs.host],
            runtime_name: super::runtime::SCHEME,
            terminal,
            failed: self.state.failed.as_ref(),
            rejected: false,
            resizing: &self.resizing,
            now: second,
        })
    }

    /// Whether what the pod refers to has to be looked up first.
    pub(super) fn needs_facts(&mut self, variables: bool) -> bool {
        let refers = !self.state.mounted && facts::volumes_refer(&self.pod) || variables;
        self.outcome.needs_facts = refers && self.inputs.facts.is_none();
        self.outcome.needs_facts
    }
}

/// Of a running pod that asks for other processors or memory as a whole than its status shows: those that it has.
fn resize_of_pod(pod: &Pod) -> Option<ResourceRequirements> {
    let asked = model::spec(pod).resources.as_ref()?;
    let shown = pod.status.as_ref().filter(|s| s.phase.as_deref() == Some("Running"))?.resources.as_ref()?;
    let mut has = asked.clone();
    let keep = |has: &mut Option<model::Amounts>, shown: Option<&model::Amounts>| {
        for name in ["cpu", "memory"] {
            if let Some((amount, former)) =
                has.as_mut().and_then(|h| h.get_mut(name)).zip(shown.and_then(|s| s.get(name)))
            {
                amount.clone_from(former);
            }
        }
    };
    keep(&mut has.requests, shown.requests.as_ref());
    keep(&mut has.limits, shown.limits.as_ref());
    let of = |resources: &ResourceRequirements| {
        let spec = PodSpec { resources: Some(resources.clone()), ..PodSpec::default() };
        resize::Actual::of_pod(&Pod { spec: Some(spec), ..Pod::default() })
    };
    (of(&has) != of(asked)).then_some(has)
}

/// Whether two statuses say the same: the API keeps conditions in an order of its own.
fn same(a: &PodStatus, b: &PodStatus) -> bool {
    let sorted = |status: &PodStatus| {
        let mut status = status.clone();
        status.conditions.iter_mut().for_each(|c| c.sort_by(|a, b| a.type_.cmp(&b.type_)));
        status
    };
    sorted(a) == sorted(b)
}

#[cfg(test)]
mod tests;
