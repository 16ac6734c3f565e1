//! What an administrator can set of how a kubelet keeps its node in order, with upstream's defaults; and the task that does it.

use super::eviction::EvictionManager;
use super::eviction::assess::{self, Memory, Observations};
use super::eviction::observe::{KernelSensors, NodeDisks, Sensors};
use super::eviction::thresholds::{Amount, EvictionResource, EvictionSettings, Pressure};
use super::image_gc::ImageCollector;
use super::image_gc::plan::Thresholds;
use super::{BoundPods, DispatcherEvent, FullPod, MAX_EVENTS, RELIST};
use crate::pods::context::NodeContext;
use crate::pods::log_rotation::LogLimits;
use kaji_containers::FilesystemUsage;
use kaji_runtime::Informer;
use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// What is kept free at most on a disk that was crowded before the kubelet came: bytes, and inodes.
const CROWDED_BYTES: i64 = 1 << 30;
const CROWDED_INODES: i64 = 10_000;
/// An image threshold that is never reached.
const NEVER: u8 = 101;

/// Limits of what a node's pods may leave on it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Housekeeping {
    /// Logs of containers.
    pub logs: LogLimits,
    /// Images that nothing uses.
    pub images: Thresholds,
    /// Pods, when the node runs short of something.
    pub eviction: EvictionSettings,
}

impl Housekeeping {
    /// Settings for a machine that other files than those of pods have filled already, by what is observed before any pod
    /// runs. A part of the whole disk cannot be kept free there, and no pod could ever run: instead of it
    /// a gibibyte is, or half of what is left, and images are removed only when that is short. Whether anything changed.
    #[must_use]
    pub fn on_crowded_disks(mut self, observed: &Observations) -> (Housekeeping, bool) {
        let mut crowded = false;
        for threshold in &mut self.eviction.thresholds {
            let is_met = !assess::met(&[*threshold], observed, false).is_empty();
            let part =
                matches!(threshold.least, Amount::Part(_)) && threshold.signal.pressure() == Pressure::Disk;
            let Some(found) = observed.get(&threshold.signal).filter(|_| is_met && part) else { continue };
            let most = if threshold.signal.resource() == EvictionResource::Inodes {
                CROWDED_INODES
            } else {
                CROWDED_BYTES
            };
            threshold.least = Amount::Units((found.available / 2).min(most));
            crowded = true;
        }
        if crowded {
            self.images.high_percent = NEVER;
        }
        (self, crowded)
    }
}

/// Removes images that nothing uses, and evicts pods when the node runs short of something.
pub(super) async fn keep_order(
    cx: Arc<NodeContext>,
    housekeeping: Housekeeping,
    pods: Arc<Informer<FullPod>>,
    events: mpsc::Sender<DispatcherEvent>,
    pressures: watch::Sender<BTreeSet<Pressure>>,
) {
    let (images, layers) = loop {
        match cx.images.filesystems().await {
            Ok(found) => {
                let first = |all: &[FilesystemUsage]| all.first().map(|f| PathBuf::from(&f.mountpoint));
                break (first(&found.images), first(&found.containers));
            }
            Err(error) => tracing::warn!(%error, "the file system of images is not known yet"),
        }
        kaji_runtime::time::sleep(&*cx.clock, RELIST).await;
    };
    let node = cx.config.root_dir.clone();
    let images = images.unwrap_or_else(|| node.clone());
    let disks = NodeDisks { layers: layers.unwrap_or_else(|| images.clone()), images, node };
    let layout = disks.layout();
    let image_directory = disks.images.clone();
    let sensors = Arc::new(KernelSensors { cx: cx.clone(), disks });
    let (eviction, replaced) = housekeeping.eviction.on_disks(layout);
    let housekeeping = Housekeeping { eviction, ..housekeeping };
    if replaced {
        tracing::error!(
            "eviction manager: found conflicting containerfs eviction. Ignoring. It is that of the file system of images or volumes."
        );
    }
    let (housekeeping, crowded) = housekeeping.on_crowded_disks(&sensors.observe());
    if crowded {
        tracing::warn!(
            "the node's disk is nearly full; thresholds of eviction are lowered to what is left of it"
        );
    }
    let collector = Arc::new(ImageCollector::new(cx.clone(), housekeeping.images, image_directory));
    let (evictions, mut chosen) = mpsc::channel(MAX_EVENTS);
    let manager = EvictionManager {
        settings: housekeeping.eviction,
        layout,
        sensors,
        images: collector.clone(),
        pods: Arc::new(BoundPods(pods)),
        evictions,
        pressures,
        memory: Memory::default(),
        evicted: HashSet::new(),
        cx,
    };
    let forward = async {
        while let Some(eviction) = chosen.recv().await {
            if events.send(DispatcherEvent::Evict(eviction)).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(collector.run(), manager.run(), forward);
}

#[cfg(test)]
mod tests {
    use super::super::eviction::assess::Observation;
    use super::super::eviction::thresholds::Signal;
    use super::*;

    #[test]
    fn thresholds_of_crowded_disks_leave_room_for_pods() {
        let of = |available: i64| Observation { available: available << 30, capacity: 250 << 30 };
        let observed = Observations::from([
            (Signal::NodeFsAvailable, of(14)),
            (Signal::ImageFsAvailable, of(1)),
            (Signal::NodeFsInodesFree, of(100)),
            (Signal::MemoryAvailable, Observation { available: 0, capacity: 1 << 30 }),
        ]);
        let (settings, crowded) = Housekeeping::default().on_crowded_disks(&observed);
        let shown: Vec<_> = settings
            .eviction
            .thresholds
            .iter()
            .map(|t| format!("{} {:?}", t.signal.name(), t.least))
            .collect();
        expect_test::expect![[r#"
            memory.available Units(104857600)
            allocatableMemory.available Units(104857600)
            nodefs.available Units(1073741824)
            nodefs.inodesFree Part(0.05)
            imagefs.available Units(536870912)
            imagefs.inodesFree Part(0.05)"#]]
        .assert_eq(&shown.join("\n"));
        assert!(crowded && settings.images.high_percent > 100);
        let roomy = Observations::from([(Signal::NodeFsAvailable, of(100))]);
        assert_eq!(Housekeeping::default().on_crowded_disks(&roomy), (Housekeeping::default(), false));
    }
}
