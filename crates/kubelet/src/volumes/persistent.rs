//! Persistent volumes that the node mounts itself: `local`, `hostPath` and `nfs`.
//!
//! Invariant: a volume is mounted at most once at a pod's directory; setting up again finds the mount.

use super::claims::Claimed;
use super::mount_options::MountOptions;
use super::mounter::Mounter;
use super::ownership::VolumeGroup;
use super::problem::Problem;
use super::{SetUp, VolumeManager, host_path, nfs};
use crate::pods::admission;
use crate::pods::context::NodeContext;
use crate::pods::core::{LocalVolumeSource, NFSVolumeSource, PersistentVolumeSpec, Pod};
use crate::pods::model;
use kaji_runtime::EventRecord;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// What upstream names the plug-in's directories.
pub(super) const LOCAL: &str = "local-volume";
pub(super) const NFS: &str = "nfs";

/// Types of volumes that are refused.
fn refused(spec: &PersistentVolumeSpec) -> &'static str {
    let others = [
        (spec.iscsi.is_some(), "iscsi"),
        (spec.fc.is_some(), "fc"),
        (spec.aws_elastic_block_store.is_some(), "awsElasticBlockStore"),
        (spec.gce_persistent_disk.is_some(), "gcePersistentDisk"),
        (spec.azure_disk.is_some(), "azureDisk"),
        (spec.azure_file.is_some(), "azureFile"),
        (spec.cinder.is_some(), "cinder"),
        (spec.vsphere_volume.is_some(), "vsphereVolume"),
        (spec.cephfs.is_some(), "cephfs"),
        (spec.rbd.is_some(), "rbd"),
        (spec.glusterfs.is_some(), "glusterfs"),
        (spec.flex_volume.is_some(), "flexVolume"),
        (spec.flocker.is_some(), "flocker"),
        (spec.portworx_volume.is_some(), "portworxVolume"),
        (spec.quobyte.is_some(), "quobyte"),
        (spec.scale_io.is_some(), "scaleIO"),
        (spec.storageos.is_some(), "storageos"),
        (spec.photon_persistent_disk.is_some(), "photonPersistentDisk"),
    ];
    others.iter().find(|(set, _)| *set).map_or("unknown", |(_, name)| name)
}

/// The text of an operation that failed.
pub(super) fn failed(operation: &str, volume: &str, error: impl std::fmt::Display) -> Problem {
    Problem::Failed(format!("{operation} failed for volume \"{volume}\" : {error}"))
}

/// Runs what blocks.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(format!("the operation ended early: {error}")),
    }
}

impl VolumeManager {
    /// Sets up the volume of a claim.
    pub(super) async fn persistent(
        &self,
        cx: &NodeContext,
        pod: &Pod,
        claimed: &Claimed,
    ) -> Result<SetUp, Problem> {
        let name = claimed.volume.metadata.name.clone().unwrap_or_default();
        let Some(spec) = &claimed.volume.spec else {
            return Err(failed("MountVolume.SetUp", &name, "the volume has no spec"));
        };
        reachable(cx, &name, spec, claimed.block)?;
        let group = claimed.volume.metadata.annotations.as_ref();
        let group = group.and_then(|a| a.get("pv.beta.kubernetes.io/gid")).and_then(|g| g.parse().ok());
        let mut set_up = if let Some(source) = &spec.csi {
            self.csi_of_claim(cx, pod, claimed, source).await?
        } else if let Some(source) = &spec.local {
            self.local(cx, pod, claimed, (&name, spec, source)).await?
        } else if let Some(source) = &spec.host_path {
            host_path::check(source).map_err(|e| failed("MountVolume.SetUp", &name, e))?;
            let path = PathBuf::from(&source.path);
            if claimed.block { device(&name, path)? } else { SetUp::directory(path) }
        } else if let Some(source) = &spec.nfs {
            if claimed.block {
                return Err(failed("MapVolume.FindMapperPluginBySpec", &name, "nfs volumes are no devices"));
            }
            let source = NFSVolumeSource {
                server: source.server.clone(),
                path: source.path.clone(),
                read_only: Some(claimed.read_only || source.read_only.unwrap_or(false)),
            };
            let options = spec.mount_options.clone().unwrap_or_default();
            self.nfs(pod, &name, &source, &options).await?
        } else {
            let text = format!("volumes of type {} are not supported by this node", refused(spec));
            return Err(failed("MountVolume.SetUp", &name, text));
        };
        set_up.read_only |= claimed.read_only;
        set_up.group = group;
        Ok(set_up)
    }

