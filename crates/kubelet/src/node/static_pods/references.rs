//! What a pod refers to in the API, which a static pod must not: it runs without it. Upstream's `HasAPIObjectReference`.

use crate::pods::core::{Pod, Volume};
use crate::pods::model;
use crate::pods::sources::{self, KeyedKind};

/// The first kind of object that the pod refers to.
pub(super) fn first(pod: &Pod) -> Option<&'static str> {
    let spec = model::spec(pod);
    if spec.service_account_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return Some("serviceaccounts");
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Some("resourceclaims");
    }
    if let Some(what) = spec.volumes.iter().flatten().find_map(of_volume) {
        return Some(what);
    }
    // What is left are environments and image pulls.
    sources::of_pod(pod).first().map(|reference| match reference.kind {
        KeyedKind::ConfigMap => "configmaps",
        KeyedKind::Secret => "secrets",
    })
}

fn of_volume(volume: &Volume) -> Option<&'static str> {
    let whole = [
        (volume.config_map.is_some(), "configmaps (via configmap volumes)"),
        (volume.secret.is_some(), "secrets (via secret volumes)"),
        (volume.csi.is_some(), "csidrivers (via CSI volumes)"),
        (volume.glusterfs.is_some(), "endpoints (via glusterFS volumes)"),
        (volume.persistent_volume_claim.is_some(), "persistentvolumeclaims"),
        (volume.ephemeral.is_some(), "persistentvolumeclaims (via ephemeral volumes)"),
        (volume.azure_file.is_some(), "secrets (via azureFile volumes)"),
    ];
    if let Some((_, what)) = whole.iter().find(|(set, _)| *set) {
        return Some(what);
    }
    volume.projected.iter().flat_map(|p| p.sources.iter().flatten()).find_map(|part| {
        let parts = [
            (part.config_map.is_some(), "configmaps (via projected volumes)"),
            (part.secret.is_some(), "secrets (via projected volumes)"),
            (part.service_account_token.is_some(), "serviceaccounts (via projected volumes)"),
            (part.cluster_trust_bundle.is_some(), "clustertrustbundles"),
            (part.pod_certificate.is_some(), "podcertificates"),
        ];
        parts.iter().find(|(set, _)| *set).map(|(_, what)| *what)
    })
}
