//! What the volumes of a pod refer to: claims, secrets, images, and the templates of claims that are made for the pod.

use super::Named;
use serde::Deserialize;
use serde_json::Value;

/// What a pod's volumes refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volumes {
    /// Volumes that are claims.
    pub claims: Box<[ClaimVolume]>,
    /// Names of secrets.
    pub secrets: Box<[Box<str>]>,
    /// Templates of the claims that are made for the pod, after the names of their volumes.
    pub templates: Box<[(Box<str>, Value)]>,
}

/// The volumes of a pod as they are decoded.
#[derive(Default, Deserialize)]
#[serde(from = "Option<Vec<Volume>>")]
pub(super) struct RawVolumes {
    /// What may differ between the pods of one template.
    pub own: Volumes,
    /// The images that are volumes.
    pub images: Box<[Box<str>]>,
}

/// A volume that is a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimVolume {
    /// A claim by name.
    Named(Box<str>),
    /// A claim that is made for the pod, after it and the name of this volume.
    Ephemeral(Box<str>),
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Claim {
    claim_name: Box<str>,
}

/// A claim that is made for the pod.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EphemeralSource {
    volume_claim_template: Value,
}

/// An image that is a volume.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ImageSource {
    reference: Box<str>,
}

/// A source that names a secret.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SecretSource {
    secret_name: Box<str>,
}

/// A source that refers to a secret.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Referring {
    #[serde(alias = "nodePublishSecretRef")]
    secret_ref: Option<Named>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Projected {
    sources: Vec<ProjectedSource>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ProjectedSource {
    secret: Option<Named>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    name: Box<str>,
    persistent_volume_claim: Option<Claim>,
    ephemeral: Option<EphemeralSource>,
    image: Option<ImageSource>,
    secret: Option<SecretSource>,
    azure_file: Option<SecretSource>,
    projected: Option<Projected>,
    cephfs: Option<Referring>,
    cinder: Option<Referring>,
    csi: Option<Referring>,
    flex_volume: Option<Referring>,
    iscsi: Option<Referring>,
    rbd: Option<Referring>,
    #[serde(rename = "scaleIO")]
    scale_io: Option<Referring>,
    storageos: Option<Referring>,
}

impl Volume {
    fn claim(&self) -> Option<ClaimVolume> {
        match (&self.persistent_volume_claim, &self.ephemeral) {
            (Some(claim), _) => Some(ClaimVolume::Named(claim.claim_name.clone())),
            (None, Some(_)) => Some(ClaimVolume::Ephemeral(self.name.clone())),
            (None, None) => None,
        }
    }

    fn secrets(self) -> impl Iterator<Item = Box<str>> {
        let own = [self.secret, self.azure_file].into_iter().flatten().map(|s| s.secret_name);
        let referring = [
            self.cephfs,
            self.cinder,
            self.csi,
            self.flex_volume,
            self.iscsi,
            self.rbd,
            self.scale_io,
            self.storageos,
        ];
        let referring = referring.into_iter().flatten().filter_map(|r| Some(r.secret_ref?.name));
        let projected = self.projected.unwrap_or_default().sources;
        own.chain(referring).chain(projected.into_iter().filter_map(|p| Some(p.secret?.name)))
    }
}

impl From<Option<Vec<Volume>>> for RawVolumes {
    fn from(volumes: Option<Vec<Volume>>) -> Self {
        let mut volumes = volumes.unwrap_or_default();
        let template = |volume: &mut Volume| {
            let template = volume.ephemeral.as_mut().map(|e| std::mem::take(&mut e.volume_claim_template))?;
            Some((volume.name.clone(), template))
        };
        let image = |volume: &mut Volume| volume.image.take().map(|image| image.reference);
        RawVolumes {
            images: volumes.iter_mut().filter_map(image).collect(),
            own: Volumes {
                templates: volumes.iter_mut().filter_map(template).collect(),
                claims: volumes.iter().filter_map(Volume::claim).collect(),
                secrets: volumes.into_iter().flat_map(Volume::secrets).collect(),
            },
        }
    }
}
