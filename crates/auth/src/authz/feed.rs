//! What an index over objects is fed with: a version that is cheap to ask for, and what changed since the last time.

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
    /// Grows with each change. Asked on every decision.
    fn revision(&self) -> u64;

    /// What changed since the last call (the first one: everything), and the revision that this leads to.
    /// Calls come one at a time.
    fn take(&self) -> (u64, Vec<Change>);
}
