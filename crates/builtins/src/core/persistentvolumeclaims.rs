//! PersistentVolumeClaims.

use super::persistentvolumes::{CLASS_ANNOTATION, access_modes, amount, class, modes_cell, phase};
use crate::shared::{
    check,
    disabled::{self, Feature},
    metadata, rules,
    table::{age, name},
    value::{Fields, default_text, drop_field, ensure_object, put},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, semantic_equal, validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Status", "string", 0, "phase represents the current phase of PersistentVolumeClaim."),
    Column::new(
        "Volume",
        "string",
        0,
        "volumeName is the binding reference to the PersistentVolume backing this claim.",
    ),
    Column::new(
        "Capacity",
        "string",
        0,
        "capacity represents the actual resources of the underlying volume.",
    ),
    Column::new(
        "Access Modes",
        "string",
        0,
        "accessModes contains the actual access modes the volume backing the PVC has. More info: https://kubernetes.io/docs/concepts/storage/persistent-volumes#access-modes-1",
    ),
    Column::new("StorageClass", "string", 0, "StorageClass of the pvc"),
    Column::new("VolumeAttributesClass", "string", 0, "VolumeAttributesClass of the pvc"),
    age_column(),
    Column::new(
        "VolumeMode",
        "string",
        1,
        "volumeMode defines what type of volume is required by the claim. Value of Filesystem is implied when not included in claim spec.",
    ),
];

const RESIZE_STATES: &[&str] = &[
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

/// Features that are off, with their fields in the status.
const OFF_IN_STATUS: [Feature; 1] = [
    // CSIVolumeHealth
    &[&["healthStatus"]],
];

struct Claims;

fn spec_path(field: &str) -> Path {
    Path::new("spec").child(field)
}

/// Only claims and snapshots are data sources of old; anything else needs `dataSourceRef`.
fn drop_unknown_source(spec: &mut Value, old: Option<&Value>) {
    // Sources of other namespaces are an alpha feature (`CrossNamespaceVolumeDataSource`), which this server has not.
    let in_use = |o: &Value| o.at("spec").has("dataSourceRef");
    if !spec.at("dataSourceRef").text("namespace").is_empty() && !old.is_some_and(in_use) {
        drop_field(spec, "dataSourceRef");
    }
    if old.is_some_and(|o| o.at("spec").has("dataSource")) || spec.has("dataSourceRef") {
        return;
    }
    let source = spec.at("dataSource");
    let known = match (source.text("kind"), source.text("apiGroup")) {
        ("PersistentVolumeClaim", group) => group.is_empty(),
        ("VolumeSnapshot", group) => group == "snapshot.storage.k8s.io",
        _ => false,
    };
    if !known {
        drop_field(spec, "dataSource");
    }
}

/// The two data source fields follow each other.
fn sync_sources(spec: &mut Value) {
    let copy = |from: &Value| {
        let mut to = json!({"kind": from.text("kind"), "name": from.text("name")});
        if let Some(group) = from.opt_text("apiGroup") {
            put(&mut to, "apiGroup", group);
        }
        to
    };
    if spec.has("dataSource") && !spec.has("dataSourceRef") {
        let to = copy(spec.at("dataSource"));
        put(spec, "dataSourceRef", to);
    } else if spec.has("dataSourceRef")
        && !spec.has("dataSource")
        && spec.at("dataSourceRef").text("namespace").is_empty()
    {
        let to = copy(spec.at("dataSourceRef"));
        put(spec, "dataSource", to);
    }
}

fn source(errs: &mut ErrorList, path: &Path, source: &Value) {
    if source.is_null() {
        return;
    }
    let (kind, group) = (source.text("kind"), source.text("apiGroup"));
    check::required(errs, &path.child("name"), source.text("name"));
    check::required(errs, &path.child("kind"), kind);
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        let text = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errs.push(Error::invalid(path, kind, text));
    } else if !group.is_empty() {
        check::dns_subdomain(errs, &path.child("apiGroup"), group);
    }
    let namespace = source.text("namespace");
    if !namespace.is_empty() {
        check::dns_label(errs, &path.child("namespace"), namespace);
    }
}

