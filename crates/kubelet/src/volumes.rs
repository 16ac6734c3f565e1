//! Volumes of pods: set up before containers start, kept up to date while they run, taken down after they ended.
//!
//! A volume is a directory below `pods/<uid>/volumes/kubernetes.io~<plug-in>/<name>`; a hostPath volume is the path itself.
//!
//! Invariants: contents from the API appear in a volume all at once ([`atomic`]), and containers cannot write them; no path of a pod
//! leads outside its volume ([`sub_path`]); what is mounted is found again from the mount table after a restart.

mod atomic;
mod claims;
mod content;
mod csi;
mod empty_dir;
mod host_path;
mod kinds;
mod mount_options;
mod mounter;
mod nfs;
mod ownership;
mod persistent;
mod pod_certificates;
mod problem;
mod sub_path;
mod tear_down;
mod tokens;

pub use csi::CsiDrivers;
pub use mounter::{KernelMounter, Mounter};
pub use problem::{ATTACH_TIMEOUT, NotSetUp};

use crate::pods::context::NodeContext;
use crate::pods::core::{Container, Pod, Volume, VolumeMount};
use crate::pods::env_file::LONGEST_FILE;
use crate::pods::environment::VolumeFile;
use crate::pods::{expansion, model};
use content::Content;
use jiff::Timestamp;
use kaji_containers::{Device, ImageSpec, Mount, MountPropagation};
use kinds::{Plugin, Used, plugin};
use persistent::failed;
use pod_certificates::PodCertificates;
use problem::Problem;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokens::Tokens;

/// The volumes of a node's pods.
pub struct VolumeManager {
    root: PathBuf,
    mounter: Arc<dyn Mounter>,
    tokens: Tokens,
    certificates: PodCertificates,
    csi: Arc<CsiDrivers>,
    /// Volumes of claims, CSI drivers and servers that are set up, by uid and name.
    mounted: Mutex<HashMap<String, BTreeMap<String, SetUp>>>,
}

/// A volume that is set up for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SetUp {
    /// What containers mount, or the device.
    path: PathBuf,
    device: bool,
    read_only: bool,
    /// Processes of the pod get this group.
    group: Option<i64>,
    /// It is to be published again now and then.
    republish: bool,
    /// Of a CSI volume, when it was published last.
    since: Option<Timestamp>,
}

impl SetUp {
    fn directory(path: PathBuf) -> SetUp {
        SetUp { path, ..SetUp::default() }
    }
}

