//! What a claim needs: a volume that is there, one that is made for it, or a default class.

use super::{
    BinderState,
    metrics::{self, Operation},
    writes::{bind, claim_status, of_claim, patch, seen, still_there},
};
use crate::shared::controller_ref::quiet;
use kaji_runtime::{
    EventRecord, Moment, Plan, Step,
    objects::{
        CLAIM_REF, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, UNBOUND, default_class,
    },
    volume_binding::{
        BETA_STORAGE_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER, SELECTED_NODE, STORAGE_PROVISIONER,
        delays_binding, find_matching,
    },
};
use serde_json::json;
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

/// How often a claim that waits is said to wait; events are kept for an hour.
const REMINDER: Duration = Duration::from_secs(300);

/// Provisioners of former plugins, and the CSI drivers that have taken over from them.
const MIGRATED: [(&str, &str); 7] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
];

/// What makes the volumes of a class.
pub(super) fn provisioner(class: &StorageClass) -> &str {
    let migrated = MIGRATED.iter().find(|(former, _)| *former == class.provisioner);
    migrated.map_or(class.provisioner.as_str(), |(_, driver)| *driver)
}

type Claim = PersistentVolumeClaim;

fn warning(claim: &Claim, reason: &str, message: impl Into<String>) -> EventRecord {
    EventRecord::warning(of_claim(claim), reason, message)
}

fn normal(claim: &Claim, reason: &str, message: impl Into<String>) -> EventRecord {
    EventRecord::normal(of_claim(claim), reason, message)
}

/// `Pending`, without what a volume would have.
fn pending(plan: Plan, claim: &Claim) -> Plan {
    plan.stage(claim_status(claim, "Pending", None).map(quiet).into_iter().collect())
}

/// Why a volume that a claim names cannot be its own.
fn mismatch(volume: &PersistentVolume, claim: &Claim) -> Option<String> {
    let class = |class: &Option<String>| class.clone().unwrap_or_default();
    let reason = if volume.metadata.deleting() {
        return Some(format!("the volume is marked for deletion {:?}", volume.metadata.name));
    } else if volume.storage().unwrap_or_default() < claim.spec.request() {
        "requested PV is too small"
    } else if volume.class() != claim.class() {
        "storageClassName does not match"
    } else if class(&volume.spec.volume_attributes_class_name)
        != class(&claim.spec.volume_attributes_class_name)
    {
        "volumeAttributesClassName does not match"
    } else if !volume.same_mode(claim) {
        "incompatible volumeMode"
    } else if !volume.allows(claim) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(reason.to_owned())
}

