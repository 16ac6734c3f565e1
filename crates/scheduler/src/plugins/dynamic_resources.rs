//! `DynamicResources`: pods go where the devices are that their claims ask for; the devices are allocated with the pod's node.
//!
//! Invariants:
//! - What was found for a pod counts for later decisions until the informers show it, or the pod is unreserved.
//! - A claim is allocated and reserved before the pod is bound; a pod that is not bound gives its reservations back.
//!
//! Source: KEP-4381 and those that build on it: prioritized alternatives (4816), partitionable devices (4815), taints (5055),
//! consumable capacity (5075), binding conditions (5007), extended resources (5004).

mod claims;
mod extended;
mod ledger;
#[cfg(test)]
mod tests;
mod write;

use crate::{
    devices::{AllocationError, Claim, DeviceRequests, Limit, Selectors, allocate},
    framework::{
        Actions, BindContext, Cycle, CycleState, Event, EventInterest, Filter, Hint, Listers, NodeStatuses,
        Nomination, Outcome, Plugin, Points, PostFilter, PostFiltered, PreBind, PreEnqueue, PreFilter,
        PreFiltered, PreScore, PreScored, Profile, Reads, Reserve, Resource, Score, Status,
        points::scale_scores,
    },
    node_selector::NodeSelector,
    plugins::{Entry, arguments::Arguments, volume_binding::sides},
    pod_info::PodInfo,
    snapshot::NodeInfo,
    strict::Kind,
};
use extended::{Extended, Wanted};
use futures_util::future::BoxFuture;
use kaji_meta::field::{Error, ErrorList, Path};
use kaji_runtime::{
    PatchKind, Projection, Target,
    objects::{DeviceAllocation, DeviceClass, DeviceTaintRule, Pod, ResourceClaim, ResourceSlice},
};
use ledger::{Ledger, LedgerSnapshot};
use serde_json::{Value, json};
use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "DynamicResources",
    weight: 2,
    arguments: Some(Arguments { fields: &[(FILTER, Kind::Duration), (BINDING, Kind::Duration)], validate }),
    build,
};

/// Fields of the arguments.
const FILTER: &str = "filterTimeout";
const BINDING: &str = "bindingTimeout";

/// Upstream's defaults.
const FILTER_TIMEOUT: Duration = Duration::from_secs(10);
const BINDING_TIMEOUT: Duration = Duration::from_secs(600);
/// Devices that are tried on one node.
const STEPS: u64 = 1_000_000;
/// Upstream's `FirstAvailableDeviceRequestMaxSize`.
const MAX_ALTERNATIVES: i64 = 8;

struct DynamicResources {
    /// How long the search on one node may take; zero for as long as it takes.
    filter_timeout: Duration,
    /// How long binding waits for devices that need preparation.
    binding_timeout: Duration,
    ledger: Ledger,
    selectors: Selectors,
}

/// The nanoseconds of a duration, if it is given.
fn nanoseconds(args: &Value, field: &str) -> Option<i64> {
    kaji_meta::duration::parse(args[field].as_str()?).ok()
}

fn validate(args: &Value, path: &Path) -> ErrorList {
    const SECOND: i64 = 1_000_000_000;
    let mut errors = vec![];
    for (field, least, why) in
        [(FILTER, 0, "must be zero or positive"), (BINDING, SECOND, "must be at least 1 second")]
    {
        if let Some(given) = nanoseconds(args, field).filter(|given| *given < least) {
            let given = kaji_meta::duration::format_nanoseconds(given.into());
            errors.push(Error::invalid(&path.child(field), given, why));
        }
    }
    errors
}

