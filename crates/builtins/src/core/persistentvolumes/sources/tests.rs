//! What creating and updating PersistentVolumes of each source answers.

use crate::{
    core::persistentvolumes::def,
    shared::testing::{create_errors, created, update_errors},
};
use expect_test::{Expect, expect};
use serde_json::{Value, json};

/// A volume with these fields in its spec.
fn volume(fields: &Value) -> Value {
    let mut volume = json!({
        "metadata": {"name": "p"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]},
    });
    let spec = volume["spec"].as_object_mut().unwrap();
    spec.extend(fields.as_object().unwrap().clone());
    volume
}

fn errors(fields: Value) -> String {
    create_errors(&def(), volume(&fields))
}

/// The errors about each of the sources, one a line.
fn all_errors(sources: Vec<Value>) -> String {
    let all: Vec<String> = sources.into_iter().map(errors).collect();
    all.join("\n")
}

fn check(sources: Vec<Value>, expected: Expect) {
    expected.assert_eq(&all_errors(sources));
}

#[test]
fn sources_name_what_they_lack() {
    check(
        vec![
            json!({"hostPath": {}}),
            json!({"gcePersistentDisk": {}}),
            json!({"awsElasticBlockStore": {}}),
            json!({"glusterfs": {}}),
            json!({"flocker": {}}),
            json!({"nfs": {}}),
            json!({"rbd": {}}),
            json!({"quobyte": {}}),
            json!({"cephfs": {}}),
            json!({"iscsi": {}}),
            json!({"cinder": {"secretRef": {}}}),
            json!({"fc": {}}),
            json!({"flexVolume": {}}),
            json!({"azureFile": {"secretNamespace": ""}}),
            json!({"vsphereVolume": {}}),
            json!({"photonPersistentDisk": {}}),
            json!({"portworxVolume": {}}),
            json!({"azureDisk": {}}),
            json!({"scaleIO": {}}),
            json!({"local": {}}),
            json!({"storageos": {"secretRef": {}}}),
            json!({"csi": {}}),
            json!({}),
        ],
        expect![[r#"
            spec.hostPath.path: Required value
            spec.persistentDisk.pdName: Required value
            spec.awsElasticBlockStore.volumeID: Required value
            spec.glusterfs.endpoints: Required value
            spec.glusterfs.path: Required value
            spec.flocker: Required value: one of datasetName and datasetUUID is required
            spec.nfs.server: Required value
            spec.nfs.path: Required value
            spec.nfs.path: Invalid value: "": must be an absolute path
            spec.rbd.monitors: Required value
            spec.rbd.image: Required value
            spec.quobyte.registry: Required value: must be a host:port pair or multiple pairs separated by commas
            spec.quobyte.volume: Required value
            spec.cephfs.monitors: Required value
            spec.iscsi.targetPortal: Required value
            spec.iscsi.iqn: Required value
            spec.cinder.volumeID: Required value
            spec.cinder.secretRef.name: Required value
            spec.cinder.secretRef.namespace: Required value
            spec.fc.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both
            spec.flexVolume.driver: Required value
            spec.azureFile.secretName: Required value
            spec.azureFile.shareName: Required value
            spec.azureFile.secretNamespace: Required value
            spec.vsphereVolume.volumePath: Required value
            spec.photonPersistentDisk.pdID: Required value
            spec.portworxVolume.volumeID: Required value
            spec.azureDisk.diskName: Required value
            spec.azureDisk.diskURI: Required value
            spec.azureDisk.diskURI: Unsupported value: "": supported values: "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
            spec.scaleIO.gateway: Required value
            spec.scaleIO.system: Required value
            spec.scaleIO.volumeName: Required value
            spec.local.path: Required value
            spec.nodeAffinity: Required value: Local volume requires node affinity
            spec.storageos.volumeName: Required value
            spec.storageos.secretRef.name: Required value
            spec.storageos.secretRef.namespace: Required value
            spec.csi.driver: Required value
            spec.csi.volumeHandle: Required value
            spec: Required value: must specify a volume type"#]],
    );
}

#[test]
fn values_of_sources_are_checked() {
    check(
        vec![
            json!({"hostPath": {"path": "/a/../b", "type": "Disk"}}),
            json!({"gcePersistentDisk": {"pdName": "d", "partition": 256}}),
            json!({"awsElasticBlockStore": {"volumeID": "v", "partition": -1}}),
            json!({"glusterfs": {"endpoints": "e", "path": "p", "endpointsNamespace": ""}}),
            json!({"glusterfs": {"endpoints": "e", "path": "p", "endpointsNamespace": "a.b"}}),
            json!({"flocker": {"datasetName": "a/b", "datasetUUID": "u"}}),
            json!({"nfs": {"server": "s", "path": "a"}}),
            json!({"quobyte": {"registry": "a:1,b,[::1]:2,::1:2,[::1]", "volume": "v"}}),
            json!({"quobyte": {"registry": "a:1", "volume": "v", "tenant": "t".repeat(65)}}),
            json!({"cinder": {"volumeID": "v", "secretRef": {"name": "n"}}}),
            json!({"fc": {"targetWWNs": ["a"], "wwids": ["b"], "lun": 256}}),
            json!({"fc": {"targetWWNs": ["a"]}}),
            json!({"flexVolume": {"driver": "d", "options": {"x.K8s.io/a": "", "kubernetes.io": "", "o": ""}}}),
            json!({"azureDisk": {"diskName": "d", "diskURI": "u", "cachingMode": "", "kind": "k"}}),
            json!({"azureDisk": {"diskName": "d", "diskURI": "https://u", "kind": "Managed"}}),
            json!({"local": {"path": ".."}, "nodeAffinity": {"required": {"nodeSelectorTerms": [{}]}}}),
            json!({"storageos": {"volumeName": "A", "volumeNamespace": "a.b", "secretRef": {"name": "n"}}}),
        ],
        expect![[r#"
            spec.hostPath.path: Invalid value: "/a/../b": must not contain '..'
            spec.hostPath.type: Unsupported value: "Disk": supported values: "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"
            spec.persistentDisk.partition: Invalid value: 256: must be between 1 and 255, inclusive
            spec.awsElasticBlockStore.partition: Invalid value: -1: must be between 1 and 255, inclusive
            spec.glusterfs.endpointsNamespace: Invalid value: "": if the endpointnamespace is set, it must be a valid namespace name
            spec.glusterfs.endpointsNamespace: Invalid value: "a.b": must not contain dots
            spec.flocker: Invalid value: "resource": datasetName and datasetUUID can not be specified simultaneously
            spec.flocker.datasetName: Invalid value: "a/b": must not contain '/'
            spec.nfs.path: Invalid value: "a": must be an absolute path
            spec.quobyte.registry: Invalid value: "a:1,b,[::1]:2,::1:2,[::1]": must be a host:port pair or multiple pairs separated by commas
            spec.quobyte.registry: Invalid value: "a:1,b,[::1]:2,::1:2,[::1]": must be a host:port pair or multiple pairs separated by commas
            spec.quobyte.registry: Invalid value: "a:1,b,[::1]:2,::1:2,[::1]": must be a host:port pair or multiple pairs separated by commas
            spec.quobyte.tenant: Required value: must be a UUID and may not exceed a length of 64 characters
            spec.cinder.secretRef.namespace: Required value
            spec.fc.targetWWNs: Invalid value: ["a"]: targetWWNs and wwids can not be specified simultaneously
            spec.fc.lun: Invalid value: 256: must be between 0 and 255, inclusive
            spec.fc.lun: Required value: lun is required if targetWWNs is specified
            spec.flexVolume.options[kubernetes.io]: Invalid value: "kubernetes.io": kubernetes.io and k8s.io namespaces are reserved
            spec.flexVolume.options[x.K8s.io/a]: Invalid value: "x.K8s.io/a": kubernetes.io and k8s.io namespaces are reserved
            spec.azureDisk.cachingMode: Unsupported value: "": supported values: "None", "ReadOnly", "ReadWrite"
            spec.azureDisk.kind: Unsupported value: "k": supported values: "Dedicated", "Managed", "Shared"
            spec.azureDisk.diskURI: Unsupported value: "u": supported values: "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
            spec.azureDisk.diskURI: Unsupported value: "https://u": supported values: "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
            spec.local.path: Invalid value: "..": must not contain '..'
            spec.storageos.volumeName: Invalid value: "A": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
            spec.storageos.volumeNamespace: Invalid value: "a.b": must not contain dots
            spec.storageos.secretRef.namespace: Required value"#]],
    );
}

#[test]
fn iscsi_names_have_one_of_three_formats_and_secrets_a_name() {
    let iscsi = |field: &str, name: &str| {
        let mut source = json!({"targetPortal": "p", "iqn": "iqn.2024-01.com.example:a"});
        source[field] = name.into();
        json!({"iscsi": source})
    };
    let secret = json!({"iscsi": {
        "targetPortal": "p".repeat(63), "iqn": "eui.0123456789abcdef", "lun": 256,
        "chapAuthSession": true, "initiatorName": format!("naa.{}", "0".repeat(32)),
    }});
    let mut named = secret.clone();
    named["iscsi"]["secretRef"] = json!({"namespace": "n"});
    check(
        vec![
            iscsi("iqn", "a"),
            iscsi("iqn", "iqn.x"),
            iscsi("initiatorName", ""),
            iscsi("initiatorName", "eui.x"),
            secret,
            named,
        ],
        expect![[r#"
            spec.iscsi.iqn: Invalid value: "a": must be valid format
            spec.iscsi.iqn: Invalid value: "iqn.x": must be valid format
            spec.iscsi.initiatorname: Invalid value: "": must be valid format
            spec.iscsi.initiatorname: Invalid value: "eui.x": must be valid format
            spec.iscsi.targetportal: Invalid value: "ppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppp": Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.
            spec.iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive
            spec.iscsi.secretRef: Required value
            spec.iscsi.targetportal: Invalid value: "ppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppp": Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.
            spec.iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive
            spec.iscsi.secretRef.name: Required value"#]],
    );
}

#[test]
fn csi_drivers_handles_and_secrets_are_checked() {
    let secret = json!({"name": "A", "namespace": "a.b"});
    let csi = json!({
        "driver": format!("{}_", "d".repeat(63)), "volumeHandle": "",
        "controllerPublishSecretRef": secret, "controllerExpandSecretRef": {}, "nodePublishSecretRef": {"name": "a"},
        "nodeExpandSecretRef": {"namespace": "b"}, "nodeStageSecretRef": secret,
    });
    check(
        vec![json!({"csi": csi})],
        expect![[r#"
        spec.csi.driver: Too long: may not be more than 63 bytes
        spec.csi.driver: Invalid value: "ddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd_": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
        spec.csi.volumeHandle: Required value
        spec.csi.controllerPublishSecretRef.name: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
        spec.csi.controllerPublishSecretRef.namespace: Invalid value: "a.b": must not contain dots
        spec.csi.controllerExpandSecretRef.name: Required value
        spec.csi.controllerExpandSecretRef.namespace: Required value
        spec.csi.nodePublishSecretRef.namespace: Required value
        spec.csi.nodeExpandSecretRef.name: Required value"#]],
    );
    assert_eq!(errors(json!({"csi": {"driver": "Example.COM", "volumeHandle": "h"}})), "");
}

#[test]
fn a_second_source_is_forbidden_and_not_looked_at_but_for_flex_volumes() {
    let mut all = serde_json::Map::new();
    for source in super::SOURCES {
        all.insert(source.to_owned(), json!({}));
    }
    check(
        vec![Value::Object(all)],
        expect![[r#"
        spec.hostPath.path: Required value
        spec.gcePersistentDisk: Forbidden: may not specify more than 1 volume type
        spec.awsElasticBlockStore: Forbidden: may not specify more than 1 volume type
        spec.glusterfs: Forbidden: may not specify more than 1 volume type
        spec.flocker: Forbidden: may not specify more than 1 volume type
        spec.nfs: Forbidden: may not specify more than 1 volume type
        spec.rbd: Forbidden: may not specify more than 1 volume type
        spec.quobyte: Forbidden: may not specify more than 1 volume type
        spec.cephFS: Forbidden: may not specify more than 1 volume type
        spec.iscsi: Forbidden: may not specify more than 1 volume type
        spec.cinder: Forbidden: may not specify more than 1 volume type
        spec.fc: Forbidden: may not specify more than 1 volume type
        spec.flexVolume.driver: Required value
        spec.azureFile: Forbidden: may not specify more than 1 volume type
        spec.vsphereVolume: Forbidden: may not specify more than 1 volume type
        spec.photonPersistentDisk: Forbidden: may not specify more than 1 volume type
        spec.portworxVolume: Forbidden: may not specify more than 1 volume type
        spec.azureDisk: Forbidden: may not specify more than 1 volume type
        spec.scaleIO: Forbidden: may not specify more than 1 volume type
        spec.local: Forbidden: may not specify more than 1 volume type
        spec.storageos: Forbidden: may not specify more than 1 volume type
        spec.csi: Forbidden: may not specify more than 1 volume type"#]],
    );
}

#[test]
fn local_volumes_have_a_node_affinity() {
    let local = json!({"local": {"path": "/a"}});
    check(
        vec![local.clone()],
        expect!["spec.nodeAffinity: Required value: Local volume requires node affinity"],
    );
    let mut placed = local;
    placed["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "k", "operator": "Exists"}]}]}});
    assert_eq!(errors(placed.clone()), "");
    placed["nodeAffinity"] = json!({});
    check(
        vec![placed],
        expect!["spec.nodeAffinity.required: Required value: must specify required node constraints"],
    );
}

#[test]
fn the_root_is_not_recycled() {
    let host = |path: &str| json!({"hostPath": {"path": path}, "persistentVolumeReclaimPolicy": "Recycle"});
    check(
        vec![host("/"), host("//."), host("/a/..")],
        expect![[r#"
        spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'
        spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'
        spec.hostPath.path: Invalid value: "/a/..": must not contain '..'
        spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'"#]],
    );
    assert_eq!(all_errors(vec![host("/a"), host(".")]), "\n");
}

#[test]
fn amounts_are_positive() {
    check(
        vec![
            json!({"hostPath": {"path": "/a"}, "capacity": {"storage": "0"}}),
            json!({"hostPath": {"path": "/a"}, "capacity": {"storage": "-1500m", "cpu": "1"}}),
        ],
        expect![[r#"
            spec.capacity[storage]: Invalid value: "0": must be greater than zero
            spec.capacity: Unsupported value: {"cpu":"1","storage":"-1500m"}: supported values: "storage"
            spec.capacity[storage]: Invalid value: -2: must be a valid resource quantity
            spec.capacity[storage]: Invalid value: "-1500m": must be greater than zero"#]],
    );
}

#[test]
fn mount_options_in_an_annotation_are_for_sources_that_have_them() {
    let annotated = |source: Value| {
        let mut volume = volume(&source);
        volume["metadata"]["annotations"] = json!({super::MOUNT_OPTIONS: "ro"});
        volume
    };
    let host = annotated(json!({"hostPath": {"path": "/a"}}));
    expect!["metadata.annotations.volume.beta.kubernetes.io/mount-options: Forbidden: may not specify mount options for this volume type"].assert_eq(&create_errors(&def(), host.clone()));
    expect!["metadata.annotations.volume.beta.kubernetes.io/mount-options: Forbidden: may not specify mount options for this volume type"].assert_eq(&update_errors(&def(), "", host.clone(), host.clone()));
    assert_eq!(update_errors(&def(), "status", host.clone(), host), "");
    let nfs = annotated(json!({"nfs": {"server": "s", "path": "/a"}}));
    assert_eq!(create_errors(&def(), nfs), "");
}

#[test]
fn updates_report_bad_sources_as_often_as_upstream_and_show_what_changed() {
    let old = volume(&json!({"csi": {"driver": "d", "volumeHandle": "h"}}));
    let mut new = old.clone();
    new["spec"]["csi"]["controllerExpandSecretRef"] = json!({"name": "a", "namespace": "b"});
    assert_eq!(update_errors(&def(), "", new.clone(), old.clone()), "");
    assert_eq!(update_errors(&def(), "status", volume(&json!({})), old.clone()), "");
    new["spec"]["csi"]["volumeHandle"] = "".into();
    expect![[r#"
        spec.csi.volumeHandle: Required value
        spec.csi.volumeHandle: Required value
        spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation
        @@ -22,7 +22,7 @@
          "StorageOS": null,
          "CSI": {
           "Driver": "d",
        -  "VolumeHandle": "h",
        +  "VolumeHandle": "",
           "ReadOnly": false,
           "FSType": "",
           "VolumeAttributes": null,
    "#]]
    .assert_eq(&update_errors(&def(), "", new.clone(), old));
    let mut other = new.clone();
    other["spec"]["csi"]["controllerExpandSecretRef"]["name"] = "c".into();
    other["spec"]["csi"]["volumeHandle"] = "h".into();
    new["spec"]["csi"]["volumeHandle"] = "h".into();
    expect![[r#"
        spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation
        @@ -30,7 +30,7 @@
           "NodeStageSecretRef": null,
           "NodePublishSecretRef": null,
           "ControllerExpandSecretRef": {
        -   "Name": "a",
        +   "Name": "c",
            "Namespace": "b"
           },
           "NodeExpandSecretRef": null
    "#]]
    .assert_eq(&update_errors(&def(), "", other, new));
}

#[test]
fn node_affinity_only_changes_from_beta_labels_to_stable_ones() {
    let with = |key: &str, values: &[&str]| {
        let affinity = json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": "In", "values": values}]}]}});
        volume(&json!({"hostPath": {"path": "/a"}, "nodeAffinity": affinity}))
    };
    let (beta, stable) = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone");
    let update = |new: Value, old: Value| update_errors(&def(), "", new, old);
    let none = volume(&json!({"hostPath": {"path": "/a"}}));
    assert_eq!(update(with(stable, &["a"]), with(beta, &["a"])), "");
    assert_eq!(update(with(beta, &["a"]), none.clone()), "");
    expect![[r#"nodeAffinity: Invalid value: {"Required":{"NodeSelectorTerms":[{"MatchExpressions":[{"Key":"failure-domain.beta.kubernetes.io/zone","Operator":"In","Values":["a"]}],"MatchFields":null}]}}: field is immutable, except for updating from beta label to GA"#]].assert_eq(&update(with(beta, &["a"]), with(stable, &["a"])));
    expect![[r#"nodeAffinity: Invalid value: {"Required":{"NodeSelectorTerms":[{"MatchExpressions":[{"Key":"topology.kubernetes.io/zone","Operator":"In","Values":["b"]}],"MatchFields":null}]}}: field is immutable, except for updating from beta label to GA"#]].assert_eq(&update(with(stable, &["b"]), with(beta, &["a"])));
    expect![
        "nodeAffinity: Invalid value: null: field is immutable, except for updating from beta label to GA"
    ]
    .assert_eq(&update(none, with(beta, &["a"])));
}

#[test]
fn empty_modes_of_azure_disks_are_no_missing_ones() {
    let disk = volume(&json!({"azureDisk": {"diskName": "d", "diskURI": "u", "fsType": ""}}));
    let made: Value = serde_json::from_str(&created(&def(), disk)).unwrap();
    expect![[r#"{"cachingMode":"ReadWrite","diskName":"d","diskURI":"u","fsType":"","kind":"Shared","readOnly":false}"#]].assert_eq(&made["spec"]["azureDisk"].to_string());
}