impl BinderState<'_> {
    /// What has to be done about a claim.
    pub(super) fn claim(&self, claim: &Arc<Claim>) -> Plan {
        if claim.metadata.annotations.contains_key(BIND_COMPLETED) {
            self.bound_claim(claim)
        } else if claim.spec.volume_name.is_empty() {
            self.unbound_claim(claim)
        } else {
            self.reserved_claim(claim)
        }
    }

    /// A claim without a volume.
    fn unbound_claim(&self, claim: &Claim) -> Plan {
        let delayed = delays_binding(claim, &self.classes);
        if let Some(volume) = self.best_match(claim, delayed) {
            return self.operations.bound(bind(&volume, claim), &claim.metadata.key(), self.cx.now);
        }
        if !claim.has_class()
            && let Some(class) = default_class(&self.classes)
        {
            let body =
                json!({"metadata": seen(&claim.metadata), "spec": {"storageClassName": class.metadata.name}});
            return metrics::class_assigned(Plan::nothing().then(patch::<Claim>(&claim.metadata, body)));
        }
        let selected = claim.metadata.annotations.contains_key(SELECTED_NODE);
        let plan = if delayed && !selected {
            Plan::nothing().event(self.waits_for_pod(claim))
        } else if !claim.class().is_empty() {
            return self.provision(claim).again_after(REMINDER);
        } else {
            let message = "no persistent volumes available for this claim and no storage class is set";
            Plan::nothing().event(normal(claim, "FailedBinding", message))
        };
        pending(plan, claim).again_after(REMINDER)
    }

    /// The best volume of those with the fewest ways of being mounted that include all that the claim asks for.
    fn best_match(&self, claim: &Claim, delayed: bool) -> Option<Arc<PersistentVolume>> {
        let reference = format!("{}/{}", claim.metadata.namespace, claim.metadata.name);
        let reserved = self.volumes.indexed(CLAIM_REF, &reference);
        let candidates = self.volumes.indexed(UNBOUND, "").chain(reserved).filter(|v| v.allows(claim));
        let mut by_modes: BTreeMap<(usize, Vec<&str>), Vec<&Arc<PersistentVolume>>> = BTreeMap::new();
        for volume in candidates {
            let mut modes: Vec<&str> = volume.spec.access_modes.iter().map(String::as_str).collect();
            modes.sort_unstable();
            modes.dedup();
            by_modes.entry((modes.len(), modes)).or_default().push(volume);
        }
        let excluded = HashSet::new();
        by_modes
            .into_values()
            .find_map(|volumes| find_matching(claim, volumes, None, &excluded, delayed))
            .cloned()
    }

    /// That the claim waits for a pod, or for one to be scheduled.
    fn waits_for_pod(&self, claim: &Claim) -> EventRecord {
        let index = format!("{}/{}", claim.metadata.namespace, claim.metadata.name);
        let pods = self.pods.indexed(Pod::WAITING_CLAIM, &index).filter(|pod| !pod.finished());
        let names: Vec<&str> = pods.map(|pod| pod.metadata.name.as_str()).collect();
        match &names[..] {
            [] => {
                let message = "waiting for first consumer to be created before binding";
                normal(claim, "WaitForFirstConsumer", message)
            }
            [pod] => normal(claim, "WaitForPodScheduled", format!("waiting for pod {pod} to be scheduled")),
            pods => {
                let message = format!("waiting for pods {} to be scheduled", pods.join(","));
                normal(claim, "WaitForPodScheduled", message)
            }
        }
    }

    /// Asks the provisioner of the claim's class for a volume.
    fn provision(&self, claim: &Claim) -> Plan {
        if !self.provisions {
            return Plan::nothing();
        }
        let failed = |message: String| Plan::nothing().event(warning(claim, "ProvisioningFailed", message));
        let Some(class) = self.classes.get("", claim.class()) else {
            return failed(format!("storageclass.storage.k8s.io {:?} not found", claim.class()));
        };
        let provisioner = provisioner(class);
        if provisioner.starts_with("kubernetes.io/") {
            return failed(format!("no volume plugin matched name: {provisioner}"));
        }
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
             system administrator. If volume creation is delayed, please verify that the provisioner is running and \
             correctly registered."
        );
        let waits = normal(claim, "ExternalProvisioning", message);
        self.operations.began(&claim.metadata.key(), provisioner, Operation::Provision, self.cx.now);
        if claim.metadata.annotations.get(STORAGE_PROVISIONER).is_some_and(|p| p == provisioner) {
            return pending(Plan::nothing().event(waits), claim);
        }
        let mut body = json!({"metadata": seen(&claim.metadata)});
        body["metadata"]["annotations"] =
            json!({STORAGE_PROVISIONER: provisioner, BETA_STORAGE_PROVISIONER: provisioner});
        let write = patch::<Claim>(&claim.metadata, body);
        let failure = warning(claim, "ProvisioningFailed", "Error saving claim: {error}");
        let plan =
            Plan::nothing().stage(vec![Step { write, on_success: Some(waits), on_failure: Some(failure) }]);
        self.operations.failed(plan, &claim.metadata.key(), Moment::Failed)
    }

    /// A claim that names its volume, with a binding that is not complete.
    fn reserved_claim(&self, claim: &Claim) -> Plan {
        let Some(volume) = self.volumes.get("", &claim.spec.volume_name) else {
            return pending(Plan::nothing(), claim);
        };
        let name = &volume.metadata.name;
        if volume.bound_to(claim) {
            return bind(volume, claim);
        }
        if volume.spec.claim_ref.is_none() {
            let Some(reason) = mismatch(volume, claim) else { return bind(volume, claim) };
            let message = format!("Cannot bind to requested volume {name:?}: {reason}");
            return pending(Plan::nothing().event(warning(claim, "VolumeMismatch", message)), claim);
        }
        let message = format!("volume {name:?} already bound to a different claim.");
        let plan = Plan::nothing().event(warning(claim, "FailedBinding", message)).again_after(REMINDER);
        if claim.metadata.annotations.contains_key(BOUND_BY_CONTROLLER) {
            return plan;
        }
        pending(plan, claim)
    }

    /// A claim with a binding that was completed once.
    fn bound_claim(&self, claim: &Claim) -> Plan {
        let lost = |reason: &str, message: &str| {
            if claim.status.phase == "Lost" {
                return Plan::nothing();
            }
            let event = warning(claim, reason, message);
            let write = claim_status(claim, "Lost", None);
            let step = |write| Step { write, on_success: Some(event), on_failure: None };
            Plan::nothing().stage(write.map(step).into_iter().collect())
        };
        let name = &claim.spec.volume_name;
        if name.is_empty() {
            let text = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
            return lost("ClaimLost", text);
        }
        match self.volumes.get("", name) {
            None if claim.status.phase == "Lost" || self.gone::<PersistentVolume>("", name) => {
                lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
            }
            None => Plan::nothing().then(still_there::<PersistentVolume>("", name, "")),
            Some(volume) => {
                let owner = volume.spec.claim_ref.as_ref().map(|reference| reference.uid.as_str());
                // A volume without a claim, or reserved by name only, is bound again.
                if owner.is_none() || volume.bound_to(claim) {
                    return bind(volume, claim);
                }
                let text = "Two claims are bound to the same volume, this one is bound incorrectly";
                lost("ClaimMisbound", text)
            }
        }
    }
}
