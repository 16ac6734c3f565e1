//! CSINodes.

use super::rules::GROUP;
use crate::shared::{
    check, metadata, rules,
    table::{age, name},
    value::{Fields, drop_field, put},
};
use kaji_meta::field::{Error, ErrorList, Path};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Drivers",
        "integer",
        0,
        "Drivers indicates the number of CSI drivers registered on the node",
    ),
    age_column(),
];

const MAX_NODE_ID: usize = 256;

struct CsiNodes;

fn driver(errs: &mut ErrorList, path: &Path, driver: &Value, before: &[Value]) {
    let (name, id) = (driver.text("name"), driver.text("nodeID"));
    rules::csi_driver_name(errs, &path.child("name"), name);
    check::required(errs, &path.child("nodeID"), id);
    if id.len() > MAX_NODE_ID {
        errs.push(Error::invalid(
            &path.child("nodeID"),
            id,
            format!("must be {MAX_NODE_ID} characters or less"),
        ));
    }
    check::not_negative_fields(errs, &path.child("allocatable"), driver.at("allocatable"), &["count"]);
    if before.iter().any(|d| d.text("name") == name) {
        errs.push(Error::duplicate(&path.child("name"), name));
    }
    let keys: Vec<&str> = driver.strings("topologyKeys").collect();
    for (i, key) in keys.iter().enumerate() {
        check::required(errs, path, key);
        if keys[..i].contains(key) {
            errs.push(Error::duplicate(path, *key));
        }
        check::qualified_name(errs, path, key);
    }
}

impl Hooks for CsiNodes {
    /// What the status has is of a feature that is off (CSIVolumeHealth).
    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        put(new, "status", old.get_field("status").cloned().unwrap_or_else(|| json!({})));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let (mut errs, path) = (vec![], Path::new("spec").child("drivers"));
        let drivers = object.at("spec").list("drivers");
        drivers.iter().enumerate().for_each(|(i, d)| driver(&mut errs, &path.index(i), d, &drivers[..i]));
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = self.validate_create(ctx, new);
        let fixed = |d: &Value| {
            let mut d = d.clone();
            drop_field(&mut d, "allocatable");
            d
        };
        for o in old.at("spec").list("drivers") {
            for n in new.at("spec").list("drivers").iter().filter(|n| n.text("name") == o.text("name")) {
                let (path, ty) = (Path::new("spec").child("drivers"), "io.k8s.api.storage.v1.CSINodeDriver");
                check::immutable_struct(&mut errs, &path, ty, &fixed(n), &fixed(o));
            }
        }
        errs
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![name(object), object.at("spec").list("drivers").len().into(), age(object, now)]
    }
}

/// The definition of CSINodes.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(GROUP, "v1", "CSINode", "csinodes", Scope::Cluster, COLUMNS, CsiNodes)
        .metadata_checks(&[metadata::WHOLE], &[])
        .return_deleted_object()
        .conditional_update_only()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row, update, update_errors};
    use expect_test::expect;

    #[test]
    fn the_status_is_not_for_clients() {
        let of =
            |status: Value| json!({"metadata": {"name": "n"}, "spec": {"drivers": []}, "status": status});
        let health = json!({"storageHealth": [{"name": "d"}]});
        let made: Value = serde_json::from_str(&created(&def(), of(health.clone()))).unwrap();
        assert_eq!(made, of(json!({})));
        assert_eq!(update(&def(), "", of(health.clone()), of(json!({}))).0, of(json!({})));
        assert_eq!(update(&def(), "", of(json!({})), of(health.clone())).0, of(health));
    }

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let of = |id: &str| json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d", "nodeID": id, "allocatable": {"count": 1}}]}});
        expect![[r#"spec.drivers[0].nodeID: Required value"#]].assert_eq(&create_errors(&def(), of("")));
        expect![[r#"spec.drivers: Invalid value: {"Name":"d","NodeID":"b","TopologyKeys":null,"Allocatable":null}: field is immutable"#]]
            .assert_eq(&update_errors(&def(), "", of("b"), of("a")));
        assert_eq!(row(&def(), &of("a")), "n | 1 | <unknown>");
    }
}
