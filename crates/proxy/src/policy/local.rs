//! Pods of this node as its network knows them: their addresses are assigned here, and show in the API only after containers run.
//!
//! Invariant: a pod counts as under its policies only when rules that were computed with its address, its labels and the policies known
//! by then have been written to the kernel.

use kaji_runtime::objects::Pod;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{Notify, watch};

/// On mirror pods of static ones: the uid that the kubelet knows the pod by.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod's sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid, as the kubelet knows it.
    pub uid: String,
    /// One of each family at most.
    pub addresses: Vec<IpAddr>,
}

impl LocalPod {
    /// Whether it is what the API shows as this pod.
    pub(super) fn is(&self, pod: &Pod) -> bool {
        let meta = &pod.metadata;
        (&self.namespace, &self.name) == (&meta.namespace, &meta.name)
            && (self.uid == meta.uid || meta.annotations.get(MIRROR) == Some(&self.uid))
    }
}

/// By sandbox.
pub type LocalTable = BTreeMap<String, LocalPod>;

#[derive(Default)]
struct State {
    pods: Mutex<Arc<LocalTable>>,
    changed: Notify,
    in_force: watch::Sender<BTreeSet<String>>,
}

/// See the module. Clones are the same table.
#[derive(Clone, Default)]
pub struct LocalPods(Arc<State>);

impl LocalPods {
    fn change(&self, change: impl FnOnce(&mut LocalTable)) {
        change(Arc::make_mut(&mut self.0.pods.lock().unwrap_or_else(PoisonError::into_inner)));
        self.0.changed.notify_one();
    }

    /// A sandbox has its addresses.
    pub fn insert(&self, sandbox: &str, pod: LocalPod) {
        self.change(|pods| drop(pods.insert(sandbox.to_owned(), pod)));
    }

    /// A sandbox's addresses are free again.
    pub fn remove(&self, sandbox: &str) {
        self.change(|pods| drop(pods.remove(sandbox)));
    }

    /// Resolves when the policies of a sandbox's pod are in force.
    pub async fn enforced(&self, sandbox: &str) {
        let mut in_force = self.0.in_force.subscribe();
        // The sender is in `self`.
        drop(in_force.wait_for(|sandboxes| sandboxes.contains(sandbox)).await);
    }

    /// Whether no sandbox has addresses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table().is_empty()
    }

    /// The table at present.
    pub(super) fn table(&self) -> Arc<LocalTable> {
        self.0.pods.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resolves after the next change, or one since the last call.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// These have been in what was written to the kernel.
    pub fn set_enforced(&self, sandboxes: BTreeSet<String>) {
        self.0.in_force.send_replace(sandboxes);
    }
}