/// The rules of a claim's spec, also of the claim templates in pods and stateful sets.
pub fn validate_spec(errs: &mut ErrorList, path: &Path, spec: &Value) {
    if spec.list("accessModes").is_empty() {
        errs.push(Error::required(&path.child("accessModes"), "at least 1 access mode is required"));
    }
    if spec.has("selector") {
        errs.extend(validation::validate_label_selector(spec.at("selector"), &path.child("selector")));
    }
    access_modes(errs, &path.child("accessModes"), spec);
    let at = path.child("resources").key("storage");
    match spec.at("resources").at("requests").get_field("storage") {
        None => errs.push(Error::required(&at, "")),
        Some(v) => rules::positive_amount(errs, &at, v),
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        let class = spec.text(field);
        if !class.is_empty() {
            check::dns_subdomain(errs, &path.child(field), class);
        }
    }
    if let Some(mode) = spec.opt_text("volumeMode") {
        check::one_of(errs, &path.child("volumeMode"), mode, &["Block", "Filesystem"]);
    }
    let (one, two) = (spec.at("dataSource"), spec.at("dataSourceRef"));
    source(errs, &path.child("dataSource"), one);
    source(errs, &path.child("dataSourceRef"), two);
    if one.is_null() || two.is_null() {
        return;
    }
    // Upstream's value is a path, which JSON shows as an object without members.
    let shown = json!({});
    if !two.text("namespace").is_empty() {
        let text = "may not be specified when dataSourceRef.namespace is specified";
        errs.push(Error::invalid(path, shown, text));
    } else if ["apiGroup", "kind", "name"].iter().any(|f| one.at(f) != two.at(f)) {
        errs.push(Error::invalid(path, shown, "must match dataSourceRef"));
    }
}

/// The specs as they must be equal: without what an update may change.
fn frozen_part(new: &Value, old: &Value) -> (Value, Value) {
    let (mut n, mut o) = (new.at("spec").clone(), old.at("spec").clone());
    sync_sources(&mut o);
    if o.text("volumeName").is_empty() {
        let name = n.at("volumeName").clone();
        put(&mut o, "volumeName", name.clone());
        put(&mut n, "volumeName", name);
    }
    let annotation = object::annotation(old, CLASS_ANNOTATION);
    let chosen = n.opt_text("storageClassName");
    if !o.has("storageClassName") && chosen.is_some() && annotation.is_none_or(|a| chosen == Some(a)) {
        drop_field(&mut n, "storageClassName");
    }
    if new.at("status").text("phase") == "Bound" {
        let requests = ensure_object(ensure_object(&mut n, "resources"), "requests");
        put(requests, "storage", o.at("resources").at("requests").at("storage").clone());
        put(&mut n, "volumeAttributesClassName", o.at("volumeAttributesClassName").clone());
    }
    (n, o)
}

fn changes(errs: &mut ErrorList, new: &Value, old: &Value) {
    let annotation = |v: &Value| object::annotation(v, CLASS_ANNOTATION).unwrap_or("").to_owned();
    let upgraded = !old.at("spec").has("storageClassName")
        && object::annotation(old, CLASS_ANNOTATION).is_some()
        && new.at("spec").text("storageClassName") == annotation(old);
    if annotation(new) != annotation(old) && !(upgraded && annotation(new).is_empty()) {
        let path = Path::new("metadata").child("annotations").key(CLASS_ANNOTATION);
        errs.push(Error::invalid(&path, annotation(new), check::IMMUTABLE));
    }
    let (n, o) = frozen_part(new, old);
    if !semantic_equal(&n, &o) {
        let text = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errs.push(Error::forbidden(&Path::new("spec"), text));
    }
    let size = |v: &Value| rules::quantity(v.at("spec").at("resources").at("requests").at("storage"));
    let actual = rules::quantity(old.at("status").at("capacity").at("storage"));
    if size(new) < size(old) && size(new) <= actual {
        let path = spec_path("resources").child("requests").child("storage");
        errs.push(Error::forbidden(&path, "field can not be less than status.capacity"));
    }
    let (n, o) = (new.at("spec"), old.at("spec"));
    check::immutable(errs, &Path::new("volumeMode"), n.at("volumeMode"), o.at("volumeMode"));
    let (class, path) = (n.opt_text("volumeAttributesClassName"), spec_path("volumeAttributesClassName"));
    if class != o.opt_text("volumeAttributesClassName")
        && old.at("status").has("currentVolumeAttributesClassName")
    {
        let what = match class {
            None => "nil",
            Some("") => "empty string",
            Some(_) => return,
        };
        let text =
            format!("update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil");
        errs.push(Error::forbidden(&path, text));
    }
}

