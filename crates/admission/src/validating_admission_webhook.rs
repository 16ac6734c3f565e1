//! `ValidatingAdmissionWebhook`: calls the webhooks that accept or refuse the object to be stored, all at the
//! same time; all have to accept.

use crate::{
    matching::Matched,
    webhooks::{Webhooks, present, shown, source::Hook},
};
use futures_util::future::join_all;
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupVersionKind, Status};
use kaji_resource::BoxFuture;
use serde_json::Value;
use std::{borrow::Cow, sync::Arc, time::Instant};

/// The plugin.
pub(crate) struct ValidatingAdmissionWebhook(pub(crate) Webhooks);

/// As metrics call this phase.
const STEP: &str = "validating";

/// A request's objects as one kind shows them.
struct View<'a> {
    kind: GroupVersionKind,
    new: Option<Cow<'a, Value>>,
    old: Option<Cow<'a, Value>>,
}

impl<'a> View<'a> {
    async fn of(a: &'a Attributes<'_>, kind: &GroupVersionKind) -> Result<View<'a>, Status> {
        let new = match present(a) {
            Some(object) => Some(shown(a, object, kind).await?),
            None => None,
        };
        let old = match a.old {
            Some(object) => Some(shown(a, object, kind).await?),
            None => None,
        };
        Ok(View { kind: kind.clone(), new, old })
    }
}

impl ValidatingAdmissionWebhook {
    async fn check(&self, a: &Attributes<'_>) -> Result<(), Status> {
        let hooks = self.0.source.hooks(a.api);
        let mut views: Vec<View<'_>> = vec![];
        let mut calls: Vec<(&Arc<Hook>, Matched, usize)> = vec![];
        for hook in hooks.iter() {
            let Some(matched) = self.0.match_hook(hook, a).await? else { continue };
            let view = match views.iter().position(|v| v.kind == matched.kind) {
                Some(view) => view,
                None => {
                    views.push(View::of(a, &matched.kind).await?);
                    views.len() - 1
                }
            };
            calls.push((hook, matched, view));
        }
        a.deadline.check()?;
        let results = calls.iter().enumerate().map(|(index, (hook, matched, view))| {
            let view = views.get(*view);
            self.ask_one(index, hook, a, matched, view)
        });
        join_all(results).await.into_iter().collect()
    }

    async fn ask_one(
        &self,
        index: usize,
        hook: &Hook,
        a: &Attributes<'_>,
        matched: &Matched,
        view: Option<&View<'_>>,
    ) -> Result<(), Status> {
        let began = Instant::now();
        let new = view.and_then(|v| v.new.as_deref());
        let old = view.and_then(|v| v.old.as_deref());
        let result = hook.call(&self.0.deps, false, a, matched, (new, old)).await;
        hook.observe(&self.0.deps, STEP, a.operation, began, result.as_ref().map(drop));
        let Err(failure) = result else { return Ok(()) };
        hook.handle_failure(&self.0.deps, STEP, failure, || {
            let key = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
            a.annotations.add(key, hook.name.as_str());
        })
    }
}

impl Admission for ValidatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let _ = (group, resource, operation);
        Phases::VALIDATING
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        self.0.concerns(a)
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(self.check(a))
    }
}
