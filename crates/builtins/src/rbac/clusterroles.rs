//! ClusterRoles.

use super::rules;
use crate::Deps;
use kaji_resource::{ResourceDef, Scope};

/// The definition of ClusterRoles.
pub fn def(deps: &Deps) -> ResourceDef {
    rules::def(deps, "ClusterRole", "clusterroles", Scope::Cluster)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, deps};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields() {
        let bad = json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}], "aggregationRule": {}});
        expect!["aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil"]
            .assert_eq(&create_errors(&def(&deps()), bad));
        let selector = json!({"matchExpressions": [{"key": "a", "operator": "In"}]});
        let bad = json!({"rules": [], "aggregationRule": {"clusterRoleSelectors": [{}, selector]}});
        expect![[r#"
            aggregationRule.clusterRoleSelectors[1].matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'
            aggregationRule.clusterRoleSelectors[1]: Invalid value: null: invalid label selector."#]].assert_eq(&create_errors(&def(&deps()), bad));
    }
}
