//! SelfSubjectRulesReviews: all that the caller may do in a namespace.

use super::review::GROUP;
use crate::{
    Deps,
    shared::{
        created,
        value::{Fields, put},
    },
};
use kaji_meta::Status;
use kaji_resource::{BoxFuture, CallRequest, Ctx, Hooks, ResourceDef, Scope};
use serde_json::{Value, json};

struct RulesReviews {
    deps: Deps,
}

impl Hooks for RulesReviews {
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
            let found = self.deps.authorize.rules(ctx.user, namespace, ctx.api);
            let mut status = json!({
                "resourceRules": found.resources,
                "nonResourceRules": found.paths,
                "incomplete": found.incomplete,
            });
            if !found.error.is_empty() {
                put(&mut status, "evaluationError", found.error);
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

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        created::row(object)
    }
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
