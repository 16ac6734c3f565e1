//! Writes that were refused lately, as Kaji's API server remembers them (`refusals.kaji.dev`).
//!
//! Invariant: a refusal that is older than the last change of the object says nothing about it any more. A conflict counts for as
//! long as the other manager holds the fields, whatever else has changed.

use super::{conflict, quota::QuotaRefusal, webhook};
use crate::{
    case::Case,
    conflicts::ApplyConflicts,
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
    let changed = |counts: fn(&Value) -> bool| {
        let entries =
            arr_at(case.object, &["metadata", "managedFields"]).iter().filter(|entry| counts(entry));
        let last = entries.map(|entry| str_at(entry, &["time"])).max();
        last.or(object::creation_timestamp(case.object)).unwrap_or_default()
    };
    // What becomes of an object shows in its status, but its status says nothing of a write of its spec.
    let (changed, written) =
        (changed(|_| true), changed(|entry| str_at(entry, &["subresource"]) != "status"));
    let owner = format!("{} {}", object::kind(case.object), case.name());
    let refusals = refusals(case.reader, case.discovery, case.namespace()).await;
    let mut causes = vec![];
    for refusal in &refusals {
        let text = |member: &str| str_at(refusal, &[member]);
        let when = text("lastTimestamp");
        if is_about(refusal, case.resource, case.namespace(), case.name()) {
            let conflicts = ApplyConflicts::parse(text("message"));
            let holds = match &conflicts {
                Some(conflicts) => conflict::holds_still(case.object, conflicts, text("fieldManager"), when),
                None => when >= written,
            };
            if holds {
                causes.extend(of_refusal(case, refusal, conflicts.as_ref()).await);
            }
        } else if str_at(refusal, &["object", "owner"]) == owner && when >= changed {
            causes.extend(of_refusal(case, refusal, None).await);
        }
        if causes.len() >= SHOWN {
            break;
        }
    }
    causes
}

/// What a refusal says, and what is behind it.
async fn of_refusal(case: &Case<'_>, refusal: &Value, conflicts: Option<&ApplyConflicts>) -> Vec<Cause> {
    if let Some(conflicts) = conflicts {
        let cause = Cause::new(Sort::Conflict, conflict::summary(conflicts)).known(request(refusal));
        return vec![conflict::explained(case, conflicts, cause).await];
    }
    let mut causes = vec![described(case.reader, case.namespace(), refusal).await];
    causes.extend(webhook::named_in(case, str_at(refusal, &["message"])).await);
    causes
}

/// What a refusal says, and what the webhook's configuration or the quota that refused says now.
async fn described(reader: &Reader<'_>, namespace: &str, refusal: &Value) -> Cause {
    let mut found = cause(refusal);
    let message = str_at(refusal, &["message"]);
    if let Some(called) = webhook::Called::of(message) {
        found.summary = called.summary();
        if let Some(configured) = called.find(reader).await {
            found = configured.described(found);
        }
    }
    if let Some(quota) = QuotaRefusal::of(message) {
        found = quota.explained(reader, namespace, found).await;
    }
    found
}

/// The object of an apply with these conflicts that the server remembers, and the request: in this namespace, or without one.
pub async fn of_conflicts<'a>(
    reader: &Reader<'_>,
    discovery: &'a Discovery,
    conflicts: &ApplyConflicts,
    namespace: &str,
) -> Option<(&'a Resource, String, String, Option<String>)> {
    for namespace in [namespace, ""] {
        for refusal in refusals(reader, discovery, namespace).await {
            if ApplyConflicts::parse(str_at(&refusal, &["message"])).as_ref() != Some(conflicts) {
                continue;
            }
            let of = |member: &str| str_at(&refusal, &["object", member]);
            if let Some(resource) = discovery.of_plural(of("group"), of("resource")) {
                let (namespace, name) = (of("namespace").to_owned(), of("name").to_owned());
                return Some((resource, namespace, name, Some(request(&refusal))));
            }
        }
    }
    None
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
    let mut causes = vec![];
    for refusal in refusals.iter().filter(|r| is_about(r, resource, namespace, name)).take(SHOWN) {
        causes.push(described(reader, namespace, refusal).await);
    }
    causes
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

/// `patch of deployments/web by bob, field manager mine, at …`
fn request(refusal: &Value) -> String {
    let text = |path: &[&str]| str_at(refusal, path).to_owned();
    let what = match text(&["object", "name"]).as_str() {
        "" => text(&["object", "resource"]),
        name => format!("{}/{name}", text(&["object", "resource"])),
    };
    let times = match i64_at(refusal, &["count"]).unwrap_or(1) {
        1 => format!("at {}", text(&["lastTimestamp"])),
        count => format!("{count} times from {} to {}", text(&["firstTimestamp"]), text(&["lastTimestamp"])),
    };
    let manager = match text(&["fieldManager"]).as_str() {
        "" => String::new(),
        manager => format!(", field manager {manager}"),
    };
    format!("{} of {what} by {}{manager}, {times}", text(&["verb"]), text(&["user"]))
}

fn cause(refusal: &Value) -> Cause {
    let text = |path: &[&str]| str_at(refusal, path).to_owned();
    let rule = text(&["rule", "kind"]);
    let sort = match rule.as_str() {
        "ResourceQuota" => Sort::Quota,
        "Webhook" => Sort::Webhook,
        "DisruptionBudget" => Sort::Disruption,
        "RBAC" => Sort::Forbidden,
        "FieldManager" => Sort::Conflict,
        _ => Sort::Rollout,
    };
    let named = match text(&["rule", "name"]).as_str() {
        "" => rule.clone(),
        name => format!("{rule} {name}"),
    };
    let summary = format!("{} refused a write of it", named);
    let mut cause = Cause::new(sort, summary).known(request(refusal));
    match text(&["message"]).as_str() {
        "" => {}
        message => cause = cause.known(message),
    }
    match rule.as_str() {
        "RBAC" => cause.fix(format!("kaji why '{}'", text(&["message"]))),
        _ => cause,
    }
}