/// The claims of a pod by the names of its volumes.
#[must_use]
pub fn claims_of(pod: &Pod) -> BTreeMap<String, String> {
    let volumes = model::spec(pod).volumes.iter().flatten();
    let claimed = volumes.filter(|v| v.persistent_volume_claim.is_some() || v.ephemeral.is_some());
    claimed.map(|volume| (volume.name.clone(), claims::claim_name(pod, volume))).collect()
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
        let csi = Arc::new(CsiDrivers::new(&root));
        let (tokens, certificates) = (Tokens::default(), PodCertificates::default());
        VolumeManager { root, mounter, tokens, certificates, csi, mounted: Mutex::default() }
    }

    /// The CSI drivers that registered.
    #[must_use]
    pub fn csi_drivers(&self) -> &Arc<CsiDrivers> {
        &self.csi
    }

    /// Groups that processes of a pod get because of its volumes.
    #[must_use]
    pub fn groups(&self, uid: &str) -> Vec<i64> {
        let mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
        mounted.get(uid).into_iter().flat_map(BTreeMap::values).filter_map(|v| v.group).collect()
    }

    /// What containers of a pod mount of its claims and drivers, by the names of the volumes.
    #[must_use]
    pub fn set_up_paths(&self, uid: &str) -> Vec<(String, PathBuf)> {
        let mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
        let own = mounted.get(uid).into_iter().flatten().filter(|(_, v)| !v.device);
        own.map(|(name, volume)| (name.clone(), volume.path.clone())).collect()
    }

    fn set_up_already(&self, pod: &Pod, volume: &Volume) -> Option<SetUp> {
        let mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
        mounted.get(model::uid(pod))?.get(&volume.name).cloned()
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
            Plugin::Claim | Plugin::Csi | Plugin::Nfs => {
                self.set_up_already(pod, volume).filter(|v| !v.device).map(|v| v.path)
            }
            Plugin::Image | Plugin::Unsupported(_) => None,
        }
    }

    /// Reads a file of a pod's volume, which containers may be changing. `None` for a volume that is absent.
    #[must_use]
    pub fn read_file(&self, pod: &Pod, volume: &str, path: &str) -> Option<VolumeFile> {
        let volume = model::spec(pod).volumes.iter().flatten().find(|known| known.name == volume)?;
        let root = self.path(pod, volume)?;
        let text = sub_path::read(&root, path, LONGEST_FILE);
        Some(VolumeFile { path: root.join(path.trim_start_matches('/')), text })
    }

    /// Sets up the volumes that containers of a pod use, and brings the contents of those that are up to date. Called again it
    /// changes only what differs.
    ///
    /// # Errors
    /// What failed and what is waited for; the other volumes were set up.
    pub async fn set_up(&self, cx: &NodeContext, pod: &Pod) -> Result<(), NotSetUp> {
        let used = Used::of(pod);
        let volumes = model::spec(pod).volumes.iter().flatten().filter(|v| used.has(&v.name));
        let all = volumes.map(|volume| {
            let used = &used;
            async move { (volume.name.clone(), self.set_up_one(cx, pod, volume, used).await) }
        });
        let outcomes = futures_util::future::join_all(all).await;
        let problems: Vec<(String, Problem)> =
            outcomes.into_iter().filter_map(|(name, outcome)| Some((name, outcome.err()?))).collect();
        if problems.is_empty() { Ok(()) } else { Err(NotSetUp::of(problems)) }
    }

    async fn set_up_one(
        &self,
        cx: &NodeContext,
        pod: &Pod,
        volume: &Volume,
        used: &Used<'_>,
    ) -> Result<(), Problem> {
        let wrong = |text: String| failed("MountVolume.SetUp", &volume.name, text);
        match plugin(volume) {
            Plugin::EmptyDir { memory } => self.empty_dir(pod, volume, memory).map_err(wrong),
            Plugin::Content(name) => self.content(cx, pod, volume, name).await.map_err(wrong),
            Plugin::HostPath => match &volume.host_path {
                Some(source) => host_path::check(source).map_err(wrong),
                None => Ok(()),
            },
            Plugin::Image => Ok(()),
            Plugin::Claim | Plugin::Csi | Plugin::Nfs => self.kept(cx, pod, volume, used).await,
            Plugin::Unsupported(name) => {
                Err(wrong(format!("volumes of type {name} are not supported by this node")))
            }
        }
    }

    /// Sets up a volume that stays what it is, unless that was done.
    async fn kept(
        &self,
        cx: &NodeContext,
        pod: &Pod,
        volume: &Volume,
        used: &Used<'_>,
    ) -> Result<(), Problem> {
        if let Some(known) = self.set_up_already(pod, volume) {
            let due =
                |since: Timestamp| cx.clock.now().duration_since(since).unsigned_abs() >= csi::REPUBLISH;
            if !known.since.is_some_and(due) {
                return Ok(());
            }
            if !known.republish && plugin_is_inline(volume) {
                return Ok(());
            }
        }
        let set_up = match plugin(volume) {
            Plugin::Claim => {
                let claimed = claims::resolve(cx, pod, volume, used).await.map_err(Problem::Unprocessed)?;
                match self.set_up_already(pod, volume).filter(|known| !known.republish) {
                    // It may have grown.
                    Some(known) => self.grow(cx, &claimed, known).await?,
                    None => self.persistent(cx, pod, &claimed).await?,
                }
            }
            _ => self.inline(cx, pod, volume).await?,
        };
        let mut mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
        mounted.entry(model::uid(pod).to_owned()).or_default().insert(volume.name.clone(), set_up);
        Ok(())
    }

    async fn inline(&self, cx: &NodeContext, pod: &Pod, volume: &Volume) -> Result<SetUp, Problem> {
        if let Some(source) = &volume.csi {
            return self.csi_of_pod(cx, pod, &volume.name, source).await;
        }
        match &volume.nfs {
            Some(source) => self.nfs(pod, &volume.name, source, &[]).await,
            None => Err(failed("MountVolume.SetUp", &volume.name, "the volume has no source")),
        }
    }

    async fn content(
        &self,
        cx: &NodeContext,
        pod: &Pod,
        volume: &Volume,
        name: &'static str,
    ) -> Result<(), String> {
        let dir = self.dir(model::uid(pod), name, &volume.name);
        let content: Content =
            content::of_volume(cx, (&self.tokens, &self.certificates), pod, volume).await?;
        if !dir.exists() {
            self.create(&dir, 0o755)?;
            // What holds secrets is not written to a disk.
            if matches!(name, "secret" | "projected") && self.mounter.can_mount() {
                self.mounter.tmpfs(&dir, None, 0o755).map_err(text(&dir))?;
            }
        }
        atomic::write(&dir, &content, group(pod)).map_err(text(&dir))
    }

    fn create(&self, dir: &Path, mode: u32) -> Result<(), String> {
        std::fs::create_dir_all(dir).map_err(text(dir))?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).map_err(text(dir))
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
        let mounts = container.volume_mounts.iter().flatten().enumerate();
        mounts.map(|(index, mount)| self.mount(pod, container, (index, mount), values)).collect()
    }

    /// The devices of a container that are volumes.
    ///
    /// # Errors
    /// The message of `CreateContainerConfigError`.
    pub fn devices(&self, pod: &Pod, container: &Container) -> Result<Vec<Device>, String> {
        let mut devices = vec![];
        for device in container.volume_devices.iter().flatten() {
            let missing = || {
                format!(
                    "cannot find volume \"{}\" to pass into container \"{}\"",
                    device.name, container.name
                )
            };
            let volume = model::spec(pod).volumes.iter().flatten().find(|v| v.name == device.name);
            let volume = volume.ok_or_else(missing)?;
            let set_up = self.set_up_already(pod, volume).filter(|v| v.device).ok_or_else(missing)?;
            let permissions = if set_up.read_only { "rm" } else { "rwm" };
            devices.push(Device {
                container_path: device.device_path.clone(),
                host_path: set_up.path.display().to_string(),
                permissions: permissions.to_owned(),
            });
        }
        Ok(devices)
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
        // Contents from the API are the kubelet's to write.
        let fixed = matches!(plugin(volume), Plugin::Content(_))
            || self.set_up_already(pod, volume).is_some_and(|v| v.read_only);
        let read_only = mount.read_only.unwrap_or(false);
        let mut made = Mount {
            container_path: absolute(&mount.mount_path),
            readonly: read_only || fixed,
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
        // Drivers mount in their containers what pods are to see.
        if made.propagation == MountPropagation::Bidirectional
            && (self.root.starts_with(&path) || path.starts_with(&self.root))
        {
            self.mounter.make_shared(&self.root).map_err(text(&self.root))?;
        }
        made.host_path = match sub_path {
            None => path.display().to_string(),
            Some(sub) => {
                let target = self.pod_dir(model::uid(pod)).join("volume-subpaths").join(&volume.name);
                let target = target.join(&container.name).join(index.to_string());
                sub_path::bind(&*self.mounter, &path, &sub, &target)
                    .map_err(|e| {
                        tracing::warn!(
                            pod = model::display(pod),
                            volume = mount.name,
                            error = e,
                            "a subPath could not be mounted"
                        );
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
}

/// Whether a volume is described in the pod, and so never grows.
fn plugin_is_inline(volume: &Volume) -> bool {
    !matches!(plugin(volume), Plugin::Claim)
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
