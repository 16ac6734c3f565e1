//! Taking CSI volumes from pods, by what is on disk: the API may not show the pod any more.

use super::attach::log;
use super::record::{self, Record};
use super::{DIRECTORY, PLUGIN};
use crate::volumes::VolumeManager;
use std::collections::BTreeSet;
use std::path::Path;

impl VolumeManager {
    /// Unpublishes all CSI volumes of a pod, and unstages those that no other pod has.
    ///
    /// # Errors
    /// A text for the log: the pod keeps what could not be undone, and this is tried again.
    pub(in crate::volumes) async fn csi_tear_down(&self, uid: &str) -> Result<(), String> {
        self.csi.forget(uid);
        let mut volumes = BTreeSet::new();
        for (dir, record) in record::of_pod(&self.pod_dir(uid)) {
            self.unpublish(uid, &dir, &record).await.map_err(|error| {
                format!("UnmountVolume.TearDown failed for volume \"{}\" : {error}", record.spec_name)
            })?;
            if record.lifecycle != "Ephemeral" {
                volumes.insert((record.driver, record.handle));
            }
        }
        for (driver, handle) in volumes {
            self.unstage(&driver, &handle)
                .await
                .map_err(|error| format!("UnmountDevice failed for volume \"{handle}\" : {error}"))?;
        }
        Ok(())
    }

    async fn unpublish(&self, uid: &str, dir: &Path, record: &Record) -> Result<(), String> {
        let path = if record.block {
            let published = self.root.join("plugins").join(PLUGIN).join("volumeDevices/publish");
            published.join(&record.spec_name).join(uid)
        } else {
            dir.join("mount")
        };
        let lock = self.csi.lock(&record.driver, &record.handle);
        let _one_at_a_time = lock.lock().await;
        let driver = self
            .csi
            .get(&record.driver)
            .map_err(|e| log(format!("Unmounter.TearDownAt failed to get CSI client: {e}")))?;
        driver
            .unpublish(&record.handle, &path.display().to_string())
            .await
            .map_err(|e| log(format!("Unmounter.TearDownAt failed: {e}")))?;
        if self.mounter.is_mount_point(&path) {
            return Err(log(format!("{} is still mounted", path.display())));
        }
        Record::remove(dir, &path).map_err(|e| {
            log(format!("Unmounter.TearDownAt failed to clean mount dir [{}]: {e}", path.display()))
        })
    }

    /// Unstages what no pod has: a kubelet before this one may have ended between the two steps.
    pub(in crate::volumes) async fn csi_sweep(&self) {
        let staged = record::staged(&self.root.join("plugins").join(PLUGIN));
        for record in staged.into_values() {
            if let Err(error) = self.unstage(&record.driver, &record.handle).await {
                tracing::debug!(
                    error,
                    volume = record.handle,
                    "a volume that no pod uses could not be unstaged"
                );
            }
        }
    }

    /// The directories that CSI volumes have in a pod's.
    pub(in crate::volumes) fn csi_directory() -> String {
        format!("kubernetes.io~{DIRECTORY}")
    }
}
