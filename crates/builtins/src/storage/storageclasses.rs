//! StorageClasses.

use super::rules::{GROUP, is_default_class, parameters, provisioner};
use crate::core::pods::warnings::deprecated_node_label;
use crate::shared::{check, metadata, rules, table::age, value::Fields};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Provisioner", "string", 0, "provisioner indicates the type of the provisioner."),
    Column::new(
        "ReclaimPolicy",
        "string",
        0,
        "reclaimPolicy controls the reclaimPolicy for dynamically provisioned PersistentVolumes of this storage class. Defaults to Delete.",
    ),
    Column::new(
        "VolumeBindingMode",
        "string",
        0,
        "volumeBindingMode indicates how PersistentVolumeClaims should be provisioned and bound.  When unset, VolumeBindingImmediate is used. This field is only honored by servers that enable the VolumeScheduling feature.",
    ),
    Column::new(
        "AllowVolumeExpansion",
        "string",
        0,
        "allowVolumeExpansion shows whether the storage class allow volume expand.",
    ),
    age_column(),
];

struct StorageClasses;

fn topologies(errs: &mut ErrorList, object: &Value) {
    let terms = object.list("allowedTopologies");
    for (i, term) in terms.iter().enumerate() {
        let path = Path::new("allowedTopologies").index(i).child("matchLabelExpressions");
        let list = term.list("matchLabelExpressions");
        for (j, e) in list.iter().enumerate() {
            let (at, values) = (path.index(j), e.list("values"));
            if values.is_empty() {
                errs.push(Error::required(&at.child("values"), ""));
            }
            for (k, v) in values.iter().enumerate().filter(|(k, v)| values[..*k].contains(v)) {
                errs.push(Error::duplicate(&at.child("values").index(k), v.clone()));
            }
            check::label_name(errs, &at.child("key"), e.text("key"));
            if list[..j].iter().any(|o| o.text("key") == e.text("key")) {
                errs.push(Error::duplicate(&at.child("key"), e.text("key")));
            }
        }
        // A term without requirements is none, as one that was there before.
        if terms[..i].contains(term) || list.is_empty() {
            errs.push(Error::duplicate(&path, ""));
        }
    }
}

impl Hooks for StorageClasses {
    fn default(&self, _version: &str, object: &mut Value) {
        rules::default_opt_text(object, "reclaimPolicy", "Delete");
        rules::default_opt_text(object, "volumeBindingMode", "Immediate");
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        provisioner(&mut errs, &Path::new("provisioner"), object.text("provisioner"));
        parameters(&mut errs, object, true);
        let policy = object.text("reclaimPolicy");
        if !policy.is_empty() {
            check::one_of(&mut errs, &Path::new("reclaimPolicy"), policy, &["Delete", "Retain"]);
        }
        let path = Path::new("volumeBindingMode");
        match object.opt_text("volumeBindingMode") {
            None => errs.push(Error::required(&path, "")),
            Some(m) => check::one_of(&mut errs, &path, m, &["Immediate", "WaitForFirstConsumer"]),
        }
        topologies(&mut errs, object);
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = self.validate_create(ctx, new);
        for f in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
            check::immutable(&mut errs, &Path::new(f), new.at(f), old.at(f));
        }
        errs
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut all = vec![];
        for (i, topology) in new.list("allowedTopologies").iter().enumerate() {
            let path = Path::new("allowedTopologies").index(i).child("matchLabelExpressions");
            for (j, expression) in topology.list("matchLabelExpressions").iter().enumerate() {
                if let Some(text) = deprecated_node_label(expression.text("key")) {
                    all.push(format!("{}: {text}", path.index(j).child("key")));
                }
            }
        }
        all
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let name = object::name(object);
        let name = if is_default_class(object) { format!("{name} (default)") } else { name.to_owned() };
        vec![
            name.into(),
            object.text("provisioner").into(),
            object.opt_text("reclaimPolicy").unwrap_or("Delete").into(),
            object.opt_text("volumeBindingMode").unwrap_or("Immediate").into(),
            object.flag("allowVolumeExpansion").into(),
            age(object, now),
        ]
    }
}

/// The definition of StorageClasses.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        GROUP,
        "v1",
        "StorageClass",
        "storageclasses",
        Scope::Cluster,
        COLUMNS,
        StorageClasses,
    )
    .metadata_checks(&[metadata::WHOLE, metadata::UPDATE], &[metadata::UPDATE])
    .return_deleted_object()
    .short(&["sc"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors, warnings};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn warns_of_deprecated_node_labels() {
        let class = json!({"metadata": {"name": "s"}, "provisioner": "x.io/y", "allowedTopologies": [
            {"matchLabelExpressions": [{"key": "failure-domain.beta.kubernetes.io/zone", "values": ["z"]}]}]});
        assert_eq!(
            warnings(&def(), &class),
            r#"allowedTopologies[0].matchLabelExpressions[0].key: deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#
        );
    }

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let bad = json!({"reclaimPolicy": "x", "volumeBindingMode": "y", "parameters": {"": "z"}});
        expect![[r#"
            provisioner: Required value
            parameters: Invalid value: "": field can not be empty.
            reclaimPolicy: Unsupported value: "x": supported values: "Delete", "Retain"
            volumeBindingMode: Unsupported value: "y": supported values: "Immediate", "WaitForFirstConsumer""#]]
        .assert_eq(&create_errors(&def(), bad));
        let sc = json!({"metadata": {"name": "s", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "x.io/y"});
        assert_eq!(row(&def(), &sc), "s (default) | x.io/y | Delete | Immediate | false | <unknown>");
        let mut new = sc.clone();
        new["parameters"] = json!({"a": "b"});
        assert_eq!(
            update_errors(&def(), "", new, sc),
            r#"parameters: Invalid value: {"a":"b"}: field is immutable"#
        );
    }
}
