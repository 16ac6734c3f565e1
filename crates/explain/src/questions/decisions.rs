//! The last decisions about an object, as Kaji's API server remembers them (`decisions.kaji.dev`).
//!
//! Invariant: what the server has settled is not there, so that a decision holds as of its last time.

use crate::{
    case::Case,
    report::{Cause, Sort},
};
use kaji_meta::object::{self, arr_at, i64_at, str_at, strs_at};
use serde_json::Value;

const GROUP_VERSION: &str = "kaji.dev/v1alpha1";
/// Decisions in one explanation.
const SHOWN: usize = 3;
/// The components of which other questions tell: the scheduler, webhooks, extension servers.
const SCHEDULER: &str = "kube-scheduler";
const WEBHOOKS: &str = "admission-webhooks";
const AGGREGATOR: &str = "kube-aggregator";

/// What loops failed with that wrote the object, or objects that it owns. What the server refused is a refusal's question.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    if !case.is_first() {
        return vec![];
    }
    let refused = super::refusals::messages(case).await;
    let owner = format!("{} {}", object::kind(case.object), case.name());
    let decisions = decisions(case).await;
    let of_loops = decisions.iter().filter(|decision| {
        let owned = str_at(decision, &["object", "owner"]) == owner;
        ![SCHEDULER, WEBHOOKS, AGGREGATOR].contains(&str_at(decision, &["component"]))
            && (owned || is_about(decision, case))
            && !refused.iter().any(|message| message == str_at(decision, &["message"]))
    });
    let cause = |decision: &Value| {
        let component = str_at(decision, &["component"]);
        let what = match str_at(decision, &["object", "name"]) {
            "" => str_at(decision, &["object", "resource"]).to_owned(),
            name => format!("{}/{name}", str_at(decision, &["object", "resource"])),
        };
        Cause::new(Sort::Rollout, format!("{component} cannot write {what}")).known(format!(
            "{component}, {}: {}",
            times(decision),
            str_at(decision, &["message"])
        ))
    };
    of_loops.take(SHOWN).map(cause).collect()
}

/// The scheduler's last verdict on a pod.
pub async fn verdict(case: &Case<'_>) -> Option<Verdict> {
    let decisions = decisions(case).await;
    let decision = decisions.into_iter().find(|d| is_of(d, SCHEDULER) && is_about(d, case))?;
    Some(Verdict(decision))
}

/// See [`verdict`].
pub struct Verdict(Value);

impl Verdict {
    /// `the scheduler, 3 times from … to …: 0/3 nodes are available: …`
    pub fn tell(&self) -> String {
        format!("the scheduler, {}: {}", times(&self.0), str_at(&self.0, &["message"]))
    }

    /// Whether a plugin rejected a node for a reason.
    pub fn rejects(&self, plugin: &str, reason: &str, node: &str) -> bool {
        arr_at(&self.0, &["rejections"]).iter().any(|rejection| {
            let named = || strs_at(rejection, &["nodes"]).any(|name| name == node);
            // Nodes of a pre-filter's verdict, and those beyond the first few, have no names.
            let unnamed =
                i64_at(rejection, &["count"]) > i64::try_from(arr_at(rejection, &["nodes"]).len()).ok();
            str_at(rejection, &["plugin"]) == plugin
                && str_at(rejection, &["reason"]) == reason
                && (named() || unnamed)
        })
    }
}

/// What the last calls of the configuration's webhooks failed with.
pub async fn of_webhook(case: &Case<'_>, webhook: &str) -> Option<String> {
    let decisions = decisions(case).await;
    let about = format!("failed calling webhook \"{webhook}\"");
    let failed =
        |d: &&Value| is_of(d, WEBHOOKS) && is_about(d, case) && str_at(d, &["message"]).starts_with(&about);
    decisions.iter().find(failed).map(last)
}

/// The last calls of webhooks that failed, of all configurations.
pub async fn of_webhooks(case: &Case<'_>) -> Vec<Value> {
    // As events, decisions about objects of the cluster are in this namespace.
    let mut decisions = in_namespace(case, "default").await;
    decisions.retain(|decision| is_of(decision, WEBHOOKS));
    decisions
}

/// What the last request to an APIService's server failed with.
pub async fn of_api_service(case: &Case<'_>) -> Option<String> {
    let decisions = decisions(case).await;
    decisions.iter().find(|d| is_of(d, AGGREGATOR) && is_about(d, case)).map(last)
}

/// What the server remembers of the object's namespace; nothing if it is no Kaji.
async fn decisions(case: &Case<'_>) -> Vec<Value> {
    // As events, decisions about objects of the cluster are in this namespace.
    in_namespace(case, if case.namespace().is_empty() { "default" } else { case.namespace() }).await
}

async fn in_namespace(case: &Case<'_>, namespace: &str) -> Vec<Value> {
    let Some(resource) = case.discovery.of_kind(GROUP_VERSION, "Decision") else { return vec![] };
    let list = case.reader.list(&resource.path(namespace, "")).await;
    list.map_or_else(Vec::new, |list| list.to_vec())
}

fn is_of(decision: &Value, component: &str) -> bool {
    str_at(decision, &["component"]) == component
}

fn is_about(decision: &Value, case: &Case<'_>) -> bool {
    let of = |member: &str| str_at(decision, &["object", member]);
    of("group") == case.resource.group
        && of("resource") == case.resource.plural
        && of("namespace") == case.namespace()
        && of("name") == case.name()
}

/// When it was last decided, and what.
pub fn last(decision: &Value) -> String {
    format!("{}: {}", times(decision), str_at(decision, &["message"]))
}

fn times(decision: &Value) -> String {
    let text = |field: &str| str_at(decision, &[field]);
    match i64_at(decision, &["count"]).unwrap_or(1) {
        1 => format!("at {}", text("lastTimestamp")),
        count => format!("{count} times from {} to {}", text("firstTimestamp"), text("lastTimestamp")),
    }
}
