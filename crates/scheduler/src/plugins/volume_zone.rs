//! `VolumeZone`: pods go to nodes of the zones and regions that the labels of their volumes name.
//!
//! Invariants:
//! - Nodes without any label of a zone or region are not restricted.
//! - Claims that are made for the pod are left out, as upstream leaves them out.

use super::{Entry, volume_binding};
use crate::framework::{
    Actions, Cycle, CycleState, Event, EventInterest, Filter, Hint, Outcome, Plugin, Points, PreFilter,
    PreFiltered, Reads, Resource, Status,
};
use crate::pod_info::PodInfo;
use crate::snapshot::NodeInfo;
use kaji_runtime::Projection;
use kaji_runtime::objects::{PersistentVolume, PersistentVolumeClaim, StorageClass};
use serde_json::Value;
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry { name: "VolumeZone", weight: 0, arguments: None, build };

const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";
/// Labels of volumes and nodes, and what the former ones are called now.
const LABELS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", ZONE),
    ("failure-domain.beta.kubernetes.io/region", REGION),
    (ZONE, ZONE),
    (REGION, REGION),
];
/// What stands between several zones in a label's value.
const SEPARATOR: &str = "__";

/// The plugin.
struct VolumeZone;

fn build(_: &Value) -> Points {
    let plugin = Arc::new(VolumeZone);
    Points::of(&plugin).pre_filter(&plugin).filter(&plugin)
}

/// A label that nodes must have: the key, what it is called now, and the values.
#[derive(Clone, Debug)]
struct Topologies(Vec<(&'static str, &'static str, Vec<String>)>);

impl Plugin for VolumeZone {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn reads(&self, reads: &mut Reads<'_>) {
        reads.read::<PersistentVolumeClaim>();
        reads.read::<PersistentVolume>();
        reads.read::<StorageClass>();
    }

    fn events(&self) -> Vec<EventInterest> {
        vec![
            EventInterest::hinted(Resource::Other(StorageClass::RESOURCE), Actions::ADD, |_, event| {
                let (_, new) = volume_binding::sides::<StorageClass>(event);
                volume_binding::hint(new.is_none_or(|class| class.delays_binding()))
            }),
            EventInterest::any(Resource::Node, Actions::ADD | Actions::NODE_LABELS),
            volume_binding::named_claims_of_pod(Actions::ADD | Actions::UPDATE),
            EventInterest::hinted(
                Resource::Other(PersistentVolume::RESOURCE),
                Actions::ADD | Actions::UPDATE,
                changes_topologies,
            ),
        ]
    }
}

impl PreFilter for VolumeZone {
    fn pre_filter(&self, cycle: &Cycle<'_>, state: &mut CycleState) -> Outcome<PreFiltered> {
        if cycle.pod.claims.is_empty() {
            return Ok(PreFiltered::Skip);
        }
        let (claims, volumes) =
            (cycle.listers.get::<PersistentVolumeClaim>(), cycle.listers.get::<PersistentVolume>());
        let classes = cycle.listers.get::<StorageClass>();
        let mut topologies = vec![];
        for (name, _) in cycle.pod.pod.claims().filter(|(_, own)| !own) {
            let missing = |kind: &str, name: &str| Status::unresolvable(format!("{kind} {name:?} not found"));
            let claim = claims.get(cycle.pod.namespace(), &name);
            let claim = claim.ok_or_else(|| missing("persistentvolumeclaim", &name))?;
            let volume = &claim.spec.volume_name;
            if volume.is_empty() {
                if claim.class().is_empty() {
                    let text = "PersistentVolumeClaim had no pv name and storageClass name";
                    return Err(Status::unresolvable(text));
                }
                let class = classes.get("", claim.class());
                let class = class.ok_or_else(|| missing("storageclass.storage.k8s.io", claim.class()))?;
                if class.volume_binding_mode.is_none() {
                    let text = format!("VolumeBindingMode not set for StorageClass {:?}", claim.class());
                    return Err(Status::unresolvable(text));
                }
                if !class.delays_binding() {
                    return Err(Status::unresolvable("PersistentVolume had no name"));
                }
                continue;
            }
            let volume = volumes.get("", volume).ok_or_else(|| missing("persistentvolume", volume))?;
            topologies.extend(topologies_of(volume));
        }
        if topologies.is_empty() {
            return Ok(PreFiltered::Skip);
        }
        state.put(Topologies(topologies));
        Ok(PreFiltered::AllNodes)
    }
}

/// A volume helps if it is new, or other zones have become its own.
fn changes_topologies(_: &PodInfo, event: &Event) -> Hint {
    match volume_binding::sides::<PersistentVolume>(event) {
        (Some(old), Some(new)) if topologies_of(&old).eq(topologies_of(&new)) => Hint::Skip,
        _ => Hint::Queue,
    }
}

