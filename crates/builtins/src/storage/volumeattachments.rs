//! VolumeAttachments.

use super::rules::{GROUP, MAX_BYTES};
use crate::{
    core::persistentvolumes::{Holder, default_spec, validate_spec},
    shared::{
        check, metadata, rules,
        table::{age, name},
        value::{Fields, object_mut, put},
    },
};
use kaji_meta::field::{Error, ErrorList, Path};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};
use std::borrow::Cow;

const COLUMNS: &[Column] = &[
    name_column(),
    Column {
        name: Cow::Borrowed("Attacher"),
        ty: Cow::Borrowed("string"),
        format: Cow::Borrowed("name"),
        description: Cow::Borrowed(
            "attacher indicates the name of the volume driver that MUST handle this request. This is the name returned by GetPluginName().",
        ),
        priority: 0,
    },
    Column::new(
        "PV",
        "string",
        0,
        "persistentVolumeName represents the name of the persistent volume to attach.",
    ),
    Column::new("Node", "string", 0, "nodeName represents the node that the volume should be attached to."),
    Column::new(
        "Attached",
        "boolean",
        0,
        "attached indicates the volume is successfully attached. This field must only be set by the entity completing the attach operation, i.e. the external-attacher.",
    ),
    age_column(),
];

const MAX_MESSAGE: usize = 1024;

struct VolumeAttachments;

fn volume_error(errs: &mut ErrorList, path: &Path, error: &Value) {
    if error.text("message").len() > MAX_MESSAGE {
        errs.push(Error::too_long(&path.child("message"), "", MAX_BYTES));
    }
    if let Some(code) = error.opt_int("errorCode").filter(|c| *c < 0) {
        errs.push(Error::invalid(
            &path.child("errorCode"),
            code,
            "must be between 0 and 2147483647, inclusive",
        ));
    }
}

fn validate(object: &Value) -> ErrorList {
    let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
    rules::csi_driver_name(&mut errs, &path.child("attacher"), spec.text("attacher"));
    let (source, at) = (spec.at("source"), path.child("source"));
    let volume = source.opt_text("persistentVolumeName");
    const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (source.has("inlineVolumeSpec"), volume) {
        (false, None) => errs.push(Error::required(&at, ONE)),
        (true, Some(_)) => errs.push(Error::forbidden(&at, ONE)),
        (false, Some("")) => {
            let text = "must specify non empty persistentVolumeName";
            errs.push(Error::required(&at.child("persistentVolumeName"), text));
        }
        (true, None) => {
            let spec = source.at("inlineVolumeSpec");
            validate_spec(&mut errs, &at.child("inlineVolumeSpec"), spec, Holder::Attachment);
        }
        _ => {}
    }
    check::dns_subdomain(&mut errs, &path.child("nodeName"), spec.text("nodeName"));
    let (status, path) = (object.at("status"), Path::new("status"));
    let size: usize = status.string_map("attachmentMetadata").map(|(k, v)| k.len() + v.len()).sum();
    if size > MAX_BYTES {
        errs.push(Error::too_long(&path.child("attachmentMetadata"), "", MAX_BYTES));
    }
    for f in ["attachError", "detachError"] {
        volume_error(&mut errs, &path.child(f), status.at(f));
    }
    if let Some(name) = volume {
        check::dns_subdomain(&mut errs, &Path::new("spec.source.persistentVolumeName"), name);
    }
    errs
}

impl Hooks for VolumeAttachments {
    fn default(&self, _version: &str, object: &mut Value) {
        let source = object_mut(object, "spec").and_then(|spec| object_mut(spec, "source"));
        if let Some(spec) = source.and_then(|s| object_mut(s, "inlineVolumeSpec")) {
            default_spec(spec);
        }
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({"attached": false}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object)
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource == "status" {
            rules::keep_meta_on_status(new, old);
        }
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = validate(new);
        let ty = "io.k8s.api.storage.v1.VolumeAttachmentSpec";
        check::immutable_struct(&mut errs, &Path::new("spec"), ty, new.at("spec"), old.at("spec"));
        errs
    }

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        rules::resets_metadata(subresource)
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let spec = object.at("spec");
        vec![
            name(object),
            spec.text("attacher").into(),
            spec.at("source").text("persistentVolumeName").into(),
            spec.text("nodeName").into(),
            object.at("status").flag("attached").into(),
            age(object, now),
        ]
    }
}