fn resource_key(errs: &mut ErrorList, path: &Path, key: &str) -> bool {
    let before = errs.len();
    check::qualified_name(errs, path, key);
    if errs.len() == before && !key.contains('/') && key != "storage" {
        errs.push(Error::not_supported(path, key, &["storage"]));
    }
    errs.len() == before
}

fn validate_status(new: &Value) -> ErrorList {
    let (mut errs, status) = (vec![], new.at("status"));
    if new.at("spec").list("accessModes").is_empty() {
        errs.push(Error::required(&Path::new("Spec").child("accessModes"), ""));
    }
    let negative = |errs: &mut ErrorList, path: &Path, v: &Value| {
        let n = rules::quantity(v).value();
        if n < 0 {
            errs.push(Error::invalid(path, n, "must be a valid resource quantity"));
        }
    };
    let path = Path::new("status").child("capacity");
    for (k, v) in status.map("capacity").into_iter().flatten() {
        negative(&mut errs, &path.key(k), v);
    }
    let path = Path::new("status").child("allocatedResourceStatuses");
    for (k, v) in status.string_map("allocatedResourceStatuses") {
        resource_key(&mut errs, &path, k);
        if !RESIZE_STATES.contains(&v) {
            let mut sorted = RESIZE_STATES.to_vec();
            sorted.sort_unstable();
            errs.push(Error::not_supported(&path, k, &sorted));
        }
    }
    let path = Path::new("status").child("allocatedResources");
    for (k, v) in status.map("allocatedResources").into_iter().flatten() {
        if resource_key(&mut errs, &path, k) {
            negative(&mut errs, &path.key(k), v);
            rules::resource_amount(&mut errs, &path.key(k), "storage", v);
        }
    }
    errs
}

impl Hooks for Claims {
    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        rules::default_opt_text(spec, "volumeMode", "Filesystem");
        if let Some(resources) = spec.get_mut("resources") {
            ["limits", "requests"].iter().for_each(|list| rules::round_quantities(resources, list));
        }
        let status = ensure_object(object, "status");
        default_text(status, "phase", "Pending");
        ["capacity", "allocatedResources"].iter().for_each(|list| rules::round_quantities(status, list));
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({"phase": "Pending"}));
        let spec = ensure_object(object, "spec");
        drop_unknown_source(spec, None);
        sync_sources(spec);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        validate_spec(&mut errs, &Path::new("spec"), object.at("spec"));
        errs
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        match ctx.subresource {
            "status" => {
                disabled::drop_fields(ensure_object(new, "status"), old.at("status"), &OFF_IN_STATUS);
            }
            "" => {
                let spec = ensure_object(new, "spec");
                drop_unknown_source(spec, Some(old));
                sync_sources(spec);
            }
            _ => {}
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        if ctx.subresource == "status" {
            return validate_status(new);
        }
        let mut errs = self.validate_create(ctx, new);
        changes(&mut errs, new, old);
        errs
    }

    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut all = vec![];
        if !ctx.subresource.is_empty() {
            return all;
        }
        if object::annotation(new, CLASS_ANNOTATION).is_some() {
            all.push(format!(
                "metadata.annotations[{CLASS_ANNOTATION}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
            ));
        }
        for field in ["requests", "limits"] {
            let amount = rules::quantity(new.at("spec").at("resources").at(field).at("storage"));
            if amount.milli_value() % 1000 != 0 {
                let text = amount.to_string();
                all.push(format!(
                    "spec.resources.{field}[storage]: fractional byte value {text:?} is invalid, must be an integer"
                ));
            }
        }
        all
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let (spec, status) = (object.at("spec"), object.at("status"));
        let volume = spec.text("volumeName");
        let (capacity, modes) = match volume {
            "" => (String::new(), String::new()),
            _ => (amount(status.at("capacity")), modes_cell(status)),
        };
        vec![
            name(object),
            phase(object).into(),
            volume.into(),
            capacity.into(),
            modes.into(),
            class(object).into(),
            spec.opt_text("volumeAttributesClassName").unwrap_or("<unset>").into(),
            age(object, now),
            spec.opt_text("volumeMode").unwrap_or("<unset>").into(),
        ]
    }
}

