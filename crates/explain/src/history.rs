//! The history of one object: what `kaji history`, `diff`, `blame`, `get --at` and `restore` show; `recent`: of a namespace.
//!
//! Invariants: revisions are in the order in which they were made; what is missing between them is said wherever they are used. Without a
//! recorded state there is no answer, and not the nearest one.

mod blame;
mod fields;
mod moment;
mod recent;
mod restore;

pub use blame::{Origin, blame, origins};
pub use fields::{FieldChange, changes, leaves};
pub use moment::Moment;
pub use recent::{ObjectOf, RecentChange, RecentChanges, RecentError, recent_table};
pub use restore::Restoration;

use crate::{
    Api, ExplainError, RequestError, Subject,
    discovery::{Discovery, Resource},
    table::align,
};
use jiff::Timestamp;
use kaji_meta::{
    fields::escape_value,
    object::{arr_at, str_at},
};
use kaji_runtime::client::escape;
use serde::Serialize;
use serde_json::Value;

/// The API of histories.
const REVISIONS: &str = "revisions";
const API: &str = "/apis/history.kaji.dev/v1alpha1";
/// Answers that are read; 500 revisions each.
const PAGES: usize = 2_000;
/// For an explanation, which is to be quick.
const EXPLAINED_PAGES: usize = 20;
const NO_HISTORY: &str = "the server keeps no history: it is no Kaji, was started with --history=false, or has its store in memory";
/// What stands for a value that is not kept.
const REDACTED: &str = "redacted:";

/// One entry of a history. As JSON it has the API's names.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// The resourceVersion.
    pub revision: u64,
    /// When it was recorded.
    pub time: Timestamp,
    /// `Created`, `Modified`, `Deleted`, `Former`, `Gap`, `Purged`
    pub change: String,
    /// The user; empty when it is not known.
    pub user: String,
    /// The user agent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user_agent: String,
    /// The field manager.
    #[serde(rename = "fieldManager", skip_serializing_if = "String::is_empty")]
    pub manager: String,
    /// The verb.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub verb: String,
    /// The subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
    /// The audit id.
    #[serde(rename = "auditID", skip_serializing_if = "String::is_empty")]
    pub audit_id: String,
    /// The first revision of a gap, else 0.
    pub since: u64,
    /// About a gap or a purge.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The object, or its last state before it was deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Value>,
}

impl Revision {
    fn of(item: &Value) -> Option<Revision> {
        let text = |field: &str| str_at(item, &[field]).to_owned();
        Some(Revision {
            revision: text("revision").parse().ok()?,
            time: text("time").parse().ok()?,
            change: text("change"),
            user: text("user"),
            user_agent: text("userAgent"),
            manager: text("fieldManager"),
            verb: text("verb"),
            subresource: text("subresource"),
            audit_id: text("auditID"),
            since: text("since").parse().unwrap_or(0),
            message: text("message"),
            state: item.get("state").cloned(),
        })
    }

    /// Whether an object was there from this revision on.
    pub fn is_state(&self) -> bool {
        matches!(&*self.change, "Created" | "Modified" | "Former") && self.state.is_some()
    }

    /// `bob`, or what stands for a user that is not known.
    pub fn user(&self) -> &str {
        if self.user.is_empty() { "-" } else { &self.user }
    }

    /// `902`, or `7-9` of a gap.
    fn number(&self) -> String {
        match self.since {
            0 => self.revision.to_string(),
            since => format!("{since}-{}", self.revision),
        }
    }

    /// `patch status`
    fn asked(&self) -> String {
        match (self.verb.as_str(), self.subresource.as_str()) {
            ("", _) => "-".to_owned(),
            (verb, "") => verb.to_owned(),
            (verb, subresource) => format!("{verb} {subresource}"),
        }
    }
}

/// The history of an object.
#[derive(Clone, Debug)]
pub struct ObjectHistory {
    /// `deployments.apps`
    pub resource: String,
    /// The API group.
    pub group: String,
    /// The plural.
    pub plural: String,
    /// Where it is; empty for objects of the cluster.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The path of the object itself.
    pub path: String,
    /// The path of its collection.
    pub collection: String,
    /// In order.
    pub revisions: Vec<Revision>,
}

