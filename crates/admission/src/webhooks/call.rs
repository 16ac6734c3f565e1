//! One call of one webhook, and the handling of its failure.

use super::{
    Deps,
    metrics::Rejection,
    review::{self, Answer, Wrong},
    source::{Hook, ReviewVersion, SideEffects},
};
use crate::matching::Matched;
use kaji_decisions::{About, Decision, WEBHOOKS};
use kaji_engine::{Attributes, Operation};
use kaji_meta::{Status, random, text::quote, validation::is_qualified_name};
use kaji_outbound::CallError;
use kaji_traces::{Span, within};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Bytes of an answer: a patch may replace the largest object, in base64 and with some more around it.
const LARGEST: usize = 8 << 20;

/// Why a webhook's response does not admit the request.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It could not be called, or its response is invalid: its failure policy decides. With the HTTP code that metrics
    /// show.
    Calling { reason: String, code: u16 },
    /// It refused the request.
    Refused(Status),
    /// Its response cannot be applied; whatever its failure policy.
    Internal(Status),
}

pub(crate) fn calling(reason: impl Into<String>, code: u16) -> Failure {
    Failure::Calling { reason: reason.into(), code }
}

impl Hook {
    /// Whether it may be called on a dry run, if this is one.
    fn check_dry_run(&self, a: &Attributes<'_>) -> Result<(), Failure> {
        match self.side_effects {
            SideEffects::Unsaid if a.dry_run => Err(calling("Webhook SideEffects is nil", 400)),
            SideEffects::Some if a.dry_run => {
                let text = format!("admission webhook {} does not support dry run", quote(&self.name));
                Err(Failure::Internal(Status::bad_request(text)))
            }
            _ => Ok(()),
        }
    }

    /// Calls it, for no longer than the request lasts; its warnings and audit annotations are passed on.
    pub async fn call(
        &self,
        deps: &Deps,
        mutating: bool,
        a: &Attributes<'_>,
        matched: &Matched,
        objects: (Option<&Value>, Option<&Value>),
    ) -> Result<Answer, Failure> {
        self.check_dry_run(a)?;
        let Some(version) = self.review else {
            let text = "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)";
            return Err(calling(text, 400));
        };
        let uid = random::uid(a.random);
        let body = review::question(version, &uid, a, matched, objects)
            .map_err(|e| calling(format!("could not create admission objects: {e}"), 400))?;
        let since = Instant::now();
        let span = self.span(mutating, a, &uid);
        let exchange = self.exchange(deps, (version, &uid, mutating), body, a.deadline.bound(self.timeout));
        let answer = within(span.as_ref().map(Span::parent), Box::pin(exchange)).await;
        drop(span);
        a.webhooks.called(mutating, since.elapsed());
        let answer = answer?;
        for (key, value) in &answer.annotations {
            let key = format!("{}/{key}", self.name);
            if is_qualified_name(&key).is_empty() {
                a.annotations.add(key, value.as_str());
            } else {
                tracing::warn!(
                    key,
                    webhook = self.name,
                    "the key of a webhook's audit annotation is not a qualified name"
                );
            }
        }
        answer.warnings.iter().for_each(|warning| a.warn(warning.as_str()));
        match answer.allowed {
            true => Ok(answer),
            false => Err(Failure::Refused(review::refusal(&self.name, answer.result.as_ref()))),
        }
    }

    /// Begins the span of a call, if the request is traced.
    fn span(&self, mutating: bool, a: &Attributes<'_>, uid: &str) -> Option<Span> {
        let name = if mutating { "Call mutating webhook" } else { "Call validating webhook" };
        let mut span = kaji_traces::child(name)?;
        if span.is_recorded() {
            span.set("configuration", &self.configuration);
            span.set("webhook", &self.name);
            let resource = a.resource;
            let text = format!("{}/{}, Resource={}", resource.group, resource.version, resource.resource);
            span.set("resource", &text);
            span.set("subresource", a.subresource);
            span.set("operation", a.operation.as_str());
            span.set("UID", uid);
        }
        Some(span)
    }

