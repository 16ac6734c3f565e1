//! Graceful node shutdown: pods are ended in the order of their priorities before the machine shuts down. Upstream's `nodeshutdown`.
//!
//! Invariants: the lock that holds up the shutdown is released when the pods are over or their time is, whichever comes first; while the node
//! shuts down it is not ready and takes no pods; a shutdown that is given up lets it take pods again.

pub mod dbus;
pub mod logind;
pub mod plan;
pub mod wire;

use super::static_pods::StaticPods;
use super::{BoundPods, DispatcherEvent, FullPod, MAX_EVENTS, reference};
use crate::pods::admission::PodRejection;
use crate::pods::context::NodeContext;
use crate::pods::core::Pod;
use crate::pods::worker::Ending;
use crate::pods::{allocation, labels, model};
use crate::server::NodePods;
use jiff::Timestamp;
use kaji_containers::{ContainerFilter, ContainerState, RuntimeError};
use kaji_runtime::{EventRecord, Informer};
use logind::{InhibitLock, Logind, LogindError, LogindPaths};
use plan::{GracePeriod, Group};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Upstream's file, below the kubelet's directory.
const STATE: &str = "graceful_node_shutdown_state";
/// Upstream's `dbusReconnectPeriod`.
const RECONNECT: Duration = Duration::from_secs(1);
/// How often pods that end are looked at.
const OBSERVE: Duration = Duration::from_millis(250);
/// How long the last status of a pod that has ended is waited for.
const STATUS: Duration = Duration::from_secs(5);
/// How long logind takes to read its settings, at most: pauses that double, in milliseconds.
const RELOADS: [u64; 5] = [100, 200, 400, 800, 1600];
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// Why the kubelet cannot follow shutdowns.
#[derive(Debug, Error)]
pub enum ShutdownError {
    /// logind.
    #[error(transparent)]
    Logind(#[from] LogindError),
    /// It does not wait long enough.
    #[error(
        "node shutdown manager was unable to update logind InhibitDelayMaxSec to {wanted:?} (ShutdownGracePeriod), current value of InhibitDelayMaxSec ({found:?}) is less than requested ShutdownGracePeriod"
    )]
    Delay {
        /// What the configuration asks for.
        wanted: Duration,
        /// What logind has.
        found: Duration,
    },
}

/// Whether the node shuts down.
#[derive(Debug)]
pub struct NodeShutdown(watch::Sender<bool>);

impl Default for NodeShutdown {
    fn default() -> NodeShutdown {
        NodeShutdown(watch::channel(false).0)
    }
}

impl NodeShutdown {
    /// Whether it does now.
    #[must_use]
    pub fn began(&self) -> bool {
        *self.0.borrow()
    }

    /// Follows it.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }

    fn set(&self, began: bool) {
        self.0.send_replace(began);
    }

    /// Refuses pods while it does.
    ///
    /// # Errors
    /// Reason and message of the refusal.
    pub fn check(&self) -> Result<(), PodRejection> {
        if !self.began() {
            return Ok(());
        }
        let message = "Pod was rejected as the node is shutting down.".to_owned();
        Err(PodRejection { reason: "NodeShutdown".to_owned(), message })
    }
}

/// When the last shutdown was, as upstream keeps it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Times {
    start_time: Option<Timestamp>,
    end_time: Option<Timestamp>,
}

/// A pod that is to be ended, by uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Termination {
    /// Of the pod.
    pub uid: String,
    /// How.
    pub ending: Ending,
}

/// Ends pods before the machine shuts down.
pub struct ShutdownManager {
    /// The node.
    pub cx: Arc<NodeContext>,
    /// How long pods get.
    pub periods: Vec<GracePeriod>,
    /// Where logind is.
    pub logind: LogindPaths,
    /// The pods of the API.
    pub pods: Arc<dyn NodePods>,
    /// Those of files.
    pub statics: watch::Receiver<StaticPods>,
    /// Gets the pods that are to be ended.
    pub terminations: mpsc::Sender<Termination>,
}

/// Follows shutdowns of this machine; what is to be ended goes to the dispatcher.
pub(super) fn start(
    cx: &Arc<NodeContext>,
    periods: Vec<GracePeriod>,
    pods: &Arc<Informer<FullPod>>,
    statics: &watch::Receiver<StaticPods>,
    events: &mpsc::Sender<DispatcherEvent>,
    tasks: &mut JoinSet<()>,
) {
    let (terminations, chosen) = mpsc::channel(MAX_EVENTS);
    let manager = ShutdownManager {
        cx: cx.clone(),
        periods,
        logind: LogindPaths::default(),
        pods: Arc::new(BoundPods(pods.clone())),
        statics: statics.clone(),
        terminations,
    };
    tasks.spawn(manager.run());
    tasks.spawn(forward(chosen, events.clone()));
}

async fn forward(mut from: mpsc::Receiver<Termination>, to: mpsc::Sender<DispatcherEvent>) {
    while let Some(termination) = from.recv().await {
        if to.send(DispatcherEvent::Terminate(termination)).await.is_err() {
            return;
        }
    }
}

impl ShutdownManager {
    /// Follows shutdowns for ever. A node without logind goes on without.
    pub async fn run(self) {
        self.show(self.load());
        if self.periods.is_empty() {
            return;
        }
        let mut connected = match self.connect().await {
            Ok(connected) => connected,
            Err(error) => {
                tracing::error!(%error, "Failed to start node shutdown manager");
                return;
            }
        };
        loop {
            let (mut logind, lock) = connected;
            if let Err(error) = self.follow(&mut *logind, lock).await {
                tracing::error!(%error, "Ended to watching the node for shutdown events");
            }
            drop(logind);
            connected = loop {
                kaji_runtime::time::sleep(&*self.cx.clock, RECONNECT).await;
                tracing::info!("Restarting watch for node shutdown events");
                match self.connect().await {
                    Ok(connected) => break connected,
                    Err(error) => tracing::error!(%error, "Unable to watch the node for shutdown events"),
                }
            };
        }
    }

