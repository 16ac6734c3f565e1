//! PersistentVolumes.

use super::pods::defaults::volume_source;
use crate::shared::{
    check, metadata, rules,
    table::{age, name},
    value::{Fields, default_text, ensure_object, put},
};
use kaji_meta::{
    field::{ErrorList, Path},
    object,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

mod sources;
mod validate;
mod warnings;

pub use validate::{Holder, spec as validate_spec};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Capacity",
        "string",
        0,
        "capacity is the description of the persistent volume's resources and capacity. More info: https://kubernetes.io/docs/concepts/storage/persistent-volumes#capacity",
    ),
    Column::new(
        "Access Modes",
        "string",
        0,
        "accessModes contains all ways the volume can be mounted. More info: https://kubernetes.io/docs/concepts/storage/persistent-volumes#access-modes",
    ),
    Column::new(
        "Reclaim Policy",
        "string",
        0,
        "persistentVolumeReclaimPolicy defines what happens to a persistent volume when released from its claim. Valid options are Retain (default for manually created PersistentVolumes), Delete (default for dynamically provisioned PersistentVolumes), and Recycle (deprecated). Recycle must be supported by the volume plugin underlying this PersistentVolume. More info: https://kubernetes.io/docs/concepts/storage/persistent-volumes#reclaiming",
    ),
    Column::new(
        "Status",
        "string",
        0,
        "phase indicates if a volume is available, bound to a claim, or released by a claim. More info: https://kubernetes.io/docs/concepts/storage/persistent-volumes#phase",
    ),
    Column::new(
        "Claim",
        "string",
        0,
        "claimRef is part of a bi-directional binding between PersistentVolume and PersistentVolumeClaim. Expected to be non-nil when bound. claim.VolumeName is the authoritative bind between PV and PVC. More info: https://kubernetes.io/docs/concepts/storage/persistent-volumes#binding",
    ),
    Column::new("StorageClass", "string", 0, "StorageClass of the pv"),
    Column::new("VolumeAttributesClass", "string", 0, "VolumeAttributesClass of the pv"),
    Column::new(
        "Reason",
        "string",
        0,
        "reason is a brief CamelCase string that describes any failure and is meant for machine parsing and tidy display in the CLI.",
    ),
    age_column(),
    Column::new(
        "VolumeMode",
        "string",
        1,
        "volumeMode defines if a volume is intended to be used with a formatted filesystem or to remain in raw block state. Value of Filesystem is implied when not included in spec.",
    ),
];

/// How a volume may be mounted, sorted.
pub const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
/// The annotation that named a storage class before there was a field.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

struct PersistentVolumes;

/// Access modes: known ones; `ReadWriteOncePod` only alone.
pub fn access_modes(errs: &mut ErrorList, path: &Path, spec: &Value) {
    let (mut alone, mut others) = (false, false);
    for mode in spec.strings("accessModes") {
        check::one_of(errs, path, mode, ACCESS_MODES);
        alone |= mode == "ReadWriteOncePod";
        others |= mode != "ReadWriteOncePod" && ACCESS_MODES.contains(&mode);
    }
    rules::frozen(errs, path, !(alone && others), "may not use ReadWriteOncePod with other access modes");
}

/// Fills in the defaults of a spec that VolumeAttachments have, too.
pub fn default_spec(spec: &mut Value) {
    rules::round_quantities(spec, "capacity");
    volume_source(spec);
}

fn validate(object: &Value, old: Option<&Value>) -> ErrorList {
    let mut errs = vec![];
    let holder = Holder::Volume { name: object::name(object), old };
    validate_spec(&mut errs, &Path::new("spec"), object.at("spec"), holder);
    errs
}

impl Hooks for PersistentVolumes {
    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        default_text(spec, "persistentVolumeReclaimPolicy", "Retain");
        rules::default_opt_text(spec, "volumeMode", "Filesystem");
        default_spec(spec);
        default_text(ensure_object(object, "status"), "phase", "Pending");
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        let now = kaji_meta::Time::new(ctx.now).to_string();
        put(object, "status", json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = validate(object, None);
        sources::mount_options(&mut errs, object);
        errs
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource != "status" {
            return;
        }
        let (was, had) =
            (old.at("status").text("phase"), old.at("status").at("lastPhaseTransitionTime").clone());
        let status = ensure_object(new, "status");
        let same = status.text("phase") == was;
        let given = status.at("lastPhaseTransitionTime").clone();
        if same && given.is_null() && !had.is_null() {
            put(status, "lastPhaseTransitionTime", had);
        } else if !same && (given.is_null() || given == had) {
            put(status, "lastPhaseTransitionTime", kaji_meta::Time::new(ctx.now).to_string());
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        if ctx.subresource == "status" {
            return vec![];
        }
        let mut errs = validate(new, Some(old));
        sources::mount_options(&mut errs, new);
        // As at an API server, the check of updates reports what is wrong with the volume once more.
        errs.extend(validate(new, Some(old)));
        validate::unchanged(&mut errs, new.at("spec"), old.at("spec"));
        errs
    }

    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        if ctx.subresource.is_empty() { warnings::of(new) } else { vec![] }
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let (spec, status) = (object.at("spec"), object.at("status"));
        let claim = spec.at("claimRef");
        let claim = if claim.is_null() {
            String::new()
        } else {
            format!("{}/{}", claim.text("namespace"), claim.text("name"))
        };
        vec![
            name(object),
            amount(spec.at("capacity")).into(),
            modes_cell(spec).into(),
            spec.text("persistentVolumeReclaimPolicy").into(),
            phase(object).into(),
            claim.into(),
            class(object).into(),
            spec.opt_text("volumeAttributesClassName").unwrap_or("<unset>").into(),
            status.text("reason").into(),
            age(object, now),
            spec.opt_text("volumeMode").unwrap_or("<unset>").into(),
        ]
    }
}

