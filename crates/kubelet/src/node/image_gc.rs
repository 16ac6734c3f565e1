//! Garbage collection of images on a node. Upstream's `images/image_gc_manager.go`.
//!
//! Invariants: an image that a container of the runtime was made of, whatever its state, is never removed; what the kubelet knows of
//! images begins anew with it, so that each is kept for the minimum age after a start.

pub mod plan;

use super::usage::FileSystem;
use crate::pods::context::NodeContext;
use jiff::Timestamp;
use kaji_containers::{ContainerFilter, Image, ImageSpec, RuntimeError};
use kaji_runtime::EventRecord;
use plan::{Disk, KnownImage, Plan, Thresholds};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// Upstream's `ImageGCPeriod`.
const PERIOD: Duration = Duration::from_secs(300);

/// Removes images that nothing uses.
pub struct ImageCollector {
    cx: Arc<NodeContext>,
    thresholds: Thresholds,
    began: Timestamp,
    /// A directory on the file system of images.
    directory: PathBuf,
    /// By id. Held while images are removed, so that two removals do not run at once.
    known: Mutex<HashMap<String, KnownImage>>,
}

impl ImageCollector {
    /// `directory` is on the file system of images.
    #[must_use]
    pub fn new(cx: Arc<NodeContext>, thresholds: Thresholds, directory: PathBuf) -> ImageCollector {
        ImageCollector { began: cx.clock.now(), cx, thresholds, directory, known: Mutex::default() }
    }

    /// Removes images now and then, for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            if let Err(error) = self.collect().await {
                tracing::warn!(%error, "images cannot be collected");
            }
            kaji_runtime::time::sleep(&*self.cx.clock, PERIOD).await;
        }
    }

    /// Removes what is too old or takes too much of the disk.
    ///
    /// # Errors
    /// When the runtime cannot be asked, or the disk is not there.
    pub async fn collect(&self) -> Result<(), RuntimeError> {
        let mut known = self.known.lock().await;
        let now = self.cx.clock.now();
        let in_use = self.detect(&mut known, now).await?;
        let disk = FileSystem::read(&self.directory)?;
        let disk = Disk { capacity: disk.capacity, available: disk.available };
        let images: Vec<KnownImage> = known.values().cloned().collect();
        let plan = plan::plan(&images, &in_use, (now, self.began), disk, &self.thresholds);
        self.carry_out(&mut known, plan).await;
        Ok(())
    }

    /// Removes all images that nothing uses, because the node's disk is full.
    ///
    /// # Errors
    /// When the runtime cannot be asked.
    pub async fn remove_unused(&self) -> Result<(), RuntimeError> {
        let mut known = self.known.lock().await;
        let now = self.cx.clock.now();
        let in_use = self.detect(&mut known, now).await?;
        let images: Vec<KnownImage> = known.values().cloned().collect();
        let plan = plan::plan_all(&images, &in_use, now, &self.thresholds);
        self.carry_out(&mut known, plan).await;
        Ok(())
    }

    async fn carry_out(&self, known: &mut HashMap<String, KnownImage>, plan: Plan) {
        if let Some((reason, message)) = plan.event {
            let node = super::reference(&self.cx.config.node_name);
            self.cx.api.record(EventRecord::warning(node, reason, message));
        }
        for id in plan.by_age.iter().chain(&plan.by_space) {
            match self.cx.images.remove_image(&ImageSpec::from(id.as_str())).await {
                Ok(()) => {
                    tracing::info!(image = id, "an image that nothing uses was removed");
                    known.remove(id);
                }
                Err(error) => tracing::warn!(image = id, %error, "an image cannot be removed"),
            }
        }
    }

    /// Brings what is known of images up to date. The ids of those in use.
    async fn detect(
        &self,
        known: &mut HashMap<String, KnownImage>,
        now: Timestamp,
    ) -> Result<BTreeSet<String>, RuntimeError> {
        let images = self.cx.images.list_images().await?;
        self.cx.pull_records.prune(&images, now).await;
        let mut in_use = BTreeSet::new();
        for info in self.cx.runtime.list_containers(ContainerFilter::default()).await? {
            in_use.insert(info.image_id.clone());
            let status = match self.cx.runtime.container_status(&info.id).await {
                Err(error) if error.is_not_found() => continue,
                status => status?,
            };
            let volumes = status.mounts.iter().filter_map(|m| m.image.as_ref()).map(|i| i.image.as_str());
            for name in volumes.chain([info.image.image.as_str(), status.image_ref.as_str()]) {
                in_use.extend(images.iter().filter(|i| is_named(i, name)).map(|i| i.id.clone()));
            }
        }
        known.retain(|id, _| images.iter().any(|i| i.id == *id));
        for image in images {
            let entry = known.entry(image.id.clone()).or_insert_with(|| KnownImage {
                id: image.id.clone(),
                size: 0,
                first_detected: now,
                last_used: None,
                pinned: false,
            });
            (entry.size, entry.pinned) = (image.size, image.pinned);
            if in_use.contains(&image.id) {
                entry.last_used = Some(now);
            }
        }
        Ok(in_use)
    }
}

fn is_named(image: &Image, name: &str) -> bool {
    image.id == name || image.names().any(|n| n == name)
}
