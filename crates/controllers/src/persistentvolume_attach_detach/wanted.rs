//! Which volumes a node's pods need attached, and which attachments of the node are this controller's.

use super::{Attached, MANAGED, NodeAttachments, Wanted, attachment_name};
use kaji_runtime::objects::{PersistentVolume, Pod, VolumeAttachment};
use std::{collections::BTreeMap, sync::Arc};

impl NodeAttachments {
    /// Volumes that pods of the node need, by the names that their attachments have.
    pub(super) fn wanted(&self) -> BTreeMap<String, Wanted> {
        let mut wanted: BTreeMap<String, Wanted> = BTreeMap::new();
        let managed =
            |annotations: &BTreeMap<String, String>| annotations.get(MANAGED).is_some_and(|v| v == "true");
        if !self.node.as_ref().is_some_and(|node| managed(&node.metadata.annotations)) {
            return wanted;
        }
        let pods = self.pods.indexed("node", &self.name);
        for pod in pods.filter(|pod| !pod.finished() && !pod.spec.volumes.claims.is_empty()) {
            for volume in self.volumes_of(pod) {
                let Some(csi) = &volume.spec.csi else { continue };
                if self.drivers_attach(csi) {
                    let name = attachment_name(csi, &self.name);
                    let entry = wanted.entry(name).or_insert_with(|| Wanted { volume, pods: vec![] });
                    entry.pods.push(pod.clone());
                }
            }
        }
        wanted
    }

    /// The volumes of the node's pods, those of pods that are over among them, each once for each of its pods.
    pub(super) fn used(&self) -> Vec<Arc<PersistentVolume>> {
        self.pods.indexed("node", &self.name).flat_map(|pod| self.volumes_of(pod)).collect()
    }

    /// The volumes that a pod's claims are bound to.
    fn volumes_of(&self, pod: &Pod) -> Vec<Arc<PersistentVolume>> {
        let bound = |(name, own): (String, bool)| {
            let claim = self.claims.get(&pod.metadata.namespace, &name)?;
            if own && claim.metadata.controller().is_none_or(|owner| owner.uid != pod.metadata.uid) {
                return None;
            }
            let volume = self.volumes.get("", &claim.spec.volume_name)?;
            let owner = volume.spec.claim_ref.as_ref()?;
            (claim.status.phase == "Bound" && owner.uid == claim.metadata.uid).then(|| volume.clone())
        };
        pod.claims().filter_map(bound).collect()
    }

    /// The node's attachments, by name.
    pub(super) fn attached(&self) -> BTreeMap<String, Attached> {
        let own = |object: &Arc<VolumeAttachment>| {
            let volume = self.volumes.get("", object.spec.source.persistent_volume_name.as_ref()?)?;
            let name = attachment_name(volume.spec.csi.as_ref()?, &self.name);
            let attached = Attached { object: object.clone(), volume: volume.clone() };
            (name == object.metadata.name).then_some((name, attached))
        };
        self.attachments.indexed(VolumeAttachment::NODE, &self.name).filter_map(own).collect()
    }

    /// Pods on other nodes that use a volume.
    pub(super) fn users_on_others(&self, volume: &PersistentVolume) -> Vec<Arc<Pod>> {
        let Some(claim) = &volume.spec.claim_ref else { return vec![] };
        let users = self.pods.indexed(Pod::CLAIM, &format!("{}/{}", claim.namespace, claim.name));
        users.filter(|pod| pod.spec.node_name != self.name.as_str() && !pod.finished()).cloned().collect()
    }
}