    async fn local(
        &self,
        cx: &NodeContext,
        pod: &Pod,
        claimed: &Claimed,
        (name, spec, source): (&str, &PersistentVolumeSpec, &LocalVolumeSource),
    ) -> Result<SetUp, Problem> {
        let path = PathBuf::from(&source.path);
        let wrong = |operation: &str, text: String| failed(operation, name, text);
        if source.path.is_empty() || source.path.split('/').any(|part| part == "..") {
            return Err(wrong("MountVolume.SetUp", format!("invalid path: {}", source.path)));
        }
        let found = match std::fs::metadata(&path) {
            Ok(found) => found.file_type(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let text = format!("path \"{}\" does not exist", source.path);
                return Err(wrong("MountVolume.NewMounter initialization", text));
            }
            Err(error) => return Err(wrong("MountVolume.SetUp", format!("{}: {error}", source.path))),
        };
        if claimed.block {
            return device(name, path);
        }
        if found.is_block_device() {
            let text = "local volumes of block devices without a mounted file system are not supported by this node; \
                        mount it and name the directory, or set volumeMode Block";
            return Err(wrong("MountVolume.MountDevice", text.to_owned()));
        }
        if !found.is_dir() {
            return Err(wrong(
                "MountVolume.SetUp",
                "only directory and block device are supported".to_owned(),
            ));
        }
        let uid = model::uid(pod);
        let target = self.dir(uid, LOCAL, name);
        let read_only = claimed.read_only;
        if !self.mounter.is_mount_point(&target) {
            let shared = self.mounted_by_others(uid, name);
            let mut options = MountOptions::parse(spec.mount_options.as_deref().unwrap_or_default());
            if !options.data.is_empty() {
                return Err(wrong(
                    "MountVolume.SetUp",
                    format!("mount options {} are not those of a directory", options.data),
                ));
            }
            options.flags.set(rustix::mount::MountFlags::RDONLY, read_only);
            let mounter = self.mounter.clone();
            let group = VolumeGroup::of(pod);
            if let Some(group) = group.filter(|g| shared && !has_group(&path, g.gid)) {
                let gid =
                    std::fs::metadata(&path).map(|m| std::os::unix::fs::MetadataExt::gid(&m)).unwrap_or(0);
                let text = format!(
                    "The requested fsGroup is {}, but the volume {name} has GID {gid}. The volume may not be shareable.",
                    group.gid
                );
                cx.api.record(EventRecord::warning(model::reference(pod), "AlreadyMountedVolume", text));
            }
            let group = group.filter(|_| !shared && !read_only);
            let (from, to) = (path.clone(), target.clone());
            blocking(move || bind_directory(&*mounter, &from, &to, options, group))
                .await
                .map_err(|e| wrong("MountVolume.SetUp", e))?;
        }
        Ok(SetUp::directory(target))
    }

    /// Whether pods have a local volume mounted.
    fn mounted_by_others(&self, uid: &str, name: &str) -> bool {
        let end = Path::new("volumes").join(format!("kubernetes.io~{LOCAL}")).join(name);
        let mounts = self.mounter.below(&self.root.join("pods"));
        mounts.iter().any(|m| m.ends_with(&end) && !m.starts_with(self.pod_dir(uid)))
    }

    /// Mounts an export.
    pub(super) async fn nfs(
        &self,
        pod: &Pod,
        name: &str,
        source: &NFSVolumeSource,
        options: &[String],
    ) -> Result<SetUp, Problem> {
        let target = self.dir(model::uid(pod), NFS, name);
        let read_only = source.read_only.unwrap_or(false);
        if !self.mounter.is_mount_point(&target) {
            let wrong = |e| failed("MountVolume.SetUp", name, e);
            self.create(&target, 0o750).map_err(wrong)?;
            let mut options = MountOptions::parse(options);
            options.flags.set(rustix::mount::MountFlags::RDONLY, read_only);
            nfs::mount(self.mounter.clone(), &source.server, &source.path, &target, options)
                .await
                .map_err(wrong)?;
        }
        Ok(SetUp { read_only, ..SetUp::directory(target) })
    }
}

fn has_group(path: &Path, gid: u32) -> bool {
    std::fs::metadata(path).is_ok_and(|m| std::os::unix::fs::MetadataExt::gid(&m) == gid)
}

fn bind_directory(
    mounter: &dyn Mounter,
    from: &Path,
    to: &Path,
    options: MountOptions,
    group: Option<VolumeGroup>,
) -> Result<(), String> {
    let shown = |e: std::io::Error| format!("{}: {e}", to.display());
    if !mounter.can_mount() {
        return Err("this kubelet may not mount file systems".to_owned());
    }
    std::fs::create_dir_all(to).map_err(shown)?;
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let source = rustix::fs::open(from, flags, rustix::fs::Mode::empty())
        .map_err(|e| format!("{}: {e}", from.display()))?;
    mounter.bind(std::os::fd::AsFd::as_fd(&source), to).map_err(shown)?;
    let finish = || -> Result<(), String> {
        if !options.flags.is_empty() {
            mounter.change_bind(to, options.flags).map_err(shown)?;
        }
        match group {
            Some(group) => group.apply(to, false),
            None => Ok(()),
        }
    };
    finish().inspect_err(|_| {
        // A mount that is there counts as set up.
        if let Err(error) = mounter.unmount(to) {
            tracing::warn!(%error, path = %to.display(), "a volume that is not set up cannot be unmounted");
        }
    })
}

/// A block device that containers get.
pub(super) fn device(volume: &str, path: PathBuf) -> Result<SetUp, Problem> {
    let wrong = |text: String| failed("MapVolume.MapPodDevice", volume, text);
    let real = path.canonicalize().map_err(|e| wrong(format!("{}: {e}", path.display())))?;
    let found = std::fs::metadata(&real).map_err(|e| wrong(format!("{}: {e}", real.display())))?;
    if !found.file_type().is_block_device() {
        return Err(wrong(format!("{} is not a block device", path.display())));
    }
    Ok(SetUp { device: true, ..SetUp::directory(real) })
}

/// Whether a volume can be reached from this node.
fn reachable(cx: &NodeContext, name: &str, spec: &PersistentVolumeSpec, block: bool) -> Result<(), Problem> {
    let required = spec.node_affinity.as_ref().and_then(|a| a.required.as_ref());
    let (Some(required), Some(node)) = (required, cx.facts.node()) else { return Ok(()) };
    if admission::matches_terms(&required.node_selector_terms, &node) {
        return Ok(());
    }
    let operation = if block { "MapVolume.NodeAffinity check" } else { "MountVolume.NodeAffinity check" };
    Err(failed(operation, name, "no matching NodeSelectorTerms"))
}
