//! The questions: what may be wrong with an object, one file each, one line each in the table.
//!
//! Invariant: questions read and conclude; they never fail. What they could not read is kept by the reader.

mod api_service;
mod autoscaler;
mod budget;
mod certificate;
mod claim;
mod containers;
mod deletion;
mod node;
mod pod_volumes;
mod quota;
mod scheduling;
mod service;
mod webhook;
mod workload;

use crate::{case::Case, report::Cause};
use futures_util::future::BoxFuture;

type Answer = for<'a> fn(&'a Case<'a>) -> BoxFuture<'a, Vec<Cause>>;

/// The kinds that a question is about (none: all), and its answer.
struct Question {
    kinds: &'static [&'static str],
    answer: Answer,
}

macro_rules! questions {
    ($($kinds:expr => $module:ident),* $(,)?) => {
        const QUESTIONS: &[Question] =
            &[$(Question { kinds: &$kinds, answer: |case| Box::pin($module::causes(case)) }),*];
    };
}

questions! {
    [] => deletion,
    ["Pod"] => scheduling,
    ["Pod"] => pod_volumes,
    ["Pod"] => containers,
    ["Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job"] => workload,
    ["Service"] => service,
    ["PersistentVolumeClaim"] => claim,
    ["ResourceQuota"] => quota,
    ["HorizontalPodAutoscaler"] => autoscaler,
    ["CertificateSigningRequest"] => certificate,
    ["PodDisruptionBudget"] => budget,
    ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] => webhook,
    ["APIService"] => api_service,
    ["Node"] => node,
}

/// Asks all questions about an object.
pub fn answer<'a>(case: &'a Case<'a>) -> BoxFuture<'a, Vec<Cause>> {
    Box::pin(async move {
        let kind = kaji_meta::object::kind(case.object);
        let asked = QUESTIONS.iter().filter(|q| q.kinds.is_empty() || q.kinds.contains(&kind));
        let answers = futures_util::future::join_all(asked.map(|q| (q.answer)(case))).await;
        answers.into_iter().flatten().collect()
    })
}
