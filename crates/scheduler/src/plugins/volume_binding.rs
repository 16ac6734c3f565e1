//! `VolumeBinding`: pods go where their volumes can be reached, and where volumes for claims that wait for their pod can be
//! bound or made; binding waits until these claims are bound.
//!
//! Invariants:
//! - What was reserved for a pod counts for later decisions until the informers show it, or the pod is unreserved: a volume for no
//!   other claim, a claim's node for every pod that uses the claim.
//! - A node's score is by the storage that claims take of it: of volumes that are there if any is taken, else of the capacities
//!   that drivers publish. Classes count alike.
//! - A volume is bound, and a claim given a node, by one write each that fails if the object is not as it was when it was chosen.

mod assumed;
mod bind;
mod find;
mod score;

#[cfg(test)]
mod tests;

use crate::framework::{
    Actions, BindContext, Change, Cycle, CycleState, Event, EventInterest, Filter, Hint, Outcome, Plugin,
    Points, PreBind, PreFilter, PreFiltered, PreScore, PreScored, Reads, Reserve, Resource, Score, Status,
};
use crate::plugins::Entry;
use crate::plugins::arguments::{Arguments, SHAPE, items, number};
use crate::plugins::shape::{self, Shape};
use crate::pod_info::PodInfo;
use crate::snapshot::NodeInfo;
use crate::strict::Kind;
use assumed::Assumptions;
use find::{PodClaims, PodVolumes};
use futures_util::future::BoxFuture;
use kaji_meta::field::{Error, ErrorList, Path};
use kaji_runtime::Projection;
use kaji_runtime::objects::{
    CsiDriver, CsiNode, CsiStorageCapacity, PersistentVolume, PersistentVolumeClaim, StorageClass,
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "VolumeBinding",
    weight: 1,
    arguments: Some(Arguments { fields: &[(TIMEOUT, Kind::Int64), (POINTS, SHAPE)], validate }),
    build,
};

/// Fields of the arguments.
const TIMEOUT: &str = "bindTimeoutSeconds";
const POINTS: &str = "shape";

/// Upstream's default of `bindTimeoutSeconds`.
const BIND_TIMEOUT: i64 = 600;

/// The plugin.
struct VolumeBinding {
    /// How long binding waits for the claims of a pod.
    timeout: Duration,
    /// What a node's storage scores by how much of it would be used.
    shape: Shape,
    assumed: Assumptions,
}

fn validate(args: &Value, path: &Path) -> ErrorList {
    let mut errors = vec![];
    let seconds = number(args, TIMEOUT, BIND_TIMEOUT);
    if seconds < 0 {
        let why = "invalid BindTimeoutSeconds, should not be a negative value";
        errors.push(Error::invalid(&path.child(TIMEOUT), seconds, why));
    }
    // No points, and an empty list, stand for the default.
    if items(&args[POINTS]).next().is_some() {
        errors.extend(shape::validate(&args[POINTS], &path.child(POINTS)));
    }
    errors
}

fn build(args: &Value) -> Points {
    let seconds = u64::try_from(number(args, TIMEOUT, BIND_TIMEOUT)).unwrap_or_default();
    let timeout = Duration::from_secs(seconds);
    let given = items(&args[POINTS]).next().is_some();
    let shape = if given { Shape::parse(&args[POINTS]) } else { Shape::least_used() };
    let plugin = Arc::new(VolumeBinding { timeout, shape, assumed: Assumptions::default() });
    let points = Points::of(&plugin).pre_filter(&plugin).filter(&plugin);
    points.pre_score(&plugin).score(&plugin).reserve(&plugin).pre_bind(&plugin)
}

/// The object of an event, before and after.
pub(super) fn sides<T: Projection>(event: &Event) -> (Option<Arc<T>>, Option<Arc<T>>) {
    let Change::Other(old, new) = &event.change else { return (None, None) };
    let side = |side: &Option<Arc<dyn std::any::Any + Send + Sync>>| side.clone()?.downcast::<T>().ok();
    (side(old), side(new))
}

/// Claims of the pod that came or changed.
pub(super) fn claims_of_pod(actions: Actions) -> EventInterest {
    EventInterest::hinted(Resource::Other(PersistentVolumeClaim::RESOURCE), actions, |pod, event| {
        let (_, new) = sides::<PersistentVolumeClaim>(event);
        hint(new.is_some_and(|claim| {
            claim.metadata.namespace == pod.namespace()
                && pod.claims.iter().any(|c| **c == claim.metadata.name)
        }))
    })
}

/// The same of those that its spec names: not those that are made for it.
pub(super) fn named_claims_of_pod(actions: Actions) -> EventInterest {
    EventInterest::hinted(Resource::Other(PersistentVolumeClaim::RESOURCE), actions, |pod, event| {
        let (_, new) = sides::<PersistentVolumeClaim>(event);
        hint(new.is_some_and(|claim| {
            claim.metadata.namespace == pod.namespace()
                && pod.pod.claims().any(|(name, own)| !own && name == claim.metadata.name)
        }))
    })
}

