//! SelfSubjectReviews: the user that the server authenticated the caller as.

use kaji_meta::Status;
use kaji_resource::{BoxFuture, CallHooks, CallRequest, Ctx, Hooks, ResourceDef, Scope, UserInfo};
use serde_json::{Map, Value, json};

use crate::shared::{created, value::put};

struct SelfSubjectReviews;

/// A user as `authentication.k8s.io` writes it; what is empty is left out.
pub fn user_info(user: &UserInfo) -> Value {
    let mut v = Value::Object(Map::new());
    let texts = [("username", &user.name), ("uid", &user.uid)];
    texts.iter().filter(|(_, t)| !t.is_empty()).for_each(|(k, t)| put(&mut v, k, t.as_str()));
    if !user.groups.is_empty() {
        put(&mut v, "groups", user.groups.clone());
    }
    if !user.extra.is_empty() {
        put(&mut v, "extra", json!(user.extra));
    }
    v
}

impl Hooks for SelfSubjectReviews {
    fn calls(&self) -> &dyn CallHooks {
        self
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        created::row(object)
    }
}

impl CallHooks for SelfSubjectReviews {
    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        _request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        let answer = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "SelfSubjectReview",
            "metadata": {"creationTimestamp": kaji_meta::Time::new(ctx.now).to_string()},
            "status": {"userInfo": user_info(ctx.user)},
        });
        Box::pin(async move { Ok((201, answer)) })
    }
}

/// The definition of SelfSubjectReviews.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "authentication.k8s.io",
        "v1",
        "SelfSubjectReview",
        "selfsubjectreviews",
        Scope::Cluster,
        created::COLUMNS,
        SelfSubjectReviews,
    )
    .review()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, call};

    #[test]
    fn returns_the_authenticated_user() {
        let (code, answer) = call(&TestContext::default(), &def(), json!({})).unwrap();
        assert_eq!(code, 201);
        assert_eq!(answer["status"], json!({"userInfo": {"username": "alice", "groups": ["devs"]}}));
    }
}
