//! Stopping containers: preStop hooks, grace periods, the order of sidecars. Upstream's `killContainer` and `terminationOrdering`.
//!
//! Invariants: a container gets at least [`LEAST`] seconds to stop; what its hook takes counts, and so does the wait for its turn;
//! hooks do not wait for a turn; sidecars stop after the regular containers, in reverse order, or when their time is over.

use super::compute::KillReason;
use super::context::NodeContext;
use super::core::{Container, Pod};
use super::hooks;
use super::model;
use super::observed::{Observed, ObservedContainer};
use futures_util::future::join_all;
use kaji_containers::{ContainerState, RuntimeError};
use kaji_runtime::EventRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::watch;

/// Seconds that a container gets to stop at least.
const LEAST: i64 = 2;
/// Seconds of grace of a pod that ends, at least: hooks are begun whatever was asked for.
const LEAST_OF_ENDING: i64 = 1;
/// The longest grace period that timers can represent with certainty, in seconds.
const MOST: i64 = u32::MAX as i64;

/// The order in which containers of a pod stop that are stopped together.
struct Order<'a> {
    /// The ids of those that have not stopped.
    left: watch::Sender<BTreeSet<&'a str>>,
    /// By id, those that have to stop before.
    before: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Order<'a> {
    /// Without a pod there is none.
    fn new(pod: Option<&Pod>, alive: &[&'a ObservedContainer]) -> Order<'a> {
        let ids = |name: &str| -> Vec<&'a str> {
            alive.iter().copied().filter(|c| c.name == name).map(ObservedContainer::id).collect()
        };
        let mut before = BTreeMap::new();
        if let Some(pod) = pod {
            let mut later: BTreeSet<&'a str> =
                model::containers(pod).iter().flat_map(|c| ids(&c.name)).collect();
            for sidecar in model::init_containers(pod).iter().rev().filter(|c| model::is_sidecar(c)) {
                let own = ids(&sidecar.name);
                before.extend(own.iter().map(|id| (*id, later.clone())));
                later.extend(own);
            }
        }
        let left = alive.iter().copied().map(ObservedContainer::id).collect();
        Order { left: watch::Sender::new(left), before }
    }

    /// Waits until a container may stop, but not longer than this.
    async fn turn(&self, cx: &NodeContext, id: &str, most: Duration) {
        let Some(before) = self.before.get(id) else { return };
        let mut left = self.left.subscribe();
        tokio::select! {
            biased;
            // An error would mean that the sender is gone, which this object has.
            _ = left.wait_for(|left| left.is_disjoint(before)) => {}
            () = kaji_runtime::time::sleep(&*cx.clock, most) => {}
        }
    }

    fn stopped(&self, id: &str) {
        self.left.send_modify(|left| {
            left.remove(id);
        });
    }
}

fn seconds(count: i64) -> Duration {
    Duration::from_secs(count.clamp(0, MOST).unsigned_abs())
}

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

/// Stops one container. Without a pod what its annotations keep counts. No hook is run without grace.
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
    stop(cx, pod, found, (message, grace), None).await
}

/// Stops all containers of a pod that run. The pod is started again, or has come to its end by itself.
///
/// # Errors
/// The first failure; the others were tried.
pub async fn all(cx: &NodeContext, pod: Option<&Pod>, observed: &Observed) -> Result<(), RuntimeError> {
    stop_all(cx, pod, observed, |found| grace_seconds(pod, found, KillReason::Other)).await
}

/// Stops all containers of a pod that ends. `imposed` wins over the grace period of the pod.
///
/// # Errors
/// The first failure; the others were tried.
pub async fn end(
    cx: &NodeContext,
    pod: Option<&Pod>,
    observed: &Observed,
    imposed: Option<i64>,
) -> Result<(), RuntimeError> {
    let grace = |found: &ObservedContainer| {
        let own = || grace_seconds(pod, found, KillReason::Other);
        imposed.unwrap_or_else(own).max(LEAST_OF_ENDING)
    };
    stop_all(cx, pod, observed, grace).await
}

async fn stop_all(
    cx: &NodeContext,
    pod: Option<&Pod>,
    observed: &Observed,
    grace: impl Fn(&ObservedContainer) -> i64,
) -> Result<(), RuntimeError> {
    let alive: Vec<&ObservedContainer> = observed.alive().collect();
    let order = Order::new(pod, &alive);
    let stops: Vec<_> =
        alive.iter().map(|found| stop(cx, pod, found, ("", grace(found)), Some(&order))).collect();
    join_all(stops).await.into_iter().find(Result::is_err).unwrap_or(Ok(()))
}

/// Runs the hook, waits for the container's turn, and stops it.
async fn stop(
    cx: &NodeContext,
    pod: Option<&Pod>,
    found: &ObservedContainer,
    (message, grace): (&str, i64),
    order: Option<&Order<'_>>,
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
    let left = || grace.saturating_sub(cx.clock.now().duration_since(begun).as_secs());
    if grace > 0 && found.state() == ContainerState::Running {
        hooks::pre_stop(cx, pod, found, seconds(grace)).await;
    }
    if let Some(order) = order.filter(|_| left() > 0) {
        order.turn(cx, found.id(), seconds(left())).await;
    }
    match cx.runtime.stop_container(found.id(), seconds(left().max(LEAST))).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => {
            if let Some(order) = order {
                order.stopped(found.id());
            }
            Ok(())
        }
    }
}
