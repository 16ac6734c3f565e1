//! Events: those of a namespace, or of an object and of everything that it owns, in their order, and those that come.
//!
//! Source: `kubectl events`; core/v1 Event, which has what events.k8s.io/v1 has under other names.
//!
//! - `record`: one event.
//! - `family`: whether an object is the one that was asked for, or hangs on it.
//! - `follow`: events as they come.
//!
//! Invariants: everything is read with the caller's rights. No event is shown twice in the same state, also when the server ends a watch, is
//! away for a while, or has forgotten a revision.

mod family;
mod follow;
mod record;
#[cfg(test)]
mod tests;

pub use follow::FollowError;
pub use record::{Event, Regarding};

use crate::{
    Api, ExplainError, RequestError, Subject, discovery::Discovery, reader::Reader, table, tree::Dependents,
};
use family::Family;
use futures_util::TryStreamExt;
use jiff::Timestamp;
use kaji_meta::{fields::escape_value, object};
use kaji_runtime::{
    Collection, Error, ObjectFeed, Selection,
    feed::{Listed, ObjectList},
};
use serde_json::Value;
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

/// The client, as the server records it.
const AGENT: &str = "kaji-events";
/// Events about objects of the cluster are in this namespace, unless their author chose another one.
const OF_CLUSTER: &str = "default";
/// Without an object for so long, a list has failed.
const SILENCE: Duration = Duration::from_secs(60);

/// Which events.
#[derive(Clone, Debug, Default)]
pub struct EventQuery {
    /// Those of this object and of what it owns. `None`: all.
    pub subject: Option<Subject>,
    /// Where; empty for all namespaces.
    pub namespace: String,
    /// `Normal`, `Warning`; empty for all.
    pub types: Vec<String>,
}

/// The events of a query.
pub struct Events<'a> {
    api: &'a dyn Api,
    feed: &'a dyn ObjectFeed,
    types: Vec<String>,
    collection: Collection,
    family: Option<Family>,
    discovery: Discovery,
    /// Of the last list, or the last event.
    revision: String,
    /// The state of each event that was shown, by its uid. As many as the server has.
    shown: HashMap<String, String>,
    unknown: Vec<String>,
}

impl<'a> Events<'a> {
    /// Looks up what is asked for.
    ///
    /// # Errors
    /// When the kind is not known, or the object is not readable. An object that does not exist has events, too.
    pub async fn open(
        api: &'a dyn Api,
        feed: &'a dyn ObjectFeed,
        query: &EventQuery,
    ) -> Result<Self, ExplainError> {
        let discovery = Discovery::read(api).await?;
        let mut namespace = query.namespace.as_str();
        let mut family = None;
        if let Some(subject) = &query.subject {
            let resource = discovery.resolve(&subject.kind)?.clone();
            if !resource.namespaced {
                namespace = "";
            }
            let present = match api.get(&resource.path(namespace, &subject.name)).await {
                Ok(object) => Some(object),
                Err(RequestError::NotFound(_)) => None,
                Err(RequestError::Forbidden(text) | RequestError::Failed(text)) => {
                    return Err(ExplainError::Unreadable(text));
                }
            };
            family = Some(Family::new(resource, namespace, &subject.name, present.as_ref()));
        }
        let types = query.types.clone();
        Ok(Events {
            api,
            feed,
            collection: collection(namespace, &types),
            types,
            family,
            discovery,
            revision: String::new(),
            shown: HashMap::new(),
            unknown: vec![],
        })
    }

    /// What could not be read, in the server's words; each is said once.
    pub fn unknown(&mut self) -> Vec<String> {
        std::mem::take(&mut self.unknown)
    }

    /// The events that there are and were not handed out yet in their present state, the oldest first.
    ///
    /// # Errors
    /// When the events cannot be read.
    pub async fn list(&mut self) -> Result<Vec<Event>, ExplainError> {
        self.read().await.map_err(unreadable)
    }

