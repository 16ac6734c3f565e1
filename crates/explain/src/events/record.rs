//! One event, as it is shown.

use crate::table::plain;
use jiff::Timestamp;
use kaji_meta::{
    object::{self, at, i64_at, str_at},
    time::human_duration,
};
use serde::Serialize;
use serde_json::Value;
use std::fmt;

/// An event. As JSON it has the names of events.k8s.io/v1, where it has the field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// When it was last observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
    /// When it was first observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_time: Option<Timestamp>,
    /// How often.
    pub count: i64,
    /// `Normal`, `Warning`
    #[serde(rename = "type")]
    pub sort: String,
    /// `FailedScheduling`
    pub reason: String,
    /// What was done or tried.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub action: String,
    /// In words.
    #[serde(rename = "note")]
    pub message: String,
    /// The object that it is about.
    pub regarding: Regarding,
    /// Another object that has to do with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub related: Option<Regarding>,
    /// The component that observed it.
    pub reporting_controller: String,
    /// Which of them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reporting_instance: String,
    /// Of the event itself.
    pub namespace: String,
    /// Of the event itself.
    pub name: String,
    /// Of the event itself.
    pub uid: String,
    /// The event's resourceVersion.
    #[serde(rename = "resourceVersion")]
    pub revision: String,
}

/// An object that an event names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Regarding {
    /// `v1`
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// `Pod`
    pub kind: String,
    /// Empty for objects of the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The part of it: `spec.containers{web}`
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_path: String,
}

impl Regarding {
    fn of(reference: &Value) -> Regarding {
        let text = |name: &str| str_at(reference, &[name]).to_owned();
        Regarding {
            api_version: text("apiVersion"),
            kind: text("kind"),
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            field_path: text("fieldPath"),
        }
    }
}

impl fmt::Display for Regarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.to_lowercase(), self.name)
    }
}

impl Event {
    /// Of a core/v1 Event.
    pub(super) fn of(event: &Value) -> Event {
        let text = |path: &[&str]| str_at(event, path).to_owned();
        let time = |path: &[&str]| str_at(event, path).parse::<Timestamp>().ok();
        // The newer fields first; recorders of client-go's older package set the others.
        let either = |newer: &[&str], older: &[&str]| match str_at(event, newer) {
            "" => text(older),
            found => found.to_owned(),
        };
        let created = time(&["metadata", "creationTimestamp"]);
        let last =
            [&["series", "lastObservedTime"][..], &["lastTimestamp"], &["eventTime"], &["firstTimestamp"]];
        let first = [&["firstTimestamp"][..], &["eventTime"]];
        Event {
            time: last.into_iter().filter_map(time).max().or(created),
            first_time: first.into_iter().filter_map(time).min().or(created),
            count: i64_at(event, &["series", "count"]).or(i64_at(event, &["count"])).unwrap_or(1).max(1),
            sort: text(&["type"]),
            reason: text(&["reason"]),
            action: text(&["action"]),
            message: text(&["message"]),
            regarding: Regarding::of(at(event, &["involvedObject"]).unwrap_or(&Value::Null)),
            related: at(event, &["related"]).map(Regarding::of).filter(|related| !related.name.is_empty()),
            reporting_controller: either(&["reportingComponent"], &["source", "component"]),
            reporting_instance: either(&["reportingInstance"], &["source", "host"]),
            namespace: object::namespace(event).to_owned(),
            name: object::name(event).to_owned(),
            uid: object::uid(event).to_owned(),
            revision: object::resource_version(event).to_owned(),
        }
    }

    /// By time; what happened in the same moment as it was written.
    pub(super) fn order(&self) -> (Option<Timestamp>, u64, &str) {
        (self.time, self.revision.parse().unwrap_or(0), &self.uid)
    }

    /// `2m`, `5s (x3 over 10m)`
    pub(super) fn seen(&self, now: Timestamp) -> String {
        let since = |time: Option<Timestamp>| {
            let seconds = time.map(|time| now.duration_since(time).as_secs().max(0));
            seconds.map_or_else(|| "<unknown>".to_owned(), human_duration)
        };
        match self.count {
            1 => since(self.time),
            count => format!("{} (x{count} over {})", since(self.time), since(self.first_time)),
        }
    }

    /// As a line of a stream: with its time, since the line stays while time passes.
    pub fn line(&self, all_namespaces: bool) -> String {
        let time = self
            .time
            .map_or_else(|| "<unknown>".to_owned(), |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        let object = match all_namespaces {
            true => format!("{} -n {}", self.regarding, self.namespace),
            false => self.regarding.to_string(),
        };
        let times = if self.count > 1 { format!(" (x{})", self.count) } else { String::new() };
        plain(&format!(
            "{time}  {:<7}  {:<20}  {object:<32}  {}: {}{times}",
            self.sort,
            self.reason,
            self.reporting_controller,
            self.message.trim()
        ))
    }
}