/// The definition of VolumeAttachments.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        GROUP,
        "v1",
        "VolumeAttachment",
        "volumeattachments",
        Scope::Cluster,
        COLUMNS,
        VolumeAttachments,
    )
    .optional_to_start()
    .metadata_checks(&[metadata::WHOLE], &[metadata::WHOLE])
    .return_deleted_object()
    .conditional_update_only()
    .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row, update_errors};
    use expect_test::expect;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        expect![[r#"
            spec.attacher: Required value
            spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"#]]
        .assert_eq(&create_errors(&def(), json!({"spec": {"nodeName": "n"}})));
        let v = json!({"metadata": {"name": "v"}, "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "p"}}});
        assert_eq!(row(&def(), &v), "v | d | p | n | false | <unknown>");
        let mut new = v.clone();
        new["spec"]["nodeName"] = "m".into();
        expect![[r#"spec: Invalid value: {"Attacher":"d","Source":{"PersistentVolumeName":"p","InlineVolumeSpec":null},"NodeName":"m"}: field is immutable"#]].assert_eq(&update_errors(&def(), "", new, v));
    }

    fn attachment(source: Value) -> Value {
        json!({"metadata": {"name": "v"}, "spec": {"attacher": "d", "nodeName": "n", "source": source}})
    }

    fn inline(spec: Value) -> Value {
        attachment(json!({"inlineVolumeSpec": spec}))
    }

    #[test]
    fn an_attachment_names_one_source() {
        let csi = json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"}});
        assert_eq!(create_errors(&def(), inline(csi.clone())), "");
        let sources = [
            json!({}),
            json!({"inlineVolumeSpec": csi, "persistentVolumeName": "P"}),
            json!({"persistentVolumeName": ""}),
            json!({"persistentVolumeName": "P"}),
        ];
        let all = sources.map(|s| create_errors(&def(), attachment(s)));
        expect![[r#"
            spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName
            spec.source: Forbidden: must specify exactly one of inlineVolumeSpec and persistentVolumeName
            spec.source.persistentVolumeName: Invalid value: "P": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
            spec.source.persistentVolumeName: Required value: must specify non empty persistentVolumeName
            spec.source.persistentVolumeName: Invalid value: "": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
            spec.source.persistentVolumeName: Invalid value: "P": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"#]].assert_eq(&all.join("\n"));
    }

    #[test]
    fn inline_volumes_have_a_csi_source_and_nothing_of_objects() {
        let specs = [
            json!({}),
            json!({
                "claimRef": {}, "capacity": {"storage": "1"}, "accessModes": ["x", "ReadWriteOncePod", "ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Recycle", "nodeAffinity": {}, "hostPath": {"path": "/"},
                "storageClassName": "A", "volumeMode": "Block", "volumeAttributesClassName": "",
            }),
            json!({
                "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem",
                "csi": {"driver": "", "nodePublishSecretRef": {"name": "A", "namespace": "n"}},
            }),
            json!({"accessModes": ["ReadWriteOnce"], "local": {"path": "a"}, "csi": {}}),
            json!({"accessModes": ["ReadWriteOnce"], "iscsi": {"targetPortal": "p".repeat(64), "iqn": "a", "initiatorName": ""}}),
        ];
        let all = specs.map(|s| create_errors(&def(), inline(s)));
        expect![[r#"
            spec.source.inlineVolumeSpec.csi: Required value: has to be specified in the context of inline volumes
            spec.source.inlineVolumeSpec.accessModes: Required value
            spec.source.inlineVolumeSpec: Required value: must specify a volume type

            spec.source.inlineVolumeSpec.claimRef: Forbidden: may not be specified in the context of inline volumes
            spec.source.inlineVolumeSpec.capacity: Forbidden: may not be specified in the context of inline volumes
            spec.source.inlineVolumeSpec.csi: Required value: has to be specified in the context of inline volumes
            spec.source.inlineVolumeSpec.accessModes: Unsupported value: "x": supported values: "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"
            spec.source.inlineVolumeSpec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes
            spec.source.inlineVolumeSpec.persistentVolumeReclaimPolicy: Forbidden: may only be Retain in the context of inline volumes
            spec.source.inlineVolumeSpec.nodeAffinity: Forbidden: may not be specified in the context of inline volumes
            spec.source.inlineVolumeSpec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'
            spec.source.inlineVolumeSpec.storageClassName: Forbidden: may not be specified in the context of inline volumes
            spec.source.inlineVolumeSpec.volumeMode: Forbidden: may not specify volumeMode other than Filesystem in the context of inline volumes

            spec.source.inlineVolumeSpec.csi.driver: Required value
            spec.source.inlineVolumeSpec.csi.volumeHandle: Required value
            spec.source.inlineVolumeSpec.csi.nodePublishSecretRef.name: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')

            spec.source.inlineVolumeSpec.nodeAffinity: Required value: Local volume requires node affinity
            spec.source.inlineVolumeSpec.csi: Forbidden: may not specify more than 1 volume type

            spec.source.inlineVolumeSpec.csi: Required value: has to be specified in the context of inline volumes
            spec.source.inlineVolumeSpec.iscsi.targetportal: Invalid value: "pppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppp": Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.
            spec.source.inlineVolumeSpec.iscsi.iqn: Invalid value: "a": must be valid format
            spec.source.inlineVolumeSpec.iscsi.initiatorname: Invalid value: "": must be valid format"#]].assert_eq(&all.join("\n\n"));
    }

    #[test]
    fn sources_of_inline_volumes_have_defaults_and_other_fields_none() {
        let spec =
            json!({"capacity": {"storage": "1u"}, "hostPath": {"path": "/a"}, "azureDisk": {}, "rbd": {}});
        let made: Value = serde_json::from_str(&created(&def(), inline(spec))).unwrap();
        expect![[r#"{"inlineVolumeSpec":{"azureDisk":{"cachingMode":"ReadWrite","fsType":"ext4","kind":"Shared","readOnly":false},"capacity":{"storage":"1m"},"hostPath":{"path":"/a","type":""},"rbd":{"keyring":"/etc/ceph/keyring","pool":"rbd","user":"admin"}}}"#]].assert_eq(&made["spec"]["source"].to_string());
    }

    #[test]
    fn status_is_checked_with_the_spec() {
        let old = attachment(json!({"persistentVolumeName": "P"}));
        let mut new = old.clone();
        new["status"] = json!({
            "attached": true, "attachmentMetadata": {"a": "v".repeat(MAX_BYTES)},
            "attachError": {"message": "m".repeat(MAX_MESSAGE + 1), "errorCode": -1}, "detachError": {"message": "m"},
        });
        expect![[r#"
            status.attachmentMetadata: Too long: may not be more than 262144 bytes
            status.attachError.message: Too long: may not be more than 262144 bytes
            status.attachError.errorCode: Invalid value: -1: must be between 0 and 2147483647, inclusive
            spec.source.persistentVolumeName: Invalid value: "P": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"#]].assert_eq(&update_errors(&def(), "status", new, old));
    }
}
