//! The input of an index over objects: a revision that is cheap to read, and the changes since the last call.

use serde_json::Value;

/// One object that came, changed or went.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// `""` at cluster scope.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `None`: it is gone.
    pub object: Option<Value>,
}

/// The objects of one resource, followed by one index.
pub trait Feed: Send + Sync + 'static {
    /// Grows with each change. Read for every decision.
    fn revision(&self) -> u64;

    /// Gives what changed since the last call (the first one: everything), one change after the other; returns the revision
    /// that this leads to. Calls come one at a time. There may be very many objects: no two are in memory at once.
    fn take(&self, each: &mut dyn FnMut(&Change)) -> u64;
}