/// `Terminating` or the phase.
pub fn phase(object: &Value) -> &str {
    match object::deletion_timestamp(object) {
        Some(_) => "Terminating",
        None => object.at("status").text("phase"),
    }
}

/// The storage class by annotation or field.
pub fn class(object: &Value) -> &str {
    object::annotation(object, CLASS_ANNOTATION).unwrap_or_else(|| object.at("spec").text("storageClassName"))
}

/// The amount of storage in a map of resources; `0` without one.
pub fn amount(map: &Value) -> String {
    map.get_field("storage").map_or_else(|| "0".to_owned(), |v| rules::quantity(v).to_string())
}

/// `RWO,ROX`, in upstream's order.
pub fn modes_cell(owner: &Value) -> String {
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |m: &str| owner.strings("accessModes").any(|a| a == m);
    known.iter().filter(|(m, _)| has(m)).map(|(_, s)| *s).collect::<Vec<_>>().join(",")
}

/// The definition of PersistentVolumes.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "",
        "v1",
        "PersistentVolume",
        "persistentvolumes",
        Scope::Cluster,
        COLUMNS,
        PersistentVolumes,
    )
    .optional_to_start()
    .metadata_checks(&[metadata::WHOLE, metadata::WHOLE], &[metadata::UPDATE])
    .return_deleted_object()
    .short(&["pv"])
    .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row, update_errors};
    use expect_test::expect;

    fn pv() -> Value {
        json!({"metadata": {"name": "p"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}}})
    }

    #[test]
    fn fills_in_defaults_on_create() {
        expect![[r#"
            {
              "metadata": {
                "name": "p"
              },
              "spec": {
                "accessModes": [
                  "ReadWriteOnce"
                ],
                "capacity": {
                  "storage": "1Gi"
                },
                "hostPath": {
                  "path": "/a",
                  "type": ""
                },
                "persistentVolumeReclaimPolicy": "Retain",
                "volumeMode": "Filesystem"
              },
              "status": {
                "lastPhaseTransitionTime": "2026-01-02T03:04:05Z",
                "phase": "Pending"
              }
            }"#]]
        .assert_eq(&created(&def(), pv()));
        assert_eq!(create_errors(&def(), pv()), "");
    }

    #[test]
    fn secrets_and_labels_have_valid_names() {
        let mut bad = pv();
        bad["spec"]["hostPath"] = Value::Null;
        bad["spec"]["csi"] =
            json!({"driver": "d", "volumeHandle": "h", "nodePublishSecretRef": {"name": "A"}});
        bad["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v", "V!"]}]}]}});
        let found = create_errors(&def(), bad.clone());
        for part in [
            "nodePublishSecretRef.name: Invalid value: \"A\"",
            "SecretRef.namespace: Required",
            "values[1]: Invalid",
        ] {
            assert!(found.contains(part), "{part}: {found}");
        }
        assert!(!update_errors(&def(), "", bad.clone(), bad).contains("values[1]"));
    }

    #[test]
    fn rejects_invalid_fields() {
        let bad = json!({"spec": {"accessModes": ["x", "ReadWriteOncePod", "ReadWriteOnce"], "volumeMode": "y", "cephfs": {}, "local": {"path": "/../a"}, "nfs": {"path": "a"}}});
        expect![[r#"
            spec.accessModes: Unsupported value: "x": supported values: "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"
            spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes
            spec.capacity: Required value
            spec.capacity: Unsupported value: null: supported values: "storage"
            spec.nfs.server: Required value
            spec.nfs.path: Invalid value: "a": must be an absolute path
            spec.cephFS: Forbidden: may not specify more than 1 volume type
            spec.local: Forbidden: may not specify more than 1 volume type
            spec.volumeMode: Unsupported value: "y": supported values: "Block", "Filesystem""#]]
        .assert_eq(&create_errors(&def(), bad));
        let mut new = pv();
        new["spec"]["hostPath"]["path"] = "/b".into();
        expect![[r#"
            spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation
            @@ -2,7 +2,7 @@
              "GCEPersistentDisk": null,
              "AWSElasticBlockStore": null,
              "HostPath": {
            -  "Path": "/a",
            +  "Path": "/b",
               "Type": ""
              },
              "Glusterfs": null,
        "#]]
        .assert_eq(&update_errors(&def(), "", new, pv()));
    }

    #[test]
    fn prints_a_row() {
        let mut p = pv();
        p["spec"]["claimRef"] = json!({"namespace": "a", "name": "b"});
        p["status"] = json!({"phase": "Bound"});
        assert_eq!(row(&def(), &p), "p | 1Gi | RWO |  | Bound | a/b |  | <unset> |  | <unknown> | <unset>");
    }
}
