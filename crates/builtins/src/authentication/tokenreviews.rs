//! TokenReviews: the user that a bearer token authenticates.

use super::selfsubjectreviews::user_info;
use crate::{
    Deps,
    shared::{
        created,
        value::{Fields, put},
    },
};
use kaji_meta::Status;
use kaji_resource::{BoxFuture, CallHooks, CallRequest, Ctx, Hooks, ResourceDef, Scope};
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
        // Without any authenticator upstream answers with the review as it came.
        let Some(tokens) = &self.deps.tokens else { return Ok((201, review)) };
        let audiences: Vec<String> = review.at("spec").strings("audiences").map(str::to_owned).collect();
        let status = match tokens.identify(&token, &audiences).await {
            Ok(identity) if identity.audiences.is_empty() => {
                return Err(Status::internal("error validating audiences"));
            }
            Ok(identity) => json!({
                "authenticated": true,
                "user": user_info(&identity.user),
                "audiences": identity.audiences,
            }),
            Err(refusal) => json!({"user": {}, "error": refusal.to_string()}),
        };
        put(&mut review, "status", status);
        Ok((201, review))
    }
}

impl Hooks for TokenReviews {
    fn calls(&self) -> &dyn CallHooks {
        self
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        created::row(object)
    }
}

impl CallHooks for TokenReviews {
    fn call<'a>(
        &'a self,
        _ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(self.review(request))
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
    use crate::{
        Tokens,
        shared::testing::{TestContext, call, deps},
    };
    use kaji_auth::authn::{AuthenticationError, Identity, IssuedToken, KeyError, TokenOrder};
    use kaji_resource::UserInfo;
    use std::sync::Arc;

    /// Authenticates `good` for every requested audience.
    struct Known;

    impl Tokens for Known {
        fn audiences(&self) -> &[String] {
            &[]
        }
        fn issue(&self, _: &TokenOrder, _: jiff::Timestamp) -> Result<IssuedToken, KeyError> {
            Err(KeyError::Sign)
        }
        fn identify<'a>(
            &'a self,
            token: &'a str,
            audiences: &'a [String],
        ) -> BoxFuture<'a, Result<Identity, AuthenticationError>> {
            let user = UserInfo { name: "alice".into(), uid: "7".into(), ..UserInfo::default() };
            let identity = Identity { user, audiences: audiences.to_vec(), warnings: vec![] };
            let answer = if token == "good" {
                Ok(identity)
            } else {
                Err(AuthenticationError("invalid bearer token".into()))
            };
            Box::pin(std::future::ready(answer))
        }
    }

    #[test]
    fn needs_a_token_and_an_authenticator() {
        let def = def(&deps());
        let ask = |spec: Value| call(&TestContext::default(), &def, json!({"spec": spec}));
        assert_eq!(
            ask(json!({})).unwrap_err().message,
            "token is required for TokenReview in authentication"
        );
        let (_, answer) = ask(json!({"token": "x"})).unwrap();
        assert_eq!(answer.get("status"), None);
    }

    #[test]
    fn returns_the_user_of_the_token() {
        let def = def(&Deps { tokens: Some(Arc::new(Known)), ..deps() });
        let ask = |spec: Value| call(&TestContext::default(), &def, json!({"spec": spec}));
        let (code, answer) = ask(json!({"token": "good", "audiences": ["vault"]})).unwrap();
        assert_eq!(code, 201);
        assert_eq!(
            answer["status"],
            json!({"authenticated": true, "user": {"username": "alice", "uid": "7"}, "audiences": ["vault"]})
        );
        let (_, answer) = ask(json!({"token": "bad"})).unwrap();
        assert_eq!(answer["status"], json!({"user": {}, "error": "invalid bearer token"}));
    }
}
