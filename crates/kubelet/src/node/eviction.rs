//! Evicts pods when the node runs short of memory, disk or process ids, or when one uses more disk than it may. Upstream's
//! `pkg/kubelet/eviction`.
//!
//! The decisions are pure: [`assess`] judges what the node has left, [`rank`] chooses the pod, [`local_storage`] finds the
//! pods that exceed their limits.
//!
//! Invariants: one pod at a time is evicted for want of something, and the next only after it has ended or [`CLEANUP`] has passed;
//! on full disks unused containers and images go first; a pod is evicted once.

pub mod assess;
pub mod local_storage;
pub mod observe;
pub mod rank;
pub mod thresholds;
pub mod usage;

use super::image_gc::ImageCollector;
use crate::pods::context::NodeContext;
use crate::pods::core::Pod;
use crate::pods::{labels, model};
use crate::server::NodePods;
use assess::Memory;
use kaji_containers::{ContainerFilter, ContainerInfo, ContainerState, RuntimeError};
use kaji_runtime::EventRecord;
use observe::Sensors;
use rank::{Candidates, Eviction};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use thresholds::{EvictionResource, EvictionSettings, Pressure, Signal};
use tokio::sync::{mpsc, watch};
use usage::{DiskLayout, Disks};

/// How often the node is looked at.
const PERIOD: Duration = Duration::from_secs(10);
/// How long a pod that is evicted is waited for.
const CLEANUP: Duration = Duration::from_secs(30);
/// How often the usage is observed meanwhile.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps a node from running out of what its pods share.
pub struct EvictionManager {
    /// The node.
    pub cx: Arc<NodeContext>,
    /// When pods are evicted.
    pub settings: EvictionSettings,
    /// What the node has left.
    pub sensors: Arc<dyn Sensors>,
    /// Where its files are.
    pub layout: DiskLayout,
    /// Removes images when disks are full.
    pub images: Arc<ImageCollector>,
    /// The node's pods.
    pub pods: Arc<dyn NodePods>,
    /// Gets the pods that are to be evicted.
    pub evictions: mpsc::Sender<Eviction>,
    /// The conditions of the node.
    pub pressures: watch::Sender<BTreeSet<Pressure>>,
    /// What was found before.
    pub memory: Memory,
    /// Pods that are evicted and were not seen to be over.
    pub evicted: HashSet<String>,
}

impl EvictionManager {
    /// Looks at the node for ever.
    pub async fn run(mut self) {
        loop {
            match self.round().await {
                Ok(evicted) if !evicted.is_empty() => self.wait_for(&evicted).await,
                Ok(_) => kaji_runtime::time::sleep(&*self.cx.clock, PERIOD).await,
                Err(error) => {
                    tracing::warn!(%error, "the resource usage of pods cannot be read");
                    kaji_runtime::time::sleep(&*self.cx.clock, PERIOD).await;
                }
            }
        }
    }

    /// The pods that run or are about to, and may be evicted.
    fn active(&mut self) -> Vec<Arc<Pod>> {
        let all = self.pods.all();
        let shown: HashSet<&str> = all.iter().map(|p| model::uid(p)).collect();
        self.evicted.retain(|uid| shown.contains(uid.as_str()));
        let active = |pod: &&Arc<Pod>| {
            !model::is_terminal(pod) && !model::deleting(pod) && !self.evicted.contains(model::uid(pod))
        };
        all.iter().filter(active).cloned().collect()
    }

