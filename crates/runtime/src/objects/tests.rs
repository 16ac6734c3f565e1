//! Every projection reads only what the schema of its kind has.

use super::*;
use crate::Projection;
use expect_test::expect;
use kaji_schema::probe::mismatches_with_kind;
use std::{collections::BTreeSet, fs, path::Path};

macro_rules! compare {
    ($($ty:ident)*) => {
        [$((stringify!($ty), mismatches_with_kind::<$ty>($ty::GROUP, $ty::VERSION, $ty::KIND))),*]
    };
}

#[test]
fn projections_read_what_the_schema_of_their_kind_has() {
    let compared = compare! {
        CertificateSigningRequest ClusterTrustBundle ConfigMap ControllerRevision CronJob CsiDriver CsiNode CsiStorageCapacity DaemonSet
        Deployment DeviceClass DeviceTaintRule EndpointSlice Endpoints HorizontalPodAutoscaler IpAddress Job Lease Namespace Node
        PersistentVolume PersistentVolumeClaim Pod PodCertificateRequest PodDisruptionBudget PodGroup ReplicaSet ReplicationController
        ResourceClaim ResourceClaimTemplate ResourceQuota ResourceSlice Secret Service ServiceAccount ServiceCidr StatefulSet
        StorageClass StorageVersionMigration VolumeAttachment VolumeAttributesClass
    };
    // Where one type stands for several of the schema.
    let mismatches: Vec<String> = compared
        .iter()
        .flat_map(|(projection, mismatches)| mismatches.iter().map(move |m| format!("{projection}.{m}")))
        .collect();
    expect![[r#"
        HorizontalPodAutoscaler.spec.metrics.[].containerResource.describedObject: is not in the schema
        HorizontalPodAutoscaler.spec.metrics.[].containerResource.metric: is not in the schema
        HorizontalPodAutoscaler.spec.metrics.[].external.container: is not in the schema
        HorizontalPodAutoscaler.spec.metrics.[].external.describedObject: is not in the schema
        HorizontalPodAutoscaler.spec.metrics.[].external.name: is not in the schema
        HorizontalPodAutoscaler.spec.metrics.[].object.container: is not in the schema
        HorizontalPodAutoscaler.spec.metrics.[].object.name: is not in the schema
        HorizontalPodAutoscaler.spec.metrics.[].pods.container: is not in the schema
        HorizontalPodAutoscaler.spec.metrics.[].pods.describedObject: is not in the schema
        HorizontalPodAutoscaler.spec.metrics.[].pods.name: is not in the schema
        HorizontalPodAutoscaler.spec.metrics.[].resource.container: is not in the schema
        HorizontalPodAutoscaler.spec.metrics.[].resource.describedObject: is not in the schema
        HorizontalPodAutoscaler.spec.metrics.[].resource.metric: is not in the schema
        HorizontalPodAutoscaler.status.conditions.[].lastUpdateTime: is not in the schema
        Pod.spec.volumes.[].cephfs.nodePublishSecretRef: is not in the schema
        Pod.spec.volumes.[].cinder.nodePublishSecretRef: is not in the schema
        Pod.spec.volumes.[].csi.secretRef: is not in the schema
        Pod.spec.volumes.[].flexVolume.nodePublishSecretRef: is not in the schema
        Pod.spec.volumes.[].iscsi.nodePublishSecretRef: is not in the schema
        Pod.spec.volumes.[].rbd.nodePublishSecretRef: is not in the schema
        Pod.spec.volumes.[].scaleIO.nodePublishSecretRef: is not in the schema
        Pod.spec.volumes.[].storageos.nodePublishSecretRef: is not in the schema
        ReplicaSet.status.conditions.[].lastUpdateTime: is not in the schema
        ReplicationController.status.conditions.[].lastUpdateTime: is not in the schema
        ReplicationController.status.terminatingReplicas: is not in the schema
        ResourceClaim.spec.devices.requests.[].exactly.name: is not in the schema
        ResourceClaim.spec.devices.requests.[].firstAvailable.[].adminAccess: is not in the schema"#]]
    .assert_eq(&mismatches.join("\n"));
    let compared: BTreeSet<&str> = compared.iter().map(|(name, _)| *name).collect();
    let missing: Vec<String> =
        projections().into_iter().filter(|name| !compared.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "not compared: {missing:?}");
}

#[test]
fn csi_volumes_and_attachments_have_upstreams_names() {
    assert_eq!(csi_volume_name("d", "h"), "kubernetes.io/csi/d^h");
    assert_eq!(
        csi_attachment_name("d", "h", "n"),
        "csi-9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d"
    );
}

/// The projections of this folder, by its text.
fn projections() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/objects");
    let mut found = BTreeSet::new();
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    for file in files.filter(|file| file.is_file()) {
        let text = fs::read_to_string(file).unwrap();
        let names = text.lines().filter_map(|line| line.strip_prefix("impl Projection for "));
        found.extend(names.map(|name| name.trim_end_matches(" {").to_owned()));
    }
    assert!(found.len() > 30, "{found:?}");
    found
}
