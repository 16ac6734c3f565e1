//! Volumes of pods: set up before containers start, kept up to date while they run, taken down after they ended.
//!
//! A volume is a directory below `pods/<uid>/volumes/kubernetes.io~<plug-in>/<name>`; a hostPath volume is the path itself.
//!
//! Invariants: contents from the API appear in a volume all at once ([`atomic`]); no path of a pod leads outside its volume
//! ([`sub_path`]); what is mounted is found again from the mount table after a restart.

mod atomic;
mod content;
mod host_path;
mod mounter;
mod sub_path;
mod tokens;

pub use mounter::{KernelMounter, Mounter};

use crate::pods::context::NodeContext;
use crate::pods::core::{Container, Pod, Volume, VolumeMount};
use crate::pods::{expansion, model};
use content::Content;
use kaji_containers::{ImageSpec, Mount, MountPropagation};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokens::Tokens;

/// The volumes of a node's pods.
pub struct VolumeManager {
    root: PathBuf,
    mounter: Arc<dyn Mounter>,
    tokens: Tokens,
}

/// Which plug-in a volume is of.
enum Plugin {
    EmptyDir { memory: bool },
    Content(&'static str),
    HostPath,
    Image,
    Unsupported(&'static str),
}

fn plugin(volume: &Volume) -> Plugin {
    if let Some(source) = &volume.empty_dir {
        return match source.medium.as_deref().unwrap_or_default() {
            "" => Plugin::EmptyDir { memory: false },
            "Memory" => Plugin::EmptyDir { memory: true },
            _ => Plugin::Unsupported("emptyDir of huge pages"),
        };
    }
    let content = [
        (volume.config_map.is_some(), "configmap"),
        (volume.secret.is_some(), "secret"),
        (volume.projected.is_some(), "projected"),
        (volume.downward_api.is_some(), "downward-api"),
    ];
    if let Some((_, name)) = content.iter().find(|(set, _)| *set) {
        return Plugin::Content(name);
    }
    if volume.host_path.is_some() {
        return Plugin::HostPath;
    }
    if volume.image.is_some() {
        return Plugin::Image;
    }
    let others = [
        (volume.persistent_volume_claim.is_some(), "persistentVolumeClaim"),
        (volume.ephemeral.is_some(), "ephemeral"),
        (volume.csi.is_some(), "csi"),
        (volume.nfs.is_some(), "nfs"),
        (volume.iscsi.is_some(), "iscsi"),
        (volume.fc.is_some(), "fc"),
        (volume.git_repo.is_some(), "gitRepo"),
    ];
    Plugin::Unsupported(others.iter().find(|(set, _)| *set).map_or("unknown", |(_, name)| name))
}

/// The group that may write a pod's volumes.
fn group(pod: &Pod) -> Option<u32> {
    let context = model::spec(pod).security_context.as_ref();
    context.and_then(|s| s.fs_group).and_then(|g| u32::try_from(g).ok())
}

fn text(path: &Path) -> impl Fn(std::io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

impl VolumeManager {
    /// Below the kubelet's directory.
    #[must_use]
    pub fn new(root: PathBuf, mounter: Arc<dyn Mounter>) -> VolumeManager {
        VolumeManager { root, mounter, tokens: Tokens::default() }
    }

    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    fn dir(&self, uid: &str, plugin: &str, volume: &str) -> PathBuf {
        self.pod_dir(uid).join("volumes").join(format!("kubernetes.io~{plugin}")).join(volume)
    }

    fn path(&self, pod: &Pod, volume: &Volume) -> Option<PathBuf> {
        let uid = model::uid(pod);
        match plugin(volume) {
            Plugin::EmptyDir { .. } => Some(self.dir(uid, "empty-dir", &volume.name)),
            Plugin::Content(name) => Some(self.dir(uid, name, &volume.name)),
            Plugin::HostPath => volume.host_path.as_ref().map(|h| PathBuf::from(&h.path)),
            Plugin::Image | Plugin::Unsupported(_) => None,
        }
    }

    /// Sets up all volumes of a pod, and brings the contents of those that are up to date. Called again it changes only what
    /// differs.
    ///
    /// # Errors
    /// The text of a `FailedMount` event, of the first volume that failed.
    pub async fn set_up(&self, cx: &NodeContext, pod: &Pod) -> Result<(), String> {
        for volume in model::spec(pod).volumes.iter().flatten() {
            self.set_up_one(cx, pod, volume)
                .await
                .map_err(|e| format!("MountVolume.SetUp failed for volume \"{}\" : {e}", volume.name))?;
        }
        Ok(())
    }

    async fn set_up_one(&self, cx: &NodeContext, pod: &Pod, volume: &Volume) -> Result<(), String> {
        match plugin(volume) {
            Plugin::EmptyDir { memory } => self.empty_dir(pod, volume, memory),
            Plugin::Content(name) => {
                let dir = self.dir(model::uid(pod), name, &volume.name);
                let content: Content = content::of_volume(cx, &self.tokens, pod, volume).await?;
                if !dir.exists() {
                    self.create(&dir, 0o755)?;
                    // What holds secrets is not written to a disk.
                    if matches!(name, "secret" | "projected") && self.mounter.can_mount() {
                        self.mounter.tmpfs(&dir, None, 0o755).map_err(text(&dir))?;
                    }
                }
                atomic::write(&dir, &content, group(pod)).map_err(text(&dir))
            }
            Plugin::HostPath => match &volume.host_path {
                Some(source) => host_path::check(source),
                None => Ok(()),
            },
            Plugin::Image => Ok(()),
            Plugin::Unsupported(name) => {
                Err(format!("volumes of type {name} are not supported by this node"))
            }
        }
    }

    fn create(&self, dir: &Path, mode: u32) -> Result<(), String> {
        std::fs::create_dir_all(dir).map_err(text(dir))?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).map_err(text(dir))
    }

    fn empty_dir(&self, pod: &Pod, volume: &Volume, memory: bool) -> Result<(), String> {
        let dir = self.dir(model::uid(pod), "empty-dir", &volume.name);
        let mounted = memory && self.mounter.is_mount_point(&dir);
        if dir.exists() && (!memory || mounted) {
            return Ok(());
        }
        let source = volume.empty_dir.clone().unwrap_or_default();
        let mode = source.mode.and_then(|m| u32::try_from(m).ok()).unwrap_or(0o777);
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
            std::os::unix::fs::chown(&dir, None, Some(group)).map_err(text(&dir))?;
            let mode = std::fs::Permissions::from_mode(mode | 0o2770);
            std::fs::set_permissions(&dir, mode).map_err(text(&dir))?;
        }
        Ok(())
    }

    /// The mounts of a container.
    ///
    /// # Errors
    /// The message of `CreateContainerConfigError`.
    pub async fn mounts(
        &self,
        pod: &Pod,
        container: &Container,
        values: &BTreeMap<&str, &str>,
    ) -> Result<Vec<Mount>, String> {
        if container.volume_devices.as_ref().is_some_and(|d| !d.is_empty()) {
            return Err("block volumes (volumeDevices) are not supported by this node".to_owned());
        }
        let mounts = container.volume_mounts.iter().flatten().enumerate();
        mounts.map(|(index, mount)| self.mount(pod, container, (index, mount), values)).collect()
    }

    fn mount(
        &self,
        pod: &Pod,
        container: &Container,
        (index, mount): (usize, &VolumeMount),
        values: &BTreeMap<&str, &str>,
    ) -> Result<Mount, String> {
        let volume = model::spec(pod).volumes.iter().flatten().find(|v| v.name == mount.name);
        let missing = || {
            format!("cannot find volume \"{}\" to mount into container \"{}\"", mount.name, container.name)
        };
        let volume = volume.ok_or_else(missing)?;
        let read_only = mount.read_only.unwrap_or(false);
        let mut made = Mount {
            container_path: absolute(&mount.mount_path),
            readonly: read_only,
            recursive_read_only: read_only
                && matches!(mount.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible")),
            propagation: match mount.mount_propagation.as_deref() {
                Some("HostToContainer") => MountPropagation::HostToContainer,
                Some("Bidirectional") => MountPropagation::Bidirectional,
                _ => MountPropagation::Private,
            },
            selinux_relabel: !matches!(plugin(volume), Plugin::HostPath),
            ..Mount::default()
        };
        let sub_path = sub_path_of(mount, values)?;
        if let Some(image) = &volume.image {
            made.readonly = true;
            made.image = Some(ImageSpec::from(image.reference.as_deref().unwrap_or_default()));
            made.image_sub_path = sub_path.unwrap_or_default();
            return Ok(made);
        }
        let path = self.path(pod, volume).ok_or_else(missing)?;
        made.host_path = match sub_path {
            None => path.display().to_string(),
            Some(sub) => {
                let target = self.pod_dir(model::uid(pod)).join("volume-subpaths").join(&volume.name);
                let target = target.join(&container.name).join(index.to_string());
                sub_path::bind(&*self.mounter, &path, &sub, &target)
                    .map_err(|e| {
                        tracing::warn!(pod = model::display(pod), volume = mount.name, error = e, "subPath");
                        format!(
                            "failed to prepare subPath for volumeMount \"{}\" of container \"{}\"",
                            mount.name, container.name
                        )
                    })?
                    .display()
                    .to_string()
            }
        };
        Ok(made)
    }

    /// Whether something is mounted in a directory.
    #[must_use]
    pub fn has_mounts(&self, dir: &Path) -> bool {
        !self.mounter.below(dir).is_empty()
    }

    /// Takes down all volumes of a pod, whatever its spec: what is mounted below its directory is unmounted.
    ///
    /// # Errors
    /// A text for the log.
    pub async fn tear_down(&self, uid: &str) -> Result<(), String> {
        self.tokens.forget(uid);
        let dir = self.pod_dir(uid);
        let mut mounts = self.mounter.below(&dir);
        // The deepest go first.
        mounts.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
        for mount in mounts {
            self.mounter.unmount(&mount).map_err(text(&mount))?;
        }
        for part in ["volumes", "volume-subpaths"] {
            match std::fs::remove_dir_all(dir.join(part)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(text(&dir)(error)),
                _ => {}
            }
        }
        Ok(())
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

fn sub_path_of(mount: &VolumeMount, values: &BTreeMap<&str, &str>) -> Result<Option<String>, String> {
    let plain = mount.sub_path.clone().filter(|s| !s.is_empty());
    let sub = match mount.sub_path_expr.as_deref().filter(|s| !s.is_empty()) {
        None => plain,
        Some(expression) => {
            let missing = std::cell::RefCell::new(std::collections::BTreeSet::new());
            let expanded = expansion::expand(expression, |name| {
                let value = values.get(name).filter(|v| !v.is_empty()).map(|v| (*v).to_owned());
                if value.is_none() {
                    missing.borrow_mut().insert(name.to_owned());
                }
                value
            });
            let missing: Vec<String> = missing.into_inner().into_iter().collect();
            if !missing.is_empty() {
                return Err(format!("missing value for {}", missing.join(", ")));
            }
            Some(expanded)
        }
    };
    let Some(sub) = sub else { return Ok(None) };
    if sub.starts_with('/') {
        return Err(format!("error SubPath `{sub}` must not be an absolute path"));
    }
    if sub.split('/').any(|part| part == "..") {
        return Err(format!("unable to provision SubPath `{sub}`: must not contain '..'"));
    }
    Ok(Some(sub))
}