    /// One look at the node. The uids of the pods that are evicted.
    ///
    /// # Errors
    /// When the runtime cannot be asked what pods use.
    pub async fn round(&mut self) -> Result<Vec<String>, RuntimeError> {
        let sensors = self.sensors.clone();
        let observations = tokio::task::spawn_blocking(move || sensors.observe()).await;
        let observations = observations.map_err(|error| RuntimeError::Internal(error.to_string()))?;
        let found = assess::assess(&self.settings, &mut self.memory, &observations, self.cx.clock.now());
        let pressures = found.pressures.clone();
        self.pressures.send_if_modified(|shown| {
            let differs = *shown != pressures;
            *shown = pressures;
            differs
        });
        let pods = self.active();
        let limited: Vec<Arc<Pod>> = pods.iter().filter(|p| local_storage::is_limited(p)).cloned().collect();
        let usage = observe::pods_usage(&self.cx, &limited).await?;
        let exceeding = local_storage::exceeding(&limited, &usage, self.layout.layers_with_volumes());
        if !exceeding.is_empty() {
            return Ok(self.evict(exceeding).await);
        }
        let Some((threshold, resource)) = found.most_urgent() else { return Ok(vec![]) };
        let node = super::reference(&self.cx.config.node_name);
        let message = format!("Attempting to reclaim {}", resource.name());
        self.cx.api.record(EventRecord::warning(node, "EvictionThresholdMet", message));
        if self.reclaim(reclaims(threshold.signal, self.layout)).await {
            return Ok(vec![]);
        }
        let usage = observe::pods_usage(&self.cx, &pods).await?;
        let candidates = Candidates { pods: &pods, usage: &usage, layout: self.layout };
        match candidates.choose(&found.met, &observations, self.settings.most_pod_grace) {
            Some(eviction) => Ok(self.evict(vec![eviction]).await),
            None => {
                tracing::warn!(
                    resource = resource.name(),
                    "the node is under pressure and no pod can be evicted"
                );
                Ok(vec![])
            }
        }
    }

    async fn evict(&mut self, evictions: Vec<Eviction>) -> Vec<String> {
        let mut uids = vec![];
        for eviction in evictions {
            let uid = eviction.uid.clone();
            if self.evictions.send(eviction).await.is_ok() {
                self.evicted.insert(uid.clone());
                uids.push(uid);
            }
        }
        uids
    }

    /// Removes containers and images that nothing uses. Whether the node is out of pressure then.
    async fn reclaim(&self, what: Reclaims) -> bool {
        if !what.containers && !what.images {
            return false;
        }
        if what.containers
            && let Err(error) = self.remove_containers().await
        {
            tracing::warn!(%error, "containers that have ended cannot be removed");
        }
        if what.images
            && let Err(error) = self.images.remove_unused().await
        {
            tracing::warn!(%error, "images that nothing uses cannot be removed");
        }
        let sensors = self.sensors.clone();
        let Ok(observations) = tokio::task::spawn_blocking(move || sensors.observe()).await else {
            return false;
        };
        assess::met(&self.settings.thresholds, &observations, true).is_empty()
    }

    async fn remove_containers(&self) -> Result<(), RuntimeError> {
        let live = self
            .pods
            .all()
            .iter()
            .filter(|p| !model::is_terminal(p))
            .map(|p| model::uid(p).to_owned())
            .collect();
        let all = self.cx.runtime.list_containers(ContainerFilter::default()).await?;
        for id in unused_containers(&all, &live) {
            self.cx.runtime.remove_container(&id).await?;
        }
        Ok(())
    }

    /// Waits until evicted pods are over.
    async fn wait_for(&self, uids: &[String]) {
        let over = async {
            loop {
                let pods = self.pods.all();
                let mut own = pods.iter().filter(|p| uids.iter().any(|uid| uid == model::uid(p)));
                if own.all(|p| model::is_terminal(p)) {
                    return;
                }
                kaji_runtime::time::sleep(&*self.cx.clock, OBSERVE_INTERVAL).await;
            }
        };
        tokio::select! {
            () = over => {}
            () = kaji_runtime::time::sleep(&*self.cx.clock, CLEANUP) => {
                tracing::warn!("an evicted pod has not ended in time");
            }
        }
    }
}

/// What else than pods is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reclaims {
    containers: bool,
    images: bool,
}

