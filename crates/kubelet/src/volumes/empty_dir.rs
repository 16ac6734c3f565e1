//! Empty directories, on the node's disk or in memory.

use super::{VolumeManager, group, text};
use crate::pods::core::{Pod, Volume};
use crate::pods::model;
use std::os::unix::fs::PermissionsExt;

impl VolumeManager {
    pub(super) fn empty_dir(&self, pod: &Pod, volume: &Volume, memory: bool) -> Result<(), String> {
        let dir = self.dir(model::uid(pod), "empty-dir", &volume.name);
        let mounted = memory && self.mounter.is_mount_point(&dir);
        if dir.exists() && (!memory || mounted) {
            return Ok(());
        }
        let source = volume.empty_dir.clone().unwrap_or_default();
        // A new file system in memory is sticky, as /tmp is.
        let default = if memory { 0o1777 } else { 0o777 };
        let mode = source.mode.and_then(|m| u32::try_from(m).ok()).unwrap_or(default);
        self.create(&dir, mode)?;
        if memory {
            if !self.mounter.can_mount() {
                return Err("this kubelet may not mount file systems".to_owned());
            }
            let limit = source.size_limit.as_ref().map(|q| model::quantity(q).value()).filter(|l| *l > 0);
            // Memory of a volume counts as the pod's: its own limit bounds it as well.
            let of_pod = crate::pods::resources::of_pod(pod).memory_limit_bytes;
            let size = [limit, Some(of_pod).filter(|l| *l > 0)].into_iter().flatten().min();
            self.mounter.tmpfs(&dir, size, mode).map_err(text(&dir))?;
        }
        if let Some(group) = group(pod) {
            kaji_files::chown(&dir, None, Some(group)).map_err(text(&dir))?;
            let mode = std::fs::Permissions::from_mode(mode | 0o2770);
            std::fs::set_permissions(&dir, mode).map_err(text(&dir))?;
        }
        Ok(())
    }
}