pub(super) fn hint(queue: bool) -> Hint {
    if queue { Hint::Queue } else { Hint::Skip }
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn reads(&self, reads: &mut Reads<'_>) {
        reads.read::<PersistentVolumeClaim>();
        reads.read::<PersistentVolume>();
        reads.read::<StorageClass>();
        reads.read::<CsiNode>();
        reads.read::<CsiDriver>();
        reads.read::<CsiStorageCapacity>();
    }

    fn events(&self) -> Vec<EventInterest> {
        let come = Actions::ADD | Actions::UPDATE;
        let other = |resource: &'static str| Resource::Other(resource);
        vec![
            EventInterest::hinted(other(StorageClass::RESOURCE), come, |_, event| {
                let (old, new) = sides::<StorageClass>(event);
                let topologies = |class: Arc<StorageClass>| class.allowed_topologies.clone();
                hint(old.map(topologies) != new.map(topologies))
            }),
            claims_of_pod(come),
            EventInterest::any(other(PersistentVolume::RESOURCE), come),
            EventInterest::any(Resource::Node, Actions::ADD | Actions::NODE_LABELS),
            EventInterest::any(other(CsiNode::RESOURCE), Actions::ADD),
            EventInterest::hinted(other(CsiDriver::RESOURCE), Actions::UPDATE, |_, event| {
                let (old, new) = sides::<CsiDriver>(event);
                let published = |driver: Option<Arc<CsiDriver>>| driver.and_then(|d| d.spec.storage_capacity);
                hint(published(old) == Some(true) && published(new) != Some(true))
            }),
            EventInterest::hinted(other(CsiStorageCapacity::RESOURCE), come, |_, event| {
                let (old, new) = sides::<CsiStorageCapacity>(event);
                let limit = |capacity: Option<Arc<CsiStorageCapacity>>| capacity.and_then(|c| c.limit());
                let came = old.is_none();
                hint(came || limit(new) > limit(old))
            }),
        ]
    }
}

impl PreFilter for VolumeBinding {
    fn pre_filter(&self, cycle: &Cycle<'_>, state: &mut CycleState) -> Outcome<PreFiltered> {
        if cycle.pod.claims.is_empty() {
            return Ok(PreFiltered::Skip);
        }
        let claims = PodClaims::of(&cycle.pod.pod, cycle.listers, &self.assumed.seen())?;
        if claims.waits_for_binding {
            return Err(Status::unresolvable("pod has unbound immediate PersistentVolumeClaims"));
        }
        state.put(claims);
        Ok(PreFiltered::AllNodes)
    }
}

impl Filter for VolumeBinding {
    fn filter(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Outcome {
        let claims = state.get::<PodClaims>().ok_or_else(Status::missing_state)?;
        claims.find(&node.node, cycle.listers).map(drop)
    }
}

impl PreScore for VolumeBinding {
    fn pre_score(
        &self,
        _cycle: &Cycle<'_>,
        state: &mut CycleState,
        _nodes: &[Arc<NodeInfo>],
    ) -> Outcome<PreScored> {
        // Without claims that get volumes now every node scores 0.
        let scored = state.get::<PodClaims>().is_some_and(PodClaims::binds);
        Ok(if scored { PreScored::Scored } else { PreScored::Skip })
    }
}

impl Score for VolumeBinding {
    fn score(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> i64 {
        let Some(claims) = state.get::<PodClaims>() else { return 0 };
        let found = claims.find(&node.node, cycle.listers);
        found.map_or(0, |volumes| score::of(&volumes, &self.shape))
    }
}

impl Reserve for VolumeBinding {
    fn reserve(&self, cycle: &Cycle<'_>, state: &mut CycleState, node: &str) -> Outcome {
        let Some(claims) = state.get::<PodClaims>() else { return Ok(()) };
        let found = cycle.snapshot.node(node);
        let found = found.ok_or_else(|| Status::error(format!("node {node:?} not found")))?;
        let volumes = claims.find(&found.node, cycle.listers)?;
        self.assumed.assume(cycle.pod.uid(), node, &volumes);
        state.put(volumes);
        Ok(())
    }

    fn unreserve(&self, pod: &PodInfo, _state: &mut CycleState, _node: &str) {
        self.assumed.forget(pod.uid());
    }
}

impl PreBind for VolumeBinding {
    fn skips(&self, _pod: &PodInfo, state: &CycleState, _node: &str) -> bool {
        state.get::<PodVolumes>().is_none_or(PodVolumes::is_empty)
    }

    fn pre_bind<'a>(&'a self, context: &'a BindContext, state: &'a mut CycleState) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(volumes) = state.get::<PodVolumes>() else { return Ok(()) };
            bind::bind(context, volumes, self.timeout).await?;
            // The informers show it by now.
            self.assumed.forget(context.pod.uid());
            Ok(())
        })
    }
}