    async fn exchange(
        &self,
        deps: &Deps,
        (version, uid, mutating): (ReviewVersion, &str, bool),
        body: Vec<u8>,
        time: Duration,
    ) -> Result<Answer, Failure> {
        let unusable = |e: &dyn std::fmt::Display| calling(format!("could not get REST client: {e}"), 500);
        let config = self.client().map_err(|e| unusable(&e))?;
        let client = deps.callers.client(&config).map_err(|e| unusable(&e))?;
        let failed =
            |why: &dyn std::fmt::Display, code| calling(format!("failed to call webhook: {why}"), code);
        let body = client.post_json(body.into(), time, LARGEST).await.map_err(|e| match &e {
            CallError::Answer(status) => failed(&e, status.code),
            _ => failed(&e, 503),
        })?;
        review::answer(version, uid, mutating, &body).map_err(|wrong| match wrong {
            Wrong::Unreadable(text) => failed(&text, 503),
            Wrong::Failure(status) => failed(&status.message, status.code),
            Wrong::Invalid(text) => calling(format!("received invalid webhook response: {text}"), 503),
        })
    }

    /// Counts a call, and remembers whether it failed.
    pub fn observe(
        &self,
        deps: &Deps,
        step: &'static str,
        operation: Operation,
        since: Instant,
        result: Result<(), &Failure>,
    ) {
        let elapsed = since.elapsed();
        let (rejection, code, rejected) = match result {
            Ok(()) => (None, 200, false),
            Err(Failure::Calling { code, .. }) => (Some(Rejection::Calling), *code, !self.ignore),
            Err(Failure::Refused(status)) => (Some(Rejection::None), status.code, true),
            Err(Failure::Internal(_)) => (Some(Rejection::Internal), 0, true),
        };
        if let Some(kind) = rejection.filter(|_| rejected) {
            deps.metrics.rejected(&self.name, step, operation, kind, code);
        }
        deps.metrics.called(&self.name, step, operation, elapsed, code, rejected);
        let key = format!("{step}/{}", self.uid);
        match result {
            Err(Failure::Calling { reason, .. }) => deps.decisions.remember(self.uncalled(key, reason)),
            _ => deps.decisions.settle(WEBHOOKS, &key),
        }
    }

    /// That it could not be called.
    fn uncalled(&self, key: String, reason: &str) -> Decision {
        Decision {
            component: WEBHOOKS.to_owned(),
            key,
            about: About {
                group: "admissionregistration.k8s.io".to_owned(),
                resource: self.resource.to_owned(),
                name: self.configuration.clone(),
                ..About::default()
            },
            reason: if self.ignore { "FailedOpen" } else { "FailedClosed" }.to_owned(),
            message: format!("failed calling webhook {}: {reason}", quote(&self.name)),
            ..Decision::default()
        }
    }

    /// What a failure means for the request: nothing, if it may be ignored.
    ///
    /// # Errors
    /// The refusal of the request.
    pub fn handle_failure(
        &self,
        deps: &Deps,
        step: &'static str,
        failure: Failure,
        failed_open: impl FnOnce(),
    ) -> Result<(), Status> {
        let reason = match failure {
            Failure::Refused(status) | Failure::Internal(status) => return Err(status),
            Failure::Calling { reason, .. } => {
                format!("failed calling webhook {}: {reason}", quote(&self.name))
            }
        };
        if self.ignore {
            tracing::warn!(webhook = self.name, "Failed calling webhook, failing open: {reason}");
            deps.metrics.failed_open(&self.name, step);
            failed_open();
            return Ok(());
        }
        tracing::warn!(webhook = self.name, "Failed calling webhook, failing closed: {reason}");
        Err(Status::internal(reason))
    }
}