/// The definition of PersistentVolumeClaims.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "",
        "v1",
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        Scope::Namespaced,
        COLUMNS,
        Claims,
    )
    .metadata_checks(&[metadata::UPDATE, metadata::WHOLE], &[metadata::UPDATE])
    .return_deleted_object()
    .short(&["pvc"])
    .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row, update, update_errors};
    use expect_test::expect;

    fn pvc() -> Value {
        json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "dataSource": {"kind": "PersistentVolumeClaim", "name": "other"}}})
    }

    #[test]
    fn fills_in_defaults_on_create() {
        expect![[r#"
            {
              "metadata": {
                "name": "c"
              },
              "spec": {
                "accessModes": [
                  "ReadWriteOnce"
                ],
                "dataSource": {
                  "kind": "PersistentVolumeClaim",
                  "name": "other"
                },
                "dataSourceRef": {
                  "kind": "PersistentVolumeClaim",
                  "name": "other"
                },
                "resources": {
                  "requests": {
                    "storage": "1Gi"
                  }
                },
                "volumeMode": "Filesystem"
              },
              "status": {
                "phase": "Pending"
              }
            }"#]]
        .assert_eq(&created(&def(), pvc()));
        expect![[r#"
            spec.accessModes: Required value: at least 1 access mode is required
            spec.resources[storage]: Required value"#]]
        .assert_eq(&create_errors(&def(), json!({"spec": {}})));
    }

    #[test]
    fn sources_of_other_namespaces_are_dropped_and_amounts_rounded() {
        let mut claim = pvc();
        claim["spec"]["resources"] =
            json!({"requests": {"storage": "100u"}, "limits": {"storage": "1000010u"}});
        let spec = claim["spec"].as_object_mut().unwrap();
        spec.remove("dataSource");
        let source = json!({"apiGroup": "a.b", "kind": "A", "name": "b", "namespace": "c"});
        spec.insert("dataSourceRef".into(), source);
        let claim: Value = serde_json::from_str(&created(&def(), claim)).unwrap();
        assert_eq!((claim["spec"].get("dataSourceRef"), claim["spec"].get("dataSource")), (None, None));
        let rounded = json!({"requests": {"storage": "1m"}, "limits": {"storage": "1001m"}});
        assert_eq!(claim["spec"]["resources"], rounded);
    }

    #[test]
    fn the_health_of_a_volume_is_dropped() {
        let with = |health: bool| {
            let mut claim = pvc();
            claim["status"] = json!({"phase": "Bound"});
            if health {
                claim["status"]["healthStatus"] = json!({"healthConditions": []});
            }
            claim
        };
        assert_eq!(update(&def(), "status", with(true), with(false)).0["status"], with(false)["status"]);
        assert_eq!(update(&def(), "status", with(true), with(true)).0["status"], with(true)["status"]);
    }

    #[test]
    fn rejects_changes_of_the_spec() {
        let mut new = pvc();
        new["spec"]["volumeName"] = "pv".into();
        assert_eq!(update_errors(&def(), "", new.clone(), pvc()), "");
        new["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
        expect!["spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"]
            .assert_eq(&update_errors(&def(), "", new.clone(), pvc()));
        new["status"] = json!({"phase": "Bound"});
        let mut old = pvc();
        old["status"] = json!({"phase": "Bound"});
        assert_eq!(update_errors(&def(), "", new, old), "");
    }

    #[test]
    fn prints_a_row() {
        let mut c = pvc();
        c["spec"]["volumeName"] = "pv".into();
        c["status"] =
            json!({"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]});
        assert_eq!(row(&def(), &c), "c | Bound | pv | 1Gi | RWO |  | <unset> | <unknown> | <unset>");
    }
}
