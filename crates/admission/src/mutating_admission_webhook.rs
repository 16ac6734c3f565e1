//! `MutatingAdmissionWebhook`: calls webhooks that may change an object, one after another; those with the reinvocation policy
//! `IfNeeded` are called again if the object changes after them.

use crate::{
    matching::Matched,
    versioned::{self, same_version},
    webhooks::{
        Webhooks,
        call::{Failure, calling},
        present,
        review::{Answer, refusal},
        shown,
        source::Hook,
    },
};
use kaji_engine::{Admission, Attributes, Operation, Phases, decode::json};
use kaji_meta::{GroupVersionKind, Status, Work, object, semantic_equal, text::quote};
use kaji_resource::BoxFuture;
use kaji_schema::patch::json_patch_explained;
use serde::Serialize;
use serde_json::Value;
use std::{collections::BTreeSet, time::Instant};

const NAME: &str = "MutatingAdmissionWebhook";

/// The plugin.
pub(crate) struct MutatingAdmissionWebhook(pub(crate) Webhooks);

/// As metrics call this phase.
const STEP: &str = "admit";

/// What is remembered from the first round to the second.
#[derive(Default)]
struct Rounds {
    /// Webhooks that were called and want to be called again if something changes after them.
    called: BTreeSet<String>,
    /// Those for which something did.
    again: BTreeSet<String>,
    /// What they left; kept only as long as it matters.
    left: Option<Value>,
}

impl Rounds {
    fn changed(&mut self) {
        self.again.append(&mut self.called);
    }
}

/// The object as another kind shows it, while mutations go on.
struct View {
    kind: GroupVersionKind,
    object: Value,
}

#[derive(Serialize)]
struct Mutation<'a> {
    configuration: &'a str,
    webhook: &'a str,
    mutated: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Patched<'a> {
    configuration: &'a str,
    webhook: &'a str,
    patch: &'a Value,
    patch_type: &'a str,
}

impl MutatingAdmissionWebhook {
    async fn mutate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let hooks = self.0.source.hooks(a.api);
        let second = a.reinvocation.as_ref().is_some_and(|again| again.is_second());
        if second {
            let now = present(a).cloned();
            if let Some(rounds) = rounds(a)
                && !rounds.called.is_empty()
                && rounds.left != now
            {
                // Others have changed it since.
                rounds.changed();
            }
        }
        let mut view: Option<View> = None;
        for (index, hook) in hooks.iter().enumerate() {
            let Some(matched) = self.0.match_hook(hook, a).await? else { continue };
            // A webhook that was not called in the first round is not called in the second.
            if second && !rounds(a).is_some_and(|r| r.again.contains(&hook.uid)) {
                continue;
            }
            a.deadline.check()?;
            let began = Instant::now();
            let place = format!("round_{}_index_{index}", u8::from(second));
            let result = self.one(hook, a, &matched, &mut view, &place).await;
            let changed = *result.as_ref().unwrap_or(&false);
            annotate(
                a,
                &format!("mutation.webhook.admission.k8s.io/{place}"),
                &Mutation { configuration: &hook.configuration, webhook: &hook.name, mutated: changed },
            );
            hook.observe(&self.0.deps, STEP, a.operation, began, result.as_ref().map(drop));
            if changed {
                a.reinvocation.get_or_insert_default().want();
                if let Some(rounds) = rounds(a) {
                    rounds.changed();
                }
            }
            if hook.reinvoke {
                a.reinvocation.get_or_insert_default();
                if let Some(rounds) = rounds(a) {
                    rounds.called.insert(hook.uid.clone());
                }
            }
            if let Err(failure) = result {
                let key = format!("failed-open.mutation.webhook.admission.k8s.io/{place}");
                let annotations = a.annotations;
                hook.handle_failure(&self.0.deps, STEP, failure, || {
                    annotations.add(key, hook.name.as_str())
                })?;
            }
        }
        if rounds(a).is_some_and(|r| !r.called.is_empty()) {
            let now = present(a).cloned();
            if let Some(rounds) = rounds(a) {
                rounds.left = now;
            }
        }
        Ok(())
    }

    /// Calls one webhook and applies its patch. Returns whether that changed the object.
    async fn one(
        &self,
        hook: &Hook,
        a: &mut Attributes<'_>,
        matched: &Matched,
        view: &mut Option<View>,
        place: &str,
    ) -> Result<bool, Failure> {
        let kind = &matched.kind;
        if view.as_ref().is_some_and(|v| v.kind != *kind) {
            *view = None;
        }
        if let Some(object) =
            present(a).filter(|o| view.is_none() && !same_version(object::api_version(o), kind))
        {
            let object = shown(a, object, kind).await.map_err(Failure::Internal)?.into_owned();
            *view = Some(View { kind: kind.clone(), object });
        }
        let new = view.as_ref().map(|v| &v.object).or(present(a));
        let old = match a.old {
            Some(old) => Some(shown(a, old, kind).await.map_err(Failure::Internal)?),
            None => None,
        };
        let answer = hook.call(&self.0.deps, true, a, matched, (new, old.as_deref())).await?;
        let Some(patch) = read_patch(&answer)? else { return Ok(false) };
        let Some(new) = new else {
            let text = format!(
                "admission webhook {} attempted to modify the object, which is not supported for this operation",
                quote(&hook.name)
            );
            return Err(Failure::Internal(Status::internal(text)));
        };
        if answer.patch_type != "JSONPatch" {
            let code = refusal(&hook.name, answer.result.as_ref()).code;
            return Err(calling(format!("unsupported patch type {}", quote(&answer.patch_type)), code));
        }
        let patched = apply(a, new, &patch, kind)?;
        let changed = !semantic_equal(new, &patched);
        annotate(
            a,
            &format!("patch.webhook.admission.k8s.io/{place}"),
            &Patched {
                configuration: &hook.configuration,
                webhook: &hook.name,
                patch: &patch,
                patch_type: "JSONPatch",
            },
        );
        replace(a, view, patched).await?;
        Ok(changed)
    }
}

