//! The questions: what may be wrong with an object, one file each, one line each in the table.
//!
//! Invariant: questions read and conclude; they never fail. What they could not read is kept by the reader.

mod api_service;
mod autoscaler;
mod budget;
mod certificate;
mod claim;
pub(crate) mod conflict;
mod containers;
mod decisions;
mod deletion;
mod eviction;
mod gang;
mod node;
mod pod_volumes;
mod quota;
pub(crate) mod refusals;
mod scheduling;
mod service;
pub(crate) mod webhook;
mod workload;

use crate::{case::Case, report::Cause};
use futures_util::future::BoxFuture;
use kaji_meta::object;
use serde_json::Value;

type Answer = for<'a> fn(&'a Case<'a>) -> BoxFuture<'a, Vec<Cause>>;

/// The objects that a question is about, and its answer.
struct Question {
    about: fn(&Value) -> bool,
    answer: Answer,
}

fn any(_: &Value) -> bool {
    true
}

/// Webhooks are not asked about webhooks.
fn is_written(object: &Value) -> bool {
    !object::kind(object).ends_with("WebhookConfiguration")
}

/// Whether an object makes pods from a template, of whichever kind it is.
fn has_pod_template(object: &Value) -> bool {
    object::at(object, &["spec", "template", "spec"]).is_some()
}

macro_rules! questions {
    ($($about:expr => $module:ident :: $question:ident),* $(,)?) => {
        const QUESTIONS: &[Question] =
            &[$(Question { about: $about, answer: |case| Box::pin($module::$question(case)) }),*];
    };
}

/// Of one kind.
macro_rules! kind {
    ($($kind:literal)|+) => {
        |object| matches!(object::kind(object), $($kind)|+)
    };
}

questions! {
    any => deletion::causes,
    any => refusals::causes,
    any => decisions::causes,
    is_written => webhook::hanging,
    kind!("Pod" | "PodGroup") => gang::causes,
    kind!("Pod") => scheduling::causes,
    kind!("Pod") => pod_volumes::causes,
    kind!("Pod") => containers::causes,
    kind!("Pod") => eviction::causes,
    has_pod_template => workload::causes,
    kind!("Service") => service::causes,
    kind!("PersistentVolumeClaim") => claim::causes,
    kind!("ResourceQuota") => quota::causes,
    kind!("HorizontalPodAutoscaler") => autoscaler::causes,
    kind!("CertificateSigningRequest") => certificate::causes,
    kind!("PodDisruptionBudget") => budget::causes,
    kind!("MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration") => webhook::causes,
    kind!("APIService") => api_service::causes,
    kind!("Node") => node::causes,
}

/// Asks all questions about an object.
pub fn answer<'a>(case: &'a Case<'a>) -> BoxFuture<'a, Vec<Cause>> {
    Box::pin(async move {
        let asked = QUESTIONS.iter().filter(|question| (question.about)(case.object));
        let answers = futures_util::future::join_all(asked.map(|q| (q.answer)(case))).await;
        answers.into_iter().flatten().collect()
    })
}
