//! Whether the node takes a pod, and what the pod is given for its containers alone.
//!
//! Invariant: a pod is asked about once, before it runs; what it was given then it keeps over restarts of the kubelet.

use super::static_pods::StaticPods;
use super::{Dispatcher, FullPod};
use crate::pods::admission::{self, PodRejection};
use crate::pods::context::NodeContext;
use crate::pods::core::{Container, Pod};
use crate::pods::model;
use crate::pods::worker::Ending;
use kaji_runtime::Informer;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Upstream's `cpuManagerReconcilePeriod`.
const RECONCILE: Duration = Duration::from_secs(10);

impl Dispatcher {
    /// A pod that has run already, or ends anyway, is not asked about again.
    pub(super) fn admit(&self, pod: &Arc<Pod>, admitted: &[Arc<Pod>]) -> Option<Ending> {
        if !is_new(pod) {
            return None;
        }
        let node = self.cx.facts.node()?;
        let others: Vec<&Pod> = admitted.iter().map(|p| &**p).collect();
        let pressures: Vec<&str> = self.pressures.borrow().iter().map(|p| p.name()).collect();
        let taken = admission::under_pressure(pod, &pressures);
        let taken = taken.and_then(|()| self.cx.config.sysctls.check(pod));
        let taken = taken.and_then(|()| admission::admit(pod, &others, &node));
        let refusal = taken.and_then(|()| self.cx.shutdown.check()).err()?;
        Some(self.refused(pod, refusal))
    }

    /// Processors, and devices of plug-ins, that a pod asks for; `active` are the pods that may keep theirs.
    pub(super) async fn allocate(&self, pod: &Arc<Pod>, active: BTreeSet<&str>) -> Option<Ending> {
        let devices = &self.cx.devices;
        let hints = |container: Option<&Container>, nodes: &[u32]| devices.hints(pod, container, nodes);
        // Of pods that are not known yet nothing is taken away.
        let keep = self.complete.then_some(&active);
        let affinity = match self.cx.managers.admit(pod, keep, &hints) {
            Ok(affinity) => affinity,
            Err(refusal) => return Some(self.refused(pod, refusal)),
        };
        let error = devices.allocate(pod, &active, &affinity).await.err()?;
        let message = format!("Allocate failed due to {error}, which is unexpected");
        Some(self.refused(pod, PodRejection { reason: "UnexpectedAdmissionError".to_owned(), message }))
    }

    fn refused(&self, pod: &Pod, refusal: PodRejection) -> Ending {
        admission::refused(&self.cx, pod, refusal)
    }
}

/// Gives containers that share processors the present set, and takes back what pods that are over had.
pub(super) async fn keep_processors(
    cx: Arc<NodeContext>,
    pods: Arc<Informer<FullPod>>,
    statics: watch::Receiver<StaticPods>,
) {
    if !cx.managers.pins() && !cx.managers.binds_memory() {
        return;
    }
    pods.synced().await;
    loop {
        kaji_runtime::time::sleep(&*cx.clock, RECONCILE).await;
        let (snapshot, statics) = (pods.snapshot(), statics.borrow().clone());
        let all = snapshot.iter().map(|p| &p.pod).chain(statics.iter());
        let active = all.filter(|pod| !model::is_terminal(pod)).map(|pod| model::uid(pod)).collect();
        if let Err(error) = cx.managers.reconcile(&*cx.runtime, &active).await {
            tracing::warn!(%error, "the processors of containers could not be changed");
        }
    }
}

/// Whether a pod has not run yet, and is to.
pub(super) fn is_new(pod: &Pod) -> bool {
    let began = pod.status.as_ref().is_some_and(|s| s.start_time.is_some());
    !began && !model::deleting(pod) && !model::is_terminal(pod)
}
