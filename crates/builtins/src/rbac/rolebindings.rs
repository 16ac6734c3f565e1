//! RoleBindings.

use super::bindings;
use crate::Deps;
use kaji_resource::{ResourceDef, Scope};

/// The definition of RoleBindings.
pub fn def(deps: &Deps) -> ResourceDef {
    bindings::def(deps, "RoleBinding", "rolebindings", Scope::Namespaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, deps, row, update_errors};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let ok = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "admin"}, "subjects": [
            {"kind": "User", "name": "alice"}, {"kind": "ServiceAccount", "name": "sa", "namespace": "n"}]});
        assert_eq!(create_errors(&def(&deps()), ok.clone()), "");
        assert_eq!(row(&def(&deps()), &ok), "b | ClusterRole/admin | <unknown> | alice |  | n/sa");
        let mut new = ok.clone();
        new["roleRef"]["name"] = "x".into();
        assert_eq!(
            update_errors(&def(&deps()), "", new, ok),
            r#"roleRef: Invalid value: {"APIGroup":"rbac.authorization.k8s.io","Kind":"ClusterRole","Name":"x"}: cannot change roleRef"#
        );
        let bad = json!({"roleRef": {"kind": "x"}, "subjects": [{"kind": "y"}, {"kind": "User", "name": "a", "apiGroup": "z"}]});
        expect![[r#"
            roleRef.kind: Unsupported value: "x": supported values: "Role", "ClusterRole"
            roleRef.name: Required value
            subjects[0].name: Required value
            subjects[0].kind: Unsupported value: "y": supported values: "ServiceAccount", "User", "Group"
            subjects[1].apiGroup: Unsupported value: "z": supported values: "rbac.authorization.k8s.io""#]]
        .assert_eq(&create_errors(&def(&deps()), bad));
    }
}
