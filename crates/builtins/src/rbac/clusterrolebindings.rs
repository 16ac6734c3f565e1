//! ClusterRoleBindings.

use super::{
    escalation::Guard,
    rules::{CLUSTER_BINDING_COLUMNS, GROUP, binding, binding_row, default_binding},
};
use crate::Deps;
use kaji_meta::{Status, field::ErrorList, validation};
use kaji_resource::{BoxFuture, Ctx, Hooks, Reservation, ResourceDef, Scope};
use serde_json::Value;

struct Bindings {
    guard: Guard,
}

impl Hooks for Bindings {
    fn default(&self, _version: &str, object: &mut Value) {
        default_binding(object);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        binding(object, None, false)
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        binding(new, Some(old), false)
    }

    fn reserve<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        new: &'a mut Value,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<Option<Reservation>, Status>> {
        Box::pin(async move { self.guard.binding(ctx, new, old).await.map(|()| None) })
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        binding_row(object, now)
    }
}

/// The definition of ClusterRoleBindings.
pub fn def(deps: &Deps) -> ResourceDef {
    let guard = Guard::new(deps, "clusterrolebindings");
    ResourceDef::builtin(
        GROUP,
        "v1",
        "ClusterRoleBinding",
        "clusterrolebindings",
        Scope::Cluster,
        CLUSTER_BINDING_COLUMNS,
        Bindings { guard },
    )
    .named(validation::path_segment_name)
    .create_on_update()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, deps, row, update_errors};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rules_and_row() {
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
            roleRef.kind: Unsupported value: "x": supported values: "ClusterRole"
            roleRef.name: Required value
            subjects[0].name: Required value
            subjects[0].kind: Unsupported value: "y": supported values: "ServiceAccount", "User", "Group"
            subjects[1].apiGroup: Unsupported value: "z": supported values: "rbac.authorization.k8s.io""#]]
        .assert_eq(&create_errors(&def(&deps()), bad));
    }
}
