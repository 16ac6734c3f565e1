//! What a volume needs: its phase, and what its reclaim policy says when its claim is gone.

use super::{
    BinderState,
    claims::provisioner,
    metrics::{NOT_AVAILABLE, Operation},
    writes::{of_claim, of_volume, still_there, unbind, volume_phase},
};
use kaji_runtime::{
    EventRecord, Moment, Plan,
    objects::{ClaimRef, PersistentVolume, PersistentVolumeClaim},
    volume_binding::{MIGRATED_TO, PROVISIONED_BY},
};

/// What the API says about the claim that a volume is bound to.
enum Bound<'a> {
    To(&'a PersistentVolumeClaim),
    /// The informer does not show it, and the API server was not asked.
    Unknown,
    Gone,
}

fn phase(volume: &PersistentVolume, phase: &str) -> Plan {
    Plan::nothing().stage(volume_phase(volume, phase, None))
}

fn over(volume: &PersistentVolume) -> bool {
    matches!(volume.status.phase.as_str(), "Released" | "Failed")
}

impl BinderState<'_> {
    /// What has to be done about a volume.
    pub(super) fn volume(&self, volume: &PersistentVolume) -> Plan {
        // Without a uid it is reserved for a claim of that name.
        let Some(reference) = volume.spec.claim_ref.as_ref().filter(|r| !r.uid.is_empty()) else {
            return phase(volume, "Available");
        };
        let claim = match self.claim_of(volume, reference) {
            Bound::To(claim) => claim,
            Bound::Gone => return self.released(volume),
            Bound::Unknown => {
                let ask = still_there::<PersistentVolumeClaim>(
                    &reference.namespace,
                    &reference.name,
                    &reference.uid,
                );
                return Plan::nothing().then(ask);
            }
        };
        if claim.spec.volume_name.is_empty() {
            // The claim's turn, which the change of the volume has brought, completes the binding.
            return if volume.same_mode(claim) { Plan::nothing() } else { incompatible(volume, claim) };
        }
        if claim.spec.volume_name == volume.metadata.name {
            return phase(volume, "Bound");
        }
        // The claim has another volume by now.
        let made_for_it = volume.metadata.annotations.contains_key(PROVISIONED_BY)
            && volume.spec.persistent_volume_reclaim_policy == "Delete";
        if made_for_it { self.released(volume) } else { unbind(volume) }
    }

    fn claim_of(&self, volume: &PersistentVolume, reference: &ClaimRef) -> Bound<'_> {
        let found = self.claims.get(&reference.namespace, &reference.name);
        match found.filter(|claim| claim.metadata.uid == reference.uid) {
            Some(claim) => Bound::To(claim),
            None if over(volume) => Bound::Gone,
            None if self.gone::<PersistentVolumeClaim>(&reference.namespace, &reference.name) => Bound::Gone,
            None => Bound::Unknown,
        }
    }

    /// Releases a volume that has lost its claim, and does what its reclaim policy says.
    fn released(&self, volume: &PersistentVolume) -> Plan {
        if !over(volume) {
            // The policy's turn comes with the change.
            return phase(volume, "Released");
        }
        self.reclaim(volume)
    }

    fn reclaim(&self, volume: &PersistentVolume) -> Plan {
        let annotations = &volume.metadata.annotations;
        if annotations.get(MIGRATED_TO).is_some_and(|driver| !driver.is_empty()) {
            return Plan::nothing();
        }
        let failed = |reason: &str, message: &str| {
            let event = EventRecord::warning(of_volume(volume), reason, message);
            Plan::nothing().stage(volume_phase(volume, "Failed", Some(event)))
        };
        match volume.spec.persistent_volume_reclaim_policy.as_str() {
            "Retain" => Plan::nothing(),
            "Recycle" => failed("VolumeFailedRecycle", "No recycler plugin found for the volume!"),
            "Delete" => {
                let (key, undeletable) = (volume.metadata.key(), not_deletable(volume));
                let class = self.classes.get("", volume.class()).filter(|_| undeletable.is_none());
                let plugin = class.map_or(NOT_AVAILABLE, |class| provisioner(class));
                self.operations.began(&key, plugin, Operation::Delete, self.cx.now);
                match undeletable {
                    Some(reason) => {
                        let plan = failed("VolumeFailedDelete", &reason);
                        self.operations.failed(plan, &key, Moment::Decided)
                    }
                    // What made it deletes it.
                    None => Plan::nothing(),
                }
            }
            _ => {
                failed("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")
            }
        }
    }
}

fn incompatible(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Plan {
    let of_the_volume = format!(
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim {:?} due to incompatible volumeMode.",
        claim.metadata.name
    );
    let of_the_claim = format!(
        "Cannot bind PersistentVolume {:?} to requested PersistentVolumeClaim due to incompatible volumeMode.",
        volume.metadata.name
    );
    Plan::nothing()
        .event(EventRecord::warning(of_volume(volume), "VolumeMismatch", of_the_volume))
        .event(EventRecord::warning(of_claim(claim), "VolumeMismatch", of_the_claim))
}

/// Why nothing will delete a volume. Those of external provisioners and of CSI drivers are deleted by them; of the other
/// kinds, upstream deletes host paths below `/tmp`, on whichever machine its controller runs, which is no node here.
fn not_deletable(volume: &PersistentVolume) -> Option<String> {
    let name = &volume.metadata.name;
    match volume.metadata.annotations.get(PROVISIONED_BY).filter(|provisioner| !provisioner.is_empty()) {
        Some(plugin) if plugin.starts_with("kubernetes.io/") => {
            Some(format!("no volume plugin matched name: {plugin}"))
        }
        Some(_) => None,
        None if volume.spec.csi.is_some() => None,
        None => Some(format!(
            "error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched"
        )),
    }
}
