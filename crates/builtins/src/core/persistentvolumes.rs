//! PersistentVolumes.

use crate::shared::{
    check, metadata, rules,
    table::{age, name},
    value::{Fields, default_text, ensure_object, put, set_default},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, semantic_equal, validation,
};
use kaji_resource::{
    Column, Ctx, Hooks, ResourceDef, Scope, SelectableField, SubresourceDef, age_column, name_column,
};
use serde_json::{Map, Value, json};

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

/// Fields of the spec that name a kind of volume, in the order they are checked.
const SOURCES: &[&str] = &[
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

/// Fields that a kind of volume cannot do without.
const REQUIRED: &[(&str, &[&str])] = &[
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("glusterfs", &["endpoints", "path"]),
    ("nfs", &["server", "path"]),
    ("rbd", &["monitors", "image"]),
    ("quobyte", &["registry", "volume"]),
    ("cephfs", &["monitors"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("cinder", &["volumeID"]),
    ("flexVolume", &["driver"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("csi", &["driver", "volumeHandle"]),
];

struct PersistentVolumes;

fn spec_path(field: &str) -> Path {
    Path::new("spec").child(field)
}

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

fn source_rules(errs: &mut ErrorList, spec: &Value) {
    let mut found = 0;
    for source in SOURCES.iter().filter(|s| spec.has(s)) {
        let path = spec_path(source);
        if found > 0 && *source != "flexVolume" {
            errs.push(Error::forbidden(&path, "may not specify more than 1 volume type"));
            continue;
        }
        found += 1;
        let value = spec.at(source);
        let fields = REQUIRED.iter().find(|(s, _)| s == source).map_or(&[][..], |(_, f)| f);
        for f in fields.iter().filter(|f| rules::is_zero(value.at(f))) {
            errs.push(Error::required(&path.child(f), ""));
        }
        paths(errs, source, value);
    }
    if found == 0 {
        errs.push(Error::required(&Path::new("spec"), "must specify a volume type"));
    }
}

fn paths(errs: &mut ErrorList, source: &str, value: &Value) {
    let (text, path) = (value.text("path"), spec_path(source).child("path"));
    let has_dots = || text.split('/').any(|p| p == "..");
    match source {
        "hostPath" | "local" => {
            if text.is_empty() {
                errs.push(Error::required(&path, ""));
            } else if has_dots() {
                errs.push(Error::invalid(&path, text, "must not contain '..'"));
            }
        }
        "nfs" if !text.is_empty() && !text.starts_with('/') => {
            errs.push(Error::invalid(&path, text, "must be an absolute path"));
        }
        "csi" => {
            let driver = value.text("driver");
            if !driver.is_empty() {
                driver_name(errs, &spec_path("csi").child("driver"), driver);
            }
            secrets(errs, value);
        }
        _ => {}
    }
    if source == "hostPath" {
        let types = [
            "",
            "BlockDevice",
            "CharDevice",
            "Directory",
            "DirectoryOrCreate",
            "File",
            "FileOrCreate",
            "Socket",
        ];
        if let Some(ty) = value.opt_text("type") {
            check::one_of(errs, &spec_path("hostPath").child("type"), ty, &types);
        }
    }
}

/// The secrets of a CSI volume, but for that of staging, which upstream does not check.
fn secrets(errs: &mut ErrorList, csi: &Value) {
    let roles = ["controllerPublish", "controllerExpand", "nodePublish", "nodeExpand"];
    for field in roles.map(|role| format!("{role}SecretRef")) {
        let Some(secret) = csi.get_field(&field) else { continue };
        let path = spec_path("csi").child(&field);
        for (part, rule) in [
            ("name", validation::is_dns1123_subdomain as fn(&str) -> Vec<String>),
            ("namespace", validation::is_dns1123_label),
        ] {
            match secret.text(part) {
                "" => errs.push(Error::required(&path.child(part), "")),
                text => check::each(errs, &path.child(part), text, rule(text)),
            }
        }
    }
}

/// The name of a CSI driver.
pub fn driver_name(errs: &mut ErrorList, path: &Path, driver: &str) {
    if driver.is_empty() {
        errs.push(Error::required(path, ""));
        return;
    }
    if driver.len() > 63 {
        errs.push(Error::too_long(path, "", 63));
    }
    check::each(errs, path, driver, validation::is_dns1123_subdomain(&driver.to_lowercase()));
}

/// Whether any and only well-formed node selector terms are there.
fn affinity(errs: &mut ErrorList, spec: &Value, old: Option<&Value>) {
    if !spec.has("nodeAffinity") {
        if spec.has("local") {
            errs.push(Error::required(&spec_path("nodeAffinity"), "Local volume requires node affinity"));
        }
        return;
    }
    let path = spec_path("nodeAffinity").child("required");
    let required = spec.at("nodeAffinity").at("required");
    if required.is_null() {
        errs.push(Error::required(&path, "must specify required node constraints"));
        return;
    }
    let terms = required.list("nodeSelectorTerms");
    if terms.is_empty() {
        let text = "must have at least one node selector term";
        errs.push(Error::required(&path.child("nodeSelectorTerms"), text));
    }
    // Values that were no labels before may stay.
    let any_values = old.is_some_and(|o| !label_values(o.at("spec").at("nodeAffinity").at("required")));
    for (i, term) in terms.iter().enumerate() {
        for (j, e) in term.list("matchExpressions").iter().enumerate() {
            let path = path.child("nodeSelectorTerms").index(i).child("matchExpressions").index(j);
            requirement(errs, &path, e);
            for (k, value) in e.strings("values").enumerate().filter(|_| !any_values) {
                let bad = validation::is_valid_label_value(value);
                check::each(errs, &path.child("values").index(k), value, bad);
            }
        }
    }
}

/// Whether all values of a node selector can be those of labels.
fn label_values(selector: &Value) -> bool {
    let expressions = selector.list("nodeSelectorTerms").iter().flat_map(|t| t.list("matchExpressions"));
    expressions.flat_map(|e| e.strings("values")).all(|v| validation::is_valid_label_value(v).is_empty())
}

fn requirement(errs: &mut ErrorList, path: &Path, e: &Value) {
    let values = e.list("values");
    match e.text("operator") {
        "In" | "NotIn" if values.is_empty() => {
            let text = "must be specified when `operator` is 'In' or 'NotIn'";
            errs.push(Error::required(&path.child("values"), text));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errs.push(Error::forbidden(&path.child("values"), text));
        }
        "Gt" | "Lt" if values.len() != 1 => {
            let text = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errs.push(Error::required(&path.child("values"), text));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errs.push(Error::invalid(&path.child("operator"), other, "not a valid selector operator")),
    }
    check::label_name(errs, &path.child("key"), e.text("key"));
}

fn validate(object: &Value, old: Option<&Value>) -> ErrorList {
    let (mut errs, spec) = (vec![], object.at("spec"));
    let modes = spec_path("accessModes");
    if spec.list("accessModes").is_empty() {
        errs.push(Error::required(&modes, ""));
    }
    access_modes(&mut errs, &modes, spec);
    let (path, capacity) = (spec_path("capacity"), spec.map("capacity").cloned().unwrap_or_default());
    if capacity.is_empty() {
        errs.push(Error::required(&path, ""));
    }
    if !capacity.contains_key("storage") || capacity.len() > 1 {
        // Upstream shows a map, which is null when there is none.
        let shown = if capacity.is_empty() { Value::Null } else { Value::Object(capacity.clone()) };
        errs.push(Error::not_supported(&path, shown, &["storage"]));
    }
    for (k, v) in &capacity {
        rules::positive_amount(&mut errs, &path.key(k), v);
    }
    let reclaim = spec.text("persistentVolumeReclaimPolicy");
    let path = spec_path("persistentVolumeReclaimPolicy");
    if !reclaim.is_empty() {
        check::one_of(&mut errs, &path, reclaim, &["Delete", "Recycle", "Retain"]);
    }
    affinity(&mut errs, spec, old);
    source_rules(&mut errs, spec);
    let host = spec.at("hostPath").text("path");
    if !host.is_empty() && host.trim_matches('/').is_empty() && reclaim == "Recycle" {
        errs.push(Error::forbidden(&path, "may not be 'recycle' for a hostPath mount of '/'"));
    }
    let class = spec.text("storageClassName");
    if !class.is_empty() {
        check::dns_subdomain(&mut errs, &spec_path("storageClassName"), class);
    }
    if let Some(mode) = spec.opt_text("volumeMode") {
        check::one_of(&mut errs, &spec_path("volumeMode"), mode, &["Block", "Filesystem"]);
    }
    if let Some(class) = spec.opt_text("volumeAttributesClassName") {
        let path = spec_path("volumeAttributesClassName");
        if class.is_empty() {
            errs.push(Error::required(&path, "an empty string is disallowed"));
        } else {
            check::dns_subdomain(&mut errs, &path, class);
        }
        if !spec.has("csi") {
            errs.push(Error::required(
                &spec_path("csi"),
                "has to be specified when using volumeAttributesClassName",
            ));
        }
    }
    errs
}

/// The volume source of the spec. A secret for expansion may be added later.
fn source(object: &Value, old: &Value) -> Map<String, Value> {
    let mut all = Map::new();
    for s in SOURCES.iter().filter(|s| object.at("spec").has(s)) {
        all.insert((*s).to_owned(), object.at("spec").at(s).clone());
    }
    if old.at("spec").has("csi")
        && !old.at("spec").at("csi").has("controllerExpandSecretRef")
        && let Some(Value::Object(csi)) = all.get_mut("csi")
    {
        csi.remove("controllerExpandSecretRef");
    }
    all
}

fn default_source(spec: &mut Value) {
    let texts: &[(&str, &str, &str)] = &[
        ("rbd", "pool", "rbd"),
        ("rbd", "user", "admin"),
        ("rbd", "keyring", "/etc/ceph/keyring"),
        ("iscsi", "iscsiInterface", "default"),
        ("scaleIO", "storageMode", "ThinProvisioned"),
        ("scaleIO", "fsType", "xfs"),
        ("azureDisk", "cachingMode", "ReadWrite"),
        ("azureDisk", "fsType", "ext4"),
        ("azureDisk", "kind", "Shared"),
    ];
    for (source, field, value) in texts {
        if let Some(s) = spec.get_mut(*source).filter(|s| s.is_object()) {
            default_text(s, field, value);
        }
    }
    if let Some(s) = spec.get_mut("azureDisk").filter(|s| s.is_object()) {
        rules::default_flag(s, "readOnly", false);
    }
    if let Some(s) = spec.get_mut("hostPath").filter(|s| s.is_object()) {
        set_default(s, "type", || "".into());
    }
}

impl Hooks for PersistentVolumes {
    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        default_text(spec, "persistentVolumeReclaimPolicy", "Retain");
        rules::default_opt_text(spec, "volumeMode", "Filesystem");
        default_source(spec);
        default_text(ensure_object(object, "status"), "phase", "Pending");
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        let now = kaji_meta::Time::new(ctx.now).to_string();
        put(object, "status", json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object, None)
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
        if !semantic_equal(&Value::Object(source(new, old)), &Value::Object(source(old, old))) {
            let text = "spec.persistentvolumesource is immutable after creation";
            errs.push(Error::forbidden(&spec_path("persistentvolumesource"), text));
        }
        let (n, o) = (new.at("spec"), old.at("spec"));
        check::immutable(&mut errs, &Path::new("volumeMode"), n.at("volumeMode"), o.at("volumeMode"));
        if o.has("volumeAttributesClassName") && !n.has("volumeAttributesClassName") {
            let text = "update from non-nil value to nil is forbidden";
            errs.push(Error::forbidden(&spec_path("volumeAttributesClassName"), text));
        }
        errs
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
    let mut named = SelectableField::new("metadata.name");
    named.name = "name".into();
    ResourceDef::builtin(
        "",
        "v1",
        "PersistentVolume",
        "persistentvolumes",
        Scope::Cluster,
        COLUMNS,
        PersistentVolumes,
    )
    .metadata_checks(&[metadata::WHOLE, metadata::WHOLE], &[metadata::UPDATE])
    .return_deleted_object()
    .short(&["pv"])
    .sub(&[SubresourceDef::status()])
    .select(&[named])
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
        let bad = json!({"spec": {"accessModes": ["x", "ReadWriteOncePod", "ReadWriteOnce"], "volumeMode": "y", "local": {"path": "/../a"}, "nfs": {"path": "a"}}});
        expect![[r#"
            spec.accessModes: Unsupported value: "x": supported values: "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"
            spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes
            spec.capacity: Required value
            spec.capacity: Unsupported value: null: supported values: "storage"
            spec.nodeAffinity: Required value: Local volume requires node affinity
            spec.nfs.server: Required value
            spec.nfs.path: Invalid value: "a": must be an absolute path
            spec.local: Forbidden: may not specify more than 1 volume type
            spec.volumeMode: Unsupported value: "y": supported values: "Block", "Filesystem""#]]
        .assert_eq(&create_errors(&def(), bad));
        let mut new = pv();
        new["spec"]["hostPath"]["path"] = "/b".into();
        assert_eq!(
            update_errors(&def(), "", new, pv()),
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation"
        );
    }

    #[test]
    fn prints_a_row() {
        let mut p = pv();
        p["spec"]["claimRef"] = json!({"namespace": "a", "name": "b"});
        p["status"] = json!({"phase": "Bound"});
        assert_eq!(row(&def(), &p), "p | 1Gi | RWO |  | Bound | a/b |  | <unset> |  | <unknown> | <unset>");
    }
}
