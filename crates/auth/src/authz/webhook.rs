//! A remote service decides, by SubjectAccessReview. Source: Kubernetes, "Webhook Mode"; KEP-3221.
//!
//! Invariants: only what the service decided is kept, for as long as the configuration says; what is kept is bounded, and
//! an oversized request is not; without an answer the failure policy decides, which
//! never allows.

mod conditions;
mod recent;
mod review;
#[cfg(test)]
mod tests;

use super::{
    Attributes, Authorizer, Decision, Outcome, Rules,
    config::{OnFailure, WebhookConfig},
};
pub use conditions::Conditions;
use conditions::Verdict;
use kaji_meta::{Clock, fields, labels};
use kaji_resource::{BoxFuture, UserInfo};
use recent::Recent;
use serde_json::Value;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Answers that are kept. Source: upstream's webhook authorizer.
const MOST: usize = 8192;
/// Bytes of a question that are the asker's to choose; answers to longer ones are not kept. Source: likewise.
const LONGEST: usize = 10_000;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// In words.
    pub text: String,
    /// It would have come too late.
    pub timeout: bool,
}

/// Sends reviews.
pub trait Service: Send + Sync + 'static {
    /// The review with its status.
    fn review(&self, review: Value) -> BoxFuture<'_, Result<Value, Failure>>;
}

/// Observes, for metrics, what happens to questions on their way. Names are the services'.
pub trait Witness: Send + Sync + 'static {
    /// Others were let decide because the service did not: `timeout` or `error`.
    fn failed_open(&self, name: &str, result: &'static str);

    /// Conditions were looked at: how long it took, whether they kept the service from being called, and whether any
    /// failed.
    fn conditions(&self, name: &str, took: Duration, excluded: bool, failed: bool);
}

/// What a service said.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    allowed: bool,
    denied: bool,
    reason: String,
}

/// Asks a service.
pub struct Webhook {
    service: Arc<dyn Service>,
    config: WebhookConfig,
    clock: Arc<dyn Clock>,
    known: Mutex<Recent<Answer>>,
    witness: Arc<dyn Witness>,
}

impl Webhook {
    /// Asks `service` as the configuration says.
    pub fn new(
        service: Arc<dyn Service>,
        config: WebhookConfig,
        clock: Arc<dyn Clock>,
        witness: Arc<dyn Witness>,
    ) -> Self {
        Webhook { service, config, clock, known: Mutex::new(Recent::new(MOST)), witness }
    }

    /// What is answered without asking the service, if its conditions say so.
    fn unasked(&self, a: &Attributes<'_>) -> Option<Outcome> {
        if self.config.conditions.is_empty() {
            return None;
        }
        let began = self.clock.now();
        let (verdict, failed) = self.config.conditions.matches(a);
        let took = self.clock.now().duration_since(began).unsigned_abs();
        self.witness.conditions(&self.config.name, took, verdict == Verdict::Excluded, failed);
        match verdict {
            Verdict::Matches => None,
            Verdict::Excluded => Some(Outcome::default()),
            Verdict::Failed(why) => Some(self.without(why)),
        }
    }

    /// What is answered in the service's place.
    fn without(&self, error: String) -> Outcome {
        let decision = match self.config.on_failure {
            OnFailure::Deny => Decision::Deny,
            OnFailure::NoOpinion => Decision::NoOpinion,
        };
        Outcome { decision, reason: "".into(), error: Some(error) }
    }

    async fn review_access(&self, a: &Attributes<'_>) -> Outcome {
        if let Some(outcome) = self.unasked(a) {
            return outcome;
        }
        let review = review::of(a, self.config.version);
        let key = review["spec"].to_string();
        let known = |known: &mut Recent<Answer>| known.get(&key, self.clock.now());
        if let Some(answer) = known(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner)) {
            return answer.outcome();
        }
        let answer = match self.service.review(review).await {
            Ok(review) => review::answer(&review).map_err(|text| Failure { text, timeout: false }),
            Err(failure) => Err(failure),
        };
        match answer {
            Ok(answer) => {
                self.keep(a, key, &answer);
                answer.outcome()
            }
            Err(failure) => {
                tracing::warn!(
                    webhook = self.config.name,
                    error = failure.text,
                    "an authorization webhook failed"
                );
                if self.config.on_failure == OnFailure::NoOpinion {
                    let result = if failure.timeout { "timeout" } else { "error" };
                    self.witness.failed_open(&self.config.name, result);
                }
                self.without(failure.text)
            }
        }
    }

    fn keep(&self, a: &Attributes<'_>, key: String, answer: &Answer) {
        let chosen = [a.namespace, a.verb, a.group, a.version, a.resource, a.subresource, a.name, a.path];
        let terms = a.field_selector.map_or(&[][..], fields::Selector::terms);
        let requirements = a.label_selector.map_or(&[][..], labels::Selector::requirements);
        let selectors = terms.iter().map(|t| t.field.len() + t.value.len()).sum::<usize>()
            + requirements
                .iter()
                .flat_map(|r| r.values().iter().map(String::len).chain([r.key().len()]))
                .sum::<usize>();
        let ttl = if answer.allowed { self.config.authorized_ttl } else { self.config.unauthorized_ttl };
        if ttl.is_zero() || chosen.iter().map(|c| c.len()).sum::<usize>() + selectors >= LONGEST {
            return;
        }
        // What is kept beyond the end of time is kept until then.
        let until = self.clock.now().saturating_add(ttl).unwrap_or(jiff::Timestamp::MAX);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).put(key, answer.clone(), until);
    }
}

impl Answer {
    fn outcome(&self) -> Outcome {
        let (decision, error) = match (self.denied, self.allowed) {
            (true, true) => {
                let text = "webhook subject access review returned both allow and deny response";
                (Decision::Deny, Some(text.to_owned()))
            }
            (true, false) => (Decision::Deny, None),
            (false, true) => (Decision::Allow, None),
            (false, false) => (Decision::NoOpinion, None),
        };
        Outcome { decision, reason: self.reason.clone().into(), error }
    }
}

impl Authorizer for Webhook {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(self.review_access(attributes))
    }

    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> BoxFuture<'a, Rules> {
        let error = Some("webhook authorizer does not support user rule resolution".to_owned());
        Box::pin(std::future::ready(Rules { rules: vec![], incomplete: true, error }))
    }
}
