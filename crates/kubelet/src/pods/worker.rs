//! One pod's task: reads what the runtime shows, decides, acts, reports, and waits for what comes next.
//! Upstream's `pod_workers.go` and `kuberuntime`'s `SyncPod`.
//!
//! Invariants: a pod goes from running to terminating to terminated and never back; a start that is under way is given up
//! when the pod is to be terminated; the pod is deleted from the API only after its containers have ended, its volumes are
//! gone and its last status was written.

mod execute;
mod report;
mod resize;

use super::backoff::Backoff;
use super::compute;
use super::context::{NodeContext, PodRef};
use super::core::{Pod, PodStatus};
use super::kill;
use super::model;
use super::observed::Observed;
use super::probes::PodProbes;
use super::resize::Resizing;
use super::start::pod_ref;
use super::status::{self, Inputs, Waiting};
use crate::metrics::families;
use kaji_containers::RuntimeError;
use report::StatusWriter;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// A pod of which there is no news is looked at again after this long.
const RESYNC: Duration = Duration::from_secs(60);
/// After a failure of the runtime.
const RETRY: Duration = Duration::from_secs(1);
/// After a change of resources that failed.
const RESIZE: Duration = Duration::from_secs(10);
/// Characters of a termination message.
const MOST_MESSAGE: u64 = 4096;

/// What the API asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// The newest version of the pod.
    pub pod: Arc<Pod>,
    /// The API has no such pod any more.
    pub gone: bool,
    /// Of a pod that this node does not take, or that it evicts: why.
    pub refused: Option<Ending>,
    /// Where the API shows the pod's status.
    pub shown_as: ShownAs,
    /// A change of resources that the pod waits for.
    pub pending: Option<PendingResize>,
}

/// A change of a pod's resources that was not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingResize {
    /// `Deferred`, `Infeasible`.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Of the pod that asked for it.
    pub generation: i64,
}

/// The object of the API that shows a pod's status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ShownAs {
    /// The pod itself.
    #[default]
    Itself,
    /// The mirror pod of a static pod, of this uid.
    Mirror(String),
    /// None yet, or none any more.
    Nothing,
}

/// Why the kubelet itself ends a pod, which fails then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ending {
    /// `status.reason`
    pub reason: String,
    /// `status.message`
    pub message: String,
    /// Seconds that its containers get to end, instead of its own.
    pub grace: Option<i64>,
    /// The message of the condition `DisruptionTarget`, which the pod gets then.
    pub disruption: Option<String>,
}

impl Desired {
    /// Seconds that the kubelet leaves the pod to end.
    fn imposed(&self) -> Option<i64> {
        self.refused.as_ref().and_then(|ending| ending.grace)
    }

    fn ends(&self) -> bool {
        self.gone || model::deleting(&self.pod) || self.refused.is_some()
    }
}

/// The task of one pod.
pub struct Worker {
    cx: Arc<NodeContext>,
    pod: Arc<Pod>,
    desired: watch::Receiver<Desired>,
    wake: Arc<Notify>,
    probes: PodProbes,
    restarts: Backoff,
    pulls: Backoff,
    mounts: Backoff,
    waiting: Waiting,
    former: PodStatus,
    writer: Option<StatusWriter>,
    shown_as: ShownAs,
    resizing: Resizing,
    failed: Option<Ending>,
    /// The node has never taken it: nothing is known to be lost of containers that it has not begun.
    rejected: bool,
    /// When it was seen first.
    seen: jiff::Timestamp,
    /// Whether a round was complete already.
    synced: bool,
}

/// What a round found.
enum Round {
    /// Look again after this long.
    Wait(Duration),
    /// No container will run again.
    Over,
}

impl Worker {
    /// A worker for a pod; `wake` is notified when the runtime has news of it.
    #[must_use]
    pub fn new(cx: Arc<NodeContext>, desired: watch::Receiver<Desired>, wake: Arc<Notify>) -> Worker {
        let (pod, shown_as, rejected) = {
            let desired = desired.borrow();
            (desired.pod.clone(), desired.shown_as.clone(), desired.refused.is_some())
        };
        let former = pod.status.clone().unwrap_or_default();
        let writer = writer(&cx, &pod, &shown_as);
        Worker {
            probes: PodProbes::new(wake.clone(), &former),
            restarts: cx.config.restart_delays.backoff(),
            pulls: Backoff::standard(),
            mounts: Backoff::new(Duration::from_millis(500), Duration::from_secs(122)),
            waiting: Waiting::default(),
            failed: None,
            rejected,
            seen: cx.clock.now(),
            synced: false,
            cx,
            pod,
            desired,
            wake,
            former,
            writer,
            shown_as,
            resizing: Resizing::default(),
        }
        .continued()
    }

