//! Whether the node takes a pod, and what the pod is given for its containers alone.
//!
//! Invariants: a pod is asked about once, before it runs, or again while it waits for others to end; what it was given then it keeps
//! over restarts of the kubelet.

use super::preemption::Step;
use super::static_pods::StaticPods;
use super::{Dispatcher, FullPod};
use crate::pods::admission::{self, PodRejection};
use crate::pods::apparmor;
use crate::pods::context::NodeContext;
use crate::pods::core::{Container, Node, Pod};
use crate::pods::model;
use crate::pods::worker::{Desired, Ending, PendingResize, ShownAs};
use kaji_runtime::Informer;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Upstream's `cpuManagerReconcilePeriod`.
const RECONCILE: Duration = Duration::from_secs(10);

/// What becomes of a pod without a worker.
enum Admission {
    Taken,
    Refused(Ending),
    /// Others have to end before.
    Waits,
}

impl Dispatcher {
    /// Starts the worker of a pod that has none, unless it waits for others to end. `admitted` are the pods that count for those after
    /// it, as it does unless it is refused; `pods` are all.
    pub(super) async fn begin(
        &mut self,
        pods: &[(Arc<Pod>, ShownAs)],
        (pod, shown_as): &(Arc<Pod>, ShownAs),
        pending: Option<PendingResize>,
        admitted: &mut Vec<Arc<Pod>>,
    ) {
        let mut refused = match self.admit(pod, admitted) {
            Admission::Taken => None,
            Admission::Refused(ending) => Some(ending),
            Admission::Waits => return admitted.push(pod.clone()),
        };
        if refused.is_none() && is_new(pod) {
            let active = pods.iter().map(|(p, _)| p).filter(|p| !model::is_terminal(p));
            refused = self.allocate(pod, active.map(|p| model::uid(p)).collect()).await;
        }
        if refused.is_none() && !model::is_terminal(pod) {
            admitted.push(pod.clone());
        }
        let shown_as = shown_as.clone();
        self.start(Desired { pod: pod.clone(), gone: false, refused, shown_as, pending });
    }

    /// A pod that has run already, or ends anyway, is not asked about again.
    fn admit(&mut self, pod: &Arc<Pod>, admitted: &[Arc<Pod>]) -> Admission {
        if !is_new(pod) {
            return Admission::Taken;
        }
        let Some(node) = self.cx.facts.node() else { return Admission::Taken };
        let others: Vec<&Pod> = admitted.iter().map(|p| &**p).collect();
        let pressures: Vec<&str> = self.pressures.borrow().iter().map(|p| p.name()).collect();
        // Others end for a critical pod if nothing else is in its way.
        let critical = model::is_critical(pod);
        let check = if critical { admission::suits } else { admission::admit };
        let taken = admission::under_pressure(pod, &pressures);
        let taken = taken.and_then(|()| self.cx.config.sysctls.check(pod));
        let taken = taken.and_then(|()| check(pod, &others, &node));
        let taken = taken.and_then(|()| apparmor::check(pod, self.cx.config.apparmor));
        if let Err(refusal) = taken.and_then(|()| self.cx.shutdown.check()) {
            return Admission::Refused(self.refused(pod, refusal));
        }
        if critical { self.make_room(pod, admitted, &node) } else { Admission::Taken }
    }

    /// Ends pods for a critical one that lacks resources.
    fn make_room(&mut self, pod: &Arc<Pod>, admitted: &[Arc<Pod>], node: &Node) -> Admission {
        let others: Vec<&Pod> = admitted.iter().map(|p| &**p).collect();
        let lacking = admission::insufficient(pod, &others, node);
        // Not those that wait themselves.
        let active = admitted.iter().filter(|p| self.workers.contains_key(model::uid(p)));
        let active: Vec<Arc<Pod>> = active.cloned().collect();
        match self.preemptions.next(pod, &active, &lacking, self.cx.clock.now()) {
            Step::Take => Admission::Taken,
            Step::TakeAnyway(late) => {
                self.note_late(&late);
                Admission::Taken
            }
            Step::Preempt(victims) => {
                let resource = lacking.first().map(|l| l.resource.as_str()).unwrap_or_default();
                victims.iter().for_each(|victim| self.preempt(victim, resource));
                Admission::Waits
            }
            Step::Wait => Admission::Waits,
            Step::Refuse(refusal) => Admission::Refused(self.refused(pod, refusal)),
        }
    }

    /// Processors, and devices of plug-ins, that a pod asks for; `active` are the pods that may keep theirs.
    async fn allocate(&self, pod: &Arc<Pod>, active: BTreeSet<&str>) -> Option<Ending> {
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
fn is_new(pod: &Pod) -> bool {
    let began = pod.status.as_ref().is_some_and(|s| s.start_time.is_some());
    !began && !model::deleting(pod) && !model::is_terminal(pod)
}
