//! SelfSubjectRulesReviews: all that the caller may do in a namespace.

use super::review::GROUP;
use crate::{
    Deps,
    shared::{
        created,
        value::{Fields, put},
    },
};
use kaji_auth::PolicyRule;
use kaji_meta::Status;
use kaji_resource::{BoxFuture, CallHooks, CallRequest, Ctx, Hooks, ResourceDef, Scope};
use serde_json::{Value, json};

struct RulesReviews {
    deps: Deps,
}

impl Hooks for RulesReviews {
    fn calls(&self) -> &dyn CallHooks {
        self
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        created::row(object)
    }
}

impl CallHooks for RulesReviews {
    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(async move {
            let namespace = request.body.at("spec").text("namespace");
            if namespace.is_empty() {
                return Err(Status::bad_request("no namespace on request"));
            }
            let found = self.deps.authorizer.rules(ctx.user, namespace).await;
            let resources = found.rules.iter().filter(|r| !r.resources.is_empty()).map(resource_rule);
            let paths = found.rules.iter().filter(|r| !r.non_resource_urls.is_empty());
            let paths = paths.map(|r| json!({"verbs": r.verbs, "nonResourceURLs": r.non_resource_urls}));
            let mut status = json!({
                "resourceRules": resources.collect::<Vec<_>>(),
                "nonResourceRules": paths.collect::<Vec<_>>(),
                "incomplete": found.incomplete,
            });
            if let Some(error) = found.error {
                put(&mut status, "evaluationError", error);
            }
            let answer = json!({
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectRulesReview",
                "metadata": {},
                "spec": {},
                "status": status,
            });
            Ok((201, answer))
        })
    }
}

fn resource_rule(rule: &PolicyRule) -> Value {
    let mut value = json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
    if !rule.resource_names.is_empty() {
        value["resourceNames"] = rule.resource_names.clone().into();
    }
    value
}

/// The definition of SelfSubjectRulesReviews.
pub fn def(deps: &Deps) -> ResourceDef {
    let hooks = RulesReviews { deps: deps.clone() };
    ResourceDef::builtin(
        GROUP,
        "v1",
        "SelfSubjectRulesReview",
        "selfsubjectrulesreviews",
        Scope::Cluster,
        created::COLUMNS,
        hooks,
    )
    .review()
}