    async fn read(&mut self) -> Result<Vec<Event>, Error> {
        let mut objects = match self.objects().await {
            Err(error) if error.code() == Some(403) && self.may_narrow() => {
                self.unknown.push(format!(
                    "{}; these are the events of the namespace {OF_CLUSTER}",
                    unreadable(error)
                ));
                self.collection = collection(OF_CLUSTER, &self.types);
                self.objects().await?
            }
            other => other?,
        };
        // After the list: what an event is about was there before it.
        if let Some(family) = &mut self.family {
            let reader = Reader::new(self.api);
            let dependents =
                Dependents::read(&reader, &self.discovery, family.resource(), family.namespace()).await;
            family.add(&dependents);
            self.unknown.extend(reader.refused());
            objects.retain(|event| family.has(event));
        }
        let present: HashSet<&str> = objects.iter().map(|event| event.uid.as_str()).collect();
        self.shown.retain(|uid, _| present.contains(uid.as_str()));
        objects.retain(|event| {
            is_wanted(&self.types, event) && self.shown.get(&event.uid) != Some(&event.revision)
        });
        for event in &objects {
            self.shown.insert(event.uid.clone(), event.revision.clone());
        }
        objects.sort_by(|a, b| a.order().cmp(&b.order()));
        Ok(objects)
    }

    /// Whether the events of an object of the cluster were asked for in all namespaces.
    fn may_narrow(&self) -> bool {
        self.family.as_ref().is_some_and(|family| family.namespace().is_empty())
            && self.collection.path != collection(OF_CLUSTER, &[]).path
    }

    /// All events of the collection; its revision is kept.
    async fn objects(&mut self) -> Result<Vec<Event>, Error> {
        let mut events = vec![];
        let mut list = self.feed.list(AGENT, &self.collection).await?;
        while let Some(part) = next(&mut list).await? {
            let (Listed::Object(bytes) | Listed::Metadata(bytes)) = &part;
            let value: Value =
                serde_json::from_slice(bytes).map_err(|error| Error::Decode(error.to_string()))?;
            match part {
                Listed::Object(_) => events.push(Event::of(&value)),
                Listed::Metadata(_) => {
                    object::str_at(&value, &["resourceVersion"]).clone_into(&mut self.revision);
                }
            }
        }
        Ok(events)
    }
}

async fn next(list: &mut ObjectList) -> Result<Option<Listed>, Error> {
    let part = tokio::time::timeout(SILENCE, list.try_next()).await;
    part.map_err(|_| Error::Timeout(SILENCE))?
}

fn collection(namespace: &str, types: &[String]) -> Collection {
    let selection = match types {
        [one] => Selection::by_fields(format!("type={}", escape_value(one))),
        _ => Selection::default(),
    };
    Collection { path: crate::paths::path("v1", namespace, "events", ""), selection, metadata_only: false }
}

fn is_wanted(types: &[String], event: &Event) -> bool {
    types.is_empty() || types.contains(&event.sort)
}

/// What the server said, without Rust's words for it.
fn unreadable(error: Error) -> ExplainError {
    match error {
        Error::Api(status) => ExplainError::Unreadable(status.message.clone()),
        other => ExplainError::Unreadable(other.to_string()),
    }
}

/// Events as a table; with their namespaces, if they are of several.
pub fn event_table(events: &[Event], all_namespaces: bool, now: Timestamp) -> String {
    let mut rows =
        vec![["NAMESPACE", "LAST SEEN", "TYPE", "REASON", "OBJECT", "FROM", "MESSAGE"].map(str::to_owned)];
    rows.extend(events.iter().map(|event| {
        [
            event.namespace.clone(),
            event.seen(now),
            event.sort.clone(),
            event.reason.clone(),
            event.regarding.to_string(),
            event.reporting_controller.clone(),
            event.message.trim().to_owned(),
        ]
    }));
    if all_namespaces {
        return table::align(&rows);
    }
    let without = |[_, seen, sort, reason, object, from, message]: [String; 7]| {
        [seen, sort, reason, object, from, message]
    };
    table::align(&rows.into_iter().map(without).collect::<Vec<_>>())
}
