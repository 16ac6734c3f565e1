//! `NodeVolumeLimits`: no more volumes of a CSI driver on a node than the driver can attach there, as `CSINode` says.
//!
//! Invariant: a volume counts once a node, however many pods use it, and also while it is still attached for none.

use super::{Entry, volume_binding};
use crate::framework::{
    Actions, Change, Cycle, CycleState, EventInterest, Filter, Hint, Listers, Outcome, Plugin, Points,
    PreFilter, PreFiltered, Reads, Resource, Status,
};
use crate::snapshot::NodeInfo;
use kaji_runtime::objects::{
    CsiDriver, CsiNode, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, VolumeAttachment,
};
use kaji_runtime::{ObjectSnapshot, Projection};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry { name: "NodeVolumeLimits", weight: 0, arguments: None, build };

/// The plugin.
struct NodeVolumeLimits;

fn build(_: &Value) -> Points {
    let plugin = Arc::new(NodeVolumeLimits);
    Points::of(&plugin).pre_filter(&plugin).filter(&plugin)
}

/// Drivers by volume.
type Volumes = BTreeMap<String, String>;

/// What is known of claims and volumes.
struct Known {
    claims: ObjectSnapshot<PersistentVolumeClaim>,
    volumes: ObjectSnapshot<PersistentVolume>,
    classes: ObjectSnapshot<StorageClass>,
}

impl Known {
    fn of(listers: &Listers) -> Known {
        Known { claims: listers.get(), volumes: listers.get(), classes: listers.get() }
    }

    /// Adds the volumes of a pod's claims; those that are to be made count as well. The first claim that is not there.
    fn add(&self, pod: &Pod, volumes: &mut Volumes) -> Option<String> {
        let mut missing = None;
        for (name, _) in pod.claims() {
            match self.claims.get(&pod.metadata.namespace, &name) {
                Some(claim) => volumes.extend(self.volume(claim)),
                None => missing = missing.or(Some(name)),
            }
        }
        missing
    }

    fn volume(&self, claim: &PersistentVolumeClaim) -> Option<(String, String)> {
        if let Some(volume) = self.volumes.get("", &claim.spec.volume_name) {
            let csi = volume.spec.csi.as_ref()?;
            return Some((format!("{}/{}", csi.driver, csi.volume_handle), csi.driver.clone()));
        }
        let class = self.classes.get("", claim.class())?;
        // No driver has a handle that begins so.
        let handle = format!("{}//{}", class.provisioner, claim.metadata.key());
        Some((handle, class.provisioner.clone()))
    }
}

fn limits(node: &CsiNode) -> HashMap<&str, i64> {
    let limit = |driver: &'_ kaji_runtime::objects::NodeDriver| driver.allocatable.as_ref()?.count;
    node.spec.drivers.iter().filter_map(|d| Some((d.name.as_str(), limit(d)?))).collect()
}

impl Plugin for NodeVolumeLimits {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn reads(&self, reads: &mut Reads<'_>) {
        reads.read::<PersistentVolumeClaim>();
        reads.read::<PersistentVolume>();
        reads.read::<StorageClass>();
        reads.read::<CsiNode>();
        reads.read::<CsiDriver>();
        reads.read::<VolumeAttachment>();
    }

    fn events(&self) -> Vec<EventInterest> {
        let raised = |_: &crate::pod_info::PodInfo, event: &crate::framework::Event| {
            let (old, new) = volume_binding::sides::<CsiNode>(event);
            let (Some(old), Some(new)) = (old, new) else { return Hint::Queue };
            let old = limits(&old);
            let more =
                limits(&new).into_iter().any(|(name, limit)| limit > old.get(name).copied().unwrap_or(0));
            if more { Hint::Queue } else { Hint::Skip }
        };
        let other = |resource: &'static str| Resource::Other(resource);
        vec![
            EventInterest::hinted(other(CsiNode::RESOURCE), Actions::ADD | Actions::UPDATE, raised),
            EventInterest::hinted(Resource::AssignedPod, Actions::DELETE, |_, event| match &event.change {
                Change::Pod(Some(gone), _) => volume_binding::hint(gone.claims().next().is_some()),
                _ => Hint::Queue,
            }),
            volume_binding::claims_of_pod(Actions::ADD),
            EventInterest::any(other(VolumeAttachment::RESOURCE), Actions::DELETE),
        ]
    }
}

impl PreFilter for NodeVolumeLimits {
    fn pre_filter(&self, cycle: &Cycle<'_>, _state: &mut CycleState) -> Outcome<PreFiltered> {
        Ok(if cycle.pod.claims.is_empty() { PreFiltered::Skip } else { PreFiltered::AllNodes })
    }
}

