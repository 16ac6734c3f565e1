//! Taking a pod's volumes down, by what is on disk and in the mount table.
//!
//! Invariant: files of volumes that outlive the pod are never removed. What may be one is unmounted and its directory removed
//! only when that is empty.

use super::{VolumeManager, persistent, text};
use std::io;
use std::path::Path;
use std::sync::PoisonError;

impl VolumeManager {
    /// Whether something is mounted in a directory.
    #[must_use]
    pub fn has_mounts(&self, dir: &Path) -> bool {
        !self.mounter.below(dir).is_empty()
    }

    /// Takes down all volumes of a pod, whatever its spec: CSI drivers are asked to, and what is mounted below its directory is
    /// unmounted.
    ///
    /// # Errors
    /// A text for the log.
    pub async fn tear_down(&self, uid: &str) -> Result<(), String> {
        self.tokens.forget(uid);
        self.certificates.forget(uid);
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        let dir = self.pod_dir(uid);
        // Sub-paths are mounts of volumes: they go before those.
        self.unmount_below(&dir.join("volume-subpaths"))?;
        self.csi_tear_down(uid).await?;
        self.unmount_below(&dir)?;
        remove_all(&dir.join("volume-subpaths"))?;
        let kept = [persistent::LOCAL, persistent::NFS].map(|name| format!("kubernetes.io~{name}"));
        for plugin in kept.into_iter().chain([Self::csi_directory()]) {
            remove_empty(&dir.join("volumes").join(&plugin))?;
            remove_empty(&dir.join("volumeDevices").join(&plugin))?;
        }
        remove_all(&dir.join("volumes"))?;
        remove_all(&dir.join("volumeDevices"))
    }

    /// Unstages volumes that no pod has.
    pub async fn sweep(&self) {
        self.csi_sweep().await;
    }

    fn unmount_below(&self, dir: &Path) -> Result<(), String> {
        let mut mounts = self.mounter.below(dir);
        // The deepest go first.
        mounts.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
        for mount in mounts {
            self.mounter.unmount(&mount).map_err(text(&mount))?;
        }
        match self.mounter.below(dir).first() {
            None => Ok(()),
            Some(mount) => Err(format!("{} is still mounted", mount.display())),
        }
    }
}

fn remove_all(dir: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(text(dir)(error)),
        _ => Ok(()),
    }
}

/// Removes the empty directories of a directory, and then itself.
fn remove_empty(dir: &Path) -> Result<(), String> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(text(dir)(error)),
    };
    for entry in entries {
        let path = entry.map_err(text(dir))?.path();
        std::fs::remove_dir(&path).map_err(text(&path))?;
    }
    std::fs::remove_dir(dir).map_err(text(dir))
}
