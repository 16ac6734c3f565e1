//! TokenReviews: who a bearer token belongs to.

use super::selfsubjectreviews::user_info;
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

struct TokenReviews {
    deps: Deps,
}

impl TokenReviews {
    async fn review(&self, request: CallRequest<'_>) -> Result<(u16, Value), Status> {
        let mut review = request.body;
        let token = review.at("spec").text("token").to_owned();
        if token.is_empty() {
            return Err(Status::bad_request("token is required for TokenReview in authentication"));
        }
        let audiences: Vec<String> = review.at("spec").strings("audiences").map(str::to_owned).collect();
        let found = match &self.deps.tokens {
            Some(tokens) => tokens.identify(&token, &audiences).await,
            None => Err("this server has no authenticator for tokens".to_owned()),
        };
        let status = match found {
            Ok(identity) => {
                let mut status = json!({"authenticated": true, "user": user_info(&identity.user)});
                if !identity.audiences.is_empty() {
                    put(&mut status, "audiences", identity.audiences);
                }
                status
            }
            Err(error) => json!({"user": {}, "error": error}),
        };
        put(&mut review, "status", status);
        Ok((201, review))
    }
}

impl Hooks for TokenReviews {
    fn call<'a>(
        &'a self,
        _ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(self.review(request))
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        created::row(object)
    }
}

/// The definition of TokenReviews.
pub fn def(deps: &Deps) -> ResourceDef {
    let hooks = TokenReviews { deps: deps.clone() };
    ResourceDef::builtin(
        "authentication.k8s.io",
        "v1",
        "TokenReview",
        "tokenreviews",
        Scope::Cluster,
        created::COLUMNS,
        hooks,
    )
    .review()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{World, call, deps};

    #[test]
    fn needs_a_token_and_an_authenticator() {
        let def = def(&deps());
        let ask = |spec: Value| call(&World::default(), &def, json!({"spec": spec}));
        assert_eq!(
            ask(json!({})).unwrap_err().message,
            "token is required for TokenReview in authentication"
        );
        let (_, answer) = ask(json!({"token": "x"})).unwrap();
        assert_eq!(answer["status"]["error"], "this server has no authenticator for tokens");
    }
}
