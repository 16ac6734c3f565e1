//! What Roles and ClusterRoles share: policy rules, and the hooks.

use super::escalation::Guard;
use crate::{
    Deps,
    shared::{created, metadata, value::Fields},
};
use kaji_meta::{
    Status,
    field::{Error, ErrorList, Path},
    labels::Selector,
    validation,
};
use kaji_resource::{BoxFuture, Ctx, Hooks, ResourceDef, Scope};
use serde_json::Value;

/// The API group of RBAC.
pub const GROUP: &str = "rbac.authorization.k8s.io";

struct Roles {
    guard: Guard,
    namespaced: bool,
}

/// The definition of a kind of roles, in one scope or the other.
pub fn def(deps: &Deps, kind: &'static str, plural: &'static str, scope: Scope) -> ResourceDef {
    let hooks = Roles { guard: Guard::new(deps, plural), namespaced: scope == Scope::Namespaced };
    ResourceDef::builtin(GROUP, "v1", kind, plural, scope, created::COLUMNS, hooks)
        .metadata_checks(&[metadata::WHOLE, metadata::UPDATE], &[metadata::UPDATE])
        .named(validation::path_segment_name)
        .create_on_update()
}

impl Hooks for Roles {
    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = policy_rules(object, self.namespaced);
        if !self.namespaced && object.has("aggregationRule") {
            aggregation_rule(&mut errs, object.at("aggregationRule"));
        }
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        self.validate_create(ctx, new)
    }

    /// Makes an empty list of rules null: protobuf, in which upstream stores roles, does not distinguish the two.
    fn canonicalize(&self, object: &mut Value) {
        if let Some(rules) = object.get_mut("rules").filter(|r| r.as_array().is_some_and(Vec::is_empty)) {
            *rules = Value::Null;
        }
    }

    fn permit<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        new: &'a Value,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(self.guard.role(ctx, new, old))
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        created::row(object)
    }
}

fn aggregation_rule(errs: &mut ErrorList, rule: &Value) {
    let path = Path::new("aggregationRule").child("clusterRoleSelectors");
    let selectors = rule.list("clusterRoleSelectors");
    if selectors.is_empty() {
        let text = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errs.push(Error::required(&path, text));
    }
    for (i, s) in selectors.iter().enumerate() {
        errs.extend(validation::validate_label_selector(s, &path.index(i)));
        if Selector::from_label_selector(s).is_err() {
            errs.push(Error::invalid(&path.index(i), Value::Null, "invalid label selector."));
        }
    }
}

/// Checks the rules of a role.
fn policy_rules(object: &Value, namespaced: bool) -> ErrorList {
    let mut errs = vec![];
    for (i, rule) in object.list("rules").iter().enumerate() {
        let path = Path::new("rules").index(i);
        let empty = |f: &str| rule.list(f).is_empty();
        if empty("verbs") {
            errs.push(Error::required(&path.child("verbs"), "verbs must contain at least one value"));
        }
        if !empty("nonResourceURLs") {
            let urls = path.child("nonResourceURLs");
            let mut bad =
                |text: &str| errs.push(Error::invalid(&urls, rule.at("nonResourceURLs").clone(), text));
            if namespaced {
                bad("namespaced rules cannot apply to non-resource URLs");
            }
            if !empty("apiGroups") || !empty("resources") || !empty("resourceNames") {
                bad("rules cannot apply to both regular resources and non-resource URLs");
            }
            continue;
        }
        if empty("apiGroups") {
            let text = "resource rules must supply at least one api group";
            errs.push(Error::required(&path.child("apiGroups"), text));
        }
        if empty("resources") {
            let text = "resource rules must supply at least one resource";
            errs.push(Error::required(&path.child("resources"), text));
        }
    }
    errs
}