impl Filter for NodeVolumeLimits {
    fn filter(&self, cycle: &Cycle<'_>, _state: &CycleState, node: &NodeInfo) -> Outcome {
        let (known, mut new) = (Known::of(cycle.listers), Volumes::new());
        if let Some(name) = known.add(&cycle.pod.pod, &mut new) {
            let namespace = cycle.pod.namespace();
            let reason =
                format!("looking up PVC {namespace}/{name}: persistentvolumeclaim {name:?} not found");
            return Err(Status::unresolvable(reason));
        }
        if new.is_empty() {
            return Ok(());
        }
        let nodes = cycle.listers.get::<CsiNode>();
        let csi_node = nodes.get("", node.name());
        installed(cycle.listers, csi_node.map(|node| &**node), &new)?;
        let Some(csi_node) = csi_node else { return Ok(()) };
        let limits = limits(csi_node);
        if limits.is_empty() {
            return Ok(());
        }
        let mut present = Volumes::new();
        for pod in node.pods().filter(|pod| !pod.claims.is_empty()) {
            known.add(&pod.pod, &mut present);
        }
        let attachments = cycle.listers.get::<VolumeAttachment>();
        for attachment in attachments.indexed(VolumeAttachment::NODE, node.name()) {
            let Some(name) = &attachment.spec.source.persistent_volume_name else { continue };
            let volume = known.volumes.get("", name).and_then(|volume| volume.spec.csi.as_ref());
            let attacher = &attachment.spec.attacher;
            present.extend(volume.map(|csi| (format!("{attacher}/{}", csi.volume_handle), attacher.clone())));
        }
        new.retain(|volume, _| !present.contains_key(volume));
        let count = |volumes: &Volumes, driver: &str| volumes.values().filter(|d| *d == driver).count();
        let exceeded = new.values().any(|driver| {
            let all = i64::try_from(count(&present, driver) + count(&new, driver)).unwrap_or(i64::MAX);
            limits.get(driver.as_str()).is_some_and(|limit| all > *limit)
        });
        super::ensure(!exceeded, || Status::unschedulable("node(s) exceed max volume count"))
    }
}

/// Drivers that ask for it keep pods off nodes where they are not registered.
fn installed(listers: &Listers, node: Option<&CsiNode>, volumes: &Volumes) -> Outcome {
    let drivers = listers.get::<CsiDriver>();
    for name in volumes.values() {
        let asks = drivers.get("", name).and_then(|driver| driver.spec.prevent_pod_scheduling_if_missing);
        let registered = node.is_some_and(|node| node.spec.drivers.iter().any(|driver| driver.name == *name));
        if asks == Some(true) && !registered {
            return Err(Status::unschedulable(format!("{name} CSI driver is not installed on the node")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn counts_the_volumes_of_a_driver() {
        let claim = |name: &str| {
            json!({"metadata": {"name": name, "namespace": "d", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                "spec": {"volumeName": format!("pv-{name}")}})
        };
        let volume = |name: &str| json!({"metadata": {"name": format!("pv-{name}")}, "spec": {"csi": {"driver": "csi.example.com", "volumeHandle": name}}});
        let csi_node = |name: &str, count: i64| {
            json!({"metadata": {"name": name}, "spec": {"drivers": [
                {"name": "csi.example.com", "allocatable": {"count": count}}]}})
        };
        let pod = |name: &str, claim: &str, node: &str| {
            json!({"name": name, "node": node, "spec": {"volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}})
        };
        let attached = json!({"metadata": {"name": "x"}, "spec": {"attacher": "csi.example.com", "nodeName": "a",
            "source": {"persistentVolumeName": "pv-two"}}});
        let mut cluster = Cluster::new(&[json!({"name": "a"})])
            .with::<PersistentVolumeClaim>(["one", "two", "three"].map(claim).to_vec())
            .with::<PersistentVolume>(["one", "two", "three"].map(volume).to_vec())
            .with::<CsiNode>(vec![csi_node("a", 2)])
            .with::<VolumeAttachment>(vec![attached])
            .with_pods(&[pod("first", "one", "a")]);
        let shown: Vec<String> =
            ["one", "two", "three"].iter().map(|name| cluster.show(&pod("new", name, ""))).collect();
        expect![[r#"
            -> a
            -> a
            0/1 nodes are available: 1 node(s) exceed max volume count. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."#]]
        .assert_eq(&shown.join("\n"));
        let mut cluster = cluster
            .with::<CsiDriver>(vec![json!({"metadata": {"name": "csi.example.com"},
            "spec": {"preventPodSchedulingIfMissing": true}})])
            .with::<CsiNode>(vec![]);
        expect!["0/1 nodes are available: 1 csi.example.com CSI driver is not installed on the node. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."]
            .assert_eq(&cluster.show(&pod("new", "one", "")));
    }

    #[test]
    fn a_pod_without_volumes_that_is_gone_frees_no_place() {
        use crate::framework::Event;
        let waiting = crate::testing::pod(&json!({"name": "p"}));
        let wakes = |spec: Value| {
            let gone = crate::testing::pod(&json!({"name": "gone", "spec": spec})).pod.clone();
            let event = Event::of_assigned_pod(Some(gone), None).unwrap();
            let mut interests = NodeVolumeLimits.events().into_iter().filter(|i| i.concerns(&event));
            interests.any(|interest| interest.hint(&waiting, &event) == Hint::Queue)
        };
        assert!(!wakes(json!({"volumes": [{"name": "v", "emptyDir": {}}]})));
        assert!(wakes(json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]})));
        assert!(wakes(json!({"volumes": [{"name": "v", "ephemeral": {}}]})));
    }
}