/// What else than pods can be removed for a signal. Upstream's `buildSignalToNodeReclaimFuncs`.
fn reclaims(signal: Signal, layout: DiskLayout) -> Reclaims {
    let disk = matches!(signal.resource(), EvictionResource::EphemeralStorage | EvictionResource::Inodes);
    let disks = layout.disks(signal);
    Reclaims {
        containers: disk && matches!(disks, Disks::All | Disks::Layers),
        images: match layout {
            DiskLayout::Images => disk && disks == Disks::None,
            _ => disk && disks != Disks::Node,
        },
    }
}

/// The containers that have ended and of which nothing is needed any more: all of pods that are over, and of the others those that
/// are not the newest of their name. Images that only they use can go then.
fn unused_containers(all: &[ContainerInfo], live: &HashSet<String>) -> Vec<String> {
    let mut newest: HashMap<(&str, &str), (u32, i64)> = HashMap::new();
    let age = |c: &ContainerInfo| (c.metadata.attempt, c.created_at_nanos);
    for container in all {
        let Some(uid) = labels::container_pod_uid(container) else { continue };
        let entry = newest.entry((uid, labels::container_name(container))).or_insert(age(container));
        *entry = (*entry).max(age(container));
    }
    let unused = |container: &&ContainerInfo| {
        let Some(uid) = labels::container_pod_uid(container) else { return false };
        let last = newest.get(&(uid, labels::container_name(container))) == Some(&age(container));
        container.state == ContainerState::Exited && !(live.contains(uid) && last)
    };
    all.iter().filter(unused).map(|c| c.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_containers::{ContainerMetadata, ImageSpec};
    use std::collections::BTreeMap;

    #[test]
    fn what_is_removed_before_pods_is_on_the_disk_that_is_full() {
        let mut shown = vec![];
        for layout in [DiskLayout::Shared, DiskLayout::ImagesAndLayers, DiskLayout::Images] {
            for signal in [
                Signal::NodeFsAvailable,
                Signal::ImageFsInodesFree,
                Signal::ContainerFsAvailable,
                Signal::MemoryAvailable,
            ] {
                let what = reclaims(signal, layout);
                let names = [(what.containers, "containers"), (what.images, "images")];
                let names: Vec<_> =
                    names.into_iter().filter(|(removed, _)| *removed).map(|(_, n)| n).collect();
                shown.push(format!("{layout:?} {}: {}", signal.name(), names.join(" ")));
            }
        }
        expect_test::expect![[r#"
            Shared nodefs.available: containers images
            Shared imagefs.inodesFree: containers images
            Shared containerfs.available: containers images
            Shared memory.available: 
            ImagesAndLayers nodefs.available: 
            ImagesAndLayers imagefs.inodesFree: containers images
            ImagesAndLayers containerfs.available: containers images
            ImagesAndLayers memory.available: 
            Images nodefs.available: containers
            Images imagefs.inodesFree: images
            Images containerfs.available: containers
            Images memory.available: "#]]
        .assert_eq(&shown.join("\n"));
    }

    #[test]
    fn the_newest_container_of_a_live_pod_is_kept() {
        let container = |id: &str, pod: Option<&str>, attempt, state| ContainerInfo {
            id: id.into(),
            sandbox_id: "s".into(),
            metadata: ContainerMetadata { name: "c".into(), attempt },
            image: ImageSpec::default(),
            image_id: "i".into(),
            state,
            created_at_nanos: i64::from(attempt),
            labels: pod.map(|uid| (labels::POD_UID.to_owned(), uid.to_owned())).into_iter().collect(),
            annotations: BTreeMap::new(),
        };
        let all = [
            container("live-0", Some("live"), 0, ContainerState::Exited),
            container("live-1", Some("live"), 1, ContainerState::Exited),
            container("busy-0", Some("busy"), 0, ContainerState::Exited),
            container("busy-1", Some("busy"), 1, ContainerState::Running),
            container("over-0", Some("over"), 0, ContainerState::Exited),
            container("over-1", Some("over"), 1, ContainerState::Running),
            container("foreign", None, 0, ContainerState::Exited),
        ];
        let live = ["live", "busy"].map(str::to_owned).into();
        assert_eq!(unused_containers(&all, &live), ["live-0", "busy-0", "over-0"]);
    }
}