    /// Connects, and takes a lock that logind keeps long enough.
    async fn connect(&self) -> Result<(Box<dyn Logind>, InhibitLock), ShutdownError> {
        let mut logind = self.logind.connect().await?;
        let wanted = plan::whole(&self.periods);
        if logind.most_delay().await? < wanted {
            logind.set_most_delay(wanted).await?;
            let mut found = logind.most_delay().await?;
            for pause in RELOADS {
                if found >= wanted {
                    break;
                }
                kaji_runtime::time::sleep(&*self.cx.clock, Duration::from_millis(pause)).await;
                found = logind.most_delay().await?;
            }
            if found < wanted {
                return Err(ShutdownError::Delay { wanted, found });
            }
        }
        let lock = logind.inhibit().await?;
        logind.follow().await?;
        Ok((logind, lock))
    }

    async fn follow(&self, logind: &mut dyn Logind, lock: InhibitLock) -> Result<(), LogindError> {
        let mut lock = Some(lock);
        loop {
            let begins = logind.next().await?;
            let what = if begins { "shutdown event" } else { "shutdown cancellation" };
            let message = format!("Shutdown manager detected {what}");
            tracing::info!("{message}");
            let node = reference(&self.cx.config.node_name);
            self.cx.api.record(EventRecord::normal(node, "Shutdown", message));
            self.cx.shutdown.set(begins);
            if begins {
                self.end_pods().await;
                tracing::info!(
                    "Shutdown manager completed processing shutdown event, node will shutdown shortly"
                );
                drop(lock.take());
            } else {
                // The former one may be released already.
                lock = Some(logind.inhibit().await?);
            }
        }
    }

    async fn end_pods(&self) {
        let began = self.cx.clock.now();
        self.keep(Times { start_time: Some(began), end_time: None });
        for group in plan::groups(&self.periods, &self.active()) {
            self.end_group(&group).await;
        }
        self.keep(Times { start_time: Some(began), end_time: Some(self.cx.clock.now()) });
    }

    /// The pods that run or are about to. Static ones have no object in the API at times.
    fn active(&self) -> Vec<Arc<Pod>> {
        let mut by_uid = BTreeMap::new();
        let statics = self.statics.borrow().clone();
        for pod in statics.iter().cloned().chain(self.pods.all()) {
            by_uid.insert(model::uid(&pod).to_owned(), pod);
        }
        by_uid.into_values().filter(|pod| !model::is_terminal(pod)).collect()
    }

    /// Ends the pods of a group, and waits until they are over or their time is.
    async fn end_group(&self, group: &Group) {
        for pod in &group.pods {
            let ending = Ending {
                reason: "Terminated".to_owned(),
                message: MESSAGE.to_owned(),
                grace: Some(group.grace(pod)),
                disruption: Some(MESSAGE.to_owned()),
            };
            let termination = Termination { uid: model::uid(pod).to_owned(), ending };
            if self.terminations.send(termination).await.is_err() {
                return;
            }
        }
        let uids: BTreeSet<&str> = group.pods.iter().map(|pod| model::uid(pod)).collect();
        let (priority, seconds) = (group.period.priority, group.period.seconds);
        tokio::select! {
            biased;
            () = self.over(&uids) => tracing::info!(priority, "Done waiting for all pods in group to terminate"),
            () = kaji_runtime::time::sleep(&*self.cx.clock, Duration::from_secs(seconds)) => {
                tracing::info!(priority, seconds, "Shutdown manager pod killing time out");
            }
        }
    }

    /// Waits until nothing of these pods runs or is mounted, and for a while until the API shows it.
    async fn over(&self, uids: &BTreeSet<&str>) {
        let mut ended: Option<Timestamp> = None;
        loop {
            match self.ended(uids).await {
                Ok(true) => {
                    let now = self.cx.clock.now();
                    let since = *ended.get_or_insert(now);
                    let waited = now.duration_since(since).unsigned_abs() >= STATUS;
                    if waited || self.shown(uids) {
                        return;
                    }
                }
                Ok(false) => ended = None,
                Err(error) => tracing::warn!(%error, "the termination of pods cannot be observed"),
            }
            kaji_runtime::time::sleep(&*self.cx.clock, OBSERVE).await;
        }
    }

    async fn ended(&self, uids: &BTreeSet<&str>) -> Result<bool, RuntimeError> {
        let all = self.cx.runtime.list_containers(ContainerFilter::default()).await?;
        let runs = all.iter().any(|container| {
            container.state != ContainerState::Exited
                && labels::container_pod_uid(container).is_some_and(|uid| uids.contains(uid))
        });
        Ok(!runs && uids.iter().all(|uid| self.cx.volumes.set_up_paths(uid).is_empty()))
    }

    fn shown(&self, uids: &BTreeSet<&str>) -> bool {
        let all = self.pods.all();
        all.iter().filter(|pod| uids.contains(model::uid(pod))).all(|pod| model::is_terminal(pod))
    }

    fn load(&self) -> Times {
        allocation::load(&self.cx.config.root_dir.join(STATE)).unwrap_or_default()
    }

    fn keep(&self, times: Times) {
        if let Err(error) = allocation::save(&self.cx.config.root_dir.join(STATE), &times) {
            tracing::error!(%error, "Failed to store graceful shutdown state");
        }
        self.show(times);
    }

    fn show(&self, times: Times) {
        self.cx.metrics.shut_down(times.start_time, times.end_time);
    }
}
