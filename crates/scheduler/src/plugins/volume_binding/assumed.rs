//! What was reserved for pods that are being bound.
//!
//! Invariant: an entry goes with its pod: when the pod is unreserved, or when the informers show what was reserved.

use super::find::{PodVolumes, Provision};
use kaji_runtime::Key;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

/// Volumes and claims that are reserved.
#[derive(Clone, Debug, Default)]
pub(super) struct Assumed {
    /// The claims that get volumes, by the names of the volumes.
    pub volumes: HashMap<String, Key>,
    /// The nodes for which volumes of claims are made.
    pub nodes: HashMap<Key, String>,
    /// What each pod has reserved, by its uid.
    pods: HashMap<String, Reserved>,
}

#[derive(Clone, Debug, Default)]
struct Reserved {
    volumes: HashSet<String>,
    claims: HashSet<Key>,
}

/// The present reservations; decisions read them as they were when the decision began.
#[derive(Default)]
pub(super) struct Assumptions(Mutex<Arc<Assumed>>);

impl Assumptions {
    pub fn seen(&self) -> Arc<Assumed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reserves volumes, and the node for claims that get new volumes.
    pub fn assume(&self, pod: &str, node: &str, found: &PodVolumes) {
        if found.is_empty() {
            return;
        }
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let assumed = Arc::make_mut(&mut shared);
        let reserved = assumed.pods.entry(pod.to_owned()).or_default();
        for (volume, claim) in &found.bindings {
            let name = &volume.metadata.name;
            // Another pod with the same claim may have reserved it before, and keeps it.
            if assumed.volumes.insert(name.clone(), claim.metadata.key()).is_none() {
                reserved.volumes.insert(name.clone());
            }
        }
        for Provision { claim, .. } in &found.provisions {
            let key = claim.metadata.key();
            if assumed.nodes.insert(key.clone(), node.to_owned()).is_none() {
                reserved.claims.insert(key);
            }
        }
    }

    /// Takes back what a pod has reserved.
    pub fn forget(&self, pod: &str) {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !shared.pods.contains_key(pod) {
            return;
        }
        let assumed = Arc::make_mut(&mut shared);
        let Some(reserved) = assumed.pods.remove(pod) else { return };
        assumed.volumes.retain(|name, _| !reserved.volumes.contains(name));
        assumed.nodes.retain(|claim, _| !reserved.claims.contains(claim));
    }
}
