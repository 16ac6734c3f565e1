//! What is said about requests to etcd while they are made, for metrics.
//!
//! Invariant: keys are those of this program, not etcd's; calls return at once.

use std::fmt::Debug;
use std::time::Duration;

/// Takes note of requests, events and sizes.
pub trait Observer: Debug + Send + Sync {
    /// A request has ended: `get`, `list`, `create`, `update`, `delete` or `txn`.
    fn request(&self, operation: &'static str, key: &str, took: Duration, failed: bool);
    /// A watch has received an event.
    fn event(&self, key: &str);
    /// A watch has received progress.
    fn progress(&self);
    /// The size of the database of an endpoint, in bytes.
    fn database(&self, endpoint: &str, bytes: u64);
    /// A revision that etcd has reached.
    fn revision(&self, revision: u64);
}

/// Takes note of nothing.
#[derive(Clone, Copy, Debug)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn request(&self, _: &'static str, _: &str, _: Duration, _: bool) {}
    fn event(&self, _: &str) {}
    fn progress(&self) {}
    fn database(&self, _: &str, _: u64) {}
    fn revision(&self, _: u64) {}
}
