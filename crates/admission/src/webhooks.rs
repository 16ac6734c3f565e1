//! Admission webhooks: what `MutatingAdmissionWebhook` and `ValidatingAdmissionWebhook` share.
//!
//! Invariants:
//! - Without a webhook that is about a request, nothing is allocated for it.
//! - Mutating webhooks are called one after another, by the names of their configurations and their places in them, each
//!   seeing what those before it made of the object; validating ones are called at the same time, on what will be stored.
//! - Every part of an answer is checked before it is used: uid, kind, patch, and the object that the patch makes.
//! - How a failure is worded, and what it is taken for, is upstream's.
//!
//! Source: `admission/plugin/webhook` of k8s.io/apiserver; admission.k8s.io/v1.

mod auth;
pub(crate) mod call;
mod metrics;
pub(crate) mod review;
pub(crate) mod server;
pub(crate) mod source;

use crate::{
    Deps,
    config::Configuration,
    match_conditions::{Activation, MatchResult, MetricLabels, RequestAuthority},
    matching::{Matched, by_rules, excluded, exempt},
    versioned::versioned,
};
use kaji_engine::Attributes;
use kaji_meta::{GroupVersionKind, Status};
use serde_json::Value;
use source::{Hook, Source};
use std::{borrow::Cow, sync::Arc};

use auth::{Auth, KIND};
pub use metrics::WebhookMetrics;

/// What both plugins have.
pub(crate) struct Webhooks {
    pub source: Source,
    mutating: bool,
    pub deps: Deps,
}

impl Webhooks {
    /// With a part of the `AdmissionConfiguration`.
    ///
    /// # Errors
    /// What is wrong with that, in words.
    pub(crate) fn configured(
        mutating: bool,
        file: Option<Configuration<'_>>,
        deps: &Deps,
    ) -> Result<Webhooks, String> {
        let auth = match file {
            Some(file) => {
                let read = file.read;
                Auth::parse(file.of_kind(KIND)?, read)?
            }
            None => Auth::default(),
        };
        Ok(Webhooks::new(mutating, auth, deps.clone()))
    }

    fn new(mutating: bool, auth: Auth, deps: Deps) -> Webhooks {
        Webhooks { source: Source::new(mutating, auth), mutating, deps }
    }

    /// What a webhook takes a request for, if it is to be called.
    ///
    /// # Errors
    /// It cannot be decided: selectors, namespaces or conditions that fail.
    pub(crate) async fn match_hook(
        &self,
        hook: &Hook,
        a: &Attributes<'_>,
    ) -> Result<Option<Matched>, Status> {
        let Some(matched) = by_rules(&hook.rules, hook.equivalent, a) else { return Ok(None) };
        let object = present(a);
        if !hook.selectors.select(a, object, a.old).await? {
            return Ok(None);
        }
        if hook.conditions.is_empty() {
            return Ok(Some(matched));
        }
        let (new, old) = match (object, a.old) {
            (None, None) => (Cow::Owned(Value::Null), Cow::Owned(Value::Null)),
            (Some(new), None) => (shown(a, new, &matched.kind).await?, Cow::Owned(Value::Null)),
            (None, Some(old)) => (Cow::Owned(Value::Null), shown(a, old, &matched.kind).await?),
            (Some(new), Some(old)) => {
                (shown(a, new, &matched.kind).await?, shown(a, old, &matched.kind).await?)
            }
        };
        let authority = RequestAuthority::new(a.user, &*self.deps.authorizer);
        let activation =
            Activation::new(a, (&matched.kind, &matched.resource), (&new, &old), None, &authority);
        // Upstream's two names for one step.
        let (step, excluded) = if self.mutating { ("admit", "admit") } else { ("validating", "validate") };
        let metrics = &*self.deps.metrics.conditions;
        let metric_labels = MetricLabels { metrics, name: &hook.name, kind: "webhook", step };
        match hook.conditions.matches(&activation, None, &metric_labels).await {
            MatchResult::Matches => Ok(Some(matched)),
            MatchResult::Excluded(_) => {
                metrics.excluded(&hook.name, excluded, a.operation);
                Ok(None)
            }
            MatchResult::Failed(why) => {
                tracing::warn!(
                    webhook = hook.name,
                    "Failed evaluating match conditions, failing closed: {why}"
                );
                Err(Status::forbidden(&a.group_resource(), a.name, why))
            }
        }
    }
}

impl Webhooks {
    /// Whether a webhook may be about a request; looks at no other object.
    pub(crate) fn concerns(&self, a: &Attributes<'_>) -> bool {
        if a.internal || excluded(a) {
            return false;
        }
        let hooks = self.source.hooks(a.api);
        let about = |hook: &Arc<Hook>| by_rules(&hook.rules, hook.equivalent, a).is_some();
        !hooks.is_empty() && !exempt(a) && hooks.iter().any(about)
    }
}

/// The object of a request; streams without options have none.
pub(crate) fn present<'a>(a: &'a Attributes<'_>) -> Option<&'a Value> {
    a.new_object().filter(|object| !object.is_null())
}

/// An object as a kind shows it.
///
/// # Errors
/// 500 if it cannot be converted.
pub(crate) async fn shown<'o>(
    a: &Attributes<'_>,
    object: &'o Value,
    kind: &GroupVersionKind,
) -> Result<Cow<'o, Value>, Status> {
    versioned(a.api, object, kind).await.map_err(|e| Status::internal(e.message))
}

#[cfg(test)]
mod tests;
