//! `VolumeBinding`: pods go where their volumes can be reached, and where volumes for claims that wait for their pod can be
//! bound or made; binding waits until these claims are bound.
//!
//! Invariants:
//! - What was reserved for a pod counts for later decisions until the informers show it, or the pod is unreserved: a volume for no
//!   other claim, a claim's node for every pod that uses the claim.
//! - A volume is bound, and a claim given a node, by one write each that fails if the object is not as it was when it was chosen.

mod assumed;
mod bind;
mod find;

#[cfg(test)]
mod tests;

use crate::framework::{
    Actions, BindContext, Change, Cycle, CycleState, Event, EventInterest, Filter, Hint, Outcome, Plugin,
    Points, PreBind, PreFilter, PreFiltered, Reads, Reserve, Resource, Status,
};
use crate::plugins::Entry;
use crate::plugins::arguments::{Arguments, SHAPE, items, number};
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
    weight: 0,
    arguments: Some(Arguments { fields: &[(TIMEOUT, Kind::Int64), ("shape", SHAPE)], validate }),
    build,
};

/// A field of the arguments.
const TIMEOUT: &str = "bindTimeoutSeconds";

/// Upstream's default of `bindTimeoutSeconds`.
const BIND_TIMEOUT: i64 = 600;

/// The plugin.
struct VolumeBinding {
    /// How long binding waits for the claims of a pod.
    timeout: Duration,
    assumed: Assumptions,
}

fn validate(args: &Value, path: &Path) -> ErrorList {
    let mut errors = vec![];
    let seconds = number(args, TIMEOUT, BIND_TIMEOUT);
    if seconds < 0 {
        let why = "invalid BindTimeoutSeconds, should not be a negative value";
        errors.push(Error::invalid(&path.child(TIMEOUT), seconds, why));
    }
    if !args["shape"].is_null() {
        // Upstream shows its internal type, which has names of Go.
        let point = |raw: &Value| {
            let (utilization, score) = (number(raw, "utilization", 0), number(raw, "score", 0));
            format!("{{\"Utilization\":{utilization},\"Score\":{score}}}")
        };
        let points: Vec<String> = items(&args["shape"]).map(point).collect();
        let why = "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring";
        let error = Error::invalid(&path.child("shape"), Value::Null, why);
        errors.push(error.showing(format!("[{}]", points.join(","))));
    }
    errors
}

fn build(args: &Value) -> Points {
    let seconds = u64::try_from(number(args, TIMEOUT, BIND_TIMEOUT)).unwrap_or_default();
    let timeout = Duration::from_secs(seconds);
    let plugin = Arc::new(VolumeBinding { timeout, assumed: Assumptions::default() });
    Points::of(&plugin).pre_filter(&plugin).filter(&plugin).reserve(&plugin).pre_bind(&plugin)
}

/// The object of an event, before and after.
pub(super) fn sides<T: Projection>(event: &Event) -> (Option<Arc<T>>, Option<Arc<T>>) {
    let Change::Other(old, new) = &event.change else { return (None, None) };
    let side = |side: &Option<Arc<dyn std::any::Any + Send + Sync>>| side.clone()?.downcast::<T>().ok();
    (side(old), side(new))
}

/// Claims of the pod that came or changed.
pub(super) fn claims_of_pod() -> EventInterest {
    let resource = Resource::Other(PersistentVolumeClaim::RESOURCE);
    EventInterest::hinted(resource, Actions::ADD | Actions::UPDATE, |pod, event| {
        let (_, new) = sides::<PersistentVolumeClaim>(event);
        let own = new.is_some_and(|claim| {
            claim.metadata.namespace == pod.namespace()
                && pod.claims.iter().any(|c| **c == claim.metadata.name)
        });
        if own { Hint::Queue } else { Hint::Skip }
    })
}

fn hint(queue: bool) -> Hint {
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
            claims_of_pod(),
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
