//! Tokens that a remote service reviews, by TokenReview.
//! Source: Kubernetes, "Webhook Token Authentication".
//!
//! Invariant: what the service decided is kept for a while; failures, its own and those on the way, are not.

use super::{
    AuthenticationError, Identity, TokenAuthenticator, Verdict, cache::Cache, intersection, jwt::strings,
};
use kaji_meta::{Clock, object};
use kaji_resource::{BoxFuture, UserInfo};
use serde_json::{Value, json};
use std::sync::Arc;

/// Sends reviews.
pub trait Review: Send + Sync + 'static {
    /// The review with its status; `Err` says why there is none.
    fn review(&self, review: Value) -> BoxFuture<'_, Result<Value, String>>;
}

/// Asks a service.
pub struct Webhook {
    service: Arc<dyn Review>,
    /// `v1` or `v1beta1`
    version: &'static str,
    audiences: Vec<String>,
    clock: Arc<dyn Clock>,
    known: Cache<Option<Identity>>,
}

impl Webhook {
    /// `audiences` are the API server's own, which services that know none are taken to mean. Answers are kept for
    /// `seconds`.
    pub fn new(
        service: Arc<dyn Review>,
        version: &'static str,
        audiences: Vec<String>,
        seconds: i64,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Webhook { service, version, audiences, clock, known: Cache::new(seconds) }
    }

    async fn check(&self, token: &str, wanted: &[String]) -> Verdict {
        let now = self.clock.now();
        // The same token may be good for one audience and not for another.
        let key = json!([token, wanted]).to_string();
        if let Some(known) = self.known.get(&key, now) {
            return Ok(known);
        }
        let review = json!({
            "apiVersion": format!("authentication.k8s.io/{}", self.version),
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": wanted},
        });
        let answer = self.service.review(review).await.map_err(AuthenticationError)?;
        let found = self.verdict(&answer, wanted)?;
        self.known.put(&key, found.clone(), now);
        Ok(found)
    }

    fn verdict(&self, review: &Value, wanted: &[String]) -> Verdict {
        let status = review.get("status").unwrap_or(&Value::Null);
        let given = strings(status.get("audiences"));
        let audiences = intersection(wanted, if given.is_empty() { &self.audiences } else { &given });
        if audiences.is_empty() {
            return Ok(None);
        }
        if status.get("authenticated") != Some(&Value::Bool(true)) {
            return match object::str_at(status, &["error"]) {
                "" => Ok(None),
                error => Err(AuthenticationError::new(error)),
            };
        }
        let text = |key: &str| object::str_at(status, &["user", key]).to_owned();
        let extra = object::obj_at(status, &["user", "extra"]).into_iter().flatten();
        let user = UserInfo {
            name: text("username"),
            uid: text("uid"),
            groups: strings(object::at(status, &["user", "groups"])),
            extra: extra.map(|(k, v)| (k.clone(), strings(Some(v)))).collect(),
        };
        Ok(Some(Identity { user, audiences, warnings: vec![] }))
    }
}

impl TokenAuthenticator for Webhook {
    fn authenticate<'a>(&'a self, token: &'a str, audiences: &'a [String]) -> BoxFuture<'a, Verdict> {
        Box::pin(self.check(token, audiences))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::testing::{World, now_or_never};
    use std::sync::Mutex;

    type Answer = Result<Value, String>;

    /// Answers with the next status, and notes the questions.
    struct Service(Mutex<(Vec<Answer>, Vec<Value>)>);

    impl Review for Service {
        fn review(&self, mut review: Value) -> BoxFuture<'_, Result<Value, String>> {
            let mut state = self.0.lock().unwrap();
            state.1.push(review["spec"].clone());
            let answer = state.0.remove(0).map(|status| {
                review["status"] = status;
                review
            });
            Box::pin(std::future::ready(answer))
        }
    }

    fn ask(world: &World, answers: Vec<Answer>, times: usize) -> (Vec<Verdict>, Vec<Value>) {
        let service = Arc::new(Service(Mutex::new((answers, vec![]))));
        let audiences = vec!["api".to_owned()];
        let webhook = Webhook::new(service.clone(), "v1", audiences.clone(), 120, world.clock.clone());
        let verdicts = (0..times).map(|_| now_or_never(webhook.authenticate("t", &audiences))).collect();
        let asked = service.0.lock().unwrap().1.clone();
        (verdicts, asked)
    }

    #[test]
    fn caches_answers() {
        let world = World::default();
        let user = json!({"username": "alice", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}});
        let (verdicts, asked) = ask(&world, vec![Ok(json!({"authenticated": true, "user": user}))], 2);
        assert_eq!(asked, [json!({"token": "t", "audiences": ["api"]})]);
        let identity = verdicts[1].clone().unwrap().unwrap();
        assert_eq!((identity.user.name.as_str(), identity.user.groups.len()), ("alice", 1));
        assert_eq!(
            (identity.user.extra["k"].as_slice(), identity.audiences.as_slice()),
            (&["v".to_owned()][..], &["api".to_owned()][..])
        );
    }

    #[test]
    fn does_not_cache_failures() {
        let world = World::default();
        let answers =
            vec![Err("down".into()), Ok(json!({"error": "no"})), Ok(json!({"authenticated": false}))];
        let (verdicts, asked) = ask(&world, answers, 4);
        assert_eq!(
            verdicts,
            [Err(AuthenticationError::new("down")), Err(AuthenticationError::new("no")), Ok(None), Ok(None)]
        );
        assert_eq!(asked.len(), 3);
    }

    #[test]
    fn rejects_invalid_users() {
        for status in [
            json!({}),
            json!({"authenticated": false}),
            json!({"authenticated": "true"}),
            json!({"authenticated": true, "audiences": ["other"], "user": {"username": "x"}}),
        ] {
            assert_eq!(ask(&World::default(), vec![Ok(status)], 1).0, [Ok(None)]);
        }
    }
}
