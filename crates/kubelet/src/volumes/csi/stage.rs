//! Staging: what a driver does once a node, before the first pod has the volume.

use super::attach::{log, secrets};
use super::record::{self, Record};
use super::volume::CsiVolume;
use crate::pods::context::NodeContext;
use crate::volumes::VolumeManager;
use kaji_csi::messages::NodeStageVolumeRequest;
use kaji_csi::{Capabilities, Driver, is_final};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

impl super::CsiDrivers {
    /// Where a volume's record is.
    pub(super) fn global(&self, driver: &str, handle: &str) -> PathBuf {
        record::global(&self.global_dir(), driver, handle)
    }

    /// Where a volume is staged.
    pub(super) fn staging_path(&self, record: &Record) -> PathBuf {
        if record.block {
            self.global_dir().join("volumeDevices/staging").join(&record.spec_name)
        } else {
            self.global(&record.driver, &record.handle).join("globalmount")
        }
    }
}

impl VolumeManager {
    /// Stages a volume where its driver does that. Answers where. Called with the volume's lock.
    pub(super) async fn stage(
        &self,
        cx: &NodeContext,
        volume: &CsiVolume,
        (driver, capabilities): (&Driver, Capabilities),
        context: &BTreeMap<String, String>,
        (record, group): (&Record, Option<i64>),
    ) -> Result<PathBuf, String> {
        let dir = self.csi.global(&volume.driver, &volume.handle);
        let path = self.csi.staging_path(record);
        let known = Record::read(&dir)?;
        let mounted = record.block || self.mounter.is_mount_point(&path);
        if known.as_ref().is_some_and(|k| k.complete && k.block == record.block) && mounted {
            self.csi.note_staged(record, true);
            return Ok(path);
        }
        record.write(&dir)?;
        self.csi.note_staged(record, true);
        if capabilities.stage {
            std::fs::create_dir_all(&path)
                .map_err(|e| log(format!("attacher.MountDevice failed to create dir {path:?}:  {e}")))?;
            let request = NodeStageVolumeRequest {
                volume_id: volume.handle.clone(),
                publish_context: context.clone(),
                staging_target_path: path.display().to_string(),
                volume_capability: Some(volume.capability(capabilities, group)),
                secrets: secrets(cx, "NodeStageSecretRef", volume.stage_secret.as_ref()).await?,
                volume_context: volume.attributes.clone(),
            };
            if let Err(error) = driver.stage(request).await {
                // A volume that pods have already stays what it is.
                let in_use = record::is_published(&self.root, &volume.driver, &volume.handle);
                if is_final(&error) && known.is_none() && !in_use {
                    self.unstaged(&dir, &path, record)?;
                }
                return Err(error.to_string());
            }
        }
        Record { complete: true, ..record.clone() }.write(&dir)?;
        Ok(path)
    }

    /// Forgets a volume that is not staged.
    fn unstaged(&self, dir: &Path, path: &Path, record: &Record) -> Result<(), String> {
        if self.mounter.is_mount_point(path) {
            return Err(format!("{} is still mounted", path.display()));
        }
        Record::remove(dir, path)?;
        self.csi.note_staged(record, false);
        Ok(())
    }

    /// Unstages a volume that no pod has any more.
    ///
    /// # Errors
    /// A text for the log.
    pub(super) async fn unstage(&self, driver_name: &str, handle: &str) -> Result<(), String> {
        let lock = self.csi.lock(driver_name, handle);
        let _one_at_a_time = lock.lock().await;
        let dir = self.csi.global(driver_name, handle);
        let Some(record) = Record::read(&dir)? else { return Ok(()) };
        if record::is_published(&self.root, driver_name, handle) {
            return Ok(());
        }
        let path = self.csi.staging_path(&record);
        let driver = self.csi.get(driver_name)?;
        let capabilities = driver.capabilities().await.map_err(|e| e.to_string())?;
        if capabilities.stage {
            driver.unstage(handle, &path.display().to_string()).await.map_err(|e| e.to_string())?;
        }
        self.unstaged(&dir, &path, &record)
    }
}
