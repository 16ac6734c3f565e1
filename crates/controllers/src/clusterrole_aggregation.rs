//! Aggregated cluster roles: their rules are those of all cluster roles that their selectors pick.
//!
//! Invariant: one key for everything. Roles depend on each other, there are few of them, and looking at all is cheap.
//! Source: upstream's `pkg/controller/clusterroleaggregation`.

use crate::{Descriptor, Start};
use kaji_runtime::{
    Controller, Cx, Informers, Key, Meta, ObjectSnapshot, PatchKind, Plan, Projection, Reconciler, Step,
    View, Write, client::Target, objects::LabelSelector,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// A cluster role.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClusterRole {
    metadata: Meta,
    rules: Option<Vec<Value>>,
    aggregation_rule: Option<AggregationRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AggregationRule {
    cluster_role_selectors: Option<Vec<LabelSelector>>,
}

impl Projection for ClusterRole {
    const GROUP: &'static str = "rbac.authorization.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "clusterroles";
    const KIND: &'static str = "ClusterRole";

    kaji_runtime::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl ClusterRole {
    fn rules(&self) -> &[Value] {
        self.rules.as_deref().unwrap_or_default()
    }
}

const COMPONENT: &str = "clusterrole-aggregation-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "clusterrole-aggregation-controller",
    components: &[COMPONENT],
    service_account: Some("clusterrole-aggregation-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

/// The controller.
fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Aggregation, informers).reads::<ClusterRole>(|_, _| vec![Key::default()]).workers(1)
}

struct Aggregation;

/// The rules of an aggregated role: selector by selector, role by role in the order of names, each rule once.
fn aggregated(role: &ClusterRole, rule: &AggregationRule, all: &ObjectSnapshot<ClusterRole>) -> Vec<Value> {
    let mut rules: Vec<Value> = vec![];
    for selector in rule.cluster_role_selectors.as_deref().unwrap_or_default() {
        let mut picked: Vec<&Arc<ClusterRole>> = all
            .iter()
            .filter(|r| r.metadata.name != role.metadata.name && selector.matches(&r.metadata.labels))
            .collect();
        picked.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        for rule in picked.iter().flat_map(|r| r.rules()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    rules
}

impl Reconciler for Aggregation {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "ClusterRoleAggregator"
    }

    fn reconcile(&self, view: &View, _key: &Key, _cx: &Cx<'_>) -> Plan {
        let all = view.get::<ClusterRole>();
        let step = |role: &Arc<ClusterRole>| {
            let rules = aggregated(role, role.aggregation_rule.as_ref()?, &all);
            if role.metadata.deleting() || rules == role.rules() {
                return None;
            }
            let mut body = json!({
                "apiVersion": ClusterRole::api_version(),
                "kind": ClusterRole::KIND,
                "metadata": {"name": role.metadata.name},
            });
            if !rules.is_empty() {
                body["rules"] = rules.into();
            }
            let target = Target::of::<ClusterRole>("", &role.metadata.name);
            let write = Write::Patch { target, kind: PatchKind::Apply, body };
            Some(Step { write, on_success: None, on_failure: None })
        };
        match all.iter().filter_map(step).collect::<Vec<_>>() {
            steps if steps.is_empty() => Plan::nothing(),
            steps => Plan::nothing().stage(steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{reconcile, snapshot, text};
    use expect_test::expect;
    use kaji_schema::probe::mismatches_with_kind;

    #[test]
    fn roles_are_read_as_their_schema_has_them() {
        let mismatches = mismatches_with_kind::<ClusterRole>(ClusterRole::GROUP, "v1", ClusterRole::KIND);
        assert!(mismatches.is_empty(), "{mismatches:#?}");
    }

    fn rule(resource: &str) -> Value {
        json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]})
    }

    #[test]
    fn aggregates_rules() {
        let selectors = |labels: &[&str]| json!({"clusterRoleSelectors": labels.iter().map(|l| json!({"matchLabels": {*l: "true"}})).collect::<Vec<_>>()});
        let part = |name: &str, label: &str, rules: &[&str]| json!({"metadata": {"name": name, "labels": {label: "true"}}, "rules": rules.iter().map(|r| rule(r)).collect::<Vec<_>>()});
        let view = View::default().with(snapshot::<ClusterRole>([
            json!({"metadata": {"name": "all", "labels": {"x": "true"}}, "aggregationRule": selectors(&["y", "x"]), "rules": [rule("old")]}),
            json!({"metadata": {"name": "done"}, "aggregationRule": selectors(&["y"]), "rules": [rule("c")]}),
            json!({"metadata": {"name": "none"}, "aggregationRule": selectors(&["z"]), "rules": null}),
            json!({"metadata": {"name": "plain"}, "rules": [rule("old")]}),
            part("r2", "x", &["b", "a"]),
            part("r1", "x", &["a"]),
            part("r3", "y", &["c"]),
        ]));
        expect![[r#"
            apply /apis/rbac.authorization.k8s.io/v1/clusterroles/all {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"all"},"rules":[{"apiGroups":[""],"resources":["c"],"verbs":["get"]},{"apiGroups":[""],"resources":["a"],"verbs":["get"]},{"apiGroups":[""],"resources":["b"],"verbs":["get"]}]}
        "#]].assert_eq(&text(&reconcile(&Aggregation, &view, "", "", &[])));
    }
}