fn build(args: &Value) -> Points {
    let timeout = |field: &str, default: Duration| {
        let given = nanoseconds(args, field).and_then(|given| u64::try_from(given).ok());
        given.map_or(default, Duration::from_nanos)
    };
    let (filter_timeout, binding_timeout) =
        (timeout(FILTER, FILTER_TIMEOUT), timeout(BINDING, BINDING_TIMEOUT));
    let plugin = Arc::new(DynamicResources {
        filter_timeout,
        binding_timeout,
        ledger: Ledger::default(),
        selectors: Selectors::default(),
    });
    Points::of(&plugin)
        .pre_enqueue(&plugin)
        .pre_filter(&plugin)
        .filter(&plugin)
        .post_filter(&plugin)
        .pre_score(&plugin)
        .score(&plugin)
        .reserve(&plugin)
        .pre_bind(&plugin)
}

/// What was found on one node.
struct Found {
    /// For the claims that have to be allocated, in order; then for the one that stands for extended resources.
    allocations: Vec<Arc<DeviceAllocation>>,
    extended: Option<Arc<Wanted>>,
}

#[derive(Default)]
struct Findings {
    /// Claims that have an allocation of no use on some node.
    unavailable: BTreeSet<usize>,
    by_node: HashMap<String, Arc<Found>>,
}

/// A pod's claims, and what filtering finds. Copies share it.
#[derive(Clone)]
struct PodDevices(Arc<Inner>);

struct Inner {
    seen: LedgerSnapshot,
    claims: Vec<Arc<ResourceClaim>>,
    /// The nodes of claims that are allocated.
    reach: Vec<Option<NodeSelector>>,
    /// The claims that have to be allocated.
    to_allocate: Vec<usize>,
    /// What these ask for.
    requested: Option<DeviceRequests>,
    extended: Option<Extended>,
    findings: Mutex<Findings>,
}

/// What is to be written for a pod that has its node.
#[derive(Clone)]
struct Reserved {
    claims: Vec<Arc<ResourceClaim>>,
    /// The allocations of those that have none, by their places.
    allocations: Vec<(usize, Arc<DeviceAllocation>)>,
    extended: Option<(Arc<Wanted>, Arc<DeviceAllocation>)>,
    /// What was written: claims that were reserved, and the one for extended resources.
    reserved: Vec<Arc<ResourceClaim>>,
    made: Option<Arc<ResourceClaim>>,
}

/// What the ledger knows the claim for a pod's extended resources by until it is made.
fn pending_uid(pod: &str) -> String {
    format!("{pod}/extended-resources")
}

fn unresolvable(text: impl Into<String>) -> Status {
    Status::unresolvable(text.into())
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn reads(&self, reads: &mut Reads<'_>) {
        reads.read::<ResourceClaim>();
        reads.read::<DeviceClass>();
        reads.read::<ResourceSlice>();
        reads.read::<DeviceTaintRule>();
    }

    fn events(&self) -> Vec<EventInterest> {
        let come = Actions::ADD | Actions::UPDATE;
        let node = Actions::ADD | Actions::NODE_LABELS | Actions::NODE_ALLOCATABLE;
        vec![
            EventInterest::any(Resource::Node, node),
            EventInterest::hinted(
                Resource::Other(ResourceClaim::RESOURCE),
                come | Actions::DELETE,
                claim_changed,
            ),
            EventInterest::any(Resource::UnscheduledPod, Actions::POD_CLAIMS),
            EventInterest::any(Resource::Other(DeviceClass::RESOURCE), come),
            EventInterest::any(Resource::Other(ResourceSlice::RESOURCE), come),
            EventInterest::any(Resource::Other(DeviceTaintRule::RESOURCE), Actions::UPDATE | Actions::DELETE),
        ]
    }
}

/// A claim that lost its devices, or is gone with them, helps any pod; another change the pods that use the claim.
fn claim_changed(pod: &PodInfo, event: &Event) -> Hint {
    let (old, new) = sides::<ResourceClaim>(event);
    let had_devices = old.as_ref().is_some_and(|old| old.status.allocation.is_some());
    let Some(new) = new else { return if had_devices { Hint::Queue } else { Hint::Skip } };
    let own = new.metadata.namespace == pod.namespace()
        && pod.pod.device_claims().any(|name| name == new.metadata.name);
    let changed = old.is_none_or(|old| old.status != new.status);
    let helps = (had_devices && new.status.allocation.is_none()) || (own && changed);
    if helps { Hint::Queue } else { Hint::Skip }
}