    /// With what a kubelet before this one knew of resizes.
    fn continued(mut self) -> Worker {
        self.load_actuals();
        let former = self.former.conditions.as_deref().unwrap_or_default();
        self.resizing.in_progress = former.iter().any(|c| c.type_ == "PodResizeInProgress");
        self
    }

    /// Runs until the pod is gone from the API and from the node.
    pub async fn run(mut self) {
        loop {
            let desired = self.desired.borrow_and_update().clone();
            self.take(&desired);
            self.cx.sources.follow(&self.pod, &self.wake);
            if self.failed.is_none() {
                self.failed.clone_from(&desired.refused);
            }
            if desired.ends() || model::is_terminal(&self.pod) {
                break;
            }
            let mut changes = self.desired.clone();
            let began = tokio::time::Instant::now();
            let round = tokio::select! {
                biased;
                ended = changes.wait_for(Desired::ends) => {
                    if ended.is_err() {
                        return;
                    }
                    continue;
                }
                round = self.round() => round,
            };
            let operation = if std::mem::replace(&mut self.synced, true) { "sync" } else { "create" };
            self.cx.metrics.observe(&families::POD_SYNCS, &[("operation_type", operation)], began.elapsed());
            let wait = match round {
                Ok(Round::Over) => break,
                Ok(Round::Wait(wait)) => wait,
                Err(error) => {
                    tracing::warn!(pod = model::display(&self.pod), %error, "the pod could not be synchronized");
                    RETRY
                }
            };
            if !self.rest(wait).await {
                return;
            }
        }
        self.cx.sources.forget(model::uid(&self.pod));
        self.end().await;
    }

    /// Takes over what is desired. The status is written anew when another object shows it.
    fn take(&mut self, desired: &Desired) {
        self.pod = desired.pod.clone();
        self.resizing.pending = desired.pending.as_ref().map(|p| (p.reason.clone(), p.message.clone()));
        if self.shown_as != desired.shown_as {
            self.shown_as = desired.shown_as.clone();
            self.writer = writer(&self.cx, &self.pod, &self.shown_as);
            if let Some(writer) = &self.writer {
                writer.write(self.former.clone());
            }
        }
    }

    /// Waits for news. Whether to go on.
    async fn rest(&mut self, wait: Duration) -> bool {
        let wake = self.wake.clone();
        tokio::select! {
            changed = self.desired.changed() => changed.is_ok(),
            () = wake.notified() => true,
            () = kaji_runtime::time::sleep(&*self.cx.clock, wait) => true,
        }
    }

    async fn observe(&self) -> Result<Observed, RuntimeError> {
        let mut observed = Observed::read(&*self.cx.runtime, model::uid(&self.pod)).await?;
        for container in &mut observed.containers {
            if container.state() != kaji_containers::ContainerState::Exited {
                continue;
            }
            let kept = &container.kept;
            let mount = container.status.mounts.iter().find(|m| m.container_path == kept.message_path);
            let mut text = mount.map(|m| head(Path::new(&m.host_path), MOST_MESSAGE)).unwrap_or_default();
            let fallback = kept.message_policy == "FallbackToLogsOnError" && container.status.exit_code != 0;
            if text.is_empty() && fallback {
                text = report::log_tail(Path::new(&container.status.log_path));
            }
            if !text.is_empty() {
                container.message = match container.message.as_str() {
                    "" => text,
                    runtime => format!("{runtime}: {text}"),
                };
            }
        }
        Ok(observed)
    }

    /// Writes the status that follows from what is observed. Whether it is one of a pod that is over.
    fn report(&mut self, observed: &Observed, terminal: bool) -> bool {
        self.probes.follow(&self.cx, &self.pod, observed, terminal || self.desired.borrow().ends());
        let results = self.probes.results();
        let config = &self.cx.config;
        let mut status = status::generate(&Inputs {
            pod: &self.pod,
            former: &self.former,
            observed,
            results: &results,
            waiting: &self.waiting,
            host_addresses: &config.addresses,
            runtime_name: &config.runtime_name,
            terminal,
            failed: self.failed.as_ref(),
            rejected: self.rejected,
            resizing: &self.resizing,
            // The API keeps whole seconds.
            now: whole_second(self.cx.clock.now()),
        });
        self.cx.devices.show_health(&self.pod, &mut status);
        self.cx.dra.show_health(&self.pod, &mut status);
        self.measure_start(&status);
        let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        self.former = status.clone();
        // Success or failure is final: it is written when no container runs any more.
        if over && observed.alive().next().is_some() {
            return over;
        }
        self.cx.pod_feed.update(&self.pod, &status);
        if let Some(writer) = &self.writer {
            writer.write(status);
        }
        over
    }

