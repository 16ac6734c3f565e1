//! CSIStorageCapacities.

use super::rules::GROUP;
use crate::core::pods::warnings::{deprecated_node_label, node_term};
use crate::shared::{check, created, metadata, value::Fields};
use kaji_meta::{
    field::{ErrorList, Path},
    validation,
};
use kaji_resource::{Ctx, Hooks, ResourceDef, Scope};
use serde_json::Value;

struct CsiStorageCapacities;

impl Hooks for CsiStorageCapacities {
    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        if object.has("nodeTopology") {
            errs.extend(validation::validate_label_selector(
                object.at("nodeTopology"),
                &Path::new("nodeTopology"),
            ));
        }
        check::dns_subdomain(&mut errs, &Path::new("storageClassName"), object.text("storageClassName"));
        if object.has("capacity") {
            check::not_negative_quantity(&mut errs, &Path::new("capacity"), object.at("capacity"));
        }
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = self.validate_create(ctx, new);
        for f in ["nodeTopology", "storageClassName"] {
            check::immutable(&mut errs, &Path::new(f), new.at(f), old.at(f));
        }
        errs
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let (mut all, path, topology) = (vec![], Path::new("nodeTopology"), new.at("nodeTopology"));
        node_term(&mut all, &path, topology, false);
        for key in topology.map("matchLabels").into_iter().flatten().map(|(key, _)| key) {
            if let Some(text) = deprecated_node_label(key) {
                all.push(format!("{}: {text}", path.child("matchLabels").child(key)));
            }
        }
        all
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        created::row(object)
    }
}

/// The definition of CSIStorageCapacities.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        GROUP,
        "v1",
        "CSIStorageCapacity",
        "csistoragecapacities",
        Scope::Namespaced,
        created::COLUMNS,
        CsiStorageCapacities,
    )
    .metadata_checks(&[metadata::WHOLE, metadata::UPDATE], &[metadata::UPDATE])
    .conditional_update_only()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors, warnings};
    use serde_json::json;

    #[test]
    fn warns_of_deprecated_node_labels() {
        let capacity = json!({"metadata": {"name": "c"}, "storageClassName": "s", "nodeTopology": {
            "matchExpressions": [{"key": "beta.kubernetes.io/arch", "operator": "Exists"}],
            "matchLabels": {"beta.kubernetes.io/os": "linux"}}});
        assert_eq!(
            warnings(&def(), &capacity),
            "nodeTopology.matchExpressions[0].key: beta.kubernetes.io/arch is deprecated since v1.14; use \"kubernetes.io/arch\" instead\n\
             nodeTopology.matchLabels.beta.kubernetes.io/os: deprecated since v1.14; use \"kubernetes.io/os\" instead"
        );
    }

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let c = json!({"metadata": {"name": "c"}, "storageClassName": "s", "capacity": "1Gi"});
        assert_eq!(create_errors(&def(), c.clone()), "");
        assert_eq!(row(&def(), &c), "c | null");
        let mut new = c.clone();
        new["storageClassName"] = "t".into();
        assert_eq!(
            update_errors(&def(), "", new, c),
            r#"storageClassName: Invalid value: "t": field is immutable"#
        );
    }
}