impl PreEnqueue for DynamicResources {
    fn pre_enqueue(&self, pod: &PodInfo, listers: &Listers) -> Outcome {
        if pod.pod.spec.resource_claims.is_empty() {
            return Ok(());
        }
        claims::of_pod(&pod.pod, &listers.get()).map(drop).map_err(unresolvable)
    }
}

impl PreFilter for DynamicResources {
    fn pre_filter(&self, cycle: &Cycle<'_>, state: &mut CycleState) -> Outcome<PreFiltered> {
        let needs = &cycle.pod.request.other;
        if cycle.pod.pod.spec.resource_claims.is_empty() && needs.is_empty() {
            return Ok(PreFiltered::Skip);
        }
        let seen = self.ledger.snapshot(cycle.listers);
        let claims = claims::of_pod(&cycle.pod.pod, &seen.claims).map_err(unresolvable)?;
        let extended = Extended::of(cycle.pod, &seen);
        if claims.is_empty() && extended.is_none() {
            return Ok(PreFiltered::Skip);
        }
        let (mut reach, mut to_allocate, mut wanted) = (vec![], vec![], vec![]);
        for (place, claim) in claims.iter().enumerate() {
            let allocation = claim.status.allocation.as_ref();
            let selector = allocation.and_then(|allocation| allocation.node_selector.as_ref());
            reach.push(selector.map(NodeSelector::parse));
            if allocation.is_some() {
                continue;
            }
            let name = claim.metadata.key().to_string();
            if seen.is_pending(&claim.metadata.uid) {
                return Err(unresolvable(format!(
                    "resource claim {name} is in the process of being allocated"
                )));
            }
            classes_exist(claim, &seen)?;
            to_allocate.push(place);
            wanted.push(Claim { name, spec: Arc::new(claim.spec.devices.clone()) });
        }
        let requested = match wanted.is_empty() {
            true => None,
            false => {
                Some(DeviceRequests::new(wanted, &seen.classes, &self.selectors).map_err(Status::error)?)
            }
        };
        let findings = Mutex::default();
        let inner = Inner { seen, claims, reach, to_allocate, requested, extended, findings };
        state.put(PodDevices(Arc::new(inner)));
        Ok(PreFiltered::AllNodes)
    }
}

fn classes_exist(claim: &ResourceClaim, seen: &LedgerSnapshot) -> Outcome {
    for request in &claim.spec.devices.requests {
        let only =
            request.exactly.iter().map(|exactly| (request.name.to_string(), &exactly.device_class_name));
        let several = request.first_available.iter().map(|alternative| {
            (format!("{}/{}", request.name, alternative.name), &alternative.device_class_name)
        });
        for (name, class) in only.chain(several) {
            if !class.is_empty() && seen.classes.get("", class).is_none() {
                return Err(unresolvable(format!("request {name}: device class {class} does not exist")));
            }
        }
    }
    Ok(())
}