fn topologies_of(
    volume: &PersistentVolume,
) -> impl Iterator<Item = (&'static str, &'static str, Vec<String>)> {
    LABELS.iter().filter_map(|(key, now)| {
        let value = volume.metadata.labels.get(*key)?;
        let values: Vec<String> = value.split(SEPARATOR).map(|value| value.trim().to_owned()).collect();
        // Upstream ignores labels that do not parse.
        (!values.iter().any(String::is_empty)).then_some((*key, *now, values))
    })
}

impl Filter for VolumeZone {
    fn filter(&self, _cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Outcome {
        let Some(Topologies(topologies)) = state.get() else { return Ok(()) };
        if LABELS.iter().all(|(key, _)| node.label(key).is_none()) {
            return Ok(());
        }
        let holds = |(key, now, values): &(&str, &str, Vec<String>)| {
            let label = node.label(key).or_else(|| node.label(now));
            label.is_some_and(|label| values.iter().any(|value| value == label))
        };
        super::ensure(topologies.iter().all(holds), || {
            Status::unresolvable("node(s) had no available volume zone")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn keeps_pods_in_the_zones_of_their_volumes() {
        let node = |name: &str, labels: Value| json!({"name": name, "labels": labels});
        let volume = |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}});
        let claim = |name: &str, volume: &str| {
            json!({"metadata": {"name": name, "namespace": "d",
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": volume}})
        };
        let mut cluster = Cluster::new(&[node("a", json!({ZONE: "za"})), node("b", json!({ZONE: "zb"}))])
            .with::<PersistentVolume>(vec![
                volume("in-b", json!({"failure-domain.beta.kubernetes.io/zone": "zb__zc"})),
                volume("in-c", json!({ZONE: "zc"})),
            ])
            .with::<PersistentVolumeClaim>(vec![claim("b", "in-b"), claim("c", "in-c")]);
        let mut show = |claim: &str| {
            cluster.show(&json!({"name": claim, "spec": {"volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}}))
        };
        expect![[r#"
            -> b
            0/2 nodes are available: 2 node(s) had no available volume zone. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."#]]
        .assert_eq(&format!("{}\n{}", show("b"), show("c")));
    }

    #[test]
    fn a_volume_wakes_pods_when_its_zones_change() {
        use crate::framework::Change;
        use std::any::Any;
        let volume = |labels: Value| -> Arc<dyn Any + Send + Sync> {
            let volume = json!({"metadata": {"name": "v", "labels": labels}});
            Arc::new(serde_json::from_value::<PersistentVolume>(volume).unwrap())
        };
        let pod = crate::testing::pod(&json!({"name": "p"}));
        let hint = |old: Option<Value>, new: Value| {
            let event = Event {
                resource: Resource::Other(PersistentVolume::RESOURCE),
                actions: Actions::UPDATE,
                change: Change::Other(old.map(volume), Some(volume(new))),
            };
            changes_topologies(&pod, &event)
        };
        assert_eq!(hint(None, json!({})), Hint::Queue);
        assert_eq!(hint(Some(json!({ZONE: "a"})), json!({ZONE: "a", "unrelated": "x"})), Hint::Skip);
        assert_eq!(hint(Some(json!({ZONE: "a"})), json!({ZONE: "b"})), Hint::Queue);
        assert_eq!(hint(Some(json!({})), json!({REGION: "r"})), Hint::Queue);
    }

    #[test]
    fn claims_that_are_made_for_the_pod_are_left_out() {
        let volume = json!({"metadata": {"name": "v", "labels": {ZONE: "zb"}}});
        let claim = json!({"metadata": {"name": "p-own", "namespace": "d",
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]},
            "spec": {"volumeName": "v"}});
        let mut cluster = Cluster::new(&[json!({"name": "a", "labels": {ZONE: "za"}})])
            .with::<PersistentVolume>(vec![volume])
            .with::<PersistentVolumeClaim>(vec![claim]);
        let pod = json!({"name": "p", "spec": {"volumes": [{"name": "own", "ephemeral": {}}]}});
        assert_eq!(cluster.show(&pod), "-> a");
    }

    #[test]
    fn a_class_wakes_pods_if_it_waits_for_them() {
        use crate::framework::Change;
        use std::any::Any;
        let pod = crate::testing::pod(&json!({"name": "p"}));
        let wakes = |mode: &str| {
            let class = json!({"metadata": {"name": "c"}, "volumeBindingMode": mode});
            let class = serde_json::from_value::<StorageClass>(class).unwrap();
            let class: Arc<dyn Any + Send + Sync> = Arc::new(class);
            let resource = Resource::Other(StorageClass::RESOURCE);
            let event = Event { resource, actions: Actions::ADD, change: Change::Other(None, Some(class)) };
            let mut interests = VolumeZone.events().into_iter().filter(|i| i.concerns(&event));
            interests.any(|interest| interest.hint(&pod, &event) == Hint::Queue)
        };
        assert!(wakes("WaitForFirstConsumer") && !wakes("Immediate"));
    }
}
