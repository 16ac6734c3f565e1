//! Which plug-in a volume of a pod is of, and which volumes of a pod its containers use.

use crate::pods::core::{Container, Pod, Volume};
use crate::pods::model;
use std::collections::BTreeSet;

/// Which plug-in a volume is of.
pub(super) enum Plugin {
    EmptyDir {
        memory: bool,
    },
    Content(&'static str),
    HostPath,
    Image,
    /// A claim, the pod's own or another one.
    Claim,
    /// A driver makes it for the pod.
    Csi,
    Nfs,
    Unsupported(&'static str),
}

pub(super) fn plugin(volume: &Volume) -> Plugin {
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
    if volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() {
        return Plugin::Claim;
    }
    if volume.csi.is_some() {
        return Plugin::Csi;
    }
    if volume.nfs.is_some() {
        return Plugin::Nfs;
    }
    let others = [
        (volume.iscsi.is_some(), "iscsi"),
        (volume.fc.is_some(), "fc"),
        (volume.git_repo.is_some(), "gitRepo"),
        (volume.aws_elastic_block_store.is_some(), "awsElasticBlockStore"),
        (volume.gce_persistent_disk.is_some(), "gcePersistentDisk"),
        (volume.azure_disk.is_some(), "azureDisk"),
        (volume.azure_file.is_some(), "azureFile"),
        (volume.cinder.is_some(), "cinder"),
        (volume.vsphere_volume.is_some(), "vsphereVolume"),
        (volume.cephfs.is_some(), "cephfs"),
        (volume.rbd.is_some(), "rbd"),
        (volume.glusterfs.is_some(), "glusterfs"),
        (volume.flex_volume.is_some(), "flexVolume"),
        (volume.flocker.is_some(), "flocker"),
        (volume.portworx_volume.is_some(), "portworxVolume"),
        (volume.quobyte.is_some(), "quobyte"),
        (volume.scale_io.is_some(), "scaleIO"),
        (volume.storageos.is_some(), "storageos"),
        (volume.photon_persistent_disk.is_some(), "photonPersistentDisk"),
    ];
    Plugin::Unsupported(others.iter().find(|(set, _)| *set).map_or("unknown", |(_, name)| name))
}

/// Names of the volumes that containers of a pod mount, and of those that they have as devices. Others are not set up.
#[derive(Debug, Default)]
pub(super) struct Used<'a> {
    pub(super) mounts: BTreeSet<&'a str>,
    pub(super) devices: BTreeSet<&'a str>,
}

impl<'a> Used<'a> {
    pub(super) fn of(pod: &'a Pod) -> Used<'a> {
        let mut used = Used::default();
        for container in model::init_containers(pod).iter().chain(model::containers(pod)) {
            used.add(container);
        }
        for container in model::ephemeral_containers(pod) {
            used.mounts.extend(container.volume_mounts.iter().flatten().map(|m| m.name.as_str()));
            used.devices.extend(container.volume_devices.iter().flatten().map(|d| d.name.as_str()));
        }
        used
    }

    fn add(&mut self, container: &'a Container) {
        self.mounts.extend(container.volume_mounts.iter().flatten().map(|m| m.name.as_str()));
        self.devices.extend(container.volume_devices.iter().flatten().map(|d| d.name.as_str()));
    }

    pub(super) fn has(&self, volume: &str) -> bool {
        self.mounts.contains(volume) || self.devices.contains(volume)
    }
}
