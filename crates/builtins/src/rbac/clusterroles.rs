//! ClusterRoles.

use super::{
    escalation::Guard,
    rules::{self, GROUP, policy_rules},
};
use crate::{
    Deps,
    shared::{created, metadata, value::Fields},
};
use kaji_meta::{
    Status,
    field::{Error, ErrorList, Path},
    validation,
};
use kaji_resource::{BoxFuture, Ctx, Hooks, Reservation, ResourceDef, Scope};
use serde_json::Value;

struct ClusterRoles {
    guard: Guard,
}

impl Hooks for ClusterRoles {
    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = policy_rules(object, false);
        if object.has("aggregationRule") {
            let path = Path::new("aggregationRule").child("clusterRoleSelectors");
            let selectors = object.at("aggregationRule").list("clusterRoleSelectors");
            if selectors.is_empty() {
                let text = "at least one clusterRoleSelector required if aggregationRule is non-nil";
                errs.push(Error::required(&path, text));
            }
            for (i, s) in selectors.iter().enumerate() {
                errs.extend(validation::validate_label_selector(s, &path.index(i)));
            }
        }
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        self.validate_create(ctx, new)
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

/// The definition of ClusterRoles.
pub fn def(deps: &Deps) -> ResourceDef {
    let guard = Guard::new(deps, "clusterroles");
    ResourceDef::builtin(
        GROUP,
        "v1",
        "ClusterRole",
        "clusterroles",
        Scope::Cluster,
        created::COLUMNS,
        ClusterRoles { guard },
    )
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
        let bad = json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}], "aggregationRule": {}});
        expect!["aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil"]
            .assert_eq(&create_errors(&def(&deps()), bad));
    }
}
