//! VolumeAttachments.

use super::rules::{GROUP, MAX_BYTES};
use crate::{
    core::persistentvolumes::driver_name,
    shared::{
        check, metadata, rules,
        table::{age, name},
        value::{Fields, put},
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
    driver_name(&mut errs, &path.child("attacher"), spec.text("attacher"));
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
            let inline = at.child("inlineVolumeSpec");
            if !source.at("inlineVolumeSpec").has("csi") {
                let text = "has to be specified in the context of inline volumes";
                errs.push(Error::required(&inline.child("csi"), text));
            }
            if source.at("inlineVolumeSpec").list("accessModes").is_empty() {
                errs.push(Error::required(&inline.child("accessModes"), ""));
            }
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
    .metadata_checks(&[metadata::WHOLE], &[])
    .return_deleted_object()
    .conditional_update_only()
    .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors};
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
}
