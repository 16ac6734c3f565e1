//! A CSI volume of a pod, from a persistent volume or from the pod itself.

use super::record::{self, Record};
use crate::pods::core::{CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolume, Pod, SecretReference};
use crate::pods::model;
use crate::volumes::claims::Claimed;
use kaji_csi::messages::VolumeCapability;
use kaji_csi::{Access, Capabilities, access_mode, capability};
use kaji_runtime::objects::csi_attachment_name;
use std::collections::BTreeMap;

/// Namespace and name of a secret.
pub(super) type SecretName = (String, String);

/// What is asked of a driver.
#[derive(Debug, Clone, Default)]
pub(super) struct CsiVolume {
    pub(super) driver: String,
    pub(super) handle: String,
    /// Of the persistent volume, or of the pod's volume.
    pub(super) name: String,
    pub(super) read_only: bool,
    pub(super) fs_type: String,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) stage_secret: Option<SecretName>,
    pub(super) publish_secret: Option<SecretName>,
    pub(super) expand_secret: Option<SecretName>,
    pub(super) access_modes: Vec<String>,
    pub(super) mount_options: Vec<String>,
    /// The driver makes it for the pod.
    pub(super) ephemeral: bool,
    pub(super) block: bool,
}

fn secret(reference: Option<&SecretReference>) -> Option<SecretName> {
    let reference = reference?;
    Some((reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default()))
}

impl CsiVolume {
    pub(super) fn of_claim(claimed: &Claimed, source: &CSIPersistentVolumeSource) -> CsiVolume {
        let volume: &PersistentVolume = &claimed.volume;
        let spec = volume.spec.clone().unwrap_or_default();
        CsiVolume {
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            name: volume.metadata.name.clone().unwrap_or_default(),
            read_only: claimed.read_only || source.read_only.unwrap_or(false),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            stage_secret: secret(source.node_stage_secret_ref.as_ref()),
            publish_secret: secret(source.node_publish_secret_ref.as_ref()),
            expand_secret: secret(source.node_expand_secret_ref.as_ref()),
            access_modes: spec.access_modes.unwrap_or_default(),
            mount_options: spec.mount_options.unwrap_or_default(),
            ephemeral: false,
            block: claimed.block,
        }
    }

    pub(super) fn of_pod(pod: &Pod, name: &str, source: &CSIVolumeSource) -> CsiVolume {
        let secret = source.node_publish_secret_ref.as_ref();
        CsiVolume {
            driver: source.driver.clone(),
            handle: record::ephemeral_handle(model::uid(pod), name),
            name: name.to_owned(),
            read_only: source.read_only.unwrap_or(false),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            publish_secret: secret.map(|s| (model::namespace(pod).to_owned(), s.name.clone())),
            ephemeral: true,
            ..CsiVolume::default()
        }
    }

    /// `Persistent`, `Ephemeral`
    pub(super) fn lifecycle(&self) -> &'static str {
        if self.ephemeral { "Ephemeral" } else { "Persistent" }
    }

    pub(super) fn record(&self, node: &str, attachable: bool) -> Record {
        Record {
            spec_name: self.name.clone(),
            handle: self.handle.clone(),
            driver: self.driver.clone(),
            node_name: node.to_owned(),
            attachment: csi_attachment_name(&self.driver, &self.handle, node),
            lifecycle: self.lifecycle().to_owned(),
            attachable,
            block: self.block,
            complete: false,
        }
    }

    pub(super) fn capability(&self, capabilities: Capabilities, group: Option<i64>) -> VolumeCapability {
        let access = if self.block {
            Access::Block
        } else {
            let group = group.filter(|_| capabilities.mount_group);
            Access::Mount { fs_type: self.fs_type.clone(), flags: self.mount_options.clone(), group }
        };
        let mode = self.access_modes.first().map_or("ReadWriteOnce", String::as_str);
        capability(access, access_mode(mode, capabilities))
    }
}
