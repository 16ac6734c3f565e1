//! Which volumes a pod's claims have, or get, on a node. Pure.

use super::assumed::Assumed;
use crate::framework::{Listers, Outcome, Status};
use kaji_runtime::{
    Meta, ObjectSnapshot,
    objects::{
        CLAIM_REF, CsiDriver, CsiStorageCapacity, Node, PersistentVolume, PersistentVolumeClaim, Pod,
        StorageClass, UNBOUND,
    },
    volume_binding::{NO_PROVISIONER, SELECTED_NODE, delays_binding, find_matching, fully_bound},
};
use std::{collections::HashSet, sync::Arc};

const NODE_CONFLICT: &str = "node(s) didn't match PersistentVolume's node affinity";
const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
const NO_SPACE: &str = "node(s) did not have enough free storage";
const MISSING: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

type Claim = Arc<PersistentVolumeClaim>;
type Volume = Arc<PersistentVolume>;

/// The claims of a pod, by what they need.
#[derive(Clone, Debug, Default)]
pub(super) struct PodClaims {
    /// Those with volumes, which may be gone.
    bound: Vec<Option<Volume>>,
    /// Those that are bound now, from the smallest on, with the nodes that were chosen for some already.
    delayed: Vec<(Claim, Option<String>)>,
    /// Volumes that they may get.
    free: Vec<Volume>,
    /// Volumes that are reserved, each for which claim.
    assumed: Arc<Assumed>,
    /// Whether a claim has to be bound before any pod is scheduled.
    pub waits_for_binding: bool,
}

/// What a pod's claims get on a node.
#[derive(Clone, Debug, Default)]
pub(super) struct PodVolumes {
    /// Volumes that are there.
    pub bindings: Vec<(Volume, Claim)>,
    /// Claims that get new volumes.
    pub provisions: Vec<Provision>,
}

/// A claim that gets a new volume.
#[derive(Clone, Debug)]
pub(super) struct Provision {
    /// The claim.
    pub claim: Claim,
    /// All that its driver has where the node can reach it, in bytes, if the driver publishes that.
    pub capacity: Option<i64>,
}

impl PodVolumes {
    /// Whether nothing is to be bound.
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty() && self.provisions.is_empty()
    }
}

/// A pod's claims. They have to be there, and usable by it.
pub(super) fn claims_of(pod: &Pod, claims: &ObjectSnapshot<PersistentVolumeClaim>) -> Outcome<Vec<Claim>> {
    let namespace = &pod.metadata.namespace;
    let mut found = vec![];
    for (name, own) in pod.claims() {
        let reason = match claims.get(namespace, &name) {
            None if own => format!(
                "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
            ),
            None => format!("persistentvolumeclaim {name:?} not found"),
            Some(claim) if claim.status.phase == "Lost" => {
                let volume = &claim.spec.volume_name;
                format!("persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}")
            }
            Some(claim) if claim.metadata.deleting() => {
                format!("persistentvolumeclaim {name:?} is being deleted")
            }
            Some(claim) if own && claim.metadata.controller().is_none_or(|o| o.uid != pod.metadata.uid) => {
                let pod = &pod.metadata.name;
                format!("PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)")
            }
            Some(claim) => {
                found.push(claim.clone());
                continue;
            }
        };
        return Err(Status::unresolvable(reason));
    }
    Ok(found)
}

impl PodClaims {
    /// The claims of a pod as the listers show them.
    pub fn of(pod: &Pod, listers: &Listers, assumed: &Arc<Assumed>) -> Outcome<PodClaims> {
        let (volumes, classes) = (listers.get::<PersistentVolume>(), listers.get::<StorageClass>());
        let mut sorted = PodClaims { assumed: assumed.clone(), ..PodClaims::default() };
        for claim in claims_of(pod, &listers.get())? {
            if fully_bound(&claim) {
                sorted.bound.push(volumes.get("", &claim.spec.volume_name).cloned());
            } else if delays_binding(&claim, &classes) && claim.spec.volume_name.is_empty() {
                let reference = format!("{}/{}", claim.metadata.namespace, claim.metadata.name);
                let of_class = |volume: &&Volume| volume.class() == claim.class();
                sorted.free.extend(volumes.indexed(CLAIM_REF, &reference).filter(of_class).cloned());
                let annotated = claim.metadata.annotations.get(SELECTED_NODE).cloned();
                let node = annotated.or_else(|| assumed.nodes.get(&claim.metadata.key()).cloned());
                sorted.delayed.push((claim, node));
            } else {
                sorted.waits_for_binding = true;
            }
        }
        let wanted: HashSet<&str> = sorted.delayed.iter().map(|(claim, _)| claim.class()).collect();
        if !wanted.is_empty() {
            let free = volumes.indexed(UNBOUND, "").filter(|volume| wanted.contains(volume.class()));
            sorted.free.extend(free.cloned());
        }
        sorted.delayed.sort_by_key(|(claim, _)| claim.spec.request());
        Ok(sorted)
    }

