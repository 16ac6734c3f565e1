//! `VolumeRestrictions`: a claim with the access mode `ReadWriteOncePod` is used by one pod of the cluster. Upstream also keeps
//! pods apart that name the same disk of a former plugin in their own spec; such volumes run on no node here.

use super::{Entry, volume_binding};
use crate::framework::{
    Actions, Change, Cycle, CycleState, EventInterest, Filter, Hint, Outcome, Plugin, Points, PreFilter,
    PreFiltered, Reads, Resource, Status,
};
use crate::pod_info::PodInfo;
use crate::snapshot::NodeInfo;
use kaji_runtime::objects::PersistentVolumeClaim;
use serde_json::Value;
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry { name: "VolumeRestrictions", weight: 0, arguments: None, build };

const MODE: &str = "ReadWriteOncePod";
const IN_USE: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already \
                      in-use by another pod";

/// The plugin.
struct VolumeRestrictions;

fn build(_: &Value) -> Points {
    let plugin = Arc::new(VolumeRestrictions);
    Points::of(&plugin).pre_filter(&plugin).filter(&plugin)
}

/// The claims that only one pod may use, and how many uses of them there are.
#[derive(Clone, Debug, Default)]
struct Exclusive {
    claims: Vec<String>,
    uses: usize,
}

impl Exclusive {
    fn of(&self, pod: &PodInfo, namespace: &str) -> usize {
        let same = pod.namespace() == namespace;
        pod.claims.iter().filter(|claim| same && self.claims.iter().any(|c| **c == ***claim)).count()
    }
}

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn reads(&self, reads: &mut Reads<'_>) {
        reads.read::<PersistentVolumeClaim>();
    }

    fn events(&self) -> Vec<EventInterest> {
        let frees = |pod: &PodInfo, event: &crate::framework::Event| match &event.change {
            Change::Pod(Some(gone), _) if gone.metadata.namespace == pod.namespace() => {
                let shared = gone.claims().any(|(name, _)| pod.claims.iter().any(|claim| **claim == name));
                if shared { Hint::Queue } else { Hint::Skip }
            }
            _ => Hint::Skip,
        };
        vec![
            EventInterest::hinted(Resource::AssignedPod, Actions::DELETE, frees),
            EventInterest::any(Resource::Node, Actions::ADD),
            volume_binding::named_claims_of_pod(Actions::ADD),
        ]
    }
}

impl PreFilter for VolumeRestrictions {
    fn pre_filter(&self, cycle: &Cycle<'_>, state: &mut CycleState) -> Outcome<PreFiltered> {
        if cycle.pod.claims.is_empty() {
            return Ok(PreFiltered::Skip);
        }
        let (claims, namespace) = (cycle.listers.get::<PersistentVolumeClaim>(), cycle.pod.namespace());
        let mut exclusive = Exclusive::default();
        for (name, own) in cycle.pod.pod.claims() {
            // Those that are made for the pod are used by no other.
            if own {
                continue;
            }
            let claim = claims
                .get(namespace, &name)
                .ok_or_else(|| Status::unresolvable(format!("persistentvolumeclaim {name:?} not found")))?;
            if claim.spec.access_modes.iter().any(|mode| mode == MODE) {
                exclusive.claims.push(name);
            }
        }
        if exclusive.claims.is_empty() {
            return Ok(PreFiltered::Skip);
        }
        let keys: Vec<String> = exclusive.claims.iter().map(|name| format!("{namespace}/{name}")).collect();
        let uses = |node: &Arc<NodeInfo>| {
            keys.iter()
                .filter_map(|key| node.claims.get(key.as_str()))
                .map(|uses| *uses as usize)
                .sum::<usize>()
        };
        exclusive.uses = cycle.snapshot.nodes().map(uses).sum();
        if exclusive.uses == 0 {
            return Ok(PreFiltered::Skip);
        }
        state.put(exclusive);
        Ok(PreFiltered::AllNodes)
    }

    fn add_pod(&self, cycle: &Cycle<'_>, state: &mut CycleState, added: &PodInfo, _node: &NodeInfo) {
        if let Some(exclusive) = state.get_mut::<Exclusive>() {
            exclusive.uses += exclusive.of(added, cycle.pod.namespace());
        }
    }

    fn remove_pod(&self, cycle: &Cycle<'_>, state: &mut CycleState, removed: &PodInfo, _node: &NodeInfo) {
        if let Some(exclusive) = state.get_mut::<Exclusive>() {
            let uses = exclusive.of(removed, cycle.pod.namespace());
            exclusive.uses = exclusive.uses.saturating_sub(uses);
        }
    }
}

impl Filter for VolumeRestrictions {
    fn filter(&self, _cycle: &Cycle<'_>, state: &CycleState, _node: &NodeInfo) -> Outcome {
        let free = state.get::<Exclusive>().is_none_or(|exclusive| exclusive.uses == 0);
        super::ensure(free, || Status::unschedulable(IN_USE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn lets_one_pod_use_an_exclusive_claim() {
        let claim = |name: &str, mode: &str| {
            json!({"metadata": {"name": name, "namespace": "d", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                "spec": {"volumeName": "v", "accessModes": [mode]}})
        };
        let pod = |name: &str, claim: &str, node: &str| {
            json!({"name": name, "node": node, "spec": {"volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}})
        };
        let mut cluster = Cluster::new(&[json!({"name": "a"}), json!({"name": "b"})])
            .with::<kaji_runtime::objects::PersistentVolume>(vec![json!({"metadata": {"name": "v"}})])
            .with::<PersistentVolumeClaim>(vec![claim("one", MODE), claim("many", "ReadWriteOnce")])
            .with_pods(&[pod("first", "one", "a"), pod("other", "many", "a")]);
        expect!["0/2 nodes are available: 2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod. preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."].assert_eq(&cluster.show(&pod("second", "one", "")));
        assert!(cluster.show(&pod("third", "many", "")).len() < 20);
    }
}
