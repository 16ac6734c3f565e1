//! Stopping containers: preStop hooks, grace periods, the order of sidecars. Upstream's `killContainer`.
//!
//! Invariants: a container gets at least [`LEAST`] to stop unless it is killed at once; what its hook takes counts; sidecars stop
//! after all other containers, in reverse order.

use super::compute::KillReason;
use super::context::NodeContext;
use super::core::{Container, Pod};
use super::hooks;
use super::model;
use super::observed::{Observed, ObservedContainer};
use futures_util::future::join_all;
use kaji_containers::RuntimeError;
use kaji_runtime::EventRecord;
use std::time::Duration;

/// Seconds that a container gets to stop at least.
const LEAST: i64 = 2;

/// The seconds that a container gets to stop.
#[must_use]
pub fn grace_seconds(pod: Option<&Pod>, found: &ObservedContainer, reason: KillReason) -> i64 {
    let probe = |c: &Container| match reason {
        KillReason::StartupProbe => c.startup_probe.as_ref().and_then(|p| p.termination_grace_period_seconds),
        KillReason::LivenessProbe => {
            c.liveness_probe.as_ref().and_then(|p| p.termination_grace_period_seconds)
        }
        KillReason::Other => None,
    };
    let spec = pod.and_then(|p| model::find_container(p, &found.name));
    let of_pod = pod.and_then(|p| p.metadata.deletion_grace_period_seconds);
    // Of a pod that the API does not show any more, what the container's annotations keep counts.
    let kept = if pod.is_none() { found.kept.deletion_grace } else { None };
    of_pod
        .or(kept)
        .or_else(|| spec.and_then(|(c, _)| probe(&c)))
        .or_else(|| pod.map(model::grace_period))
        .or(found.kept.termination_grace)
        .unwrap_or(30)
}

/// Stops one container. Without a pod what its annotations keep counts.
///
/// # Errors
/// When the runtime cannot stop it.
pub async fn container(
    cx: &NodeContext,
    pod: Option<&Pod>,
    found: &ObservedContainer,
    message: &str,
    grace: i64,
) -> Result<(), RuntimeError> {
    if let Some(pod) = pod {
        let reference = model::container_reference(pod, &found.name);
        let message = if message.is_empty() {
            format!("Stopping container {}", found.name)
        } else {
            message.to_owned()
        };
        cx.api.record(EventRecord::normal(reference, "Killing", message));
    }
    let begun = cx.clock.now();
    if grace > 0 && found.state() == kaji_containers::ContainerState::Running {
        hooks::pre_stop(cx, pod, found, Duration::from_secs(grace.unsigned_abs())).await;
    }
    let spent = cx.clock.now().duration_since(begun).as_secs();
    let left = if grace <= 0 { 0 } else { (grace - spent).max(LEAST) };
    cx.runtime.stop_container(found.id(), Duration::from_secs(left.unsigned_abs())).await
}

/// Stops all containers of a pod that run. `override_grace` wins over each container's own.
///
/// # Errors
/// The first failure; the others were tried.
pub async fn all(
    cx: &NodeContext,
    pod: Option<&Pod>,
    observed: &Observed,
    override_grace: Option<i64>,
) -> Result<(), RuntimeError> {
    let begun = cx.clock.now();
    let sidecars: Vec<&str> = pod.map_or(vec![], |p| {
        model::init_containers(p).iter().filter(|c| model::is_sidecar(c)).map(|c| c.name.as_str()).collect()
    });
    let grace =
        |c: &ObservedContainer| override_grace.unwrap_or_else(|| grace_seconds(pod, c, KillReason::Other));
    let first = observed.alive().filter(|c| !sidecars.contains(&c.name.as_str()));
    let mut results = join_all(first.map(|c| container(cx, pod, c, "", grace(c)))).await;
    for name in sidecars.iter().rev() {
        for found in observed.alive().filter(|c| c.name == *name) {
            let spent = cx.clock.now().duration_since(begun).as_secs();
            let whole = grace(found);
            let left = if whole <= 0 { 0 } else { (whole - spent).max(LEAST) };
            results.push(container(cx, pod, found, "", left).await);
        }
    }
    results.into_iter().find(Result::is_err).unwrap_or(Ok(()))
}