impl Filter for DynamicResources {
    fn filter(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Outcome {
        let Some(PodDevices(pod)) = state.get::<PodDevices>() else { return Err(Status::missing_state()) };
        let mut wanted = None;
        if let Some(extended) = &pod.extended {
            if extended.left.is_some() {
                return Err(unresolvable("cannot schedule extended resource claim"));
            }
            wanted = extended.wanted(&cycle.pod.pod, &node.node, &pod.seen.classes);
        }
        let unavailable: Vec<usize> = (0..pod.claims.len())
            .filter(|place| {
                let (claim, reach) = (&pod.claims[*place], &pod.reach[*place]);
                let unreached = reach.as_ref().is_some_and(|selector| !selector.matches(&node.node));
                unreached || (claim.status.allocation.is_some() && self.cannot_be_bound(claim, cycle.now))
            })
            .collect();
        let found = match pod.requested.is_some() || wanted.is_some() {
            true => Some(self.search(cycle, pod, node, wanted)?),
            false => None,
        };
        let mut findings = pod.findings.lock().unwrap_or_else(PoisonError::into_inner);
        if !unavailable.is_empty() {
            findings.unavailable.extend(unavailable);
            return Err(unresolvable("resourceclaim not available on the node"));
        }
        if let Some(found) = found {
            findings.by_node.insert(node.name().to_owned(), Arc::new(found));
        }
        Ok(())
    }
}

impl DynamicResources {
    /// Whether the devices of an allocated claim cannot be prepared, or were waited for too long.
    fn cannot_be_bound(&self, claim: &ResourceClaim, now: jiff::Timestamp) -> bool {
        match claims::ready_for_binding(claim) {
            Err(_) => true,
            Ok(ready) => !ready && claims::binding_timed_out(claim, self.binding_timeout, now),
        }
    }

    fn search(
        &self,
        cycle: &Cycle<'_>,
        pod: &Inner,
        node: &NodeInfo,
        extended: Option<Arc<Wanted>>,
    ) -> Outcome<Found> {
        let with_extended = match &extended {
            None => None,
            Some(wanted) => {
                let mut claims =
                    pod.requested.as_ref().map_or_else(Vec::new, |requested| requested.claims.clone());
                claims.push(wanted.claim(cycle.pod));
                let requested = DeviceRequests::new(claims, &pod.seen.classes, &self.selectors);
                Some(requested.map_err(Status::error)?)
            }
        };
        let Some(requested) = with_extended.as_ref().or(pod.requested.as_ref()) else {
            return Ok(Found { allocations: vec![], extended: None });
        };
        let began = Instant::now();
        let expired = || !self.filter_timeout.is_zero() && began.elapsed() > self.filter_timeout;
        let limit = Limit { steps: STEPS, expired: &expired };
        let seen = &pod.seen;
        match allocate(requested, &seen.inventory, &seen.usage, &node.node, cycle.random, &limit) {
            Ok(Some(found)) => Ok(Found { allocations: found.into_iter().map(Arc::new).collect(), extended }),
            Ok(None) => Err(unresolvable("cannot allocate all claims")),
            Err(error @ AllocationError::InvalidPools) => Err(unresolvable(error.to_string())),
            Err(error @ AllocationError::TookTooLong) => {
                Err(Status::error(format!("node {}: {error}", node.name())))
            }
            Err(AllocationError::Wrong(error)) => Err(Status::error(error)),
        }
    }
}

impl PostFilter for DynamicResources {
    fn post_filter(
        &self,
        _profile: &Profile,
        cycle: &Cycle<'_>,
        state: &CycleState,
        _statuses: &NodeStatuses,
    ) -> PostFiltered {
        let decided = |reasons: Vec<Cow<'static, str>>, writes| PostFiltered {
            nomination: Nomination::Keep,
            victims: vec![],
            candidates: vec![],
            writes,
            status: Err(Status { reasons: reasons.into(), ..Status::unschedulable("") }),
        };
        // Nothing is said where nothing can be done.
        let Some(PodDevices(pod)) = state.get::<PodDevices>() else { return decided(vec![], vec![]) };
        let findings = pod.findings.lock().unwrap_or_else(PoisonError::into_inner);
        let free = |claim: &&Arc<ResourceClaim>| match claim.status.reserved_for.as_slice() {
            [] => true,
            [only] => only.uid == cycle.pod.uid(),
            _ => false,
        };
        let claims: Vec<_> =
            findings.unavailable.iter().map(|place| &pod.claims[*place]).filter(free).collect();
        if !claims.is_empty() {
            // There is no better heuristic than chance.
            let chosen = usize::try_from(cycle.random.u64() % claims.len() as u64).unwrap_or_default();
            return decided(
                vec!["deallocation of ResourceClaim completed".into()],
                vec![write::deallocation(claims[chosen])],
            );
        }
        match pod.extended.as_ref().and_then(|extended| extended.left.as_ref()) {
            Some(left) => {
                decided(vec!["deletion of ResourceClaim completed".into()], write::deletion(left).into())
            }
            None => decided(vec![], vec![]),
        }
    }
}