    /// Whether any claim gets a volume now.
    pub fn binds(&self) -> bool {
        !self.delayed.is_empty()
    }

    /// What the claims get on a node.
    pub fn find(&self, node: &Node, listers: &Listers) -> Outcome<PodVolumes> {
        // The first bound volume that is wrong is reported, and no other.
        let wrong = self.bound.iter().find_map(|volume| match volume {
            Some(volume) => (!volume.reaches(&node.metadata)).then_some(NODE_CONFLICT),
            None => Some(MISSING),
        });
        let mut reasons = vec![];
        reasons.extend(wrong.filter(|reason| *reason == NODE_CONFLICT));
        let mut found = PodVolumes::default();
        reasons.extend(self.find_delayed(&node.metadata, listers, &mut found)?);
        reasons.extend(wrong.filter(|reason| *reason == MISSING));
        if reasons.is_empty() {
            return Ok(found);
        }
        let mut status = Status::unresolvable(reasons[0]);
        status.reasons = reasons.into_iter().map(Into::into).collect::<Vec<_>>().into();
        Err(status)
    }

    /// Volumes for the claims that are bound now: those that are there first. The reason why there are none.
    fn find_delayed(
        &self,
        node: &Meta,
        listers: &Listers,
        found: &mut PodVolumes,
    ) -> Outcome<Option<&'static str>> {
        let mut taken = HashSet::new();
        let mut missing: Vec<&Claim> = vec![];
        for (claim, chosen) in &self.delayed {
            match chosen {
                Some(chosen) if *chosen != node.name => return Ok(Some(NO_VOLUME)),
                Some(_) => missing.push(claim),
                None => match self.volume_for(claim, node, &taken) {
                    Some(volume) => {
                        taken.insert(volume.metadata.name.clone());
                        found.bindings.push((volume.clone(), claim.clone()));
                    }
                    None => missing.push(claim),
                },
            }
        }
        for claim in missing {
            match provision(claim, node, listers)? {
                Ok(provision) => found.provisions.push(provision),
                Err(reason) => return Ok(Some(reason)),
            }
        }
        Ok(None)
    }

    fn volume_for(&self, claim: &Claim, node: &Meta, taken: &HashSet<String>) -> Option<&Volume> {
        let key = claim.metadata.key();
        let of_class = |volume: &&Volume| volume.class() == claim.class();
        // What another pod with this claim has reserved is the claim's.
        let own = self
            .free
            .iter()
            .filter(of_class)
            .find(|v| self.assumed.volumes.get(&v.metadata.name) == Some(&key));
        if let Some(own) = own {
            return own.reaches(node).then_some(own);
        }
        let free = |volume: &&Volume| !self.assumed.volumes.contains_key(&volume.metadata.name);
        find_matching(claim, self.free.iter().filter(of_class).filter(free), Some(node), taken, true)
    }
}

/// The new volume of a claim for a node, or why none can be made.
fn provision(claim: &Claim, node: &Meta, listers: &Listers) -> Outcome<Result<Provision, &'static str>> {
    let classes = listers.get::<StorageClass>();
    let class = classes.get("", claim.class());
    let class =
        class.ok_or_else(|| Status::error(format!("failed to find storage class {:?}", claim.class())))?;
    if class.provisioner.is_empty() || class.provisioner == NO_PROVISIONER || !class.allows(node) {
        return Ok(Err(NO_VOLUME));
    }
    let room = room(claim, class, node, listers);
    Ok(room.map(|capacity| Provision { claim: claim.clone(), capacity }))
}

/// What a driver that publishes its capacities has where the node can reach it: enough for the claim at least.
fn room(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &Meta,
    listers: &Listers,
) -> Result<Option<i64>, &'static str> {
    let drivers = listers.get::<CsiDriver>();
    let publishes = drivers.get("", &class.provisioner).and_then(|driver| driver.spec.storage_capacity);
    if publishes != Some(true) {
        return Ok(None);
    }
    let request = claim.spec.request();
    let capacities = listers.get::<CsiStorageCapacity>();
    let fitting = capacities.iter().find(|capacity| {
        capacity.storage_class_name == class.metadata.name
            && capacity.limit().is_some_and(|limit| limit >= request)
            && capacity.node_topology.as_ref().is_some_and(|nodes| nodes.matches(&node.labels))
    });
    fitting.map(|capacity| capacity.total()).ok_or(NO_SPACE)
}
