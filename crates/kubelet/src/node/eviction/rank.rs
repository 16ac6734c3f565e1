//! Which pod goes first, and the message that it gets. Pure. Upstream's `rankMemoryPressure` and its siblings, and `evictionMessage`.
//!
//! Invariants: a pod that uses more than it requested goes before one that does not; among these, one of lower priority goes
//! before one of higher; critical pods are never chosen.

use super::assess::Observations;
use super::thresholds::{EvictionResource, Signal, Threshold};
use super::usage::{DiskLayout, PodUsage};
use crate::pods::core::Pod;
use crate::pods::{admission, model};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

/// The pods of a node that may be evicted, and what they use, by uid.
pub struct Candidates<'a> {
    /// Those that run or are about to.
    pub pods: &'a [Arc<Pod>],
    /// What they use; a pod of which nothing is known goes first.
    pub usage: &'a HashMap<String, PodUsage>,
    /// Where their files are.
    pub layout: DiskLayout,
}

/// A pod that is to be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// Of the pod.
    pub uid: String,
    /// Seconds that its containers get to end.
    pub grace: i64,
    /// `status.message`
    pub message: String,
    /// Whether the pod gets the condition `DisruptionTarget`.
    pub disruption: bool,
    /// What was short, or which limit was exceeded, as upstream names it.
    pub signal: String,
}

/// Seconds that containers get at a hard threshold. None at all would leave them running if the kubelet ends meanwhile.
pub const AT_ONCE: i64 = 1;

impl Candidates<'_> {
    /// Those that may be evicted, the one that is evicted first in front.
    #[must_use]
    pub fn ranked(&self, signal: Signal) -> Vec<&Arc<Pod>> {
        let mut pods: Vec<&Arc<Pod>> = self.pods.iter().filter(|pod| !model::is_critical(pod)).collect();
        let priority = |pod: &Pod| model::spec(pod).priority.unwrap_or(0);
        let usage = |pod: &Pod| self.usage.get(model::uid(pod));
        match signal.resource() {
            EvictionResource::Memory => pods.sort_by_cached_key(|pod| {
                let Some(usage) = usage(pod) else { return (0, 0, Reverse(0)) };
                let over = i64::try_from(usage.memory).unwrap_or(i64::MAX) - requested(pod, "memory");
                (if over > 0 { 1 } else { 2 }, priority(pod), Reverse(over))
            }),
            EvictionResource::Pids => pods.sort_by_cached_key(|pod| match usage(pod) {
                None => (0, priority(pod), Reverse(u64::MAX)),
                Some(usage) => (0, priority(pod), Reverse(usage.processes)),
            }),
            resource => pods.sort_by_cached_key(|pod| {
                let Some(usage) = usage(pod) else { return (0, 0, Reverse(0)) };
                let used = usage.disk(self.layout.disks(signal));
                let (used, limit) = match resource {
                    EvictionResource::Inodes => (used.inodes, 0),
                    _ => (used.bytes, requested(pod, "ephemeral-storage")),
                };
                let used = i64::try_from(used).unwrap_or(i64::MAX);
                // Upstream subtracts the request of bytes from inodes as well.
                let over = used - requested(pod, "ephemeral-storage");
                (if used > limit { 1 } else { 2 }, priority(pod), Reverse(over))
            }),
        }
        pods
    }

    /// The pod to evict for the first of these thresholds, which are met.
    #[must_use]
    pub fn choose(
        &self,
        met: &[Threshold],
        observations: &Observations,
        most_grace: i64,
    ) -> Option<Eviction> {
        let threshold = met.first()?;
        let pod = *self.ranked(threshold.signal).first()?;
        let grace = match (threshold.is_hard(), model::spec(pod).termination_grace_period_seconds) {
            (true, _) => AT_ONCE,
            (false, Some(own)) => own.min(most_grace),
            (false, None) => most_grace,
        };
        let signal = threshold.signal.name().to_owned();
        let message = message(pod, self.usage.get(model::uid(pod)), met, observations);
        Some(Eviction { uid: model::uid(pod).to_owned(), grace, message, disruption: true, signal })
    }
}

fn requested(pod: &Pod, resource: &str) -> i64 {
    admission::pod_requests(pod).get(resource).copied().unwrap_or(0)
}

/// The text of an eviction for the first of these thresholds.
fn message(pod: &Pod, usage: Option<&PodUsage>, met: &[Threshold], observations: &Observations) -> String {
    let Some(resource) = met.first().map(|t| t.signal.resource()) else { return String::new() };
    let name = resource.name();
    let mut text = format!("The node was low on resource: {name}. ");
    let observed = met.iter().filter(|t| t.signal.resource() == resource);
    let observed = observed.filter_map(|t| observations.get(&t.signal).map(|o| (t, o))).next();
    // Writing to a string cannot fail.
    if let Some((threshold, observed)) = observed {
        let (least, available) =
            (resource.quantity(threshold.least.of(observed.capacity)), resource.quantity(observed.available));
        let _ = write!(text, "Threshold quantity: {least}, available: {available}. ");
    }
    let Some(usage) = usage else { return text };
    let units = |used: u64| resource.quantity(i64::try_from(used).unwrap_or(i64::MAX));
    let of_pod = model::requests(model::spec(pod).resources.as_ref()).and_then(|r| r.get("memory"));
    if let (EvictionResource::Memory, Some(request)) = (resource, of_pod) {
        let (pod, used, request) = (model::name(pod), units(usage.memory), model::quantity(request));
        let _ = write!(
            text,
            "Pod {pod} was using {used}, request is {request}, has larger consumption of {name}. "
        );
    }
    for container in &usage.containers {
        let all = model::containers(pod).iter().chain(model::init_containers(pod));
        let Some(spec) = all.into_iter().find(|c| c.name == container.name) else { continue };
        let used = match resource {
            EvictionResource::Memory => container.memory,
            EvictionResource::EphemeralStorage => (container.layer + container.logs).bytes,
            EvictionResource::Inodes | EvictionResource::Pids => continue,
        };
        let request = model::requests(spec.resources.as_ref()).and_then(|r| r.get(name)).map(model::quantity);
        let request = request.unwrap_or_else(|| resource.quantity(0));
        if units(used).cmp_i64(request.value()).is_gt() {
            let (container, used) = (&container.name, units(used));
            let _ = write!(
                text,
                "Container {container} was using {used}, request is {request}, has larger consumption of {name}. "
            );
        }
    }
    text
}

#[cfg(test)]
mod tests;
