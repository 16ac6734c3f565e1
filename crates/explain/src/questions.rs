//! The questions: what may be wrong with an object, one file each, one line each in the table.
//!
//! Invariant: questions read and conclude; they never fail. What they could not read is kept by the reader.

mod api_service;
mod autoscaler;
mod budget;
mod certificate;
mod claim;
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
mod webhook;
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

/// Whether an object makes pods from a template, of whichever kind it is.
fn has_pod_template(object: &Value) -> bool {
    object::at(object, &["spec", "template", "spec"]).is_some()
}

macro_rules! questions {
    ($($about:expr => $module:ident),* $(,)?) => {
        const QUESTIONS: &[Question] =
            &[$(Question { about: $about, answer: |case| Box::pin($module::causes(case)) }),*];
    };
}

/// Of one kind.
macro_rules! kind {
    ($($kind:literal)|+) => {
        |object| matches!(object::kind(object), $($kind)|+)
    };
}

questions! {
    any => deletion,
    any => refusals,
    any => decisions,
    kind!("Pod" | "PodGroup") => gang,
    kind!("Pod") => scheduling,
    kind!("Pod") => pod_volumes,
    kind!("Pod") => containers,
    kind!("Pod") => eviction,
    has_pod_template => workload,
    kind!("Service") => service,
    kind!("PersistentVolumeClaim") => claim,
    kind!("ResourceQuota") => quota,
    kind!("HorizontalPodAutoscaler") => autoscaler,
    kind!("CertificateSigningRequest") => certificate,
    kind!("PodDisruptionBudget") => budget,
    kind!("MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration") => webhook,
    kind!("APIService") => api_service,
    kind!("Node") => node,
}

/// Asks all questions about an object.
pub fn answer<'a>(case: &'a Case<'a>) -> BoxFuture<'a, Vec<Cause>> {
    Box::pin(async move {
        let asked = QUESTIONS.iter().filter(|question| (question.about)(case.object));
        let answers = futures_util::future::join_all(asked.map(|q| (q.answer)(case))).await;
        answers.into_iter().flatten().collect()
    })
}
