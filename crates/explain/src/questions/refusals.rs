//! Writes that were refused lately, as Kaji's API server remembers them (`refusals.kaji.dev`).
//!
//! Invariant: a refusal that is older than the last change of the object says nothing about it any more.

use crate::{
    case::Case,
    discovery::{Discovery, Resource},
    reader::Reader,
    report::{Cause, Sort},
};
use kaji_meta::object::{self, arr_at, i64_at, str_at};
use serde_json::Value;

const GROUP_VERSION: &str = "kaji.dev/v1alpha1";
/// Refusals in one explanation.
const SHOWN: usize = 3;

/// Writes of the object, and of objects that it owns, that were refused since it last changed.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    if !case.is_first() {
        return vec![];
    }
    let changed = arr_at(case.object, &["metadata", "managedFields"])
        .iter()
        .map(|entry| str_at(entry, &["time"]))
        .max();
    let changed = changed.or(object::creation_timestamp(case.object)).unwrap_or_default();
    let owner = format!("{} {}", object::kind(case.object), case.name());
    let refusals = refusals(case.reader, case.discovery, case.namespace()).await;
    let about = refusals.iter().filter(|refusal| {
        let owned = str_at(refusal, &["object", "owner"]) == owner;
        (owned || is_about(refusal, case.resource, case.namespace(), case.name()))
            && str_at(refusal, &["lastTimestamp"]) >= changed
    });
    about.take(SHOWN).map(cause).collect()
}

/// Writes of an object that is not there that were refused.
pub async fn of_missing(
    reader: &Reader<'_>,
    discovery: &Discovery,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Vec<Cause> {
    let refusals = refusals(reader, discovery, namespace).await;
    refusals
        .iter()
        .filter(|refusal| is_about(refusal, resource, namespace, name))
        .take(SHOWN)
        .map(cause)
        .collect()
}

/// Whether a rule of this kind has refused a write of the object.
pub async fn by_rule(case: &Case<'_>, kind: &str) -> bool {
    let refusals = refusals(case.reader, case.discovery, case.namespace()).await;
    refusals.iter().any(|refusal| {
        str_at(refusal, &["rule", "kind"]) == kind
            && is_about(refusal, case.resource, case.namespace(), case.name())
    })
}

/// The messages of the refusals in the namespace of an object.
pub async fn messages(case: &Case<'_>) -> Vec<String> {
    let refusals = refusals(case.reader, case.discovery, case.namespace()).await;
    refusals.iter().map(|refusal| str_at(refusal, &["message"]).to_owned()).collect()
}

/// What the server remembers of a namespace; nothing if it is no Kaji.
async fn refusals(reader: &Reader<'_>, discovery: &Discovery, namespace: &str) -> Vec<Value> {
    let Some(resource) = discovery.of_kind(GROUP_VERSION, "Refusal") else { return vec![] };
    // As events, refusals about objects of the cluster are in this namespace.
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    let list = reader.list(&resource.path(namespace, "")).await;
    list.map_or_else(Vec::new, |list| list.to_vec())
}

fn is_about(refusal: &Value, resource: &Resource, namespace: &str, name: &str) -> bool {
    let of = |member: &str| str_at(refusal, &["object", member]);
    of("group") == resource.group
        && of("resource") == resource.plural
        && of("namespace") == namespace
        && of("name") == name
}

fn cause(refusal: &Value) -> Cause {
    let text = |path: &[&str]| str_at(refusal, path).to_owned();
    let rule = text(&["rule", "kind"]);
    let sort = match rule.as_str() {
        "ResourceQuota" => Sort::Quota,
        "Webhook" => Sort::Webhook,
        "DisruptionBudget" => Sort::Disruption,
        "RBAC" => Sort::Forbidden,
        _ => Sort::Rollout,
    };
    let named = match text(&["rule", "name"]).as_str() {
        "" => rule.clone(),
        name => format!("{rule} {name}"),
    };
    let what = match text(&["object", "name"]).as_str() {
        "" => text(&["object", "resource"]),
        name => format!("{}/{name}", text(&["object", "resource"])),
    };
    let summary = format!("{} refused a write of it", named);
    let times = match i64_at(refusal, &["count"]).unwrap_or(1) {
        1 => format!("at {}", text(&["lastTimestamp"])),
        count => format!("{count} times from {} to {}", text(&["firstTimestamp"]), text(&["lastTimestamp"])),
    };
    let manager = match text(&["fieldManager"]).as_str() {
        "" => String::new(),
        manager => format!(", field manager {manager}"),
    };
    let mut cause = Cause::new(sort, summary).known(format!(
        "{} of {what} by {}{manager}, {times}",
        text(&["verb"]),
        text(&["user"])
    ));
    match text(&["message"]).as_str() {
        "" => {}
        message => cause = cause.known(message),
    }
    match rule.as_str() {
        "FieldManager" => cause
            .fix("let the other manager give the field up; or leave it out; or --force-conflicts to take it"),
        "RBAC" => cause.fix(format!("kaji why '{}'", text(&["message"]))),
        _ => cause,
    }
}