    /// How long a pod took that runs for the first time.
    fn measure_start(&self, status: &PodStatus) {
        let runs = |status: &PodStatus| status.phase.as_deref() == Some("Running");
        let pending = self.former.phase.as_deref().is_none_or(|phase| phase == "Pending");
        if !runs(status) || !pending {
            return;
        }
        let now = self.cx.clock.now();
        let since = |then: jiff::Timestamp| Duration::try_from(now.duration_since(then)).unwrap_or_default();
        self.cx.metrics.observe(&families::POD_STARTS, &[], since(self.seen));
        if let Some(created) = &self.pod.metadata.creation_timestamp {
            self.cx.metrics.observe(&families::POD_TOTAL_STARTS, &[], since(created.0));
        }
    }

    /// The deadline of the pod's activity: how long it has still, or that it is over.
    fn deadline(&mut self) -> Option<Duration> {
        let limit = model::spec(&self.pod).active_deadline_seconds?;
        let started = self.former.start_time.as_ref()?.0;
        let passed = self.cx.clock.now().duration_since(started).as_secs();
        if passed >= limit {
            let message = "Pod was active on the node longer than the specified deadline";
            self.cx.api.record(kaji_runtime::EventRecord::normal(
                model::reference(&self.pod),
                "DeadlineExceeded",
                message,
            ));
            let (reason, message) = ("DeadlineExceeded".to_owned(), message.to_owned());
            self.failed = Some(Ending { reason, message, ..Ending::default() });
        }
        Some(Duration::from_secs((limit - passed).max(0).unsigned_abs()))
    }

    async fn round(&mut self) -> Result<Round, RuntimeError> {
        let mut observed = self.observe().await?;
        let deadline = self.deadline();
        self.follow_resize(&observed);
        if self.report(&observed, self.failed.is_some()) {
            return Ok(Round::Over);
        }
        let wait = deadline.unwrap_or(RESYNC).min(RESYNC);
        self.probes.follow(&self.cx, &self.pod, &observed, false);
        let mut actions = compute::actions(&self.pod, &observed, &self.probes.results(), &self.former);
        if !actions.kill_pod && actions.reset.is_empty() {
            self.resize(&observed, &mut actions).await;
        }
        let next = self.execute(&observed, actions).await?;
        observed = self.observe().await?;
        self.follow_resize(&observed);
        if self.report(&observed, false) {
            return Ok(Round::Over);
        }
        let wait = if self.resizing.error.is_some() { wait.min(RESIZE) } else { wait };
        Ok(Round::Wait(next.map_or(wait, |next| next.min(wait))))
    }

    /// Stops the pod for good, releases what it has, and deletes it from the API once that asks for it.
    async fn end(mut self) {
        while let Err(error) = self.terminate().await {
            tracing::warn!(pod = model::display(&self.pod), %error, "the pod could not be terminated");
            kaji_runtime::time::sleep(&*self.cx.clock, RETRY).await;
        }
        self.cx.pod_feed.finish(&self.pod);
        loop {
            let desired = self.desired.borrow_and_update().clone();
            if desired.gone {
                break;
            }
            self.take(&desired);
            if let Some(writer) = self.writer.as_mut().filter(|_| model::deleting(&self.pod))
                && writer.delete(&self.pod).await
            {
                break;
            }
            let retry = if model::deleting(&self.pod) { RETRY } else { RESYNC };
            if !self.rest(retry).await {
                return;
            }
        }
        self.remove().await;
    }