impl Admission for MutatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        NAME
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let _ = (group, resource, operation);
        Phases::MUTATING
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        self.0.concerns(a)
    }

    fn dynamic(&self) -> bool {
        true
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(self.mutate(a))
    }
}

/// The notes of this plugin, if the request has any notes.
fn rounds<'r>(a: &'r mut Attributes<'_>) -> Option<&'r mut Rounds> {
    a.reinvocation.as_mut()?.note(NAME)
}

fn annotate(a: &Attributes<'_>, key: &str, value: &impl Serialize) {
    if let Ok(value) = serde_json::to_string(value) {
        a.annotations.add(key, value);
    }
}

/// The operations of an answer's patch, if there are any.
fn read_patch(answer: &Answer) -> Result<Option<Value>, Failure> {
    let Some(bytes) = &answer.patch else { return Ok(None) };
    let undecodable =
        |why: String| calling(format!("received undecodable patch in webhook response: {why}"), 503);
    let patch = json(bytes).map_err(undecodable)?;
    match &patch {
        Value::Null => Ok(None),
        Value::Array(operations) if operations.is_empty() => Ok(None),
        Value::Array(operations) if operations.iter().all(|o| o.is_object() || o.is_null()) => {
            Ok(Some(patch))
        }
        _ => Err(undecodable("json: cannot unmarshal into Go value of type jsonpatch.Patch".into())),
    }
}

/// The object that a patch makes of one, in the shape that a client's would be given.
fn apply(
    a: &Attributes<'_>,
    object: &Value,
    patch: &Value,
    kind: &GroupVersionKind,
) -> Result<Value, Failure> {
    let internal = |why: String| Failure::Internal(Status::internal(why));
    let mut patched = object.clone();
    let over = || a.deadline.is_over();
    json_patch_explained(&mut patched, patch, &Work::new(&over)).map_err(internal)?;
    a.api.received(patched, kind, false).map_err(internal)
}

/// Makes an object the request's.
async fn replace(a: &mut Attributes<'_>, view: &mut Option<View>, patched: Value) -> Result<(), Failure> {
    if let Some(view) = view {
        view.object = patched.clone();
    }
    let internal = |e: Status| Failure::Internal(Status::internal(e.message));
    versioned::replace(a, patched).await.map_err(internal)
}
