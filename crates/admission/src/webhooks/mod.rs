//! `MutatingAdmissionWebhook` and `ValidatingAdmissionWebhook`: what others, called over HTTPS, say about writes.
//!
//! Invariants:
//! - Without a webhook that is about a request, nothing is allocated for it.
//! - Mutating webhooks are called one after another, by the names of their configurations and their places in them, each
//!   seeing what those before it made of the object; validating ones are called at the same time, on what will be stored.
//! - Nothing of an answer is believed that was not checked: uid, kind, patch, and the object that the patch makes.
//! - How a failure is worded, and what it is taken for, is upstream's.
//!
//! Source: `admission/plugin/webhook` of k8s.io/apiserver; admission.k8s.io/v1.

mod auth;
mod call;
mod metrics;
mod mutating;
mod review;
mod source;
mod validating;

use crate::{
    Deps,
    dynamic::{
        conditions::{Asker, Facts, Tally, Verdict},
        matching::{Matched, by_rules, exempt},
    },
};
use kaji_engine::{Admission, Attributes};
use kaji_meta::{GroupVersion, GroupVersionKind, Status, object};
use kaji_resource::BoxFuture;
use serde_json::Value;
use source::{Hook, Source};
use std::{borrow::Cow, sync::Arc};

pub(crate) use auth::{Auth, KIND};
pub use metrics::WebhookMetrics;

/// One of the two plugins.
pub(crate) struct Webhooks {
    source: Source,
    mutating: bool,
    deps: Deps,
}

impl Webhooks {
    pub(crate) const MUTATING: &'static str = "MutatingAdmissionWebhook";
    pub(crate) const VALIDATING: &'static str = "ValidatingAdmissionWebhook";

    pub(crate) fn new(mutating: bool, auth: Auth, deps: Deps) -> Webhooks {
        Webhooks { source: Source::new(mutating, auth), mutating, deps }
    }

    /// What a webhook takes a request for, if it is to be asked.
    ///
    /// # Errors
    /// Nobody can say whether it is: selectors, namespaces or conditions that fail.
    async fn asked(&self, hook: &Hook, a: &Attributes<'_>) -> Result<Option<Matched>, Status> {
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
        let asker = Asker::new(a.user, &*self.deps.authorizer);
        let facts = Facts::new(a, (&matched.kind, &matched.resource), (&new, &old), None, &asker);
        // Upstream's two names for one step.
        let (step, excluded) = if self.mutating { ("admit", "admit") } else { ("validating", "validate") };
        let metrics = &*self.deps.metrics.conditions;
        let tally = Tally { metrics, name: &hook.name, kind: "webhook", step };
        match hook.conditions.judge(&facts, None, &tally).await {
            Verdict::Matches => Ok(Some(matched)),
            Verdict::Excluded(_) => {
                metrics.excluded(&hook.name, excluded, a.operation);
                Ok(None)
            }
            Verdict::Failed(why) => {
                tracing::warn!(
                    webhook = hook.name,
                    "Failed evaluating match conditions, failing closed: {why}"
                );
                Err(Status::forbidden(&a.group_resource(), a.name, why))
            }
        }
    }
}

impl Admission for Webhooks {
    fn name(&self) -> &'static str {
        if self.mutating { Self::MUTATING } else { Self::VALIDATING }
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        if a.inside {
            return false;
        }
        let hooks = self.source.hooks(a.api);
        let about = |hook: &Arc<Hook>| by_rules(&hook.rules, hook.equivalent, a).is_some();
        !hooks.is_empty() && !exempt(a) && hooks.iter().any(about)
    }

    fn foreign(&self) -> bool {
        self.mutating
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move { if self.mutating { self.mutate(a).await } else { Ok(()) } })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move { if self.mutating { Ok(()) } else { self.check(a).await } })
    }
}

/// The object of a request; streams without options have none.
fn present<'a>(a: &'a Attributes<'_>) -> Option<&'a Value> {
    a.new_object().filter(|object| !object.is_null())
}

/// An object as a kind shows it.
///
/// # Errors
/// 500 if it cannot be converted.
async fn shown<'o>(
    a: &Attributes<'_>,
    object: &'o Value,
    kind: &GroupVersionKind,
) -> Result<Cow<'o, Value>, Status> {
    if is_of(object, kind) {
        return Ok(Cow::Borrowed(object));
    }
    a.api.converted(object.clone(), kind).await.map(Cow::Owned).map_err(|e| Status::internal(e.message))
}

fn is_of(object: &Value, kind: &GroupVersionKind) -> bool {
    let (group, version) =
        object::api_version(object).split_once('/').unwrap_or(("", object::api_version(object)));
    group == kind.group && version == kind.version && object::kind(object) == kind.kind
}

/// The kind that an object says it is.
fn kind_of(object: &Value) -> GroupVersionKind {
    let gv = GroupVersion::parse(object::api_version(object)).unwrap_or_else(|_| GroupVersion::new("", ""));
    GroupVersionKind::new(gv.group.as_str(), gv.version.as_str(), object::kind(object))
}

#[cfg(test)]
mod tests;