impl PreScore for DynamicResources {
    fn pre_score(
        &self,
        _cycle: &Cycle<'_>,
        state: &mut CycleState,
        _nodes: &[Arc<NodeInfo>],
    ) -> Outcome<PreScored> {
        let alternatives = |claim: &Arc<ResourceClaim>| {
            claim.spec.devices.requests.iter().any(|request| !request.first_available.is_empty())
        };
        let any = state.get::<PodDevices>().is_some_and(|pod| pod.0.claims.iter().any(alternatives));
        Ok(if any { PreScored::Scored } else { PreScored::Skip })
    }
}

impl Score for DynamicResources {
    fn score(&self, _cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> i64 {
        let Some(PodDevices(pod)) = state.get::<PodDevices>() else { return 0 };
        let findings = pod.findings.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(found) = findings.by_node.get(node.name()) else { return 0 };
        let mut new = found.allocations.iter().map(|allocation| &**allocation);
        let of_claim = |claim: &Arc<ResourceClaim>| match &claim.status.allocation {
            Some(allocation) => preference(claim, allocation),
            None => new.next().map_or(0, |allocation| preference(claim, allocation)),
        };
        pod.claims.iter().map(of_claim).sum()
    }

    fn normalize(&self, _: &Cycle<'_>, _: &CycleState, _: &[Arc<NodeInfo>], scores: &mut [i64]) {
        scale_scores(scores, false);
    }
}

/// How good the alternatives are that were taken for a claim.
fn preference(claim: &ResourceClaim, allocation: &DeviceAllocation) -> i64 {
    let taken: BTreeSet<&str> = allocation.devices.results.iter().map(|result| &*result.request).collect();
    let of_request = |request: &kaji_runtime::objects::DeviceRequest| -> i64 {
        let ranks = (0..MAX_ALTERNATIVES).rev().zip(&request.first_available);
        let chosen = ranks.filter(|(_, a)| taken.contains(format!("{}/{}", request.name, a.name).as_str()));
        chosen.map(|(rank, _)| rank + 1).sum()
    };
    claim.spec.devices.requests.iter().map(of_request).sum()
}

impl Reserve for DynamicResources {
    fn reserve(&self, cycle: &Cycle<'_>, state: &mut CycleState, node: &str) -> Outcome {
        let Some(PodDevices(pod)) = state.get::<PodDevices>() else { return Ok(()) };
        let findings = pod.findings.lock().unwrap_or_else(PoisonError::into_inner);
        let found = findings.by_node.get(node).cloned();
        drop(findings);
        let mut reserved = Reserved {
            claims: pod.claims.clone(),
            allocations: vec![],
            extended: None,
            reserved: vec![],
            made: None,
        };
        match found {
            None if !pod.to_allocate.is_empty() => {
                return Err(Status::error("claim allocation not found for node"));
            }
            None => {}
            Some(found) => {
                let places = pod.to_allocate.iter().copied();
                reserved.allocations = places.zip(found.allocations.iter().cloned()).collect();
                for (place, allocation) in &reserved.allocations {
                    self.ledger.add_pending(&pod.claims[*place].metadata.uid, allocation.clone());
                }
                if let (Some(wanted), Some(last)) = (&found.extended, found.allocations.last()) {
                    self.ledger.add_pending(&pending_uid(cycle.pod.uid()), last.clone());
                    reserved.extended = Some((wanted.clone(), last.clone()));
                }
            }
        }
        state.put(reserved);
        Ok(())
    }