    async fn terminate(&mut self) -> Result<(), RuntimeError> {
        loop {
            let desired = self.desired.borrow_and_update().clone();
            self.take(&desired);
            let observed = self.observe().await?;
            self.report(&observed, false);
            if observed.alive().next().is_none() {
                break;
            }
            self.probes.follow(&self.cx, &self.pod, &observed, true);
            let pod = (!desired.gone || model::deleting(&self.pod)).then(|| self.pod.clone());
            if self.failed.is_none() {
                self.failed.clone_from(&desired.refused);
            }
            let cx = self.cx.clone();
            let grace = desired.pod.metadata.deletion_grace_period_seconds;
            let imposed =
                self.failed.as_ref().and_then(|f| f.grace).into_iter().chain(desired.imposed()).min();
            let limit = imposed.map(|imposed| grace.map_or(imposed, |grace| grace.min(imposed)));
            let mut changes = self.desired.clone();
            // A deletion with less grace than the one before begins anew with it, and so does what the kubelet imposes.
            let shorter = async {
                let new = |d: &Desired| d.pod.metadata.deletion_grace_period_seconds;
                let shorter = |d: &Desired| {
                    matches!((grace, new(d)), (Some(old), Some(new)) if new < old)
                        || d.imposed().is_some_and(|new| imposed.is_none_or(|old| new < old))
                };
                if changes.wait_for(shorter).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let mut ended = std::pin::pin!(async {
                tokio::select! {
                    biased;
                    killed = kill::end(&cx, pod.as_deref(), &observed, limit) => killed,
                    () = shorter => Ok(()),
                }
            });
            let wake = self.wake.clone();
            // Containers that take their time to end become unready meanwhile, and services leave them.
            loop {
                tokio::select! {
                    biased;
                    ended = &mut ended => { ended?; break; }
                    () = wake.notified() => {}
                }
                // Beside the kill, not between its steps: it may hold what looking waits for.
                let found = tokio::select! {
                    biased;
                    ended = &mut ended => { ended?; break; }
                    found = self.observe() => found?,
                };
                self.report(&found, false);
            }
        }
        let observed = self.observe().await?;
        for sandbox in &observed.sandboxes {
            self.cx.runtime.stop_pod_sandbox(&sandbox.info.id).await?;
        }
        // After its containers and before its last status: what is free then may be allocated to others at once.
        self.cx.dra.unprepare(&self.pod).await.map_err(RuntimeError::Internal)?;
        let observed = self.observe().await?;
        self.report(&observed, !self.rejected);
        if let Err(error) = self.cx.volumes.tear_down(model::uid(&self.pod)).await {
            return Err(RuntimeError::Internal(error));
        }
        self.remove_cgroup().await
    }

    /// Processes that were killed keep a cgroup until the kernel has ended them, which takes its time on a busy machine: the pod stays
    /// until its cgroup is gone, as in upstream's kubelet.
    async fn remove_cgroup(&self) -> Result<(), RuntimeError> {
        let Some(cgroups) = self.cx.cgroups.clone() else { return Ok(()) };
        let uid = model::uid(&self.pod).to_owned();
        let removed = tokio::task::spawn_blocking(move || {
            // By its uid: of a pod that the API does not show any more the quality of service is not known.
            let mut own = cgroups.pods().into_iter().filter(|(found, _)| *found == uid);
            own.try_for_each(|(_, path)| cgroups.remove(&path))
        });
        let removed = removed.await.map_err(|error| RuntimeError::Internal(error.to_string()))?;
        removed.map_err(|error| RuntimeError::Internal(format!("the pod's cgroup: {error}")))
    }

    /// Removes what the runtime and the disk keep of a pod that the API does not show any more.
    async fn remove(&mut self) {
        if let Ok(observed) = self.observe().await {
            for sandbox in &observed.sandboxes {
                if let Err(error) = self.cx.runtime.remove_pod_sandbox(&sandbox.info.id).await {
                    tracing::warn!(sandbox = sandbox.info.id, %error, "a sandbox could not be removed");
                }
            }
        }
        // What the runtime has removed last may have been in it.
        while let Err(error) = self.remove_cgroup().await {
            tracing::warn!(pod = model::display(&self.pod), %error, "the pod could not be removed");
            kaji_runtime::time::sleep(&*self.cx.clock, RETRY).await;
        }
        self.cx.pod_feed.forget(model::uid(&self.pod));
        self.cx.probe_metrics.forget_pod(model::namespace(&self.pod), model::name(&self.pod));
        self.cx.remove_pod_dirs(&pod_ref(&self.pod));
    }
}

fn writer(cx: &Arc<NodeContext>, pod: &Pod, shown_as: &ShownAs) -> Option<StatusWriter> {
    let own = pod_ref(pod);
    let name = match shown_as {
        ShownAs::Itself => own,
        ShownAs::Mirror(uid) => PodRef { uid: uid.clone(), ..own },
        ShownAs::Nothing => return None,
    };
    Some(StatusWriter::start(cx.clone(), name, pod.status.clone().unwrap_or_default()))
}

fn whole_second(now: jiff::Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// The start of a file, as text.
fn head(path: &Path, most: u64) -> String {
    use std::io::Read;
    let mut bytes = vec![];
    match std::fs::File::open(path).and_then(|f| f.take(most).read_to_end(&mut bytes)) {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}
