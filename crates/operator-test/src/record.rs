//! The requests of the client under test, in the order in which they came, with what became of them.
//!
//! Invariant: bounded; what comes after the last record is counted alone.

use crate::{call::Call, fault::Point};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::Instant;

/// Records of a run at most.
const MOST_RECORDS: usize = 50_000;
/// Different clients, verbs and resources that are counted.
const MOST_KEYS: usize = 4_096;
/// Notes of a run at most.
const MOST_NOTES: usize = 1_000;

/// A request, or an event of a watch.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Milliseconds since the start of the run.
    pub at_millis: u64,
    /// Which of its client, verb and resource.
    #[serde(flatten)]
    pub point: Point,
    /// Of namespaced resources.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Of single objects.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The HTTP status code; none for an answer that was lost, and for an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// The resourceVersion in the answer to a write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Neither a lease nor an event.
    #[serde(skip)]
    pub counts_as_write: bool,
}

/// What the test itself did.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// Milliseconds since the start of the run.
    pub at_millis: u64,
    /// What.
    pub text: String,
}

/// See the module.
#[derive(Debug)]
pub struct Recorder {
    started: Instant,
    counts: BTreeMap<(String, String, String), u32>,
    records: Vec<Record>,
    /// The place of the first record.
    first: usize,
    notes: Vec<Note>,
    /// Requests but watches, and those of leases.
    requests: u64,
    last_write: Instant,
    /// Namespace and name.
    leases: BTreeSet<(String, String)>,
}

impl Recorder {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Recorder {
        let now = Instant::now();
        Recorder {
            started: now,
            counts: BTreeMap::new(),
            records: Vec::new(),
            first: 0,
            notes: Vec::new(),
            requests: 0,
            last_write: now,
            leases: BTreeSet::new(),
        }
    }

    /// Nothing yet, after another one: places of that one are none of this.
    #[must_use]
    pub fn after(former: &Recorder) -> Recorder {
        Recorder { first: former.first + former.records.len(), ..Recorder::new() }
    }

    /// Counts a request or event.
    pub fn point(&mut self, call: &Call) -> Point {
        let key = (call.client.clone(), call.verb.clone(), call.resource.clone());
        let room = self.counts.len() < MOST_KEYS;
        let nth = match self.counts.get_mut(&key) {
            Some(count) => {
                *count = count.saturating_add(1);
                *count
            }
            None => {
                if room {
                    self.counts.insert(key, 1);
                }
                1
            }
        };
        if !call.is_background() && call.verb != "watch" {
            self.requests += 1;
        }
        Point { client: call.client.clone(), verb: call.verb.clone(), resource: call.resource.clone(), nth }
    }

    /// Does not count a request that was counted.
    pub fn excuse(&mut self, call: &Call) {
        if !call.is_background() && call.verb != "watch" {
            self.requests = self.requests.saturating_sub(1);
        }
    }

    /// Keeps what became of a request. Returns its place for [`Recorder::change`].
    pub fn push(&mut self, call: &Call, point: Point) -> Option<usize> {
        if call.writes() {
            if call.resource == "leases.coordination.k8s.io" && !call.name.is_empty() {
                self.leases.insert((call.namespace.clone(), call.name.clone()));
            }
            if !call.is_background() {
                self.last_write = Instant::now();
            }
        }
        if self.records.len() >= MOST_RECORDS {
            return None;
        }
        self.records.push(Record {
            at_millis: self.millis(),
            point,
            namespace: call.namespace.clone(),
            name: call.name.clone(),
            code: None,
            revision: None,
            fault: None,
            counts_as_write: call.writes() && !call.is_background(),
        });
        Some(self.first + self.records.len() - 1)
    }

    /// Changes a record.
    pub fn change(&mut self, place: Option<usize>, change: impl FnOnce(&mut Record)) {
        let place = place.and_then(|place| place.checked_sub(self.first));
        if let Some(record) = place.and_then(|place| self.records.get_mut(place)) {
            change(record);
        }
    }

    /// Milliseconds since the start.
    fn millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Notes what the test does.
    pub fn note(&mut self, text: &str) {
        if self.notes.len() < MOST_NOTES {
            let at_millis = self.millis();
            self.notes.push(Note { at_millis, text: text.to_owned() });
        }
    }

    /// What the test did.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// All of them.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Requests but watches, and those of leases and events.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// How long there was no write.
    #[must_use]
    pub fn without_writes(&self) -> Duration {
        self.last_write.elapsed()
    }

    /// The leases that were written, by namespace and name.
    #[must_use]
    pub fn leases(&self) -> Vec<(String, String)> {
        self.leases.iter().cloned().collect()
    }
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder::new()
    }
}