    fn unreserve(&self, pod: &PodInfo, state: &mut CycleState, _node: &str) {
        let Some(reserved) = state.get::<Reserved>() else { return };
        for (place, _) in &reserved.allocations {
            self.ledger.remove_pending(&reserved.claims[*place].metadata.uid);
        }
        self.ledger.remove_pending(&pending_uid(pod.uid()));
    }
}

impl PreBind for DynamicResources {
    fn skips(&self, _pod: &PodInfo, state: &CycleState, _node: &str) -> bool {
        state.get::<Reserved>().is_none()
    }

    fn pre_bind<'a>(&'a self, context: &'a BindContext, state: &'a mut CycleState) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(reserved) = state.get_mut::<Reserved>() else { return Ok(()) };
            self.bind(context, reserved).await.map_err(Status::error)?;
            write::wait_for_devices(context, &reserved.reserved, self.binding_timeout).await
        })
    }

    fn undo<'a>(&'a self, context: &'a BindContext, state: &'a mut CycleState) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(reserved) = state.get_mut::<Reserved>() else { return };
            for claim in std::mem::take(&mut reserved.reserved) {
                if reserved.made.as_ref().is_none_or(|made| made.metadata.uid != claim.metadata.uid) {
                    write::unreserve(context, &claim).await;
                }
            }
            if let Some(made) = reserved.made.take() {
                let (client, pod) = (context.client.clone(), context.pod.key());
                crate::binding::carry_out(client, pod, write::deletion(&made).into()).await;
            }
        })
    }
}

impl DynamicResources {
    /// Writes what was reserved; returns when the informers show it.
    async fn bind(&self, context: &BindContext, reserved: &mut Reserved) -> Result<(), String> {
        let uid = context.pod.uid();
        for place in 0..reserved.claims.len() {
            let claim = reserved.claims[place].clone();
            if claims::is_reserved(&claim, uid) {
                reserved.reserved.push(claim);
                continue;
            }
            let allocation = reserved.allocations.iter().find(|(of, _)| *of == place).map(|(_, a)| &**a);
            let written = write::reserve(context, &claim, allocation).await?;
            let written = Arc::new(written);
            reserved.reserved.push(written.clone());
            if allocation.is_some() {
                write::shown(context, &written).await?;
                self.ledger.remove_pending(&written.metadata.uid);
            }
        }
        let Some((wanted, allocation)) = reserved.extended.clone() else { return Ok(()) };
        let pod = &context.pod.pod;
        let collection = Target::of::<ResourceClaim>(&pod.metadata.namespace, "");
        let failed =
            |error: String| format!("create claim for extended resources {}: {error}", context.pod.key());
        let made = context.client.create(&collection, &wanted.body(pod)).await;
        context.metrics.created(made.is_ok());
        let made = made.map_err(|error| failed(error.to_string()))?;
        let made = ResourceClaim::from_value(&made).map_err(|error| failed(error.to_string()))?;
        reserved.made = Some(Arc::new(made.clone()));
        let written = Arc::new(write::reserve(context, &made, Some(&allocation)).await?);
        reserved.made = Some(written.clone());
        reserved.reserved.push(written.clone());
        patch_extended_resource_status(context, pod, &wanted, &written).await?;
        write::shown(context, &written).await?;
        self.ledger.remove_pending(&pending_uid(uid));
        Ok(())
    }
}

/// Writes into the pod's status which container gets which of the claim's devices.
async fn patch_extended_resource_status(
    context: &BindContext,
    pod: &Pod,
    wanted: &Wanted,
    claim: &ResourceClaim,
) -> Result<(), String> {
    let status = json!({"requestMappings": wanted.mappings, "resourceClaimName": claim.metadata.name});
    let patch =
        json!({"metadata": {"uid": pod.metadata.uid}, "status": {"extendedResourceClaimStatus": status}});
    let target = Target::of::<Pod>(&pod.metadata.namespace, &pod.metadata.name).subresource("status");
    let done = context.client.patch(&target, PatchKind::Strategic.content_type(), "", &patch).await;
    let failed = |error| format!("update pod {} ExtendedResourceClaimStatus: {error}", context.pod.key());
    done.map(drop).map_err(failed)
}