impl ObjectHistory {
    /// Reads it whole.
    ///
    /// # Errors
    /// When the kind is not known, the server keeps no history, or the caller may not read the object.
    pub async fn read(api: &dyn Api, subject: &Subject, namespace: &str) -> Result<Self, ExplainError> {
        let discovery = Discovery::read(api).await?;
        let resource = discovery.resolve(&subject.kind)?;
        let history =
            ObjectHistory::pages(api, &discovery, resource, (namespace, &subject.name), PAGES).await?;
        history.ok_or_else(|| ExplainError::Unreadable(NO_HISTORY.into()))
    }

    /// Reads it whole for an explanation; `None` where the server keeps no history.
    ///
    /// # Errors
    /// When the caller may not read it, or it is too long for that.
    pub(crate) async fn of(
        api: &dyn Api,
        discovery: &Discovery,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Self>, ExplainError> {
        ObjectHistory::pages(api, discovery, resource, (namespace, name), EXPLAINED_PAGES).await
    }

    async fn pages(
        api: &dyn Api,
        discovery: &Discovery,
        resource: &Resource,
        (namespace, name): (&str, &str),
        pages: usize,
    ) -> Result<Option<Self>, ExplainError> {
        if !discovery.has("history.kaji.dev", REVISIONS) {
            return Ok(None);
        }
        let namespace = if resource.namespaced { namespace } else { "" };
        let mut history = ObjectHistory {
            resource: resource.argument(),
            group: resource.group.clone(),
            plural: resource.plural.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            path: resource.path(namespace, name),
            collection: resource.path(namespace, ""),
            revisions: vec![],
        };
        let mut token = String::new();
        for _ in 0..pages {
            let list = api.get(&history.page(&token)).await.map_err(unreadable)?;
            history.revisions.extend(arr_at(&list, &["items"]).iter().filter_map(Revision::of));
            str_at(&list, &["metadata", "continue"]).clone_into(&mut token);
            if token.is_empty() {
                return Ok(Some(history));
            }
        }
        Err(ExplainError::Unreadable(format!(
            "the history has more than {} revisions",
            history.revisions.len()
        )))
    }

    fn page(&self, token: &str) -> String {
        let selector = format!(
            "object.group={},object.resource={},object.name={}",
            escape_value(&self.group),
            escape_value(&self.plural),
            escape_value(&self.name)
        );
        let next = if token.is_empty() { String::new() } else { format!("&continue={}", escape(token)) };
        format!("{}?fieldSelector={}{next}", collection(&self.namespace), escape(&selector))
    }

    /// The state at a moment, and what is missing before it.
    ///
    /// # Errors
    /// When it was not there, or what was there is not recorded.
    pub fn at(&self, moment: &Moment) -> Result<(&Revision, Vec<&Revision>), ExplainError> {
        let is_before = |revision: &&Revision| revision.change == "Former" || moment.includes(revision);
        let before: Vec<&Revision> = self.revisions.iter().take_while(is_before).collect();
        let wrong =
            |text: String| Err(ExplainError::NotFound(format!("{}/{}: {text}", self.resource, self.name)));
        let Some(at) = before.iter().rposition(|revision| revision.change != "Gap") else {
            return wrong(match self.revisions.first() {
                Some(first) if first.change == "Created" => {
                    format!(
                        "it was not there at {moment}: it was created at {} as revision {}",
                        first.time, first.revision
                    )
                }
                Some(first) => {
                    format!("its recorded history begins at {} with revision {}", first.time, first.revision)
                }
                None => "no revision of it is recorded".into(),
            });
        };
        let found = before[at];
        match found.change.as_str() {
            "Deleted" => wrong(format!(
                "it was not there at {moment}: {} deleted it at {} (revision {})",
                found.user(),
                found.time,
                found.revision
            )),
            "Purged" => wrong(format!("{} (by {} at {})", found.message, found.user(), found.time)),
            _ if found.is_state() => Ok((found, before[at + 1..].to_vec())),
            _ => wrong(format!("revision {} has no state", found.revision)),
        }
    }

    /// The last state of an object that was deleted: what there is to restore without a moment.
    ///
    /// # Errors
    /// When the object was not deleted.
    pub fn deleted(&self) -> Result<&Revision, ExplainError> {
        let last = self.revisions.iter().rev().find(|revision| revision.change != "Gap");
        last.filter(|last| last.change == "Deleted" && last.state.is_some()).ok_or_else(|| {
            let text = "it was not deleted: say which state is meant (--at; `kaji history` shows them)";
            ExplainError::NotFound(format!("{}/{}: {text}", self.resource, self.name))
        })
    }

    /// The state before a revision; `None` where the revision created the object.
    ///
    /// # Errors
    /// When that state is not recorded.
    pub fn before(&self, revision: u64) -> Result<Option<&Revision>, ExplainError> {
        let at = self.revisions.iter().position(|r| r.revision == revision && r.is_state());
        let (before, at) = at.map_or((&[][..], None), |at| (&self.revisions[..at], self.revisions.get(at)));
        match (at, before.last()) {
            (Some(at), _) if at.change == "Created" => Ok(None),
            (Some(_), Some(before)) if before.is_state() => Ok(Some(before)),
            _ => Err(ExplainError::NotFound(format!(
                "{}/{}: what was before revision {revision} is not recorded",
                self.resource, self.name
            ))),
        }
    }

    /// As a table, the oldest first.
    pub fn table(&self) -> String {
        let mut rows =
            vec![["REVISION", "TIME", "CHANGE", "USER", "MANAGER", "VERB", "FIELDS"].map(str::to_owned)];
        let mut former: Option<&Value> = None;
        let mut remarks = String::new();
        for revision in &self.revisions {
            let fields = match (&revision.state, revision.change.as_str()) {
                (Some(state), "Modified") => summary(&changes(former.unwrap_or(&Value::Null), state)),
                (None, _) => revision.message.clone(),
                _ => String::new(),
            };
            former = revision.state.as_ref().filter(|_| revision.change != "Deleted").or(former);
            let manager = if revision.manager.is_empty() { "-" } else { &revision.manager };
            rows.push([
                revision.number(),
                short_time(revision.time),
                revision.change.clone(),
                revision.user().to_owned(),
                manager.to_owned(),
                revision.asked(),
                fields,
            ]);
        }
        match self.revisions.iter().find(|revision| revision.change != "Gap") {
            Some(first) if first.change != "Created" => remarks.push_str("Earlier revisions are not kept.\n"),
            None => remarks.push_str("No revision of it is recorded.\n"),
            Some(_) => {}
        }
        align(&rows) + &remarks
    }
}

/// The path of the revisions of a namespace, or of all if it is empty.
fn collection(namespace: &str) -> String {
    let namespaces = match namespace {
        "" => String::new(),
        namespace => format!("/namespaces/{}", escape(namespace)),
    };
    format!("{API}{namespaces}/{REVISIONS}")
}

/// Refuses to write a state that is not the object's.
///
/// # Errors
/// When values were replaced by hashes.
pub fn check_restorable(state: &Value) -> Result<(), ExplainError> {
    let redacted =
        leaves(state).into_iter().find(|(_, value)| value.as_str().is_some_and(|v| v.starts_with(REDACTED)));
    match redacted {
        Some((field, _)) => Err(ExplainError::Unreadable(format!(
            "{field} is not kept, only a hash of it: values of Secrets, and of kinds that are encrypted at rest, cannot be restored"
        ))),
        None => Ok(()),
    }
}

fn unreadable(refusal: RequestError) -> ExplainError {
    match refusal {
        RequestError::NotFound(text) => ExplainError::NotFound(text),
        RequestError::Forbidden(text) | RequestError::Failed(text) => ExplainError::Unreadable(text),
    }
}

/// Fields that one line has room for.
const FIELDS: usize = 3;

fn summary(changes: &[fields::FieldChange]) -> String {
    let names: Vec<&str> = changes.iter().take(FIELDS).map(|change| change.path.as_str()).collect();
    let more = match changes.len().saturating_sub(FIELDS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    names.join(" ") + &more
}

fn short_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

#[cfg(test)]
mod tests;
