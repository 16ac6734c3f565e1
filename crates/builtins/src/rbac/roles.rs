//! Roles.

use super::rules;
use crate::Deps;
use kaji_resource::{ResourceDef, Scope};

/// The definition of Roles.
pub fn def(deps: &Deps) -> ResourceDef {
    rules::def(deps, "Role", "roles", Scope::Namespaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, deps};
    use expect_test::expect;
    use serde_json::{Value, json};

    #[test]
    fn rejects_invalid_fields() {
        let bad = json!({"rules": [{}, {"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["y"]}]});
        expect![[r#"
            rules[0].verbs: Required value: verbs must contain at least one value
            rules[0].apiGroups: Required value: resource rules must supply at least one api group
            rules[0].resources: Required value: resource rules must supply at least one resource
            rules[1].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs
            rules[1].nonResourceURLs: Invalid value: ["/x"]: rules cannot apply to both regular resources and non-resource URLs"#]]
        .assert_eq(&create_errors(&def(&deps()), bad));
    }

    #[test]
    fn reads_an_empty_list_of_rules_back_as_null() {
        let def = def(&deps());
        let mut role = json!({"metadata": {"name": "r"}, "rules": []});
        def.hooks.canonicalize(&mut role);
        assert_eq!(role["rules"], Value::Null);
    }
}
