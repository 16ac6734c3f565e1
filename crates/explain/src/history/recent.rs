//! What changed in a namespace, or everywhere: what `kaji history` shows without an object.
//!
//! Invariants: each change is shown once, in the order in which they were made, also over failed requests; only so many states are kept as
//! [`STATES`] says (but for those that are asked for), and the fields of a change are shown only when the state before it is among them.

use super::{PAGES, REVISIONS, Revision, changes, collection, short_time, summary, unreadable};
use crate::{Api, ExplainError, RequestError, discovery::Discovery, table::align, table::plain};
use jiff::Timestamp;
use kaji_meta::object::{arr_at, str_at};
use kaji_runtime::client::escape;
use serde::Serialize;
use serde_json::Value;
use std::{collections::HashMap, io, time::Duration};

/// Objects of which the last state is kept, to say what the next change changed.
const STATES: usize = 2_000;
/// Between requests for what has changed since.
const PAUSE: Duration = Duration::from_secs(1);
/// Between attempts while the server does not answer.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A change of an object. As JSON it has the API's names.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecentChange {
    /// The object; its parts are empty for a gap, which is of all.
    pub object: ObjectOf,
    /// The rest.
    #[serde(flatten)]
    pub revision: Revision,
    /// The fields that changed, as far as the state before is known; without a state the message.
    #[serde(skip)]
    details: String,
}

/// The object of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct ObjectOf {
    /// The API group.
    pub group: String,
    /// The plural.
    pub resource: String,
    /// Empty for objects of the cluster.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Why changes are not followed any more.
#[derive(Debug, thiserror::Error)]
pub enum RecentError {
    /// The server refuses, or keeps no history.
    #[error(transparent)]
    Server(#[from] ExplainError),
    /// A change could not be shown.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// Reads what changed, and goes on from there.
pub struct RecentChanges<'a> {
    api: &'a dyn Api,
    /// The collection of revisions.
    path: String,
    since: Timestamp,
    /// Up to which revision everything was read.
    through: String,
    states: HashMap<ObjectOf, Value>,
    /// Changes have the states that they made.
    with_states: bool,
}

impl ObjectOf {
    fn of(item: &Value) -> ObjectOf {
        let text = |field: &str| str_at(item, &["object", field]).to_owned();
        let [group, resource, namespace, name] = ["group", "resource", "namespace", "name"].map(text);
        ObjectOf { group, resource, namespace, name }
    }

    /// `deployments.apps/web`
    fn text(&self) -> String {
        match (self.resource.as_str(), self.group.as_str()) {
            ("", _) => "-".to_owned(),
            (resource, "") => format!("{resource}/{}", self.name),
            (resource, group) => format!("{resource}.{group}/{}", self.name),
        }
    }
}

const HEADERS: [&str; 8] = ["NAMESPACE", "REVISION", "TIME", "CHANGE", "OBJECT", "USER", "VERB", "FIELDS"];

impl RecentChange {
    fn cells(&self) -> [String; 8] {
        let revision = &self.revision;
        [
            self.object.namespace.clone(),
            revision.number(),
            short_time(revision.time),
            revision.change.clone(),
            self.object.text(),
            revision.user().to_owned(),
            revision.asked(),
            self.details.clone(),
        ]
    }

    /// As a line of its own.
    pub fn line(&self, with_namespace: bool) -> String {
        let [namespace, _, time, change, object, user, verb, details] = self.cells();
        let namespace = if with_namespace { format!("{namespace} ") } else { String::new() };
        plain(&format!("{time} {namespace}{change} {object} by {user} ({verb}) {details}"))
            .trim_end()
            .to_owned()
    }
}

/// As a table, the oldest first.
pub fn recent_table(found: &[RecentChange], with_namespace: bool) -> String {
    let rows: Vec<[String; 8]> =
        [HEADERS.map(str::to_owned)].into_iter().chain(found.iter().map(RecentChange::cells)).collect();
    if with_namespace {
        return align(&rows);
    }
    let rows: Vec<[String; 7]> =
        rows.into_iter().map(|[_, a, b, c, d, e, f, g]| [a, b, c, d, e, f, g]).collect();
    align(&rows)
}

impl<'a> RecentChanges<'a> {
    /// Of a namespace, or of everything if it is empty. Without their states changes are small.
    ///
    /// # Errors
    /// When the server keeps no history.
    pub async fn open(
        api: &'a dyn Api,
        namespace: &str,
        since: Timestamp,
        with_states: bool,
    ) -> Result<Self, ExplainError> {
        if !Discovery::read(api).await?.has("history.kaji.dev", REVISIONS) {
            return Err(ExplainError::Unreadable(super::NO_HISTORY.into()));
        }
        let path = collection(namespace);
        Ok(RecentChanges { api, path, since, through: String::new(), states: HashMap::new(), with_states })
    }

    /// What changed since the last call, or since the time of the beginning.
    ///
    /// # Errors
    /// When it cannot be read; the next call goes on where this one came to.
    async fn page(&mut self) -> Result<(Vec<RecentChange>, bool), RequestError> {
        let mut path = format!("{}?sinceTime={}", self.path, escape(&self.since.to_string()));
        if !self.through.is_empty() {
            path += &format!("&continue={}", escape(&self.through));
        }
        let list = self.api.get(&path).await?;
        let found = arr_at(&list, &["items"]).iter().filter_map(|item| self.change_of(item)).collect();
        str_at(&list, &["metadata", "resourceVersion"]).clone_into(&mut self.through);
        Ok((found, !str_at(&list, &["metadata", "continue"]).is_empty()))
    }

    fn change_of(&mut self, item: &Value) -> Option<RecentChange> {
        let (object, mut revision) = (ObjectOf::of(item), Revision::of(item)?);
        let before = self.states.remove(&object);
        let details = match (&before, &revision.state, revision.change.as_str()) {
            (Some(before), Some(state), "Modified") => summary(&changes(before, state)),
            (_, None, _) => revision.message.clone(),
            _ => String::new(),
        };
        let state =
            if self.with_states { revision.state.clone() } else { std::mem::take(&mut revision.state) };
        if let Some(state) = state.filter(|_| revision.change != "Deleted") {
            if self.states.len() >= STATES {
                self.states.clear();
            }
            self.states.insert(object.clone(), state);
        }
        Some(RecentChange { object, revision, details })
    }

    /// All of it up to now.
    ///
    /// # Errors
    /// When it cannot be read, or is too long.
    pub async fn read(&mut self) -> Result<Vec<RecentChange>, ExplainError> {
        let mut all = vec![];
        for _ in 0..PAGES {
            let (found, more) = self.page().await.map_err(unreadable)?;
            all.extend(found);
            if !more {
                return Ok(all);
            }
        }
        Err(ExplainError::Unreadable(format!("more than {} changes: say --since", all.len())))
    }

    /// Shows each change as it comes. A server that does not answer is asked again.
    ///
    /// # Errors
    /// When the server refuses, or a change cannot be shown.
    pub async fn follow(
        &mut self,
        show: &mut (dyn FnMut(&RecentChange) -> io::Result<()> + Send),
        note: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), RecentError> {
        let (mut pause, mut has_answered) = (PAUSE, false);
        loop {
            match self.page().await {
                Ok((found, more)) => {
                    found.iter().try_for_each(&mut *show)?;
                    (pause, has_answered) = (PAUSE, true);
                    if more {
                        continue;
                    }
                }
                Err(RequestError::Failed(text)) if has_answered => {
                    if pause == PAUSE {
                        note(&format!("{text}; trying again"));
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(refusal) => return Err(unreadable(refusal).into()),
            }
            tokio::time::sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests;
