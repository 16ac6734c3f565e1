//! The outcomes of probes of simulated containers: functions of the time since a container's start. Probes succeed unless annotations
//! say otherwise, after `initialDelaySeconds` and as many periods as their thresholds ask for.
//!
//! Invariants: readiness and liveness wait for the startup probe; a container without a probe has no outcome.

use super::behaviour::{self, Behaviour, When};
use super::runtime::{PodRuntime, Run, container_id};
use crate::pods::compute::ProbeResults;
use crate::pods::core::{Container, Pod, Probe};
use crate::pods::model::{self, ContainerKind};
use jiff::Timestamp;
use std::time::Duration;

/// Outcomes of now, and when the next one changes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcomes {
    /// By container id.
    pub results: ProbeResults,
    /// The next change.
    pub next: Option<Timestamp>,
}

fn number(value: Option<i32>, default: u32) -> u32 {
    value.and_then(|v| u32::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(default)
}

fn delay(probe: &Probe) -> Duration {
    Duration::from_secs(u64::from(number(probe.initial_delay_seconds, 0)))
}

/// The time between the first outcome of a kind and the one that counts.
fn failures(probe: &Probe) -> Duration {
    let period = u64::from(number(probe.period_seconds, 10));
    Duration::from_secs(period * u64::from(number(probe.failure_threshold, 3) - 1))
}

fn successes(probe: &Probe) -> Duration {
    let period = u64::from(number(probe.period_seconds, 10));
    Duration::from_secs(period * u64::from(number(probe.success_threshold, 1) - 1))
}

fn after(start: Timestamp, wait: Duration) -> Timestamp {
    start.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

/// A value that changes at given moments.
struct Schedule<'a> {
    now: Timestamp,
    next: &'a mut Option<Timestamp>,
}

impl Schedule<'_> {
    /// Whether a moment has come.
    fn reached(&mut self, at: Option<Timestamp>) -> bool {
        let Some(at) = at else { return false };
        if at > self.now {
            *self.next = Some(self.next.map_or(at, |next| next.min(at)));
        }
        at <= self.now
    }
}

/// When the startup probe succeeds, or else fails.
fn startup(probe: &Probe, behaviour: &Behaviour, start: Timestamp) -> Result<Timestamp, Timestamp> {
    let first = delay(probe);
    let gives_up = after(start, first + failures(probe));
    match behaviour.started {
        Some(When::Never) => Err(gives_up),
        Some(When::After(wait)) if after(start, wait) > gives_up => Err(gives_up),
        Some(When::After(wait)) => Ok(after(start, wait.max(first))),
        None => Ok(after(start, first)),
    }
}

/// Outcomes of the probes of all containers that run.
#[must_use]
pub fn outcomes(pod: &Pod, runtime: &PodRuntime, now: Timestamp) -> Outcomes {
    let mut outcomes = Outcomes::default();
    for (name, run) in runtime.alive() {
        let Some((container, kind)) = model::find_container(pod, name) else { continue };
        let probed =
            kind == ContainerKind::Regular || kind == ContainerKind::Init && model::is_sidecar(&container);
        if probed {
            let behaviour = behaviour::of(pod, &container, kind);
            of_container(
                &mut outcomes,
                (&container, &behaviour),
                run,
                container_id(pod, name, run.attempt),
                now,
            );
        }
    }
    outcomes
}

fn of_container(
    outcomes: &mut Outcomes,
    (container, behaviour): (&Container, &Behaviour),
    run: &Run,
    id: String,
    now: Timestamp,
) {
    let mut schedule = Schedule { now, next: &mut outcomes.next };
    let results = &mut outcomes.results;
    let mut start = run.started;
    if let Some(probe) = &container.startup_probe {
        match startup(probe, behaviour, run.started) {
            Ok(at) if schedule.reached(Some(at)) => {
                results.startup.insert(id.clone(), true);
                start = at;
            }
            Err(at) if schedule.reached(Some(at)) => {
                results.startup.insert(id, false);
                return;
            }
            // Not known yet.
            Ok(_) | Err(_) => return,
        }
    }
    if let Some(probe) = &container.readiness_probe {
        let first = after(run.started, delay(probe)).max(start);
        let ready = match behaviour.ready {
            _ if behaviour.unready => None,
            Some(When::Never) => None,
            Some(When::After(wait)) => Some(first.max(after(run.started, wait))),
            None => Some(first),
        };
        let ready = ready.map(|at| after(at, successes(probe)));
        let unready = behaviour.unready_after.map(|wait| after(run.started, wait + failures(probe)));
        let value = schedule.reached(ready) && !schedule.reached(unready);
        results.readiness.insert(id.clone(), value);
    }
    if let Some(probe) = &container.liveness_probe {
        let first = after(run.started, delay(probe)).max(start);
        let unhealthy =
            behaviour.unhealthy_after.map(|wait| after(first.max(after(run.started, wait)), failures(probe)));
        let value = !schedule.reached(unhealthy);
        results.liveness.insert(id, value);
    }
}
