//! Roles.

use super::{
    escalation::Guard,
    rules::{self, GROUP, policy_rules},
};
use crate::shared::metadata;
use crate::{Deps, shared::created};
use kaji_meta::{Status, field::ErrorList, validation};
use kaji_resource::{BoxFuture, Ctx, Hooks, Reservation, ResourceDef, Scope};
use serde_json::Value;

struct Roles {
    guard: Guard,
}

impl Hooks for Roles {
    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        policy_rules(object, true)
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        policy_rules(new, true)
    }

    fn canonicalize(&self, object: &mut Value) {
        rules::empty_to_null(object);
    }

    fn reserve<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        new: &'a mut Value,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<Option<Reservation>, Status>> {
        Box::pin(async move { self.guard.role(ctx, new, old).await.map(|()| None) })
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        created::row(object)
    }
}

/// The definition of Roles.
pub fn def(deps: &Deps) -> ResourceDef {
    let guard = Guard::new(deps, "roles");
    ResourceDef::builtin(GROUP, "v1", "Role", "roles", Scope::Namespaced, created::COLUMNS, Roles { guard })
        .metadata_checks(&[metadata::WHOLE, metadata::UPDATE], &[metadata::UPDATE])
        .named(validation::path_segment_name)
        .create_on_update()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, deps};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rules() {
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
