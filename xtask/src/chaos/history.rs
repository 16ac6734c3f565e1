//! What clients did and saw, in the order of one monotonic clock.
//!
//! Invariants: an operation is recorded once, when it has ended; what it wrote is named by its number, which no other one has;
//! an outcome is `Refused` only when the operation certainly had no effect.

use serde::Serialize;
use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

/// A revision of the store, as resourceVersions show it.
pub type Revision = u64;
/// Nanoseconds since the run began.
pub type Time = u64;

/// One version of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Version {
    /// The object.
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.resourceVersion`
    pub revision: Revision,
    /// The number of the operation that wrote it.
    pub value: u64,
}

/// What an operation asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Request {
    /// Creates an object.
    Create,
    /// Replaces it if it is at this revision.
    Update(Revision),
    /// Changes it whatever it is.
    Patch,
    /// Applies it by force: creates or changes it.
    Apply,
    /// Deletes it, if it is at this revision.
    Delete(Option<Revision>),
    /// Reads it.
    Get,
    /// Reads it from whatever a server has, which may be old.
    GetAny,
    /// Reads all as of a revision.
    ListAt(Revision),
    /// Reads all, in pages of so many objects; 0 for one page.
    List(usize),
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// The object was written, or read.
    Object(Version),
    /// It was deleted.
    Deleted,
    /// What a list held.
    Listed(Revision, Vec<Version>),
    /// It had no effect: the status code.
    Refused(u16),
    /// Nothing was sent.
    Unsent,
    /// An answer that no server may give.
    Malformed(String),
    /// It may have had an effect, now or later.
    Unknown(String),
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// Its number, which is also what it writes.
    pub number: u64,
    /// The server that was asked.
    pub server: usize,
    /// The object; empty for lists.
    pub name: String,
    /// What was asked for.
    pub request: Request,
    /// When it began.
    pub begin: Time,
    /// When its outcome was known.
    pub end: Time,
    /// What came of it.
    pub outcome: Outcome,
}

/// What a watch delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Change {
    /// `ADDED`
    Added,
    /// `MODIFIED`
    Modified,
    /// `DELETED`
    Deleted,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// What happened.
    pub change: Change,
    /// The version; of a deletion the last one, at the revision of the deletion.
    pub version: Version,
    /// When it was seen.
    pub seen: Time,
}

/// What one watch saw without having lost its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Watched {
    /// The object that it is about; all if `None`.
    pub only: Option<String>,
    /// It has everything after this revision.
    pub from: Revision,
    /// Up to this one.
    pub to: Revision,
    /// In the order of delivery, over all connections.
    pub events: Vec<Event>,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct History {
    /// The store's revision before the first operation, when there were no objects.
    pub from: Revision,
    /// Operations, in the order of their ends.
    pub operations: Vec<Operation>,
    /// What watches saw.
    pub watched: Vec<Watched>,
}

/// Where actors record what they do.
pub struct Recorder {
    begun: Instant,
    history: Mutex<History>,
}

impl Recorder {
    /// An empty record.
    pub fn new(from: Revision) -> Recorder {
        Recorder { begun: Instant::now(), history: Mutex::new(History { from, ..History::default() }) }
    }

    /// The time of the run.
    pub fn now(&self) -> Time {
        Time::try_from(self.begun.elapsed().as_nanos()).unwrap_or(Time::MAX)
    }

    /// Adds an operation.
    pub fn operation(&self, operation: Operation) {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).operations.push(operation);
    }

    /// Adds what a watch saw.
    pub fn watched(&self, watched: Watched) {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).watched.push(watched);
    }

    /// Everything so far.
    pub fn take(&self) -> History {
        std::mem::take(&mut *self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
