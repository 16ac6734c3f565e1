//! The score of a node by how much of its storage a pod's claims would use. Pure.
//!
//! Invariant: each class counts once, however many claims are of it; what is not known of is left out.

use super::find::PodVolumes;
use crate::plugins::shape::Shape;
use std::collections::HashMap;

/// What is requested of a class's storage, and what there is.
type ByClass<'a> = HashMap<&'a str, (i64, i64)>;

/// The score of a node where the claims get these volumes.
pub(super) fn of(volumes: &PodVolumes, shape: &Shape) -> i64 {
    let classes = if volumes.bindings.is_empty() { of_new(volumes) } else { of_present(volumes) };
    let count = i64::try_from(classes.len()).unwrap_or(i64::MAX);
    if count == 0 {
        return 0;
    }
    let sum: i64 = classes.values().map(|(requested, capacity)| shape.score(*requested, *capacity)).sum();
    (2 * sum + count) / (2 * count)
}

/// Volumes that are there: each has its own capacity.
fn of_present(volumes: &PodVolumes) -> ByClass<'_> {
    let mut classes = ByClass::new();
    for (volume, claim) in &volumes.bindings {
        let (requested, capacity) = classes.entry(claim.class()).or_default();
        *requested = requested.saturating_add(claim.spec.request().value());
        *capacity = capacity.saturating_add(volume.storage().map_or(0, |storage| storage.value()));
    }
    classes
}

/// Volumes that are to be made: those of a class share the capacity that its driver publishes.
fn of_new(volumes: &PodVolumes) -> ByClass<'_> {
    let mut classes = ByClass::new();
    for provision in &volumes.provisions {
        let Some(published) = provision.capacity else { continue };
        let (requested, capacity) = classes.entry(provision.claim.class()).or_default();
        *requested = requested.saturating_add(provision.claim.spec.request().value());
        *capacity = published;
    }
    classes
}
